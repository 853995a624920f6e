"""`gossamer reproduce`: jobs that are run once, pictures, and verdicts."""

import json
import math
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import forked, gossamer
from records import lines, write

import gossamer as gs
from gossamer.compression.layout import Layout
from gossamer.errors import InputError, StoppedError
from gossamer.files import alone_in
from gossamer.paper import figures
from gossamer.paper.claims import claims
from gossamer.paper.figures import FIGURES, GRAPHS, Job, jobs, rehearsal, shortened
from gossamer.paper.published import as_published, smallest_k
from gossamer.paper.rates.studies import studies
from gossamer.paper.reproduction import BOTH_WAYS, Plan, conclude, run_study
from gossamer.records.record import read_record
from gossamer.runtime.experiment import prepare
from gossamer.streams import Streams


def quick(figure: str = "fig1", seeds: tuple[int, ...] = (0,)) -> Job:
    return rehearsal(jobs(figure, seeds)[0])


# Jobs


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("published", [False, True])
def test_every_job_can_be_prepared(figure: str, published: bool) -> None:
    made = jobs(figure, [0], published=published)
    assert len({job.folder for job in made}) == len(made)
    assert all(job.name.endswith("-published") == published for job in made)
    for job in made:
        assert list(prepare(rehearsal(job).spec).methods) == list(job.labels)


def test_a_fingerprint_is_of_the_content() -> None:
    (job,) = jobs("fig1", [0])
    same = [Job(job.name, replace(job.spec, seeds=[0, 1])), Job(job.name, replace(job.spec, text="# words"))]
    assert {one.folder for one in same} == {job.folder}
    other = [
        shortened(job, 100),
        rehearsal(job),
        Job(job.name, as_published(job.spec)),
        Job(job.name, replace(job.spec, batch_size=99)),
        Job(job.name, replace(job.spec, methods=job.spec.methods[:3])),
    ]
    assert len({one.folder for one in [job, *other]}) == 6


def test_figure_3_is_on_five_graphs() -> None:
    assert [next(iter(job.labels)) for job in jobs("fig3", [0])] == list(GRAPHS)


def test_as_published() -> None:
    one = as_published(jobs("fig1", [0])[0].spec)
    assert one.problem["feature_scale"] == "published"
    assert one.x0 == "uniform"
    by_name = {table["name"]: table for table in one.methods}
    assert by_name["beer"]["compressor"] == "qsgd:16"
    assert by_name["d2"]["mix_first"] is False
    five = as_published(jobs("fig5", [0])[0].spec)
    assert five.methods[0]["tracker"] == "reevaluated"
    assert five.methods[0]["compressor"] == "gsgd:5"


def test_the_published_top_k_keeps_the_smallest() -> None:
    x = torch.tensor([[3.0, -4.0, 0.5, -1.0], [1.0, 2.0, 3.0, 4.0]])
    assert smallest_k(2)(x).dense().tolist() == [[0, -4, 0, -1], [1, 2, 0, 0]]
    own, draw = torch.zeros(x.shape, dtype=torch.float64), Streams([0], [0, 1]).at(0, "h")
    message, moved = smallest_k(2).follow(x, own, draw, Layout.whole(x.shape[1]), x.dtype)
    assert torch.equal(message.dense(), smallest_k(2)(x).dense()), "also in a run"
    assert torch.equal(moved, message.dense().double())
    assert gs.top_k(2)(x).dense().tolist() == [[3, -4, 0, 0], [0, 0, 3, 4]]


def test_shortened() -> None:
    job = shortened(jobs("fig1", [0])[0], 500)
    assert set(job.labels.values()) == {500}
    assert shortened(jobs("fig1", [0])[0], 10**6).labels == jobs("fig1", [0])[0].labels


# Running


