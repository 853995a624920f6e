"""The optimiser: what torch users know, and the very models that the simulator gives."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # which the first step of any optimiser imports: once here, not in every rank
from processes import spawn
from torch import Tensor, nn

import gossamer as gs
from gossamer.runtime.gradients.oracle import BatchOracle
from gossamer.runtime.simulation import Simulation
from gossamer.streams import Streams

N, BATCH, ROUNDS = 4, 16, 40
MIXING = gs.mixing_matrix(gs.ring(N), weights="fdla")
METHODS = [
    gs.BEER(lr=0.2, gamma=0.3, compressor=gs.gsgd(4)),
    gs.CHOCOSGD(lr=0.2, gamma=0.3, compressor=gs.top_k(20)),
    gs.DSGD(lr=0.2),
    gs.D2(lr=0.1),
]


def network() -> Any:
    torch.manual_seed(5)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10)).double()


def problem() -> Any:
    return gs.module_problem(network(), "digits", clients=N, partition="sorted", gradients="loop", dtype="float64")


def batch(mine: Any, rank: int, t: int) -> tuple[Tensor, Tensor]:
    """The rows that the simulator draws for this client in this round."""
    rows = Streams([0], [rank]).at(t, "batch").below(mine.rows_per_client, BATCH)[0]
    return mine.rows.inputs(rows), mine.rows.labels[rows]


def loss_of(model: nn.Module, mine: Any, rank: int, t: int) -> Tensor:
    features, labels = batch(mine, rank, t)
    return nn.functional.cross_entropy(model(features), labels)


def train(optimizer: Any, model: nn.Module, mine: Any, rank: int, rounds: int) -> None:
    for _ in range(rounds):
        optimizer.zero_grad()
        loss_of(model, mine, rank, optimizer.rounds).backward()
        optimizer.step()


def vector(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def results_of(function: Any, *arguments: Any, ranks: int = N) -> list[Any]:
    results = spawn(ranks, function, *arguments)
    for result in results:
        assert not isinstance(result, Exception), f"{result!r} {getattr(result, '__notes__', '')}"
    return results


def all_methods(rank: int) -> list[Tensor]:
    mine, found = problem().only(rank), []
    for method in METHODS:
        model = network()
        optimizer = gs.DecentralizedOptimizer(model.parameters(), method, MIXING)
        train(optimizer, model, mine, rank, ROUNDS)
        found.append(vector(model))
        optimizer.close()
    return found


def test_the_optimiser_gives_the_simulators_models() -> None:
    results = results_of(all_methods)
    for number, method in enumerate(METHODS):
        simulation = Simulation(method.with_minibatch_start(), problem(), MIXING, (0,), BATCH)
        with torch.no_grad():
            for _ in range(ROUNDS):
                simulation.step()
        models = torch.stack([result[number] for result in results])
        assert float((models - simulation.state.x).abs().max()) <= 1e-9, method.info.title


def schedule(rank: int) -> Any:
    mine, model = problem().only(rank), network()
    optimizer = gs.DecentralizedOptimizer(model.parameters(), METHODS[0], MIXING)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    seen = []
    for t in range(20):
        optimizer.zero_grad()
        with torch.autocast("cpu", enabled=False):
            loss = loss_of(model, mine, rank, t)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        seen.append(optimizer.param_groups[0]["lr"])
    optimizer.close()
    return vector(model), seen


def test_schedules_clipping_and_amp() -> None:
    results = results_of(schedule)
    assert results[0][1] == pytest.approx([0.2] * 9 + [0.02] * 10 + [0.002])
    simulation = Simulation(METHODS[0].with_minibatch_start(), problem(), MIXING, (0,), BATCH)

    class Clipped(BatchOracle):
        def __call__(self, x: Tensor) -> Tensor:
            gradient: Tensor = super().__call__(x)
            clipped: Tensor = gradient * (0.5 / (gradient.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1)
            return clipped

    session = simulation.session

    for t in range(20):
        oracle = Clipped(simulation.problem, session.streams, t, BATCH, {})
        with torch.no_grad():
            session.take(session.look_ahead(oracle, 0.2 if t < 10 else 0.02))
    models = torch.stack([result[0] for result in results])
    assert float((models - simulation.state.x).abs().max()) <= 1e-9


def groups(rank: int) -> Any:
    mine, model = problem().only(rank), network()
    settings = [{"params": model[1].parameters(), "lr": 0.0}, {"params": model[3].parameters(), "weight_decay": 0.5}]
    optimizer = gs.DecentralizedOptimizer(settings, gs.DSGD(lr=0.1, order="adapt-then-combine"), MIXING)
    before = copy.deepcopy(model)
    optimizer.zero_grad()
    loss_of(model, mine, rank, 0).backward()
    gradient = copy.deepcopy(model[3].weight.grad)
    optimizer.step()
    optimizer.close()
    own = before[3].weight - 0.1 * (gradient + 0.5 * before[3].weight)
    return torch.allclose(model[1].weight, before[1].weight, atol=1e-15), own.detach(), model[3].weight.detach()


def test_groups_have_their_own_step_and_decay() -> None:
    results = results_of(groups)
    assert all(result[0] for result in results), "a step of 0 moves nothing"
    own = torch.stack([result[1] for result in results])
    mixed = torch.einsum("ij,jkl->ikl", torch.tensor(MIXING.matrix), own)
    assert torch.allclose(torch.stack([result[2] for result in results]), mixed, atol=1e-12)


class OneStep(gs.DSGD):
    """A method that does not say that its step may differ between coordinates."""

    info = replace(gs.DSGD.info, lr_may_differ=False)


def mistakes(rank: int) -> dict[str, str]:
    model, said = network(), {}

    def attempt(name: str, make: Any) -> None:
        try:
            make()
        except gs.InputError as error:
            said[name] = str(error)

    two = [{"params": model[1].parameters()}, {"params": model[3].parameters()}]
    attempt("groups", lambda: gs.DecentralizedOptimizer(two, OneStep(lr=0.1), MIXING))
    strange = [{"params": model.parameters(), "momentum": 0.9}]
    attempt("momentum", lambda: gs.DecentralizedOptimizer(strange, METHODS[2], MIXING))
    attempt("half", lambda: gs.DecentralizedOptimizer(nn.Linear(2, 2).half().parameters(), METHODS[2], MIXING))
    attempt("mixing", lambda: gs.DecentralizedOptimizer(model.parameters(), METHODS[2], gs.ring(N)))  # type: ignore[arg-type]
    attempt("method", lambda: gs.DecentralizedOptimizer(model.parameters(), gs.DSGD, MIXING))  # type: ignore[arg-type]
    attempt("transport", lambda: gs.DecentralizedOptimizer(model.parameters(), METHODS[2], MIXING, transport="nccl"))
    large = gs.mixing_matrix(gs.ring(N + 1))
    attempt("size", lambda: gs.DecentralizedOptimizer(model.parameters(), METHODS[2], large))
    lr = 0.1 if rank != 2 else 0.2
    attempt("settings", lambda: gs.DecentralizedOptimizer(model.parameters(), gs.DSGD(lr=lr), MIXING))
    if rank == 3:
        model[1].weight.data[0, 0] += 1
    attempt("models", lambda: gs.DecentralizedOptimizer(model.parameters(), METHODS[2], MIXING))
    alike = gs.DecentralizedOptimizer(model.named_parameters(), METHODS[2], MIXING, initial="broadcast", timeout=10)
    said["broadcast"] = str(float(vector(model).sum()))
    attempt("more", lambda: alike.add_param_group({"params": [nn.Parameter(torch.ones(1).double())]}))
    if rank == 1:
        attempt("gradient", alike.step)
        return said
    try:
        train(alike, model, problem().only(rank), rank, 3)
    except gs.GossamerError as error:
        said["gradient"] = str(error)
    return said


def test_mistakes_are_sentences_on_every_rank() -> None:
    results = results_of(mistakes)
    expected = {
        "groups": "DSGD has one step size for all parameters, got 2 groups",
        "momentum": "takes `lr` and `weight_decay`, got 'momentum'",
        "half": "got float16 on cpu; for mixed precision",
        "mixing": "`mixing` must be made by gossamer.mixing_matrix",
        "method": "`method` must be a method",
        "transport": "Unknown transport 'nccl'",
        "size": "5 clients, but 4 processes were started",
        "settings": "the method's lr is 0.2 on rank 2, but 0.1 on rank 0",
        "models": "the initial model on rank 3 differs from that on rank 0; call torch.manual_seed",
        "more": "cannot be added",
        "gradient": "Parameter '1.weight', of shape (8, 64), has no gradient in round 0 on rank 1",
    }
    for name, sentence in expected.items():
        for result in results:
            assert sentence in result.get(name, ""), (name, result)
    assert len({result["broadcast"] for result in results}) == 1


def saving(rank: int, folder: Path) -> Any:
    mine, model = problem().only(rank), network()
    method = METHODS[0]
    optimizer = gs.DecentralizedOptimizer(model.parameters(), method, MIXING)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    for _ in range(10):
        train(optimizer, model, mine, rank, 1)
        scheduler.step()
    kept = copy.deepcopy(optimizer.state_dict())
    torch.save(kept, folder / f"{rank}.pt")
    optimizer.save(folder, every=5)
    train(optimizer, model, mine, rank, 10)
    straight = vector(model)
    optimizer.load_state_dict(torch.load(folder / f"{rank}.pt", weights_only=True))
    at = (optimizer.rounds, optimizer.param_groups[0]["lr"])
    links = kept["client"]["facts"]["links"]
    assert all(link["packets_sent"] == link["packets_received"] == 10 for link in links), "the last one, too"
    train(optimizer, model, mine, rank, 10)
    loaded = vector(model)
    optimizer.close()
    other = network()
    again = gs.DecentralizedOptimizer(other.parameters(), method, MIXING)
    began = again.resume(folder)
    train(again, other, mine, rank, 10)
    resumed = vector(other)
    refused = ""
    try:
        again.load_state_dict(kept | {"client": kept["client"] | {"identity": {}}})
    except gs.InputError as error:
        refused = str(error)
    again.close()
    return straight, loaded, resumed, at, began, refused


def test_state_goes_on_bit_for_bit(tmp_path: Path) -> None:
    for straight, loaded, resumed, at, began, refused in results_of(saving, tmp_path):
        assert torch.equal(straight, loaded)
        assert torch.equal(straight, resumed)
        assert at == (10, pytest.approx(0.2 * 0.99**10))
        assert began == 10
        assert "not this rank's: `client` is None there" in refused


def averaging(rank: int) -> Any:
    torch.manual_seed(5)
    model: Any = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).double()
    optimizer = gs.DecentralizedOptimizer(model.parameters(), gs.DSGD(lr=0.5), MIXING)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 3, generator=generator, dtype=torch.float64)).square().sum().backward()
        optimizer.step()
    own, mean = vector(model), model[1].running_mean.clone()
    with optimizer.average_model():  # which finds the buffers of the module without being told
        exact, exact_mean = vector(model), model[1].running_mean.clone()
    with optimizer.average_model(model, how="gossip"):
        gossip = vector(model)
    same = torch.equal(own, vector(model)) and torch.equal(mean, model[1].running_mean)
    averaged = optimizer.average_state_dict(model)
    optimizer.step()
    optimizer.close()
    return own, mean, exact, exact_mean, gossip, same, averaged


def test_the_average_model_is_lent() -> None:
    results = results_of(averaging)
    average, mean = (torch.stack([result[k] for result in results]).mean(dim=0) for k in (0, 1))
    spread = max(float((result[0] - average).norm()) for result in results)
    for _, _, exact, exact_mean, gossip, same, averaged in results:
        assert torch.allclose(exact, average, atol=1e-12)
        assert torch.allclose(exact_mean, mean, atol=1e-12)
        assert float((gossip - average).norm()) <= spread / 500
        assert same
        assert list(averaged) == list(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).state_dict())
        assert torch.equal(averaged["1.running_mean"], exact_mean)
        assert int(averaged["1.num_batches_tracked"]) == 5
        assert all(torch.equal(averaged[name], results[0][-1][name]) for name in averaged), "the same on every rank"


def normalised() -> Any:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(30, 6), nn.BatchNorm1d(6, affine=False), nn.Tanh(), nn.Linear(6, 2)).double()


def with_batch_norm(rank: int, form: str) -> Any:
    model = normalised()
    whole = gs.module_problem(model, "breast_cancer", clients=N, dtype="float64")
    mine = whole.only(rank)
    given: Any = {
        "generator": model.parameters,
        "list": lambda: list(model.parameters()),
        "groups": lambda: [{"params": model[0].parameters()}, {"params": model[3].parameters()}],
    }[form]()
    optimizer = gs.DecentralizedOptimizer(given, METHODS[0], MIXING)
    train(optimizer, model, mine, rank, ROUNDS)
    with optimizer.average_model():
        model.eval()
        score = float(whole.score(torch.cat([vector(model), *map(torch.flatten, floats(model))])[None])["loss"][0])
    averaged = optimizer.average_state_dict(model)
    optimizer.close()
    return score, averaged


def floats(model: nn.Module) -> list[Tensor]:
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]


@pytest.mark.parametrize("form", ["generator", "list", "groups"])
def test_the_average_with_batch_norm_is_one_model_and_the_simulators(form: str) -> None:
    results = results_of(with_batch_norm, form)
    whole = gs.module_problem(normalised(), "breast_cancer", clients=N, dtype="float64")
    method = METHODS[0].with_minibatch_start()
    run = gs.simulate(method, whole, MIXING, rounds=ROUNDS, batch_size=BATCH)
    expected = whole.as_module(run.average).state_dict()
    for score, averaged in results:
        assert score == results[0][0] == pytest.approx(float(whole.score(run.average[None])["loss"][0]), rel=1e-9)
        for name, value in averaged.items():
            if value.is_floating_point():
                torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-9)
            assert torch.equal(value, results[0][1][name])


def closures(rank: int) -> Any:
    mine, model = problem().only(rank), network()
    method = gs.BEER(lr=0.2, gamma=0.3, compressor=gs.gsgd(4), tracker="reevaluated")
    optimizer = gs.DecentralizedOptimizer(model.parameters(), method, MIXING)
    for t in range(10):

        def closure(t: int = t) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, mine, rank, t)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
    said = ""
    try:
        optimizer.client.session.settle()  # nobody waits for this rank any more when it fails
        optimizer.zero_grad()
        loss_of(model, mine, rank, 10).backward()
        optimizer.step()
    except gs.GossamerError as error:
        said = str(error)
    return vector(model), float(loss.detach()), said


def test_methods_that_look_twice_take_a_closure() -> None:
    results = results_of(closures)
    method = gs.BEER(lr=0.2, gamma=0.3, compressor=gs.gsgd(4), tracker="reevaluated", start="minibatch")
    simulation = Simulation(method, problem(), MIXING, (0,), BATCH)
    with torch.no_grad():
        for _ in range(10):
            simulation.step()
    models = torch.stack([result[0] for result in results])
    assert float((models - simulation.state.x).abs().max()) <= 1e-9
    assert all("pass a closure to step()" in result[2] for result in results)
