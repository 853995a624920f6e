"""Methods that are one another in disguise (what their papers prove, or leave to the reader)."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import gossamer as gs
from gossamer import algorithms as al
from gossamer.algorithms import Surrogate
from gossamer.algorithms.destress import chebyshev
from gossamer.registry import compressors
from gossamer.runtime.simulation import Simulation

PROBLEM = gs.logistic_regression("breast_cancer", clients=8, dtype="float64")
MIXING = gs.mixing_matrix(gs.ring(8), "metropolis")
STEPS: dict[str, Any] = {"lr": 0.05, "gamma": 0.15}
ROUNDS = 100


def simulation(method: gs.Algorithm, batch: int | None = 4, x0: str | None = "normal") -> Simulation:
    return Simulation(method, PROBLEM, MIXING, [3], batch, x0)


def gap(one: Simulation, two: Simulation, rounds: int = ROUNDS) -> float:
    largest = 0.0
    for _ in range(rounds):
        one.step()
        two.step()
        largest = max(largest, float((one.state.x - two.state.x).abs().max()))
    return largest


@pytest.mark.parametrize("compressor", [gs.top_k(5), gs.gsgd(5)], ids=str)
@pytest.mark.parametrize("start", ["full", "minibatch"])
def test_motef_with_full_weight_on_new_gradients_is_beer(compressor: gs.Compressor, start: Any) -> None:
    beer = gs.BEER(**STEPS, compressor=compressor, start=start)
    assert gap(simulation(beer), simulation(al.MoTEF(**STEPS, compressor=compressor, lam=1.0, start=start))) <= 1e-12
    storm = al.MoTEFVR(**STEPS, compressor=compressor, lam=1.0, start=start)
    assert gap(simulation(beer), simulation(storm)) <= 1e-12


def test_motef_vr_that_never_forgets_is_beer_reevaluated() -> None:
    """With no weight on the gradient itself, only differences on one minibatch are tracked."""
    beer = gs.BEER(**STEPS, compressor=gs.top_k(5), tracker="reevaluated")
    storm = al.MoTEFVR(**STEPS, compressor=gs.top_k(5), lam=1e-15)
    assert gap(simulation(beer), simulation(storm), 50) <= 1e-10


def test_docom_in_its_stale_order_is_motef_vr() -> None:
    for compressor in (gs.top_k(5), gs.gsgd(5)):
        docom = al.DoCoM(**STEPS, compressor=compressor, beta=0.3, order="stale")
        assert gap(simulation(docom), simulation(al.MoTEFVR(**STEPS, compressor=compressor, lam=0.3))) <= 1e-12


def test_c_gt_with_full_memory_is_beer() -> None:
    """From X = 0, which both know without a message, and with BEER's G^0 brought to what C-GT's first message says."""
    top = gs.top_k(5)
    beer = simulation(gs.BEER(**STEPS, compressor=top), x0=None)
    other = simulation(al.CGT(**STEPS, compressor=top, a=1.0), x0=None)
    beer.step()
    other.step()
    first = top(beer.state.v, seed=0).dense()
    beer.state = replace(beer.state, g=Surrogate("g", first, beer.exchange.mix(first)))
    assert gap(beer, other) <= 1e-12


def test_lead_is_cedas_at_a_constant_step() -> None:
    """Without LEAD's line 2, which CEDAS does not have."""
    settings: dict[str, Any] = {"gamma": 0.05, "compressor": gs.qsgd(16)}
    lead, cedas = simulation(al.LEAD(0.05, **settings, mix_first=True)), simulation(al.CEDAS(0.05, **settings))
    assert gap(lead, cedas) <= 1e-10
    assert (0.05 * lead.state.dual - cedas.state.dual).abs().max() <= 1e-10
    falling = al.schedules.step(0.05, 10, 0.5)
    lead, cedas = simulation(al.LEAD(falling, **settings, mix_first=True)), simulation(al.CEDAS(falling, **settings))
    assert gap(lead, cedas) > 1e-6
    assert gap(simulation(al.LEAD(0.05, **settings)), simulation(al.CEDAS(0.05, **settings))) > 1e-6


def test_lead_begins_with_a_plain_step_that_sends_nothing() -> None:
    sim = simulation(al.LEAD(lr=0.05, gamma=0.3, compressor=gs.qsgd(16)), None)
    x = sim.state.x
    sim.step()
    assert torch.equal(sim.state.x, x - 0.05 * PROBLEM.gradient(x))
    assert sim.traffic.packets == 0
    sim.step()
    assert sim.traffic.packets == 1


