"""Your own training loop, one client per process: BEER with 5 bits per coordinate, on MNIST sorted by digit.

torchrun --nproc-per-node 4 --master-port 29500 examples/train_mnist.py --data-dir data/
torchrun --nproc-per-node 4 --master-port 29500 examples/train_mnist.py --data digits   # needs no download

With `--checkpoints DIR`, `kill` one rank and all stop after the same step. Start again to continue from there.
"""

import argparse
import os
import signal

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gossamer as gs

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="mnist")
parser.add_argument("--data-dir")
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--checkpoints")
options = parser.parse_args()
rank, clients = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "4"))

data = gs.problems.load(options.data, options.data_dir)
mine = gs.problems.split(data.labels, clients, "sorted")[rank]  # most ranks see only two or three digits
inputs, test_inputs = (torch.tensor(x).float() / data.peak for x in (data.features[mine], data.test_features))
targets, test_targets = (torch.tensor(y).long() for y in (data.labels[mine], data.test_labels))
torch.manual_seed(0)  # the same model on every rank
model = nn.Sequential(nn.Flatten(), nn.Linear(inputs[0].numel(), 32), nn.Sigmoid(), nn.Linear(32, 10))
method = gs.BEER(lr=0.5, gamma=0.1, compressor=gs.gsgd(5))
optimizer = gs.DecentralizedOptimizer(model.parameters(), method, gs.mixing_matrix(gs.ring(clients), weights="fdla"))
signal.signal(signal.SIGTERM, lambda *_: optimizer.ask_to_stop())

step = optimizer.resume(options.checkpoints) if options.checkpoints else 0
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 0.5 ** (t // 200), last_epoch=step - 1)
rows = torch.Generator().manual_seed(rank + 1000 * step)
batches = DataLoader(TensorDataset(inputs, targets), batch_size=100, shuffle=True, generator=rows)
while step < options.steps and not optimizer.should_stop:
    for features, labels in batches:
        loss = nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        schedule.step()
        step = optimizer.rounds
        if step % 100 == 0 or optimizer.should_stop:
            with optimizer.average_model():  # the average of all clients; every rank takes part
                accuracy = (model(test_inputs).argmax(dim=1) == test_targets).float().mean()
            if rank == 0:
                print(f"step {step}: loss {loss:.3f} here, accuracy of the average {accuracy:.3f}", flush=True)
        if options.checkpoints and (step % 50 == 0 or optimizer.should_stop):
            optimizer.save(options.checkpoints, every=50)
        if step == options.steps or optimizer.should_stop:
            break
