"""The cases on a GPU: rounds against bytes / bandwidth, where the bandwidth is that of a copy in the same turns."""

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

import gossamer as gs
from benchmarks.timing import works
from benchmarks.timing.cases import hidden_floor, rounds_per_turn
from benchmarks.timing.results import Bar, Point, Results, Row, facts, row
from benchmarks.timing.turns import Times
from benchmarks.timing.works import Setting, Work
from gossamer.kernels import Blocks, Keys, Stream, dither

WARM_UP = 12  # rounds; a graph of a round is captured in the first ones
LIMIT = 200.0  # seconds after which no further case is begun
COPY = "bytes / copy bandwidth"
CNN_ROUNDS, CNN_EVERY, CNN_SECONDS = 8250, 330, 22.0


@dataclass(frozen=True)
class Case:
    """Rounds, the bytes that one must move, and the most milliseconds that one may take."""

    measures: str
    make: Callable[[Setting], Work]
    bytes: float
    bar: Bar
    clients: int = 0
    """Of the curve of growth, for a case that is a point of it."""


def _hidden(clients: int, batch: int, compressor: gs.Compressor) -> Callable[[Setting], Work]:
    method = gs.BEER(lr=0.02, gamma=0.05, compressor=compressor)
    return partial(works.hidden_layer, clients=clients, hidden=64, batch=batch, method=method)


def _case(setting: Setting, what: str, clients: int, batch: int, compressor: gs.Compressor, ms: float) -> Case:
    few = setting.size(clients, min(clients, 20))
    floor = hidden_floor(few, 64, batch)
    point = clients if isinstance(compressor, gs.gsgd) else 0
    measures = f"BEER, {what}, MNIST, 64 hidden units, {clients:,} clients, batch {batch}"
    return Case(measures, _hidden(few, batch, compressor), floor.bytes, Bar(ms=ms), point)


def cases(setting: Setting) -> dict[str, Case]:
    """All cases but the convolutional network, by name."""
    few = setting.size(1 << 28, 1 << 12)
    gsgd, block = gs.gsgd(5), gs.blockwise(gs.gsgd(2), 64)
    return {
        "GPU, 10 clients, per round": _case(setting, "gsgd_5", 10, 100, gsgd, 0.15),
        "GPU, 1,000 clients, per round": _case(setting, "gsgd_5", 1000, 20, gsgd, 4),
        "GPU, 10,000 clients, per round": _case(setting, "gsgd_5", 10_000, 6, gsgd, 40),
        "GPU, 1,000 clients, top_k 1 %": _case(setting, "top_k of 1 %", 1000, 20, gs.top_k(fraction=0.01), 6),
        "GPU, 1,000 clients, blockwise gsgd_2": _case(setting, "gsgd_2 in blocks of 64", 1000, 20, block, 4),
        "GPU, gsgd_5 of 2^28": Case(
            "gsgd_5 of 2^28 coordinates, norm included, float32 surrogate moved",
            partial(follow, d=few),
            # The norm reads value and surrogate; dithering reads both again and writes symbols and surrogate.
            few * float(8 + 8 + 1 + 4),
            Bar(ratio=round(1 / 1.25, 4)),
        ),
    }


def follow(setting: Setting, d: int) -> Work:
    """One long vector is compressed against its surrogate, which moves."""
    generator = torch.Generator(setting.device).manual_seed(0)
    value, own = (scale * torch.randn(1, d, generator=generator, device=setting.device) for scale in (1.0, 0.5))
    keys, blocks, tau = Keys.of([0], [0], setting.device), Blocks((d,)), gs.gsgd(5).tau(d)

    def run(count: int) -> None:
        for t in range(count):
            dither(value, own, Stream(keys, 1, t), blocks, 16, tau, value.dtype, torch.int8)

    return Work(run)


