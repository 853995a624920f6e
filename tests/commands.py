"""The real command line, in a process of its own."""

import os
import subprocess
import sys
import traceback
from io import StringIO
from pathlib import Path

from rich.table import Table

from gossamer.cli import main
from gossamer.cli.output import Output


def gossamer(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gossamer", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | env
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False)


def forked(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """As `gossamer`, but in a fork of this process: a real process that need not import torch again."""
    out, err = cwd.parent / "stdout", cwd.parent / "stderr"
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.chdir(cwd)
            os.environ.update(env)
            for path, stream in ((out, 1), (err, 2)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            code = main(arguments)
            sys.stdout.flush()
        except SystemExit as stop:  # --help ends so
            sys.stdout.flush()
            code = int(stop.code or 0)
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return subprocess.CompletedProcess(arguments, os.waitstatus_to_exitcode(status), out.read_text(), err.read_text())


def shown(table: Table, width: int) -> str:
    """A table on a terminal of so many columns; no line is longer, and nothing is cut."""
    console = Output(width=width, record=True, file=StringIO(), force_terminal=True)
    console.show(table)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    return text
