"""Any nn.Module as a problem."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gossamer as gs
from gossamer.problems import ModuleProblem, module_problem
from gossamer.runtime.simulation import Simulation

RNG = np.random.default_rng(0)
IMAGES = (RNG.standard_normal((80, 1, 6, 6)).astype(np.float32), np.arange(80) % 4)
ROWS = (RNG.standard_normal((80, 6)).astype(np.float32), np.arange(80) % 4)
HOLED = np.where(np.arange(480).reshape(80, 6) == 100, np.nan, 1.0)
MIXING = gs.mixing_matrix(gs.ring(4), "fdla")


def seeded(build: Any) -> nn.Module:
    torch.manual_seed(0)
    module: nn.Module = build()
    return module


def normed() -> nn.Module:
    return seeded(
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4))
    )


def dropping() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4)))


def layers(*activations: nn.Module) -> nn.Module:
    def build() -> nn.Module:
        parts: list[nn.Module] = [nn.Flatten()]
        for activation in activations:
            parts += [nn.Linear(6, 6), activation]
        return nn.Sequential(*parts, nn.Linear(6, 4))

    return seeded(build)


def batch_for(problem: ModuleProblem, seeds: int = 2, size: int = 5) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    x = problem.x0() + 0.1 * torch.randn(seeds * problem.clients, problem.d, dtype=problem.dtype)
    return x, torch.randint(0, problem.rows_per_client, (len(x), size))


@pytest.mark.parametrize(
    "activations", [(), (nn.Sigmoid(),), (nn.Tanh(), nn.ReLU()), (nn.ReLU(), nn.Sigmoid(), nn.Tanh())]
)
def test_three_ways_to_one_gradient(activations: tuple[nn.Module, ...]) -> None:
    found = {}
    ways: tuple[Any, ...] = ("closed", "vmap", "loop")
    for way in ways:
        problem = module_problem(layers(*activations), ROWS, clients=4, gradients=way, dtype="float64")
        x, batch = batch_for(problem)
        found[way] = (problem.gradient(x, batch), problem.gradient(x))
    for way in ("vmap", "loop"):
        for one, two in zip(found["closed"], found[way], strict=True):
            torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)


def test_the_way_is_chosen_by_rule() -> None:
    def way(module: nn.Module, data: Any = ROWS, **more: Any) -> str:
        return module_problem(module, data, clients=4, partition="iid", **more).gradients

    assert way(layers(nn.Sigmoid())) == "closed"
    assert way(layers(nn.Sigmoid()), loss=nn.CrossEntropyLoss()) == "closed"
    assert way(layers(nn.Sigmoid()), loss=nn.CrossEntropyLoss(label_smoothing=0.1)) == "vmap"
    assert way(layers(nn.GELU())) == "vmap"
    assert way(nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 4))) == "vmap"
    assert way(normed(), IMAGES) == "loop", "convolutions on a CPU"
    assert way(dropping()) == "loop", "it draws random numbers"

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.linear(x)
            return out if out.sum() > 0 else 2 * out  # vmap cannot look at a value

    assert way(Branches()) == "loop"
    assert way(layers(nn.Sigmoid()), gradients="loop") == "loop"


def test_closed_forms_are_for_what_they_describe() -> None:
    """Whatever is not quite a stack of layers with plain cross-entropy takes another way, and the right gradient."""

    class Focal(nn.CrossEntropyLoss):
        def forward(self, output: Tensor, labels: Tensor) -> Tensor:
            return super().forward(output, labels) * 2

    hooked, tied, normal = (layers(nn.Sigmoid(), nn.ReLU()) for _ in range(3))
    hooked.get_submodule("1").register_forward_hook(lambda _module, _inputs, output: 3 * output)
    tied.get_submodule("3").weight = tied.get_submodule("1").weight
    spectral = layers(nn.Sigmoid())
    nn.utils.parametrizations.spectral_norm(spectral.get_submodule("1"))
    one_hot = np.eye(4, dtype=np.float32)[ROWS[1]]
    holes = np.where(np.arange(80) % 7 == 0, -100, ROWS[1])
    cases: list[tuple[nn.Module, Any, dict[str, Any]]] = [
        (hooked, ROWS, {}),
        (tied, ROWS, {}),
        (spectral, ROWS, {}),
        (normal, ROWS, {"loss": Focal()}),
        (normal, (ROWS[0], one_hot), {}),
        (normal, (ROWS[0], holes), {}),
    ]
    for module, data, more in cases:
        problem = module_problem(module, data, clients=4, partition="iid", dtype="float64", **more)
        assert problem.gradients != "closed"
        looped = module_problem(module, data, clients=4, partition="iid", dtype="float64", gradients="loop", **more)
        x, batch = batch_for(problem)
        torch.testing.assert_close(problem.gradient(x, batch), looped.gradient(x, batch))


def test_a_module_that_works_in_place_does_not_change_the_data() -> None:
    module = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 4))
    problem = module_problem(module, ROWS, clients=4, partition="iid", test=ROWS)
    before = problem.rows.features.clone()
    gs.simulate(gs.DSGD(lr=0.1), problem, MIXING, rounds=3)
    assert torch.equal(problem.rows.features, before)


def test_buffers_of_any_shape() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 4)
            self.register_buffer("scale", torch.tensor(2.0))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.linear(x) * self.scale
            return out

    run = gs.simulate(gs.DSGD(lr=0.1), module_problem(Scaled(), ROWS, clients=4, partition="iid"), MIXING, rounds=3)
    assert run.snapshot.shape[1] == run.d + 1


def test_batch_norm_and_single_rows() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))

    odd = (RNG.standard_normal((2004, 6)), np.arange(2004) % 4)
    problem = module_problem(seeded(build), odd, clients=4, partition="iid")
    assert problem.rows_per_client == 501, "500 and one more"
    run = gs.simulate(gs.DSGD(lr=0.1), problem, MIXING, rounds=2)
    assert problem.smoothness(run.average) > 0
    with pytest.raises(
        gs.InputError, match="`batch_size` must be at least 2, since the module cannot train on one row, got 1"
    ):
        gs.simulate(gs.DSGD(lr=0.1), problem, MIXING, rounds=1, batch_size=1)
    with pytest.raises(gs.InputError, match="row by row, and this module cannot train on one row"):
        problem.gradient_noise()
    with pytest.raises(gs.InputError, match="Expected more than 1 value per channel"):
        module_problem(seeded(build), (odd[0][:4], odd[1][:4]), clients=4)


def test_groups_do_not_change_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, data in ((layers(nn.Sigmoid()), ROWS), (layers(nn.GELU()), ROWS)):
        problem = module_problem(module, data, clients=4, dtype="float64")
        x, batch = batch_for(problem)
        whole = problem.gradient(x, batch), problem.gradient(x)
        with monkeypatch.context() as patched:
            patched.setattr("gossamer.problems.modules.module._GROUP_BYTES", 1)
            patched.setattr("gossamer.problems.modules.module._ROWS", 7)
            for one, two in zip((problem.gradient(x, batch), problem.gradient(x)), whole, strict=True):
                torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("way", ["loop", "vmap"])
def test_batch_norm_follows_its_client(way: Any) -> None:
    """A client's running means are those that torch's own training would leave, and no other client's."""
    problem = module_problem(normed(), IMAGES, clients=4, partition="iid", gradients=way, dtype="float64")
    assert problem.has_buffers
    x, batch = batch_for(problem, seeds=1)
    buffers = problem.new_buffers(4)
    for _ in range(3):
        problem.gradient(x, batch, buffers)
    for i in range(4):
        alone = problem.as_module(x[i]).train()
        rows = problem.rows.inputs(problem.rows.index(batch)[i])
        for _ in range(3):
            alone(rows)
        norm = alone.get_submodule("1")
        assert isinstance(norm, nn.BatchNorm2d)
        assert norm.running_mean is not None
        torch.testing.assert_close(buffers["1.running_mean"][i], norm.running_mean)
        assert int(buffers["1.num_batches_tracked"][i]) == 3


