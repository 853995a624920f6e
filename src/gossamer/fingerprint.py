"""Short digests of content, by which a run is identified."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

_LENGTH = 16  # hexadecimal digits: 64 bits make collisions unlikely


def digest(*values: Any) -> str:
    """A digest of tensors, arrays, numbers, strings, and tuples, lists and dicts of them; types and shapes count.

    >>> digest([1, 2.0], "a") == digest([1, 2.0], "a"), digest(1) == digest("1")
    (True, False)
    """
    found = hashlib.sha256()
    _add(found, values)
    return found.hexdigest()[:_LENGTH]


def _add(found: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        found.update(f"array {value.dtype.str} {value.shape}:".encode())
        found.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    elif isinstance(value, Mapping):
        found.update(f"dict {len(value)}:".encode())
        for name in sorted(value):
            _add(found, (name, value[name]))
    elif isinstance(value, tuple | list):
        found.update(f"list {len(value)}:".encode())
        for one in value:
            _add(found, one)
    elif value is None or isinstance(value, bool | int | float | str | bytes):
        text = repr(value)
        found.update(f"{type(value).__name__} {len(text)}:{text}".encode())
    else:
        raise TypeError(f"A digest is made of tensors, arrays, numbers and strings, got {type(value).__name__}.")
