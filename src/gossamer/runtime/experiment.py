"""A spec put together and run: the same for the command line, the shipped specs and tests."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from gossamer import registry
from gossamer.algorithms.base import Algorithm
from gossamer.errors import InputError
from gossamer.problems.base import Problem
from gossamer.records.record import record_name
from gossamer.records.runs import Runs, models_path
from gossamer.runtime.arguments import check_batch_size, check_method_fits
from gossamer.runtime.gradients.local import LocalSteps, for_local_steps
from gossamer.runtime.measure import Measure
from gossamer.runtime.session import check_surrogates
from gossamer.runtime.simulator import sweep
from gossamer.runtime.start import check_common, starting_models
from gossamer.runtime.tuning.auto import settings_for
from gossamer.runtime.tuning.certified import certified_steps, share_of
from gossamer.spec import Spec
from gossamer.streams import Streams
from gossamer.topology import Mixing, MixingSchedule, build_network


@dataclass(frozen=True)
class Experiment:
    """Everything that a spec names, built and checked."""

    spec: Spec
    problem: Problem
    mixing: Mixing
    methods: dict[str, tuple[Algorithm, int]]
    """By label: the method and its rounds."""
    networks: dict[str, Mixing] = field(default_factory=dict)
    """By label, where the spec has several graphs."""
    data_dir: str | None = None
    device: str | None = None
    """From where its data was read, and where it runs, if not as the spec says."""
    local: dict[str, LocalSteps] = field(default_factory=dict)
    """By label: the local steps of the methods that take any."""

    def check_one_graph(self, command: str) -> None:
        """Refuse several graphs."""
        if self.networks:
            raise InputError(f"`{command}` takes one graph, got {len(self.spec.graphs)}; give each a spec of its own.")

    def check_both_directions(self) -> None:
        """Refuse a directed schedule, which processes cannot use."""
        if isinstance(self.mixing, MixingSchedule) and not self.mixing.is_symmetric:
            raise InputError(
                "Processes need edges that are used in both directions, but this schedule is directed; use its "
                "symmetric form, or simulate the spec with `gossamer run`."
            )

    @property
    def file_names(self) -> list[str]:
        """The files that a run with records will write: each run's record, and its final models."""
        every = [(label, seed) for label in self.methods for seed in self.spec.seeds]
        return [
            name for label, seed in every for name in (record_name(label, seed), models_path(Path(), label, seed).name)
        ]

    def run(self, on_method: Callable[[str, int], None] | None = None, **how: Any) -> Runs:
        """Simulate every method with every seed. `how` is what `sweep` takes beside the spec, such as `record_dir`.

        `on_method` hears each label and its rounds before it starts. `run_over_cores` does the same in several
        processes.
        """
        runs = Runs()
        for label, (method, rounds) in self.methods.items():
            if on_method is not None:
                on_method(label, rounds)
            runs += sweep(
                {label: method},
                self.problem,
                self.networks.get(label, self.mixing),
                rounds=rounds,
                batch_size=self.spec.batch_size,
                seeds=self.spec.seeds,
                eval_every=self.spec.eval_every,
                x0=self.spec.x0,
                codec=self.spec.codec or "fixed",
                surrogates=self.spec.surrogates,
                local=self.local.get(label),
                measures=_measures(self.spec),
                **how,
            )
        return runs