@pytest.mark.parametrize("batch", [None, 4], ids=["full", "minibatch"])
def test_lead_without_compression_is_nids(batch: int | None) -> None:
    lead = al.LEAD(lr=0.05, gamma=1.0, compressor=gs.identity())
    assert gap(simulation(lead, batch), simulation(al.NIDS(lr=0.05), batch)) <= 1e-10
    without_line_2 = replace(lead, mix_first=True)
    assert gap(simulation(without_line_2, batch), simulation(gs.D2(lr=0.05), batch)) <= 1e-10
    assert gap(simulation(lead, batch), simulation(gs.D2(lr=0.05), batch)) > 1e-6


@pytest.mark.parametrize("gamma", [0.2, 0.6])
def test_lead_without_compression_is_nids_with_c_of_half_gamma(gamma: float) -> None:
    lead = al.LEAD(lr=0.05, gamma=gamma, compressor=gs.identity())
    assert gap(simulation(lead), simulation(al.NIDS(lr=0.05, c=gamma / 2))) <= 1e-10


def test_porter_without_clipping_is_beer() -> None:
    for per_sample in (False, True):
        porter = al.PORTER(**STEPS, compressor=gs.gsgd(5), clip=None, per_sample=per_sample)
        beer = gs.BEER(**STEPS, compressor=gs.gsgd(5), start="minibatch")
        largest = gap(simulation(porter), simulation(beer))
        assert largest == 0.0 if not per_sample else largest <= 1e-10


def test_gradient_tracking_is_beer_without_compression() -> None:
    """With gamma = 1, H^0 = X^0 and G^0 = V^0."""
    beer = simulation(gs.BEER(lr=0.05, gamma=1.0, compressor=gs.identity()))
    tracking = simulation(al.GradientTracking(lr=0.05))
    x0 = beer.state.x
    beer.state = replace(beer.state, h=Surrogate("h", x0, beer.exchange.mix(x0)))
    beer.step()
    tracking.step()
    v0 = beer.state.v
    beer.state = replace(beer.state, g=Surrogate("g", v0, beer.exchange.mix(v0)))
    assert gap(beer, tracking) <= 1e-12


def test_c_gt_without_compression_is_gradient_tracking() -> None:
    c_gt = al.CGT(lr=0.05, gamma=1.0, compressor=gs.identity())
    assert gap(simulation(c_gt), simulation(al.GradientTracking(lr=0.05))) <= 1e-12


def test_nids_is_d2_without_mixing_first() -> None:
    assert gap(simulation(al.NIDS(lr=0.05)), simulation(gs.D2(lr=0.05, mix_first=False))) == 0.0
    assert gap(simulation(al.NIDS(lr=0.05)), simulation(gs.D2(lr=0.05))) > 1e-6


def test_d_get_is_gt_sarah() -> None:
    """GT-SARAH's q counts the steps after a full gradient; D-GET's q counts from one full gradient to the next."""
    assert gap(simulation(al.DGET(lr=0.05, period=8)), simulation(al.GTSARAH(lr=0.05, period=7))) == 0.0
    assert gap(simulation(al.DGET(lr=0.05, period=7)), simulation(al.GTSARAH(lr=0.05, period=7))) > 1e-6


def test_variance_reduction_with_full_gradients_is_gradient_tracking() -> None:
    tracking = al.GradientTracking(lr=0.05)
    assert gap(simulation(tracking, None), simulation(al.GTSARAH(lr=0.05), None)) <= 1e-12
    assert gap(simulation(tracking, None), simulation(al.GTSAGA(lr=0.05, order="combine-then-adapt"), None)) <= 1e-12
    refreshed = al.DESTRESS(lr=0.05, period=1, inner_mixing=1, outer_mixing=1)
    adapted = al.GradientTracking(lr=0.05, order="adapt-then-combine")
    one, two = simulation(refreshed, None, None), simulation(adapted, None, None)
    # DESTRESS mixes its first gradient, too: let the other begin with it.
    first = replace(two.state, x=two.state.x)
    two.step()
    v = two.exchange.mix(PROBLEM.gradient(first.x))
    two.state = replace(two.state, x=two.exchange.mix(first.x - 0.05 * v), y=v)
    one.step()
    assert gap(one, two) <= 1e-12


def test_squarm_sgd_without_its_three_ideas_is_choco_sgd() -> None:
    squarm = al.SQuARMSGD(**STEPS, compressor=gs.gsgd(5), momentum=0.0)
    assert gap(simulation(squarm), simulation(gs.CHOCOSGD(**STEPS, compressor=gs.gsgd(5)))) == 0.0


