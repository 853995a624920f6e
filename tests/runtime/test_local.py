"""Local steps: what they compute, what is kept of them, and that processes do the same."""

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import forked
from launching import finish, same, spec, start
from torch import Tensor, nn

import gossamer as gs
from gossamer.errors import GossamerError
from gossamer.runtime.experiment import prepare
from gossamer.runtime.simulation import Simulation
from gossamer.spec import parse_spec
from gossamer.streams import Streams

MIXING = gs.mixing_matrix(gs.ring(4))
CHOCO = gs.CHOCOSGD(lr=1.0, gamma=0.5, compressor=gs.gsgd(5))
OPTIMIZERS: list[tuple[Any, dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    (torch.optim.NAdam, {"lr": 0.01}),
    (torch.optim.Adagrad, {"lr": 0.05}),
]


def problem(dtype: str = "float64") -> gs.problems.ModuleProblem:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Tanh(), nn.Linear(6, 10))
    return gs.module_problem(module, "digits", clients=4, partition="dirichlet:1", dtype=dtype)


class Rowwise(torch.optim.SGD):
    """An optimiser that is not torch's own, so that it runs client by client."""


class RowwiseAdam(torch.optim.AdamW):
    """The same, with moments."""


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("optimizer", "settings"), OPTIMIZERS, ids=lambda value: getattr(value, "__name__", ""))
def test_the_sum_of_local_steps_takes_the_place_of_the_gradient(
    optimizer: Any, settings: dict[str, Any], momentum: float
) -> None:
    """DSGD with an optimiser per client, written by hand."""
    whole, local = problem(), gs.LocalSteps(optimizer, steps=3, outer_momentum=momentum, **settings)
    run = gs.simulate(gs.DSGD(lr=1.0), whole, MIXING, rounds=4, batch_size=5, local=local, seed=7)
    streams, w = Streams([7], range(4), torch.device("cpu")), torch.from_numpy(MIXING.matrix)
    leaves = [nn.Parameter(whole.x0().clone()) for _ in range(4)]
    by_hand = [optimizer([leaf], **settings) for leaf in leaves]
    x, sums = whole.x0().expand(4, -1), torch.zeros(4, whole.d, dtype=torch.float64)
    for t in range(4):
        rows = streams.at(t, "batch").below(whole.rows_per_client, 15)
        for client, (leaf, one) in enumerate(zip(leaves, by_hand, strict=True)):
            leaf.data.copy_(x[client])
            for k in range(3):
                batch = rows[client : client + 1, 5 * k : 5 * k + 5]
                leaf.grad = whole.only(client).gradient(leaf.detach()[None], batch)[0]
                one.step()
        change = x - torch.stack([leaf.detach() for leaf in leaves])
        sums = momentum * sums + change
        x = w @ x - (change + momentum * sums)
    torch.testing.assert_close(run.x, x, rtol=0, atol=1e-12)


