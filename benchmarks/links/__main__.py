"""Time to a target accuracy on slow links."""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.links.contenders import CONTENDERS
from benchmarks.links.search import Problem, run, searches

RESULTS = ROOT / "docs" / "results"
FEW = [
    *("DDP float32", "DDP PowerSGD 4", "all-reduce, H 20", "CHOCO-SGD, blockwise_gsgd_3,256"),
    *("CHOCO-SGD, blockwise_gsgd_3,256, H 20", "BEER, blockwise_gsgd_3,256", "MoTEF, blockwise_gsgd_3,256, H 5"),
]
PROBLEMS = [
    *searches(Problem(split="digit"), CONTENDERS),
    *searches(Problem("cnn", "dirichlet"), FEW),
    *searches(Problem("cnn", "digit"), FEW),
    *searches(Problem("language", "iid"), FEW[:5]),
    *searches(Problem(split="dirichlet"), CONTENDERS),
    *searches(Problem(hosts=8), FEW),
    *searches(Problem(graph="random"), FEW[3:]),
    *searches(Problem("hidden", "dirichlet"), FEW),
    *searches(Problem("hidden", "digit"), FEW),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", default="cpu,cpu")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    run(PROBLEMS, given.results / "links_search.jsonl", given.devices.split(","), given.seconds)


if __name__ == "__main__":
    main()
