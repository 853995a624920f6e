"""Help, versions and mistakes are answered without importing anything heavy; shells complete the command line."""

import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import forked, gossamer

from gossamer.cli.arguments import COMMANDS, WHAT, parser
from gossamer.cli.command import Command
from gossamer.cli.completion import script
from gossamer.cli.data_arguments import check, describe, fetch, list_
from gossamer.paper.figures import FIGURES

HEAVY = (
    *("torch", "numpy", "scipy", "matplotlib", "rich", "networkx", "pandas", "sklearn", "cvxpy", "constriction"),
    *("platformdirs", "safetensors", "optuna"),
)
DATA = ("list", "fetch", "check", "describe")


def test_answers_that_need_no_library_import_none() -> None:
    asked = [["--version"], ["--help"], [], ["rn"], ["run"], ["data"], ["data", "fech"], ["run", "--loud", "x"]]
    asked += [[command.name, "--help"] for command in COMMANDS]
    asked += [["data", name, "--help"] for name in DATA]
    asked += [["completion", shell] for shell in ("bash", "zsh", "fish")]
    script = f"""
import contextlib, io, json, sys
from gossamer.cli import main
found = {{}}
for asked in {asked!r}:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            code = main(asked)
        except SystemExit as stop:
            code = stop.code
    found[" ".join(asked)] = [code, [name for name in {HEAVY!r} if name in sys.modules]]
print(json.dumps(found))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {name: heavy for name, (_, heavy) in found.items() if heavy} == {}
    wrong = {"", "rn", "run", "data", "data fech", "run --loud x"}
    assert {name for name, (code, _) in found.items() if code != 0} == wrong


def test_the_module_itself_is_as_light() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "gossamer", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("gossamer ")
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "gossamer" in imported
    assert not imported & set(HEAVY)


def test_torch_finds_its_variables_set() -> None:
    """They are set by `import gossamer`, which imports torch only when something needs it."""
    code = (
        "import os, sys, gossamer\n"
        "assert 'torch' not in sys.modules\n"
        "assert os.environ['THP_MEM_ALLOC_ENABLE'] == '1' and os.environ['GOMP_SPINCOUNT'] == '1000'\n"
        "gossamer.BEER\n"
        "assert 'torch' in sys.modules\n"
    )
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(sys.modules["gossamer"].__path__[0]).parent)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rn"], "Unknown command 'rn'; valid commands: 'demo', 'run', "),
        (["rn"], "Did you mean 'run'?"),
        (["lanch", "my.toml"], "Did you mean 'launch'?"),
        (["data", "fech"], "Did you mean 'fetch'?"),
        (["reproduce", "figg1"], "Did you mean 'fig1'?"),
        (["completion", "tcsh"], "valid shells: 'bash', 'zsh', 'fish'."),
    ],
)
def test_a_misspelt_command_gets_a_guess(arguments: list[str], said: str, tmp_path: Path) -> None:
    done = forked(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_data_has_a_help_of_its_own(tmp_path: Path) -> None:
    own = "List, fetch and check data sets, and show how they are divided among clients"
    top = " ".join(forked("--help", cwd=tmp_path).stdout.split())
    assert f" data {own} " in top
    page = forked("data", "--help", cwd=tmp_path).stdout
    assert page.split("\n")[2] == f"{own}."
    assert "List the data sets, and the folders of their files" in page, "of the command `list`, in its place"


def every() -> Iterator[Command]:
    yield from COMMANDS
    yield from (list_, fetch, check, describe)


def test_every_command_is_there_and_has_examples(tmp_path: Path) -> None:
    for command in every():
        if command.call is not None:
            module, function = command.call.split(":")
            assert callable(getattr(importlib.import_module(module), function))
        for line in command.examples.splitlines():
            words = re.search(rf"gossamer (data )?{command.name}\b", line)
            assert words, line
    assert (*FIGURES, "rates", "all", "exactness", "theory") == WHAT


def bash(line: str, folder: Path) -> list[str]:
    """What bash offers at the end of a line."""
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    call = f"{script('bash')}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _shtab_gossamer\n"
    done = subprocess.run(
        ["bash", "-c", f'{call}printf "%s\\n" "${{COMPREPLY[@]}}"'],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return [word for word in done.stdout.split("\n") if word]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("gossamer r", ["run", "replay", "reproduce", "report"]),
        ("gossamer data ", ["list", "fetch", "check", "describe"]),
        ("gossamer data describe --al", ["--all-rows"]),
        ("gossamer run --d", ["--data-dir", "--device"]),
        ("gossamer run -q fig", ["figure1", "figure2", "figure3", "figure4", "figure4_tuned", "figure5"]),
        ("gossamer run my", ["my spec.toml"]),
        ("gossamer run -o my", ["my spec.toml"]),
        ("gossamer compress x.npy --dtype ", ["float32", "float64"]),
        ("gossamer run --target ", []),
        ("gossamer completion ", ["bash", "zsh", "fish"]),
        ("gossamer --v", ["--version"]),
    ],
)
def test_bash_completes(line: str, offered: list[str], tmp_path: Path) -> None:
    (tmp_path / "my spec.toml").touch()
    assert bash(line, tmp_path) == offered


FISH = {"gossamer r": "run", "gossamer data f": "fetch", "gossamer compress x --dtype float3": "float32"}


def test_zsh_and_fish_read_their_scripts(tmp_path: Path) -> None:
    """Where these shells are installed; the options are all there in any case."""
    for shell in ("zsh", "fish"):
        path = tmp_path / f"gossamer.{shell}"
        path.write_text(script(shell))
        if shutil.which(shell):
            subprocess.run([shell, "-n", str(path)], check=True)
    if shutil.which("fish"):
        for line, word in FISH.items():
            asked = f"source {tmp_path}/gossamer.fish; complete -C '{line}'"
            offered = subprocess.run(["fish", "-c", asked], capture_output=True, text=True, check=True).stdout
            assert word in [one.split("\t")[0] for one in offered.splitlines()]
    for flag in sorted(set(re.findall(r"--[a-z-]+", parser().format_help() + gossamer_help(tmp_path)))):
        assert flag in script("zsh")
        assert f"-l {flag[2:]} " in script("fish"), flag


def gossamer_help(folder: Path) -> str:
    """The usage lines of a few commands."""
    pages = [forked(*words, "--help", cwd=folder).stdout for words in (["run"], ["launch"], ["data", "describe"])]
    return "".join(page.split("\n\n")[0] for page in pages)


def test_completion_is_printed(tmp_path: Path) -> None:
    done = gossamer("completion", "bash", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == script("bash") + "\n"
