"""The rooms keep to themselves: imports point one way, and nothing speaks where it should not."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gossamer as gs

SOURCE = Path(gs.__file__).parent
LEAVES = {"errors", "files", "fingerprint", "kernels", "registry", "streams", "spec", "_version"}
FOUR = {"algorithms", "compression", "problems", "topology"}
# What each room may import, besides itself; leaves see leaves alone.
MAY = {
    **dict.fromkeys(LEAVES, LEAVES),
    "compression": LEAVES,
    "problems": LEAVES,
    "topology": LEAVES,
    "theory": LEAVES,
    "algorithms": LEAVES | {"compression"},
    "records": LEAVES | FOUR,
    "runtime": LEAVES | FOUR | {"records", "theory"},
    "report": LEAVES | {"records", "theory"},
    "paper": LEAVES | FOUR | {"records", "runtime", "report", "theory"},
    "testing": LEAVES | FOUR | {"records", "runtime"},
    "cli": LEAVES | FOUR | {"paper", "records", "report", "runtime", "theory"},
    "__main__": {"cli"},
    "__init__": LEAVES | FOUR | {"records", "runtime", "testing", "theory"},
}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Top-level rooms of the package that a file imports, wherever in it the import stands."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "gossamer" else [f"gossamer.{alias.name}" for alias in node.names]
            assert node.level == 0, f"{path}: imports are absolute"
        rooms |= {name.split(".")[1] for name in names if name.startswith("gossamer.")}
    return rooms


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path) -> None:
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    forbidden = imported(path) - MAY[room] - {room}
    assert not forbidden, f"{path.relative_to(SOURCE)} may not import {forbidden}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_stay_small_and_the_library_prints_nothing(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 400, "a file that passes 400 lines becomes a folder"
    if path.relative_to(SOURCE).parts[0] != "cli":
        calls = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        assert not [call for call in calls if isinstance(call, ast.Name) and call.id == "print"]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_one_file_knows_torch_distributed(path: Path) -> None:
    named = re.search(r"^\s*(import|from) torch\.distributed", path.read_text(), re.MULTILINE)
    assert (named is not None) == (path.relative_to(SOURCE).as_posix() == "runtime/processes/ranks.py")


def test_the_surface_is_explicit_and_small() -> None:
    assert len(gs.__all__) <= 40
    for name in gs.__all__:
        assert getattr(gs, name) is not None


def test_importing_needs_no_heavy_library() -> None:
    heavy = ["torch", "numpy", "scipy", "pandas", "matplotlib", "sklearn", "cvxpy", "rich", "platformdirs"]
    script = f"import sys, gossamer; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
