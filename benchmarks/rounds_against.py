"""Time per round of this source tree, against that of another commit.

    python benchmarks/rounds_against.py COMMIT [--processes 3] [--turns 5] [--case NAME] [--json]

COMMIT is checked out into a temporary git worktree, which is removed at the end. Each tree is measured in a subprocess
of its own, with one thread. The two take turns: in each turn both run the same rounds, one after the other, and the
order alternates. After `--turns` turns of every case, both are replaced by fresh processes, `--processes` times in all.

A time is that of the rounds alone, without evaluation and without the first tenth of the rounds, as the column
`seconds` of the record has it. The ratio new / old is taken turn by turn. The table shows its median and its quartiles.

The cases use names of `gossamer` that old commits have too. They need a9a and MNIST in $GOSSAMER_DATA or `--data-dir`;
otherwise the embedded sets breast_cancer and digits take their places.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import gossamer as gs

ROOT = Path(__file__).resolve().parents[1]
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
BATCH = 100


@cache
def linear(data_dir: str | None, clients: int) -> "gs.Problem":
    """Logistic regression on a9a, or on breast_cancer."""
    import gossamer as gs

    has_data = data_dir is not None and (Path(data_dir) / "a9a").exists()
    return gs.logistic_regression("a9a" if has_data else "breast_cancer", clients=clients, data_dir=data_dir)


@cache
def hidden_layer(data_dir: str | None, clients: int) -> "gs.Problem":
    """A hidden layer of 32 units on MNIST, or on digits."""
    import gossamer as gs

    has_data = data_dir is not None and (Path(data_dir) / "mnist").exists()
    data = "mnist" if has_data else "digits"
    return gs.problems.one_hidden_layer(data, clients=clients, hidden=32, data_dir=data_dir)


@dataclass(frozen=True)
class Case:
    """A run to be timed; `method` names a function of METHODS."""

    method: str
    problem: Callable[[str | None, int], Any]
    rounds: int
    clients: int = 10
    seeds: int = 1


CASES = {
    "BEER, gsgd_5, linear": Case("beer_5", linear, 400),
    "BEER, gsgd_5, linear, 8 seeds": Case("beer_5", linear, 200, seeds=8),
    "CHOCO-SGD, top_k, linear": Case("choco_sgd", linear, 400),
    "DSGD, linear": Case("dsgd", linear, 600),
    "BEER, gsgd_20, hidden layer": Case("beer_20", hidden_layer, 40),
    "BEER, gsgd_5, linear, 200 clients": Case("beer_5", linear, 60, clients=200),
}


def method_of(name: str) -> "gs.Algorithm":
    """The method of a case; gossamer is imported by workers only."""
    import gossamer as gs

    methods: dict[str, Callable[[], gs.Algorithm]] = {
        "beer_5": lambda: gs.BEER(lr=0.05, gamma=0.5, compressor=gs.gsgd(5)),
        "beer_20": lambda: gs.BEER(lr=0.05, gamma=0.5, compressor=gs.gsgd(20)),
        "choco_sgd": lambda: gs.CHOCOSGD(lr=0.05, gamma=0.1, compressor=gs.top_k(10)),
        "dsgd": lambda: gs.DSGD(lr=0.05),
    }
    return methods[name]()


def seconds_per_round(case: Case, data_dir: str | None) -> float:
    """Run a case once."""
    import gossamer as gs

    problem = case.problem(data_dir, case.clients)
    several = list(range(case.seeds))
    how: Any = {"seeds": several} if hasattr(gs, "sweep") else {"seed": several}  # as versions up to 0.1 call it
    runs: Any = getattr(gs, "sweep", gs.simulate)(
        method_of(case.method),
        problem,
        gs.mixing_matrix(gs.ring(case.clients)),
        rounds=case.rounds,
        batch_size=min(BATCH, problem.rows_per_client),
        eval_every=case.rounds // 10,
        **how,
    )
    frame = runs[0].frame
    rounds, seconds = frame["round"].to_numpy(), frame["seconds"].to_numpy()
    return float((seconds[-1] - seconds[1]) / (rounds[-1] - rounds[1]))


def work(data_dir: str | None) -> None:
    """Answer each case that is named on standard input with its time; the first answer is the path of gossamer."""
    import torch

    import gossamer as gs

    torch.set_num_threads(1)
    print(json.dumps(gs.__file__), flush=True)
    for line in sys.stdin:
        print(json.dumps(seconds_per_round(CASES[line.strip()], data_dir)), flush=True)


class Worker:
    """A subprocess that measures one source tree."""

    def __init__(self, tree: Path, data_dir: str | None) -> None:
        command = [sys.executable, "-W", "ignore", __file__, "_work", *([data_dir] if data_dir else [])]
        environment = os.environ | ONE_THREAD | {"PYTHONPATH": str(tree / "src")}
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        source = Path(self._answer())
        if not source.is_relative_to(tree):
            raise SystemExit(f"The process for '{tree}' imported gossamer from '{source}'.")

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("A measuring process ended early; its error is printed above.")
        return json.loads(line)

    def measure(self, case: str) -> float:
        """Seconds per round."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{case}\n")
        self.process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A temporary git worktree of a commit."""
    with tempfile.TemporaryDirectory(prefix="gossamer-") as folder:
        tree = Path(folder).resolve() / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        done = subprocess.run([*git, "add", "--detach", tree, commit], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"Commit {commit!r} cannot be checked out: {done.stderr.strip()}")
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", tree], capture_output=True, check=False)


@dataclass(frozen=True)
class Line:
    """The result of one case; times are in milliseconds per round."""

    case: str
    old: float
    new: float
    ratio: float
    low: float
    high: float


def compare(old: Path, new: Path, cases: list[str], options: argparse.Namespace) -> list[Line]:
    """All cases, with both trees in turns."""
    times: dict[str, list[tuple[float, float]]] = {case: [] for case in cases}
    for _ in range(options.processes):
        with contextlib.ExitStack() as stack:
            workers = [stack.enter_context(contextlib.closing(Worker(tree, options.data_dir))) for tree in (old, new)]
            for case in cases:
                for turn in range(-1, options.turns):  # the first turn warms up
                    order = (0, 1) if turn % 2 else (1, 0)
                    taken = {number: workers[number].measure(case) for number in order}
                    if turn >= 0:
                        times[case].append((taken[0], taken[1]))
    lines = []
    for case, pairs in times.items():
        ratios = [after / before for before, after in pairs]
        low, middle, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        before, after = (1e3 * median(pair[number] for pair in pairs) for number in (0, 1))
        lines.append(Line(case, before, after, middle, low, high))
    return lines


def main() -> None:
    if sys.argv[1:2] == ["_work"]:
        return work(sys.argv[2] if len(sys.argv) > 2 else None)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="the commit to compare with")
    parser.add_argument("--processes", type=int, default=3, help="pairs of fresh processes")
    parser.add_argument("--turns", type=int, default=5, help="turns per case and pair of processes")
    parser.add_argument("--case", action="append", choices=tuple(CASES), help="measure this case only; repeatable")
    parser.add_argument("--data-dir", default=os.environ.get("GOSSAMER_DATA"))
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    with checked_out(options.commit) as old:
        lines = compare(old, ROOT, options.case or list(CASES), options)
    if options.json:
        print(json.dumps([asdict(line) for line in lines], indent=2))
        return None
    print(f"{'ms per round':36} {'old':>9} {'new':>9}   new / old (quartiles)")
    for line in lines:
        print(f"{line.case:36} {line.old:9.3f} {line.new:9.3f}   {line.ratio:5.3f} ({line.low:.3f} to {line.high:.3f})")
    return None


if __name__ == "__main__":
    main()
