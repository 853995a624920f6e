"""Runs side by side: what each needs to reach a target."""

import json
import math
from io import StringIO
from pathlib import Path

import pytest
from commands import forked, shown
from records import diverged, lines, write
from rich.table import Table

from gossamer.cli.output import Output
from gossamer.errors import InputError
from gossamer.report.compare import Cell, MethodCosts, compare_runs, comparison_table


def cell(method: MethodCosts, name: str) -> Cell:
    found = method.costs[name]
    assert found is not None
    return found


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two folders: in the first, A falls twice as fast as B and C diverges; in the second is another A."""
    for seed in (0, 1):
        write(tmp_path / "one" / f"a{seed}.jsonl", lines("A", seed, 0.2))
        write(tmp_path / "one" / f"b{seed}.jsonl", lines("B", seed, 0.1))
    write(tmp_path / "one" / "c.jsonl", diverged("C", 0, "C with seed 0 diverged."))
    write(tmp_path / "two" / "a.jsonl", lines("A", 0, 0.05))
    return tmp_path


def test_until_a_target(runs: Path) -> None:
    found = compare_runs([runs / "one"], target=0.5)
    a, b, c = found.methods
    first = [math.ceil(math.log(2 * wobble) / 0.2) * 10 for wobble in (1, 1.1)]
    assert a.costs["rounds"] == Cell(sum(first) / 2, first[0], first[1], 1)
    assert cell(a, "bits").mean == 1000 * cell(a, "rounds").mean
    assert cell(b, "rounds").ratio == pytest.approx(cell(b, "rounds").mean / cell(a, "rounds").mean)
    assert (a.reached, a.seeds, found.chosen, found.target) == (2, [0, 1], False, 0.5)
    assert cell(a, "final").ratio == 1 < (cell(b, "final").ratio or 0)
    assert c.costs["rounds"] is c.costs["final"] is None
    assert c.diverged == {"0": "C with seed 0 diverged."}


def test_the_target_that_every_method_reaches(runs: Path) -> None:
    found = compare_runs([runs])
    assert found.chosen
    assert found.target == pytest.approx(math.exp(-0.05 * 39))
    assert [method.method for method in found.methods] == ["one/A", "B", "C", "two/A"]
    assert [method.costs["rounds"] is None for method in found.methods] == [False, False, True, False]
    assert cell(found.methods[3], "rounds").mean == 390


def test_higher_is_better_for_accuracies(runs: Path) -> None:
    found = compare_runs([runs / "one"], "accuracy", 0.85)
    assert found.higher
    assert cell(found.methods[0], "rounds").mean == math.ceil(math.log(8) / 0.2) * 10
    assert cell(found.methods[0], "final").ratio == 1 > (cell(found.methods[1], "final").ratio or 2)
    assert compare_runs([runs / "one"], "accuracy").target == pytest.approx(0.9 - 0.4 * math.exp(-3.9))


def test_never_reached_and_reached_by_some(runs: Path) -> None:
    (found,) = compare_runs([runs / "two"], target=1e-30).methods
    assert (found.costs["rounds"], found.reached) == (None, 0)
    some = 1.05 * math.exp(-0.1 * 39)
    _, b, _ = compare_runs([runs / "one"], target=some).methods
    assert (b.costs["rounds"], b.reached) == (None, 1)


def test_a_record_counts_once_and_folders_are_told_apart(runs: Path) -> None:
    again = [runs / "one", runs / "one" / "a0.jsonl", runs / "one" / ".." / "one"]
    assert compare_runs(again).methods == compare_runs([runs / "one"]).methods
    write(runs / "deep" / "two" / "a.jsonl", lines("A", 0, 0.3))
    names = [method.method for method in compare_runs([runs / "two", runs / "deep" / "two"]).methods]
    assert names == [f"{runs.name}/two/A", "deep/two/A"]


def test_what_cannot_be_compared(runs: Path) -> None:
    (runs / "bad.jsonl").write_text("hello\n")
    found = compare_runs([runs / "bad.jsonl", runs / "one", runs / "nowhere"])
    assert len(found.notes) == 2
    assert len(found.methods) == 3
    with pytest.raises(InputError, match="nothing to compare"):
        compare_runs([runs / "bad.jsonl"])
    with pytest.raises(InputError, match="`metric` must be one of"):
        compare_runs([runs / "one"], "speed")
    with pytest.raises(InputError, match="No record has a `test_loss`; there is grad_norm, loss, accuracy, consensus"):
        compare_runs([runs / "one"], "test_loss")
    write(runs / "other" / "d.jsonl", lines("D", problem={"problem": "Quadratic", "clients": 5, "d": 3}))
    assert "differ in `problem`, `d`;" in compare_runs([runs / "one", runs / "other"]).notes[0]


def test_all_diverged(tmp_path: Path) -> None:
    found = compare_runs([write(tmp_path / "c.jsonl", diverged("C", 0, "C diverged."))])
    assert found.target is None
    assert found.methods[0].costs["rounds"] is None


@pytest.mark.parametrize("width", [60, 80, 140])
def test_table_is_shown_whole(runs: Path, width: int) -> None:
    text = shown(comparison_table(compare_runs([runs], target=0.5)), width)
    write(runs / "two" / "b.jsonl", lines("B" * 100, 0, 0.05))
    assert "sent per link" in shown(comparison_table(compare_runs([runs], target=0.5)), width), "a name is broken alone"
    assert all(part in text for part in ("one/A", "x1", "C (diverged)", "sent per link", "final gradient norm"))


def test_command(runs: Path) -> None:
    (runs / "one" / "bad.jsonl").write_text("hello\n")
    done = forked("compare", "one", "two", "--target", "0.5", cwd=runs)
    assert done.returncode == 0
    assert "Until the gradient norm is first at or below 0.5:" in done.stdout
    assert done.stderr.splitlines()[0].startswith("gossamer: 'one/bad.jsonl' is not a record")
    told = json.loads(forked("compare", "one", "--json", "--metric", "loss", cwd=runs).stdout)
    assert (told["metric"], told["better"], told["target_chosen"]) == ("loss", "lower", True)
    assert "the best that every method reaches" in forked("compare", "one", cwd=runs).stdout
    for wrong in (["nowhere"], ["one/bad.jsonl"], ["one", "--metric", "x"], ["one", "--target", "nan"], []):
        done = forked("compare", *wrong, cwd=runs)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_one_label_and_seed_counts_once(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, lines("A", 0, rate)) for name, rate in (("a.jsonl", 0.2), ("b.jsonl", 0.1))]
    found = compare_runs(paths, target=0.5)
    assert [method.seeds for method in found.methods] == [[0]]
    assert found.notes == [f"The record '{paths[1]}' is left out: it has the label and the seed of '{paths[0]}'."]
    write(paths[0], lines("A", 0, 0.2)[:-1])
    found = compare_runs([*paths, tmp_path], target=0.5)
    assert f"The record '{paths[0]}' is left out: it has the label and the seed of '{paths[1]}'." in found.notes
    assert not any("did not finish" in note for note in found.notes), "the whole one counts"


@pytest.mark.parametrize(("finals", "ratios"), [((1e-300, 1e100), [1, None]), ((-2.0, 1.0), [None, None])])
def test_a_ratio_that_says_nothing_is_none(
    tmp_path: Path, finals: tuple[float, float], ratios: list[float | None]
) -> None:
    for label, final in zip("AB", finals, strict=True):
        content = lines(label)
        for row in content[1:-1]:
            row["loss"] = final
        write(tmp_path / f"{label}.jsonl", content)
    found = compare_runs([tmp_path], metric="loss")
    assert [cell(method, "final").ratio for method in found.methods] == ratios
    json.dumps(found.as_dict(), allow_nan=False)


def test_what_was_cut_off_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines("A")[:-1])
    assert compare_runs([path]).notes == [f"'{path}' did not finish: what it had reached is shown."]


def test_a_label_cannot_steer_the_terminal(tmp_path: Path) -> None:
    write(tmp_path / "runs" / "a.jsonl", diverged("A\x1b[2J\u202e", 0, "B \x1b]0;title\x07 diverged."))
    done = forked("compare", "runs", cwd=tmp_path)
    assert done.returncode == 0
    assert not {"\x1b", "\u202e", "\x07"} & set(done.stdout + done.stderr)
    hostile = Table("a\x1b[2J", "b", title="c\x1b[2J")
    hostile.add_row("\u3000é", "2")
    text = shown(hostile, 80)
    assert "\x1b" not in text
    assert "\u3000é" in text, "other spaces are seen"
    Output(width=0, file=StringIO(), force_terminal=True).show(hostile)  # no reason to fail
