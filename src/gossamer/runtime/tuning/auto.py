"""Steps that converge without tuning: gamma and lr from alpha, the network, and the problem's own gradients at x0."""

import inspect
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, TypeVar

import torch
from torch import Tensor

from gossamer.algorithms.base import Accepts, Algorithm, Needs
from gossamer.compression.base import Compressor
from gossamer.errors import InputError, check_integer
from gossamer.kernels import Mixer
from gossamer.problems.base import Problem
from gossamer.records.identity import alpha_of, averages
from gossamer.runtime.arguments import check_batch_size, check_method_fits, check_network
from gossamer.runtime.exchange.rows import network_of
from gossamer.runtime.gradients.oracle import BatchOracle
from gossamer.runtime.start import X0
from gossamer.runtime.tuning.candidates import Candidates, gradient_norms, race
from gossamer.runtime.tuning.caution import usual_alpha
from gossamer.streams import Streams
from gossamer.theory import practical_steps
from gossamer.topology import Mixing

Method = TypeVar("Method", bound=Algorithm)
Steps = dict[str, float]

_POWER_STEPS = 10  # of the power iteration that looks for L where a problem does not know it
_SAFETY = 2.0  # on an L that was looked for at one point

_MOST_ROUNDS = 500  # of a trial
_LR_FACTORS = [16 / 2**i for i in range(12)]  # of 1/L, which overestimates the curvature of most problems
_GAMMA_FACTORS = [3**0.5, 1.0, 3**-0.5]  # of the formula's gamma
_CUTS = ((10, 16), (2, 6))  # after a tenth of the rounds, 16 candidates go on; after half, 6
_BETWEEN = [2 ** (2 / 3), 2 ** (1 / 3)]  # times the chosen lr: tried at last
_NO_PROGRESS = 1 / 3  # of the norm at x0: where no candidate ends below it, the loss decides
_AS_GOOD = 1.5  # times the lowest norm, within which the smaller lr is taken
_SOLVED = 1e-8  # of the norm at x0: candidates below it are equally good, and the lr in the middle is taken
_EACH = 14  # candidates that take part in a round of the trials, on average
_MOST_NUMBERS = 25 * 10**9  # that the trials may read: rows of data times d, over all gradients
_FEWEST_ROUNDS = 50  # of trials that say something
_MOST_TABLE = 10**6  # rows times d, for methods that take a gradient of each row


