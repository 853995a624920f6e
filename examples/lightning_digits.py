"""PyTorch Lightning, one client per process: `configure_optimizers` returns a `DecentralizedOptimizer`.

torchrun --nproc-per-node 2 --master-port 29500 examples/lightning_digits.py

Lightning recognises torchrun, and with several devices it would wrap the model in DDP. `SingleDeviceStrategy` prevents
that: for Lightning, each process trains alone (on GPUs: `SingleDeviceStrategy(f"cuda:{LOCAL_RANK}")`). Each rank reads
its own data and has its own folder of checkpoints. Start the command again to continue from them. Lightning loads the
model before it makes the optimiser, and the models of the ranks differ by then. With `initial="broadcast"` they may
differ, and the state of the optimiser gives each rank its own model back.
"""

import os
import sys

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.strategies import SingleDeviceStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import gossamer as gs

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 8
rank, clients = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
data = gs.problems.load("digits")  # part of scikit-learn
mine = gs.problems.split(data.labels, clients, "iid")[rank]
inputs, test_inputs = (torch.tensor(x).float() / data.peak for x in (data.features[mine], data.test_features))
labels, test_labels = (torch.tensor(y) for y in (data.labels[mine], data.test_labels))


class Digits(pl.LightningModule):
    """A network, its loss, and an optimiser that talks to the neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def training_step(self, batch: list[Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def on_train_epoch_end(self) -> None:
        assert self.trainer.model is self  # and not a DistributedDataParallel around it
        with self.trainer.optimizers[0].average_model(self):  # the average of all clients; every rank takes part
            accuracy = (self.network(test_inputs).argmax(dim=1) == test_labels).float().mean()
        if rank == 0:
            print(f"epoch {self.current_epoch}: accuracy of the average {accuracy:.3f}", flush=True)

    def configure_optimizers(self) -> gs.DecentralizedOptimizer:
        method = gs.CHOCOSGD(lr=1.0, gamma=0.6, compressor=gs.blockwise(gs.gsgd(3), 64))
        adamw, mixing = torch.optim.AdamW(self.parameters(), lr=5e-3), gs.mixing_matrix(gs.ring(clients))
        return gs.DecentralizedOptimizer(self.parameters(), method, mixing, inner=adamw, every=5, initial="broadcast")


pl.seed_everything(0)
model, kept = Digits(), ModelCheckpoint(f"lightning/client{rank}", save_last=True)
quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
how = {"accelerator": "cpu", "callbacks": [kept], "max_epochs": epochs, "gradient_clip_val": 1.0}
trainer = pl.Trainer(strategy=SingleDeviceStrategy("cpu"), **how, **quiet)
trainer.fit(model, DataLoader(TensorDataset(inputs, labels), batch_size=32), ckpt_path="last")
