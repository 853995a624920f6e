"""People's own modules and data: tokens, one data set per client, metrics, and modules named in a spec."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import gossamer as gs
from gossamer.runtime.experiment import prepare
from gossamer.spec import load_spec

VOCABULARY, LENGTH = 12, 6


class Transformer(nn.Module):
    """A user's transformer on tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """(rows, length, vocabulary)."""
        assert tokens.dtype == torch.int64
        logits: Tensor = self.head(self.encoder(self.embed(tokens)))
        return logits


def per_token(output: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), labels.flatten())


def token_accuracy(output: Tensor, labels: Tensor) -> Tensor:
    return (output.argmax(dim=-1) == labels).float().mean()


def texts(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens, and for each of them the next but one of the vocabulary."""
    tokens = torch.randint(0, VOCABULARY, (rows, LENGTH), generator=torch.Generator().manual_seed(seed))
    return tokens, (tokens + 2) % VOCABULARY


def transformer_problem(**more: Any) -> gs.problems.ModuleProblem:
    torch.manual_seed(0)
    data: list[Any] = [TensorDataset(*texts(20 + client, client)) for client in range(4)]
    given = {"data": data, "test": texts(50, 9), "metric": {"token_accuracy": token_accuracy}} | more
    return gs.module_problem(Transformer(), given.pop("data"), loss=per_token, **given)


def test_a_transformer_learns_from_one_data_set_per_client() -> None:
    problem = transformer_problem()
    assert (problem.clients, problem.rows.counts) == (4, [20, 21, 22, 23])
    assert problem.rows.features.dtype == torch.int64
    method = gs.BEER(lr=0.3, gamma=0.5, compressor=gs.gsgd(5))
    run = gs.simulate(method, problem, gs.mixing_matrix(gs.ring(4)), rounds=60, batch_size=8, eval_every=20)
    first, last = run.frame["token_accuracy"].iloc[0], run.frame["token_accuracy"].iloc[-1]
    assert first < 0.3
    assert last > 0.6
    assert run.frame["mean_token_accuracy"].iloc[-1] == pytest.approx(last, abs=0.1)
    trained = problem.as_module(run.average)
    assert token_accuracy(trained(texts(50, 9)[0]), texts(50, 9)[1]).item() == pytest.approx(last, abs=1e-6)


def test_the_gradients_are_those_of_autograd() -> None:
    problem = transformer_problem()
    x = problem.x0().expand(4, -1)
    batch = torch.arange(12).view(4, 3)
    found = problem.gradient(x, batch)
    module = problem.as_module(problem.x0())
    tokens, labels = texts(21, 1)
    loss = per_token(module(tokens[3:6]), labels[3:6])
    expected = torch.cat([one.flatten() for one in torch.autograd.grad(loss, list(module.parameters()))])
    torch.testing.assert_close(found[1], expected, rtol=1e-4, atol=1e-6)


def test_tuples_and_any_map_style_data_set() -> None:
    class Rows(Dataset[Any]):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, row: int) -> Any:
            tokens, labels = texts(20, 0)
            return tokens[row], labels[row]

    one = transformer_problem(data=[Rows(), texts(21, 1), texts(22, 2), texts(23, 3)])
    assert torch.equal(one.rows.features, transformer_problem().rows.features)


def test_items_of_any_kind_are_collated() -> None:
    tokens, labels = texts(20, 0)
    items: Any = [{"tokens": tokens[row], "next": labels[row]} for row in range(20)]

    def collate(rows: list[Any]) -> tuple[Tensor, Tensor]:
        return torch.stack([row["tokens"] for row in rows]), torch.stack([row["next"] for row in rows])

    class Rows(Dataset[Any]):
        def __len__(self) -> int:
            return len(items)

        def __getitem__(self, row: int) -> Any:
            return items[row]

    one = transformer_problem(data=[Rows(), Rows()], test=Rows(), collate=collate)
    assert torch.equal(one.rows.labels, torch.cat([labels, labels]))
    assert one.test is not None
    assert torch.equal(one.test.features, tokens)


def test_a_list_of_two_arrays_is_a_pair() -> None:
    features, labels = np.random.default_rng(0).standard_normal((40, 3)), np.arange(40) % 2
    problem = gs.module_problem(nn.Linear(3, 2), [features, labels], clients=4)
    assert problem.rows.total == 40


def test_integers_with_a_scale_are_numbers() -> None:
    data = np.arange(80).reshape(40, 2), np.arange(40) % 2
    assert gs.module_problem(nn.Linear(2, 2), data, clients=4, pixels="standard").rows.features.dtype == torch.float32
    with pytest.raises(gs.InputError, match=r"The module does not take rows of shape \(2,\)"):
        gs.module_problem(nn.Linear(2, 2), data, clients=4)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"clients": 3}, "`data` is a list of 4 data sets, one per client; leave out `clients` = 3."),
        ({"partition": "iid"}, "`data` is a list of 4 data sets, one per client; leave out `partition` = 'iid'."),
        ({"metric": lambda output, labels: output}, "A metric needs a name, which its column gets, got '<lambda>'"),
        ({"metric": {"all": lambda output, labels: output}}, "The metric 'all' must be one number, the mean over its"),
        ({"metric": {"all": 3}}, "The metric 'all' must be a function of (output, labels), got int."),
        ({"metric": {"all": lambda output: 1.0}}, "The metric 'all' does not fit the module's output of shape"),
        ({"test": None}, "`metric` is measured on test rows, and there are none; pass `test`."),
        (
            {"data": [texts(5, 0), (texts(5, 1)[0][:, :3], texts(5, 1)[1])]},
            "The features of client 1 have rows of shape (3,) (int64), but those of client 0 (6,) (int64).",
        ),
        ({"data": [texts(5, 0), (1, 2, 3)]}, "`data[1]` must be a pair (features, labels), got 3 parts."),
    ],
)
def test_mistakes_are_sentences(more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(gs.InputError, match=re.escape(sentence)):
        transformer_problem(**more)


def test_a_metric_has_a_column_of_its_own() -> None:
    problem = transformer_problem(metric={"bits": token_accuracy})
    with pytest.raises(gs.InputError, match="A metric cannot be called 'bits', since records have such a column"):
        gs.simulate(gs.DSGD(lr=0.1), problem, gs.mixing_matrix(gs.ring(4)), rounds=1)


MINE = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Embedding(12, 4), nn.Flatten(), nn.Linear(24, 12))

def datasets():
    generator = torch.Generator().manual_seed(0)
    tokens = [torch.randint(0, 12, (20, 6), generator=generator) for _ in range(4)]
    return [(one, one[:, 0]) for one in tokens]

def test():
    return datasets()[0]

def share(output, labels):
    return (output.argmax(dim=1) == labels).float().mean()

def broken():
    raise OSError("no such disk")

number = 3
"""

SPEC = """
rounds = 3
batch_size = 5
[problem]
objective = "module"
module = "{name}:build"
data = "{name}:datasets"
test = "{name}:test"
metric = "{name}:share"
[graph]
name = "ring"
[[methods]]
name = "beer"
lr = 0.1
gamma = 0.5
compressor = "gsgd:5"
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A file of the user's in the working directory."""
    name = "gossamer_tests_of_a_users_file"
    (tmp_path / f"{name}.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_a_spec_names_a_module(mine: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(SPEC.format(name=mine))
    runs = prepare(load_spec(path)).run()
    (run,) = runs
    assert run.frame["share"].notna().all()
    assert str(tmp_path) not in sys.path
    again = prepare(load_spec(path)).run()
    assert torch.equal(run.x, next(iter(again)).x), "the weights are drawn with `init_seed`"


@pytest.mark.parametrize(
    ("setting", "value", "sentence"),
    [
        ("module", "nobody_has_this:build", "`module` = 'nobody_has_this:build' cannot be imported: No module named"),
        ("module", "{name}:nothing", "cannot be imported: module '{name}' has no attribute 'nothing'."),
        ("module", "{name}", '`module` must be like "my_package:build", got'),
        ("module", "{name}:number", "must be a function without arguments, got int."),
        ("module", "{name}:broken", "failed: OSError: no such disk."),
        ("data", "{name}:number", "`data` must be a name, a path, a torch Dataset or a pair"),
    ],
)
def test_paths_that_do_not_lead_to_a_module(mine: str, tmp_path: Path, setting: str, value: str, sentence: str) -> None:
    path, value = tmp_path / "mine.toml", value.format(name=mine)
    path.write_text(re.sub(f'{setting} = ".*"', f'{setting} = "{value}"', SPEC.format(name=mine), count=1))
    with pytest.raises(gs.InputError, match=re.escape(sentence.format(name=mine))):
        prepare(load_spec(path))
