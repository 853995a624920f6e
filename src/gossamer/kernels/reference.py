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


_SPARSE_FROM = 128  # clients, from which a thin W is a sparse matrix on a GPU
_SPARSE_SHARE = 1 / 16


class Mixer:
    """W times rows, in float64.

    On a CPU, SciPy adds up a row's neighbours one after another, without fusing the products into the sums: bit for bit
    what a process of its own does, whatever the number of seeds.
    """

    def __init__(self, w: Any, device: torch.device) -> None:
        self.clients = w.shape[0]
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
    kind = np.dtype("u1" if width <= 8 else "<u8")
    octets = values.astype(kind, order="C").view(np.uint8).reshape(*values.shape, kind.itemsize)
    bits = np.unpackbits(octets, axis=2, count=width, bitorder="little")
    return np.packbits(bits.reshape(len(values), -1), axis=1, bitorder="little")


def unpack(payload: bytes, count: int, width: int) -> npt.NDArray[np.integer]:
    """Read the `count` values that `pack` wrote. Padding bits must be zero, so that every message has one encoding."""
    if len(payload) != packed_size(count, width):
        raise CodecError(f"{count} values of {width} bits take {packed_size(count, width)} bytes, got {len(payload)}.")
    if count * width % 8 and payload[-1] >> (count * width % 8):
        raise CodecError("The padding after the last value is not zero.")
    bits = np.unpackbits(np.frombuffer(payload, np.uint8), count=count * width, bitorder="little")
    kind = np.dtype("u1" if width <= 8 else "<u8")
    octets = np.zeros((count, 8 * kind.itemsize), np.uint8)
    octets[:, :width] = bits.reshape(count, width)
    flat = np.packbits(octets, axis=1, bitorder="little").view(kind)[:, 0]
    return flat if width <= 8 else flat.astype(np.int64)
