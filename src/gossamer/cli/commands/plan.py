"""`gossamer plan`: what training would cost over a network that is only described."""

import argparse
from dataclasses import asdict

from rich.markup import escape
from torch import nn

from gossamer.cli.lines import show, show_json
from gossamer.cli.output import console, titled, waiting
from gossamer.errors import InputError, check_integer
from gossamer.problems.modules.own import built_module
from gossamer.runtime.planning import plan as planning
from gossamer.runtime.planning.ways import METHODS


def plan(options: argparse.Namespace) -> int:
    """`gossamer plan`."""
    if (options.parameters is None) == (options.module is None):
        raise InputError("Give either --parameters, such as 10M, or --module, such as my_package:build.")
    shown = check_integer("rows", options.rows, 1)
    with waiting("Timing this machine"):
        found = planning.plan(
            options.parameters if options.module is None else _module(options.module),
            None if options.bandwidth == "unlimited" else options.bandwidth,
            options.delay,
            options.hosts,
            graph=options.graph,
            compute=options.compute,
            batch=options.batch,
            differing=options.differing,
            local=_numbers(options.local),
            methods=METHODS if options.method is None else options.method,
            reduction=options.reduction,
        )
    if options.spec:
        show(found.spec(options.module).rstrip("\n"))
        return 0
    if options.json:
        rows = [{"name": row.way.name, **asdict(row), "time": row.time} for row in found.rows]
        about = {"parameters": found.parameters, "network": asdict(found.network), "gradient": found.gradient}
        return show_json(about | {"rows": rows, "steps": asdict(found.steps), "notes": found.notes, "code": found.code})
    table = titled(escape(found.title()), *planning.HEADINGS)
    for row in found.rows[:shown]:
        table.add_row(*map(escape, row.cells()))
    console().show(table)
    console().plain("\n".join([f"Best: {found.best.way.name}", *found.notes, "", found.code]))
    return 0


def _module(name: str) -> nn.Module:
    found = built_module(name)
    if not isinstance(found, nn.Module):
        raise InputError(f"--module must name an nn.Module or a function that returns one, got {type(found).__name__}.")
    return found


def _numbers(text: str) -> list[int]:
    try:
        return [int(one) for one in text.split(",")]
    except ValueError:
        raise InputError(f"--local must be numbers such as 1,20, got {text!r}.") from None
