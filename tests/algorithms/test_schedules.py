"""Step sizes by torch's conventions, for every method."""

from typing import Any

import pytest
import torch

import gossamer as gs
from gossamer.algorithms import schedules
from gossamer.algorithms.schedules import Schedule, check_lr
from gossamer.registry import methods
from gossamer.spec import parse_spec


def warm(optimizer: Any, warmup: int, rest: int) -> Any:
    """A linear warm-up, then a cosine."""
    up = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / warmup, total_iters=warmup - 1)
    down = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, rest, 0.01)
    return torch.optim.lr_scheduler.SequentialLR(optimizer, [up, down], [warmup])


CASES: list[tuple[Schedule, Any]] = [
    (schedules.constant(0.3), lambda o: torch.optim.lr_scheduler.ConstantLR(o, factor=1.0)),
    (schedules.step(0.3, 7, 0.5), lambda o: torch.optim.lr_scheduler.StepLR(o, 7, 0.5)),
    (schedules.step(0.3, 3), lambda o: torch.optim.lr_scheduler.StepLR(o, 3)),
    (schedules.cosine(0.3, 20), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 20)),
    (schedules.cosine(0.3, 20, 0.01), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 20, 0.01)),
    (schedules.warmup_cosine(0.3, 50, 0, 0.01), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 50, 0.01)),
    (schedules.warmup_cosine(0.3, 50, 7, 0.01), lambda o: warm(o, 7, 43)),
    (schedules.inverse(0.3, 0.2), lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda t: 1 / (1 + 0.2 * t))),
]


@pytest.mark.parametrize(("schedule", "theirs"), CASES, ids=[str(case[0]) for case in CASES])
def test_as_torch(schedule: Schedule, theirs: Any) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    scheduler = theirs(optimizer)
    for t in range(50):
        assert schedule(t) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9, abs=1e-12)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("name", methods.names())
def test_every_method_follows_one(name: str) -> None:
    cls: Any = methods.get(name)
    compressor = {"compressor": gs.qsgd(16)} if "compressor" in cls.__dataclass_fields__ else {}
    settings = dict(cls.examples[0]) | compressor
    problem, mixing = gs.quadratic(clients=6, d=9, noise=0.5, dtype="float64"), gs.mixing_matrix(gs.ring(6))
    halves = cls(**settings | {"lr": schedules.step(settings["lr"], 5, 0.5)})
    runs = [gs.simulate(m, problem, mixing, rounds=5, batch_size=2) for m in (cls(**settings), halves)]
    assert torch.equal(runs[0].x, runs[1].x)
    runs = [gs.simulate(m, problem, mixing, rounds=6, batch_size=2) for m in (cls(**settings), halves)]
    assert not torch.equal(runs[0].x, runs[1].x)
    described = runs[1].record.header.method["lr"]
    assert str(described).startswith("step(lr=")


def test_a_warm_up_ends_low() -> None:
    schedule = schedules.warmup_cosine(0.3, 50, 7, 0.01)
    assert schedule(50) == schedule(1000) == pytest.approx(0.01)
    with pytest.raises(gs.InputError, match=r"`warmup` must be below `T_max`, 5, got 5\."):
        schedules.warmup_cosine(0.3, 5, 5)


def test_lead_cannot_go_to_zero() -> None:
    with pytest.raises(gs.InputError, match="divides by its step size"):
        gs.algorithms.LEAD(lr=schedules.cosine(0.1, 10), gamma=0.1, compressor=gs.qsgd(16))
    gs.algorithms.LEAD(lr=schedules.cosine(0.1, 10, 0.001), gamma=0.1, compressor=gs.qsgd(16))


def test_in_a_spec() -> None:
    from gossamer.runtime.experiment import prepare

    table: dict[str, Any] = {
        "rounds": 10,
        "problem": {"objective": "quadratic", "clients": 6},
        "graph": {"name": "ring"},
        "methods": [
            {"name": "dsgd", "lr": "cosine:0.1,10"},
            {"name": "d2", "lr": {"name": "step", "lr": 0.1, "step_size": 5}},
            {"name": "beer", "lr": "auto", "gamma": "auto", "compressor": "gsgd:5"},
            {"name": "choco_sgd", "lr": "auto", "gamma": 0.3, "compressor": "gsgd:5"},
        ],
    }
    experiment = prepare(parse_spec(table))
    dsgd, d2, beer, choco = (method for method, _ in experiment.methods.values())
    assert dsgd.lr == schedules.cosine(0.1, 10)
    assert d2.lr == schedules.step(0.1, 5)
    assert beer == gs.auto_steps(gs.BEER, experiment.problem, experiment.mixing, gs.gsgd(5), rounds=10)
    assert choco == gs.auto_steps(gs.CHOCOSGD, experiment.problem, experiment.mixing, gs.gsgd(5), rounds=10, gamma=0.3)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("cosinus:0.1,10", r"[Uu]nknown schedule 'cosinus'.*Did you mean 'cosine'"),
        ("cosine:0.1", "needs the setting `T_max`"),
        ("cosine:0.1,0", "`T_max` must be an integer of 1 or more, got 0"),
        ("step:-1,5", "`lr` must be a number above 0, got -1"),
        ("step:1,5,2", r"`gamma` must be in \(0, 1\], got 2"),
        ({"name": "cosine", "lr": 0.1, "T_max": 5, "eta_min": 1}, "at most `lr`"),
        ({"lr": 0.1}, "needs a `name`"),
        (0.0, "`lr` must be a number above 0"),
        (None, "`lr` must be a number above 0"),
    ],
)
def test_mistakes_are_sentences(value: Any, sentence: str) -> None:
    with pytest.raises(gs.InputError, match=sentence):
        check_lr(value)
