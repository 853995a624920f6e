"""A small GPT on bytes."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

BYTES = 256


class Windows:
    """Pieces of a text, by the positions where they begin. The text is stored once, whatever is copied."""

    only_kernels = True

    def __init__(self, text: Tensor, length: int) -> None:
        self.text, self._offsets = text, torch.arange(length, device=text.device)

    def __call__(self, starts: Tensor) -> Tensor:
        """(rows, length): the bytes from each of the positions (rows, 1)."""
        return self.text[starts + self._offsets].long()

    def __deepcopy__(self, memo: object) -> "Windows":
        return self


class GPT(nn.Module):
    """Radford et al., 2019: norms before each part, learned positions, and one matrix to read and to write bytes.

    Attention is written out, since vmap has no rule for torch's fused one. Bytes are read by a product with their
    one-hot rows, whose gradient is a product, too: the same bits in every run, also on a GPU.
    """

    only_kernels = True

    def __init__(self, layers: int, width: int, heads: int, context: int, *, bfloat16: bool = False) -> None:
        super().__init__()
        self.bytes, self.positions = _Matrix(BYTES, width), _Matrix(context, width)
        deep = 0.02 / math.sqrt(2 * layers)
        self.blocks = nn.ModuleList(_Block(width, heads, deep, bfloat16=bfloat16) for _ in range(layers))
        self.norm, self.is_short = nn.LayerNorm(width), bfloat16

    def forward(self, tokens: Tensor) -> Tensor:
        """(rows, length, 256): for each byte of (rows, length), the logits of the next one."""
        table = self.bytes.weight
        hot = tokens[..., None] == torch.arange(BYTES, device=tokens.device)
        x = _product(hot.to(table.dtype), table, self.is_short) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return _product(self.norm(x), table.t(), self.is_short)


class _Matrix(nn.Module):
    """A matrix of parameters."""

    only_kernels = True

    def __init__(self, rows: int, columns: int, deviation: float = 0.02) -> None:
        super().__init__()
        self.weight = nn.Parameter(deviation * torch.randn(rows, columns))


class _Block(nn.Module):
    """Attention to what was before, then two layers at each byte."""

    only_kernels = True

    def __init__(self, width: int, heads: int, deep: float, *, bfloat16: bool) -> None:
        super().__init__()
        self.heads, self.is_short = heads, bfloat16
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asked, self.told = _Matrix(width, 3 * width), _Matrix(width, width, deep)
        self.up, self.down = _Matrix(width, 4 * width), _Matrix(4 * width, width, deep)

    def forward(self, x: Tensor) -> Tensor:
        """Both parts are added to their input."""
        x = x + self._attention(self.before(x))
        hidden = functional.gelu(self._times(self.between(x), self.up))
        return x + self._times(hidden, self.down)

    def _attention(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        shape = rows, length, 3, self.heads, width // self.heads
        q, k, v = self._times(x, self.asked).view(shape).permute(2, 0, 3, 1, 4).unbind(0)
        scores = _product(q, k.transpose(2, 3), self.is_short) / math.sqrt(width // self.heads)
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = torch.softmax(scores.masked_fill(later, -math.inf), dim=3)
        mixed = _product(weights, v, self.is_short).transpose(1, 2).reshape(rows, length, width)
        return self._times(mixed, self.told)

    def _times(self, x: Tensor, matrix: _Matrix) -> Tensor:
        return _product(x, matrix.weight, self.is_short)


def _product(a: Tensor, b: Tensor, is_short: bool) -> Tensor:
    """A b, with both rounded to bfloat16 on request."""
    return (a.bfloat16() @ b.bfloat16()).to(a.dtype) if is_short else a @ b


class Reader(nn.Module):
    """A GPT that reads windows of a text: rows are the positions where they begin."""

    only_kernels = True

    def __init__(self, gpt: GPT, windows: Windows) -> None:
        super().__init__()
        self.gpt, self.windows = gpt, windows

    def forward(self, starts: Tensor) -> Tensor:
        """The logits of each next byte."""
        output: Tensor = self.gpt(self.windows(starts)[:, :-1])
        return output


class NextByte:
    """The mean cross-entropy of the bytes that follow, in nats."""

    only_kernels = True

    def __init__(self, windows: Windows) -> None:
        self.windows = windows

    def __call__(self, output: Tensor, starts: Tensor) -> Tensor:
        """Of windows that begin at `starts`."""
        return functional.cross_entropy(output.flatten(0, 1), self.windows(starts)[:, 1:].flatten())

    def accuracy(self, output: Tensor, starts: Tensor) -> Tensor:
        """The share of bytes that were the likeliest."""
        return (output.argmax(dim=2) == self.windows(starts)[:, 1:]).double().mean()