def test_buffers_in_a_simulation() -> None:
    """Moved once a round, averaged for evaluation, dropped with their seed, and the same whichever seeds run beside."""
    problem = module_problem(normed(), IMAGES, clients=4, partition="iid", test=IMAGES)
    again = gs.BEER(lr=0.05, gamma=0.5, compressor=gs.gsgd(5), tracker="reevaluated", start="minibatch")
    sim = Simulation(again, problem, MIXING, [0, 1], 8)
    with torch.no_grad():
        for _ in range(3):
            sim.step()
    assert sim.buffers["1.num_batches_tracked"].tolist() == [3] * 8, "the second gradient of a round moves nothing"
    assert sim.snapshot().shape == (2, 4, problem.d + 6)
    kept = sim.buffers["1.running_mean"][4:].clone()
    sim.drop([0])
    assert torch.equal(sim.buffers["1.running_mean"], kept)
    runs = gs.sweep(again, problem, MIXING, rounds=5, batch_size=8, seeds=[0, 1])
    alone = gs.simulate(again, problem, MIXING, rounds=5, batch_size=8, seed=1)
    torch.testing.assert_close(runs[1].snapshot, alone.snapshot)
    module = problem.as_module(alone.average)
    assert not module.training
    expected = (module(problem.test.inputs(slice(None))).argmax(dim=1) == problem.test.labels).double().mean()  # type: ignore[union-attr]
    assert alone.final.accuracy == pytest.approx(float(expected))
    assert alone.x.shape == (4, problem.d)


