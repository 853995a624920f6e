"""The language model: who holds which text, what it computes, and that it learns."""

import copy
import hashlib
import math
import re
import sysconfig
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gossamer as gs
from gossamer.problems import language_model
from gossamer.problems.data.texts import read_text
from gossamer.runtime.experiment import prepare
from gossamer.spec import parse_spec

SMALL: dict[str, Any] = {"clients": 4, "layers": 2, "width": 16, "heads": 2, "context": 8}
TOPICS = {f"topic {k:02}": bytes([65 + k]) * (300 + 10 * (k % 4)) for k in range(30)}  # each has a letter of its own
VALIDATED = {65, 75, 85}


def held(problem: Any, rows: Any) -> list[np.ndarray[Any, Any]]:
    """(windows, context + 1): the bytes of each client's rows."""
    windows = problem.module.windows(rows.features).numpy().astype(np.uint8)
    return [windows[mine] for mine in rows.by_client()]


@pytest.mark.parametrize("split", ["iid", "contiguous", "topic"])
def test_no_validation_text_is_trained_on(split: Any) -> None:
    problem = language_model(TOPICS, split=split, stride=3, **SMALL)
    clients = held(problem, problem.rows)
    assert len(clients) == 4
    seen = [set(np.unique(own).tolist()) for own in clients]
    assert not VALIDATED & set.union(*seen)
    assert problem.test is not None
    (validated,) = held(problem, problem.test)
    assert set(np.unique(validated).tolist()) == VALIDATED
    if split == "topic":
        assert set.union(*seen) == set(range(65, 95)) - VALIDATED, "all other topics are"
        assert sum(map(len, seen)) == 27, "each by one client"
    if split == "contiguous":
        assert [min(own) for own in seen] == sorted(min(own) for own in seen)
        assert sum(map(len, seen)) <= 27 + 3, "a topic is cut at the most where one client's part ends"
    if split == "iid":
        assert all(max(own) - min(own) > 13 for own in seen)
        assert len(set(map(len, clients))) == 1
        starts = problem.rows.features[:, 0].tolist()
        assert len(set(starts)) == len(starts)


def test_a_text_without_topics_is_validated_by_blocks() -> None:
    text = np.random.default_rng(0).integers(0, 256, 128 * 40 + 5, np.uint8).tobytes()
    problem = language_model(text, split="contiguous", stride=1, **SMALL | {"clients": 1})
    assert problem.test is not None
    trained = b"".join(own.tobytes() for own in held(problem, problem.rows))
    for number in range(41):
        block = text[128 * number : 128 * (number + 1)]
        if len(block) == 128:
            assert (block[:9] in trained) == (number % 10 > 0)


def test_evaluations_take_some_windows_only() -> None:
    problem = language_model(evaluated=20, **SMALL)
    assert problem.test is not None
    assert problem.test.total == 20
    assert problem._of.counts == [5] * 4
    positions = problem.test.features[:, 0]
    assert (positions.diff() > 1000).all(), "evenly spread"
    measured = problem.evaluate(problem.x0()[None])
    some = problem._of.features
    expected = problem.loss(problem.module(some), some).detach().double()
    torch.testing.assert_close(measured["loss"][0], expected, rtol=1e-5, atol=0)
    one = problem.only(2)
    assert torch.equal(one._of.features, some[10:15])
    assert one.evaluate(problem.x0()[None])["loss"] != measured["loss"]


def test_the_text_is_stored_once_as_bytes() -> None:
    problem = language_model(stride=1, **SMALL)
    windows: Any = problem.module.windows
    assert windows.text.dtype == torch.uint8
    assert copy.deepcopy(problem.module).windows is windows
    assert not problem.has_buffers
    assert problem.rows.features.numel() == problem.rows.total, "a row is a position"


def test_checksums_are_recorded() -> None:
    by_hand = hashlib.sha256()
    for name, content in TOPICS.items():
        by_hand.update(f"{name}\0{len(content)}\0".encode())
        by_hand.update(content)
    problem = language_model(TOPICS, **SMALL)
    assert problem.describe()["text_sha256"] == by_hand.hexdigest()
    run = gs.simulate(gs.DSGD(lr=0.1), problem, gs.mixing_matrix(gs.ring(4)), rounds=1, batch_size=2)
    assert run.record.header.problem["text_sha256"] == by_hand.hexdigest()
    other = TOPICS | {"topic 07": b"H" * 371}
    assert language_model(other, **SMALL).fingerprint() != problem.fingerprint()


def test_texts_that_come_with_python(tmp_path: Path) -> None:
    topics = read_text("topics")
    assert topics.length > 400_000
    assert len(topics.topics) > 70
    library = read_text("stdlib")
    assert library.length > 8_000_000
    assert library.topics["abc.py"] == (Path(sysconfig.get_path("stdlib")) / "abc.py").read_bytes()
    assert not any("test" in name.split("/") or "site-packages" in name for name in library.topics)
    (tmp_path / "own.txt").write_bytes(b"\xff\x00own")
    assert read_text(tmp_path / "own.txt").topics == read_text(str(tmp_path / "own.txt")).topics == {"": b"\xff\x00own"}
    assert read_text("two\nlines").topics == {"": b"two\nlines"}


