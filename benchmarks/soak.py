"""Eight clients in network namespaces, and a hundred random events in one run: does the training go on?

    python -m benchmarks.soak --data-dir data/ [--rounds 26000] [--events 100] [--seed 0] [--keep FOLDER]

BEER on a9a sorted by label, batch 100, in float64, on an exponential graph. Every client is a process on a host of its
own; links have 20 Mbit/s and 10 ms. Events are drawn from the seed, at random rounds: kill (SIGKILL), freeze (2 to 20
s), link down (1 to 30 s), leave (SIGTERM), join (with a neighbour named, or with any). Two clients are never killed and
never leave; their memory and file descriptors are followed through the whole run. What is measured:

    lost        per event, the longest time that a client which was not frozen stood still beyond its usual round
    accuracy    of the mean model on the test rows, against the same run without events (simulated)
    growth      memory (RssAnon) and file descriptors of the clients, late in their lives against early
    replay      the recorded histories computed again in one process: the same models, bit for bit

Needs root, `ip` and `ethtool`. Nothing leaves the machine.
"""

import argparse
import itertools
import json
import logging
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch

from benchmarks.links.hosts import Hosts, probe
from gossamer.cli.lines import stop_signals
from gossamer.files import write_text
from gossamer.records import checkpoint
from gossamer.runtime.experiment import prepare
from gossamer.runtime.open.member import Member
from gossamer.runtime.open.participant import Openness
from gossamer.runtime.open.specs import OpenRun
from gossamer.runtime.transport.curve import opened
from gossamer.runtime.transport.peers import write_keys
from gossamer.spec import load_spec

CLIENTS, SAFE, PORT = 8, (0, 5), 5555
LEAST = 5  # clients that are always there
PATIENCE, GONE_AFTER = 1.0, 8.0
MOST_LOST = 3.0  # seconds per event, beyond the patience
USUAL = 0.25  # a step that takes longer stands still
SPEC = """
rounds = {rounds}
batch_size = 100
seeds = [0]
[problem]
objective = "logistic_regression"
data = "a9a"
clients = 8
partition = "sorted"
nonconvex = 0.05
dtype = "float64"
[graph]
name = "exponential"
[[methods]]
name = "beer"
lr = 0.05
gamma = 0.4
compressor = "gsgd:5"
"""
_TIMES = struct.Struct("<dq")


