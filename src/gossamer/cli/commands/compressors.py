"""`gossamer compressors` and `gossamer compress`: list the compressors, and measure one on a vector."""

import argparse
import inspect
import sys
import warnings
from typing import Any

import numpy as np
import torch
from rich.markup import escape
from rich.table import Column, Table

from gossamer import registry
from gossamer.cli.lines import show_json
from gossamer.cli.output import console
from gossamer.compression.assess import measure
from gossamer.errors import InputError, check_integer


def compressors(options: argparse.Namespace) -> int:
    """`gossamer compressors`."""
    d = check_integer("dimension", options.dimension, 1, 10**7)
    rows = []
    for name in registry.compressors:
        factory: Any = registry.compressors.get(name)
        compressor = factory(**factory.examples[0])
        settings = ",".join(map(str, factory.examples[0].values()))
        omega = compressor.omega(d)
        contracts = omega is None or omega < 1
        bits = int(compressor(torch.ones(1, d), seed=0).num_bits("fixed")[0])
        rows.append(
            {
                "name": name,
                "example": f"{name}:{settings}" if settings else name,
                "alpha": compressor.alpha(d) if contracts else None,
                "omega": omega,
                "deterministic": compressor.is_deterministic,
                "bits_per_coordinate": bits / d,
                "about": (inspect.getdoc(factory) or "").split("\n")[0],
            }
        )
    if options.json:
        return show_json(rows, allow_nan=True)
    headings = ("name", "example", "alpha", "omega", "bits per coordinate", "description")
    columns = (Column(heading, no_wrap=heading in ("name", "alpha", "omega")) for heading in headings)
    table = Table(*columns, title=f"At {d:,} coordinates", title_justify="left")
    for row in rows:
        constants = (f"{row[key]:.3g}" if row[key] is not None else "-" for key in ("alpha", "omega"))
        wide = f"{row['bits_per_coordinate']:.3g}"
        table.add_row(row["name"], escape(row["example"]), *constants, wide, escape(row["about"]))
    console().show(table)
    return 0


def compress(options: argparse.Namespace) -> int:
    """`gossamer compress`."""
    compressor = registry.compressors.build(options.compressor)
    wide = torch.from_numpy(_vector(options.file))
    x = wide.to(getattr(torch, options.dtype))[None]
    if torch.isinf(x).any() and not torch.isinf(wide).any():
        raise InputError(f"The vector '{options.file}' has numbers too large for {options.dtype}; try --dtype float64.")
    result = measure(compressor, x, check_integer("seed", options.seed, 0))
    if options.json:
        return show_json(result)
    bound = 1 - result["alpha"] if result["alpha"] is not None else result["omega"]
    table = Table(show_header=False, title=escape(f"{result['compressor']} on {result['d']:,} coordinates"))
    table.add_row("relative squared error", f"{result['error']:.4g}  (promised: at most {bound:.4g})")
    for name in ("alpha", "omega"):
        table.add_row(name, "-" if result[name] is None else f"{result[name]:.4g}")
    for codec, bits in result["bits"].items():
        table.add_row(f"{codec} packet", f"{bits:,} bits, {bits / result['d']:.4g} per coordinate")
    table.add_row("nominal bits", f"{result['bits_nominal']:,} bits")
    if result["symbol_entropy"] is not None:
        table.add_row("entropy of the symbols", f"{result['symbol_entropy']:.4g} bits per coordinate")
    console().show(table)
    return 0


def _vector(name: str) -> "np.ndarray[Any, Any]":
    """The numbers in a file, as one vector."""
    try:
        if name.endswith(".npy"):
            x = np.load(name, allow_pickle=False)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an empty file is reported below
                x = np.loadtxt(sys.stdin if name == "-" else name, ndmin=1)
    except OSError as error:
        reason = error.strerror or str(error).rstrip(".")
        raise InputError(f"The vector '{name}' cannot be read: {reason}.") from None
    except (ValueError, EOFError, MemoryError, TypeError) as error:
        raise InputError(f"'{name}' is not a vector of numbers: {str(error).split(chr(10))[0].rstrip('.,')}.") from None
    if not isinstance(x, np.ndarray):
        raise InputError(f"'{name}' is an archive of several arrays; give one .npy file.")
    if x.size == 0 or x.dtype.kind not in "fiu":
        raise InputError(f"The vector '{name}' must hold real numbers, got {x.size} of {x.dtype}.")
    return np.asarray(x, np.float64).reshape(-1)
