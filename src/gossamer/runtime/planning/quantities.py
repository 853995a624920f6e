"""Numbers with units, as people write them: 10M parameters, 20Mbit, 10ms."""

import re
from collections.abc import Mapping

from gossamer.errors import InputError, check_nonnegative, check_positive

_FACTORS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_COUNTS = {name: factor for name, factor in _FACTORS.items() if name not in ("G", "T")}
_BITS = {f"{name}{unit}": _FACTORS[name] for name in ("", "k", "K", "M", "G") for unit in ("bit", "bit/s", "bps")}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "": 1.0}
_WRITTEN = re.compile(r"([0-9][0-9_,]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+)\s*([A-Za-z/]*)")


def count_of(name: str, value: object) -> int:
    """A number of things: 1000, "10M", "1.5B".

    >>> count_of("parameters", "10M")
    10000000
    """
    return max(1, round(check_positive(name, _read(name, value, _COUNTS, '"10M"'))))


def bits_of(name: str, value: object) -> float:
    """Bits per second: 2e7, "20Mbit", "1Gbit"; None is unlimited.

    >>> bits_of("bandwidth", "20Mbit")
    20000000.0
    """
    return float("inf") if value is None else check_positive(name, _read(name, value, _BITS | {"": 1.0}, '"20Mbit"'))


def seconds_of(name: str, value: object) -> float:
    """Seconds: 0.01, "10ms".

    >>> seconds_of("delay", "10ms")
    0.01
    """
    return check_nonnegative(name, _read(name, value, _SECONDS, '"10ms"'))


def _read(name: str, value: object, units: Mapping[str, float], example: str) -> object:
    """The number that a string stands for; anything else as it is."""
    if not isinstance(value, str):
        return value
    found = _WRITTEN.fullmatch(value.strip())
    if found is None or found[2] not in units:
        known = ", ".join(unit for unit in units if unit)
        raise InputError(f"`{name}` must be a number such as {example}, got {value!r}; known units: {known}.")
    return float(found[1].replace(",", "").replace("_", "")) * units[found[2]]


def shown_count(count: int) -> str:
    """A short form of a large number.

    >>> shown_count(1_002_570), shown_count(25_450)
    ('1M', '25.4k')
    """
    for factor, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= factor:
            return f"{count / factor:.3g}{unit}"
    return str(count)


def shown_bytes(count: float) -> str:
    """Bytes in a short form.

    >>> shown_bytes(4_010_280)
    '4.01 MB'
    """
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} B"


def shown_bits(bandwidth: float) -> str:
    """Bits per second in a short form.

    >>> shown_bits(2e7)
    '20 Mbit/s'
    """
    if bandwidth == float("inf"):
        return "unlimited bandwidth"
    for factor, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bandwidth >= factor:
            return f"{bandwidth / factor:.3g} {unit}"
    return f"{bandwidth:.3g} bit/s"


def shown_seconds(seconds: float) -> str:
    """A duration in a short form.

    >>> shown_seconds(0.0123), shown_seconds(5000)
    ('12.3 ms', '1.39 h')
    """
    if seconds < 1:
        return f"{1e3 * seconds:.3g} ms"
    for factor, unit in ((86400 * 365.25, "years"), (86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * factor or (unit == "h" and seconds >= factor):
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds:.3g} s"
