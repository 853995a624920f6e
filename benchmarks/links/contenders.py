"""Who takes part: ways of training together, each with twelve settings to choose from."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

import gossamer as gs
from gossamer.algorithms import CompressedKGT, DiLoCo, MoTEF
from gossamer.algorithms.base import Algorithm
from gossamer.compression.base import Codec, Compressor
from gossamer.registry import compressors

Setting = dict[str, Any]
"""What is searched: step sizes, momenta, gamma."""
Kind = Literal["ddp", "all-reduce", "gossip"]

OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], Setting]] = {
    "SGD": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "Adam": (torch.optim.Adam, {}),
}


@dataclass(frozen=True)
class Contender:
    """A way of training, but for what is searched.

    Args:
        kind: DistributedDataParallel; an average of all models every `steps` steps; or one of Gossamer's methods.
        steps: Gradients per host and round.
        hook: How DDP compresses gradients: "fp16", or the rank of PowerSGD.
        method: Of Gossamer.
        compressor: As in spec files.
        codec: As in spec files.
    """

    kind: Kind
    steps: int = 1
    hook: str = ""
    method: str = ""
    compressor: str = "identity"
    codec: Codec = "auto"

    @property
    def name(self) -> str:
        """As in tables."""
        every = f", H {self.steps}" if self.steps > 1 else ""
        if self.kind == "ddp":
            hooks = {"": "DDP float32", "fp16": "DDP fp16"}
            return hooks.get(self.hook, f"DDP PowerSGD {self.hook}")
        if self.kind == "all-reduce":
            return f"all-reduce{every}"
        operator = "" if self.compressor == "identity" else f", {self.compressor.replace(':', '_')}"
        return f"{self.method}{operator}{every}" + ("" if self.codec == "auto" else f", {self.codec}")

    @property
    def powersgd(self) -> int:
        """The rank, or 0."""
        return int(self.hook) if self.hook.isdecimal() else 0

    @property
    def rounds(self) -> int:
        """After how many rounds a run that has not reached its target is given up."""
        return {1: 600, 5: 200, 10: 120, 20: 80, 50: 40}[self.steps]


DENSE, BLOCKS, WHOLE, TOP = "identity", "blockwise:gsgd:2,64", "gsgd:5", "top_k:0.01"
LARGE = "blockwise:gsgd:3,256"


def _ours(method: str, compressor: str, *steps: int) -> list[Contender]:
    return [Contender("gossip", many, method=method, compressor=compressor) for many in steps]


ALL_REDUCE = [
    *(Contender("ddp", hook=hook) for hook in ("", "fp16", "1", "2", "4")),
    *(Contender("all-reduce", many) for many in (5, 20, 50)),
]
OURS = [
    *_ours("DSGD", DENSE, 1),
    *_ours("DSGD", "float16", 1),
    *_ours("CHOCO-SGD", BLOCKS, 1, 20),
    *_ours("CHOCO-SGD", LARGE, 1, 5, 10, 20, 50),
    *_ours("CHOCO-SGD, stale", LARGE, 20),
    *_ours("CHOCO-SGD", WHOLE, 1),
    *_ours("CHOCO-SGD", TOP, 1, 20),
    *_ours("BEER", BLOCKS, 1),
    *_ours("BEER", LARGE, 1, 20),
    *_ours("BEER", WHOLE, 1),
    *_ours("BEER", TOP, 1),
    *_ours("MoTEF", BLOCKS, 1),
    *_ours("MoTEF", LARGE, 1, 5, 10, 20),
    *_ours("K-GT", LARGE, 5, 10),
]
CONTENDERS = {one.name: one for one in [*ALL_REDUCE, *OURS]}


def _product(**lists: Sequence[Any]) -> list[Setting]:
    return [dict(zip(lists, row, strict=True)) for row in itertools.product(*lists.values())]


def settings(contender: Contender) -> list[Setting]:
    """The twelve settings that a contender is tried with."""
    momentum, adam = (0.04, 0.08, 0.02, 0.15, 0.01, 0.3), (1e-3, 2e-3, 6e-4, 3e-3, 3e-4, 5e-3)
    if contender.kind == "ddp" or contender.method == "DSGD":
        return [*_product(inner=["momentum"], lr=momentum), *_product(inner=["Adam"], lr=adam)]
    outer = [(1.0, 0.0), (0.7, 0.9)]
    if contender.kind == "all-reduce":
        return [
            *_product(inner=["SGD"], lr=(0.2, 0.1, 0.4), outer=outer),
            *_product(inner=["Adam"], lr=(1e-3, 5e-4, 2e-3), outer=outer),
        ]
    is_fine = contender.compressor in (BLOCKS, LARGE)
    gammas = (0.6, 0.9, 0.3) if is_fine else (0.06, 0.2, 0.02)
    if contender.method == "K-GT":
        return _product(inner=["Adam"], lr=(6e-4, 1e-3, 3e-4, 2e-3), outer=[(1.0, 0.0)], gamma=gammas)
    if contender.steps > 1 and contender.method.startswith("CHOCO"):
        two = (0.6, 0.9) if is_fine else (0.06, 0.2)
        return [
            *_product(inner=["SGD"], lr=(0.2, 0.1), outer=outer, gamma=two),
            *_product(inner=["Adam"], lr=(1e-3, 2e-3), outer=outer[:1], gamma=two),
        ]
    if contender.steps > 1:
        return _product(inner=["SGD"], lr=(0.05, 0.1, 0.02, 0.2), outer=[(1.0, 0.0)], gamma=gammas)
    if contender.method == "CHOCO-SGD":
        return [
            *_product(inner=["momentum"], lr=(0.04, 0.1), gamma=gammas),
            *_product(inner=["Adam"], lr=(1e-3, 2e-3), gamma=gammas),
        ]
    return _product(lr=(0.1, 0.2, 0.05, 0.4), gamma=gammas)  # BEER and MoTEF on gradients


def operator(contender: Contender) -> Compressor:
    """The compressor of a contender."""
    made: Compressor = compressors.build(contender.compressor)
    return made


def method(contender: Contender, setting: Setting) -> Algorithm:
    """The method of a contender, as the simulator and real processes take it."""
    outer, momentum = setting.get("outer", (1.0, 0.0))
    if contender.kind == "all-reduce":
        return DiLoCo(lr=outer, momentum=momentum)
    c, lr = operator(contender), outer if "inner" in setting else setting["lr"]
    if contender.method == "DSGD":
        # In half precision, what rounding leaves out must not be lost: CHOCO-SGD with gamma 1 is DSGD that keeps it.
        return (
            gs.DSGD(lr=lr) if contender.compressor == DENSE else gs.CHOCOSGD(lr=lr, gamma=1.0, compressor=c, h0="model")
        )
    gamma: float = setting["gamma"]
    if contender.method == "BEER":
        return gs.BEER(lr=lr, gamma=gamma, compressor=c, start="minibatch", h0="model")
    if contender.method == "MoTEF":
        return MoTEF(lr=lr, gamma=gamma, compressor=c, lam=0.2, start="minibatch", h0="model")
    if contender.method == "K-GT":
        return CompressedKGT(lr=lr, gamma=gamma, compressor=c, order="fresh", h0="model")
    order: Literal["fresh", "stale"] = "stale" if "stale" in contender.method else "fresh"
    return gs.CHOCOSGD(lr=lr, gamma=gamma, compressor=c, order=order, h0="model")


def outer_momentum(contender: Contender, setting: Setting) -> float:
    """Of the sums of local steps; DiLoCo has its own."""
    return 0.0 if contender.kind == "all-reduce" else setting.get("outer", (1.0, 0.0))[1]


def local(contender: Contender, setting: Setting) -> gs.LocalSteps | None:
    """The local steps of a contender, as the simulator takes them."""
    if "inner" not in setting:
        return None
    kind, more = OPTIMIZERS[setting["inner"]]
    momentum = outer_momentum(contender, setting)
    return gs.LocalSteps(kind, steps=contender.steps, outer_momentum=momentum, lr=setting["lr"], **more)
