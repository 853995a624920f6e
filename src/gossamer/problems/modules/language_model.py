"""A language model: a small GPT on bytes of any text, divided among clients."""

from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from gossamer.errors import InputError, check_bool, check_choice, check_integer
from gossamer.problems.base import Facts, as_device, as_dtype
from gossamer.problems.data.holdings import Rows
from gossamer.problems.data.texts import Source, Text, read_text
from gossamer.problems.modules.gpt import GPT, NextByte, Reader, Windows
from gossamer.problems.modules.module import Gradients, ModuleProblem
from gossamer.problems.modules.trial import own_generator
from gossamer.registry import objectives

Split = Literal["iid", "contiguous", "topic"]
Segment = tuple[int, int]
_BLOCK = 16  # windows in a block of text, which one client holds
_HEAD = 32  # of the width, by default
_EVERY = 10  # of so many topics or blocks, one is for validation
_AT_ONCE = {"cpu": 32, "cuda": 256}  # windows that are measured together


@objectives.register("language_model")
def language_model(
    text: Source = "topics",
    *,
    clients: int = 8,
    layers: int = 4,
    width: int = 192,
    heads: int | None = None,
    context: int = 128,
    split: Split = "iid",
    stride: int = 8,
    evaluated: int = 512,
    scores_clients: bool = False,
    bfloat16: bool = False,
    gradients: Gradients = "auto",
    init_seed: int = 0,
    seed: int = 0,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
) -> ModuleProblem:
    """A small GPT that predicts each next byte of a text.

    A row of data is a window of `context` + 1 bytes. Every tenth topic of the text is for validation only; of a text
    without topics, every tenth block of 16 windows. Records have the mean cross-entropy in nats on the validation text
    as `test_loss`, and the share of bytes that were predicted as `accuracy`. `loss` and `grad_norm` are those of
    windows of the training text. The SHA-256 of the text is in every record.

    Args:
        text: `"topics"`, the English documentation that comes with Python (half a megabyte); `"stdlib"`, the source of
            its standard library without tests (12 MB in Python 3.11; a topic is a file); the path of a file; the text
            itself, as bytes or as a string of several lines; or a mapping from topics to texts.
        clients: The number of clients.
        layers: Blocks of attention and two linear layers.
        width: Numbers per byte inside the network.
        heads: Of attention; by default one for each 32 numbers of the width.
        context: The largest number of bytes that a prediction can see.
        split: `"iid"` deals blocks of 16 windows at random, `"contiguous"` cuts the text into equal parts, and
            `"topic"` gives whole topics to clients, neighbouring ones to the same client.
        stride: Bytes from the beginning of one training window to that of the next.
        evaluated: The most windows of validation text, and of training text, at which models are measured.
        scores_clients: Whether every client's own model is measured, too, and not only their average.
        bfloat16: Whether matrix products round their factors to bfloat16, which is fast on a GPU.
        gradients: As in `module_problem`.
        init_seed: Of the initial weights.
        seed: Of the iid split.
        dtype: Of the parameters.
        device: Where it is computed.
    """
    clients, context = check_integer("clients", clients, 1), check_integer("context", context, 1)
    layers, width = check_integer("layers", layers, 1), check_integer("width", width, 1)
    heads = max(1, width // _HEAD) if heads is None else check_integer("heads", heads, 1)
    if width % heads:
        raise InputError(f"`width` must be a multiple of `heads`, got {width} and {heads}.")
    check_choice("split", split, ("iid", "contiguous", "topic"))
    check_bool("bfloat16", bfloat16)
    check_bool("scores_clients", scores_clients)
    evaluated, kind, where = check_integer("evaluated", evaluated, 1), as_dtype(dtype), as_device(device)
    source = read_text(text)
    training, validation = _pieces(source, context)
    shares = _shares(training, clients, split, context, check_integer("seed", seed, 0))
    starts = _windows(shares, context, check_integer("stride", stride, 1), split)
    length = sum(map(len, training))
    every = np.arange(length, length + sum(map(len, validation)) - context, context)
    whole = np.frombuffer(b"".join(training + validation), np.uint8).copy()
    windows = Windows(torch.from_numpy(whole).to(where), context + 1)
    with own_generator(torch.device("cpu")):
        torch.manual_seed(check_integer("init_seed", init_seed, 0, 2**63 - 1))
        gpt = GPT(layers, width, heads, context, bfloat16=bfloat16)
    loss = NextByte(windows)
    about: Facts = {"module": "language_model", "layers": layers, "width": width, "heads": heads, "context": context}
    about |= {"text": source.name, "text_bytes": source.length, "text_sha256": source.sha256}
    about |= {"split": split, "stride": stride, "bfloat16": bfloat16}
    problem = ModuleProblem(
        Reader(gpt, windows),
        loss,
        _rows(starts, kind, where),
        _rows([_spread(every, evaluated)], kind, where),
        gradients,
        about,
        {"accuracy": loss.accuracy},
        measured=_rows([_spread(one, max(1, evaluated // clients)) for one in starts], kind, where),
        at_once=_AT_ONCE["cpu" if where.type == "cpu" else "cuda"],
    )
    problem.scores_clients = scores_clients
    return problem


def _pieces(source: Text, context: int) -> tuple[list[bytes], list[bytes]]:
    """What is for training and what for validation: every tenth topic, or block of a text without topics."""
    pieces = list(source.topics.values())
    if len(pieces) == 1:
        (whole,), size = pieces, _BLOCK * context
        pieces = [whole[begin : begin + size] for begin in range(0, len(whole), size)]
    training = [piece for number, piece in enumerate(pieces) if number % _EVERY]
    validation = pieces[::_EVERY]
    least = min(sum(map(len, training)), sum(map(len, validation)))
    if least <= context:
        raise InputError(
            f"The text {source.name!r} of {source.length:,} bytes is too short for windows of {context + 1} bytes for "
            "training and validation; take a longer text, or a smaller `context`."
        )
    return training, validation


def _shares(training: list[bytes], clients: int, split: Split, context: int, seed: int) -> list[list[Segment]]:
    """The parts of the training text that each client holds, as places in the whole of it."""
    ends = np.cumsum([len(piece) for piece in training])
    length = int(ends[-1])
    if split == "contiguous":
        cuts = [length * i // clients for i in range(clients + 1)]
        return [[segment] for segment in pairwise(cuts)]
    if split == "topic":
        begins = ends - [len(piece) for piece in training]
        whose = np.minimum((begins + ends) * clients // (2 * length), clients - 1)
        parts = zip(begins.tolist(), ends.tolist(), whose.tolist(), strict=True)
        shares: list[list[Segment]] = [[] for _ in range(clients)]
        for begin, end, client in parts:
            shares[client].append((begin, end))
        return shares
    size = _BLOCK * context
    order = np.random.default_rng(seed).permutation(length // size)
    each = len(order) // clients
    return [
        [(size * block, size * (block + 1)) for block in order[i * each : (i + 1) * each].tolist()]
        for i in range(clients)
    ]


def _windows(shares: list[list[Segment]], context: int, stride: int, split: Split) -> list[npt.NDArray[np.int64]]:
    """Where the windows of each client begin; they lie within its segments."""
    starts = []
    for client, segments in enumerate(shares):
        mine = [np.arange(begin, end - context, stride) for begin, end in segments]
        starts.append(np.concatenate([np.empty(0, np.int64), *mine]))
        if not len(starts[-1]):
            raise InputError(
                f"With split = {split!r}, client {client} of {len(shares)} has no window of {context + 1} bytes; take "
                "a longer text, fewer clients, or a smaller `context`."
            )
    return starts


def _spread(starts: npt.NDArray[np.int64], most: int) -> npt.NDArray[np.int64]:
    """At most so many of them, evenly spread."""
    return starts[np.linspace(0, len(starts) - 1, min(most, len(starts))).astype(np.int64)]


def _rows(starts: list[npt.NDArray[np.int64]], dtype: torch.dtype, device: torch.device) -> Rows:
    """Positions, both as what the module takes and as what the loss takes."""
    column = torch.from_numpy(np.concatenate(starts))[:, None].to(device)
    return Rows(column, column, [len(one) for one in starts], dtype)
