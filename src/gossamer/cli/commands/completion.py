"""Scripts that complete the command line in bash, zsh and fish, written from the parser itself: `gossamer completion`.

A script is static: completing runs no Python. It knows commands, options with their help, choices, and where a file is
expected.
"""

import argparse
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gossamer.cli.arguments import parser
from gossamer.cli.lines import results
from gossamer.paper import shipped_specs

_PATHS = ("DATA", "DIR", "FILE", "RUN", "SPEC")  # metavars of arguments that name a file or a folder


@dataclass(frozen=True)
class Argument:
    """An option, or a positional argument (without flags)."""

    flags: tuple[str, ...]
    about: str
    metavar: str | None
    """Of its value; None if it takes none."""
    choices: tuple[str, ...]

    @property
    def is_path(self) -> bool:
        """Whether the value names a file or a folder."""
        return self.metavar in _PATHS


@dataclass(frozen=True)
class Node:
    """A command with its arguments, and the commands below it."""

    words: tuple[str, ...]
    """What leads to it: ("data", "list")."""
    about: str
    arguments: tuple[Argument, ...]
    below: tuple["Node", ...]

    @property
    def options(self) -> list[Argument]:
        """Arguments with flags."""
        return [one for one in self.arguments if one.flags]

    @property
    def places(self) -> list[Argument]:
        """Positional arguments."""
        return [one for one in self.arguments if not one.flags]

    def walk(self) -> Iterator["Node"]:
        """This node and all below it."""
        yield self
        for node in self.below:
            yield from node.walk()


def completion(options: argparse.Namespace) -> int:
    """`gossamer completion`."""
    with results():
        print(script(options.shell), end="")
    return 0


