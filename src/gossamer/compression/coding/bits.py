"""Bit packing: unsigned integers of a fixed width, one after another, lowest bit first."""

from functools import cache

import numpy as np
import numpy.typing as npt

from gossamer.errors import CodecError

_GROUP = 8  # eight values of w bits fill w bytes exactly
Bytes = npt.NDArray[np.uint8]


def packed_size(count: int, width: int) -> int:
    """Bytes of `count` values of `width` bits."""
    return -(-count * width // 8)


def pack(values: npt.NDArray[np.integer], width: int) -> Bytes:
    """Pack each row of (rows, count) values below 2**width into packed_size(count, width) bytes."""
    rows, count = values.shape
    groups = -(-count // _GROUP)
    lanes = np.zeros((rows, groups * _GROUP), np.uint8 if width <= 8 else np.uint64)
    lanes[:, :count] = values
    out = _pack_bytes(lanes, width) if width <= 8 else _pack_words(lanes.reshape(rows, groups, _GROUP), width)
    return out.reshape(rows, groups * width)[:, : packed_size(count, width)]


def unpack(payload: bytes, count: int, width: int) -> npt.NDArray[np.integer]:
    """Read the `count` values that `pack` wrote. Padding bits must be zero, so that every message has one encoding."""
    if len(payload) != packed_size(count, width):
        raise CodecError(f"{count} values of {width} bits take {packed_size(count, width)} bytes, got {len(payload)}.")
    groups = -(-count // _GROUP)
    data = np.zeros(groups * width, np.uint8)
    data[: len(payload)] = np.frombuffer(payload, np.uint8)
    grouped = data.reshape(groups, width)
    flat = (_unpack_bytes(grouped, width) if width <= 8 else _unpack_words(grouped, width)).reshape(-1)
    if flat[count:].any() or (count * width % 8 and payload[-1] >> (count * width % 8)):
        raise CodecError("The padding after the last value is not zero.")
    return flat[:count]


# Up to eight bits: eight values are the bytes of one 64-bit word. Three steps move neighbours together: pairs into 2w
# bits, pairs of pairs into 4w, and all into 8w. Each step operates on words instead of on single values.


@cache
def _steps(width: int) -> list[tuple[np.uint64, np.uint64, np.uint64]]:
    """For each step: the shift of the upper half of a lane, and the masks of the lower and the shifted upper half."""
    steps = []
    for lane, filled in ((16, width), (32, 2 * width), (64, 4 * width)):
        low = sum(((1 << filled) - 1) << at for at in range(0, 64, lane))
        steps.append((np.uint64(lane // 2 - filled), np.uint64(low), np.uint64((low << filled) & (2**64 - 1))))
    return steps


def _pack_bytes(lanes: npt.NDArray[np.uint8], width: int) -> Bytes:
    words = lanes.view("<u8")
    for shift, lower, upper in _steps(width):
        words = words & lower | (words >> shift) & upper
    return np.ascontiguousarray(words.view(np.uint8).reshape(-1, 8)[:, :width])


def _unpack_bytes(grouped: Bytes, width: int) -> Bytes:
    spread = np.zeros((len(grouped), 8), np.uint8)
    spread[:, :width] = grouped
    words = spread.view("<u8")[:, 0]
    for shift, lower, upper in reversed(_steps(width)):
        words = words & lower | (words & upper) << shift
    return words.view(np.uint8)


def _pack_words(lanes: npt.NDArray[np.uint64], width: int) -> Bytes:
    out = np.zeros((*lanes.shape[:2], width), np.uint8)
    for lane, byte, shift in _overlaps(width):
        value = lanes[:, :, lane]
        part = value >> np.uint64(shift) if shift >= 0 else value << np.uint64(-shift)
        out[:, :, byte] |= part.astype(np.uint8)
    return out


def _unpack_words(grouped: Bytes, width: int) -> npt.NDArray[np.int64]:
    values = np.zeros((len(grouped), _GROUP), np.uint64)
    for lane, byte, shift in _overlaps(width):
        part = grouped[:, byte].astype(np.uint64)
        values[:, lane] |= part << np.uint64(shift) if shift >= 0 else part >> np.uint64(-shift)
    return (values & np.uint64((1 << width) - 1)).astype(np.int64)


def _overlaps(width: int) -> list[tuple[int, int, int]]:
    """Each pair of a value and a byte of a group that share bits, and the distance between their first bits."""
    return [
        (lane, byte, byte * 8 - lane * width)
        for lane in range(_GROUP)
        for byte in range(lane * width // 8, -(-(lane + 1) * width // 8))
    ]
