"""`gossamer replay`: an open run again in one process."""

import argparse
from pathlib import Path
from typing import NamedTuple

import torch

from gossamer.cli.launching.rank import prepared
from gossamer.cli.lines import note, show_json
from gossamer.records import checkpoint
from gossamer.runtime.open.specs import OpenRun


def replay(options: argparse.Namespace) -> int:
    """`gossamer replay`."""
    run = OpenRun.of(prepared(options, options.device))
    source = Path(options.history)
    kept = {}
    if source.is_dir():
        kept = {path.stem: checkpoint.read(path) for path in sorted(source.glob("client*.safetensors"))}
    number = int(next(iter(kept.values())).facts["run"]) if kept else 0
    if not options.quiet:
        note(f"{run.label}: replaying {source}")
    players = run.replay(run.history(source), number)
    players.run()
    rows = []
    for client, member in sorted((players.left | players.members).items()):
        saved, same = kept.get(f"client{client}"), None
        if saved is not None and int(saved.facts["t"]) == member.t:
            same = torch.equal(saved.tensors["model"][:, : member.state.x.shape[1]], member.state.x.cpu())
        rows.append(_Row(client, client in players.members, member.t, member.bytes, same))
    mean = None
    if players.members:
        models = torch.cat([member.state.x for member in players.members.values()])
        values = run.experiment.problem.evaluate(models.mean(dim=0, keepdim=True))
        mean = {name: float(value[0]) for name, value in values.items()}
    if options.json:
        show_json({"clients": [row._asdict() for row in rows], "mean_model": mean})
    else:
        for row in rows:
            print(row)
        numbers = [f"{name} {value:.6g}" for name, value in (mean or {}).items()]
        print("mean model: " + (", ".join(numbers) or "none, since nobody is present"))
    return 1 if any(row.same_model is False for row in rows) else 0


class _Row(NamedTuple):
    """A client at the end of the history, or when it was gone."""

    client: int
    present: bool
    round: int
    bytes: int
    same_model: bool | None

    def __str__(self) -> str:
        state = "present" if self.present else "gone"
        same = {True: ", the model that it kept", False: ", NOT the model that it kept", None: ""}[self.same_model]
        return f"client {self.client:>3}: {state} after round {self.round:,}, {self.bytes / 1e6:.3g} MB sent{same}"
