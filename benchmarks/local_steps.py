"""Local steps where every client sees one digit: bits per link until a target accuracy, corrected and uncorrected.

    python benchmarks/local_steps.py --json docs/results/local_steps.json [--jobs 2]

MNIST, one digit per client, a ring of 10 with the fastest weights, a hidden layer of 64 units, batches of 50,
`blockwise(gsgd(2), 64)`. Settings of every contender are chosen alike among those listed below: on one seed (100), by
the accuracy of the mean model plus that of the worst client's own model after the last round. Then it runs with seeds
0, 1, 2. The target is what BEER with one gradient per round reaches in its last round, on average over the seeds. Bits
are those of one link in fixed width. A search that is in the JSON file already is not repeated; with `--jobs`, its runs
are spread over processes.
"""

import argparse
import functools
import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

import torch

import gossamer as gs
from gossamer.algorithms import CompressedKGT
from gossamer.files import write_text

SEARCH_SEED = 100
COMPRESSOR = gs.blockwise(gs.gsgd(2), 64)
Setting = dict[str, Any]
SGD = [0.02, 0.05, 0.1, 0.2, 0.4]
ADAM = [2e-4, 4e-4, 6e-4, 1e-3, 2e-3]
GAMMAS = [0.2, 0.4, 0.6]
REFERENCE = "BEER, one gradient"
CONTENDERS: dict[str, list[Setting]] = {
    REFERENCE: [{"lr": lr} for lr in SGD],
    "corrected AdamW, H = 10": [{"inner": "AdamW", "steps": 10, "lr": lr} for lr in ADAM],
    "corrected AdamW, H = 5": [{"inner": "AdamW", "steps": 5, "lr": lr} for lr in ADAM],
    "AdamW on the tracked gradient, H = 1": [{"inner": "AdamW", "steps": 1, "lr": lr} for lr in ADAM],
    "corrected SGD, H = 10": [{"inner": "SGD", "steps": 10, "lr": lr / 4} for lr in SGD],
    "BEER, uncorrected SGD, H = 10": [{"outer": True, "inner": "SGD", "steps": 10, "lr": lr / 4} for lr in SGD],
    "BEER, uncorrected AdamW, H = 10": [{"outer": True, "inner": "AdamW", "steps": 10, "lr": lr} for lr in ADAM],
}


def settings(label: str) -> Iterator[Setting]:
    """All that a contender is tried with: as many for each."""
    return ({**one, "gamma": gamma} for one, gamma in itertools.product(CONTENDERS[label], GAMMAS))


def run(given: argparse.Namespace, setting: Setting, seeds: list[int], every: int) -> list[gs.Run]:
    """The runs of a setting."""
    mixing = gs.mixing_matrix(gs.ring(10), weights="fdla")
    gamma, local = setting["gamma"], None
    method: gs.Algorithm
    if "inner" not in setting:
        method = gs.BEER(lr=setting["lr"], gamma=gamma, compressor=COMPRESSOR, start="minibatch")
    else:
        local = gs.LocalSteps(setting["inner"], steps=setting["steps"], lr=setting["lr"])
        if "outer" in setting:
            method = gs.BEER(lr=1.0, gamma=gamma, compressor=COMPRESSOR, start="minibatch")
        else:
            method = CompressedKGT(lr=1.0, gamma=gamma, compressor=COMPRESSOR, order="fresh")
    how: dict[str, Any] = {"rounds": given.rounds, "batch_size": 50, "eval_every": every}
    return list(gs.sweep(method, problem(given.data), mixing, seeds=seeds, local=local, **how))


@functools.cache
def problem(data: str) -> gs.Problem:
    """One digit per client."""
    return gs.problems.one_hidden_layer(data, clients=10, partition="by_label", hidden=64)


def searched(task: tuple[argparse.Namespace, str, Setting]) -> tuple[str, Setting, float, float]:
    """The accuracies of a setting on the search's seed: of the mean model, and of the worst client's."""
    given, label, setting = task
    if given.jobs > 1:
        torch.set_num_threads(1)
    runs = run(given, setting, [SEARCH_SEED], given.rounds)
    return label, setting, final(runs, "accuracy"), final(runs, "worst_accuracy")