def auto_steps(
    method: type[Method],
    problem: Problem,
    mixing: Mixing,
    compressor: Compressor | None = None,
    *,
    rounds: int = _MOST_ROUNDS,
    batch_size: int | None = None,
    x0: X0 = None,
    **settings: Any,
) -> Method:
    """The method with steps that work well on this problem and network.

    A formula proposes gamma and lr. Then short trials compare candidates, simulated side by side from the same start
    with the same random numbers: lr from 16/L down to 1/(128 L) by factors of 2, and gamma, where the method has one,
    at the formula's value and at sqrt(3) times more and less. The candidates with the lowest gradient norms, now or by
    extrapolation, go on: 16 after a tenth of the rounds, 6 after half. A candidate that diverges, or whose clients
    drift apart, is out. Of those whose norm over the last tenth of the rounds is within 1.5 times the lowest, the
    smallest lr is chosen; where several end below 1e-8 of the norm at x0, the one in the middle. Otherwise two larger
    lr, below twice the chosen one, are tried at last. Where no candidate ends below a third of the norm at x0, as on
    nonconvex problems where the norm rises first, the lowest loss decides. The choice depends on the arguments alone.
    It costs at most 14 gradients of every client per round (breast_cancer: 1 to 3 seconds).

    On large problems the trials are shorter, so that all their gradients together read at most 25 billion numbers (rows
    of data times d): 500 rounds on a9a, in one to three minutes on one core. The formula alone decides with `rounds=0`,
    where `lr` is given, where fewer than 50 rounds could be tried, and for methods that need the gradient of each row
    where rows times d exceed a million. The formula is gamma = min(0.75 alpha^0.6, alpha on Gaussian vectors, 0.6, 0.92
    / (1 - lambda_min)) and lr = min(1/2, 3 gamma s) / L for most methods: a method's `step_pace` replaces the 3, and
    with an unbiased compressor LEAD and CEDAS take alpha^2, with alpha = 1/(1 + omega), and lr = 1/(2 L). alpha is the
    compressor's, L the problem's, lambda_min the smallest eigenvalue of W, and s in (0, 2) the share of the clients'
    disagreement that one mixing removes: with P their gradients at x0 less the average, s = <P, (I - W) P> / ||P||^2.
    Momentum and local steps divide lr by as much as they lengthen a step. Without a gamma, lr is at most ((1 +
    lambda_min) / 2)^p / L, with p the method's `swing`.

    Where a problem does not know its L, it is estimated at x0 by power iteration.

    Args:
        method: A class, such as `gossamer.BEER`.
        problem: Where it is to run.
        mixing: The network.
        compressor: Of a method that has one.
        rounds: The length of the run that the steps are for; trials last as long, but at most 500 rounds. 0 takes the
            formula's steps, without trials.
        batch_size: Of the run, as in `gossamer.simulate`.
        x0: Of the run, as in `gossamer.simulate`.
        settings: Of the method, such as `start="minibatch"`; `lr` or `gamma`, if given, stay as they are.

    >>> import gossamer as gs
    >>> problem, mixing = gs.quadratic(clients=8), gs.mixing_matrix(gs.ring(8))
    >>> method = gs.auto_steps(gs.BEER, problem, mixing, gs.gsgd(5), rounds=0)
    >>> round(method.gamma, 3), round(method.lr, 3)
    (0.6, 0.503)
    """
    if compressor is not None:
        settings["compressor"] = compressor
    template = template_of(method, settings)
    check_network(problem, mixing)
    check_method_fits(template, problem, mixing)
    rounds = check_integer("rounds", rounds, 0)
    batch_size = None if batch_size is None else check_batch_size(batch_size, problem)
    return method(**settings_for(template, problem, mixing, settings, rounds, batch_size, x0))


def template_of(method: type[Method], settings: dict[str, Any]) -> Method:
    """The method with these settings, and any steps where they are not given."""
    if not (isinstance(method, type) and issubclass(method, Algorithm)) or inspect.isabstract(method):
        raise InputError(f"`method` must be a class such as gossamer.BEER, got {method!r}.")
    known = getattr(method, "__dataclass_fields__", {})
    if "compressor" in known and "compressor" not in settings:
        such = "gossamer.qsgd(16)" if method.info.compressors is Accepts.UNBIASED else "gossamer.gsgd(5)"
        raise InputError(f"{method.info.title} needs a compressor, such as {such}.")
    for name in settings:
        if name not in known:
            raise InputError(f"{method.info.title} has no setting {name!r}; it has {', '.join(known)}.")
    return method(**{"lr": 1.0, **({"gamma": 1.0} if "gamma" in known else {}), **settings})


def formula_steps(
    template: Algorithm, d: int, network: Mixing, share: float, L: float, given: float | None = None
) -> tuple[float, float]:
    """gamma and lr of a method by the formula of `auto_steps`; `given` is a fixed gamma."""
    gamma, lr = practical_steps(
        alpha_of(template, d),
        usual_alpha(getattr(template, "compressor", None), d),
        share,
        L,
        gamma=given if hasattr(template, "gamma") else template.mixed_in,
        lambda_min=network.lambda_min,
        averages=averages(template, d),
        step_pace=template.info.step_pace,
    )
    if not hasattr(template, "gamma"):  # eigenvalues of W close to -1 make models and trackers swing
        lr = min(lr, ((1 + network.lambda_min) / 2) ** template.info.swing / L)
    return gamma, shortened(template) * lr


def shortened(template: Algorithm) -> float:
    """What momentum and local steps of a method divide its lr by, as a factor."""
    return float((1 - getattr(template, "momentum", 0.0)) / template.rounds_between_exchanges)


