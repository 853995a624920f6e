"""Rows that are read when they are asked for: the same numbers as with all rows in memory, and few rows at a time."""

import gc
import re
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import gossamer as gs
from gossamer.problems.data import lazy as lazy_module
from gossamer.problems.data.lazy import LazyRows
from gossamer.records.identity import settings

LENGTHS = (30, 41, 25, 37)
METHOD = gs.BEER(lr=0.1, gamma=0.4, compressor=gs.gsgd(5), start="minibatch")
RING = gs.mixing_matrix(gs.ring(4))
WIDTH, CLASSES = 12, 5


class Counting(Dataset[tuple[Tensor, Tensor]]):
    """Rows made when they are read; it counts them, and how many are alive at the same time."""

    alive, most = 0, 0

    def __init__(self, rows: int, seed: int, *, kind: str = "float") -> None:
        generator = torch.Generator().manual_seed(seed)
        self.features = torch.randn(rows, WIDTH, generator=generator)
        if kind == "bytes":
            self.features = ((self.features - 1).clamp_min(0) * 60).to(torch.uint8)  # mostly zero, as images are
        self.labels = torch.randint(0, CLASSES, (rows,), generator=generator)
        self.read: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        if not 0 <= row < len(self):
            raise IndexError(row)
        self.read[row] += 1
        item = self.features[row].clone()
        Counting.alive += 1
        Counting.most = max(Counting.most, Counting.alive)
        weakref.finalize(item, self._gone)
        return item, self.labels[row]

    @staticmethod
    def _gone() -> None:
        Counting.alive -= 1


def data_sets(kind: str = "float", lengths: tuple[int, ...] = LENGTHS) -> list[Counting]:
    return [Counting(rows, seed, kind=kind) for seed, rows in enumerate(lengths)]


