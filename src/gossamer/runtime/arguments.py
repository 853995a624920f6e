"""What a run is called with: checked, and in one form."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from gossamer.algorithms.base import Algorithm, Needs
from gossamer.errors import InputError, check_integer, unknown
from gossamer.problems.base import Problem
from gossamer.runtime.exchange.rows import check_schedule
from gossamer.topology import Mixing, MixingMatrix, MixingSchedule

Value = TypeVar("Value")


def check_network(problem: Problem, mixing: Mixing) -> None:
    """Refuse anything but a problem and a network of as many clients."""
    if not isinstance(problem, Problem):
        raise InputError(f"`problem` must be a Problem such as gossamer.quadratic(), got {type(problem).__name__}.")
    if not isinstance(mixing, MixingMatrix | MixingSchedule):
        raise InputError(f"`mixing` must be made by gossamer.mixing_matrix(graph), got {type(mixing).__name__}.")
    if problem.clients != mixing.clients:
        raise InputError(f"The problem has {problem.clients} clients, but the mixing matrix {mixing.clients}.")


def check_method_fits(method: Algorithm, problem: Problem, mixing: Mixing) -> None:
    """Refuse a method that cannot use the mixing matrix, or whose compressor is no contraction at this size."""
    check_schedule(method, mixing)
    method.check_mixing(mixing.lambda_min)
    method.check_dimension(problem.d)
    if method.needs is Needs.ROW_GRADIENTS and (problem.has_buffers or problem.is_random or problem.least_batch > 1):
        raise InputError(
            f"{method.info.title} needs {method.needs.value}, which batch norm and dropout do not allow; take another "
            "method."
        )


def check_batch_size(batch_size: object, problem: Problem) -> int:
    """A batch size that every client's data can fill."""
    checked = check_integer("batch_size", batch_size, 1)
    if checked < problem.least_batch:
        raise InputError(
            f"`batch_size` must be at least {problem.least_batch}, since the module cannot train on one row, "
            f"got {checked}."
        )
    if checked > problem.rows_per_client:
        whose = "a client" if problem.row_counts is None else f"client {int(problem.row_counts.argmin())}"
        raise InputError(
            f"`batch_size` must be at most {problem.rows_per_client}, the rows of {whose}, got {checked}; "
            "leave it out for full gradients."
        )
    return checked


def checked_seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    """At least one seed, and all of them different."""
    if isinstance(seeds, str) or not isinstance(seeds, Iterable) or not (found := tuple(seeds)):
        raise InputError(f"`seeds` must be several seeds, such as [0, 1, 2], got {seeds!r}.")
    if len(set(found)) < len(found):
        raise InputError(f"`seeds` must be different from each other, got {seeds!r}.")
    return tuple(check_integer("seed", one, 0, 2**64 - 1) for one in found)


def labelled(method: Algorithm | Sequence[Algorithm] | Mapping[str, Algorithm]) -> dict[str, Algorithm]:
    """The methods by label; equal titles are told apart by their settings."""
    if isinstance(method, Algorithm):
        return {method.info.title: method}
    if isinstance(method, Mapping):
        labelled = dict(method)
    elif not isinstance(method, Sequence) or isinstance(method, str):
        labelled = {"": method}  # refused below
    else:
        titles = [one.info.title if isinstance(one, Algorithm) else str(one) for one in method]
        labelled = {
            title if titles.count(title) == 1 else str(one): one for title, one in zip(titles, method, strict=True)
        }
    for one in labelled.values():
        if not isinstance(one, Algorithm):
            raise InputError(f"A method is an instance such as gossamer.DSGD(lr=0.1), got {one!r}.")
    if not labelled or (isinstance(method, Sequence) and len(labelled) < len(method)):
        raise InputError("`method` must hold at least one method, and no two with the same settings.")
    return labelled


def by_label(name: str, value: Value | Mapping[str, Value], labels: Iterable[str], *, whole: bool) -> dict[str, Value]:
    """A setting of each method: one for all, or a mapping from labels, which must name all of them if `whole`."""
    labels = list(labels)
    if not isinstance(value, Mapping):
        return dict.fromkeys(labels, value)
    for label in value:
        if label not in labels:
            raise unknown("label", label, labels, owner=f"`{name}`")
    missing = [label for label in labels if label not in value]
    if whole and missing:
        raise InputError(f"`{name}` has no value for {missing[0]!r}; give one for every method, or one for all.")
    return {label: value[label] for label in labels if label in value}
