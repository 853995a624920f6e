"""`gossamer methods`: list the methods, or show one in full."""

import argparse

from rich.markup import escape
from rich.table import Column, Table

from gossamer import registry
from gossamer.algorithms.about import about
from gossamer.cli.lines import show_json
from gossamer.cli.output import console

_COLUMNS = ("name", "messages", "exchanges", "gradients", "state", "compressors", "rate", "paper")
_FEW = ("name", "messages", "state", "compressors")
"""The columns shown on a narrow terminal."""


def methods(options: argparse.Namespace) -> int:
    """`gossamer methods`."""
    name = options.name
    if options.json:
        facts = about(name) if name is not None else [about(one) for one in registry.methods]
        return show_json(facts, default=str, allow_nan=True)
    if name is None:
        _show_all()
    else:
        _show(name)
    return 0


def _show_all() -> None:
    out = console()
    columns = _COLUMNS if out.width >= 110 else _FEW
    table = Table(*(Column("state / d" if key == "state" else key, no_wrap=key == "name") for key in columns))
    for name in registry.methods:
        facts = about(name)
        table.add_row(*(escape(str(facts[key])) for key in columns))
    out.show(table)
    out.print("gossamer methods NAME shows a method's settings, assumptions and equations.", highlight=False)


def _show(name: str) -> None:
    facts = about(name)
    table = Table(show_header=False, title=escape(f"{facts['title']} ({facts['name']})"), title_justify="left")
    settings = (key if key in facts["required"] else f"{key}={value}" for key, value in facts["settings"].items())
    costs = f"{facts['messages']} messages, exchanges: {facts['exchanges']}, gradients: {facts['gradients']}"
    for heading, value in (
        ("paper", facts["paper"]),
        ("settings", ", ".join(settings)),
        ("per round", costs),
        ("state", f"{facts['state']} times the model"),
        ("compressors", facts["compressors"]),
        ("assumes", facts["assumes"]),
        ("rate", facts["rate"]),
    ):
        table.add_row(heading, escape(str(value)))
    out = console()
    out.show(table)
    out.print("Columns are clients, F(X) the gradients at their models, W the mixing matrix:", highlight=False)
    out.plain(facts["equations"])