def test_what_is_there_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = figures.run(quick(), tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.jsonl")}
    more = figures.run(quick(seeds=(0, 1)), tmp_path)
    assert len(more) == 2 * len(first)
    assert all(path.read_bytes() == content for path, content in files.items()), "seed 0 was left alone"
    assert figures.is_done(quick(seeds=(0, 1)), tmp_path)
    assert not figures.is_done(quick(seeds=(0, 2)), tmp_path)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("run again")

    monkeypatch.setattr(figures, "prepare", refuse)
    again = figures.run(quick(seeds=(0, 1)), tmp_path)
    assert [one.rows for one in again] == [one.rows for one in more]


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    calls = iter(range(10**6))
    with pytest.raises(StoppedError):
        figures.run(quick(), tmp_path / "stopped", should_stop=lambda: next(calls) > 25)
    assert not figures.is_done(quick(), tmp_path / "stopped")
    heard: list[tuple[str, int]] = []
    went_on = figures.run(quick(), tmp_path / "stopped", progress=lambda label, t: heard.append((label, t)))
    whole = figures.run(quick(), tmp_path / "whole")
    for one, other in zip(went_on, whole, strict=True):
        assert [row["grad_norm"] for row in one.rows] == [row["grad_norm"] for row in other.rows]
    assert heard[0][1] >= 25, "what was done was not done again"


@pytest.fixture(scope="module")
def figure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A figure, run in short."""
    folder = tmp_path_factory.mktemp("figure")
    figures.run(quick(), folder)
    return folder


@pytest.mark.parametrize("content", [b"", b"nonsense\n", b'{"gossamer": "0"}\n{"round": 0}\n'])
def test_a_damaged_record_is_run_again(figure: Path, tmp_path: Path, content: bytes) -> None:
    shutil.copytree(figure, tmp_path, dirs_exist_ok=True)
    whole = figures.run(quick(), tmp_path)
    path = next(tmp_path.rglob("BEER-seed0.jsonl"))
    path.write_bytes(content)
    mended = figures.run(quick(), tmp_path)
    assert [one.rows[-1]["grad_norm"] for one in mended] == [one.rows[-1]["grad_norm"] for one in whole]
    assert read_record(path).end is not None


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    "damage",
    [
        lambda told: [*told[:2], told[-1]],  # cut short, with an end
        lambda told: [told[0] | {"label": "DSGD"}, *told[1:]],
        lambda told: [told[0] | {"seed": 7}, *told[1:]],
        lambda told: [told[0] | {"method": "BEER"}, *told[1:]],
        lambda told: [told[0] | {"mixing": None}, *told[1:]],
        lambda told: [*told[:-2], told[-2] | {"bits": None}, told[-1]],
        lambda told: [*told[:-2], told[-2] | {"grad_norm": "x"}, told[-1]],
        lambda told: [*told[:-1], {"end": {}}][:-1],
    ],
)
def test_a_record_of_something_else_is_run_again(figure: Path, tmp_path: Path, damage: Any) -> None:
    shutil.copytree(figure, tmp_path, dirs_exist_ok=True)
    whole = figures.run(quick(), tmp_path)
    path = next(tmp_path.rglob("BEER-seed0.jsonl"))
    path.write_text("".join(json.dumps(line) + "\n" for line in damage(lines_of(path))))
    assert not figures.is_done(quick(), tmp_path)
    mended = figures.run(quick(), tmp_path)
    assert [one.rows[-1]["grad_norm"] for one in mended] == [one.rows[-1]["grad_norm"] for one in whole]
    conclude(Plan(["fig1"], tmp_path, [0], quick=True), "")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    plan = Plan(["rates"], tmp_path, [0], quick=True)
    study = next(one for one in studies(quick=True) if one.name == "linear")
    run_study(study, plan)
    (kept,) = (tmp_path / "rates").iterdir()
    kept.unlink()
    os.mkfifo(kept)
    assert run_study(study, plan)


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fits of a study, run in short."""
    folder = tmp_path_factory.mktemp("fits")
    run_study(
        next(one for one in studies(quick=True) if one.name == "linear"), Plan(["rates"], folder, [0], quick=True)
    )
    return folder


@pytest.mark.parametrize(
    "change",
    [
        {"slope": "x"},
        {"slope": None},
        {"theory": "3"},
        {"slope": 10**400},
        {"points": 3},
        {"method": 4},
        {"more": 1},
        {"points": [[1.0, math.nan]]},
        {"is_bound": "x"},
        {"is_exponential": math.inf},
        {"what": ["u"]},
        {"what": None},
        None,  # one of them twice
    ],
)
def test_damaged_fits_are_found_again(fits: Path, tmp_path: Path, change: dict[str, Any] | None) -> None:
    shutil.copytree(fits, tmp_path, dirs_exist_ok=True)
    plan = Plan(["rates"], tmp_path, [0], quick=True)
    study = next(one for one in studies(quick=True) if one.name == "linear")
    whole = run_study(study, plan)
    (kept,) = (tmp_path / "rates").iterdir()
    rows = json.loads(kept.read_text())
    kept.write_text(json.dumps([*rows, rows[0]] if change is None else [rows[0] | change, *rows[1:]]))
    assert run_study(study, plan) == whole


def test_places_are_checked_before_anything_runs(tmp_path: Path) -> None:
    def refused(path: Path, **how: Any) -> str:
        with pytest.raises(InputError) as error:
            Plan(["fig1"], path, **how).check_place()
        return str(error.value)

    (tmp_path / "file").write_text("")
    assert "cannot be made" in refused(tmp_path / "file")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "report.html").write_text("my own page")
    assert "not a report of Gossamer" in refused(mine)
    (mine / "report.html").unlink()
    (mine / "report.html").mkdir()
    assert "is a folder; give another folder with -o, or remove it." in refused(mine)
    (mine / "report.html").rmdir()
    for name, said in {"report.html": "a device or a pipe", "claims.json": "was not written by Gossamer"}.items():
        os.mkfifo(mine / name)
        assert said in refused(mine)
        (mine / name).unlink()
    (mine / "claims.json").write_text("[]")
    assert "was not written by Gossamer" in refused(mine)
    (mine / "claims.json").write_text('{"shortened": true, "claims": [1]}')
    assert "give runs in full another folder" in refused(mine)
    Plan(["fig1"], mine, quick=True).check_place()
    (mine / "claims.json").write_text('{"shortened": false, "claims": [1]}')
    assert "give shortened runs another folder" in refused(mine, rounds=50)
    Plan(["fig1"], tmp_path / "stopped", rounds=50).check_place()
    Plan(["fig1"], tmp_path / "stopped").check_place()  # nothing had begun
    write(tmp_path / "stopped" / "figure1-abc" / "a.jsonl", lines("A"))
    assert "give shortened runs another folder" in refused(tmp_path / "stopped", rounds=50), "before there is a verdict"


