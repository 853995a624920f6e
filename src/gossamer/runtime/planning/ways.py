"""Ways of training together that a plan compares: all-reduce in several forms, and methods of Gossamer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gossamer.algorithms.base import Algorithm
from gossamer.compression.base import Codec, Compressor
from gossamer.errors import unknown
from gossamer.registry import compressors, methods

Kind = Literal["ddp", "all-reduce", "gossip"]

NAMES = {
    "DSGD": "dsgd",
    "CHOCO-SGD": "choco_sgd",
    "CHOCO-SGD, stale": "choco_sgd",
    "BEER": "beer",
    "MoTEF": "motef",
    "K-GT": "compressed_kgt",
}
"""Gossamer's methods as tables call them, and their names in spec files."""
_SETTINGS: Mapping[str, Mapping[str, float | str]] = {
    "CHOCO-SGD": {"h0": "model"},
    "CHOCO-SGD, stale": {"order": "stale", "h0": "model"},
    "BEER": {"start": "minibatch", "h0": "model"},
    "MoTEF": {"lam": 0.2, "start": "minibatch", "h0": "model"},
    "K-GT": {"order": "fresh", "h0": "model"},
}
BLOCKS, LARGE, WHOLE, TOP = "blockwise:gsgd:2,64", "blockwise:gsgd:3,256", "gsgd:5", "top_k:0.01"
METHODS = ("DDP", "PowerSGD", "all-reduce", "CHOCO-SGD", "BEER", "MoTEF", "K-GT")
"""What `plan(methods=...)` can be asked for."""


@dataclass(frozen=True)
class Way:
    """A way of training.

    Args:
        kind: DistributedDataParallel; an average of all models every `steps` steps; or one of Gossamer's methods.
        steps: Gradients per host and round.
        hook: How DDP compresses gradients: "fp16", or the rank of PowerSGD.
        method: Of Gossamer, a key of `NAMES`.
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
    def title(self) -> str:
        """The method's name in tables."""
        if self.kind == "gossip":
            return self.method
        if self.kind == "all-reduce":
            return "all-reduce"
        return f"PowerSGD {self.hook}" if self.rank else f"DDP {self.hook or 'float32'}"

    @property
    def name(self) -> str:
        """Everything in one line."""
        parts = [self.title, *([self.compressor, self.codec] if self.kind == "gossip" else [])]
        return ", ".join([*parts, f"H {self.steps}"] if self.steps > 1 else parts)

    @property
    def rank(self) -> int:
        """Of PowerSGD, or 0."""
        return int(self.hook) if self.hook.isdecimal() else 0

    @property
    def is_tracking(self) -> bool:
        """Whether it follows the average gradient, so that clients whose data differ do not drift apart."""
        return self.method in ("BEER", "MoTEF", "K-GT")

    @property
    def waits(self) -> bool:
        """Whether nothing is computed while its messages travel."""
        return self.kind != "gossip" or self.method in ("CHOCO-SGD", "K-GT", "DSGD")

    def operator(self) -> Compressor:
        """Its compressor."""
        made: Compressor = compressors.build(self.compressor)
        return made

    def build(self, lr: float, gamma: float) -> Algorithm:
        """The method of Gossamer with these steps."""
        kind = methods.get(NAMES[self.method])
        mixed = {} if self.method == "DSGD" else {"gamma": gamma, "compressor": self.operator()}
        made: Algorithm = kind(lr=lr, **mixed, **self.settings)
        return made

    @property
    def settings(self) -> Mapping[str, float | str]:
        """Of the method of Gossamer, beside its steps: those that were searched."""
        return _SETTINGS.get(self.method, {})


def ways(local: Sequence[int], chosen: Sequence[str]) -> Iterator[Way]:
    """All that are compared, with so many local steps per round."""
    for one in chosen:
        if one not in METHODS:
            raise unknown("method", one, METHODS)
    if "DDP" in chosen:
        yield from (Way("ddp", hook=hook) for hook in ("", "fp16"))
    if "PowerSGD" in chosen:
        yield Way("ddp", hook="4")
    more = [steps for steps in local if steps > 1]
    if "all-reduce" in chosen:
        yield from (Way("all-reduce", steps) for steps in more)
    codecs: tuple[Codec, ...] = ("fixed", "auto")
    for method in (one for one in ("CHOCO-SGD", "BEER", "MoTEF", "K-GT") if one in chosen):
        for steps in more if method == "K-GT" else local:
            for compressor in (BLOCKS, LARGE, WHOLE, TOP):
                yield from (Way("gossip", steps, method=method, compressor=compressor, codec=codec) for codec in codecs)
