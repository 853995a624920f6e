"""The transformer and the data of transformer.py, unchanged, in a training loop of your own.

torchrun --nproc-per-node 4 --master-port 29500 examples/transformer_torchrun.py
"""

import os

import torch
from transformer import Transformer, datasets, held_out, loss, token_accuracy  # type: ignore[import-not-found]

import gossamer as gs

rank = int(os.environ["RANK"])
tokens, targets = datasets()[rank].tensors
torch.manual_seed(0)  # the same model on every rank
model = Transformer()
method = gs.CHOCOSGD(lr=1.0, gamma=0.6, compressor=gs.blockwise(gs.gsgd(3), 64))
adamw = torch.optim.AdamW(model.parameters(), lr=3e-3)
ring = gs.mixing_matrix(gs.ring(4))
optimizer = gs.DecentralizedOptimizer(model.parameters(), method, ring, inner=adamw, every=5)
rows = torch.Generator().manual_seed(rank)
while optimizer.rounds < 80:
    batch = torch.randint(len(tokens), (32,), generator=rows)
    optimizer.zero_grad()
    loss(model(tokens[batch]), targets[batch]).backward()
    optimizer.step()
    if optimizer.steps % 100 == 0:
        with optimizer.average_model(), torch.no_grad():  # the average of all clients; every rank takes part
            accuracy = token_accuracy(model(held_out().tensors[0]), held_out().tensors[1])
        if rank == 0:
            print(f"round {optimizer.rounds}: token accuracy of the average {accuracy:.3f}", flush=True)
