"""The hot loops in plain torch and NumPy: what any faster kernel is held to, bit by bit."""

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.errors import CodecError

Bytes = npt.NDArray[np.uint8]

_CHUNK = 1 << 18  # coordinates dithered at once, so that they stay in the cache
_GROUP = 8  # eight values of w bits fill w bytes exactly
_WORTH_THREADS = 1 << 20  # numbers to draw, above which threads are faster


def fill_uniform(keys: Sequence[tuple[int, int]], counter: int, out: np.ndarray[Any, Any]) -> None:
    """Fill each row of `out` with uniform numbers in [0, 1): Philox with the row's key, from this counter on."""

    def fill(row: int) -> None:
        bits = np.random.Philox(key=np.array(keys[row], np.uint64), counter=counter)
        np.random.Generator(bits).random(out=out[row], dtype=out.dtype.type)

    threads = min(torch.get_num_threads(), len(keys)) if out.size >= _WORTH_THREADS else 1
    if threads > 1:
        with ThreadPoolExecutor(threads) as pool:  # NumPy releases the interpreter while it draws
            list(pool.map(fill, range(len(keys))))
    else:
        for row in range(len(keys)):
            fill(row)


def move(own: Tensor, q: Tensor, a: float = 1.0) -> Tensor:
    """H + a Q, in the type of H."""
    return own + q if a == 1 else own + a * q


def add_weighted(total: Tensor | None, q: Tensor, weight: float) -> Tensor:
    """The sum so far of w_ij q_j, with one more neighbour; the product is rounded before it is added."""
    part = q.double() * weight
    return part if total is None else total.add_(part)


# W is multiplied as a sparse matrix where that was measured to be faster: from 128 clients on, if at most one entry
# in sixteen is not zero. Large products of a sparse W that is narrow in its numbering (a ring, a grid) go in blocks.
# Below that, SciPy adds up a row's neighbours one after another, without fusing the products into the sums: bit for bit
# what a process of its own does, and as fast as a dense product but where most clients are neighbours.
_SPARSE_FROM = 128
_FEW = 16  # clients, with whom it is always so
_SPARSE_SHARE = 1 / 16
_BLOCK_ROWS = 64
_BLOCKS_FROM = 2**23  # numbers in a product


class Mixer:
    """W times rows, in float64; on a CPU the sums run in one order, whatever the number of seeds."""

    def __init__(self, w: Any, device: torch.device) -> None:
        self.clients = w.shape[0]
        self._blocks: list[tuple[Tensor, Tensor]] = []
        self._in_order: Any = None
        is_thin = self.clients <= _FEW or 2 * w.nnz <= self.clients**2
        if is_thin and self.clients < _SPARSE_FROM and device.type == "cpu":
            self._in_order = w.sorted_indices()
        if self.clients < _SPARSE_FROM or w.nnz > _SPARSE_SHARE * self.clients**2:
            self.w = torch.tensor(w.toarray(), dtype=torch.float64, device=device)
            return
        self.w = _csr(w, device)
        if device.type == "cpu":
            blocks = [w[low : low + _BLOCK_ROWS] for low in range(0, self.clients, _BLOCK_ROWS)]
            columns = [np.unique(block.indices) for block in blocks]
            if sum(map(len, columns)) <= 2 * self.clients:  # few rows are read by more than one block
                self._blocks = [
                    (torch.from_numpy(needed).long(), _csr(block[:, needed], device))
                    for needed, block in zip(columns, blocks, strict=True)
                ]

    def __call__(self, q: Tensor) -> Tensor:
        """Sum_j w_ij q_j for each row i."""
        rows = q.view(-1, self.clients, q.shape[1])
        if self._in_order is not None:
            sums = [torch.from_numpy(self._in_order @ one.double().numpy()) for one in rows]
            return sums[0] if len(sums) == 1 else torch.cat(sums)
        if self.w.layout == torch.strided and q.is_cuda:
            return (self.w @ rows.double()).view(q.shape)
        if self.w.layout == torch.strided:
            # Each seed in fresh memory: the order of sums depends on the number of matrices and on their alignment.
            sums = [self.w @ one.to(torch.float64, copy=True) for one in rows]
            return sums[0] if len(sums) == 1 else torch.cat(sums)
        mixed = torch.empty(rows.shape, dtype=torch.float64, device=q.device)
        for seed, one in enumerate(rows):
            if self._blocks and one.numel() >= _BLOCKS_FROM:
                self._in_blocks(one, mixed[seed])
            else:
                torch.mm(self.w, one.double(), out=mixed[seed])
        return mixed.view(q.shape)

    def _in_blocks(self, rows: Tensor, out: Tensor) -> None:
        """The same sums in the same order, without a float64 copy of all rows: what a block reads fits the cache."""
        widest = max(len(needed) for needed, _ in self._blocks)
        taken = rows.new_empty(widest, rows.shape[1])
        wide = torch.empty(taken.shape, dtype=torch.float64)
        for block, (needed, w) in enumerate(self._blocks):
            torch.index_select(rows, 0, needed, out=taken[: len(needed)])
            wide[: len(needed)].copy_(taken[: len(needed)])
            low = block * _BLOCK_ROWS
            torch.mm(w, wide[: len(needed)], out=out[low : low + _BLOCK_ROWS])