def test_a_folder_is_for_one_process_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with alone_in(tmp_path / "out"):
        done = forked("reproduce", "fig1", "--quick", "-o", "out", cwd=tmp_path)
        assert done.returncode == 2
        assert f"'out' is in use by process {os.getpid()} on " in done.stderr
        assert forked("reproduce", "theory", "--quick", "-o", "out", cwd=tmp_path).returncode == 2
    assert not list((tmp_path / "out").glob("figure1-*"))


def test_a_pipe_in_the_place_of_a_spec(tmp_path: Path) -> None:
    place = tmp_path / quick().folder
    place.mkdir()
    os.mkfifo(place / "spec.toml")
    with pytest.raises(InputError, match="is no file; remove it"):
        figures.run(quick(), tmp_path)


def test_studies_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(["rates"], tmp_path, [0], quick=True)
    study = next(one for one in studies(quick=True) if one.name == "linear")
    fits = run_study(study, plan)
    monkeypatch.setattr(type(study), "run", lambda *_: pytest.fail("run again"))
    assert run_study(study, plan) == fits
    (kept,) = (tmp_path / "rates").iterdir()
    kept.write_text("[{}]")
    with pytest.raises(pytest.fail.Exception, match="run again"):
        run_study(study, plan)


@pytest.mark.slow
def test_conclusions_count_what_earlier_calls_left(tmp_path: Path) -> None:
    for figure in ("fig1", "fig3"):
        for job in jobs(figure, [0]):
            figures.run(rehearsal(job), tmp_path)
    done = conclude(Plan(["fig3"], tmp_path, [0], quick=True), "gossamer reproduce fig3 --quick")
    ids = {one.claim.id for one in done.judged}
    assert {"fig1-beer", "fig3-similar"} <= ids
    assert {path.name for path in done.pictures} == {"figure1.png", "figure1.pdf", "figure3.png", "figure3.pdf"}
    for path in done.pictures:
        assert path.read_bytes()[:4] in (b"\x89PNG", b"%PDF")
    told = json.loads((tmp_path / "claims.json").read_text())
    assert told["shortened"]
    assert told["command"] == "gossamer reproduce fig3 --quick"
    assert {row["id"] for row in told["claims"]} == ids
    assert len((tmp_path / "claims.csv").read_text().splitlines()) > len(ids)
    for job in jobs("fig3", [0]):
        shutil.rmtree(tmp_path / rehearsal(job).folder)
    (tmp_path / "rates.json").write_text('{"mine": 1}')
    conclude(Plan(["fig1"], tmp_path, [0], quick=True), "gossamer reproduce fig1 --quick")
    assert (tmp_path / "rates.json").exists(), "what is not ours stays"
    (tmp_path / "rates.json").write_text('{"fits": []}')
    conclude(Plan(["fig1"], tmp_path, [0], quick=True), "gossamer reproduce fig1 --quick")
    assert not (tmp_path / "rates.json").exists(), "nothing is shown of runs that are gone"
    os.mkfifo(tmp_path / "rates.json")
    conclude(Plan(["fig1"], tmp_path, [0], quick=True), "gossamer reproduce fig1 --quick")  # and a pipe is left alone


