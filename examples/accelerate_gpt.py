"""A Hugging Face language model with Accelerate, one client per process: each rank reads its own part of a text.

torchrun --nproc-per-node 2 --master-port 29500 examples/accelerate_gpt.py

Under torchrun, `Accelerator.prepare` would wrap the model in DDP and split the data loader over the ranks. If the
`Accelerator` does not see the variables of torchrun, it does neither. On GPUs, call `torch.cuda.set_device(LOCAL_RANK)`
before. `accelerator.process_index` is then 0 on every rank, so give each its own folder. Start the command again to
continue from there.
"""

import os
import pydoc_data.topics  # English text that is part of Python
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import patch_environment, set_seed
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

import gossamer as gs

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 4
rank, clients, folder = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "accelerate/client" + os.environ["RANK"]
text = torch.tensor(list("".join(pydoc_data.topics.topics.values()).encode()))
rows = text[: 1024 * 64].view(1024, 64)  # of tokens, which are bytes
batches = DataLoader(TensorDataset(rows[:960].tensor_split(clients)[rank]), batch_size=8)

set_seed(0)  # the same model on every rank
config = GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
with patch_environment(LOCAL_RANK=-1, WORLD_SIZE=1):
    accelerator = Accelerator(cpu=True, mixed_precision="no", gradient_accumulation_steps=2)
model, loader = accelerator.prepare(GPT2LMHeadModel(config), batches)  # first, so that the optimiser finds its device
adamw = torch.optim.AdamW(model.parameters(), lr=3e-3)
method = gs.CHOCOSGD(lr=1.0, gamma=0.6, compressor=gs.blockwise(gs.gsgd(3), 64))
mixing = gs.mixing_matrix(gs.ring(clients))
decentralized = gs.DecentralizedOptimizer(model.parameters(), method, mixing, inner=adamw, every=5)
schedule = torch.optim.lr_scheduler.LambdaLR(adamw, lambda step: min(1.0, (step + 1) / 20))
optimizer, schedule = accelerator.prepare(decentralized, schedule)
assert isinstance(model, GPT2LMHeadModel)  # and not a DistributedDataParallel around it
if Path(folder).exists():
    accelerator.load_state(folder)  # each rank its own model, with the state of the method and the moments

for epoch in range(2 * decentralized.steps // len(loader), epochs):
    model.train()
    for (tokens,) in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(input_ids=tokens, labels=tokens).loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    accelerator.save_state(folder)
    model.eval()
    with decentralized.average_model(model), torch.no_grad():  # every rank takes part
        loss = model(input_ids=rows[960:], labels=rows[960:]).loss
    if rank == 0:
        print(f"epoch {epoch}: loss of the average {loss:.3f} nats per byte", flush=True)
