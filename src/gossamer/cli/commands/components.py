"""Looking things up and trying them out: `gossamer methods`, `gossamer compressors`, `gossamer compress`."""

import argparse
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
from gossamer.algorithms.about import about
from gossamer.cli.lines import results
from gossamer.cli.output import console
from gossamer.compression.assess import measure
from gossamer.errors import InputError, check_integer


def methods(options: argparse.Namespace) -> int:
    """`gossamer methods`."""
    names = [options.name] if options.name is not None else registry.methods.names()
    rows = [about(name) for name in names]
    with results():
        if options.json:
            print(json.dumps(rows if options.name is None else rows[0], indent=2, default=str))
        elif options.name is None:
            _show_methods(rows)
        else:
            _show_method(rows[0])
    return 0


def _show_methods(rows: list[dict[str, Any]]) -> None:
    table = Table(header_style="bold")
    columns = {
        "name": "name",
        "messages": "messages",
        "exchanges": "exchanges",
        "gradients": "gradients",
        "state": "state / d",
        "compressors": "compressors",
        "rate": "rate",
        "paper": "paper",
    }
    out = console()
    if out.width < 110:  # what does not fit stands under each name
        columns = {key: columns[key] for key in ("name", "messages", "state", "compressors")}
    for key, heading in columns.items():
        table.add_column(heading, no_wrap=key == "name")
    for row in rows:
        table.add_row(*(escape(str(row[key])) for key in columns))
    out.show(table)
    out.print("gossamer methods NAME shows a method's settings, assumptions and equations.", highlight=False)


def _show_method(row: dict[str, Any]) -> None:
    table = Table(show_header=False, title=escape(f"{row['title']} ({row['name']})"), title_justify="left")
    takes = ", ".join(key if key in row["required"] else f"{key}={value}" for key, value in row["settings"].items())
    for heading, value in (
        ("paper", row["paper"]),
        ("settings", takes),
        ("a round", f"{row['messages']} messages, exchanges: {row['exchanges']}, gradients: {row['gradients']}"),
        ("state", f"{row['state']} times the model"),
        ("compressors", row["compressors"]),
        ("assumes", row["assumes"]),
        ("rate", row["rate"]),
    ):
        table.add_row(heading, escape(str(value)))
    out = console()
    out.show(table)
    out.print("Columns are clients, F(X) the gradients at their models, W the mixing matrix:", highlight=False)
    out.print(escape(row["equations"]), highlight=False, soft_wrap=True)


def compressors(options: argparse.Namespace) -> int:
    """`gossamer compressors`."""
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
        table.add_row("as the paper counts", f"{result['bits_nominal']:,} bits")
        if result["symbol_entropy"] is not None:
            table.add_row("entropy of the symbols", f"{result['symbol_entropy']:.4g} bits a coordinate")
        console().show(table)
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
