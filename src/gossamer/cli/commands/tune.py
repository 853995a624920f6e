"""`gossamer tune`: search for step sizes, and write them into a spec."""

import argparse
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from rich.markup import escape

from gossamer.algorithms.base import Algorithm
from gossamer.algorithms.schedules import Schedule
from gossamer.cli.commands.data import downloads
from gossamer.cli.lines import complain, note, show_json, stop_request, stop_signals
from gossamer.cli.output import console, counters, titled, waiting
from gossamer.errors import InputError, RunError, StoppedError, unknown
from gossamer.paper import spec_path
from gossamer.runtime.experiment import Experiment, prepare
from gossamer.runtime.tuning.tune import Search, Tuned, check_tunable, tune, with_steps
from gossamer.spec import load_spec


def tune_spec(options: argparse.Namespace) -> int:
    """`gossamer tune`."""
    _tomlkit()
    path = spec_path(options.spec)
    spec = load_spec(path)
    output = Path(options.output or f"{path.stem}-tuned.toml")
    if output.exists() and not options.force:
        raise InputError(f"'{output}' exists already; give another file with -o, or replace it with --force.")
    if output.is_dir():
        raise InputError(f"'{output}' is a folder; name a file with -o.")
    if not output.parent.is_dir():
        raise InputError(f"The folder of '{output}' does not exist; create it first.")
    with downloads(options.quiet), waiting("Reading the data, computing the weights", options.quiet):
        experiment = prepare(spec, data_dir=options.data_dir, device=options.device)
    if len(experiment.methods) > len(spec.methods):
        raise InputError("`gossamer tune` takes one value of each setting, and one graph; the spec has lists.")
    known = list(experiment.methods)
    chosen = options.method or known
    for label in chosen:
        if label not in known:
            raise unknown("method", label, known, owner="The spec")
    for label in chosen:
        check_tunable(experiment.methods[label][0])
    rounds = max(min(spec.rounds, 50), spec.rounds // 5) if options.rounds is None else options.rounds
    search = Search(options.trials, rounds, options.at_once, spec.seeds[0])
    found = _search(experiment, chosen, search, options.quiet)
    won = {
        label: with_steps(experiment.methods[label][0], tuned.best.steps)
        for label, tuned in found.items()
        if tuned.best.norm < float("inf")
    }
    lost = [label for label in found if label not in won]
    if lost and not won:
        raise RunError(f"Every candidate of {', '.join(lost)} diverged, and nothing was written; try more --trials.")
    output.write_text(_tuned_text(spec.text, known, won), encoding="utf-8")
    _show(found, search, output, as_json=options.json)
    for label in lost:
        complain(f"Every candidate of {label} diverged, so its steps are unchanged; try more --trials.", 1)
    if lost:
        return 1
    if stop_request.signal is None:
        return 0
    return complain("Stopped; the best steps so far were written.", 128 + stop_request.signal)


def _search(experiment: Experiment, labels: list[str], search: Search, quiet: bool) -> dict[str, Tuned]:
    """What was found for each method, until someone asked to stop."""
    found: dict[str, Tuned] = {}
    with stop_signals() as should_stop, counters(quiet, dict.fromkeys(labels, search.trials)) as update:
        for label in labels:
            if should_stop() and found:
                break
            if update is None and not quiet:
                note(f"{label}: {search.trials} trials of {search.rounds:,} rounds")
            method, rounds = experiment.methods[label]

            def progress(tuned: Tuned, label: str = label) -> None:
                if update is not None:
                    update(label, len(tuned.trials))

            with suppress(StoppedError) if found else nullcontext():
                found[label] = tune(
                    method,
                    experiment.problem,
                    experiment.mixing,
                    search,
                    whole=rounds,
                    batch_size=experiment.spec.batch_size,
                    x0=experiment.spec.x0,
                    progress=progress,
                    should_stop=should_stop,
                )
    return found


def _tuned_text(text: str, labels: list[str], won: dict[str, Algorithm]) -> str:
    """The text of the spec with new step sizes; comments and order are kept."""
    tomlkit = _tomlkit()
    document: Any = tomlkit.parse(text)
    for label, table in zip(labels, document["methods"], strict=True):
        if label not in won:
            continue
        method = won[label]
        lr = method.lr
        if isinstance(lr, Schedule):
            described = tomlkit.inline_table()
            described["name"] = type(lr).__name__
            described.update({name: _short(value) for name, value in vars(lr).items()})
            table["lr"] = described
        else:
            table["lr"] = _short(lr)
        if hasattr(method, "gamma"):
            table["gamma"] = _short(method.gamma)
    return str(tomlkit.dumps(document))


def _tomlkit() -> Any:
    try:
        import tomlkit
    except ImportError:
        raise InputError("Tuning needs tomlkit; install it with `pip install 'gossamer[tune]'`.") from None
    return tomlkit


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _show(found: dict[str, Tuned], search: Search, output: Path, *, as_json: bool) -> None:
    rows = [
        {
            "method": label,
            "trials": len(tuned.trials),
            "diverged": sum(trial.norm == float("inf") for trial in tuned.trials),
            "rounds": search.rounds,
            "start": tuned.start,
            "auto": {"grad_norm": _finite(tuned.automatic.norm), **tuned.automatic.steps},
            "best": {"grad_norm": _finite(tuned.best.norm), **{k: _short(v) for k, v in tuned.best.steps.items()}},
        }
        for label, tuned in found.items()
    ]
    if as_json:
        show_json({"spec": str(output), "methods": rows})
        return
    numbers = (">trials", ">diverged", ">with auto's steps", ">with the best", ">lr", ">gamma")
    table = titled(f"Gradient norms after all rounds; searched with runs of {search.rounds:,}", "method", *numbers)
    for row in rows:
        best: Any = row["best"]
        automatic: Any = row["auto"]
        norms = ("diverged" if one["grad_norm"] is None else f"{one['grad_norm']:.3g}" for one in (automatic, best))
        gamma = f"{best['gamma']:.4g}" if "gamma" in best else "-"
        table.add_row(
            escape(str(row["method"])), str(row["trials"]), str(row["diverged"]), *norms, f"{best['lr']:.4g}", gamma
        )
    out = console()
    out.show(table)
    out.plain(f"Spec: {output}")


def _finite(norm: float) -> float | None:
    return norm if norm < float("inf") else None
