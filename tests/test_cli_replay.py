"""`gossamer replay`: histories and events that never happened, in one process."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import forked

from gossamer.records import checkpoint
from gossamer.runtime.experiment import prepare
from gossamer.runtime.open.history import Begin, HistoryFile, Leave, Step, read_history, write_history
from gossamer.runtime.open.simulated.events_file import read_events
from gossamer.runtime.open.simulated.timetable import timetable
from gossamer.runtime.open.specs import OpenRun
from gossamer.spec import load_spec
from gossamer.topology import mixing_matrix, ring

SPEC = """
rounds = 30
batch_size = 4
seeds = [3]
[problem]
objective = "quadratic"
clients = 5
d = 6
noise = 0.1
dtype = "float64"
[graph]
name = "ring"
[[methods]]
name = "beer"
lr = 0.05
gamma = 0.3
compressor = "gsgd:5"
{more}
"""
EVENTS = """
patience = 1.5
gone_after = 3.0
jitter = 0.5
absent = [4]
[[event]]
lost = 1
at = 4.5
[[event]]
joins = 4
at = 6
[[event]]
leaves = 3
at = 8
[[event]]
frozen = 0
begin = 9
end = 14
[[event]]
down = [0, 4]
begin = 15
end = 18
[[event]]
joins = 1
at = 20
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a spec and events."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "my.toml").write_text(SPEC.format(more=""))
    (here / "events.toml").write_text(EVENTS)
    return here


def replayed(folder: Path, *more: str) -> Any:
    done = forked("replay", "my.toml", "--history", "events.toml", "--json", "-q", *more, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def refused(folder: Path, *words: str) -> str:
    """The one line of a refusal."""
    done = forked("replay", *words, cwd=folder)
    assert (done.returncode, done.stdout) == (2, ""), done
    lines = done.stderr.splitlines()
    assert "Traceback" not in done.stderr
    assert len([line for line in lines if "replaying" not in line]) == 1
    return lines[-1]


def test_every_kind_of_event(folder: Path) -> None:
    found = replayed(folder)
    rows = {row["client"]: row for row in found["clients"]}
    assert {i: row["present"] for i, row in rows.items()} == {0: True, 1: True, 2: True, 3: False, 4: True}
    assert {row["round"] for row in rows.values() if row["present"]} == {30}
    assert 6 <= rows[3]["round"] <= 12
    assert all(row["bytes"] > 0 and row["same_model"] is None for row in rows.values())
    assert found["mean_model"]["grad_norm"] < 1
    done = forked("replay", "my.toml", "--history", "events.toml", cwd=folder)
    assert "client   3: gone after round" in done.stdout
    assert "mean model: " in done.stdout
    assert "replaying events.toml" in done.stderr


def test_events_from_a_seed(folder: Path) -> None:
    text = "gone_after = 2\n[random]\nseed = {}\nlost = 1\nleaves = 1\nfrozen = 2\ndown = 1\naway = 9\nlength = 4\n"
    (folder / "events.toml").write_text(text.format(1))
    assert replayed(folder) == replayed(folder)
    run = OpenRun.of(prepare(load_spec(folder / "my.toml")))
    first = run.history(folder / "events.toml")
    assert run.history(folder / "events.toml") == first
    (folder / "events.toml").write_text(text.format(2))
    assert run.history(folder / "events.toml") != first


def test_local_steps(folder: Path) -> None:
    local = '[methods.local]\noptimizer = "AdamW"\nsteps = 2\nlr = 0.01\n'
    (folder / "my.toml").write_text(SPEC.format(more=local).replace("lr = 0.05", "lr = 1.0"))
    assert {row["round"] for row in replayed(folder)["clients"] if row["present"]} == {30}


def test_nobody_is_left(folder: Path) -> None:
    for client in range(5):
        write_history(folder / f"client{client}.history", [Begin(), Step(()), Leave(None)])
    (folder / "clientele.history").write_text("not one of ours")
    assert replayed(folder, "--history", ".")["mean_model"] is None
    done = forked("replay", "my.toml", "--history", ".", cwd=folder)
    assert "mean model: none, since nobody is present" in done.stdout


def test_the_model_that_a_client_kept(folder: Path) -> None:
    """Written as `gossamer join` does: the same model, another one, and one of another round."""
    run = OpenRun.of(prepare(load_spec(folder / "my.toml")))
    made = run.history(folder / "events.toml")
    players = run.replay(made)
    players.run()
    kept = folder / "open"
    kept.mkdir()
    for client, events in made.items():
        write_history(kept / f"client{client}.history", events)
        assert read_history(kept / f"client{client}.history") == events
        member = (players.left | players.members)[client]
        model = member.state.x + (1e-9 if client == 2 else 0)
        facts = {"client": client, "t": member.t - (client == 0), "run": 0, "bytes": member.bytes}
        checkpoint.write(kept / f"client{client}.safetensors", {"model": model}, facts)
    done = forked("replay", "my.toml", "--history", "open", "--json", "-q", cwd=folder)
    assert done.returncode == 1, "client 2 kept another model"
    same = {row["client"]: row["same_model"] for row in json.loads(done.stdout)["clients"]}
    assert same == {0: None, 1: True, 2: False, 3: True, 4: True}
    assert torch.is_tensor(players.members[2].state.x)


def test_a_history_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "client0.history"
    for event in (Begin(), Step((1,))):
        file = HistoryFile(path)
        file.note(event)
        file.close()
        path.write_bytes(path.read_bytes() + b'{"event": "st')
    file = HistoryFile(path)
    file.note(Step(()))
    file.close()
    assert read_history(path) == [Begin(), Step((1,)), Step(())]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("= 3", "is not TOML"),
        ("patience = 'x'", "`patience` must be a number above 0, got 'x'"),
        ("[[event]]\nlost = 1\nat = 3\n[[event]]\nlost = 1\nat = 9", "client 1 is not there at that time"),
        ("[[event]]\njoins = 1\nat = 3", "client 1 is there already"),
        ("[[event]]\ndown = [0, 2]\nbegin = 3\nend = 4", "the neighbours of client 0 are [1, 4]"),
        ("[[event]]\nlost = 9\nat = 3", "must have clients from 0 to 4, got 9"),
        ("[[event]]\nlost = 1\nat = -3", "must have a number of 0 or more as `at`, got -3.0"),
        ("[random]\nloss = 3", "has no setting 'loss'"),
    ],
)
def test_bad_events(folder: Path, text: str, message: str) -> None:
    (folder / "events.toml").write_text(text)
    assert message in refused(folder, "my.toml", "--history", "events.toml", "-q")


