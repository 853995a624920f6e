"""Looking things up and trying them out: `gossamer methods`, `gossamer compressors`, `gossamer compress`."""

import argparse
import dataclasses
import inspect
import json
import sys
import warnings
from typing import Any

import numpy as np
import torch
from rich.markup import escape
from rich.table import Table

from gossamer import registry
from gossamer.cli.output import console, results
from gossamer.compression.measure import measure
from gossamer.errors import InputError, check_integer


def methods(options: argparse.Namespace) -> int:
    """List the methods, with the names and settings that a spec file takes."""
    rows = []
    for name in registry.methods:
        method = registry.methods.get(name)
        settings = {
            field.name: None if field.default is dataclasses.MISSING else field.default
            for field in dataclasses.fields(method)  # type: ignore[arg-type]
        }
        about: Any = method
        rows.append(
            {"name": name, "title": about.title, "paper": about.paper, "messages": about.messages, "settings": settings}
        )
    if options.json:
        with results():
            print(json.dumps(rows, indent=2, default=str))
        return 0
    table = Table(header_style="bold")
    for heading in ("name", "method", "messages a round", "settings", "paper"):
        table.add_column(
            heading, no_wrap=heading == "name", justify="right" if heading[0] == "m" and " " in heading else "left"
        )
    for row in rows:
        takes = ", ".join(key if value is None else f"{key}={value}" for key, value in row["settings"].items())
        table.add_row(row["name"], row["title"], str(row["messages"]), takes, row["paper"])
    with results():
        console().print(table)
    return 0


def compressors(options: argparse.Namespace) -> int:
    """List the compressors with their constants.

    alpha: E||C(x) - x||^2 <= (1 - alpha) ||x||^2. omega, of unbiased ones: E||C(x) - x||^2 <= omega ||x||^2. Bits are
    those of a fixed-width packet with one float32 message, header and all. A spec file and `gossamer compress` take the
    examples as shown.
    """
    d = check_integer("dimension", options.dimension, 1, 10**7)
    rows = []
    for name in registry.compressors:
        factory: Any = registry.compressors.get(name)
        compressor = factory(**factory.examples[0])
        omega = compressor.omega(d)
        contracts = omega is None or omega < 1
        bits = int(compressor(torch.ones(1, d), seed=0).num_bits("fixed")[0])
        rows.append(
            {
                "name": name,
                "example": _notation(name, factory.examples[0]),
                "alpha": compressor.alpha(d) if contracts else None,
                "omega": omega,
                "deterministic": compressor.is_deterministic,
                "bits_per_coordinate": bits / d,
                "about": (inspect.getdoc(factory) or "").split("\n")[0],
            }
        )
    with results():
        if options.json:
            print(json.dumps(rows, indent=2))
            return 0
        table = Table(header_style="bold", title=f"At {d:,} coordinates", title_justify="left")
        for heading in ("name", "for example", "alpha", "omega", "bits a coordinate", "what it does"):
            table.add_column(heading, no_wrap=heading in ("name", "alpha", "omega"))
        for row in rows:
            alpha, omega = (f"{row[key]:.3g}" if row[key] is not None else "-" for key in ("alpha", "omega"))
            wide = f"{row['bits_per_coordinate']:.3g}"
            table.add_row(row["name"], escape(row["example"]), alpha, omega, wide, escape(row["about"]))
        console().print(table)
    return 0


def compress(options: argparse.Namespace) -> int:
    """Measure one compressor on a vector of your own.

    Shows the relative error beside the bound that alpha (or omega) promises, the bits of a packet under each codec, and
    the entropy of the symbols. Errors of random compressors are means over 20 seeds.
    """
    compressor = registry.compressors.build(options.compressor)
    wide = torch.from_numpy(_vector(options.file))
    x = wide.to(getattr(torch, options.dtype))[None]
    if torch.isinf(x).any() and not torch.isinf(wide).any():
        raise InputError(f"The vector '{options.file}' has numbers too large for {options.dtype}; try --dtype float64.")
    result = measure(compressor, x, check_integer("seed", options.seed, 0))
    with results():
        if options.json:
            print(json.dumps(result, indent=2, allow_nan=False))
            return 0
        bound = 1 - result["alpha"] if result["alpha"] is not None else result["omega"]
        table = Table(show_header=False, title=escape(f"{result['compressor']} on {result['d']:,} coordinates"))
        table.add_row("relative squared error", f"{result['error']:.4g}  (promised: at most {bound:.4g})")
        table.add_row("alpha", "-" if result["alpha"] is None else f"{result['alpha']:.4g}")
        table.add_row("omega", "-" if result["omega"] is None else f"{result['omega']:.4g}")
        for codec, bits in result["bits"].items():
            table.add_row(f"{codec} packet", f"{bits:,} bits, {bits / result['d']:.4g} a coordinate")
        table.add_row("as the paper counts", f"{result['bits_paper']:,} bits")
        if result["symbol_entropy"] is not None:
            table.add_row("entropy of the symbols", f"{result['symbol_entropy']:.4g} bits a coordinate")
        console().print(table)
    return 0


def _notation(name: str, settings: Any) -> str:
    """How a spec file or a command says it: `gsgd:5`."""
    return ":".join([name, *([",".join(map(str, settings.values()))] if settings else [])])


def _vector(name: str) -> "np.ndarray[Any, Any]":
    """The numbers in a file, as one vector."""
    try:
        if name.endswith(".npy"):
            x = np.load(name, allow_pickle=False)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an empty file is spoken of below
                x = np.loadtxt(sys.stdin if name == "-" else name, ndmin=1)
    except OSError as error:
        reason = error.strerror or str(error).rstrip(".")
        raise InputError(f"The vector '{name}' cannot be read: {reason}.") from None
    except (ValueError, EOFError, MemoryError, TypeError) as error:
        raise InputError(f"The vector '{name}' is not one: {str(error).split(chr(10))[0].rstrip('.,')}.") from None
    if not isinstance(x, np.ndarray):
        raise InputError(f"The vector '{name}' is an archive of several; give one .npy file.")
    if x.size == 0 or x.dtype.kind not in "fiu":
        raise InputError(f"The vector '{name}' must hold real numbers, got {x.size} of {x.dtype}.")
    return np.asarray(x, np.float64).reshape(-1)
