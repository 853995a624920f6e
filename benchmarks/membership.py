"""Clients that leave and come back: how soon BEER is at its floor again, with and without the rule of flows.

    python benchmarks/membership.py [--results docs/results] [--seeds 0 1 2]

a9a sorted by label, a ring of 8, batch 100. Two clients go at round 500, and one of them returns at round 1,000. The
gradient norm is that of the mean objective of the clients that are present, at the mean of their models. The floor is
that of a fresh run among the same clients, averaged over its last 300 rounds. "Rounds" says how many rounds after a
change the average over the next 100 rounds is at most 1.2 times the floor, and stays so until the next change; a
minibatch gradient is too noisy to say more of a single round. The last column has the largest such average of the fresh
run itself. In "no rule", the neighbours of lost clients keep what their edges have added to the tracker. In "not
adjacent", the ring falls into two parts, and until one client returns the numbers are those of the larger part. The
models are computed by replaying histories.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

import gossamer as gs
from gossamer.files import write_text
from gossamer.runtime.open.history import Close, Event, Release, Step
from gossamer.runtime.open.replaying import Replay
from gossamer.runtime.open.simulated.events import Happens, Joins, Leaves, Lost
from gossamer.runtime.open.simulated.timetable import timetable

NEAR, LATEST, FAR = 1.2, 200, 10.0
Curve = np.ndarray[Any, Any]
Models = Mapping[int, Mapping[int, Tensor]]
"""After each round, the models of those who are present."""


@dataclass(frozen=True)
class Setting:
    """What is trained, on a ring, and when clients go and come back."""

    problem: Any
    method: gs.Algorithm
    batch_size: int
    rounds: int = 1500
    leave: int = 500
    back: int = 1000
    window: int = 100
    floor: int = 300
    latest: int = LATEST


@dataclass(frozen=True)
class Phase:
    """A time between two changes of one run, and the fresh run that it is compared with."""

    run: str
    change: str
    begin: int
    end: int
    curve: Curve
    fresh: Curve


def play(
    one: Setting, seed: int, events: Sequence[Happens], absent: Collection[int] = (), *, rule: bool = True
) -> Models:
    """Replay the events."""
    mixing = gs.mixing_matrix(gs.ring(one.problem.clients))
    history = timetable(mixing, rounds=one.rounds, events=events, absent=sorted(absent), gone_after=2.0)
    history = history if rule else without_rule(history)
    players = Replay(one.method, one.problem, mixing, history, batch_size=one.batch_size, seed=seed)
    models: defaultdict[int, dict[int, Tensor]] = defaultdict(dict)
    with torch.no_grad():
        moved = True
        while moved:
            moved = False
            for client in history:
                while (event := players.next_event(client)) is not None and players.advance(client):
                    moved = True
                    if isinstance(event, Step):
                        member = players.members[client]
                        models[member.t][client] = member.state.x
    assert all(players.next_event(client) is None for client in history)
    return models


def norms(one: Setting, models: Models, among: Collection[int] | None = None) -> Curve:
    """After each round, the gradient norm at the mean model of those who are present, or of some of them."""
    each = {i: one.problem.only(i) for i in range(one.problem.clients)}
    found = np.full(one.rounds + 1, np.nan)
    for t, present in models.items():
        some = sorted(i for i in present if among is None or i in among)
        mean = torch.cat([present[i] for i in some]).double().mean(dim=0, keepdim=True).to(one.problem.dtype)
        found[t] = float(torch.cat([each[i].gradient(mean, None) for i in some]).double().mean(dim=0).norm())
    return found


def without_rule(history: Mapping[int, list[Event]]) -> dict[int, list[Event]]:
    """The same, but what an edge has added stays where it is."""
    return {
        i: [Release(event.neighbor, i, False) if isinstance(event, Close) else event for event in events]
        for i, events in history.items()
    }


def phases(one: Setting, seed: int) -> list[Phase]:
    """All runs of one seed."""
    n = one.problem.clients
    gone = (n // 2 - 1, n // 2)

    def fresh(absent: Collection[int]) -> Curve:
        return norms(one, play(one, seed, [], absent))

    def events(kind: type[Leaves | Lost], who: tuple[int, int]) -> list[Happens]:
        return [*(kind(i, one.leave - 0.75) for i in who), Joins(who[0], one.back + 0.25)]

    floors = fresh(gone), fresh(gone[1:])
    found = []
    for name, kind, rule in (("leave", Leaves, True), ("lost", Lost, True), ("lost, no rule", Lost, False)):
        curve = norms(one, play(one, seed, events(kind, gone), rule=rule))
        found.append(Phase(name, "two go", one.leave, one.back, curve, floors[0]))
        found.append(Phase(name, "one returns", one.back, one.rounds, curve, floors[1]))
    apart = (n // 4, n // 4 + n // 2 - 1)
    larger = [i for i in range(n) if i < apart[0] or i > apart[1]]
    name, models = "leave, not adjacent", play(one, seed, events(Leaves, apart))
    alone, others = fresh(set(range(n)) - set(larger)), fresh(apart[1:])
    found.append(Phase(name, "two go", one.leave, one.back, norms(one, models, larger), alone))
    found.append(Phase(name, "one returns", one.back, one.rounds, norms(one, models), others))
    return found


def verdict(one: Setting, phase: Phase) -> dict[str, Any]:
    """When the run is near the floor for good, how far from it afterwards, and the same of the fresh run."""
    floor = float(np.nanmean(phase.fresh[-one.floor :]))

    def averages(curve: Curve, begin: int, end: int) -> Curve:
        return np.array([np.nanmean(curve[t : t + one.window]) for t in range(begin, end - one.window + 1)]) / floor

    means = averages(phase.curve, phase.begin + 1, phase.end)
    far = np.nonzero(means > NEAR)[0]
    rounds = int(far[-1]) + 1 if len(far) else 0
    return {
        "run": phase.run,
        "change": phase.change,
        "floor": floor,
        "rounds": rounds if rounds < len(means) else None,
        "ratio": float(np.nanmean(phase.curve[phase.begin + one.latest : phase.end])) / floor,
        "fresh": float(averages(phase.fresh, one.rounds - one.floor, one.rounds).max()),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        f"| run | change | seed | floor of a fresh run | rounds until within {NEAR} times | after {LATEST} rounds, over"
        " the floor | largest average of the fresh run, over the floor |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        rounds = "never" if row["rounds"] is None else str(row["rounds"])
        lines.append(
            f"| {row['run']} | {row['change']} | {row['seed']} | {row['floor']:.2e} | {rounds} | {row['ratio']:.2f} | "
            f"{row['fresh']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure, print, and write the table and the figure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--results", type=Path, default=Path("docs/results"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    problem = gs.logistic_regression("a9a", clients=8, partition="sorted", nonconvex=0.05)
    one = Setting(problem, gs.BEER(lr=0.3, gamma=1.0, compressor=gs.gsgd(5)), batch_size=100)
    runs = {seed: phases(one, seed) for seed in options.seeds}
    rows = [verdict(one, phase) | {"seed": seed} for seed, found in runs.items() for phase in found]
    rows.sort(key=lambda row: [phase.run for phase in runs[options.seeds[0]]].index(row["run"]))
    print(table(rows))
    ruled = [row for row in rows if row["run"] in ("leave", "lost")]
    good = all(row["rounds"] is not None and row["rounds"] <= LATEST for row in ruled)
    bad = min(float(row["ratio"]) for row in rows if row["run"] == "lost, no rule")
    print(f"With the rule, within {NEAR} times the floor after at most {LATEST} rounds: {'yes' if good else 'NO'}.")
    print(f"Without it, at least {bad:.1f} times the floor.")
    write_text(options.results / "membership.md", table(rows))
    write_text(options.results / "membership.json", json.dumps(rows, indent=1) + "\n")
    draw(one, runs[options.seeds[0]], options.results / "membership.png")
    return 0 if good and bad >= FAR else 1


def draw(one: Setting, found: list[Phase], path: Path) -> None:
    """The gradient norm of one seed, as means over the last 10 rounds."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    colors = {"lost, no rule": "C3", "lost": "C0", "leave": "C2"}
    curves = {phase.run: phase.curve for phase in found}
    for name, color in colors.items():
        means = np.convolve(curves[name][1:], np.ones(10) / 10, "valid")
        axes.semilogy(np.arange(10, one.rounds + 1), means, color=color, label=name, lw=1.2)
    for phase in found[:2]:
        floor = float(np.nanmean(phase.fresh[-one.floor :]))
        label = "floor of a fresh run" if phase is found[0] else "_nolegend_"
        axes.hlines(floor, phase.begin, phase.end, "k", "--", lw=1, label=label)
        axes.axvline(phase.begin, color="0.7", lw=0.8)
        axes.annotate(phase.change, (phase.begin, 1), (4, -12), ("data", "axes fraction"), "offset points")
    axes.set(xlabel="round", ylabel="gradient norm", title="BEER on a9a sorted by label, ring of 8, batch 100")
    axes.legend(frameon=False, loc="center", bbox_to_anchor=(0.5, 0.62))
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    raise SystemExit(main())