def test_choco_orders_are_two_sequences_with_one_fixed_point() -> None:
    settings: dict[str, Any] = {"lr": 0.05, "gamma": 0.15, "compressor": gs.top_k(5)}
    fresh, stale = (simulation(gs.CHOCOSGD(**settings, order=order), None) for order in ("fresh", "stale"))
    assert gap(fresh, stale, 20) > 1e-4
    apart = [float((fresh.state.x - stale.state.x).norm())]
    gap(fresh, stale, 3000)
    apart.append(float((fresh.state.x - stale.state.x).norm()))
    assert apart[1] < 0.3 * apart[0]


def test_centralized_sgd_is_dsgd_that_everyone_hears() -> None:
    everyone = gs.mixing_matrix(gs.topology.complete(8), "metropolis")
    dsgd = Simulation(gs.DSGD(lr=0.05, order="adapt-then-combine"), PROBLEM, everyone, [3], 4, "normal")
    assert gap(simulation(al.CentralizedSGD(lr=0.05)), dsgd) <= 1e-12
    assert simulation(al.CentralizedSGD(lr=0.05)).mixing.rho == pytest.approx(1.0)


def test_diloco_without_momentum_is_centralized_sgd() -> None:
    assert gap(simulation(al.DiLoCo(lr=1.0, momentum=0.0)), simulation(al.CentralizedSGD(lr=1.0)), 30) <= 1e-12


@pytest.mark.parametrize(("decay", "clip"), [(0.0, None), (0.1, 0.3)])
def test_all_reduce_adamw_is_torchs_adamw(decay: float, clip: float | None) -> None:
    settings: dict[str, Any] = {"betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": decay}
    sim = simulation(al.AllReduceAdamW(lr=0.05, clip=clip, **settings), None, x0="same_normal")
    leaf = torch.nn.Parameter(sim.state.x[0].clone())
    optimizer = torch.optim.AdamW([leaf], lr=0.05, **settings)
    for _ in range(ROUNDS):
        leaf.grad = PROBLEM.gradient(leaf.detach().expand(8, -1).contiguous()).mean(dim=0)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_([leaf], clip)
        optimizer.step()
        sim.step()
        # torch adds 1e-6 to the norm before it divides by it.
        assert float((sim.state.x - leaf.detach()).abs().max()) <= (1e-12 if clip is None else 1e-4)
        leaf.data.copy_(sim.state.x[0])


def test_diloco_is_torchs_adamw_and_nesterov() -> None:
    inner: dict[str, Any] = {"lr": 0.02, "weight_decay": 0.1}
    local = gs.LocalSteps(torch.optim.AdamW, steps=5, **inner)
    sim = Simulation(al.DiLoCo(), PROBLEM, MIXING, [3], None, "same_normal", local=local)
    shared = torch.nn.Parameter(sim.state.x[0].clone())
    outer = torch.optim.SGD([shared], lr=0.7, momentum=0.9, nesterov=True)
    leaves = torch.nn.Parameter(sim.state.x.clone())  # AdamW is elementwise: all clients as one tensor
    optimizer = torch.optim.AdamW([leaves], **inner)
    for _ in range(30):
        leaves.data.copy_(shared.data.expand(8, -1))
        for _ in range(5):
            leaves.grad = PROBLEM.gradient(leaves.detach())
            optimizer.step()
        shared.grad = (shared.data - leaves.data).mean(dim=0)
        outer.step()
        sim.step()
        assert float((sim.state.x - shared.detach()).abs().max()) <= 1e-12


@pytest.mark.parametrize("betas", [0.9, (0.9,), (0.9, 1.0), ("a", "b")])
def test_betas_that_are_none(betas: Any) -> None:
    with pytest.raises(gs.InputError, match=r"`betas` must be two numbers in \[0, 1\), got"):
        al.AllReduceAdamW(lr=0.1, betas=betas)


