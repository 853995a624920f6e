"""Spec files are refused before they are parsed if parsing them could take all memory."""

import json
import tomllib
from pathlib import Path

import pytest

import gossamer as gs
from gossamer.report.gather import gather
from gossamer.spec import load_spec

HOSTILE = {
    "a dotted key": "a." * 100_000 + "a = 1",
    "a table": "[" + "a." * 100_000 + "a]",
    "an array of tables": "[[" + "a." * 100_000 + "a]]",
    "quoted parts": '"\\"".' * 40_000 + "a = 1",
    "literal parts": "'x'." * 40_000 + "a = 1",
    "spaces around dots": "a \t. " * 40_000 + "a = 1",
    "inside an inline table": "x = {" + "a." * 100_000 + "a = 1}",
    "after a comment with a quote": "# don't\n" + "a." * 100_000 + "a = 1",
    "a large file": "x = 1\n" * 100_000,
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused_before_they_are_parsed(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tomllib, "loads", lambda text: pytest.fail("the file was parsed"))
    path = tmp_path / "spec.toml"
    path.write_text(HOSTILE[case])
    with pytest.raises(gs.InputError, match=r"has a key of more than 16 parts in line|is larger than 262,144 bytes"):
        load_spec(path)
    header = {"gossamer": gs.__version__, "label": "a", "seed": 0}
    rows = [{"round": t, "bits": 8 * t, "loss": 1.0, "grad_norm": 1.0} for t in range(3)]
    (tmp_path / "a-seed0.jsonl").write_text("\n".join(map(json.dumps, [header, *rows])) + "\n")
    (reason,) = gather(tmp_path).left_out
    assert reason.startswith(f"The spec '{path}' ")


@pytest.mark.parametrize("text", ["x = " + "[" * 100_000, "x = " + "{a = " * 40_000])
def test_deep_values_are_one_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(text)
    with pytest.raises(gs.InputError, match=r"^The spec '.*' is nested too deeply.$"):
        load_spec(path)


def test_ordinary_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    row = "[" + ", ".join(["0.25"] * 60) + "],\n"
    path.write_text(
        'rounds = 5\nproblem.objective = "quadratic"\n[graph]\nname = "ring"\n'
        f'weights = [\n{row * 60}]\n[[methods]]\nname = "dsgd"\nlr = 0.1\nlabel = "1.2.3.4, www.example.org"\n'
    )
    assert len(load_spec(path).graph["weights"]) == 60
