"""Steps that BEER's proof allows, for spec files that ask for `"certified"` ones."""

from gossamer.algorithms.base import Algorithm
from gossamer.algorithms.beer import BEER
from gossamer.algorithms.schedules import Schedule
from gossamer.errors import InputError, check_unit
from gossamer.problems.base import Problem
from gossamer.problems.modules.module import ModuleProblem
from gossamer.records.identity import alpha_of
from gossamer.theory import certify
from gossamer.topology import Mixing, MixingSchedule


def share_of(wish: str) -> float:
    """The share of the largest certified lr: 1 for "certified", a half for "certified:0.5"."""
    try:
        return check_unit("share", float(wish.partition(":")[2] or 1))
    except (ValueError, InputError):
        raise InputError(f"`lr` may be 'certified', or 'certified:0.5' for half the largest; got {wish!r}.") from None


def certified_steps(
    method: Algorithm, problem: Problem, mixing: Mixing, share: float = 1.0, **given: float
) -> dict[str, float]:
    """A share of the largest lr that the proof allows, and its gamma; `gamma` or `lr` stay, if given.

    Where the problem is known to satisfy PL, they are those of Theorem 4.3, with which 4.1 holds as well.
    """
    if not isinstance(method, BEER):
        raise InputError(f"Steps are certified for BEER alone; give {method.info.title} numbers, or 'auto'.")
    check_tracker(method)
    if isinstance(mixing, MixingSchedule):
        raise InputError("BEER's theory covers a fixed graph, and no graph that changes; give numbers, or 'auto'.")
    if isinstance(method.lr, Schedule):
        raise InputError("The proof is that of one lr for all rounds; a schedule's gamma cannot be certified.")
    L = proven_smoothness(problem)
    if L is None:
        raise InputError("Steps cannot be certified where L is not known, as of a network; give numbers, or 'auto'.")
    found = certify(alpha_of(method, problem.d), mixing.rho, mixing.C, L, problem.pl_constant(), **given)
    return {"lr": share * found.lr, "gamma": found.gamma}


def check_tracker(method: BEER) -> None:
    """Refuse the variant of BEER that the proof does not cover."""
    if method.tracker != "stored":
        raise InputError("The proof is that of BEER with tracker 'stored'; 'reevaluated' is another algorithm.")


def proven_smoothness(problem: Problem) -> float | None:
    """L where it is a bound; a network's own value is that at one point."""
    return None if isinstance(problem, ModuleProblem) else problem.smoothness()