def test_dropout_follows_the_clients_stream() -> None:
    problem = module_problem(dropping(), ROWS, clients=4, partition="iid", test=ROWS)
    assert problem.is_random
    state = torch.random.get_rng_state()
    method = gs.DSGD(lr=0.1)
    runs = gs.sweep(method, problem, MIXING, rounds=6, batch_size=4, seeds=[0, 1])
    assert torch.equal(torch.random.get_rng_state(), state), "the user's generator is left alone"
    torch.manual_seed(7)
    for seed in (0, 1):
        alone = gs.simulate(method, problem, MIXING, rounds=6, batch_size=4, seed=seed)
        assert torch.equal(alone.x, runs[seed].x), "whatever runs beside it, and whatever the global seed"
    assert not torch.equal(runs[0].x, runs[1].x)
    assert not module_problem(layers(nn.ReLU()), ROWS, clients=4).is_random
    hidden = dropping()
    nn.init.zeros_(hidden.get_submodule("3").weight)  # type: ignore[arg-type]
    assert module_problem(hidden, ROWS, clients=4).is_random, "also where it does not show"


def test_what_the_user_gave_is_left_alone() -> None:
    module = normed()
    before = copy.deepcopy(module.state_dict())
    problem = module_problem(module, IMAGES, clients=4, partition="iid")
    gs.simulate(gs.DSGD(lr=0.1), problem, MIXING, rounds=3, batch_size=4)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_frozen_parameters_stay() -> None:
    module = layers(nn.GELU())
    next(iter(module.parameters())).requires_grad_(False)
    problem = module_problem(module, ROWS, clients=4, partition="iid")
    assert problem.d == sum(p.numel() for p in module.parameters()) - 36
    run = gs.simulate(gs.DSGD(lr=0.1), problem, MIXING, rounds=3)
    after = problem.as_module(run.average)
    assert torch.equal(next(iter(after.parameters())), next(iter(module.parameters())))


def test_data_of_every_kind() -> None:
    tensors = torch.from_numpy(ROWS[0]), torch.from_numpy(ROWS[1])
    dataset = torch.utils.data.TensorDataset(*tensors)
    swapped = (ROWS[0].astype(">f4"), ROWS[1].astype(">i2"))
    kinds: tuple[Any, ...] = (ROWS, tensors, list(ROWS), dataset, swapped, gs.problems.Dataset("x", *tensors))  # type: ignore[arg-type]
    problems = [module_problem(layers(nn.Sigmoid()), data, clients=4) for data in kinds]
    assert len({problem.gradient(problem.x0().expand(4, -1)).sum().item() for problem in problems}) == 1
    pair, zero = (ROWS[0], RNG.standard_normal((80, 2))), (ROWS[0], np.zeros((80, 2)))
    several = module_problem(nn.Linear(6, 2), pair, clients=4, partition="iid", loss=nn.MSELoss(), test=zero)
    run = gs.simulate(gs.DSGD(lr=0.1), several, MIXING, rounds=10)
    assert run.frame.loss.iloc[-1] < run.frame.loss.iloc[0]
    assert run.frame.accuracy.isna().all(), "numbers are not right or wrong"
    assert run.frame.test_loss.notna().all()


