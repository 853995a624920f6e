"""Do two versions of the library give the same results, to the last bit?

    python benchmarks/same_results.py COMMIT [--loopback] [--processes]

COMMIT is checked out into a temporary worktree. Every method then runs in both versions, on this machine: four
compressors, three problems, two graphs, full gradients and minibatches, 50 rounds each. Compared are the final models,
every message that a compressor produced, and the counted bits. `--loopback` also runs each case of the new version over
the loopback transport, with real packets, against the old simulation. `--processes` runs each method once more in real
processes (`gossamer launch`), in both versions.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))

from benchmarks.timing.turns import checked_out
from gossamer import registry

ROUNDS = 50
CLIENTS = 6

# Runs in either version, so it uses only what both have.
WORKER = r'''
import json, sys, warnings, zlib
import numpy as np, torch, networkx as nx
import gossamer as gs
from gossamer import registry
from gossamer.compression import base
warnings.simplefilter("ignore")
ROUNDS, CLIENTS, LOOPBACK = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "loopback"

symbols = []
plain_call = base.Compressor.__call__
def call(self, x, draw=None, **more):
    message = plain_call(self, x, draw, **more)
    if draw is not None:  # of a round; a sum does not depend on the order of messages and rows
        symbols.append(sum(zlib.crc32(row) for row in message.fixed()))
    return message
base.Compressor.__call__ = call

def digest(x):
    return zlib.crc32(np.ascontiguousarray(x.detach().cpu().numpy()).tobytes())

def compressors():
    blockwise = gs.blockwise(gs.qsgd(16), 8)
    return {"gsgd": gs.gsgd(5), "top_k": gs.top_k(0.2), "rand_k": gs.rand_k(0.3), "blockwise": blockwise}

def problems():
    module = torch.nn.Sequential(torch.nn.Linear(30, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    torch.manual_seed(0)
    for p in module.parameters():
        torch.nn.init.normal_(p, std=0.1)
    return {
        "quadratic": gs.quadratic(clients=CLIENTS, d=20, condition=10.0, noise=0.5, dtype="float64"),
        "logistic": gs.logistic_regression("breast_cancer", clients=CLIENTS),
        "module": gs.module_problem(module, "breast_cancer", clients=CLIENTS),
    }

def graphs():
    return {
        "ring": gs.mixing_matrix(nx.cycle_graph(CLIENTS), "metropolis"),
        "random": gs.mixing_matrix(nx.gnp_random_graph(CLIENTS, 0.6, seed=1), "metropolis"),
    }

def variants(cls):
    """All example settings; the first with every compressor."""
    fields = cls.__dataclass_fields__
    for number, settings in enumerate(cls.examples):
        if "compressor" not in fields:
            yield f"{number}", dict(settings)
            continue
        for name, compressor in compressors().items():
            if number == 0 or name == "gsgd":
                yield f"{number}-{name}", {"compressor": compressor, **settings}

found = {}
for name in registry.methods.names():
    cls = registry.methods.get(name)
    for variant, settings in variants(cls):
        for kind, problem in problems().items():
            for graph, mixing in graphs().items():
                for batch in (None, 4):
                    key = f"{name} {variant} {kind} {graph} {'full' if batch is None else 'minibatch'}"
                    symbols.clear()
                    try:
                        method = cls(**settings)
                        if LOOPBACK:
                            from gossamer.testing import loopback
                            run = loopback(method, problem, mixing, rounds=ROUNDS, batch_size=batch)
                            found[key] = [digest(run.x), run.bits, sum(symbols)]
                            continue
                        run = gs.simulate(method, problem, mixing, rounds=ROUNDS, batch_size=batch, eval_every=ROUNDS)
                    except gs.InputError as error:
                        found[key] = ["refused"]
                        continue
                    found[key] = [digest(run.x), float(run.final.bits), sum(symbols)]
json.dump(found, open(sys.argv[4], "w"))
'''


def results(source: Path, way: str, out: Path) -> dict[str, list[object]]:
    """What the version in `source` gives, by case."""
    subprocess.run(
        [sys.executable, "-c", WORKER, str(ROUNDS), str(CLIENTS), way, str(out)],
        env=environment(source),
        check=True,
        cwd=out.parent,
    )
    found: dict[str, list[object]] = json.loads(out.read_text())
    return found


def launched(source: Path, folder: Path) -> dict[str, list[object]]:
    """The final models and bits of every method, run in real processes by the version in `source`."""
    folder.mkdir()
    (folder / "all.toml").write_text(spec())
    command = [sys.executable, "-m", "gossamer", "launch", "all.toml", "-o", "out", "-q"]
    subprocess.run(command, env=environment(source), check=True, cwd=folder, stdout=subprocess.DEVNULL)
    found: dict[str, list[object]] = {}
    for path in sorted((folder / "out").glob("*.safetensors")):
        models = zlib.crc32(load_file(path)["models"].tobytes())
        rows = path.with_suffix(".jsonl").read_text().splitlines()
        found[path.stem] = [models, json.loads(rows[-2])["bits"]]
    return found


def spec() -> str:
    """One experiment with every method."""
    lines = [f"rounds = {ROUNDS}", "batch_size = 4", 'codec = "auto"', "[problem]", 'objective = "logistic_regression"']
    lines += ['data = "breast_cancer"', "clients = 4", "[graph]", 'name = "ring"']
    for name in registry.methods.names():
        cls: Any = registry.methods.get(name)
        settings = dict(cls.examples[0])
        if "compressor" in cls.__dataclass_fields__:
            settings["compressor"] = "qsgd:16"
        lines += [
            "[[methods]]",
            f'name = "{name}"',
            *(f"{key} = {json.dumps(value)}" for key, value in settings.items()),
        ]
    return "\n".join(lines)


def environment(source: Path) -> dict[str, str]:
    return dict(os.environ) | {"PYTHONPATH": str(source / "src"), "OMP_NUM_THREADS": "1"}


def compare(what: str, before: dict[str, list[object]], after: dict[str, list[object]]) -> bool:
    """Print what differs, and how many cases there were."""
    differ = [key for key in before | after if before.get(key) != after.get(key)]
    for key in differ:
        print(f"differs: {key}: {before.get(key)} before, {after.get(key)} after")
    refused = sum(value == ["refused"] for value in before.values())
    print(f"{what}: {len(before)} cases ({refused} refused by both), {len(differ)} differ")
    return not differ


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("commit", help="the version to compare with")
    parser.add_argument("--loopback", action="store_true", help="also run every case with real packets")
    parser.add_argument("--processes", action="store_true", help="also run each method in real processes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, checked_out(options.commit) as old:
        place = Path(folder)
        before = results(old, "rows", place / "before.json")
        same = compare("rows", before, results(HERE, "rows", place / "after.json"))
        if options.loopback:
            # Gradients of modules depend in the last bits on how many clients are computed together.
            looped = results(HERE, "loopback", place / "looped.json")
            chosen = [key for key in before if " module " not in key]
            same &= compare("packets", {key: before[key] for key in chosen}, {key: looped[key] for key in chosen})
        if options.processes:
            same &= compare("processes", launched(old, place / "one"), launched(HERE, place / "two"))
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
