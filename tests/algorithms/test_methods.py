"""What single methods promise beyond their equations, and what is said of each is so."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import gossamer as gs
from gossamer import algorithms as al
from gossamer.algorithms.about import about
from gossamer.algorithms.porter import clip
from gossamer.compression import packet
from gossamer.compression.partial import Partial
from gossamer.registry import methods
from gossamer.runtime.gradients.oracle import BatchOracle
from gossamer.runtime.simulation import Simulation
from gossamer.theory import local_privacy

PROBLEM = gs.logistic_regression("breast_cancer", clients=6, dtype="float64")
MIXING = gs.mixing_matrix(gs.ring(6))


class Counting(BatchOracle):
    calls = 0

    def _gradient(self, x: Tensor, batch: Tensor | None) -> Tensor:
        Counting.calls += 1
        return super()._gradient(x, batch)

    def samples(self, x: Tensor, *, whole: bool = False, purpose: str = "batch") -> al.Samples:
        Counting.calls += 1
        return super().samples(x, whole=whole, purpose=purpose)


@pytest.mark.parametrize("name", methods.names())
def test_what_is_said_of_a_method_is_what_it_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts that `about` states, in a round that is not a refresh of any method's full gradient."""
    cls: Any = methods.get(name)
    facts = about(name)
    for field in ("title", "paper", "assumes", "rate", "equations"):
        assert facts[field].strip(), f"{name} says nothing of its {field}"
    compressor = {"compressor": gs.qsgd(16)} if "compressor" in cls.__dataclass_fields__ else {}
    assert (facts["compressors"] == "none") == (not compressor)
    method = cls(**dict(cls.examples[0]) | compressor)
    monkeypatch.setattr("gossamer.runtime.simulation.BatchOracle", Counting)
    sim = Simulation(method, PROBLEM, MIXING, batch_size=4)
    messages: list[int] = []
    count = sim.traffic.count
    sim.traffic.count = lambda sent, t, seeds: (messages.append(len(sent)), count(sent, t, seeds))[1]  # type: ignore[method-assign, func-returns-value, assignment]
    for _ in range(12):  # by default D-GET and DESTRESS refresh in rounds 10, 20, ..., GT-SARAH in 11, 22, ...
        sim.step()
    messages.clear()
    Counting.calls = 0
    sim.step()
    assert max(messages) <= facts["messages"]
    said = {"destress": 4, "squarm_sgd": 1}.get(name, int(str(facts["exchanges"])[0]))
    assert len(messages) == said
    assert sum(messages) == facts["messages"]
    assert Counting.calls == int(facts["gradients"][0])
    kept = sum(1 for x in sim.session.save().values() if x.shape == sim.state.x.shape)
    said = facts["state"] if isinstance(facts["state"], int) else 3
    assert kept == said, f"{name} keeps {kept} d"