def _csr(w: Any, device: torch.device) -> Tensor:
    """A SciPy matrix in compressed rows as a tensor."""
    indptr, indices = (torch.from_numpy(part.astype(np.int64)) for part in (w.indptr, w.indices))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")  # for the copy
        return torch.sparse_csr_tensor(
            indptr, indices, torch.from_numpy(w.data), size=w.shape, device=device, check_invariants=True
        )


def dither(x: Tensor, u: Tensor, divisor: Tensor, highest: int, out: Tensor) -> None:
    """out = sign(x) floor(highest |x| / divisor + u), at most `highest`; y + u is never formed, as it may round up."""
    step = max(1, x.shape[1] if x.is_cuda else _CHUNK // x.shape[0])
    for at in range(0, x.shape[1], step):
        part = slice(at, at + step)
        y = x[:, part].abs().div_(divisor if divisor.shape[1] == 1 else divisor[:, part]).mul_(highest)
        whole = y.floor()
        whole += y.sub_(whole).add_(u[:, part]) >= 1
        out[:, part] = whole.clamp_(max=highest).copysign_(x[:, part])


# Products of models and data rows. A BLAS picks its order of sums by the number of matrices, their alignment in memory
# and its threads. The gradient of a client would then depend on how many clients and seeds share a call, and a dithered
# compressor amplifies the difference. So a product with one output is a plain sum in a fixed order (`einsum`). One with
# several is one matrix product per client, by NumPy's BLAS on one thread. On a GPU, torch computes both.


def outputs(x: Tensor, a: Tensor) -> Tensor:
    """z[r, o, b] = sum_f x[r, o, f] a[r, b, f]: the outputs of each row of data."""
    if x.is_cuda:
        return x @ a.mT
    return _product("rof,rbf->rob", x.numpy(), a.numpy(), a.numpy().swapaxes(1, 2))


def combination(p: Tensor, a: Tensor) -> Tensor:
    """g[r, o, f] = sum_b p[r, o, b] a[r, b, f]: the weighted sum of the rows of data."""
    if p.is_cuda:
        return p @ a
    return _product("rob,rbf->rof", p.numpy(), a.numpy(), a.numpy())


def _product(subscripts: str, left: Any, right: Any, as_matrices: Any) -> Tensor:
    if 1 in (left.shape[1], right.shape[1]):  # a BLAS sums vectors in an order that depends on alignment
        return torch.from_numpy(np.einsum(subscripts, left, right, optimize=False))
    with _blas().limit(limits=1):
        return torch.from_numpy(np.matmul(left, as_matrices))


@cache
def _blas() -> Any:
    """The controller of NumPy's BLAS; cached because finding it takes milliseconds."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(internal_api="openblas")


# Bit packing: unsigned integers of a fixed width, one after another, lowest bit first.


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
