"""Your own model: an `nn.Module`, a torch `Dataset`, and BEER on eight clients that each see two classes.

python examples/own_model.py
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import gossamer as gs

torch.manual_seed(0)
centres = 3 * torch.randn(4, 20)
labels = torch.arange(1200) % 4
points = centres[labels] + 2 * torch.randn(1200, 20)
train, test = TensorDataset(points[:1000], labels[:1000]), TensorDataset(points[1000:], labels[1000:])

model = nn.Sequential(nn.Linear(20, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
problem = gs.module_problem(model, train, test=test, clients=8, partition="shards:2")
mixing = gs.mixing_matrix(gs.ring(8), weights="fdla")
method = gs.BEER(lr=0.1, gamma=0.5, compressor=gs.gsgd(5))
run = gs.simulate(method, problem, mixing, rounds=300, batch_size=20, seed=0)
print(run.frame[["round", "loss", "accuracy", "worst_accuracy", "bits"]].tail(3).to_string(index=False))
trained = problem.as_module(run.average)  # an nn.Module again