@pytest.mark.parametrize("bfloat16", [False, True])
def test_gradients_side_by_side_equal_those_one_by_one(bfloat16: bool) -> None:
    dtype = "float32" if bfloat16 else "float64"
    both = [language_model(**SMALL, bfloat16=bfloat16, dtype=dtype, gradients=how) for how in ("vmap", "loop")]
    x = both[0].x0() + 0.1 * torch.randn(8, both[0].d, dtype=both[0].dtype, generator=torch.Generator().manual_seed(0))
    batch = torch.randint(0, both[0].rows_per_client, (8, 5), generator=torch.Generator().manual_seed(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # vmap warns where it loops
        one, two = (problem.gradient(x, batch) for problem in both)
    torch.testing.assert_close(one, two, rtol=0, atol=1e-3 if bfloat16 else 1e-13)
    assert language_model(**SMALL).gradients == "vmap"


def test_a_prediction_sees_what_was_before_and_nothing_else() -> None:
    problem = language_model(**SMALL, dtype="float64")
    gpt: Any = problem.as_module(problem.x0() * 30).gpt
    tokens = torch.randint(0, 256, (1, 8), generator=torch.Generator().manual_seed(0))
    before = gpt(tokens)
    tokens[0, 5] = (tokens[0, 5] + 1) % 256
    moved = (gpt(tokens) - before).abs().amax(dim=2)[0]
    assert (moved[:5] == 0).all()
    assert (moved[5:] > 1e-6).all()


def test_parameters() -> None:
    problem = language_model(layers=4, width=320, heads=5)
    assert problem.d == 4 * (12 * 320**2 + 4 * 320) + (256 + 128 + 2) * 320 == 5_043_840


def test_a_tiny_run_learns_more_than_how_frequent_bytes_are() -> None:
    problem = language_model(clients=4, layers=1, width=32, context=16, stride=4)
    train = np.concatenate([own[:, 0] for own in held(problem, problem.rows)])
    assert problem.test is not None
    validated = held(problem, problem.test)[0][:, 1:]
    frequency = (np.bincount(train, minlength=256) + 1) / (len(train) + 256)
    by_frequency = -np.log(frequency[validated]).mean()
    method = gs.algorithms.AllReduceAdamW(lr=0.01, clip=1.0)
    run = gs.simulate(method, problem, gs.mixing_matrix(gs.ring(4)), rounds=300, batch_size=8, eval_every=100)
    losses = run.frame.test_loss
    assert losses.iloc[0] == pytest.approx(math.log(256), rel=0.02)
    assert losses.iloc[-1] < by_frequency - 0.3
    assert run.frame.accuracy.iloc[-1] > 0.25
    assert run.frame.mean_accuracy.isna().all(), "clients' own models are not measured"


def test_specs() -> None:
    table = {"objective": "language_model", "text": "topics", "split": "topic", **SMALL}
    method = {"name": "diloco", "local": {"optimizer": "AdamW", "steps": 2, "lr": 1e-3}}
    given = {"rounds": 2, "batch_size": 2, "problem": table, "graph": {"name": "ring"}, "methods": [method]}
    (run,) = prepare(parse_spec(given)).run()
    assert run.record.header.problem["split"] == "topic"
    assert math.isfinite(run.final.test_loss)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"text": "no/such/file"}, "The text 'no/such/file' cannot be read: No such file or directory; name a file"),
        ({"text": 5}, "`text` must be a file, a string, bytes or a mapping of topics, got int."),
        ({"text": {"a": 5}}, "`text` must map topics to strings or bytes, got 'a': int."),
        ({"text": b"short"}, "The text 'given' of 5 bytes is too short for windows of 9 bytes for training and valid"),
        ({"text": {"a": b"a" * 99, "b": b"b" * 99}, "split": "topic"}, "client 0 of 4 has no window of 9 bytes; take"),
        ({"heads": 3}, "`width` must be a multiple of `heads`, got 16 and 3."),
        ({"split": "sorted"}, "`split` must be one of 'iid', 'contiguous', 'topic'; got 'sorted'."),
        ({"stride": 0}, "`stride` must be an integer of 1 or more, got 0."),
    ],
)
def test_mistakes_are_sentences(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(gs.InputError, match=re.escape(sentence)):
        language_model(**SMALL | settings)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("bfloat16", [False, True])
def test_replayed_gradients_on_a_gpu(bfloat16: bool) -> None:
    both = [language_model(**SMALL, bfloat16=bfloat16, device="cuda", gradients=how) for how in ("vmap", "loop")]
    assert both[0].is_replayable
    generator = torch.Generator().manual_seed(0)
    for _ in range(6):  # the fourth is recorded
        x = both[0].x0() + 0.1 * torch.randn(8, both[0].d, generator=generator).cuda()
        batch = torch.randint(0, both[0].rows_per_client, (8, 5), generator=generator).cuda()
        one, two = (problem.gradient(x, batch).clone() for problem in both)
        torch.testing.assert_close(one, two, rtol=0, atol=1e-3 if bfloat16 else 1e-5)
