"""A language model trained by 8 clients on a ring: validation loss against bytes sent, for four ways of training.

    python benchmarks/language_model.py --search [--seconds 600]     # one seed, many settings of each contender
    python benchmarks/language_model.py --final [--seconds 600]      # three seeds, both splits, the best settings
    python benchmarks/language_model.py --draw                       # the figure and the table of the results
    python benchmarks/language_model.py --tiny --search --final --draw --results DIR     # rehearsal on a CPU

A GPT of 5 million parameters reads the source of Python's standard library. All contenders see the same number of
tokens, take AdamW's steps with the same warm-up, decay and clipping, and are evaluated equally often. A contender's
loss is the best on the way. Each run is written to language_model.jsonl when it ends, and is not run again.

Bytes are those that a client sends in all. All-reduce AdamW and DiLoCo average by a ring all-reduce, 2 (n - 1)/n d
numbers of 4 bytes per client. CHOCO-SGD and BEER send each message to two neighbours. Their bytes are the entropy of
the symbols of every message, plus 4 bytes per block; twice in a run one packet is really encoded, and the ratio of its
length to that estimate is kept.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import gossamer as gs
from benchmarks.language_table import draw
from gossamer.algorithms import AllReduceAdamW, DiLoCo, schedules
from gossamer.compression import packet
from gossamer.compression.dithering import Levels
from gossamer.errors import NonFiniteError
from gossamer.problems import ModuleProblem, language_model
from gossamer.runtime.simulation import Simulation

Setting = dict[str, float]
RESULTS = ROOT / "docs" / "results"
SPLITS = ("iid", "topic")
CLIENTS = 8
SEARCHED, FINAL = [0], [1, 2, 3]  # the seeds; those of the search are not used again
SEARCHED_SPLIT = "iid"  # the settings that are best there are used for both splits


@dataclass(frozen=True)
class Scale:
    """How large a rehearsal or the measurement is."""

    text: str = "stdlib"
    layers: int = 4
    width: int = 320
    heads: int = 5
    context: int = 128
    batch: int = 16
    steps: int = 1200
    """Local steps of each client."""
    warmup: int = 50
    evaluations: int = 20
    evaluated: int = 1024
    bfloat16: bool = True


FULL = Scale()
TINY = Scale("topics", 1, 16, 1, 8, 2, 120, 10, 2, 16, bfloat16=False)


def grid(**lists: Sequence[float]) -> list[Setting]:
    """Settings from columns of equal length."""
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


GRIDS: dict[str, list[Setting]] = {
    "All-reduce AdamW": grid(H=[1] * 8, lr=[5e-4, 1e-3, 1.5e-3, 2e-3, 3e-3, 4e-3, 6e-3, 8e-3]),
    "DiLoCo": grid(
        H=[20] * 21,
        lr=[
            *(2e-3, 1e-3, 3e-3, 2e-3, 3e-3, 4e-3, 2e-3, 3e-3, 1e-3, 1.5e-3, 1e-3, 1.5e-3, 2e-3, 1.5e-3, 2e-3, 1.5e-3),
            *(1.5e-3, 1.5e-3, 1.25e-3, 1.25e-3, 1.75e-3),
        ],
        outer=[*[0.7] * 6, *[1.0] * 7, 0.7, 1.0, 1.0, 0.85, 0.85, *[1.0] * 3],
        momentum=[*[0.9] * 3, *[0.5] * 7, *[0.7] * 4, 0.3, 0.3, 0.5, 0.6, 0.5, 0.6, 0.5],
    ),
    "CHOCO-SGD": grid(
        H=[15, 15, 15, 15, 15, 12, 20, 15, 12, 12, 12, 12, 12, 20, 12, 12, 12, 12, 12, 12, 20],
        lr=[
            *(2e-3, 3e-3, 2e-3, 4e-3, 2e-3, 3e-3, 3e-3, 3e-3, 2e-3, 1.5e-3, 1e-3, 1e-3, 1.5e-3, 1.5e-3, 1.5e-3, 2e-3),
            *(1e-3, 1.5e-3, 1.5e-3, 2e-3, 1.5e-3),
        ],
        gamma=[0.8, 0.8, 1.0, 0.8, 0.8, 0.8, 1.0, 1.0, *[0.8] * 4, 1.0, 1.0, 0.6, 0.8, *[1.0] * 5],
        bits=[4, 4, 4, 4, 4, 3, 5, 4, 4, 4, 4, 4, 4, 5, 4, 4, 4, 4, 4, 4, 5],
        block=[256] * 21,
        outer=[*[1.0] * 4, 0.7, 1.0, 1.0, 0.8, *[1.0] * 4, 0.7, 1.0, 1.0, 0.7, 0.7, 0.5, 0.5, 0.5, 0.7],
        momentum=[*[0.0] * 4, 0.5, 0.0, 0.0, 0.4, *[0.5] * 3, 0.7, 0.7, 0.5, *[0.7] * 4, 0.8, 0.7, 0.7],
    ),
    "BEER": grid(
        H=[30, 30, 30, 30, 30, 24, 40, 30, 24, 24, 40, 40, 24, 40, *[24] * 7],
        lr=[
            *(2e-3, 3e-3, 2e-3, 4e-3, 2e-3, 3e-3, 3e-3, 3e-3, 1e-3, 1.5e-3, 1e-3, 1.5e-3, 1e-3, 1e-3, 1e-3, 5e-4),
            *(1e-3, 1e-3, 1.5e-3, 5e-4, 1e-3),
        ],
        gamma=[0.6, 0.6, 0.4, 0.6, 0.6, 0.5, 0.8, 0.8, 0.4, 0.4, 0.6, 0.8, 0.4, 0.6, 0.3, 0.4, 0.3, 0.2, *[0.3] * 3],
        bits=[4, 4, 4, 4, 4, 3, 5, 4, 4, 4, 5, 5, 4, 5, *[4] * 7],
        block=[256] * 21,
        outer=[*[1.0] * 4, 0.7, 1.0, 1.0, 0.8, *[1.0] * 6, 0.7, 1.0, 0.5, 0.7, 0.5, 0.7, 0.7],
        momentum=[*[0.0] * 4, 0.5, *[0.0] * 3, *[0.5] * 4, 0.7, 0.7, *[0.5] * 5, 0.7, 0.0],
    ),
}
"""gsgd with `bits` has 2^(bits - 1) levels; 8 levels on blocks of 256 are about as fine as 4 on blocks of 64."""


def contender(name: str, setting: Setting, scale: Scale) -> tuple[gs.Algorithm, gs.LocalSteps | None]:
    """The method and its local steps."""
    lr = setting["lr"]
    schedule = schedules.warmup_cosine(lr, T_max=scale.steps, warmup=scale.warmup, eta_min=lr / 10)
    adamw: dict[str, Any] = {"lr": schedule, "betas": (0.9, 0.99), "weight_decay": 0.1, "clip": 1.0}
    if name == "All-reduce AdamW":
        return AllReduceAdamW(**adamw), None
    local = {"steps": int(setting["H"]), "fused": True, **adamw}
    outer, momentum = setting["outer"], setting["momentum"]
    if name == "DiLoCo":
        return DiLoCo(lr=outer, momentum=momentum), gs.LocalSteps(torch.optim.AdamW, **local)
    compressor = gs.blockwise(gs.gsgd(int(setting["bits"])), int(setting["block"]))
    gossip: dict[str, Any] = {"lr": outer, "gamma": setting["gamma"], "compressor": compressor}
    method = gs.CHOCOSGD(**gossip) if name == "CHOCO-SGD" else gs.BEER(**gossip, start="minibatch")
    return method, gs.LocalSteps(torch.optim.AdamW, outer_momentum=momentum, **local)


class Sent:
    """The bits that a client sends to one neighbour, by the entropy of the symbols; means over the clients."""

    def __init__(self, sim: Simulation, checked: Sequence[int]) -> None:
        self.sim, self.checked = sim, checked
        self.bits = torch.zeros(len(sim.seeds), dtype=torch.float64, device=sim.problem.device)
        self.ratios: list[float] = []
        """Of packets that were really encoded, to their estimates."""
        sim.count = self.count  # type: ignore[method-assign]

    def count(self, packets: Sequence[tuple[Any, ...]]) -> None:
        """Add what was sent in a round."""
        for messages in packets:
            sent = [message for message in messages if isinstance(message, Levels)]
            if sent:
                bits = torch.stack([self._bits(one) for one in sent]).sum(dim=0)
                self.bits += bits.view(len(self.bits), -1).mean(dim=1)
                if self.sim.t in self.checked:
                    self.ratios.append(self._real(sent) / float(bits[0]))

    def _bits(self, message: Levels) -> Tensor:
        """Of each row."""
        symbols = range(-message.highest, message.highest + 1)
        counts = torch.stack([(message.levels == one).sum(dim=1) for one in symbols]).double()
        share = counts / message.shape[1]
        return -torch.xlogy(counts, share).sum(dim=0) / torch.log(share.new_tensor(2.0)) + 32 * message.layout.blocks

    def _real(self, sent: Sequence[Levels]) -> float:
        """The bits of the first client's packet."""
        mine = [Levels(one.scale[:1].cpu(), one.levels[:1].cpu(), one.highest, one.layout) for one in sent]
        return 8 * float(packet.sizes(mine, self.sim.t, [0], "entropy")[0])