def test_bad_histories(folder: Path) -> None:
    assert "cannot be read: No such file or directory." in refused(folder, "my.toml", "--history", "missing", "-q")
    (folder / "open").mkdir()
    assert "has no files client*.history" in refused(folder, "my.toml", "--history", "open", "-q")
    path = folder / "open" / "client0.history"
    path.write_text('{"event": "begin", "t": 0, "via": null, "number": 0}\n{"event": "dance"}\n')
    assert "has no event in line 2" in refused(folder, "my.toml", "--history", "open", "-q")
    write_history(path, [Begin(), Step((1,))])
    assert "which is not possible there" in refused(folder, "my.toml", "--history", "open", "-q")
    write_history(folder / "open" / "client7.history", [Begin()])
    assert "has client 7, but the problem has clients 0 to 4" in refused(folder, "my.toml", "--history", "open", "-q")


def test_bad_specs(folder: Path) -> None:
    text = SPEC.format(more="")
    for change, message in (
        (text.replace('name = "beer"', 'name = "choco_sgd"'), "set order='stale'"),
        (text.replace('name = "ring"', 'name = "ring"\ndropout = 0.2'), "on a fixed graph of possible edges only"),
        (text.replace("seeds = [3]", "seeds = [3, 4]"), "An open run has one method and one seed"),
    ):
        (folder / "my.toml").write_text(change)
        assert message in refused(folder, "my.toml", "--history", "events.toml", "-q")


def test_the_files_of_the_documentation(folder: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "graphs.md").read_text()
    section = page[page.index("### Simulated events") : page.index("## The gaps of the BEER paper")]
    files = re.findall(r"```toml\n(.*?)```", section, flags=re.DOTALL)
    assert len(files) == 2
    mixing = mixing_matrix(ring(8))
    for text in files:
        (folder / "events.toml").write_text(text)
        made = timetable(mixing, rounds=1200, **read_events(folder / "events.toml", mixing, 1200))
        assert len(made) >= 7
