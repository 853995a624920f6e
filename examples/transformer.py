"""A transformer on tokens, one data set per client, local steps of AdamW: simulated, and the same across processes.

gossamer run examples/transformer.toml
gossamer launch examples/transformer.toml
python examples/transformer.py
"""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import gossamer as gs

TOKENS, LENGTH = 16, 8


class Transformer(nn.Module):
    """Predicts for each token the one that stands in its place when the row is read backwards."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(TOKENS, 32), nn.Parameter(0.1 * torch.randn(LENGTH, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(32, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(tokens) + self.place))  # type: ignore[no-any-return]


def rows(count: int, seed: int) -> TensorDataset:
    tokens = torch.randint(0, TOKENS, (count, LENGTH), generator=torch.Generator().manual_seed(seed))
    return TensorDataset(tokens, tokens.flip(1))


def datasets() -> list[TensorDataset]:
    return [rows(200 + 20 * client, seed=client) for client in range(4)]


def held_out() -> TensorDataset:
    return rows(200, seed=99)


def loss(output: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), labels.flatten())


def token_accuracy(output: Tensor, labels: Tensor) -> Tensor:
    return (output.argmax(dim=-1) == labels).float().mean()


if __name__ == "__main__":
    torch.manual_seed(0)
    problem = gs.module_problem(Transformer(), datasets(), loss=loss, test=held_out(), metric=token_accuracy)
    method = gs.CHOCOSGD(lr=1.0, gamma=0.6, compressor=gs.blockwise(gs.gsgd(3), 64))
    local = gs.LocalSteps(torch.optim.AdamW, steps=5, lr=3e-3)
    ring = gs.mixing_matrix(gs.ring(4))
    run = gs.simulate(method, problem, ring, rounds=80, batch_size=32, local=local, eval_every=20)
    print(run.frame[["round", "loss", "token_accuracy", "bits"]].to_string(index=False))