def client(folder: Path, data_dir: str, number: int, via: int | None) -> int:
    """Be one client; the time of every round goes into a file."""
    torch.set_num_threads(1)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s.%(msecs)03d %(message)s")
    run = OpenRun.of(prepare(load_spec(folder / "spec.toml"), data_dir=data_dir))
    opener = opened(folder / "peers.toml", folder / f"key{number}" / "key.secret", start_timeout=60.0)
    clock = os.open(folder / f"client{number}.times", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(t: int) -> None:
        os.write(clock, _TIMES.pack(time.monotonic(), t))

    with stop_signals(loud=False) as should_leave:
        run.take_part(
            opener,
            folder,
            how=Openness(PATIENCE, GONE_AFTER, 60.0),
            join=via,
            progress=note,
            should_leave=should_leave,
        )
    return 0


@dataclass
class Happened:
    """An event."""

    kind: str
    who: int
    other: int
    at: float
    seconds: float = 0.0


@dataclass
class Life:
    """A process of a client, and what it used: (time, bytes, file descriptors)."""

    process: "subprocess.Popen[bytes]"
    frozen_until: float = 0.0
    used: list[tuple[float, int, int]] = field(default_factory=list)


class Soak:
    """The run under way."""

    def __init__(self, hosts: Hosts, folder: Path, options: argparse.Namespace) -> None:
        self.hosts, self.folder, self.options = hosts, folder, options
        self.random = random.Random(options.seed)
        self.lives: dict[int, list[Life]] = {i: [] for i in range(CLIENTS)}
        self.happened: list[Happened] = []
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.down: set[tuple[int, int]] = set()
        self.joining: dict[int, float] = {}
        self.run = OpenRun.of(prepare(load_spec(folder / "spec.toml"), data_dir=options.data_dir))
        self.edges = sorted((min(i, j), max(i, j)) for i, j in self.run.experiment.mixing.graph.edges)

    def start(self, i: int, via: int | None = None) -> None:
        """Start the process of a client; `via` is the neighbour by which it joins."""
        words = [sys.executable, "-m", "benchmarks.soak", "--client", str(i), "--keep", str(self.folder)]
        words += ["--data-dir", self.options.data_dir, *([] if via is None else ["--via", str(via)])]
        with (self.folder / f"client{i}.log").open("ab") as log:
            process = subprocess.Popen(
                self.hosts.command(i, *words),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        self.lives[i].append(Life(process))

    def life(self, i: int) -> Life | None:
        """The process of a client that runs."""
        last = self.lives[i][-1] if self.lives[i] else None
        return last if last is not None and last.process.poll() is None else None

    def rounds(self, i: int) -> int:
        """How far a client is."""
        path = self.folder / f"client{i}.times"
        size = path.stat().st_size // _TIMES.size * _TIMES.size if path.exists() else 0
        if not size:
            return 0
        with path.open("rb") as file:
            file.seek(size - _TIMES.size)
            return int(_TIMES.unpack(file.read(_TIMES.size))[1])

    def event(self) -> None:
        """One of those that are possible now."""
        now = time.monotonic()
        awake = [i for i in self.lives if (life := self.life(i)) is not None and life.frozen_until < now]
        mortal = [i for i in awake if i not in SAFE and now - self.joining.get(i, 0) > 10]
        absent = self.absent()
        choices: list[str] = ["down"]
        if len(awake) > LEAST and mortal:
            choices += ["kill", "leave"]
        if len(awake) > LEAST - 1:
            choices += ["freeze"]
        choices += ["join"] * len(absent)
        kind = self.random.choice(choices)
        if kind in ("kill", "leave"):
            i = self.random.choice(mortal)
            self.note(kind, i)
            self.lives[i][-1].process.send_signal(signal.SIGKILL if kind == "kill" else signal.SIGTERM)
            if kind == "kill":
                self.lives[i][-1].process.wait()
        elif kind == "join":
            i = self.random.choice(absent)
            near = [j for j in self.run.experiment.mixing.graph.neighbors(i) if j in awake]
            via = self.random.choice(near) if near and self.random.random() < 0.5 else None
            self.note(kind, i, -1 if via is None else via)
            self.joining[i] = now
            self.start(i, via)
        elif kind == "freeze":
            i, seconds = self.random.choice(awake), self.random.uniform(2, 20)
            self.note(kind, i, seconds=seconds)
            life = self.lives[i][-1]
            life.frozen_until = now + seconds + 1.0
            life.process.send_signal(signal.SIGSTOP)
            self.later.append((now + seconds, lambda: life.process.send_signal(signal.SIGCONT)))
        else:
            i, j = edge = self.random.choice([edge for edge in self.edges if edge not in self.down])
            seconds = self.random.uniform(1, 30)
            self.note(kind, i, j, seconds=seconds)
            self.down.add(edge)
            self.cut(i, j, True)

            def mend() -> None:
                self.down.discard(edge)
                self.cut(i, j, False)

            self.later.append((now + seconds, mend))

    def absent(self) -> list[int]:
        """The clients that were killed or have left, but for those that came to the last round."""
        here = [i for i in self.lives if self.life(i) is None]
        return [i for i in here if self.rounds(i) < self.options.rounds]

    def reached(self) -> int:
        """How far the clients are that never end."""
        return max(self.rounds(i) for i in SAFE)

    def note(self, kind: str, who: int, other: int = -1, seconds: float = 0.0) -> None:
        """Keep an event, and print it."""
        self.happened.append(Happened(kind, who, other, time.monotonic(), seconds))
        about = {"join": f"by {other}" if other >= 0 else "by anyone", "down": f"to {other}"}.get(kind, "")
        print(f"{len(self.happened):>4} round {self.reached():>6}: {kind} {who} {about} {seconds or '':.4}", flush=True)

    def cut(self, i: int, j: int, is_down: bool) -> None:
        """Frames between two hosts go nowhere, or arrive again."""
        for one, other in ((i, j), (j, i)):
            words = ["ip", "-n", self.hosts.namespace(one), "neigh", "replace" if is_down else "del"]
            words += [self.hosts.address(other), "dev", self.hosts.interface]
            subprocess.run(
                [*words, *(["lladdr", "02:00:00:00:00:99", "nud", "permanent"] if is_down else [])], check=True
            )

    def go(self) -> None:
        """Start all, let the events happen, and wait for the end."""
        total, number = self.options.rounds, self.options.events
        when = sorted(self.random.uniform(0.03, 0.88) * total for _ in range(number))
        for i in range(CLIENTS):
            self.start(i)
        limit, looked = time.monotonic() + self.options.limit, 0.0
        while any(self.life(i) for i in self.lives) or self.later:
            now = time.monotonic()
            if now > limit:
                raise RuntimeError(f"The run hangs: rounds {[self.rounds(i) for i in self.lives]} of {total}.")
            for one in [one for one in self.later if one[0] <= now]:
                self.later.remove(one)
                one[1]()
            if when and self.reached() >= when[0]:
                when.pop(0)
                self.event()
            if not when and self.reached() < 0.93 * total:  # all are there at the end
                for i in self.absent():
                    self.start(i)
                    self.joining[i] = now
            if now - looked > 2:
                looked = now
                self.use(now)
            time.sleep(0.02)

    def use(self, now: float) -> None:
        """Note what the processes use."""
        for i in self.lives:
            life = self.life(i)
            if life is not None and life.frozen_until < now:
                try:
                    place = Path(f"/proc/{life.process.pid}")
                    kept = next(row for row in (place / "status").read_text().split("\n") if "RssAnon" in row)
                    life.used.append((now, 1024 * int(kept.split()[1]), len(list((place / "fd").iterdir()))))
                except (OSError, StopIteration):
                    continue

    def end(self) -> None:
        """Leave no process behind."""
        for life in itertools.chain(*self.lives.values()):
            if life.process.poll() is None:
                life.process.send_signal(signal.SIGCONT)
                life.process.kill()
            life.process.wait()

    def stood_still(self) -> list[tuple[float, float, int]]:
        """When, how long and which: all gaps between rounds of clients, but for those in which they were frozen."""
        frozen = [(one.who, one.at, one.at + one.seconds + 1.0) for one in self.happened if one.kind == "freeze"]
        gaps = []
        for i in self.lives:
            times = np.fromfile(self.folder / f"client{i}.times", dtype=[("at", "<f8"), ("t", "<i8")])["at"]
            usual = float(np.median(np.diff(times)))
            births = [life.used[0][0] for life in self.lives[i] if life.used]
            for begin, end in itertools.pairwise(times):
                was_away = any(begin - 2.5 <= birth <= end for birth in births[1:])
                was_frozen = any(who == i and begin < until and end > since for who, since, until in frozen)
                if end - begin > USUAL and not was_away and not was_frozen:
                    gaps.append((float(begin), float(end - begin) - usual, i))
        return gaps


def judge(soak: Soak) -> dict[str, Any]:
    """What came out."""
    folder, run, gaps = soak.folder, soak.run, soak.stood_still()
    lost = [0.0] * len(soak.happened)
    for begin, seconds, _ in gaps:
        causes = [k for k, one in enumerate(soak.happened) if one.at <= begin + seconds]
        if causes:
            lost[causes[-1]] = max(lost[causes[-1]], seconds)
    codes = {i: [life.process.returncode for life in soak.lives[i]] for i in soak.lives}
    grown = []
    for i in SAFE:
        used = np.array(soak.lives[i][0].used)
        early, late = used[len(used) // 10 : len(used) // 5], used[-len(used) // 10 :]
        grown.append(
            {
                "client": i,
                "MB early": early[:, 1].mean() / 1e6,
                "MB late": late[:, 1].mean() / 1e6,
                "descriptors early": float(early[:, 2].max()),
                "descriptors late": float(late[:, 2].max()),
            }
        )
    problem = run.experiment.problem
    kept = {i: checkpoint.read(folder / f"client{i}.safetensors") for i in range(CLIENTS)}
    models = torch.cat([one.tensors["model"] for one in kept.values()])
    began = time.monotonic()
    players = run.replay(run.history(folder), int(kept[0].facts["run"]))
    players.run()
    last = players.left | players.members
    same = [bool(torch.equal(kept[i].tensors["model"], last[i].state.x)) for i in range(CLIENTS)]
    replayed = time.monotonic() - began
    quiet = run.experiment.run()[0]
    accuracy = {
        name: {key: float(value[0]) for key, value in problem.score(x.mean(dim=0, keepdim=True)).items()}
        for name, x in (("with events", models), ("undisturbed", quiet.x), ("before the first round", 0 * models))
    }
    kinds = [one.kind for one in soak.happened]
    return {
        "events": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "processes": sum(len(lives) for lives in soak.lives.values()),
        "exit codes": codes,
        "rounds at the end": [int(one.facts["t"]) for one in kept.values()],
        "seconds": max(one[-1][0] for lives in soak.lives.values() for life in lives if (one := life.used))
        - began_at(soak),
        "most seconds lost by an event": max(lost),
        "events that cost more than 0.25 s": sum(one > 0 for one in lost),
        "mean seconds lost per event": sum(lost) / len(lost),
        "patience": PATIENCE,
        "growth": grown,
        "use": every_use(soak),
        "accuracy": accuracy,
        "mean V - mean gradient, but for terms in flight": untracked(players.members),
        "replayed": {"seconds": replayed, "same models": same},
    }


def draw(soak: Soak, path: Path) -> None:
    """When each client took its rounds, and what happened."""
    figure, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
    zero = began_at(soak)
    for i in soak.lives:
        at = np.fromfile(soak.folder / f"client{i}.times", dtype=[("at", "<f8"), ("t", "<i8")])["at"] - zero
        breaks = np.nonzero(np.diff(at) > 2 * PATIENCE)[0]
        for part in np.split(at, breaks + 1):
            axes.plot([part[0], part[-1]], [i, i], color="0.6", lw=6, solid_capstyle="butt", zorder=1)
    marks = {"kill": "x", "leave": "v", "join": "^", "freeze": "s"}
    for number, (kind, mark) in enumerate(marks.items()):
        places = [(one.at - zero, one.who) for one in soak.happened if one.kind == kind]
        times, who = zip(*places, strict=True)
        axes.scatter(times, who, marker=mark, s=28, color=f"C{number}", label=kind, zorder=3)
    for one in [one for one in soak.happened if one.kind == "down"]:
        axes.plot([one.at - zero] * 2, [one.who, one.other], color="C4", lw=0.8, zorder=2)
    axes.plot([], [], color="C4", lw=0.8, label="link down")
    axes.set(xlabel="seconds", ylabel="client", title="A hundred events: when each client took its rounds")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=5, frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def untracked(members: dict[int, Member]) -> float:
    """|mean V - mean gradient| but for the terms in flight, at the end: what errors of the membership would leave."""
    (added,) = next(iter(members.values())).method.flows or ()
    total = sum(member.state.v - member.state.old for member in members.values())
    for i, member in members.items():
        for row, (j, edge) in enumerate(member.edges.items()):
            if j in members and i in members[j].edges and members[j].edges[i].number == edge.number:
                total = total - added.factor * member.state.g.flow[row]
    return float((total / len(members)).abs().max())


def began_at(soak: Soak) -> float:
    """When the first round began."""
    return float(np.fromfile(soak.folder / "client0.times", dtype="<f8", count=1)[0])


def every_use(soak: Soak) -> dict[int, list[list[float]]]:
    """Seconds, MB and file descriptors of each client that lived through the run, at a hundred moments."""
    zero, found = began_at(soak), {}
    for i in SAFE:
        used = np.array(soak.lives[i][0].used)
        some = used[np.linspace(0, len(used) - 1, min(100, len(used))).astype(int)]
        found[i] = [[round(at - zero, 1), round(size / 1e6, 2), files] for at, size, files in some.tolist()]
    return found


def is_good(found: dict[str, Any]) -> dict[str, bool]:
    """What must hold."""
    accuracy, codes = found["accuracy"], {int(i): codes for i, codes in found["exit codes"].items()}
    # It finished or left, was killed, or was asked to leave while it was starting (before or after it handles signals).
    asked = (0, -signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM)
    worse = accuracy["undisturbed"]["accuracy"] - accuracy["with events"]["accuracy"]
    return {
        "no survivor was started again, and nobody failed": all(
            code in asked for every in codes.values() for code in every
        )
        and all(len(codes[i]) == 1 for i in SAFE),
        "final accuracy within 1 %": worse <= 0.01,
        "at most 3 s lost per event beyond the patience": found["most seconds lost by an event"]
        <= PATIENCE + MOST_LOST,
        "memory does not grow": all(one["MB late"] <= one["MB early"] * 1.02 + 2 for one in found["growth"]),
        "descriptors do not grow (a few are those of connections)": all(
            one["descriptors late"] <= one["descriptors early"] + 4 for one in found["growth"]
        ),
        "the mean of V is the mean gradient": found["mean V - mean gradient, but for terms in flight"] <= 1e-12,
        "replayed bit for bit": all(found["replayed"]["same models"]),
    }


def main() -> int:
    """Run, judge, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=26000)
    parser.add_argument("--events", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=3000.0, help="seconds after which the run hangs")
    parser.add_argument("--data-dir", default=os.environ.get("GOSSAMER_DATA", "data"))
    parser.add_argument("--keep", type=Path, help="folder for histories and logs (default: a temporary one)")
    parser.add_argument("--write", action="store_true", help="write docs/results/soak.json and .png")
    parser.add_argument("--judge", action="store_true", help="judge docs/results/soak.json again, and run nothing")
    parser.add_argument("--client", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--via", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client is not None:
        return client(options.keep, options.data_dir, options.client, options.via)
    if options.judge:
        kept = Path("docs/results/soak.json")
        found = json.loads(kept.read_text())
        verdicts = found["verdicts"] = is_good(found)
        write_text(kept, json.dumps(found, indent=1) + "\n")
        print(*(f"{'yes' if holds else 'NO '}  {sentence}" for sentence, holds in verdicts.items()), sep="\n")
        return 0 if all(verdicts.values()) else 1
    probe()
    with tempfile.TemporaryDirectory() as temporary, Hosts(CLIENTS, delay_ms=10.0) as hosts:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        hosts.shape(20.0)
        write_text(folder / "spec.toml", SPEC.format(rounds=options.rounds))
        keys = [write_keys(folder / f"key{i}").public.decode() for i in range(CLIENTS)]
        rows = (
            f'[[peer]]\nclient = {i}\nname = "host{i}"\naddress = "{hosts.address(i)}:{PORT}"\nkey = "{key}"\n'
            for i, key in enumerate(keys)
        )
        write_text(folder / "peers.toml", "\n".join(rows))
        soak = Soak(hosts, folder, options)
        try:
            soak.go()
        finally:
            soak.end()
        found = judge(soak)
        if options.write:
            draw(soak, Path("docs/results/soak.png"))
    verdicts = is_good(found)
    print(json.dumps({name: value for name, value in found.items() if name != "use"}, indent=1))
    for sentence, holds in verdicts.items():
        print(f"{'yes' if holds else 'NO '}  {sentence}")
    if options.write:
        facts = {"settings": {name: getattr(options, name) for name in ("rounds", "events", "seed")}}
        write_text(Path("docs/results/soak.json"), json.dumps(facts | found | {"verdicts": verdicts}, indent=1) + "\n")
    return 0 if all(verdicts.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