@pytest.mark.parametrize(("cls", "expected"), [(al.GTSARAH, [0, 4, 8, 12]), (al.DGET, [0, 3, 6, 9, 12])])
def test_rounds_with_a_full_gradient(cls: Any, expected: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """q = 3: GT-SARAH takes q recursive steps after each full gradient, D-GET one full gradient every q rounds."""
    rounds: list[int | Tensor] = []

    class Noting(BatchOracle):
        def full(self, x: Tensor) -> Tensor:
            rounds.append(self.t)
            return super().full(x)

    monkeypatch.setattr("gossamer.runtime.simulation.BatchOracle", Noting)
    sim = Simulation(cls(lr=0.01, period=3), PROBLEM, MIXING, batch_size=4)
    for _ in range(13):
        sim.step()
    assert rounds == expected


def test_an_unknown_method_is_a_sentence() -> None:
    with pytest.raises(gs.InputError, match="Unknown method 'bear'"):
        about("bear")


def test_squarm_sgd_sends_when_there_is_something_to_say() -> None:
    settings: dict[str, Any] = {"lr": 0.05, "gamma": 0.2, "compressor": gs.gsgd(5), "momentum": 0.0}
    always = Simulation(al.SQuARMSGD(**settings), PROBLEM, MIXING, batch_size=4)
    seldom = Simulation(al.SQuARMSGD(**settings, threshold=3.0), PROBLEM, MIXING, batch_size=4)
    local = Simulation(al.SQuARMSGD(**settings, local_steps=5), PROBLEM, MIXING, batch_size=4)
    for _ in range(50):
        for sim in (always, seldom, local):
            sim.step()
    assert (always.traffic.packets, seldom.traffic.packets, local.traffic.packets) == (50, 50, 10)
    sent = seldom.traffic.nominal_on_one_link(0) / always.traffic.nominal_on_one_link(0)
    assert 0.05 < sent < 0.95
    assert seldom.traffic.bits[0] < always.traffic.bits[0]


@pytest.mark.parametrize("codec", ["fixed", "entropy", "auto"])
def test_a_message_of_some_rows(codec: Any) -> None:
    x = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    whole = gs.gsgd(4)(x, seed=0)
    sent = torch.tensor([True, False, True, False, False])
    message = Partial(whole, sent)
    assert torch.equal(message.dense(), whole.dense() * sent[:, None])
    packets = packet.encode([message, whole], clients=range(5), codec=codec)
    assert [len(one) for one in packets] == packet.sizes([message, whole], 0, range(5), codec).tolist()
    for row, one in enumerate(packets):
        read = gs.compression.decode(one)
        assert torch.equal(read.messages[0].dense()[0], message.dense()[row])
        assert torch.equal(read.messages[1].dense()[0], whole.dense()[row])
    assert len(packets[1]) < len(packets[0]) - 15
    assert message.times(2.0).dense().equal(2 * message.dense())
    assert message.bits_nominal_of_rows().tolist() == [160, 0, 160, 0, 0]


@pytest.mark.parametrize("order", ["adapt-then-combine", "combine-then-adapt"])
def test_gt_saga_draws_its_indices_as_its_paper_does(order: Any) -> None:
    """Two independent indices per round in 2011.03853: one for the estimate, one for the table; one in 1912.04230."""
    drawn: list[tuple[str, Tensor]] = []

    class Noting(BatchOracle):
        def samples(self, x: Tensor, *, whole: bool = False, purpose: str = "batch") -> al.Samples:
            found = super().samples(x, whole=whole, purpose=purpose)
            if not whole:
                drawn.append((purpose, found.rows))
            return found

    sim = Simulation(al.GTSAGA(lr=0.01, order=order), PROBLEM, MIXING, batch_size=1)
    states = [sim.state]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gossamer.runtime.simulation.BatchOracle", Noting)
        for _ in range(200):
            sim.step()
            states.append(sim.state)
    estimates = torch.stack([rows for purpose, rows in drawn if purpose == "batch"])
    replaced = torch.stack([rows for purpose, rows in drawn if purpose == "table"] or [estimates[0]])
    for t in (5, 100):
        changed = (states[t + 1].table != states[t].table).any(dim=2).nonzero()
        expected = replaced[t] if order == "adapt-then-combine" else estimates[t]
        assert changed[:, 1].tolist() == expected[:, 0].tolist()
    if order == "combine-then-adapt":
        assert len(drawn) == 200
        return
    assert len(drawn) == 400
    equal = (estimates == replaced).double().mean().item()
    assert equal < 0.05, "independent draws from 94 rows agree about once in 94"
    both = torch.stack([estimates.flatten(), replaced.flatten()]).double()
    assert abs(torch.corrcoef(both)[0, 1].item()) < 0.15


@pytest.mark.parametrize("order", ["adapt-then-combine", "combine-then-adapt"])
def test_gt_saga_keeps_a_gradient_for_each_row_of_clients_that_hold_more_or_less(order: Any) -> None:
    problem = gs.logistic_regression("breast_cancer", clients=6, partition="by_label", equal=False, dtype="float64")
    assert problem.row_counts is not None
    sim = Simulation(al.GTSAGA(lr=0.05, order=order), problem, MIXING, batch_size=1)
    for _ in range(400):
        sim.step()
        assert (sim.state.y.mean(dim=0) - sim.state.old.mean(dim=0)).abs().max() < 1e-12
    start, end = (problem.evaluate(x[None])["grad_norm"].item() for x in (problem.x0(), sim.state.x.mean(dim=0)))
    assert end < 0.2 * start


@pytest.mark.parametrize(
    "method", [al.GTSAGA(lr=0.05), al.PORTER(0.05, 0.2, gs.top_k(5), None, per_sample=True)], ids=str
)
def test_full_gradients_row_by_row_are_full_gradients(method: gs.Algorithm) -> None:
    problem = gs.logistic_regression("breast_cancer", clients=6, partition="by_label", equal=False, dtype="float64")
    plain: Any = (
        gs.BEER(0.05, 0.2, gs.top_k(5), "minibatch")
        if isinstance(method, al.PORTER)
        else al.GradientTracking(lr=0.05, order="adapt-then-combine")
    )
    rows, whole = (Simulation(one, problem, MIXING) for one in (method, plain))
    if isinstance(method, al.GTSAGA):  # which mixes its first gradient, too
        rows.step()
        y = whole.exchange.mix(problem.gradient(whole.state.x))
        x = whole.exchange.mix(whole.state.x - 0.05 * y)
        whole.state = replace(whole.state, x=x, y=y, gradient=problem.gradient(whole.state.x))
        whole.session.t = 1
    for _ in range(30):
        rows.step()
        whole.step()
    assert (rows.state.x - whole.state.x).abs().max() <= 1e-12


def test_rows_of_a_module_with_batch_norm_are_refused_before_anything_runs() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(30, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    problem = gs.module_problem(module, "breast_cancer", clients=6)
    with pytest.raises(
        gs.InputError, match="GT-SAGA needs the gradient of each data row, which batch norm and dropout do not allow"
    ):
        gs.sweep([gs.DSGD(lr=0.1), al.GTSAGA(lr=0.1)], problem, MIXING, rounds=5, batch_size=4)


def test_nids_says_when_c_is_too_large() -> None:
    fdla = gs.mixing_matrix(gs.ring(10), "fdla")
    with pytest.raises(gs.InputError, match=r"`c` of at most .* here 0\.548, got 1\.0"):
        gs.simulate(al.NIDS(lr=0.1, c=1.0), gs.quadratic(clients=10), fdla, rounds=5)


def test_destress_tracks_the_mean_and_its_activation_has_no_bias() -> None:
    method = al.DESTRESS(lr=0.02, period=1000, activation=0.3)
    means = []
    for seed in range(200):
        sim = Simulation(method, PROBLEM, MIXING, [seed])
        sim.step()
        sim.step()
        means.append(sim.state.v.mean(dim=0))
    always = Simulation(replace(method, activation=1.0), PROBLEM, MIXING)
    always.step()
    always.step()
    off = torch.stack(means) - always.state.v.mean(dim=0)
    assert (off.mean(dim=0).abs() <= 5 * off.std(dim=0) / math.sqrt(200) + 1e-12).all()


def test_motef_started_as_in_its_published_code() -> None:
    """With M^0 = 0 and V^0 = F(X^0) the mean of V - M stays F(X^0): it stops where grad f = -grad f(X^0)."""
    problem = gs.quadratic(clients=6, d=8, condition=2.0, heterogeneity=2.0, dtype="float64")
    method = al.MoTEF(lr=0.1, gamma=0.5, compressor=gs.identity(), lam=0.5)
    paper, code = (Simulation(method, problem, MIXING) for _ in range(2))
    first = problem.gradient(paper.state.x).mean(dim=0)
    for sim in (paper, code):
        sim.step()
    code.state = replace(code.state, m=torch.zeros_like(code.state.m))
    for _ in range(1500):
        for sim in (paper, code):
            sim.step()
    at_paper, at_code = (problem.gradient(sim.state.x).mean(dim=0) for sim in (paper, code))
    assert at_paper.norm() < 1e-8 * first.norm()
    assert torch.allclose(at_code, -first, rtol=1e-6)


def test_clipping() -> None:
    z = torch.randn(3, 4, 10, dtype=torch.float64) * 100
    assert (clip(z, 2.0).norm(dim=-1) < 2).all()
    small = z * 1e-8
    assert torch.allclose(clip(small, 2.0), small, rtol=1e-5)
    assert torch.equal(clip(z, None), z)


def test_porter_adds_the_noise_that_it_says() -> None:
    settings: dict[str, Any] = {"lr": 0.05, "gamma": 0.2, "compressor": gs.gsgd(5), "clip": 1.0, "per_sample": True}
    still, noisy = (
        Simulation(al.PORTER(**settings, noise=noise), PROBLEM, MIXING, batch_size=4) for noise in (0.0, 0.3)
    )
    still.step()
    noisy.step()
    noise = noisy.state.v - still.state.v
    assert noise.std().item() == pytest.approx(0.3, rel=0.15)
    assert noise.mean().abs() < 0.1
    again = Simulation(al.PORTER(**settings, noise=0.3), PROBLEM, MIXING, batch_size=4)
    again.step()
    assert torch.equal(again.state.x, noisy.state.x), "a client draws the same noise again"
    with pytest.raises(gs.InputError, match=r"noise=0\.3, set `per_sample` to true"):
        al.PORTER(**settings | {"per_sample": False}, noise=0.3)


def test_privacy() -> None:
    usual: dict[str, Any] = {"noise": 1.0, "clip": 1.0, "batch_size": 10, "rows": 1000, "rounds": 100}
    epsilon = local_privacy(**usual)
    for change in ({"noise": 2.0}, {"clip": 0.5}, {"rounds": 50}, {"rows": 2000}, {"delta": 1e-3}):
        assert local_privacy(**usual | change) < epsilon, change
    # One round with every row drawn once for certain is the Gaussian mechanism: epsilon(a) = a D^2 / (2 noise^2).
    orders = [1 + 10 ** (k / 100) for k in range(-300, 400)]
    one = local_privacy(noise=1.0, clip=0.5, batch_size=1, rows=1, rounds=1)
    known = min(a / 2 + math.log1p(-1 / a) - (math.log(1e-5) + math.log(a)) / (a - 1) for a in orders)
    assert one == pytest.approx(known, rel=1e-3)
    assert local_privacy(**usual | {"noise": 1e-300}) == math.inf
    assert local_privacy(**usual | {"noise": 1e300}) < 0.01
    whole = local_privacy(noise=1.0, clip=0.5, batch_size=None, rows=1, rounds=1)
    assert whole == pytest.approx(one, rel=1e-9)
    for change in ({"noise": 0.0}, {"delta": 0.0}, {"delta": 1.0}, {"rows": 0}, {"clip": math.nan}):
        with pytest.raises(gs.InputError, match=next(iter(change))):
            local_privacy(**usual | change)


def test_an_optimiser_refuses_what_it_cannot_give() -> None:
    parameters = [torch.zeros(3, requires_grad=True)]
    for method, words in (
        (al.GTSARAH(lr=0.1), "GT-SARAH needs full gradients"),
        (al.GTSAGA(lr=0.1), "GT-SAGA needs the gradient of each data row"),
        (al.CentralizedSGD(lr=0.1, batch="full"), "needs full gradients"),
        (gs.DSGD(lr=al.schedules.cosine(0.1, 10)), "must be a number, got cosine"),
    ):
        with pytest.raises(gs.InputError, match=words):
            gs.DecentralizedOptimizer(parameters, method, MIXING)