class Device:
    """A GPU, its clock, and the speed of its copies. A CPU takes its place in tests."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.is_cuda = setting.device == "cuda"
        count = setting.size(1 << 28, 1 << 16)
        self.source = torch.zeros(count, device=setting.device)
        self.target = torch.zeros_like(self.source)

    def seconds(self, work: Work, rounds: int) -> float:
        """Of so many rounds, until the last kernel has ended."""
        self._wait()
        began = time.perf_counter()
        work.run(rounds)
        self._wait()
        return time.perf_counter() - began

    def _wait(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize()

    def bandwidth(self) -> float:
        """Bytes per second of a large copy, read and written."""
        copies = 10
        work = Work(lambda count: [self.target.copy_(self.source) for _ in range(count)])
        return copies * 8 * self.source.numel() / self.seconds(work, copies)

    def launches(self, work: Work) -> float | None:
        """Kernels per round; None where the profiler does not work."""
        from torch.profiler import ProfilerActivity, profile

        if not self.is_cuda:
            return None
        rounds = 2
        try:
            with profile(activities=[ProfilerActivity.CUDA]) as profiled:
                self.seconds(work, rounds)
            events: Any = profiled.events()
            kernels = [one for one in events if "CUDA" in str(one.device_type)]
        except (RuntimeError, AttributeError):
            return None
        return sum(not one.name.startswith(("Memcpy", "Memset")) for one in kernels) / rounds

    def in_turns(self, work: Work, needed: float, turns: int) -> Times:
        """Rounds, and copies whose speed gives the time for the bytes that a round needs."""
        warm_up = self.seconds(work, 3)  # kernels are compiled in the first rounds
        one = self.seconds(work, 1)
        warm_up += one + (self.seconds(work, WARM_UP) if one < 1 else 0.0)  # not where a round takes seconds
        rounds = rounds_per_turn(partial(self.seconds, work), 1, self.setting)
        taken = Times([], [], warm_up)
        for turn in range(turns):
            for side in (0, 1) if turn % 2 else (1, 0):
                if side:
                    taken.baseline.append(needed / self.bandwidth())
                else:
                    taken.ours.append(self.seconds(work, rounds) / rounds)
        return taken

    def free(self) -> None:
        """Return memory that no tensor uses."""
        if self.is_cuda:
            torch.cuda.empty_cache()


def measure(
    results: Results, setting: Setting, turns: int, names: list[str], long: bool, tell: Callable[[str], None]
) -> None:
    """Add the cases whose name contains one of `names` to the results; `tell` gets a line when a row is there."""
    began, device = time.perf_counter(), Device(setting)
    results.machines["gpu"] = machine(setting, device.bandwidth())
    todo: dict[str, Callable[[], tuple[Row, Point | None]]] = {
        name: partial(_measured, device, name, case, turns) for name, case in cases(setting).items()
    }
    todo["GPU, convolutional network, per round"] = partial(_cnn, device, long, turns)
    for name, work in todo.items():
        if names and not any(text in name for text in names):
            continue
        if time.perf_counter() - began > LIMIT and not long:
            tell(f"{name}: left out, because {LIMIT:.0f} s are over; `--case` measures it alone.")
            continue
        try:
            found, point = work()
        except Exception:  # time on a device is short: go on with the other cases
            results.failed.append(name)
            tell(f"{name}: failed\n{traceback.format_exc()}")
            continue
        finally:
            device.free()
        results.rows.append(found)
        results.growth += [] if point is None else [point]
        tell(found.line())


def machine(setting: Setting, bandwidth: float) -> dict[str, Any]:
    """Facts about the machine."""
    name = torch.cuda.get_device_name() if setting.device == "cuda" else setting.device
    return facts(gpu=name, speeds={"copy_gb_s": round(bandwidth / 1e9, 1)}, norms=differing_norms(setting))


def differing_norms(setting: Setting) -> str:
    """How many norms of messages in float32 differ between the device and the CPU, where sums have another order."""
    rows, d = setting.size(40_000, 400), 1000
    value = torch.randn(rows, d, generator=torch.Generator().manual_seed(0))
    told = Blocks((d,)), 16, gs.gsgd(5).tau(d), value.dtype, torch.int8
    here, there = (
        dither(value.to(device), None, Stream(Keys.of([0] * rows, range(rows), device), 1, 0), *told).norm.cpu()
        for device in ("cpu", setting.device)
    )
    return f"{int((here != there).sum()):,} of {rows:,} norms of {d:,} numbers differ from the CPU's"


def _measured(device: Device, name: str, case: Case, turns: int) -> tuple[Row, Point | None]:
    work = case.make(device.setting)
    times = device.in_turns(work, case.bytes, turns)
    launches = device.launches(work)
    floor = 1e3 * median(times.baseline)
    found = row(name, case.measures, "gpu", COPY, times, case.bar, floor_ms=float(f"{floor:.4g}"), launches=launches)
    if not case.clients:
        return found, None
    d = 795 * 64 + 10
    return found, Point("gpu", "clients", case.clients, d, case.clients, found.ms)


# The paper's convolutional network (section 5.3).


def _cnn(device: Device, long: bool, turns: int) -> tuple[Row, Point | None]:
    """BEER as in figure 5, records included; the time of all rounds follows from some of them unless `long`."""
    setting = device.setting
    data = works.load(setting, setting.images)
    problem = gs.problems.cnn(data, clients=10, partition="by_label", device=setting.device)
    mixing = gs.mixing_matrix(gs.topology.erdos_renyi(10, 0.6, 0), "metropolis")
    method = gs.BEER(lr=1e-4, gamma=0.01, compressor=gs.gsgd(5))
    every = setting.size(CNN_EVERY, 2)
    rounds = setting.size(CNN_ROUNDS if long else 2 * CNN_EVERY, 4)
    batch = setting.size(100, 10)

    def simulate(count: int) -> object:
        return gs.simulate(method, problem, mixing, rounds=count, batch_size=batch, eval_every=every)

    warm_up = device.seconds(Work(simulate), 2 * WARM_UP)
    loop = autograd_loop(setting, batch)
    device.seconds(loop, 3)
    ours, baseline = [], []
    for _ in range(1 if long else min(turns, 3)):
        ours.append(device.seconds(Work(simulate), rounds) / rounds)
        baseline.append(device.seconds(loop, 20) / 20)
    note = "" if long else f"{CNN_ROUNDS:,} rounds in {CNN_ROUNDS * median(ours):.1f} s, extrapolated from {rounds}"
    found = row(
        "GPU, convolutional network, per round",
        f"BEER, gsgd_5, MNIST, the paper's network, 10 clients, batch 100, a record every {CNN_EVERY} rounds",
        "gpu",
        "one autograd call per client, gradients alone",
        Times(ours, baseline, warm_up),
        Bar(ms=round(1e3 * CNN_SECONDS / CNN_ROUNDS, 3)),
        note=note,
    )
    return found, None


def autograd_loop(setting: Setting, batch: int) -> Work:
    """The gradients of 10 such networks on random images, one after the other."""
    size, device = setting.size(28, 8), setting.device
    channels = ((1, 16), (16, 32))
    stages = [
        layer
        for before, after in channels
        for layer in (nn.Conv2d(before, after, 5, padding=2), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2))
    ]
    module = nn.Sequential(*stages, nn.Flatten(), nn.Linear(32 * (size // 4) ** 2, 10)).to(device)
    images, labels = torch.rand(batch, 1, size, size, device=device), torch.arange(batch, device=device) % 10
    models = [{name: x.detach().clone().requires_grad_() for name, x in module.named_parameters()} for _ in range(10)]

    def run(count: int) -> None:
        for _ in range(count):
            for model in models:
                loss = nn.functional.cross_entropy(functional_call(module, model, (images,)), labels)
                torch.autograd.grad(loss, list(model.values()))

    return Work(run)