def train(
    name: str, setting: Setting, scale: Scale, problem: ModuleProblem, seeds: Sequence[int], starts: Sequence[Tensor]
) -> dict[str, Any]:
    """One run of several seeds side by side, each from its own weights: losses and bytes at each evaluation."""
    method, local = contender(name, setting, scale)
    mixing = gs.mixing_matrix(gs.ring(CLIENTS), "fdla")
    sim = Simulation(method, problem, mixing, seeds, scale.batch, counts=False, local=local)
    sim.state = method.init(torch.stack(list(starts)).repeat_interleave(CLIENTS, dim=0).to(problem.device))
    rounds = scale.steps // int(setting["H"])
    many, per_sync = scale.evaluations, 2 * (CLIENTS - 1) / CLIENTS * problem.d * 4
    sent = Sent(sim, [rounds // 4, rounds - 1])
    losses: list[list[float]] = []
    spent: list[list[float]] = []
    begin, diverged = time.perf_counter(), False
    with torch.no_grad():
        for t in range(1, rounds + 1):
            try:
                sim.step()
            except NonFiniteError:
                diverged = True
                break
            if t * many // rounds > (t - 1) * many // rounds:
                average = sim.models().mean(dim=1, dtype=torch.float64)
                losses.append(problem.score(average)["loss"].tolist())
                compressed = (2 * sent.bits / 8).tolist()
                spent.append([per_sync * t] * len(seeds) if method.info.is_centralized else compressed)
    apart = sim.models() - sim.models().mean(dim=1, keepdim=True)
    return {
        "losses": losses,
        "bytes": spent,
        "diverged": diverged,
        "consensus": float(apart.double().square().sum(dim=2).mean().sqrt()),
        "encoded": sent.ratios,
        "seconds": time.perf_counter() - begin,
    }


class Book:
    """The results so far, one JSON line per run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def has(self, key: dict[str, Any]) -> bool:
        """Whether a run is there."""
        return any(all(line[name] == value for name, value in key.items()) for line in self.lines)

    def add(self, line: dict[str, Any]) -> None:
        """Write a run down."""
        self.lines.append(line)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def best_loss(line: dict[str, Any]) -> float:
    """The lowest on the way, mean over seeds; infinite where the run diverged."""
    if line["diverged"]:
        return float("inf")
    return float(sum(map(min, zip(*line["losses"], strict=True)))) / len(line["seeds"])


def chosen(book: Book, name: str, scale: Scale) -> Setting:
    """The best setting of the search; of compressed methods, among those with at most a tenth of DiLoCo's bytes."""
    searched = {"stage": "search", "split": SEARCHED_SPLIT, "scale": asdict(scale)}
    found = [line for line in book.lines if all(line[key] == value for key, value in searched.items())]
    mine = [line for line in found if line["contender"] == name]
    if not mine:
        raise SystemExit(f"There is no search of {name} yet; run --search first.")
    if name in ("CHOCO-SGD", "BEER"):
        most = min(line["bytes"][-1][0] for line in found if line["contender"] == "DiLoCo") / 10
        mine = [line for line in mine if not line["diverged"] and line["bytes"][-1][0] <= most] or mine
    setting: Setting = min(mine, key=best_loss)["setting"]
    return setting


def runs(stage: str, book: Book, scale: Scale, splits: Sequence[str], few: int | None) -> Iterator[dict[str, Any]]:
    """What is to be run, in turns over the contenders."""
    seeds = SEARCHED if stage == "search" else FINAL
    for split in splits if stage == "final" else [SEARCHED_SPLIT]:
        for number in range(max(map(len, GRIDS.values())) if stage == "search" else 1)[:few]:
            for name, settings in GRIDS.items():
                if stage == "search" and number >= len(settings):
                    continue
                setting = settings[number] if stage == "search" else chosen(book, name, scale)
                key = {"stage": stage, "split": split, "contender": name, "setting": setting, "seeds": seeds}
                yield key | {"scale": asdict(scale)}


def measure(stage: str, book: Book, scale: Scale, options: argparse.Namespace, until: float) -> bool:
    """Run what is missing; whether all is there now."""
    problems: dict[str, ModuleProblem] = {}
    starts: dict[int, Tensor] = {}
    shape: dict[str, Any] = {"layers": scale.layers, "width": scale.width, "heads": scale.heads}
    how: dict[str, Any] = {"context": scale.context, "evaluated": scale.evaluated, "bfloat16": scale.bfloat16}
    longest = 0.0
    for key in runs(stage, book, scale, options.splits, 2 if options.tiny else None):
        if book.has(key):
            continue
        if time.monotonic() + longest > until:
            return False
        begin, split = time.monotonic(), key["split"]
        given: dict[str, Any] = {"clients": CLIENTS, "split": split, **shape, **how}
        if split not in problems:
            where = {"device": options.device, "gradients": options.gradients}
            problems[split] = language_model(scale.text, **given, **where)
        for seed in set(key["seeds"]) - set(starts):
            starts[seed] = language_model(scale.text, **given, init_seed=seed, gradients="loop").x0()
        problem = problems[split]
        found = train(
            key["contender"], key["setting"], scale, problem, key["seeds"], [starts[seed] for seed in key["seeds"]]
        )
        facts = problem.describe()
        about = {"d": problem.d, "text_sha256": facts["text_sha256"], "torch": torch.__version__}
        where_run = torch.cuda.get_device_name() if problem.device.type == "cuda" else "CPU"
        book.add(key | found | about | {"device": where_run})
        longest = max(longest, time.monotonic() - begin)
        last = "diverged" if found["diverged"] else f"{best_loss(book.lines[-1]):.4f}"
        print(f"{stage} {split} {key['contender']} {key['setting']}: {last}, {found['seconds']:.1f} s", flush=True)
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for stage in ("search", "final", "draw", "tiny"):
        parser.add_argument(f"--{stage}", action="store_true")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no run that would end later")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of language_model.*")
    parser.add_argument("--splits", nargs="+", choices=SPLITS, default=list(SPLITS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--gradients", default="vmap", choices=["vmap", "compiled", "loop"])
    options = parser.parse_args(arguments)
    torch.set_float32_matmul_precision("high")
    scale, book = TINY if options.tiny else FULL, Book(options.results / "language_model.jsonl")
    until = time.monotonic() + options.seconds
    for stage in ("search", "final"):
        if getattr(options, stage) and not measure(stage, book, scale, options, until):
            print("The time is over; run the same command again to go on.")
            return 3
    if options.draw:
        draw([line for line in book.lines if line["scale"] == asdict(scale)], options.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
