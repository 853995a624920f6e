"""The optimiser with an inner one, and loops of unequal length."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # which the first step of any optimiser imports: once here, not in every rank
from processes import spawn
from torch import Tensor, nn

import gossamer as gs
from gossamer.algorithms import KGT, CompressedKGT, MoTEFVR
from gossamer.streams import Streams

N, BATCH, EVERY = 4, 8, 5
MIXING = gs.mixing_matrix(gs.ring(N), weights="fdla")
BEER = gs.BEER(lr=0.2, gamma=0.3, compressor=gs.gsgd(4))
SUMS = gs.CHOCOSGD(lr=1.0, gamma=0.3, compressor=gs.gsgd(4))
CORRECTED = CompressedKGT(lr=1.0, gamma=0.3, compressor=gs.gsgd(4), order="fresh")
CASES: dict[str, tuple[gs.Algorithm, Any, dict[str, Any], float]] = {
    "sums of SGD": (SUMS, torch.optim.SGD, {"lr": 0.05, "momentum": 0.5}, 0.0),
    "sums of AdamW": (SUMS, torch.optim.AdamW, {"lr": 0.003, "weight_decay": 0.1}, 0.0),
    "outer momentum": (gs.DSGD(lr=0.7), torch.optim.AdamW, {"lr": 0.003}, 0.5),
    "corrected AdamW": (CORRECTED, torch.optim.AdamW, {"lr": 0.003}, 0.0),
    "K-GT": (KGT(lr=1.0), torch.optim.SGD, {"lr": 0.05}, 0.0),
}


def network() -> Any:
    torch.manual_seed(5)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Tanh(), nn.Linear(6, 10)).double()


def problem() -> Any:
    return gs.module_problem(network(), "digits", clients=N, partition="sorted", gradients="loop", dtype="float64")


def backward(model: nn.Module, mine: Any, rank: int, step: int, every: int = EVERY) -> None:
    """The gradient on the rows that the simulator draws for this local step."""
    rows = Streams([0], [rank]).at(step // every, "batch").below(mine.rows_per_client, every * BATCH)[0]
    rows = rows[step % every * BATCH : (step % every + 1) * BATCH]
    model.zero_grad()
    nn.functional.cross_entropy(model(mine.rows.inputs(rows)), mine.rows.labels[rows]).backward()  # type: ignore[no-untyped-call]


def vector(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def made(name: str) -> tuple[Any, Any, Any]:
    method, kind, settings, momentum = CASES[name]
    model = network()
    inner = kind(model.parameters(), **settings)
    optimizer = gs.DecentralizedOptimizer(
        model.parameters(), method, MIXING, inner=inner, every=EVERY, outer_momentum=momentum
    )
    return model, inner, optimizer


def results_of(function: Any, *arguments: Any) -> list[Any]:
    results = spawn(N, function, *arguments)
    for result in results:
        assert not isinstance(result, Exception), f"{result!r} {getattr(result, '__notes__', '')}"
    return results


def train(rank: int, name: str, rounds: int) -> Tensor:
    mine = problem().only(rank)
    model, _, optimizer = made(name)
    while optimizer.rounds < rounds:
        backward(model, mine, rank, optimizer.steps)
        optimizer.step()
    optimizer.close()
    return vector(model)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "corrected AdamW" else pytest.mark.slow) for name in CASES]
)
def test_an_inner_optimiser_gives_the_simulators_models(name: str) -> None:
    rounds = 50 if name in ("sums of SGD", "sums of AdamW") else 15
    method, kind, settings, momentum = CASES[name]
    models = torch.stack(results_of(train, name, rounds))
    local = gs.LocalSteps(kind, steps=EVERY, outer_momentum=momentum, **settings)
    run = gs.simulate(method, problem(), MIXING, rounds=rounds, batch_size=BATCH, local=local, eval_every=rounds)
    assert float((models - run.x).abs().max()) <= 1e-10


def stopped(rank: int, folder: str, name: str, how: str, until: int) -> Any:
    """Save after step 13, in the middle of a round; go on in another optimiser."""
    mine, scheduled = problem().only(rank), []
    model, inner, optimizer = made(name)
    schedule = torch.optim.lr_scheduler.StepLR(inner, step_size=4, gamma=0.7)

    def go(until: int) -> None:
        while optimizer.steps < until:
            backward(model, mine, rank, optimizer.steps)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()

    if how != "never":
        go(13)
        kept, times = optimizer.state_dict(), schedule.state_dict()
        if how == "folder":
            optimizer.save(folder)
        optimizer.close()
        model, inner, optimizer = made(name)
        schedule = torch.optim.lr_scheduler.StepLR(inner, step_size=4, gamma=0.7)
        if how == "folder":
            assert optimizer.resume(folder) == 13
        else:
            optimizer.load_state_dict(kept)
        schedule.load_state_dict(times)
    go(until)
    scheduled.append(inner.param_groups[0]["lr"])
    optimizer.close()
    return vector(model), scheduled


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sums of AdamW", "outer momentum", "corrected AdamW"])
def test_checkpoints_hold_the_moments(name: str, tmp_path: Path) -> None:
    whole = results_of(stopped, str(tmp_path), name, "never", 32)
    for how in ("folder", "dict"):
        again = results_of(stopped, str(tmp_path), name, how, 32)
        for (one, lr), (other, same) in zip(whole, again, strict=True):
            assert torch.equal(one, other)
            assert lr == same


def accumulated(rank: int) -> tuple[Tensor, Tensor]:
    """Two halves of a batch, under autocast, against the whole of it."""
    mine, found = problem().only(rank), []
    for parts in (1, 2):
        model, _, optimizer = made("sums of AdamW")
        for t in range(2 * EVERY):
            rows = torch.arange(8 * t, 8 * t + 8)
            model.zero_grad()
            for part in rows.chunk(parts):
                with torch.autocast("cpu", enabled=False):
                    loss = nn.functional.cross_entropy(model(mine.rows.inputs(part)), mine.rows.labels[part])
                (loss / parts).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        assert all(p.grad is not None for p in model.parameters())
        found.append(vector(model))
        optimizer.close()
    return found[0], found[1]


def test_accumulated_gradients() -> None:
    for one, other in results_of(accumulated):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def loaded_late(rank: int, has_inner: bool) -> tuple[int, Tensor, Tensor]:
    """Weights loaded after the optimiser was made, then rounds without a gradient."""
    model = network()
    how: dict[str, Any] = {"inner": torch.optim.SGD(model.parameters(), lr=0.1)} if has_inner else {}
    optimizer = gs.DecentralizedOptimizer(model.parameters(), gs.DSGD(lr=1.0), MIXING, **how)
    model.load_state_dict({name: 2 * value for name, value in model.state_dict().items()})
    before = vector(model)
    for _ in range(3):
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
    storages = {p.untyped_storage().data_ptr() for p in model.parameters()}
    optimizer.close()
    return len(storages), before, vector(model)


@pytest.mark.parametrize("has_inner", [False, True])
def test_parameters_keep_memory_of_their_own(has_inner: bool) -> None:
    """Tools that save a model take parts of one tensor for tied weights, and drop all but one."""
    for storages, before, after in results_of(loaded_late, has_inner):
        assert storages == 4
        torch.testing.assert_close(after, before, rtol=0, atol=1e-12)


def autocast(rank: int) -> list[float]:
    """bfloat16 inside, parameters and moments in float32."""
    alike = gs.module_problem(network(), "digits", clients=N, partition="iid", gradients="loop", dtype="float64")
    mine: Any = alike.only(rank)
    model = network().float()
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer = gs.DecentralizedOptimizer(model.parameters(), SUMS, MIXING, inner=inner, every=EVERY)
    losses = []
    for t in range(8 * EVERY):
        rows = torch.arange(8 * t, 8 * t + 8) % mine.rows_per_client
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = model(mine.rows.inputs(rows).float())
        assert output.dtype == torch.bfloat16
        loss = nn.functional.cross_entropy(output.float(), mine.rows.labels[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    optimizer.close()
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    return [sum(losses[:EVERY]), sum(losses[-EVERY:])]


def test_autocast() -> None:
    for first, last in results_of(autocast):
        assert last < 0.9 * first


def bad_input(rank: int) -> list[str]:
    model, other, found = network(), network(), []
    method, how = SUMS, dict[str, Any]
    adam = torch.optim.AdamW
    cases: list[dict[str, Any]] = [
        how(inner=adam(other.parameters())),
        how(inner=adam(list(model.parameters())[:2])),
        how(inner=adam(model.parameters()), every=0),
        how(inner=adam),
        how(inner=torch.optim.LBFGS(model.parameters())),
        how(every=5),
        how(inner=adam(model.parameters()), outer_momentum=1.5),
        how(inner=adam(model.parameters()), weight_decay=0.1),
    ]
    for case in cases:
        try:
            gs.DecentralizedOptimizer(model.parameters(), method, MIXING, **case)
        except gs.InputError as error:
            found.append(str(error))
    optimizer = gs.DecentralizedOptimizer(
        model.parameters(), MoTEFVR(lr=1.0, gamma=0.3, compressor=gs.gsgd(4)), MIXING, inner=adam(model.parameters())
    )
    mine = problem().only(rank)
    for t in range(2):
        backward(model, mine, rank, t)
        try:
            optimizer.step()
        except gs.GossamerError as error:  # a neighbour's, if it was first
            found.append(str(error))
            break
    return found


def test_bad_input_gets_a_sentence() -> None:
    found = results_of(bad_input)[0]
    expected = [
        "`inner` is over other parameters: it lacks 4 of the 4",
        "`inner` is over other parameters: it lacks 2 of the 4",
        "`every` must be an integer of 1 or more, got 0",
        "`inner` must be an optimiser such as torch.optim.AdamW(...)",
        "`inner` must take steps without a closure, which LBFGS does not",
        "`every` and `outer_momentum` are those of `inner`",
        "`outer_momentum` must be in [0, 1), got 1.5",
        "With `inner`, weight decay is that of the inner optimiser",
        "takes several gradients per round",
    ]
    assert len(found) == len(expected)
    for sentence, begin in zip(found, expected, strict=True):
        assert begin in sentence
        assert "\n" not in sentence


def unequal(rank: int, name: str, more: int) -> Any:
    """Rank 1 has `more` batches than the others; twice, as two epochs."""
    mine, model = problem().only(rank), network()
    inner = None
    if name == "inner":
        inner = torch.optim.AdamW(model.parameters(), lr=0.003)
    methods = {"beer": BEER, "dsgd": gs.DSGD(lr=0.2), "inner": CORRECTED}
    how: dict[str, Any] = {} if inner is None else {"inner": inner, "every": 2}
    optimizer = gs.DecentralizedOptimizer(model.parameters(), methods[name], MIXING, **how)
    ends, sums = [], []
    for epoch in range(2):
        with optimizer.join():
            for step in range(4 + (more if rank == 1 else 0)):
                backward(model, mine, rank, 100 * epoch + step, 1)
                optimizer.step()
        ends.append(optimizer.rounds)
        optimizer.client.session.settle()
        state = optimizer.client.state
        sums.append((state.v, state.old) if name == "beer" else None)
        assert not optimizer.should_stop
    optimizer.close()
    return ends, vector(model), sums


@pytest.mark.parametrize("more", [1, pytest.param(3, marks=pytest.mark.slow), pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["beer", *(pytest.param(one, marks=pytest.mark.slow) for one in ("dsgd", "inner"))])
def test_loops_of_unequal_length(name: str, more: int) -> None:
    results = results_of(unequal, name, more)
    ends = [one[0] for one in results]
    assert all(one == ends[0] for one in ends), "all leave after the same round"
    steps = 4 + more
    first = steps if name != "inner" else steps // 2
    assert first <= ends[0][0] <= first + 2 * MIXING.diameter + 4
    models = torch.stack([one[1] for one in results])
    assert bool(torch.isfinite(models).all())
    if name == "beer":
        for epoch in range(2):  # the mean of the trackers is that of the last gradients, whoever ran out of data
            v, old = (torch.cat([one[2][epoch][k] for one in results]) for k in (0, 1))
            torch.testing.assert_close(v.mean(0), old.mean(0).double(), rtol=0, atol=1e-12)


def stopped_while_others_wait(rank: int) -> tuple[int, bool]:
    mine, model = problem().only(rank), network()
    optimizer = gs.DecentralizedOptimizer(model.parameters(), BEER, MIXING)
    with optimizer.join():
        for step in range(3 if rank else 10_000):
            backward(model, mine, rank, step, 1)
            optimizer.step()
            if step == 20:
                optimizer.ask_to_stop()
            if optimizer.should_stop:
                break
    ended = optimizer.rounds, optimizer.should_stop
    optimizer.close()
    return ended


def test_a_stop_reaches_those_who_wait() -> None:
    results = results_of(stopped_while_others_wait)
    assert len(set(results)) == 1
    assert results[0][1]
