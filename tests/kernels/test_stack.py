"""Networks of linear layers: compiled gradients and measurements against torch's."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gossamer as gs
from gossamer import kernels
from gossamer.kernels import only_reference, pool
from gossamer.problems import ModuleProblem, module_problem

ACTIVATIONS = [nn.Sigmoid, nn.Tanh, nn.ReLU]


@st.composite
def problems(draw: st.DrawFn) -> ModuleProblem:
    """A small network of any depth, on bytes or numbers, with clients of equal or different sizes."""
    widths = draw(st.lists(st.one_of(st.integers(1, 9), st.integers(15, 40)), min_size=1, max_size=4))
    layers: list[nn.Module] = []
    torch.manual_seed(draw(st.integers(0, 99)))
    for n, m in pairwise(widths):
        layers += [nn.Linear(n, m), draw(st.sampled_from(ACTIVATIONS))()]
    classes = draw(st.integers(2, 6))
    module = nn.Sequential(nn.Flatten(), *layers, nn.Linear(widths[-1], classes))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    kind = draw(st.sampled_from(["bytes", "few", "numbers"]))
    shape = 40, 1, widths[0]
    features: Any = random.integers(0, 4, shape).astype(np.uint8)
    if kind == "few":  # read by their entries
        features *= random.random(shape) < 0.2
    elif kind == "numbers":
        features = random.standard_normal(shape)
    labels = random.integers(0, classes, 40)
    dtype, equal = draw(st.sampled_from(["float32", "float64"])), draw(st.booleans())
    data = (features, labels)
    return module_problem(module, data, clients=3, partition="dirichlet:1", equal=equal, test=data, dtype=dtype)


def drawn(problem: ModuleProblem, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Models, two seeds of them, and minibatches of seven rows."""
    random = torch.Generator().manual_seed(seed)
    x = problem.x0() + torch.randn(6, problem.d, dtype=problem.dtype, generator=random)
    return x, torch.randint(0, problem.rows_per_client, (6, 7), generator=random)


@given(problems(), st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_gradients_and_measurements_are_those_of_torch(problem: ModuleProblem, seed: int) -> None:
    x, batch = drawn(problem, seed)
    found = problem.gradient(x, batch), problem.evaluate(x), problem.score(x)
    with only_reference():
        expected = problem.gradient(x, batch), problem.evaluate(x), problem.score(x)
    # Outputs reach some dozens here, and their rounding errors enter exponentials.
    bound = 1e-4 if problem.dtype == torch.float32 else 1e-11
    torch.testing.assert_close(found, expected, rtol=bound, atol=bound)


@given(problems(), st.integers(0, 99))
@settings(deadline=None, max_examples=30)
def test_a_client_does_not_notice_its_company(problem: ModuleProblem, seed: int) -> None:
    """Bit by bit: one seed alone, one model alone, and rows divided in any way."""
    x, batch = drawn(problem, seed)
    gradients, measured = problem.gradient(x, batch), problem.evaluate(x)
    assert torch.equal(problem.gradient(x[3:], batch[3:]), gradients[3:])
    assert torch.equal(problem.evaluate(x[2:3])["grad_norm"], measured["grad_norm"][2:3])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "_WORTH", 0)  # several threads for any work
        with pool.workers(3):
            assert torch.equal(problem.gradient(x, batch), gradients)
            assert torch.equal(problem.evaluate(x)["loss"], measured["loss"])


@pytest.mark.parametrize("row", [-1, 10**6])
def test_a_row_that_a_client_does_not_have(row: int) -> None:
    problem = gs.problems.one_hidden_layer("digits", clients=4, hidden=3)
    batch = torch.zeros(4, 1200, dtype=torch.int64)
    batch[2, 5] = row
    with pytest.raises(gs.InputError, match=f"The minibatch of client 2 has row {row}, but"):
        problem.gradient(problem.x0().expand(4, -1), batch)


def test_shapes_are_checked() -> None:
    problem = gs.problems.one_hidden_layer("digits", clients=4, hidden=3)
    batch = torch.zeros(4, 1200, dtype=torch.int64)
    with pytest.raises(gs.InputError, match=r"Models must be \(seeds \* 4, "):
        problem.gradient(problem.x0().expand(3, -1), batch[:3])
    with pytest.raises(gs.InputError, match="A minibatch must be"):
        problem.gradient(problem.x0().expand(4, -1), batch[:3])


def test_gradients_do_not_depend_on_what_was_loaded_before(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = gs.problems.one_hidden_layer("digits", clients=4, hidden=3)
    x, batch = problem.x0().expand(4, -1), torch.arange(8).view(4, 2)
    expected = problem.gradient(x, batch)
    monkeypatch.setattr(kernels, "is_loaded", lambda: False)
    assert torch.equal(problem.gradient(x, batch), expected)


def test_rows_that_cross_entropy_ignores_are_left_to_torch() -> None:
    random = np.random.default_rng(0)
    features, labels = random.standard_normal((40, 5)), random.integers(0, 3, 40)
    ignored = np.where(np.arange(40) % 4 == 0, -100, labels)
    module = nn.Sequential(nn.Linear(5, 3))
    problem = module_problem(
        module, (features, labels), clients=4, test=(features, ignored), loss=nn.CrossEntropyLoss()
    )
    found = problem.score(problem.x0()[None])
    with only_reference():
        expected = problem.score(problem.x0()[None])
    assert torch.equal(found["loss"], expected["loss"])
    assert torch.equal(found["accuracy"], expected["accuracy"])
