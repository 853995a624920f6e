"""Packets, with headers, norms and models, are nearly as short as the entropy of their symbols allows."""

import math
from pathlib import Path
from typing import Any

import networks
import numpy as np
import pytest
import torch

import gossamer as gs
from gossamer.compression import packet
from gossamer.compression.base import Message
from gossamer.compression.dithering import Levels
from gossamer.runtime.simulation import Simulation

ALLOWANCE = 128  # bits per message for everything but the symbols


def recorded(sim: Simulation, rounds: int, every: int) -> list[tuple[int, tuple[Message, ...]]]:
    """The messages of a run from the second round on, two per packet."""
    kept: list[tuple[int, tuple[Message, ...]]] = []
    count = sim.traffic.count

    def spy(messages: Any, t: int, seeds: Any) -> None:
        if t and t % every == 0:
            kept.append((t, messages))
        count(messages, t, seeds)

    sim.traffic.count = spy  # type: ignore[method-assign]
    for _ in range(rounds):
        sim.step()
    return kept


def entropy_bits(levels: torch.Tensor) -> float:
    counts = np.unique(levels.numpy(), return_counts=True)[1]
    return float(-(counts * np.log2(counts / counts.sum())).sum())


def length_and_entropy(kept: list[tuple[int, tuple[Message, ...]]]) -> tuple[float, float, int]:
    """Bits sent, entropy plus allowance in bits, and the number of coordinates."""
    sent, ideal, coordinates = 0, 0.0, 0
    for t, messages in kept:
        rows, d = messages[0].shape
        for buffer in packet.encode(messages, run=2**31, round=t, clients=range(rows), codec="entropy"):
            sent += 8 * len(buffer)
        for message in messages:
            assert isinstance(message, Levels)
            ideal += sum(entropy_bits(row) + ALLOWANCE for row in message.levels)
            coordinates += rows * d
    return sent, ideal, coordinates


def test_figure_1(data_dir: Path) -> None:
    problem = gs.logistic_regression("a9a", clients=10, data_dir=data_dir)
    mixing = gs.mixing_matrix(gs.ring(10), "fdla")
    sim = Simulation(gs.BEER(lr=0.1, gamma=0.7, compressor=gs.gsgd(5)), problem, mixing, [0], 100, "uniform")
    sent, ideal, coordinates = length_and_entropy(recorded(sim, 2000, every=25))
    print(f"\nfigure 1: {sent / coordinates:.3f} bits per coordinate, {sent / ideal:.4f} of entropy and allowance")
    assert sent <= 1.1 * ideal
    assert sent <= 3.9 * coordinates


def test_a_gaussian_of_a_million() -> None:
    x = torch.randn(1, 1_000_000, generator=torch.Generator().manual_seed(0))
    sent, ideal, coordinates = length_and_entropy([(0, (gs.gsgd(5)(x, seed=0),))])
    print(f"\nGaussian: {sent / coordinates:.4f} bits per coordinate, {sent / ideal:.4f} of entropy and allowance")
    assert sent <= 1.05 * ideal


@pytest.mark.slow
def test_the_convolutional_network(data_dir: Path) -> None:
    problem = networks.convolutional(data_dir)
    assert problem.d == 29_034
    sim = Simulation(
        gs.BEER(lr=1e-4, gamma=0.01, compressor=gs.gsgd(5)), problem, gs.mixing_matrix(gs.ring(10)), [0], 20
    )
    sent, ideal, coordinates = length_and_entropy(recorded(sim, 25, every=3))
    print(f"\nCNN: {sent / coordinates:.4f} bits per coordinate, {sent / ideal:.4f} of entropy and allowance")
    assert sent <= 1.05 * ideal
    assert sent <= 0.5 * coordinates


@pytest.mark.slow
def test_twenty_bits_on_the_hidden_layer(data_dir: Path) -> None:
    """With so many levels few repeat, so the length is compared with the differential entropy of a Gaussian."""
    problem = networks.one_hidden_layer(data_dir)
    assert problem.d == 25_450
    sim = Simulation(
        gs.BEER(lr=0.1, gamma=0.6, compressor=gs.gsgd(20)), problem, gs.mixing_matrix(gs.ring(10), "fdla"), [0], 100
    )
    for t, messages in recorded(sim, 40, every=13):
        for message in messages:
            assert isinstance(message, Levels)
            lengths = [len(payload) for _, payload in message.payloads("entropy")]
            assert max(lengths) < message.payload_size(), (t, max(lengths), message.payload_size())
    gaussian = gs.gsgd(20)(torch.randn(4, 25_450, generator=torch.Generator().manual_seed(1)), seed=0)
    sigma = 2**19 / math.sqrt(25_450)
    differential = math.log2(sigma * math.sqrt(2 * math.pi * math.e))
    bits = gaussian.num_bits("entropy").mean() / 25_450
    print(f"\ngsgd_20 on a Gaussian: {bits:.3f} bits per coordinate, differential entropy {differential:.3f}")
    assert bits <= 1.05 * differential
    fixed = gaussian.num_bits("fixed").mean() / 25_450
    assert bits < fixed
