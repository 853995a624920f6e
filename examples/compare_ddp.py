"""DDP, DiLoCo and Gossamer on your own hosts: the same model, data and seconds; who is more accurate?

torchrun --nproc-per-node 4 --master-port 29500 examples/compare_ddp.py 5      # on each host, as torchrun asks

Put your model, loss and data in their place. Time for the target accuracy counts, not time per step.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import gossamer as gs

limit = float(sys.argv[1])  # seconds for each
dist.init_process_group("gloo")
rank, hosts, H = dist.get_rank(), dist.get_world_size(), 20
data = gs.problems.load("digits")
mine = gs.problems.split(data.labels, hosts, "dirichlet:0.3")[rank]
inputs, test = (torch.tensor(x).float() / data.peak for x in (data.features[mine], data.test_features))
labels, test_labels = (torch.tensor(y).long() for y in (data.labels[mine], data.test_labels))

for name in ("DDP", "DiLoCo", "Gossamer"):
    torch.manual_seed(0)  # the same model on every host
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )
    trained: nn.Module = nn.parallel.DistributedDataParallel(model) if name == "DDP" else model
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if name == "Gossamer":
        method = gs.CHOCOSGD(lr=0.7, gamma=0.6, compressor=gs.blockwise(gs.gsgd(3), 256), h0="model")
        mixing = gs.mixing_matrix(gs.ring(hosts), weights="metropolis")
        optimizer = gs.DecentralizedOptimizer(
            model.parameters(), method, mixing, inner=optimizer, every=H, outer_momentum=0.9
        )
    shared = parameters_to_vector(model.parameters()).detach().clone()
    momentum, steps, is_over, began = torch.zeros_like(shared), 0, torch.zeros(1), time.monotonic()
    while not is_over:
        for _ in range(H):
            rows = torch.randint(len(inputs), (32,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(trained(inputs[rows]), labels[rows]).backward()
            optimizer.step()
        if name == "DiLoCo":
            mean = parameters_to_vector(model.parameters()).detach() / hosts
            dist.all_reduce(mean)
            momentum = 0.9 * momentum + (shared - mean)
            shared = shared - 0.7 * (shared - mean + 0.9 * momentum)
            vector_to_parameters(shared.clone(), model.parameters())  # they share its memory
        steps, is_over = steps + H, torch.tensor([float(time.monotonic() - began > limit)])
        dist.broadcast(is_over, src=0)
    mean = parameters_to_vector(model.parameters()).detach() / hosts
    dist.all_reduce(mean)  # the average model
    vector_to_parameters(mean, model.parameters())
    accuracy = (model(test).argmax(dim=1) == test_labels).float().mean()
    if rank == 0:
        print(f"{name}: accuracy {accuracy:.3f} after {steps} steps in {limit:g} s", flush=True)
