"""Steps that converge without tuning: gamma and lr from alpha, the network, and the problem's own gradients at x0."""

import inspect
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from gossamer.algorithms.base import Algorithm
from gossamer.compression.base import Compressor
from gossamer.errors import InputError
from gossamer.problems.base import Problem
from gossamer.runtime.arguments import check_method_fits, check_network
from gossamer.runtime.measure import alpha_of, averages
from gossamer.runtime.mixer import Mixer, network_of
from gossamer.runtime.oracle import BatchOracle
from gossamer.streams import Streams
from gossamer.theory import practical_steps
from gossamer.topology import MixingMatrix

Method = TypeVar("Method", bound=Algorithm)

_POWER_STEPS = 10  # of the power iteration that looks for L where a problem does not know it
_DRAWN = 1 << 18  # coordinates with which a compressor is tried out
_SAFETY = 2.0  # on an L that was looked for at one point


def auto(
    method: type[Method], problem: Problem, mixing: MixingMatrix, compressor: Compressor | None = None, **settings: Any
) -> Method:
    """The method with steps that are safe on this problem and network, and not far from the best.

    gamma = min(0.75 alpha^0.6, alpha on Gaussian vectors, 0.6, 0.92 / (1 - lambda_min)) and
    lr = min(1/2, 3 gamma s) / L, for most methods: a method's `step_pace` stands for the 3, and with an unbiased
    compressor LEAD and CEDAS take alpha^2, with alpha = 1/(1 + omega), and lr = 1/(2 L). alpha is the compressor's, L
    the problem's, lambda_min the smallest eigenvalue of W, and s in (0, 2) the share of the clients' disagreement that
    one mixing removes: with P their gradients at x0 less the average,
    s = <P, (I - W) P> / ||P||^2. That is the spectral gap where the clients differ in the slowest way that the graph
    knows (a ring sorted by label), and far more where neighbours differ as much as anyone. Momentum and local steps
    make lr smaller by as much as they make a step longer; without a gamma, lambda_min limits lr too.

    Where a problem does not know its L, it is looked for at x0, by power iteration.

    Args:
        method: A class, such as `gossamer.BEER`.
        problem: Where it is to run.
        mixing: The network.
        compressor: Of a method that has one.
        settings: Of the method, such as `start="minibatch"`; `lr` or `gamma`, if given, stay as they are.

    >>> import gossamer as gs
    >>> problem, mixing = gs.quadratic(clients=8), gs.mixing_matrix(gs.ring(8))
    >>> method = gs.auto(gs.BEER, problem, mixing, gs.gsgd(5))
    >>> round(method.gamma, 3), round(method.lr, 3)
    (0.6, 0.503)
    """
    if not (isinstance(method, type) and issubclass(method, Algorithm)) or inspect.isabstract(method):
        raise InputError(f"`method` must be a class such as gossamer.BEER, got {method!r}.")
    if compressor is not None:
        settings["compressor"] = compressor
    known = getattr(method, "__dataclass_fields__", {})
    if "compressor" in known and "compressor" not in settings:
        such = "gossamer.qsgd(16)" if method.compressors == "unbiased" else "gossamer.gsgd(5)"
        raise InputError(f"{method.title} needs a compressor, such as {such}.")
    for name in settings:
        if name not in known:
            raise InputError(f"{method.title} has no setting {name!r}; it has {', '.join(known)}.")
    template = method(**{"lr": 1.0, **({"gamma": 1.0} if "gamma" in known else {}), **settings})
    check_network(problem, mixing)
    check_method_fits(template, problem, mixing)
    return method(**settings_for(template, problem, mixing, settings))


def settings_for(
    template: Algorithm, problem: Problem, mixing: MixingMatrix, settings: dict[str, Any]
) -> dict[str, Any]:
    """The settings, with `lr` and `gamma` where they are not given; `template` is the method with any steps."""
    has_gamma = hasattr(template, "gamma")
    given = settings.get("gamma") if has_gamma else template.mixed_in
    if "lr" in settings and given is not None:
        return settings
    network = network_of(template, mixing)
    gradients, L = gradients_and_smoothness(problem) if "lr" not in settings else (None, 1.0)
    gamma, lr = practical_steps(
        alpha_of(template, problem.d),
        usual_alpha(getattr(template, "compressor", None), problem.d),
        1.0 if gradients is None else mixed_share(gradients, network),
        L,
        gamma=given,
        lambda_min=network.lambda_min,
        averages=averages(template, problem.d),
        step_pace=template.step_pace,
    )
    if not has_gamma:  # W itself, with eigenvalues below 0, makes models and trackers swing
        lr = min(lr, (2 - gamma * (1 - network.lambda_min)) ** 2 / 4 / L)
    lr *= (1 - getattr(template, "momentum", 0.0)) / template.rounds_between_exchanges
    return {"lr": lr, **({"gamma": gamma} if has_gamma else {}), **settings}


def usual_alpha(compressor: Compressor | None, d: int) -> float:
    """1 - E||C(z) - z||^2 / ||z||^2 over Gaussian z: what a compressor usually keeps, where alpha is what it must."""
    if compressor is None:
        return 1.0
    many = max(2, min(64, _DRAWN // d))
    z = torch.from_numpy(np.random.default_rng(0).standard_normal((many, d)))
    omega = compressor.omega(d)
    c = compressor(z, seed=0).dense() / (1 + omega if omega is not None else 1)  # unbiased ones as `scaled` would
    kept = 1 - float(((c - z).square().sum(dim=1) / z.square().sum(dim=1)).mean())
    return min(1.0, max(kept, 1e-6))


def mixed_share(gradients: Tensor, mixing: MixingMatrix) -> float:
    """s = <P, (I - W) P> / ||P||^2 of the clients' gradients less their average; 1 where they agree."""
    apart = gradients - gradients.mean(dim=0)
    size = float(apart.square().sum())
    if size <= 1e-24 * float(gradients.square().sum()) or mixing.clients == 1:
        return 1.0
    moved = apart - Mixer(mixing, apart.device)(apart)
    return max(float((apart * moved).sum()) / size, mixing.rho)


def gradients_and_smoothness(problem: Problem) -> tuple[Tensor, float]:
    """The clients' full gradients at x0, (clients, d) in float64; and L, the problem's own or an estimate."""
    streams = Streams([0], range(problem.clients), problem.device)
    oracle = BatchOracle(problem, streams, 0, None, problem.new_buffers(problem.clients))
    x = problem.x0().expand(problem.clients, problem.d).contiguous()
    with torch.no_grad():
        at_x0 = oracle.full(x)
        L = problem.smoothness()
        if L is None:
            v = streams.at(0, "curvature").normal(problem.d).to(x)
            length = 1e-2 if problem.dtype == torch.float32 else 1e-4
            for _ in range(_POWER_STEPS):
                v = v / torch.linalg.vector_norm(v, dim=1, keepdim=True).clamp_min(1e-30)
                step = length * (1 + torch.linalg.vector_norm(x, dim=1, keepdim=True))
                v = (oracle.full(x + step * v) - at_x0) / step
            L = _SAFETY * float(torch.linalg.vector_norm(v, dim=1).max())
    if not 0 < L < float("inf"):
        raise InputError(f"No steps can be chosen: the gradients at x0 change by {L} a unit of distance; give `lr`.")
    return at_x0.double(), L
