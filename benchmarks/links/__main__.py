"""Time to a target accuracy on slow links."""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.links.contenders import CONTENDERS
from benchmarks.links.search import Trial, final, read, run, searched

RESULTS = ROOT / "docs" / "results"
FEW = [
    *("DDP float32", "DDP PowerSGD 4", "all-reduce, H 20", "CHOCO-SGD, blockwise_gsgd_2,64"),
    *("CHOCO-SGD, blockwise_gsgd_2,64, H 20", "BEER, gsgd_5", "BEER, blockwise_gsgd_2,64", "K-GT, blockwise_gsgd_2,64, H 10"),
]
CELLS = [
    {"task": "million", "split": "digit", "hosts": 4, "graph": "ring"},
    {"task": "million", "split": "dirichlet", "hosts": 4, "graph": "ring"},
    {"task": "hidden", "split": "dirichlet", "hosts": 4, "graph": "ring"},
    {"task": "hidden", "split": "digit", "hosts": 4, "graph": "ring"},
    {"task": "cnn", "split": "dirichlet", "hosts": 4, "graph": "ring"},
    {"task": "cnn", "split": "digit", "hosts": 4, "graph": "ring"},
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--without", default="")
    given = parser.parse_args()
    path = given.results / "links_search.jsonl"
    names = [name for name in CONTENDERS if name not in given.without.split(";")]
    import time
    end = time.monotonic() + given.seconds
    for cells in (CELLS[:1], CELLS[1:2], CELLS[2:]):
        some = {str(where): names if where["task"] == "million" else FEW for where in cells}
        left = end - time.monotonic()
        if left > 0:
            run([t for where in cells for t in searched(where, some[str(where)], given.device)], path, given.jobs, left)
            rows = read(path)
            run([t for where in cells for t in final(rows, where, some[str(where)], given.device)], path, given.jobs, end - time.monotonic())


if __name__ == "__main__":
    main()
