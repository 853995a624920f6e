"""Scripts that complete the command line in bash, zsh and fish, written by shtab: `gossamer completion`."""

import argparse

import shtab

from gossamer.cli.arguments import parser
from gossamer.cli.lines import show
from gossamer.paper import shipped_specs

_PATHS = ("DATA", "DIR", "FILE", "RUN")
"""Metavars of arguments that name a file or a folder."""


def completion(options: argparse.Namespace) -> int:
    """`gossamer completion`."""
    show(script(options.shell))
    return 0


def script(shell: str) -> str:
    """The completion script for a shell. Completing runs no Python."""
    command = parser()
    _mark_paths(command)
    return shtab.complete(command, shell)


def _mark_paths(command: argparse.ArgumentParser) -> None:
    """Tell shtab which arguments of a command and its subcommands name files or specs."""
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subcommand in action.choices.values():
                _mark_paths(subcommand)
        elif action.metavar == "SPEC":
            action.complete = _spec_or_file()  # type: ignore[attr-defined]
        elif action.metavar in _PATHS:
            action.complete = shtab.FILE  # type: ignore[attr-defined]


def _spec_or_file() -> dict[str, str | dict[str, str]]:
    """Completion of a shipped spec or a file, per shell; `_file` in its name makes bash quote file names."""
    names = " ".join(shipped_specs())
    return {
        "bash": "_gossamer_spec_or_file",
        "zsh": "_gossamer_spec_or_file",
        "fish": f"{names} (__fish_complete_path (commandline -ct))",
        "preamble": {
            "bash": f'_gossamer_spec_or_file() {{\n  compgen -W "{names}" -- "$1"\n  compgen -f -- "$1"\n}}',
            "zsh": f"_gossamer_spec_or_file() {{\n  _alternative 'specs:spec:({names})' 'files:file:_files'\n}}",
        },
    }