@pytest.mark.parametrize("times", [1, 2, 3, 5])
def test_chebyshev_mixing_is_its_polynomial(times: int) -> None:
    """T_K(W/a) / T_K(1/a); with one step it is W itself, and more of them mix faster than powers of W."""
    found = {}

    class Looking(al.DSGD):
        def step(self, state: Any, round: gs.algorithms.Round) -> Any:
            found["z"] = chebyshev(state.x, round, times, "x")
            return state

    sim = simulation(Looking(lr=1.0))
    x = sim.state.x
    sim.step()
    values, vectors = torch.linalg.eigh(torch.tensor(MIXING.matrix))
    a = 1 - MIXING.rho

    def T(z: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = torch.special.chebyshev_polynomial_t(z, times)
        return value

    polynomial = vectors @ torch.diag(T(values / a) / T(torch.tensor(1 / a, dtype=torch.float64))) @ vectors.T
    assert (found["z"] - polynomial @ x).abs().max() <= 1e-12
    slowest = torch.linalg.matrix_norm(polynomial - torch.ones_like(polynomial) / 8, 2).item()
    assert slowest <= a**times * (1 + 1e-12)


def with_local_steps(method: gs.Algorithm, steps: int, lr: float = 0.05) -> Simulation:
    return Simulation(method, PROBLEM, MIXING, [3], 4, "normal", local=gs.LocalSteps("SGD", steps=steps, lr=lr))


@pytest.mark.parametrize("steps", [1, 4])
def test_compressed_kgt_in_its_fresh_order_without_compression_is_kgt(steps: int) -> None:
    compressed = al.CompressedKGT(lr=1.0, gamma=1.0, compressor=gs.identity(), order="fresh")
    assert gap(with_local_steps(compressed, steps), with_local_steps(al.KGT(lr=1.0), steps)) <= 1e-12
    assert gap(with_local_steps(compressed, 4), with_local_steps(al.KGT(lr=1.0), 3), 5) > 1e-3


@pytest.mark.parametrize("compressor", [gs.top_k(5), gs.gsgd(5)], ids=str)
def test_compressed_kgt_in_its_stale_order_with_one_local_step_is_beer(compressor: gs.Compressor) -> None:
    beer = gs.BEER(**STEPS, compressor=compressor, start="minibatch")
    compressed = al.CompressedKGT(lr=1.0, gamma=STEPS["gamma"], compressor=compressor, order="stale")
    assert gap(simulation(beer), with_local_steps(compressed, 1)) <= 1e-12
    assert gap(simulation(beer), simulation(replace(compressed, lr=STEPS["lr"]))) <= 1e-12


def test_the_corrections_of_kgt_have_the_mean_zero() -> None:
    sim = with_local_steps(al.KGT(lr=1.0), 4)
    for _ in range(200):
        sim.step()
    assert float(sim.state.c.abs().max()) > 1e-3
    assert float(sim.state.c.mean(dim=0).abs().max()) <= 1e-12


@pytest.mark.slow
def test_kgt_is_exact_although_its_clients_differ() -> None:
    """With full gradients it comes to a stationary point of the whole, where uncorrected local steps stay apart."""
    local = gs.LocalSteps("SGD", steps=4, lr=0.05)
    corrected, plain = (
        gs.simulate(method, PROBLEM, MIXING, rounds=3000, local=local).final.grad_norm
        for method in (al.KGT(lr=1.0), gs.DSGD(lr=1.0))
    )
    assert corrected < 1e-9
    assert plain > 1e-3


@pytest.mark.parametrize("kind", [gs.BEER, gs.CHOCOSGD, al.MoTEF, al.CompressedKGT])
def test_surrogates_that_start_at_the_models_are_those_of_an_exact_first_message(kind: Any) -> None:
    """H^0 = X^0 is what everyone would know after sending X^0 in full before the first round."""
    top, one = gs.top_k(5), "same_normal"
    known, told = (simulation(kind(**STEPS, compressor=top, h0=h0), x0=one) for h0 in ("model", "zero"))
    x0 = told.state.x.double()
    told.state = replace(told.state, h=Surrogate("h", x0, told.exchange.mix(x0)))
    assert gap(known, told) <= 1e-12
    assert gap(simulation(kind(**STEPS, compressor=top), x0=one), simulation(known.session.method, x0=one)) > 1e-6


def test_surrogates_start_at_the_models_only_where_these_are_the_same() -> None:
    with pytest.raises(gs.InputError, match="`h0` = 'model' is for clients that all start from one model, got 8"):
        simulation(gs.BEER(**STEPS, compressor=gs.top_k(5), h0="model"), x0="normal")
    with pytest.raises(gs.InputError, match="`h0` must be one of 'zero', 'model'; got 'x'"):
        gs.CHOCOSGD(**STEPS, compressor=gs.top_k(5), h0="x")  # type: ignore[arg-type]


def test_choco_sgd_in_half_precision_with_gamma_one_is_dsgd_but_for_rounding() -> None:
    dsgd = simulation(gs.DSGD(lr=0.05, order="adapt-then-combine"), x0="same_normal")
    half = gs.CHOCOSGD(lr=0.05, gamma=1.0, compressor=compressors.build("float16"), h0="model")
    assert 0 < gap(dsgd, simulation(half, x0="same_normal")) <= 1e-4  # 2^-11 of a step