def settings_for(
    template: Algorithm,
    problem: Problem,
    mixing: Mixing,
    settings: dict[str, Any],
    rounds: int,
    batch_size: int | None = None,
    x0: X0 = None,
) -> dict[str, Any]:
    """The settings, with `lr` and `gamma` where they are not given; `template` is the method with any steps."""
    has_gamma = hasattr(template, "gamma")
    given = settings.get("gamma") if has_gamma else template.mixed_in
    if "lr" in settings and given is not None:
        return settings
    network = network_of(template, mixing)
    gradients, L = gradients_and_smoothness(problem) if "lr" not in settings else (None, 1.0)
    share = 1.0 if gradients is None else mixed_share(gradients, network)
    gamma, lr = formula_steps(template, problem.d, network, share, L, given)
    steps = {"lr": lr, **({"gamma": gamma} if has_gamma else {})}
    rounds = trial_rounds(template, problem, rounds, batch_size)
    if rounds and "lr" not in settings:
        gammas = [gamma] if given is not None else [min(1.0, gamma * factor) for factor in _GAMMA_FACTORS]
        lrs = [shortened(template) * factor / L for factor in _LR_FACTORS]
        tried = [{"lr": lr, **({"gamma": one} if has_gamma else {})} for lr in lrs for one in gammas]
        tried = sorted([steps, *tried], key=lambda one: -one["lr"])
        trial = partial(Candidates, template, problem, mixing, seed=0, batch_size=batch_size, x0=x0)
        steps = _best(trial, tried, rounds) or steps
    return {**steps, **settings}


def trial_rounds(method: Algorithm, problem: Problem, rounds: int, batch_size: int | None) -> int:
    """The length of the trials; 0 where they would take too long."""
    counts = problem.row_counts
    rows = problem.clients * problem.rows_per_client if counts is None else int(counts.sum())
    if method.needs is Needs.ROW_GRADIENTS and rows * problem.d > _MOST_TABLE:
        return 0
    taken = rows if batch_size is None or method.needs is not None else problem.clients * batch_size
    affordable = _MOST_NUMBERS // (_EACH * taken * problem.d)
    rounds = min(rounds, _MOST_ROUNDS)
    return min(rounds, affordable) if affordable >= min(rounds, _FEWEST_ROUNDS) else 0


def _best(trial: Callable[[list[Steps]], Candidates], tried: list[Steps], rounds: int) -> Steps | None:
    """The smallest lr that does about as well as the best; None if all diverge. `tried` begins with the largest lr."""
    sim = trial(tried)
    start = float(gradient_norms(sim)[0])
    solved = start * max(_SOLVED, 10 * torch.finfo(sim.problem.dtype).eps)
    norms = race(sim, rounds, cuts={max(1, rounds // part): many for part, many in _CUTS}, solved=solved) or []
    found = [(norm, steps) for norm, steps in zip(norms, tried, strict=True) if norm < inf]
    good = [steps for norm, steps in found if norm <= solved]
    if good:
        return good[len(good) // 2]
    if not found:
        return None
    if min(found, key=lambda one: one[0])[0] > _NO_PROGRESS * start:
        losses = sim.problem.evaluate(sim.snapshot().mean(dim=1, dtype=torch.float64))["loss"].tolist()
        kept = [(loss, tried[who]) for who, loss in zip(sim.alive, losses, strict=True) if norms[who] < inf]
        return min(kept, key=lambda one: one[0])[1]
    near = _smallest(found)
    between = [{**near, "lr": near["lr"] * factor} for factor in _BETWEEN]
    norms = race(trial(between), rounds) or []
    return _smallest([*zip(norms, between, strict=True), *(one for one in found if one[1] is near)])


def _smallest(found: list[tuple[float, Steps]]) -> Steps:
    """The smallest lr whose norm is within 1.5 times the lowest."""
    lowest = min(norm for norm, _ in found)
    return min((steps for norm, steps in found if norm <= _AS_GOOD * lowest), key=lambda steps: steps["lr"])


def mixed_share(gradients: Tensor, mixing: Mixing) -> float:
    """s = <P, (I - W) P> / ||P||^2 of the clients' gradients less their average; 1 where they agree."""
    apart = gradients - gradients.mean(dim=0)
    size = float(apart.square().sum())
    if size <= 1e-24 * float(gradients.square().sum()) or mixing.clients == 1:
        return 1.0
    moved = apart - Mixer(mixing.sparse, apart.device)(apart)
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
