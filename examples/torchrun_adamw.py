"""AdamW in a loop of your own, one client per process: twenty local steps per exchange, on digits sorted by label.

torchrun --nproc-per-node 4 --master-port 29500 examples/torchrun_adamw.py --checkpoints kept

Each client sees only some of the digits, so its local steps are corrected (compressed K-GT). Start the command again to
continue from the last checkpoint that all ranks have.
"""

import argparse
import os

import torch
from torch import nn

import gossamer as gs

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=600)
parser.add_argument("--checkpoints")
options = parser.parse_args()
rank, clients = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

data = gs.problems.load("digits")  # part of scikit-learn
mine = gs.problems.split(data.labels, clients, "sorted")[rank]
inputs, test_inputs = (torch.tensor(x).float() / data.peak for x in (data.features[mine], data.test_features))
labels, test_labels = (torch.tensor(y).long() for y in (data.labels[mine], data.test_labels))
torch.manual_seed(0)  # the same model on every rank
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

adamw = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
method = gs.algorithms.CompressedKGT(lr=1.0, gamma=0.4, compressor=gs.blockwise(gs.gsgd(3), 64))
mixing = gs.mixing_matrix(gs.ring(clients), weights="fdla")
optimizer = gs.DecentralizedOptimizer(model.parameters(), method, mixing, inner=adamw, every=20)
step = optimizer.resume(options.checkpoints) if options.checkpoints else 0  # the moments of AdamW, too
schedule = torch.optim.lr_scheduler.LambdaLR(adamw, lambda t: 1 - t / options.steps, last_epoch=step - 1)

while step < options.steps:
    rows = torch.randint(len(inputs), (32,), generator=torch.Generator().manual_seed(1000 * step + rank))
    loss = nn.functional.cross_entropy(model(inputs[rows]), labels[rows])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()  # a step of AdamW; every twentieth sends one packet to each neighbour
    schedule.step()
    step = optimizer.steps
    if step % 100 == 0:
        if options.checkpoints:
            optimizer.save(options.checkpoints, every=100)
        with optimizer.average_model():  # the average of all clients; every rank takes part
            accuracy = (model(test_inputs).argmax(dim=1) == test_labels).float().mean()
        if rank == 0:
            sent = optimizer.traffic.bytes_sent
            print(f"step {step}: accuracy of the average {accuracy:.3f}, {sent} bytes sent", flush=True)
