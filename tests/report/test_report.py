"""Tables, summaries and figures from records."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from commands import shown
from matplotlib.figure import Figure

from gossamer.records.record import Record
from gossamer.records.schema import End, Header, Row
from gossamer.report import convergence_figure, result_table, summarize
from gossamer.report.figure import label_few_decades
from gossamer.report.page.curves import plain
from gossamer.report.table import human


def record(label: str, seed: int, norms: Sequence[float | None], diverged: str | None = None) -> Record:
    rows = [
        Row(round=t, packets=t, bits=100.0 * t, bits_total=0, bits_nominal=0, seconds=0.1 * t)
        if norm is None
        else Row(round=t, packets=t, bits=100.0 * t, seconds=0.1 * t, loss=1.0, grad_norm=norm, consensus=0.0)
        for t, norm in enumerate(norms)
    ]
    end = End("diverged", 1, diverged) if diverged else End("finished", len(norms))
    return Record(Header(gossamer="0", label=label, seed=seed), rows, end)


RECORDS = [
    record("A", 0, [1.0] * 15 + [0.2] * 5),
    record("A", 1, [1.0] * 15 + [0.4] * 5),
    record("A", 2, [1.0, 1e30], "A with seed 2 diverged."),
    record("B", 0, [1.0, 1e30], "B with seed 0 diverged."),
]


def test_summary_leaves_out_what_diverged_and_says_so() -> None:
    a, b = summarize(RECORDS)
    assert a.seeds == [0, 1]
    assert a.numbers["grad_norm"] == pytest.approx(0.3)
    assert a.as_dict()["grad_norm_by_seed"] == {"0": pytest.approx(0.2), "1": pytest.approx(0.4)}
    assert a.diverged == {"2": "A with seed 2 diverged."}
    assert (a.numbers["round"], a.numbers["bits"]) == (19, 1900)
    assert a.numbers["accuracy"] is None
    assert b.numbers["grad_norm"] is None
    assert b.seeds == []


@pytest.mark.parametrize("width", [75, 80, 140])
def test_table_is_shown_whole(width: int) -> None:
    text = shown(result_table(summarize(RECORDS), "title"), width)
    assert "(1 of 3" in text
    assert all(heading in text for heading in ("rounds", "sent per link", "gradient norm", "worst client", "seconds"))
    assert text.count("title") == 1
    assert text.count("method") == (1 if width == 140 else 2)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), 10**400, -(10**400)])
def test_numbers_that_a_page_cannot_show(value: float | None) -> None:
    assert plain(value) is None
    assert plain(2**70) == pytest.approx(2**70, rel=1e-4)


@pytest.mark.parametrize(("low", "high", "is_plain"), [(0.15, 3.0, True), (1e-7, 1.0, False), (1e-5, 1e-4, False)])
def test_few_decades_near_one_are_labelled_plainly(low: float, high: float, is_plain: bool) -> None:
    figure = Figure()
    panel = figure.subplots()
    panel.set(yscale="log", ylim=(low, high))
    label_few_decades(panel.yaxis)
    figure.draw_without_rendering()
    labels = {label.get_text() for which in ("major", "minor") for label in panel.get_yticklabels(which=which)}
    assert ({"0.2", "1", "2"} <= labels) == is_plain
    assert any("10^" in label for label in labels) != is_plain


@pytest.mark.parametrize(("bits", "said"), [(0, "0 bit"), (999, "999 bit"), (1.5e6, "1.5 Mbit"), (2e16, "2e+04 Tbit")])
def test_human(bits: float, said: str) -> None:
    assert human(bits) == said


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_figure(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"f.{suffix}"
    convergence_figure(RECORDS, path, "title with $ and _")
    assert path.stat().st_size > 3000
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_figure_of_many_methods_and_of_none(tmp_path: Path) -> None:
    convergence_figure([record(f"method {i}", 0, [1.0, 0.1, None]) for i in range(9)], tmp_path / "many.png")
    convergence_figure([], tmp_path / "none.png")
    assert len(list(tmp_path.iterdir())) == 2


def test_a_figure_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not supported"):
        convergence_figure(RECORDS, tmp_path / "f.nonsense")
    assert list(tmp_path.iterdir()) == []