def script(shell: str) -> str:
    """The script for a shell."""
    makers: dict[str, Callable[[Node], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    return makers[shell](_node(parser(), (), ""))


def _node(made: argparse.ArgumentParser, words: tuple[str, ...], about: str) -> Node:
    arguments, below = [], []
    for action in made._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {one.dest: one.help or "" for one in action._choices_actions}
            below += [_node(child, (*words, name), helps[name]) for name, child in action.choices.items()]
        elif action.help != argparse.SUPPRESS:
            metavar = None if action.nargs == 0 else str(action.metavar or action.dest.upper())
            choices = tuple(map(str, action.choices or (shipped_specs() if metavar == "SPEC" else ())))
            arguments.append(Argument(tuple(action.option_strings), action.help or "", metavar, choices))
    return Node(words, about, tuple(arguments), tuple(below))


# bash


def _bash(top: Node) -> str:
    nodes = list(top.walk())
    commands = "|".join(_quoted(" ".join(node.words)) for node in nodes[1:])
    values, words = [], []
    for node in nodes:
        name = " ".join(node.words)
        for one in node.options:
            if one.metavar is not None:
                cases = "|".join(_quoted(f"{name} {flag}") for flag in one.flags)
                values.append(f"        {cases}) _gossamer_reply {_files(one)} {_quoted(' '.join(one.choices))} ;;")
        given = [child.words[-1] for child in node.below] + [word for one in node.places for word in one.choices]
        flags = [flag for one in node.options for flag in one.flags]
        path = "files" if any(one.is_path for one in node.places) else "words"
        words.append(
            f"        {_quoted(name)}) if [[ $current == -* ]]; then _gossamer_reply words {_quoted(' '.join(flags))}; "
            f"else _gossamer_reply {path} {_quoted(' '.join(given))}; fi ;;"
        )
    return f"""# bash completion for gossamer
_gossamer_reply() {{
    COMPREPLY=($(compgen -W "$2" -- "$current"))
    if [[ $1 == files ]]; then
        local IFS=$'\\n'  # names may hold spaces
        compopt -o filenames 2> /dev/null
        COMPREPLY+=($(compgen -f -- "$current"))
    fi
}}
_gossamer() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD - 1]}}" command="" i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "${{command:+$command }}${{COMP_WORDS[i]}}" in
            {commands}) command="${{command:+$command }}${{COMP_WORDS[i]}}" ;;
        esac
    done
    COMPREPLY=()
    case "$command $previous" in
{_lines(values)}
        *) case "$command" in
{_lines(words)}
        esac ;;
    esac
}}
complete -F _gossamer gossamer
"""


def _files(one: Argument) -> str:
    return "files" if one.is_path else "words"


# zsh


def _zsh(top: Node) -> str:
    functions = [_zsh_function(node) for node in top.walk()]
    return f"""#compdef gossamer
{"".join(functions)}
if [[ $funcstack[1] == _gossamer ]]; then
    _gossamer "$@"
else
    compdef _gossamer gossamer
fi
"""


def _zsh_function(node: Node) -> str:
    name = "_".join(["_gossamer", *node.words])
    specs = [_zsh_option(one) for one in node.options]
    if not node.below:
        specs += [_quoted(f"*:{one.metavar}:{_zsh_value(one)}") for one in node.places]
        return f"{name}() {{\n    _arguments {' '.join(specs)}\n}}\n"
    listed = " ".join(_quoted(f"{child.words[-1]}:{_plain(child.about)}") for child in node.below)
    cases = _lines(f"                {child.words[-1]}) {name}_{child.words[-1]} ;;" for child in node.below)
    return f"""{name}() {{
    local context state state_descr line
    typeset -A opt_args
    _arguments -C {" ".join(specs)} '1:command:->command' '*::argument:->argument'
    case $state in
        command)
            local -a commands=({listed})
            _describe command commands ;;
        argument)
            case $line[1] in
{cases}
            esac ;;
    esac
}}
"""


def _zsh_option(one: Argument) -> str:
    value = "" if one.metavar is None else f":{_plain(one.metavar)}:{_zsh_value(one)}"
    text = f"[{_plain(one.about)}]{value}"
    if len(one.flags) == 1:
        return _quoted(one.flags[0] + text)
    return f"{_quoted('(' + ' '.join(one.flags) + ')')}{{{','.join(one.flags)}}}{_quoted(text)}"


def _zsh_value(one: Argument) -> str:
    words = f"({' '.join(one.choices)})" if one.choices else " "
    if not one.is_path:
        return words
    # The space keeps zsh from adding options to the call, which `_alternative` does not take.
    return "_files" if not one.choices else f' _alternative "words:word:{words}" "files:file:_files"'


# fish


def _fish(top: Node) -> str:
    lines = ["# fish completion for gossamer", "complete -c gossamer -f"]
    for node in top.walk():
        names = " ".join(child.words[-1] for child in node.below)
        seen = [f"__fish_seen_subcommand_from {word}" for word in node.words]
        here = "; and ".join([*seen, *([f"not __fish_seen_subcommand_from {names}"] if names else [])])
        start = f"complete -c gossamer -n {_quoted(here)}" if here else "complete -c gossamer"
        lines += [f"{start} -a {child.words[-1]} -d {_quoted(child.about)}" for child in node.below]
        for one in node.options:
            flags = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in one.flags)
            value = "" if one.metavar is None else " -r -F" if one.is_path else " -x"
            chosen = f" -a {_quoted(' '.join(one.choices))}" if one.choices else ""
            lines.append(f"{start} {flags}{value}{chosen} -d {_quoted(one.about)}")
        for one in node.places:
            if one.choices:
                lines.append(f"{start} -a {_quoted(' '.join(one.choices))}")
            if one.is_path:
                lines.append(f"{start} -F")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """In single quotes, which all three shells read alike when none is inside."""
    return "'" + text.replace("\\", "").replace("'", "’") + "'"


def _plain(text: str) -> str:
    """Without the signs that zsh gives a meaning in the description of an option."""
    return re.sub(r"[\[\]:]", " ", text)


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)