def test_pixels() -> None:
    """Bytes stay bytes in memory; what a module sees is normalised as asked for, in batches and in slices alike."""
    pixels = np.arange(64 * 16, dtype=np.uint8).reshape(16, 1, 8, 8)
    data = gs.problems.Dataset("mine", pixels, np.arange(16) % 2, peak=255.0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    ways: tuple[Any, ...] = ("unit", "raw", "standard")
    made = {way: module_problem(module, data, clients=2, pixels=way) for way in ways}
    seen = {way: problem.rows.inputs(slice(None)) for way, problem in made.items()}
    for way, problem in made.items():
        assert problem.rows.features.dtype == torch.uint8
        assert torch.equal(problem.rows.take(torch.tensor([3, 0])), seen[way][[3, 0]])
    assert float(seen["raw"].max()) == 255
    assert float(seen["unit"].max()) == 1
    assert float(seen["standard"].mean()) == pytest.approx(0, abs=1e-6)
    assert float(seen["standard"].std(correction=0)) == pytest.approx(1, abs=1e-6)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"module": 5}, "`module` must be an nn.Module, got int"),
    ({"module": nn.Flatten()}, "no parameters to train"),
    ({"module": nn.Linear(7, 4)}, r"does not take rows of shape \(6,\)"),
    ({"module": nn.Linear(6, 3)}, "The label 3 of row 0 of client 3 is out of range: the module has 3 outputs"),
    ({"module": nn.LSTM(6, 4)}, "must return one tensor, got tuple"),
    ({"loss": nn.MSELoss()}, r"loss MSELoss does not fit the module's output of shape \(4, 4\) and labels of shape"),
    ({"loss": nn.CrossEntropyLoss(reduction="none")}, r"must be one number, the mean over its rows, got \(4,\)"),
    ({"loss": lambda output, labels: 1.0}, "must be one number, the mean over its rows, got float"),
    ({"loss": 5}, "`loss` must be a function"),
    ({"gradients": "fast"}, "`gradients` must be one of 'auto', 'closed', 'compiled', 'vmap', 'loop'; got 'fast'"),
    ({"gradients": "closed", "module": nn.Sequential(nn.Linear(6, 4), nn.GELU())}, "Closed forms exist for"),
    ({"gradients": "vmap", "module": dropping()}, "that draws random numbers needs gradients='loop', got 'vmap'"),
    ({"pixels": "dim"}, "`pixels` must be one of"),
    ({"clients": 100}, "100 clients cannot share 80 rows"),
    ({"data": (HOLED, ROWS[1])}, "Row 16 of data has a feature that is NaN"),
    ({"data": (ROWS[0], ROWS[1][:70])}, r"80 rows of features, but labels of shape \(70,\)"),
    ({"data": (ROWS[0], np.where(np.arange(80) == 7, np.inf, 1.0))}, "Row 7 of data has a label that is NaN or Inf"),
    ({"data": (np.full((80, 6), "x"), ROWS[1])}, "must hold numbers"),
    ({"data": (ROWS[0],)}, r"pair \(features, labels\), got 1 parts"),
    ({"data": ROWS[0]}, "must be a name, a path, a torch Dataset or a pair"),
    ({"data": {"a": 1}}, "must give pairs"),
    ({"data": "breast_cancer", "test": ROWS}, "a named data set has its own"),
    ({"test": (ROWS[0], ROWS[1] + 1)}, "The label 4 of test row 3 is out of range"),
    ({"test": (ROWS[0][:, :5], ROWS[1])}, r"does not take rows of shape \(5,\)"),
    ({"test": (ROWS[0], ROWS[1] + 0.5)}, "loss cross_entropy does not fit"),
    ({"test": (ROWS[0][:0], ROWS[1][:0])}, "must hold rows of features"),
    ({"loss": nn.NLLLoss(), "module": nn.Linear(6, 3)}, "The label 3 of row 0 of client 3 is out of range"),
    ({"data": (ROWS[0].astype(np.float64) * 1e300, ROWS[1])}, "has a feature too large for float32"),
    ({"module": nn.LazyLinear(4)}, "The module has lazy parameters; call it once on a batch"),
]


@pytest.mark.parametrize(("settings", "said"), BAD, ids=range(len(BAD)))
def test_bad_input(settings: dict[str, Any], said: str) -> None:
    usual: dict[str, Any] = {"module": layers(nn.Sigmoid()), "data": ROWS, "clients": 4}
    with pytest.raises(gs.InputError, match=said):
        module_problem(**usual | settings)


def test_a_batch_larger_than_a_client() -> None:
    problem = gs.logistic_regression("breast_cancer", clients=4, partition="by_label", equal=False)
    assert problem.row_counts is not None
    least = int(problem.row_counts.argmin())
    with pytest.raises(gs.InputError, match=f"at most {problem.rows_per_client}, the rows of client {least}, got 400"):
        gs.simulate(gs.DSGD(lr=0.1), problem, MIXING, rounds=1, batch_size=400)
    run = gs.simulate(gs.DSGD(lr=0.1), problem, MIXING, rounds=50, batch_size=20)
    assert run.final.loss < run.frame.loss.iloc[0]
