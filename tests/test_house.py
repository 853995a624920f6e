"""The rooms keep to themselves: imports point one way, and nothing speaks where it should not."""

import ast
import importlib
import operator
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rooms import graph, imported, picture

import gossamer as gs

SOURCE = Path(gs.__file__).parent
ROOT = Path(__file__).parents[1]
LEAVES = {"errors", "files", "fingerprint", "kernels", "registry", "resources", "streams", "spec", "_version"}
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
    "trackers": LEAVES | {"records"},
    "runtime": LEAVES | FOUR | {"records", "theory", "trackers"},
    "report": LEAVES | {"records", "theory"},
    "paper": LEAVES | FOUR | {"records", "runtime", "report", "theory"},
    "testing": LEAVES | FOUR | {"records", "runtime"},
    "cli": LEAVES | FOUR | {"paper", "records", "report", "runtime", "theory", "trackers"},
    "__main__": {"cli"},
    "__init__": LEAVES | FOUR | {"records", "runtime", "testing", "theory", "trackers"},
}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


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


def test_old_names_are_outside_of_the_surface_and_warn() -> None:
    for name in ("sign", "natural", "scaled", "decode", "complete", "auto", "Message", "Record", "Runs", "CodecError"):
        assert name not in gs.__all__
        with pytest.warns(DeprecationWarning, match=rf"gossamer\.{name} is now gossamer\."):
            assert getattr(gs, name) is not None


def test_rooms_are_small() -> None:
    folders = {path.parent for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    for folder in folders - {SOURCE / "algorithms"}:
        files = [path for path in folder.iterdir() if path.is_file()]
        assert len(files) <= 12, f"{folder.relative_to(SOURCE)} has {len(files)} files"


def test_no_two_files_of_one_name() -> None:
    """But for a contract (base.py), and a command beside what it is about."""
    names: dict[str, list[str]] = {}
    for path in modules():
        room = path.relative_to(SOURCE).parts[0]
        if path.name not in ("__init__.py", "base.py") and room != "cli":
            names.setdefault(path.name, []).append(str(path.relative_to(SOURCE)))
    assert {name: places for name, places in names.items() if len(places) > 1} == {}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_functions_are_short(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
            assert node.end_lineno is not None
            lines = node.end_lineno - first.lineno + 1
            assert lines <= 60, f"{node.name} has {lines} lines"


def test_few_dictionaries_of_anything() -> None:
    assert sum(path.read_text().count("dict[str, Any]") for path in modules()) <= 30


def test_the_picture_of_the_rooms_is_up_to_date() -> None:
    """`GOSSAMER_WRITE=1 pytest tests/test_house.py -k picture` makes it again."""
    drawn, kept = picture(graph(SOURCE, LEAVES)), ROOT / "docs" / "images" / "rooms.svg"
    if os.environ.get("GOSSAMER_WRITE"):
        kept.write_text(drawn)
    assert kept.read_text() == drawn


def test_the_way_of_a_message_exists() -> None:
    """Every hop that the architecture names is a function of that file, and none is named twice on one way."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text[text.index("## The way of a message") : text.index("Where to find things")]
    ways: list[list[tuple[str, str]]] = [[], []]
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[0].isdigit():
            process = cells[1] if cells[2] == "the same" else cells[2]
            for way, cell in zip(ways, (cells[1], process), strict=True):
                way.extend(re.findall(r"`(\S+\.py)` `([\w.]+)`", cell)[:1])
    assert [len(way) for way in ways] == [8, 12]
    for way in ways:
        assert len(set(way)) == len(way)
        for file, function in way:
            module = importlib.import_module("gossamer." + file.removesuffix(".py").replace("/", "."))
            assert operator.attrgetter(function)(module)


def test_importing_needs_no_heavy_library() -> None:
    heavy = ["torch", "numpy", "scipy", "pandas", "matplotlib", "sklearn", "cvxpy", "rich", "platformdirs"]
    script = f"import sys, gossamer; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