def test_clipping_schedules_and_groups_are_those_of_torch() -> None:
    """Against clip_grad_norm_, LambdaLR and parameter groups, client by client."""
    whole, lr = problem(), gs.algorithms.schedules.cosine(0.02, 12)
    groups = {"3.*": {"weight_decay": 0.0, "lr": 0.05}, "*.bias": {"weight_decay": 0.7}}
    more: dict[str, Any] = {"weight_decay": 0.3, "clip": 0.05, "groups": groups}
    apart = [gs.LocalSteps(one, steps=3, lr=lr, **more) for one in (torch.optim.AdamW, RowwiseAdam)]
    runs = [gs.simulate(gs.DSGD(lr=1.0), whole, MIXING, rounds=4, batch_size=5, local=one, seed=7) for one in apart]
    streams, w = Streams([7], range(4), torch.device("cpu")), torch.from_numpy(MIXING.matrix)
    modules = [nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Tanh(), nn.Linear(6, 10)).double() for _ in range(4)]
    optimizers, times = [], []
    for module in modules:
        decays = {"1.weight": 0.3, "1.bias": 0.7, "3.weight": 0.0, "3.bias": 0.0}
        own = [
            {"params": [p], "weight_decay": decays[name], "lr": 0.05 if name[0] == "3" else 0.02}
            for name, p in module.named_parameters()
        ]
        optimizers.append(torch.optim.AdamW(own))
        times.append(torch.optim.lr_scheduler.LambdaLR(optimizers[-1], lambda t: lr(t) / 0.02))
    x = whole.x0().expand(4, -1)
    for t in range(4):
        rows = streams.at(t, "batch").below(whole.rows_per_client, 15)
        for client, module in enumerate(modules):
            nn.utils.vector_to_parameters(x[client].clone(), module.parameters())
            for k in range(3):
                at = nn.utils.parameters_to_vector(module.parameters()).detach()[None]
                gradient = whole.only(client).gradient(at, rows[client : client + 1, 5 * k : 5 * k + 5])[0]
                pieces = torch.split(gradient, [p.numel() for p in module.parameters()])
                for p, piece in zip(module.parameters(), pieces, strict=True):
                    p.grad = piece.view(p.shape).clone()
                nn.utils.clip_grad_norm_(module.parameters(), 0.05)
                optimizers[client].step()
                times[client].step()
        y = torch.stack([nn.utils.parameters_to_vector(module.parameters()).detach() for module in modules])
        x = w @ x - (x - y)
    for run in runs:
        torch.testing.assert_close(run.x, x, rtol=0, atol=1e-12)


def test_one_step_of_sgd_is_a_gradient() -> None:
    one, other = problem(), gs.LocalSteps("SGD", steps=1, lr=0.1)
    local = gs.simulate(CHOCO, one, MIXING, rounds=20, batch_size=5, local=other)
    usual = gs.simulate(gs.CHOCOSGD(lr=0.1, gamma=0.5, compressor=gs.gsgd(5)), one, MIXING, rounds=20, batch_size=5)
    torch.testing.assert_close(local.x, usual.x, rtol=0, atol=1e-10)


def test_optimisers_that_are_not_elementwise_run_client_by_client() -> None:
    together, apart = (
        gs.simulate(
            CHOCO, problem(), MIXING, rounds=10, batch_size=5, local=gs.LocalSteps(one, 4, lr=0.1, momentum=0.9)
        )
        for one in (torch.optim.SGD, Rowwise)
    )
    torch.testing.assert_close(apart.x, together.x, rtol=0, atol=1e-12)