# The command


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    done = gossamer("reproduce", "fig4", "--quick", "-o", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Runs were shortened" in done.stdout
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
    again = gossamer("reproduce", "fig4", "--quick", "-o", "out", "--json", "-q", cwd=tmp_path)
    told = json.loads(again.stdout)
    assert {row["verdict"] for row in told["claims"]} == {"inconclusive"}
    assert again.stderr == ""
    shutil.rmtree(next((tmp_path / "out").glob("figure4-tuned-*")))
    other = gossamer("reproduce", "fig1", "--quick", "-o", "out", cwd=tmp_path)
    assert other.returncode == 0, "figure 4 was begun only: " + other.stderr
    assert re.search(r"│ +- │", other.stdout)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["fig6"], "Unknown experiment 'fig6'; valid experiments: 'fig1', 'fig2'"),
        (["fig1", "--seeds", "0"], "`seeds` must be"),
        (["fig1", "--quick", "--rounds", "5"], "leave --rounds out"),
        (["fig1", "--rounds", "1"], "`rounds` must be"),
        (["fig1", "--quick", "--device", "abacus"], "abacus"),
        (["rates", "--device", "cpu"], "The rates take no --device"),
        (["exactness", "--quick"], "exactness takes no --quick"),
        (["exactness", "-o", "."], "is no file"),
        (["fig1", "--seeds", "1", "--data-dir", "nowhere"], "The data folder 'nowhere' does not exist"),
    ],
)
def test_mistakes(tmp_path: Path, options: list[str], sentence: str) -> None:
    done = gossamer("reproduce", *options, cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_everything_quickly(tmp_path: Path) -> None:
    done = gossamer("reproduce", "all", "--quick", "-o", "out", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = {row["id"] for row in json.loads(done.stdout)["claims"]}
    expected = {claim.id for claim in claims()}
    expected |= {f"{claim.id}-published" for claim in claims() if claim.published and claim.id[:4] in BOTH_WAYS}
    assert expected <= told, "every verdict was reached"
    assert sum(name.startswith("rates-") for name in told) >= 10