def prepare(spec: Spec, *, data_dir: str | None = None, device: str | None = None) -> Experiment:
    """Build what the spec names; a mistake anywhere in it is raised here, before anything runs."""
    methods: dict[str, tuple[Algorithm, int]] = {}
    wished: dict[str, dict[str, str]] = {}
    local: dict[str, LocalSteps] = {}
    combinations = spec.combinations()
    for table, _, suffix in combinations:
        settings = {key: value for key, value in table.items() if key not in ("label", "rounds", "local")}
        if "compressor" in settings:
            settings["compressor"] = registry.compressors.build(settings["compressor"])
        chosen = _to_be_found(settings)
        method = registry.methods.build(settings | dict.fromkeys(chosen, 1.0))
        label = " ".join(filter(None, (table.get("label", method.info.title), suffix)))
        if label in methods:
            raise InputError(f"Two methods of the spec are called {label!r}; give each a `label` of its own.")
        methods[label] = (method, table.get("rounds", spec.rounds))
        wished[label] = chosen
        if (steps := _local_steps(table.get("local", spec.local))) is not None:
            local[label] = steps
    names = [record_name(label, 0) for label in methods]
    if len(set(names)) < len(names):
        raise InputError(f"The labels {', '.join(map(repr, methods))} are too alike for file names; change one.")

    problem = build_problem(spec, data_dir, device)
    built = [_network(graph, problem.clients) for graph in spec.graphs or [spec.graph]]
    graphs = spec.graphs or [spec.graph]
    networks = {
        label: built[graphs.index(one.graph)] for label, one in zip(methods, combinations, strict=True) if spec.graphs
    }
    if spec.batch_size is not None:
        check_batch_size(spec.batch_size, problem)
    check_surrogates(spec.surrogates, problem.dtype)
    start = starting_models(spec.x0, problem, Streams(spec.seeds, range(problem.clients), problem.device))
    measures = _measures(spec)
    methods |= {label: (for_local_steps(methods[label][0]), methods[label][1]) for label in local}
    for label, (method, rounds) in methods.items():
        mixing = networks.get(label, built[0])
        check_method_fits(method, problem, mixing)
        check_common(method, start, problem.clients)
        for measure in measures:
            measure.check(method)
        if chosen := wished[label]:
            methods[label] = (_found(method, chosen, spec, problem, mixing, rounds), rounds)
    return Experiment(spec, problem, built[0], methods, networks, data_dir, device, local)


def build_problem(spec: Spec, data_dir: str | None, device: str | None) -> Problem:
    """The problem that a spec names."""
    settings = dict(spec.problem)
    if "name" in settings:
        raise InputError("[problem] takes `objective` and that objective's settings, not `name`.")
    settings["name"] = settings.pop("objective")
    reads_files = "data_dir" in inspect.signature(registry.objectives.get(settings["name"])).parameters
    settings |= {"data_dir": data_dir} if data_dir is not None and reads_files else {}
    settings |= {"device": device} if device is not None else {}
    problem: Problem = registry.objectives.build(settings)
    return problem


def _network(graph: Mapping[str, Any], clients: int) -> Mixing:
    settings = dict(graph)
    weights = settings.pop("weights", None)
    return build_network(settings, clients, weights)


def _local_steps(table: Mapping[str, Any] | Literal[False] | None) -> LocalSteps | None:
    """The local steps that a table describes, if any."""
    if not isinstance(table, Mapping):
        return None
    if "optimizer" not in table:
        raise InputError('[local] needs `optimizer`, such as "AdamW".')
    return LocalSteps(**table)


def _measures(spec: Spec) -> list[Measure]:
    """What the spec has measured beside the usual columns."""
    return [registry.measures.build(name) for name in spec.measures]


def _to_be_found(settings: Mapping[str, Any]) -> dict[str, str]:
    """The steps that are words in the place of numbers: "auto", "certified", or an lr of "certified:0.5"."""
    words = {name: settings[name] for name in ("lr", "gamma") if isinstance(settings.get(name), str)}
    chosen = {name: word for name, word in words.items() if word == "auto" or word.split(":")[0] == "certified"}
    if chosen.get("gamma", "auto") not in ("auto", "certified"):
        raise InputError(f"`gamma` may be 'certified', without a share; got {chosen['gamma']!r}.")
    if len({word.split(":")[0] for word in chosen.values()}) > 1:
        raise InputError("`lr` and `gamma` are either both 'auto' or both 'certified', where both are to be found.")
    return chosen


def _found(
    method: Algorithm, chosen: dict[str, str], spec: Spec, problem: Problem, mixing: Mixing, rounds: int
) -> Algorithm:
    """The method with the steps that were to be found; one that was given stays."""
    given = {"gamma": method.gamma} if hasattr(method, "gamma") and "gamma" not in chosen else {}
    if "auto" in chosen.values():
        steps = settings_for(method, problem, mixing, given, rounds, spec.batch_size, spec.x0)
    else:
        given |= {} if "lr" in chosen else {"lr": method.lr}  # if it is a schedule, that is refused
        steps = certified_steps(method, problem, mixing, share_of(chosen.get("lr", "certified")), **given)
    taken: Any = {name: steps[name] for name in chosen}
    changed: Algorithm = replace(method, **taken)  # type: ignore[type-var]
    return changed