def test_matrices_keep_their_shapes() -> None:
    seen: list[list[torch.Size]] = []

    class Looks(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            seen.append([p.shape for p in self.param_groups[0]["params"]])
            return super().step(closure)

    gs.simulate(CHOCO, problem(), MIXING, rounds=1, batch_size=5, local=gs.LocalSteps(Looks, 1, lr=0.1))
    assert seen[-1] == [torch.Size([6, 64]), torch.Size([6]), torch.Size([10, 6]), torch.Size([10])]


@pytest.mark.parametrize("method", [CHOCO, gs.BEER(lr=1.0, gamma=0.4, compressor=gs.gsgd(5))], ids=["choco", "beer"])
def test_seeds_side_by_side_are_seeds_alone(method: gs.Algorithm) -> None:
    local = gs.LocalSteps("AdamW", 3, lr=0.01)
    both = gs.sweep(method, problem(), MIXING, rounds=6, batch_size=5, seeds=[0, 1], local=local)
    alone = gs.simulate(method, problem(), MIXING, rounds=6, batch_size=5, seed=1, local=local)
    torch.testing.assert_close(list(both)[1].x, alone.x, rtol=0, atol=1e-10)


def test_a_stopped_run_goes_on_with_its_moments(tmp_path: Path) -> None:
    local = gs.LocalSteps("AdamW", 3, outer_momentum=0.5, lr=0.01)
    whole = gs.simulate(CHOCO, problem(), MIXING, rounds=12, batch_size=5, local=local)
    done = iter(range(100))
    how: dict[str, Any] = {"rounds": 12, "batch_size": 5, "local": local, "record_dir": tmp_path}
    with pytest.raises(gs.StoppedError):
        gs.simulate(CHOCO, problem(), MIXING, **how, should_stop=lambda: next(done) >= 6)
    again = gs.simulate(CHOCO, problem(), MIXING, **how, resume=True)
    assert torch.equal(again.x, whole.x)
    other = how | {"local": gs.LocalSteps("AdamW", 4, lr=0.01)}
    with pytest.raises(GossamerError, match="is of another run: `local` is"):
        gs.simulate(CHOCO, problem(), MIXING, **other, resume=True)


KILLED = """
import os, signal
import torch
import gossamer as gs
from gossamer.runtime.loop import Hook

class Kill(Hook):
    def after(self, loop):
        if loop.t == 23:
            os.kill(os.getpid(), signal.SIGKILL)

def run(**how):
    problem = gs.logistic_regression("breast_cancer", clients=4, dtype="float64")
    method = gs.algorithms.CompressedKGT(lr=1.0, gamma=0.4, compressor=gs.gsgd(5))
    local = gs.LocalSteps("AdamW", 3, outer_momentum=0.5, lr=0.01)
    return gs.simulate(method, problem, gs.mixing_matrix(gs.ring(4)), rounds=40, batch_size=5, local=local, **how)
"""


def test_a_killed_run_goes_on_as_if_it_had_never_been_killed(tmp_path: Path) -> None:
    cut = f"run(record_dir={str(tmp_path)!r}, checkpoint_every=5, hooks=[Kill()])"
    done = subprocess.run([sys.executable, "-c", f"{KILLED}\n{cut}"], check=False)
    assert done.returncode == -signal.SIGKILL
    known: dict[str, Any] = {}
    exec(KILLED, known)
    again, whole = known["run"](record_dir=tmp_path, resume=True), known["run"]()
    assert again.record.rows[-1].round == 40
    assert torch.equal(again.x, whole.x)


def test_looking_ahead_changes_nothing() -> None:
    sim = Simulation(CHOCO, problem(), MIXING, [0], 5, local=gs.LocalSteps("Adam", 2, lr=0.01))
    sim.step()
    moments = {name: one.clone() for name, one in sim.buffers.items()}
    sim.peek()
    assert moments.keys() == sim.buffers.keys() != set()
    assert all(torch.equal(one, sim.buffers[name]) for name, one in moments.items())


def test_buffers_of_a_module_follow_every_local_step() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 10))
    normed = gs.module_problem(module, "digits", clients=4, partition="iid")
    sim = Simulation(CHOCO, normed, MIXING, [0], 5, local=gs.LocalSteps("AdamW", 3, lr=0.01))
    for _ in range(2):
        sim.step()
    assert sim.buffers["2.num_batches_tracked"].tolist() == [6] * 4
    assert sim.snapshot().shape == (1, 4, normed.d + 12), "moments are no part of a model"


