"""The hot loops in plain torch and NumPy: what any faster kernel is held to, bit by bit."""

import math
import warnings
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.errors import CodecError
from gossamer.kernels.blocks import Blocks
from gossamer.kernels.csr import linear_gradients, linear_measures  # noqa: F401  (loops of this backend, too)
from gossamer.kernels.lines import Program
from gossamer.kernels.stream import BESIDE, Stream, per_group

Bytes = npt.NDArray[np.uint8]

LANES = 16
"""Partial sums of a norm."""
_SAFE = (1e-280, 1e280)  # sums of squares whose terms neither under- nor overflowed


def philox(counter: Any, key: Any) -> list[Any]:
    """Philox4x32-10 (Salmon et al., *Parallel Random Numbers: As Easy as 1, 2, 3*, SC 2011): four words of 32 bits.

    `counter` holds four arrays of uint64 below 2^32, `key` two.
    """
    (c0, c1, c2, c3), (k0, k1) = counter, key
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        p0, p1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (p1 >> shift) ^ c1 ^ k0, p1 & low, (p0 >> shift) ^ c3 ^ k1, p0 & low
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    return [c0, c1, c2, c3]


def uniform(stream: Stream, width: int, dtype: torch.dtype) -> Tensor:
    """(rows, width) numbers in [0, 1) of 24 or 53 bits.

    The key is the seed. The counter is (block, round, client, purpose). 16 blocks side by side give four runs of 16
    float32 numbers, one for each word, or two runs of 16 float64 numbers, one for each pair of words.
    """
    seeds, clients = (part.astype(np.uint64)[:, None] for part in stream.keys.arrays)
    groups = -(-width // per_group(dtype))
    blocks = np.arange(groups * BESIDE, dtype=np.uint64)[None]
    fixed = [np.full((1, 1), int(number), np.uint64) for number in (stream.t, stream.purpose)]
    key = (seeds & np.uint64(0xFFFFFFFF), seeds >> np.uint64(32))
    words = philox(np.broadcast_arrays(blocks, fixed[0], clients, fixed[1]), key)
    if dtype == torch.float32:
        numbers = [(word >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24) for word in words]
    else:
        pairs = ((words[0], words[1]), (words[2], words[3]))
        numbers = [(a >> np.uint64(5)) * 2.0**-27 + (b >> np.uint64(6)) * 2.0**-53 for a, b in pairs]
    runs = np.stack([part.reshape(len(seeds), groups, BESIDE) for part in numbers], axis=2)
    drawn = np.ascontiguousarray(runs.reshape(len(seeds), -1)[:, :width])
    return torch.from_numpy(drawn).to(stream.keys.seeds.device)


def below(stream: Stream, high: Tensor, width: int) -> Tensor:
    """(rows, width) integers from 0 to high - 1, with replacement; `high` has one number, or one per client."""
    most = high.repeat(len(stream.keys.seeds) // len(high))[:, None]
    return torch.minimum((uniform(stream, width, torch.float64) * most).long(), most - 1)


class Dithered(NamedTuple):
    """Vectors rounded at random to multiples of a scale per block."""

    norm: Tensor
    """(rows, blocks)."""
    scale: Tensor
    """(rows, blocks)."""
    levels: Tensor
    """(rows, d), integers."""
    moved: Tensor | None
    """(rows, d): the surrogate, moved by the message."""
    is_finite: bool | None = None
    """Whether all values are finite, where that is known."""
    reach: Tensor | None = None
    """(rows, blocks): numbers that are finite if all values are, where they were computed on the way."""


def dither(
    value: Tensor,
    own: Tensor | None,
    stream: Stream,
    blocks: Blocks,
    highest: int,
    tau: float,
    dtype: torch.dtype,
    kind: torch.dtype,
) -> Dithered:
    """On each block of e = value - own: ||e|| / (tau highest) and sign(e) floor(highest |e| / ||e|| + u).

    `kind` is the type of the levels. y + u is never formed, because it may round up to the next integer. A zero block
    is divided by 1 and stays zero. The reciprocal is not used: 1 / 1e-40 is infinite.
    """
    e = (value if own is None else value - own).to(dtype)
    norm = norms(e, blocks)
    scale = norm / torch.tensor(tau * highest, dtype=dtype, device=e.device)
    u = uniform(stream, e.shape[1], dtype)
    y = e.abs().div_(blocks.spread(norm.where(norm > 0, 1))).mul_(highest)
    whole = y.floor()
    whole += y.sub_(whole).add_(u) >= 1
    levels = whole.clamp_(max=highest).copysign_(e).to(kind)
    return Dithered(norm, scale, levels, None if own is None else own + levels * blocks.spread(scale))


def norms(x: Tensor, blocks: Blocks) -> Tensor:
    """(rows, blocks): ||x|| of each block, summed in float64 and rounded to the type of x.

    The j-th coordinate of a block is added to lane j modulo 16, and the lanes are then added in pairs.
    """
    out = torch.empty(x.shape[0], len(blocks.lengths), dtype=x.dtype, device=x.device)
    for first, count, begin in blocks.runs:
        length = blocks.lengths[first]
        parts = x[:, begin : begin + count * length].reshape(-1, length).double()
        total, largest = _squares(parts), torch.ones(len(parts), dtype=torch.float64, device=x.device)
        doubtful = ~((total > _SAFE[0]) & (total < _SAFE[1]))
        if x.dtype == torch.float64 and doubtful.any():
            peak = parts.abs().amax(dim=1)
            largest = peak.where(doubtful & (peak > 0) & (peak < torch.inf), 1)
            total = total.where(largest == 1, _squares(parts / largest[:, None]))
        out[:, first : first + count] = (_root(total) * largest).view(len(x), count)
    return out


def _squares(x: Tensor) -> Tensor:
    return _in_lanes(x.square())


def _in_lanes(x: Tensor) -> Tensor:
    """Sums of the rows by 16 lanes."""
    padded = torch.nn.functional.pad(x, (0, -x.shape[1] % LANES)).view(len(x), -1, LANES)
    if padded.is_cuda:
        return padded.sum(dim=(1, 2))
    with np.errstate(over="ignore", invalid="ignore"):  # the session reports divergence
        lanes = np.add.reduce(padded.numpy(), axis=1)  # one after another: only sums along the last axis go in pairs
        while lanes.shape[1] > 1:
            half = lanes.shape[1] // 2
            lanes = lanes[:, :half] + lanes[:, half:]
    return torch.from_numpy(lanes[:, 0])


def _root(x: Tensor) -> Tensor:
    """Rounded to the nearest, which the root of torch is not always."""
    with np.errstate(invalid="ignore"):
        return x.sqrt() if x.is_cuda else torch.from_numpy(np.sqrt(x.numpy()))


class Signed(NamedTuple):
    """Signs of vectors, and one scale per block."""

    scale: Tensor
    """(rows, blocks)."""
    negative: Tensor
    """(rows, d), bool."""
    moved: Tensor | None
    is_finite: bool | None = None


def signs(value: Tensor, own: Tensor | None, blocks: Blocks, dtype: torch.dtype) -> Signed:
    """The signs of e = value - own, and the mean of |e| on each block, summed in float64 as a norm is."""
    e = (value if own is None else value - own).to(dtype)
    scale = torch.empty(e.shape[0], len(blocks.lengths), dtype=dtype, device=e.device)
    for first, count, begin in blocks.runs:
        length = blocks.lengths[first]
        parts = e[:, begin : begin + count * length].reshape(-1, length).double()
        scale[:, first : first + count] = _in_lanes(parts.abs() / length).view(len(e), count)
    spread, negative = blocks.spread(scale), e < 0
    return Signed(scale, negative, None if own is None else own + torch.where(negative, -spread, spread))


FURTHEST = 254
"""Code 0 is zero; code c is the c-th power of two, counted down from the largest of the row."""
LARGEST = {torch.float32: 127, torch.float64: 1023}
"""The largest exponent of a type."""


class Powered(NamedTuple):
    """Vectors rounded to powers of two."""

    top: Tensor
    """(rows,), int64: the exponent of code 1."""
    codes: Tensor
    """(rows, d), int16."""
    moved: Tensor | None
    is_finite: bool | None = None


def powers(value: Tensor, own: Tensor | None, stream: Stream, dtype: torch.dtype) -> Powered:
    """Each coordinate of e = value - own rounded to a power of two below or above it, at random."""
    return to_powers(value, own, uniform(stream, value.shape[1], dtype))


def to_powers(value: Tensor, own: Tensor | None, u: Tensor) -> Powered:
    """The same, with the random numbers given, whose type is that of the message."""
    dtype = u.dtype
    e = (value if own is None else value - own).to(dtype)
    mantissa, exponent = torch.frexp(e.double().abs())  # |e| = mantissa 2^exponent, mantissa in [1/2, 1)
    up = u < 2 * mantissa - 1
    power = (exponent - 1 + up).clamp(max=LARGEST[dtype]).long()
    power = power.where(e != 0, torch.iinfo(torch.int16).min)
    top = power.amax(dim=1).clamp(min=-1100)
    code = top[:, None] - power + 1
    codes = (code.where((code <= FURTHEST) & (e != 0), 0) * e.sign().long()).to(torch.int16)
    return Powered(top, codes, None if own is None else own + power_values(top, codes).to(dtype))


def power_values(top: Tensor, codes: Tensor) -> Tensor:
    """The values of codes, in float64, because ldexp in float32 ends at 2^-126."""
    return torch.ldexp(codes.sign().double(), top[:, None] + 1 - codes.abs())


def are_finite(*values: Tensor) -> bool:
    """Whether all numbers are finite; False also where their sum is not."""
    total = values[0].sum()
    if len(values) > 1:
        total = torch.stack([total, *(value.sum().to(total) for value in values[1:])]).sum()
    return math.isfinite(total.item())


def note_bad(bad: Tensor, t: Tensor, *values: Tensor) -> None:
    """Lower `bad` to t, on the device, if a number is not finite."""
    is_fine = torch.stack([torch.isfinite(value).all() for value in values]).all()
    bad.copy_(torch.where(is_fine, bad, torch.minimum(bad, t)))


def largest(x: Tensor, blocks: Blocks, k: int) -> Tensor:
    """(rows, kept): the ascending places of the k numbers of largest size of each block, or of all of a shorter block.

    Of equal ones the first are taken.
    """
    x = x.abs()
    taken = torch.zeros(x.shape, dtype=torch.bool, device=x.device)
    for first, count, begin in blocks.runs:
        length = blocks.lengths[first]
        parts = x[:, begin : begin + count * length].reshape(-1, length)
        # torch.topk breaks ties arbitrarily, so it gives only the k-th largest number.
        threshold = parts.topk(min(k, length), dim=1).values[:, -1:]
        above, equal = parts > threshold, parts == threshold
        room = min(k, length) - above.sum(dim=1, keepdim=True)
        chosen = above | (equal & (equal.cumsum(dim=1) <= room))
        taken[:, begin : begin + count * length] = chosen.view(len(x), -1)
    return taken.nonzero()[:, 1].view(len(x), -1)


class Kept(NamedTuple):
    """The largest of each block."""

    places: Tensor
    """(rows, kept), ascending."""
    values: Tensor
    moved: Tensor
    """(rows, d): the surrogate, moved by them."""
    dense: Tensor | None = None
    """(rows, d): the values in their places, and zeros, where that was made on the way."""


def keep(x: Tensor, own: Tensor, blocks: Blocks, k: int) -> Kept:
    """The numbers that `largest` finds, and own + them."""
    return kept_at(x, own, largest(x, blocks, k))


def kept_at(x: Tensor, own: Tensor, places: Tensor) -> Kept:
    """The numbers in these places."""
    values = x.gather(1, places)
    return Kept(places, values, own.scatter_add(1, places, values.to(own)))


def move(own: Tensor, q: Tensor, a: float = 1.0) -> Tensor:
    """H + a Q, in the type of H."""
    return own + q if a == 1 else own + a * q


_SPARSE_FROM = 128  # clients, from which a thin W is a sparse matrix on a GPU
_SPARSE_SHARE = 1 / 16


class Mixer:
    """W times rows, in float64. W may have fewer rows than columns: those of some of the clients.

    On a CPU, SciPy adds up a row's neighbours one after another, without fusing the products into the sums: bit for bit
    what a process of its own does, whatever the number of seeds.
    """

    def __init__(self, w: Any, device: torch.device) -> None:
        self.clients = w.shape[1]
        is_thin = self.clients >= _SPARSE_FROM and w.nnz <= _SPARSE_SHARE * self.clients**2
        self.w = w.sorted_indices()
        if device.type != "cpu":
            self.w = _csr(w, device) if is_thin else torch.tensor(w.toarray(), dtype=torch.float64, device=device)

    def __call__(self, q: Tensor) -> Tensor:
        """Sum_j w_ij q_j for each row i."""
        rows = q.view(-1, self.clients, q.shape[1])
        if not q.is_cuda:
            sums = [torch.from_numpy(self.w @ one.double().numpy()) for one in rows]
        else:
            sums = [self.w @ one.double() for one in rows]
        return sums[0] if len(sums) == 1 else torch.cat(sums)

    def add(self, mixed: Tensor, q: Tensor, a: float = 1.0) -> Tensor:
        """H W + a Q W."""
        return move(mixed, self(q), a)

    def add_levels(self, mixed: Tensor, scale: Tensor, levels: Tensor, blocks: Blocks, a: float = 1.0) -> Tensor:
        """The same for Q = scale times levels, without Q."""
        return self.add(mixed, levels * blocks.spread(scale), a)


def _csr(w: Any, device: torch.device) -> Tensor:
    """A SciPy matrix in compressed rows as a tensor."""
    indptr, indices = (torch.from_numpy(part.astype(np.int64)) for part in (w.indptr, w.indices))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")  # for the copy
        return torch.sparse_csr_tensor(
            indptr, indices, torch.from_numpy(w.data), size=w.shape, device=device, check_invariants=True
        )


def lines(program: Program) -> list[Tensor]:
    """The outputs of a program, one operation after another."""
    values: list[Any] = []
    for op in program.ops:
        if op.name == "load":
            values.append(program.tensors[op.a])
        elif op.name == "column":
            values.append(program.columns[op.a])
        elif op.name == "scalar":
            values.append(torch.as_tensor(program.scalars[op.a], dtype=torch.float64))
        elif op.name == "to":
            values.append(values[op.a].to(torch.float32 if op.is_single else torch.float64))
        else:
            values.append(getattr(torch, op.name)(values[op.a], values[op.b]))
    return [values[k] for k in program.outputs]


# Bit packing: unsigned integers of a fixed width, one after another, lowest bit first.


def packed_size(count: int, width: int) -> int:
    """Bytes of `count` values of `width` bits."""
    return -(-count * width // 8)


def pack(values: npt.NDArray[np.integer], width: int) -> Bytes:
    """Pack each row of (rows, count) values below 2**width into packed_size(count, width) bytes."""
    kind = np.dtype("u1" if width <= 8 else "<u8")
    octets = values.astype(kind, order="C").view(np.uint8).reshape(*values.shape, kind.itemsize)
    bits = np.unpackbits(octets, axis=2, count=width, bitorder="little")
    return np.packbits(bits.reshape(len(values), -1), axis=1, bitorder="little")


def unpack(payload: bytes, count: int, width: int) -> npt.NDArray[np.integer]:
    """Read the `count` values that `pack` wrote. Padding bits must be zero, so that every message has one encoding."""
    check_packed(payload, count, width)
    bits = np.unpackbits(np.frombuffer(payload, np.uint8), count=count * width, bitorder="little")
    kind = np.dtype("u1" if width <= 8 else "<u8")
    octets = np.zeros((count, 8 * kind.itemsize), np.uint8)
    octets[:, :width] = bits.reshape(count, width)
    flat = np.packbits(octets, axis=1, bitorder="little").view(kind)[:, 0]
    return flat if width <= 8 else flat.astype(np.int64)


def check_packed(payload: bytes, count: int, width: int) -> None:
    """Refuse bytes that `pack` never writes."""
    if len(payload) != packed_size(count, width):
        raise CodecError(f"{count} values of {width} bits take {packed_size(count, width)} bytes, got {len(payload)}.")
    if count * width % 8 and payload[-1] >> (count * width % 8):
        raise CodecError("The padding after the last value is not zero.")