class Normed(nn.Module):
    """A module that is no stack of linear layers, with buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(WIDTH, 9), nn.BatchNorm1d(9), nn.Linear(9, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.relu(self.norm(self.first(x))))
        return out


class Dropped(Normed):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(nn.functional.dropout(self.first(x), 0.3, self.training))
        return out


def stack() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 9), nn.ReLU(), nn.Linear(9, CLASSES))


def problem_of(build: Any, *, lazy: bool, kind: str = "float", **more: Any) -> Any:
    torch.manual_seed(0)
    data = more.pop("data", None) or data_sets(kind)
    return gs.module_problem(build(), data, test=Counting(23, 99, kind=kind), lazy=lazy, **more)


CASES = [(stack, "float"), (stack, "bytes"), (Normed, "float"), (Dropped, "float")]


@pytest.mark.parametrize(("build", "kind"), CASES)
def test_a_run_is_the_same_bit_for_bit(build: Any, kind: str) -> None:
    runs = [
        gs.sweep(
            [METHOD],
            problem_of(build, lazy=lazy, kind=kind),
            RING,
            rounds=20,
            batch_size=8,
            eval_every=10,
            seeds=[0, 1],
        )
        for lazy in (False, True)
    ]
    for eager, lazily in zip(*runs, strict=True):
        assert torch.equal(eager.x, lazily.x)
        pd_eager, pd_lazy = (run.frame[["loss", "grad_norm", "test_loss", "accuracy"]] for run in (eager, lazily))
        np.testing.assert_allclose(pd_eager, pd_lazy, rtol=1e-5)
        if build is not stack:
            np.testing.assert_array_equal(pd_eager, pd_lazy)


@pytest.mark.parametrize(("build", "kind"), CASES[:3])
@pytest.mark.parametrize("gradients", ["auto", "vmap", "loop"])
def test_gradients_are_the_same(build: Any, kind: str, gradients: Any) -> None:
    eager, lazily = (problem_of(build, lazy=lazy, kind=kind, gradients=gradients) for lazy in (False, True))
    expected = {stack: "closed", Normed: "vmap"}[build] if gradients == "auto" else gradients
    assert (lazily.gradients, eager.gradients) == (expected, expected)
    x = eager.x0().expand(8, -1) + 0.1 * torch.randn(8, eager.d, generator=torch.Generator().manual_seed(1))
    batch = torch.randint(0, 25, (8, 6), generator=torch.Generator().manual_seed(2))  # two seeds, other rows in each
    assert torch.equal(eager.gradient(x, batch), lazily.gradient(x, batch))
    assert torch.equal(eager.gradient(x), lazily.gradient(x))
    assert lazily.smoothness(steps=3) == eager.smoothness(steps=3)


def test_only_the_rows_of_a_minibatch_are_read_and_each_once() -> None:
    problem = problem_of(stack, lazy=True, data=(parts := data_sets()))
    for part in parts:
        part.read.clear()
    problem.gradient(problem.x0().expand(4, -1), torch.tensor([[0, 3, 3], [40, 1, 2], [7, 7, 7], [0, 1, 36]]))
    assert [sorted(part.read.elements()) for part in parts] == [[0, 3], [1, 2, 40], [7], [0, 1, 36]]


def test_one_client_reads_its_own_data_set_only() -> None:
    problem = problem_of(stack, lazy=True, data=(parts := data_sets()))
    eager = problem_of(stack, lazy=False)
    for part in parts:
        part.read.clear()
    x, batch = problem.x0()[None], torch.tensor([[5, 36, 0]])
    one, other = problem.only(3), eager.only(3)
    assert torch.equal(one.gradient(x, batch), other.gradient(x, batch))
    assert torch.equal(one.gradient(x), other.gradient(x))
    one.evaluate(x)
    assert one.clients == 1
    assert not any(part.read for part in parts[:3])
    assert set(parts[3].read) == set(range(37))


@pytest.mark.parametrize("build", [stack, Normed])
def test_few_rows_are_in_memory(build: Any) -> None:
    parts = data_sets(lengths=(1300, 900, 1100, 700))
    problem = problem_of(build, lazy=True, data=parts, gradients="loop")
    Counting.most = 0
    gc.collect()
    base = Counting.alive
    x = problem.x0().expand(4, -1).contiguous()
    problem.evaluate(x)
    assert Counting.most - base <= 500
    problem.gradient(x, torch.arange(32).view(4, 8))
    assert Counting.most - base <= 500
    problem.gradient(x)
    assert Counting.most - base <= 4 * 500
    assert all(set(part.read) == set(range(len(part))) for part in parts)


def test_an_evaluation_of_several_models_reads_each_row_once() -> None:
    problem = problem_of(Normed, lazy=True, data=(parts := data_sets()))
    for part in parts:
        part.read.clear()
    problem.evaluate(problem.x0().expand(5, -1).contiguous())
    assert all(set(part.read.values()) == {1} for part in parts)


def test_collate_gets_the_items_of_some_rows() -> None:
    def collate(items: list[Any]) -> tuple[Tensor, Tensor]:
        return 2 * torch.stack([x for x, _ in items]), torch.stack([(y + 1) % CLASSES for _, y in items])

    eager, lazily = (problem_of(stack, lazy=lazy, collate=collate) for lazy in (False, True))
    x, batch = eager.x0().expand(4, -1).contiguous(), torch.arange(12).view(4, 3)
    assert torch.equal(eager.gradient(x, batch), lazily.gradient(x, batch))


def test_memory_mapped_arrays_stay_on_disk(tmp_path: Path) -> None:
    pairs: list[Any] = []
    for client, part in enumerate(data_sets()):
        np.save(tmp_path / f"x{client}.npy", part.features.numpy())
        pairs.append((np.load(tmp_path / f"x{client}.npy", mmap_mode="r"), part.labels.numpy()))
    lazily, eager = problem_of(stack, lazy=True, data=pairs), problem_of(stack, lazy=False)
    x, batch = eager.x0().expand(4, -1).contiguous(), torch.arange(12).view(4, 3)
    assert torch.equal(eager.gradient(x, batch), lazily.gradient(x, batch))


def test_it_is_lazy_by_itself_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    row = WIDTH * 4 + 8
    size = (sum(LENGTHS) + 23) * row
    for free, expected in ((4 * size, False), (4 * size - 4, True), (None, False)):
        monkeypatch.setattr(lazy_module, "free_memory", lambda device, free=free: free)
        found = gs.module_problem(stack(), data_sets(), test=Counting(23, 99))
        assert isinstance(found.rows, LazyRows) == expected
    monkeypatch.setattr(lazy_module, "free_memory", lambda device: 1)
    assert not gs.module_problem(stack(), data_sets(), lazy=False).rows.is_lazy
    held = [(part.features, part.labels) for part in data_sets()]
    assert not gs.module_problem(stack(), held).rows.is_lazy  # they are in memory anyway


def test_a_run_resumes_and_other_data_is_refused(tmp_path: Path) -> None:
    how: Any = {"rounds": 20, "batch_size": 8, "record_dir": tmp_path, "eval_every": 10}
    asked = iter([False] * 9 + [True] * 99)
    with pytest.raises(gs.StoppedError):
        gs.simulate(METHOD, problem_of(stack, lazy=True), RING, should_stop=lambda: next(asked), **how)
    other = data_sets()
    other[2].features[0, 0] += 1  # the first row is among those that are compared
    with pytest.raises(gs.InputError, match="the problem"):
        gs.simulate(METHOD, problem_of(stack, lazy=True, data=other), RING, resume=True, **how)
    longer = data_sets(lengths=(*LENGTHS[:3], 38))
    ours, theirs = (
        settings(METHOD, problem_of(stack, lazy=True, data=data), RING, {}, 0)["identity"] for data in (None, longer)
    )
    assert ours != theirs
    resumed = gs.simulate(METHOD, problem_of(stack, lazy=True), RING, resume=True, **how)
    whole = gs.simulate(METHOD, problem_of(stack, lazy=True), RING, rounds=20, batch_size=8)
    assert torch.equal(resumed.x, whole.x)


class Broken(Counting):
    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        if row == 17:
            raise OSError("the disk is gone\nand more")
        if row == 18:
            return torch.zeros(3), torch.tensor(0)
        if row == 19:
            return torch.full((WIDTH,), float("nan")), torch.tensor(0)
        if row == 20:
            return torch.zeros(WIDTH), torch.tensor(9)
        return super().__getitem__(row)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (17, "Row 17 of client 1 cannot be read: OSError: the disk is gone."),
        (18, "Rows 18 to 18 of client 1 have features of shape (3,)"),
        (19, "Row 19 of client 1 has a number that is NaN, Inf or too large."),
        (20, "The label 9 of row 20 of client 1 is out of range: the module has 5 outputs."),
    ],
)
def test_a_bad_row_is_named(row: int, sentence: str) -> None:
    data: list[Any] = [Counting(30, 0), Broken(41, 1), Counting(30, 2), Counting(30, 3)]
    problem = problem_of(stack, lazy=True, data=data)
    with pytest.raises(gs.DataError, match=re.escape(sentence)) as caught:
        problem.gradient(problem.x0().expand(4, -1), torch.tensor([[0], [row], [0], [0]]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "more", "sentence"),
    [
        (Counting(30, 0), {}, "`lazy` needs a list of data sets, one per client"),
        ([Counting(30, 0), Counting(1, 0)], {"lazy": 1}, "`lazy` must be true or false, got 1."),
        ([Counting(30, 0), TensorDataset(torch.zeros(4, 3), torch.zeros(4))], {}, "features of client 1 have rows of"),
        ([Counting(30, 0), Counting(0, 0)], {}, "The data of client 1 has no rows."),
        ([Counting(30, 0)], {"pixels": "standard"}, "`pixels` = 'standard' needs all rows in memory"),
        ([(torch.zeros(4, 3), torch.zeros(5))], {}, "client 0 has 4 rows of features, but 5 labels."),
        ([(torch.zeros(4),)], {}, "client 0 must be a map-style Dataset or a pair"),
        ([Counting(30, 0), Counting(40, 0)], {"clients": 3}, "one per client; leave out `clients` = 3"),
    ],
)
def test_mistakes_are_one_sentence(data: Any, more: dict[str, Any], sentence: str) -> None:
    with pytest.raises((gs.InputError, gs.DataError), match=re.escape(sentence)):
        gs.module_problem(stack(), data, **({"lazy": True} | more))


def test_a_minibatch_with_a_row_that_is_not_there_is_refused() -> None:
    problem = problem_of(stack, lazy=True)
    with pytest.raises(gs.InputError, match="The minibatch of client 2 has row 25, but the client has rows 0 to 24"):
        problem.gradient(problem.x0().expand(4, -1), torch.tensor([[0], [0], [25], [0]]))
