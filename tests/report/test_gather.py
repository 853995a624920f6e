"""A folder is read as far as it can be, and every file that cannot be read is one sentence."""

import json
import math
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import diverged, lines, write

from gossamer.errors import InputError
from gossamer.records.record import read_record
from gossamer.report.gather import gather
from gossamer.report.page.payload import payload

HEADER = json.dumps(lines("A")[0])


def row(**changed: Any) -> str:
    return json.dumps(lines("A")[1] | changed)


DAMAGED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "is empty"),
    "no JSON": (b"hello\nworld\n", "damaged in line 1"),
    "another's": (b'{"loss": 1}\n{"loss": 0.5}\n', "not a record of Gossamer"),
    "a list": (b"[1, 2]\n", "damaged in line 1"),
    "header only": (f"{HEADER}\n".encode(), "holds no measurements"),
    "cut after header": (f'{HEADER}\n{{"round": 0, "lo'.encode(), "holds no measurements"),
    "a hole": (f"{HEADER}\n{row()}\n\0\0\0\n{row(round=9)}\n".encode(), "damaged in line 3"),
    "not UTF-8": (f"{HEADER}\n".encode() + b'{"round": 0, "x": "\xff\xfe"}\n' + row().encode(), "damaged in line 2"),
    "NaN": (f"{HEADER}\n{row()}\n".replace("1.5", "NaN").encode(), "line 2: its `loss` is not finite"),
    "infinite": (f'{HEADER}\n{{"round": 0, "loss": -Infinity}}\n'.encode(), "its `loss` is not finite"),
    "words": (f"{HEADER}\n{row(grad_norm='low')}\n".encode(), 'its `grad_norm` is "low", which is not a number'),
    "truth": (f"{HEADER}\n{row(bits=True)}\n".encode(), "its `bits` is true, which is not a number"),
    "a table": (f"{HEADER}\n{row(loss={'a': [1] * 99})}\n".encode(), "..., which is not a number"),
    "absurd": (f"{HEADER}\n{row(loss=10**400)}\n".encode(), "its `loss` is too large"),
    "large": (f"{HEADER}\n{row(loss=1e305)}\n".encode(), "its `loss` is too large"),
    "no round": (f'{HEADER}\n{{"loss": 1}}\n'.encode(), "it has no `round`"),
    "null round": (f"{HEADER}\n{row(round=None)}\n".encode(), "its `round` is null"),
    "negative": (f"{HEADER}\n{row(seconds=-1)}\n".encode(), "its `seconds` is below zero"),
    "backwards": (f"{HEADER}\n{row(round=5)}\n{row(round=5)}\n".encode(), "rounds do not rise"),
    "deep": (f"{HEADER}\n".encode() + b"[" * 200_000 + b"\n" + row().encode(), "damaged in line 2"),
    "binary": (bytes(range(256)) * 40, "damaged in line 1"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damage_is_one_sentence_and_the_rest_is_still_there(tmp_path: Path, kind: str) -> None:
    content, sentence = DAMAGED[kind]
    write(tmp_path / "good.jsonl", lines("good"))
    (tmp_path / "bad.jsonl").write_bytes(content)
    found = gather(tmp_path)
    assert [record.label for record in found.groups[0].records] == ["good"]
    (said,) = found.left_out
    assert sentence in said
    assert str(tmp_path / "bad.jsonl") in said
    assert "\n" not in said
    with pytest.raises(InputError, match="nothing to report"):
        gather(tmp_path / "bad.jsonl")


def test_things_that_are_no_files(tmp_path: Path) -> None:
    write(tmp_path / "good.jsonl", lines("good"))
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "gone.jsonl").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "claims.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "rates.json").mkdir()
    (tmp_path / "spec.toml").mkdir()
    found = gather(tmp_path)
    assert len(found.left_out) == 6
    assert all(sentence.endswith(".") for sentence in found.left_out)
    assert found.groups[0].name == tmp_path.name


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_may_not_be_read(tmp_path: Path) -> None:
    write(tmp_path / "good.jsonl", lines("good"))
    write(tmp_path / "secret.jsonl", lines("secret")).chmod(0)
    (tmp_path / "closed").mkdir(mode=0)
    assert len(gather(tmp_path).left_out) == 2


def test_each_folder_is_an_experiment_and_some_are_passed_over(tmp_path: Path) -> None:
    for place in ("b", "a", "a/deep", "checkpoints", ".hidden", "a/checkpoints"):
        write(tmp_path / place / "x.jsonl", lines(place))
    write(tmp_path / "a" / ".x.jsonl", lines("hidden"))
    (tmp_path / "a" / "spec.toml").write_text('name = "First"\n')
    (tmp_path / "b" / "spec.toml").write_bytes(b"name = \xff")
    found = gather(tmp_path)
    assert [group.name for group in found.groups] == ["First", "deep", "b"]
    assert found.groups[0].spec == 'name = "First"\n'
    assert [group.records[0].label for group in found.groups] == ["a", "a/deep", "b"]
    (reason,) = found.left_out
    assert reason.startswith(f"The spec '{tmp_path / 'b' / 'spec.toml'}' is not TOML: 'utf-8' codec can't decode")


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"label": ["a", "b"]}, 'its `label` is ["a", "b"], which is not text'),
        ({"label": " "}, "its `label` is empty"),
        ({"seed": "x"}, 'its `seed` is "x", which is not an integer'),
        ({"method": 3}, "its `method` is 3, which is not a table"),
        ({"mixing": {"clients": 5}}, "it has no `mixing.edges`"),
        ({"network": {"edges": [[0, 1]], "self": [1, 1]}}, "which is not a list of 3"),
        ({"shares": {"labels": ["1"], "counts": [[-1]]}}, "a count below zero"),
    ],
)
def test_a_damaged_header_is_one_sentence(tmp_path: Path, changed: dict[str, Any], sentence: str) -> None:
    first, *rest = lines("A")
    write(tmp_path / "a.jsonl", [first | changed, *rest])
    with pytest.raises(InputError, match=re.escape(sentence)):
        gather(tmp_path)


