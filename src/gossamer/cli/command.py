"""Commands and their arguments, declared without importing the code that runs them.

A command is a function that adds arguments to a parser. Its docstring is the command's help, and its first line appears
in `gossamer --help`. The code is named as `module:function`, and imported when the command is called.
"""

import argparse
import importlib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from gossamer.errors import InputError, unknown

Arguments = Callable[["Parser"], None]


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are InputErrors."""

    def error(self, message: str) -> NoReturn:
        """Raise an InputError; argparse would print its usage and exit."""
        raise InputError(f"{message[:1].upper()}{message[1:].rstrip('.')}; see `{self.prog} --help`.")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and not action.option_strings and value not in action.choices:
            raise unknown(str(action.metavar).lower(), value, action.choices)
        super()._check_value(action, value)

    def add(self, names: str, metavar: str | None, about: str, **more: Any) -> None:
        """Add an argument, or an option with all its names, such as `-o --output`."""
        self.add_argument(*names.split(), metavar=metavar, help=about, **more)

    def flag(self, names: str, about: str) -> None:
        """Add an option without a value."""
        self.add_argument(*names.split(), action="store_true", help=about)

    def data_dir(self) -> None:
        """Add `--data-dir`."""
        self.add("--data-dir", "DIR", "folder with data files (default: $GOSSAMER_DATA, the cache)")


@dataclass(frozen=True)
class Command:
    """A command, or a group of commands."""

    name: str
    arguments: Arguments
    call: str | None = None
    """`module:function` of its code; None for a group."""
    examples: str = ""


def command(call: str | None, *examples: str) -> Callable[[Arguments], Command]:
    """Decorate a function that adds the arguments of a command; its name is the command's, its docstring the help."""
    code = None if call is None else f"gossamer.cli.{call}"
    text = "\n".join(f"  {example}" for example in examples)
    return lambda arguments: Command(arguments.__name__.rstrip("_"), arguments, code, text)


def add_commands(parser: Parser, commands: Iterable[Command]) -> None:
    """Add commands to a parser, which then requires one of them."""
    kinds = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    for one in commands:
        about = inspect.getdoc(one.arguments) or ""
        added = kinds.add_parser(
            one.name,
            help=about.split("\n")[0].rstrip("."),
            description=about,
            epilog=f"Examples:\n{one.examples}" if one.examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        one.arguments(added)
        if one.call is not None:
            added.set_defaults(call=one.call)


def call(options: argparse.Namespace) -> int:
    """Import and run the code of the chosen command."""
    module, function = options.call.split(":")
    code: int = getattr(importlib.import_module(module), function)(options)
    return code


def refuse(options: argparse.Namespace, sentence: str, *names: str) -> None:
    """Raise an InputError if one of these options was given; {} in the sentence is its name."""
    for name in names:
        if getattr(options, name):
            raise InputError(sentence.format(name.replace("_", "-")))


def add_output(parser: Parser, default: str) -> None:
    """Add the options for the output folder, JSON and progress."""
    parser.add("-o --output", "DIR", f"folder for records and figure (default: {default})")
    parser.flag("--json", "print the results as one JSON object")
    parser.flag("-q --quiet", "show no progress")


def add_experiment(parser: Parser, devices: str, checkpoints: str) -> None:
    """Add the options that `run` and `launch` have in common."""
    parser.add("spec", "SPEC", "a TOML file, or the name of a shipped spec such as figure1")
    add_output(parser, "runs/ and the spec's file name")
    parser.data_dir()
    parser.add("--device", None, f"{devices} (default: the spec's, else cpu)")
    parser.add("--target", "NORM", "also show the cost to reach this gradient norm", type=float)
    parser.flag("--force", "replace what an earlier run left in the output folder")
    parser.flag("--resume", "continue an interrupted run in the output folder")
    parser.add("--checkpoint-every", "K", f"rounds between checkpoints (default: {checkpoints})", type=int)
