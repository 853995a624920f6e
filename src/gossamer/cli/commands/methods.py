"""`gossamer methods`: list the methods, or show one in full."""

import argparse
import json

from rich.markup import escape
from rich.table import Table

from gossamer import registry
from gossamer.algorithms.about import about
from gossamer.cli.lines import results
from gossamer.cli.output import console

_COLUMNS = {
    "name": "name",
    "messages": "messages",
    "exchanges": "exchanges",
    "gradients": "gradients",
    "state": "state / d",
    "compressors": "compressors",
    "rate": "rate",
    "paper": "paper",
}
_FEW = ("name", "messages", "state", "compressors")
"""The columns shown on a narrow terminal."""


def methods(options: argparse.Namespace) -> int:
    """`gossamer methods`."""
    name = options.name
    with results():
        if options.json:
            facts = about(name) if name is not None else [about(one) for one in registry.methods]
            print(json.dumps(facts, indent=2, default=str))
        elif name is None:
            _show_all()
        else:
            _show(name)
    return 0


def _show_all() -> None:
    out, table = console(), Table(header_style="bold")
    columns = _COLUMNS if out.width >= 110 else {key: _COLUMNS[key] for key in _FEW}
    for key, heading in columns.items():
        table.add_column(heading, no_wrap=key == "name")
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
    out.print(escape(facts["equations"]), highlight=False, soft_wrap=True)