def test_what_a_newer_version_adds_is_no_damage(tmp_path: Path) -> None:
    first, *rest = lines("A", unheard_of={"x": 1})
    rest[2] |= {"loss": None, "a_number": 1.5, "unheard_of": "text"}
    row = read_record(write(tmp_path / "a.jsonl", [first, *rest])).rows[2]
    assert math.isnan(row.loss or 0), "null stands for what was not finite"
    assert row.value("loss") is None
    assert row.extra == {"a_number": 1.5}


def test_one_label_and_seed_is_read_once(tmp_path: Path) -> None:
    write(tmp_path / "b-copy.jsonl", lines("b"))
    write(tmp_path / "c-copy.jsonl", lines("b"))
    found = gather(tmp_path)
    assert [record.label for record in found.groups[0].records] == ["b"]
    assert found.left_out == [
        f"The record '{tmp_path / 'c-copy.jsonl'}' is left out: it has the label and the seed of 'b-copy.jsonl'."
    ]


@pytest.mark.parametrize(
    "content", ["[]", "{", "", "7", '{"claims": 3}', '{"claims": [1, {"verdict": "maybe"}]}', "{}"]
)
def test_claims_that_are_none(tmp_path: Path, content: str) -> None:
    write(tmp_path / "good.jsonl", lines("good"))
    (tmp_path / "claims.json").write_text(content)
    (tmp_path / "rates.json").write_text(content)
    found = gather(tmp_path)
    assert found.claims is None
    assert found.rates == []
    assert len(found.left_out) >= 2


def test_claims_and_rates_keep_what_is_sound(tmp_path: Path) -> None:
    texts = dict.fromkeys(("id", "where", "says", "quantity", "rule", "why", "note"), "a")
    sound = texts | {"verdict": "holds", "values": [1, None, 2], "value": 1.5}
    claims = [sound, sound | {"verdict": "unheard of"}, sound | {"values": ["x"]}, sound | {"value": float("nan")}]
    fits = [{"slope": -1, "points": [[1, 2]]}, {"slope": "steep"}, {"slope": 1, "points": [[0, 1]]}]
    (tmp_path / "claims.json").write_text(json.dumps({"claims": claims, "date": "today"}))
    (tmp_path / "rates.json").write_text(json.dumps({"fits": fits}))
    found = gather(tmp_path)
    assert found.claims is not None
    (claim,) = found.claims.claims
    assert (claim.values, claim.value, claim.where) == ((1, None, 2), 1.5, "a")
    assert [fit.points for fit in found.rates] == [((1, 2),)]
    assert len(found.left_out) == 5


def test_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no "):
        gather(tmp_path / "nowhere")
    with pytest.raises(InputError, match="nothing to report"):
        gather(tmp_path)


def test_diverged_runs_keep_their_sentence(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", diverged("A", 0, "A is no longer finite."))
    method = payload(gather(tmp_path))["groups"][0]["methods"][0]
    assert method["diverged"] == ["A is no longer finite."]
    assert len(method["y"]["grad_norm"]["mean"]) == 12


NUMBERS = st.integers() | st.floats() | st.none() | st.booleans()
JSON = st.recursive(
    NUMBERS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
EDGES = st.lists(st.tuples(st.integers(-1, 4), st.integers(0, 4), NUMBERS).map(list), max_size=8)
NETWORK = st.fixed_dictionaries({"edges": EDGES | JSON, "self": st.lists(NUMBERS, max_size=5)}) | JSON
COUNTS = st.lists(st.lists(st.integers(-1, 9), min_size=1, max_size=2), max_size=3) | JSON
GARBAGE = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("label", "seed", "method", "problem", "mixing", "alpha", "command", "started"), JSON)
    | {"network": NETWORK, "shares": st.fixed_dictionaries({"labels": JSON, "counts": COUNTS}) | JSON},
)


@settings(max_examples=60)
@given(GARBAGE, st.lists(st.dictionaries(st.sampled_from(["round", "loss", "bits", "x"]), JSON), max_size=4), JSON)
def test_garbage_never_breaks_a_page(header: dict[str, Any], rows: list[dict[str, Any]], other: Any) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "good.jsonl", lines("good"))
        write(folder / "headers.jsonl", lines(**({"label": "A"} | header)))
        write(folder / "rows.jsonl", [lines("B")[0], *rows])
        for file in ("claims.json", "rates.json", "spec.toml"):
            (folder / file).write_text(json.dumps(other), encoding="utf-8")
        told = payload(gather(folder))
        assert told["groups"][0]["methods"]
        json.dumps(told, allow_nan=False)