def final(runs: list[gs.Run], column: str) -> float:
    """The mean over seeds in the last round; 0 where one diverged."""
    return mean(0.0 if run.diverged else float(run.frame[column].iloc[-1]) for run in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("local_steps.json"))
    parser.add_argument("--draw", action="store_true", help="only write the table and the figure of the file again")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="processes for the search")
    parser.add_argument("--data", default="mnist", help="mnist, or digits for a rehearsal")
    given = parser.parse_args()
    if given.draw:
        return write(json.loads(given.json.read_text()), given.json)
    about = {"data": given.data, "rounds": given.rounds, "gossamer": gs.__version__, "torch": torch.__version__}
    known = json.loads(given.json.read_text()) if given.json.exists() else {}
    kept: dict[str, Any] = known if known.get("about") == about else {"about": about, "search": {}, "final": {}}
    tried: dict[str, list[Any]] = kept["search"]
    tasks = [
        (given, label, setting)
        for label in CONTENDERS
        for setting in settings(label)
        if not any(one["setting"] == setting for one in tried.setdefault(label, []))
    ]
    with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
        done = map(searched, tasks) if given.jobs == 1 else pool.map(searched, tasks)
        for label, setting, accuracy, worst in done:
            tried[label].append({"setting": setting, "accuracy": accuracy, "worst client": worst})
            print(label, setting, round(accuracy, 4), round(worst, 4), flush=True)
            write_text(given.json, json.dumps(kept, indent=1))
    for label in CONTENDERS:
        best = max(tried[label], key=lambda one: one["accuracy"] + one["worst client"])["setting"]
        runs = run(given, best, list(range(given.seeds)), max(1, given.rounds // 100))
        curves = [{"bits": one.frame["bits"].tolist(), "accuracy": one.frame["accuracy"].tolist()} for one in runs]
        kept["final"][label] = {
            "setting": best,
            "accuracy": final(runs, "accuracy"),
            "worst client": min(float(one.frame["worst_accuracy"].iloc[-1]) for one in runs),
            "Mbit per link": mean(curve["bits"][-1] for curve in curves) / 1e6,
            "curves": curves,
        }
    conclude(kept)
    write_text(given.json, json.dumps(kept))
    write(kept, given.json)


def write(kept: dict[str, Any], path: Path) -> None:
    """The table and the figure beside the file."""
    write_text(path.with_suffix(".md"), table(kept))
    draw(kept, path.with_suffix(".png"))
    print(table(kept))


def conclude(kept: dict[str, Any]) -> None:
    """The share of the reference's bits that each contender needs for its final accuracy, seed by seed."""
    target = kept["target"] = kept["final"][REFERENCE]["accuracy"]
    bits = kept["final"][REFERENCE]["Mbit per link"] * 1e6
    for one in kept["final"].values():
        until = [
            next((b for b, a in zip(curve["bits"], curve["accuracy"], strict=True) if a >= target), None)
            for curve in one["curves"]
        ]
        one["shares"] = [None if b is None else b / bits for b in until]


def table(kept: dict[str, Any]) -> str:
    """Markdown."""
    lines = [
        f"| contender | chosen | accuracy | worst client | bits until {kept['target']:.3f}, share |",
        "|---|---|---|---|---|",
    ]
    for label, one in kept["final"].items():
        shares = ["never" if share is None else f"{share:.2f}" for share in one["shares"]]
        chosen = f"lr {one['setting']['lr']:g}, gamma {one['setting']['gamma']:g}"
        lines.append(
            f"| {label} | {chosen} | {one['accuracy']:.3f} | {one['worst client']:.3f} | {', '.join(shares)} |"
        )
    return "\n".join(lines) + "\n"


def draw(kept: dict[str, Any], path: Path) -> None:
    """Accuracy against bits, one line per seed."""
    import matplotlib.pyplot as plt

    from gossamer.report.figure import LOOK

    colours = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
    with plt.rc_context(LOOK):
        figure, axes = plt.subplots(figsize=(10, 4.2), layout="constrained")
        for colour, (label, one) in zip(colours, kept["final"].items(), strict=True):
            for number, curve in enumerate(one["curves"]):
                mbit = [b / 1e6 for b in curve["bits"]]
                axes.plot(mbit, curve["accuracy"], color=colour, lw=1.4, label=label if number == 0 else None)
        axes.axhline(kept["target"], color="0.4", lw=0.8, ls=":")
        axes.set(xlabel="Mbit sent on one link", ylabel="test accuracy of the mean model", xlim=(0, None), ylim=(0, 1))
        figure.legend(fontsize=9, loc="outside right center", frameon=False)
        figure.savefig(path)
        plt.close(figure)


if __name__ == "__main__":
    main()
