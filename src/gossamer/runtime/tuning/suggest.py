"""Settings for an optimiser, from the shapes of the parameters and the network alone."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gossamer.algorithms.base import Accepts, Algorithm
from gossamer.algorithms.schedules import Schedule
from gossamer.compression import packet
from gossamer.compression.base import Codec, Compressor, Message
from gossamer.compression.dense import identity
from gossamer.compression.dithering import gsgd, qsgd
from gossamer.compression.sparse import Sparse
from gossamer.compression.wrappers import blockwise
from gossamer.errors import InputError, check_integer, check_positive
from gossamer.records.identity import alpha_of, averages
from gossamer.registry import compressors, methods
from gossamer.runtime.exchange.rows import network_of
from gossamer.runtime.tuning.auto import formula_steps, template_of
from gossamer.runtime.tuning.caution import guaranteed_alpha, usual_alpha, without_tensors
from gossamer.theory import practical_steps
from gossamer.topology import Mixing, MixingMatrix

_SIZES = [1 << k for k in range(6, 13)]  # of blocks that are tried
_WORTH = 1.25  # times less bytes per gamma: what blocks must save
_LONGER = 1.5  # times the bytes that a message in blocks may have; above, it is another message
_COMPARED = 1 << 16  # coordinates of the messages by which blocks are compared
_MADE = 1 << 18  # coordinates of the longest message that is really made
_CODED = 100_000  # coordinates of the longest message that is entropy-coded
_SAVED = 0.95  # of the fixed width: an entropy-coded message below it is worth the coding
_LOCAL = 0.5  # of the lr of one machine, for local steps: found by experiment (docs/results/suggest_local.csv)
_FEW = 0.02  # an alpha below it makes for a small gamma, which the reasons point out


@dataclass(frozen=True)
class Suggestion:
    """Settings for `DecentralizedOptimizer`, and why. `print` shows them as a table."""

    method: Algorithm
    """With all settings; ready to be passed."""
    gamma: float | None
    """None if the method has no such setting."""
    lr_scale: float
    """What to multiply an lr with that suits one machine."""
    compressor: Compressor | None
    """None if the method has no such setting."""
    codec: Codec
    bytes_per_round: int
    """That a client sends to each of its neighbours, with this codec."""
    reasons: tuple[str, ...]
    """One sentence each."""

    def __str__(self) -> str:
        shown = {
            "method": self.method.info.title,
            "gamma": "-" if self.gamma is None else f"{self.gamma:.3g}",
            "lr": f"{self.method.lr:.3g} ({self.lr_scale:.3g} times that of one machine)",
            "compressor": "-" if self.compressor is None else str(self.compressor),
            "codec": self.codec,
            "bytes": f"{self.bytes_per_round:,} per round and neighbour",
        }
        return "\n".join([*(f"{name:<12}{value}" for name, value in shown.items()), *(f"- {r}" for r in self.reasons)])


def suggest(
    model: nn.Module | Iterable[Any],
    method: type[Algorithm] | Algorithm | str,
    mixing: MixingMatrix,
    compressor: Compressor | str | None = None,
    *,
    lr: float | None = None,
    local: int | None = None,
) -> Suggestion:
    """Settings to begin with, for `DecentralizedOptimizer`; nothing is trained.

    Only the shapes and types of the parameters count, so that the model may be on the device "meta". gamma and the
    scale of lr are those of the formula of `auto_steps`, with L = 1 and s the mean eigenvalue of I - W (the average
    over clients that differ in a random way). A compressor with one norm for all coordinates is put in blocks where
    that saves bytes per gamma. The documentation says how near to the best these settings were in experiments.

    Args:
        model: A module, or parameters as an optimiser takes them.
        method: A class such as `gossamer.BEER`, its name, or an instance, whose other settings are kept.
        mixing: The network.
        compressor: A wish. By default the method's own, or `blockwise(gsgd(2), 64)`; `blockwise(qsgd(16), 128)` if the
            method needs an unbiased one.
        lr: The step size that suits plain SGD on one machine: by default that of the instance, or 0.1.
        local: The number of local steps per round, if an optimiser takes these. Its lr is then the one to scale, and
            the method's is 1.

    >>> import torch, gossamer as gs
    >>> mixing = gs.mixing_matrix(gs.ring(8))
    >>> advice = gs.suggest(torch.nn.Linear(1000, 100, device="meta"), gs.BEER, mixing, gs.gsgd(5), lr=0.5)
    >>> advice.compressor, round(advice.gamma, 2), round(advice.method.lr, 2)
    (blockwise(operator=gsgd(bits=5), size=128, tensors=()), 0.59, 0.25)
    """
    sizes, dtype = _shapes(model)
    if not isinstance(mixing, MixingMatrix):
        raise InputError(f"`mixing` must be made by gossamer.mixing_matrix(graph), got {type(mixing).__name__}.")
    kind, settings, lr = _asked(method, lr)
    local = None if local is None else check_integer("local", local, 1)
    d, reasons = sum(sizes), [f"{sum(sizes):,} parameters in {len(sizes)} tensors."]
    if "compressor" in kind.__dataclass_fields__ or compressor is not None:  # type: ignore[attr-defined]
        wished = compressors.build(compressor) if compressor is not None else settings.get("compressor")
        settings["compressor"] = _default(kind, d, reasons) if wished is None else wished
    template = template_of(kind, settings)
    if template.needs is not None:
        raise InputError(
            f"{template.info.title} needs {template.needs.value}, which an optimiser never sees; BEER does not."
        )
    network = network_of(template, mixing)
    template.check_mixing(network.lambda_min)
    if "compressor" in settings:
        template = _in_blocks(template, d, network, dtype, reasons)
    template.check_dimension(d)
    gamma, scale = _steps(template, d, network, local, reasons)
    codec, sent = _codec(template, d, dtype, reasons)
    found = {"lr": lr * scale if local is None else 1.0, **({} if gamma is None else {"gamma": gamma})}
    chosen = getattr(template, "compressor", None)
    made: Algorithm = replace(template, **found)  # type: ignore[type-var]
    return Suggestion(made, gamma, scale, chosen, codec, sent, tuple(reasons))


def _shapes(model: Any) -> tuple[list[int], torch.dtype]:
    """The sizes of the parameters that are trained, and their type."""
    if isinstance(model, nn.Module):
        given: list[Tensor] = list(model.parameters())
    elif isinstance(model, Iterable) and not isinstance(model, str | Tensor | np.ndarray):
        given = []
        for one in model:
            group = one["params"] if isinstance(one, dict) and "params" in one else one
            given += [group] if isinstance(group, Tensor) else list(group) if isinstance(group, Iterable) else [group]
    else:
        raise InputError(f"`model` must be a module or its parameters, got {type(model).__name__}.")
    odd = next((one for one in given if not isinstance(one, Tensor)), None)
    if odd is not None:
        raise InputError(f"`model` must be a module or its parameters, got one of {type(odd).__name__}.")
    if not given:
        raise InputError("`model` has no parameters.")
    if any(isinstance(one, nn.parameter.UninitializedParameter) for one in given):
        raise InputError("`model` has lazy parameters; call it once on a batch to initialise them.")
    trained = [one for one in given if one.requires_grad and one.numel()]
    if not trained:
        raise InputError(f"All {len(given)} parameters are frozen; set requires_grad=True on those to train.")
    kinds = {one.dtype for one in trained}
    if len(kinds) > 1 or not kinds <= {torch.float32, torch.float64}:
        found = ", ".join(sorted(str(kind)[6:] for kind in kinds))
        raise InputError(f"The parameters must all be float32, or all float64, got {found}; use torch.autocast.")
    return [one.numel() for one in trained], kinds.pop()


def _asked(method: Any, lr: float | None) -> tuple[type[Algorithm], dict[str, Any], float]:
    """The class, the settings beside lr and gamma, and the lr of one machine."""
    settings: dict[str, Any] = {}
    kind: Any = methods.get(method) if isinstance(method, str) else method
    if isinstance(method, Algorithm):
        kind = type(method)
        settings = {one.name: getattr(method, one.name) for one in fields(method)}  # type: ignore[arg-type]
        own = settings.pop("lr")
        settings.pop("gamma", None)
        if isinstance(own, Schedule) and lr is None:
            raise InputError(
                f"`lr` of an optimiser's method must be a number, got {own}; use torch.optim.lr_scheduler."
            )
        lr = own if lr is None else lr
    if not isinstance(kind, type) or not issubclass(kind, Algorithm):
        raise InputError(f"`method` must be a method such as gossamer.BEER, its name or an instance, got {method!r}.")
    return kind, settings, 0.1 if lr is None else check_positive("lr", lr)


def _default(kind: type[Algorithm], d: int, reasons: list[str]) -> Compressor:
    unbiased = kind.info.compressors is Accepts.UNBIASED
    chosen = blockwise(qsgd(16), 128) if unbiased else blockwise(gsgd(2), 64)
    reasons.append(
        f"No compressor was given: {chosen} sends few bits and keeps alpha at {guaranteed_alpha(chosen, d):.2g}."
    )
    return chosen


def _in_blocks(template: Algorithm, d: int, network: Mixing, dtype: torch.dtype, reasons: list[str]) -> Algorithm:
    """The method with its compressor in blocks, if that takes fewer bytes per gamma and hardly more per message."""
    whole: Compressor = template.compressor  # type: ignore[attr-defined]
    if isinstance(whole, blockwise):
        return template
    alpha = guaranteed_alpha(whole, d)
    if guaranteed_alpha(blockwise(whole, _SIZES[0]), d) < 2 * alpha:
        return template
    few = min(d, _COMPARED)
    size, best, cost = (
        fixed_bytes(whole, few, dtype),
        template,
        _bytes_per_gamma(template, d, few, network, dtype) / _WORTH,
    )
    for many in (many for many in _SIZES if many < d):
        in_blocks = blockwise(whole, many)
        other: Algorithm = replace(template, compressor=in_blocks)  # type: ignore[type-var]
        one = _bytes_per_gamma(other, few, few, network, dtype)
        if one < cost and fixed_bytes(in_blocks, few, dtype) <= _LONGER * size:
            best, cost = other, one
    if best is not template:
        chosen: blockwise = best.compressor  # type: ignore[attr-defined]
        reasons.append(
            f"{whole} has one norm for all coordinates and so alpha = {alpha:.2g}; with one for every "
            f"{chosen.size} alpha is {guaranteed_alpha(chosen, d):.2g}."
        )
    return best


def _bytes_per_gamma(template: Algorithm, d: int, few: int, network: Mixing, dtype: torch.dtype) -> float:
    """What mixing costs, since it takes 1/gamma rounds; infinite where the compressor is no contraction."""
    try:
        template.check_dimension(d)
    except InputError:
        return math.inf
    gamma, _ = formula_steps(template, d, network, 1.0, 1.0)
    return fixed_bytes(template.compressor, few, dtype) / gamma  # type: ignore[attr-defined]


def _steps(
    template: Algorithm, d: int, network: Mixing, local: int | None, reasons: list[str]
) -> tuple[float | None, float]:
    """gamma, the scale of lr, and the numbers behind them."""
    n = network.clients
    share = 1.0 if n == 1 else float((n - network.sparse.diagonal().sum()) / (n - 1))  # the mean eigenvalue of I - W
    gamma, scale = formula_steps(template, d, network, share, 1.0)
    compressor = getattr(template, "compressor", None)
    if hasattr(template, "gamma"):
        alpha, usual = alpha_of(template, d), usual_alpha(compressor, d)
        power = 2 if averages(template, d) else 0.6
        reasons.append(
            f"gamma = min(0.75 alpha^{power}, alpha on Gaussian vectors, 0.6, 0.92 / (1 - lambda_min)) = {gamma:.3g}: "
            f"alpha = {alpha:.3g}, on Gaussian vectors {usual:.3g}, lambda_min = {network.lambda_min:.3g}."
        )
        if usual > 2 * alpha and not averages(template, d):
            larger, _ = practical_steps(usual, usual, 1.0, 1.0, lambda_min=network.lambda_min)
            reasons.append(f"{compressor} usually keeps more than it guarantees: try gamma up to {larger:.2g}, too.")
        elif alpha < _FEW:
            reasons.append("So small an alpha mixes slowly; a compressor that keeps more may need fewer bytes in all.")
    if local is not None:
        reasons.append(
            f"The lr of the optimiser that takes the {local} local steps is {_LOCAL} times that of one machine: in "
            "trials the best for SGD where clients differ; where they are alike, and with AdamW, 1 was mostly better. "
            "The method's lr is 1, since the sum of the steps is its gradient."
        )
        return gamma if hasattr(template, "gamma") else None, _LOCAL
    reasons.append(
        f"lr is {scale:.3g} times that of one machine: one mixing removes about {min(share, 1):.0%} of what the "
        f"clients differ by (rho = {network.rho:.2g}), and the models must not drift apart faster."
    )
    return gamma if hasattr(template, "gamma") else None, scale


def _codec(template: Algorithm, d: int, dtype: torch.dtype, reasons: list[str]) -> tuple[Codec, int]:
    """The codec, and the bytes of one round to each neighbour."""
    compressor, messages = getattr(template, "compressor", None) or identity(), template.info.messages
    fixed = fixed_bytes(compressor, d, dtype, messages)
    entropy = round(fixed * coded_share(compressor, d, dtype))
    reasons.append(
        f"A packet of {messages} message{'s' * (messages > 1)} has {fixed:,} bytes in fixed width "
        f"({8 * fixed / d / messages:.3g} bits per coordinate), and entropy-coded an estimated {entropy:,}, "
        "going by Gaussian values."
    )
    return ("auto", entropy) if entropy < _SAVED * fixed else ("fixed", fixed)


def coded_share(compressor: Compressor, d: int, dtype: torch.dtype) -> float:
    """The length of an entropy-coded packet in parts of one in fixed width, going by Gaussian values."""
    some = gaussian_message(compressor, min(d, _CODED), dtype, of=d)
    plain, coded = (int(packet.sizes([some], 0, [0], codec)[0]) for codec in ("fixed", "auto"))
    return coded / plain


def gaussian_message(compressor: Compressor, d: int, dtype: torch.dtype, of: int = 0) -> Message:
    """The message of a Gaussian vector of d coordinates, or of the first d of so many.

    One norm for all coordinates grows with their number, and levels become rare. One large value stands for those that
    are left out, so that the norm is that of the whole vector.
    """
    z = np.random.default_rng(0).standard_normal((1, d))
    if of > d and not isinstance(compressor, blockwise):
        z[0, -1] = math.sqrt(of - d)
    return without_tensors(compressor)(torch.from_numpy(z).to(dtype), seed=0)


def fixed_bytes(compressor: Compressor, d: int, dtype: torch.dtype, messages: int = 1) -> int:
    """The bytes of a packet in fixed width. A very long one is not made: its length is that of shorter ones, extended.

    (This is exact but for a few bytes of the header.)
    """

    def size(message: Message) -> int:
        return int(packet.sizes([message] * messages, 0, [0])[0])

    if d <= _MADE:
        return size(gaussian_message(compressor, d, dtype))
    half, whole = (gaussian_message(compressor, many, dtype) for many in (_MADE // 2, _MADE))
    if isinstance(whole, Sparse):  # its indices get longer with d, too
        k = round(compressor.alpha(d) * d)
        long = {name: getattr(whole, name)[:, :1].expand(1, k) for name in ("indices", "values")}
        return size(replace(whole, d=d, **long))
    return size(whole) + (size(whole) - size(half)) * (d - _MADE) // (_MADE // 2)
