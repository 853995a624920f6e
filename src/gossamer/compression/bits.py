"""Unsigned integers of a fixed number of bits, packed one after another (lowest bit first)."""

import numpy as np
import numpy.typing as npt

from gossamer.errors import CodecError

_GROUP = 8  # eight values of w bits fill w bytes exactly


def packed_size(count: int, width: int) -> int:
    """Bytes that `count` values of `width` bits take."""
    return -(-count * width // 8)


def pack(values: npt.NDArray[np.integer], width: int) -> npt.NDArray[np.uint8]:
    """Pack each row of (rows, count) values below 2**width into packed_size(count, width) bytes."""
    rows, count = values.shape
    groups = -(-count // _GROUP)
    padded = np.zeros((rows, groups * _GROUP), np.uint64)
    padded[:, :count] = values
    lanes = padded.reshape(rows, groups, _GROUP)
    out = np.zeros((rows, groups, width), np.uint8)
    for lane in range(_GROUP):
        start, end = lane * width, (lane + 1) * width
        for byte in range(start // 8, -(-end // 8)):
            shift = byte * 8 - start
            value = lanes[:, :, lane]
            part = value >> np.uint64(shift) if shift >= 0 else value << np.uint64(-shift)
            out[:, :, byte] |= (part & np.uint64(255)).astype(np.uint8)
    return out.reshape(rows, groups * width)[:, : packed_size(count, width)]


def unpack(payload: bytes, count: int, width: int) -> npt.NDArray[np.int64]:
    """The `count` values that `pack` wrote; padding bits must be zero, so that one message has one encoding."""
    if len(payload) != packed_size(count, width):
        raise CodecError(f"{count} values of {width} bits take {packed_size(count, width)} bytes, got {len(payload)}.")
    groups = -(-count // _GROUP)
    data = np.zeros(groups * width, np.uint8)
    data[: len(payload)] = np.frombuffer(payload, np.uint8)
    grouped = data.reshape(groups, width).astype(np.uint64)
    values = np.zeros((groups, _GROUP), np.uint64)
    for lane in range(_GROUP):
        start, end = lane * width, (lane + 1) * width
        for byte in range(start // 8, -(-end // 8)):
            shift = byte * 8 - start
            part = grouped[:, byte] << np.uint64(shift) if shift >= 0 else grouped[:, byte] >> np.uint64(-shift)
            values[:, lane] |= part
    values &= np.uint64((1 << width) - 1)
    flat = values.reshape(-1).astype(np.int64)
    used = count * width % 8
    if flat[count:].any() or (used and len(payload) and payload[-1] >> used):
        raise CodecError("The padding after the last value is not zero.")
    return flat[:count]