SPEC: dict[str, Any] = {
    "rounds": 20,
    "batch_size": 5,
    "codec": "fixed",
    "problem": {"objective": "logistic_regression", "data": "breast_cancer", "clients": 4, "dtype": "float64"},
    "graph": {"name": "ring"},
    "methods": [{"name": "beer", "lr": 1.0, "gamma": 0.5, "compressor": "gsgd:5"}],
}


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_a_spec_has_local_steps(optimizer: str) -> None:
    spec = parse_spec(SPEC | {"local": {"optimizer": optimizer, "steps": 3, "lr": 0.01}})
    (run,) = prepare(spec).run()
    assert run.record.header.local == f"LocalSteps({optimizer}, steps=3, lr=0.01)"
    given = gs.logistic_regression("breast_cancer", clients=4, dtype="float64")
    method = gs.BEER(lr=1.0, gamma=0.5, compressor=gs.gsgd(5), start="minibatch")
    local = gs.LocalSteps(optimizer, 3, lr=0.01)
    alone = gs.simulate(method, given, MIXING, rounds=20, batch_size=5, local=local)
    assert torch.equal(run.x, alone.x)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: gs.LocalSteps("AdamV"), "Unknown optimizer 'AdamV'"),
        (lambda: gs.LocalSteps(nn.Linear), "`optimizer` must be a class such as torch.optim.AdamW, got <class"),  # type: ignore[arg-type]
        (lambda: gs.LocalSteps("AdamW", 0), "`steps` must be"),
        (
            lambda: gs.LocalSteps("AdamW", 2, lr=-1),
            "AdamW does not take these settings or parameters: Invalid learning rate: -1.",
        ),
        (
            lambda: gs.LocalSteps("AdamW", 2, speed=1),
            "AdamW does not take these settings or parameters: got an unexpected keyword",
        ),
        (lambda: gs.LocalSteps("SGD", 2, outer_momentum=1.0), "`outer_momentum` must be in [0, 1), got 1.0."),
        (lambda: gs.LocalSteps("LBFGS"), "LBFGS cannot take a step from a gradient alone"),
        (lambda: gs.LocalSteps("SparseAdam"), "SparseAdam cannot take a step from a gradient alone"),
        (lambda: _run(local=gs.LocalSteps("Muon")), "Muon does not take these settings or parameters"),
        (lambda: gs.LocalSteps("SGD", 2, clip=0), "`clip` must be"),
        (lambda: gs.LocalSteps("SGD", groups=3), "`groups` must be such as"),  # type: ignore[arg-type]
        (lambda: gs.LocalSteps("SGD", groups={"*": {"speed": 1}}), "SGD has no setting 'speed' for a group"),
        (lambda: gs.LocalSteps("SGD", lr="cosine:0.1"), "cosine"),
        (lambda: _run(local=gs.LocalSteps("SGD", groups={"4.*": {"lr": 1}})), "No parameter fits the group '4.*'"),
        (lambda: _run(local="AdamW"), "`local` must be gossamer.LocalSteps(torch.optim.AdamW, ...), got str."),
        (
            lambda: _run(gs.algorithms.GTSAGA(lr=0.1), local=gs.LocalSteps("SGD", 2)),
            "GT-SAGA needs the gradient of each data row, which local steps do not give; use BEER, say.",
        ),
        (
            lambda: _run(
                gs.BEER(lr=1.0, gamma=0.5, compressor=gs.gsgd(5), tracker="reevaluated"), local=gs.LocalSteps("SGD", 2)
            ),
            "Local steps take the place of one gradient per round, but the method asks for several",
        ),
        (lambda: prepare(parse_spec(SPEC | {"local": {"steps": 2}})), "[local] needs `optimizer`, such as"),
    ],
)
def test_mistakes_are_sentences(make: Any, sentence: str) -> None:
    with pytest.raises(gs.InputError, match=re.escape(sentence)):
        make()


def _run(method: gs.Algorithm = CHOCO, **more: Any) -> Tensor:
    return gs.simulate(method, problem(), MIXING, rounds=3, batch_size=5, **more).x


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "method"), [("SGD", "BEER"), ("AdamW", "K-GT")])
def test_processes_take_the_same_local_steps(optimizer: str, method: str, tmp_path: Path) -> None:
    path = spec(tmp_path, rounds=50, more=f'[local]\noptimizer = "{optimizer}"\nsteps = 3\nlr = 0.01\n')
    if method == "K-GT":
        path.write_text(path.read_text().replace('name = "beer"', 'name = "compressed_kgt"\nlabel = "BEER"'))
    code, err = finish(start(tmp_path, "-o", "real", "-q"))
    assert code == 0, err
    simulated = forked("run", "my.toml", "-o", "simulated", "-q", cwd=tmp_path)
    assert simulated.returncode == 0, simulated.stderr
    same(tmp_path / "real", tmp_path / "simulated", "BEER-seed0", tolerance=1e-12)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, Rowwise])
def test_local_steps_on_a_gpu(optimizer: Any) -> None:
    local = gs.LocalSteps(optimizer, 3, outer_momentum=0.5, lr=0.01)
    runs = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Tanh(), nn.Linear(6, 10))
        one = gs.module_problem(module, "digits", clients=4, partition="iid", dtype="float64", device=device)
        method = gs.CHOCOSGD(lr=1.0, gamma=0.5, compressor=gs.identity())
        runs.append(gs.simulate(method, one, MIXING, rounds=15, batch_size=5, local=local).x.cpu())
    torch.testing.assert_close(runs[1], runs[0], rtol=0, atol=1e-8)
