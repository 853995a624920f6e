"""Instances of a class to try."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, cast

from gossamer import registry
from gossamer.algorithms.base import Accepts
from gossamer.compression.base import Compressor
from gossamer.errors import InputError

COORDINATES = 9


def instances(thing: Any, known: registry.Registry) -> Iterator[Any]:
    """The instance itself, or an instance of the class for each of its examples, crossed with the compressors."""
    if not isinstance(thing, type):
        yield thing
        return
    thing = cast(Any, thing)
    assert thing.examples, f"{thing.__name__} needs `examples`, settings with which it can be tried."
    assert registry.normal(known.name_of(thing)) in known.names(), f"{thing.__name__} is not registered."
    if "compressor" not in {field.name for field in fields(thing)}:
        yield from (thing(**settings) for settings in thing.examples)
        return
    # The first settings with every compressor, the others with the first compressor that is random.
    factories: list[Any] = [registry.compressors.get(name) for name in registry.compressors]
    every = [factory(**factory.examples[0]) for factory in factories]
    some = [next(compressor for compressor in every if not compressor.is_deterministic)]
    for number, settings in enumerate(thing.examples):
        for compressor in every if number == 0 else some:
            made = _admitted(thing, compressor, settings)
            if made is not None:
                yield made


def _admitted(thing: Any, compressor: Compressor, settings: Any) -> Any:
    """The method with this compressor; None if it cannot use it, which it must then say, with the reason."""
    omega = compressor.omega(COORDINATES)
    contracts, unbiased = omega is None or omega < 1, compressor.is_unbiased
    fits = {"contractive": contracts, "unbiased": unbiased, "any": contracts or unbiased}[thing.info.compressors.value]
    refusal = None
    try:
        made = thing(**{"compressor": compressor} | dict(settings))
        made.check_dimension(COORDINATES)
    except InputError as error:
        refusal = str(error)
    if refusal is None:
        assert fits, f"{thing.__name__} takes {compressor}, which is not {thing.info.compressors.value}."
        return made
    assert not fits, (
        f"{thing.__name__} takes {thing.info.compressors.value} compressors, but refuses {compressor}: {refusal}"
    )
    reason = "unbiased" if thing.info.compressors is Accepts.UNBIASED else "contraction"
    assert reason in refusal, f"{thing.__name__} refuses {compressor} without the reason: {refusal}"
    return None
