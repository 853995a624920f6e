import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gossamer as gs
from gossamer.problems.data.partition import split
from gossamer.registry import partitions

LABELS = np.random.default_rng(0).integers(0, 5, 203)
RULES = [*partitions.names(), "dirichlet:0.05", "dirichlet:100", "shards:1", "shards:5"]


@given(st.sampled_from(RULES), st.integers(1, 20), st.integers(0, 5), st.booleans())
def test_every_row_has_one_home(rule: str, clients: int, seed: int, equal: bool) -> None:
    shares = split(LABELS, clients, rule, seed, equal=equal)
    assert len(shares) == clients
    rows = np.concatenate(shares)
    assert len(set(rows.tolist())) == len(rows), "no row twice"
    sizes = {len(share) for share in shares}
    if equal:
        assert len(sizes) == 1
        if rule != "by_label":
            assert sizes == {len(LABELS) // clients}
    else:
        assert len(rows) == len(LABELS), "no row lost"
        if rule != "by_label":
            assert max(sizes) - min(sizes) <= 1
    again = split(LABELS, clients, rule, seed, equal=equal)
    assert all((a == b).all() for a, b in zip(shares, again, strict=True))


def test_the_papers_split() -> None:
    shares = split(np.array([1, 0, 1, 0, 0, 1, 1]), 3)
    assert [share.tolist() for share in shares] == [[1, 3], [4, 0], [2, 5]], "sorted, stable, the remainder dropped"


def test_by_label() -> None:
    shares = split(LABELS, 5, "by_label", equal=False)
    assert all(
        (LABELS[share] == i).all() and len(share) == np.count_nonzero(i == LABELS) for i, share in enumerate(shares)
    )
    for clients in (2, 3, 8, 13):
        held = [set(LABELS[share].tolist()) for share in split(LABELS, clients, "by_label", equal=False)]
        assert set.union(*held) == set(range(5))
        assert all(len(labels) == 1 for labels in held) or clients < 5
    with pytest.raises(gs.InputError, match=r"leaves client .* without rows; ask for fewer than 6"):
        split(np.array([0, 0, 0, 0, 0, 0, 1]), 6, "by_label")
    with pytest.raises(gs.InputError, match="labels that repeat, but there are 2,000 different ones"):
        split(np.arange(2000.0), 6, "by_label")


def mixing_of(rule: str, clients: int = 10) -> float:
    """0 if all clients see the same mix of labels, 1 if each sees one label alone."""
    labels = np.arange(5000) % 5
    shares = [np.bincount(labels[s], minlength=5) / len(s) for s in split(labels, clients, rule, seed=1)]
    return float(np.mean([(share.max() - 0.2) / 0.8 for share in shares]))


def test_alpha_and_k_say_how_much_clients_differ() -> None:
    assert mixing_of("sorted") == pytest.approx(1)
    assert mixing_of("iid") < 0.06
    assert mixing_of("dirichlet:1000") < 0.06
    assert mixing_of("dirichlet:0.05") > mixing_of("dirichlet:0.5") > mixing_of("dirichlet:5")
    assert mixing_of("shards:2") > mixing_of("shards:5") > mixing_of("iid")


def test_dirichlet_treats_clients_alike() -> None:
    """What is left in the end is not the last client's lot."""
    labels = np.arange(1500) % 10
    held = np.mean(
        [[len(set(labels[s])) for s in split(labels, 20, "dirichlet:0.3", seed)] for seed in range(12)], axis=0
    )
    assert held[-4:].mean() > 0.8 * held[:-4].mean()


def test_seeds_matter_to_random_partitions_alone() -> None:
    for rule in RULES:
        one, two = (np.concatenate(split(LABELS, 7, rule, seed)) for seed in (0, 1))
        assert (one.tolist() == two.tolist()) == (rule in ("sorted", "by_label"))


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("dirichlet:0", "`alpha` must be a number above 0, got 0"),
        ("dirichlet:1e308", "must lie between 1e-6 and 1e6, got 1e\\+308"),
        ("dirichlet:x", "`alpha` must be a number above 0, got 'x'"),
        ("shards:0", "`k` must be an integer of 1 or more, got 0"),
        ("shards:100", "cannot cut the 20 rows of a client into k = 100"),
        ("random", "Unknown partition 'random'; valid partitions: 'by_label', 'dirichlet', 'iid', 'shards', 'sorted'"),
        (5, "`partition` must be a name such as 'sorted' or 'dirichlet:0.5', got 5"),
    ],
)
def test_bad_rules(rule: str, said: str) -> None:
    with pytest.raises(gs.InputError, match=said):
        split(LABELS, 10, rule)


def test_bad_sizes() -> None:
    with pytest.raises(gs.InputError, match="300 clients cannot share 203 rows"):
        split(LABELS, 300)
    with pytest.raises(gs.InputError, match="`equal` must be true or false, got 'yes'"):
        split(LABELS, 3, equal="yes")  # type: ignore[arg-type]
    with pytest.raises(gs.InputError, match=r"shape \(20, 2\) cannot be split by 'sorted'; use 'iid'"):
        split(np.zeros((20, 2)), 3)
    assert len(split(np.zeros((20, 2)), 3, "iid")) == 3
