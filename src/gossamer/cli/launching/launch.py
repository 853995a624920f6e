"""`gossamer launch`: run a spec across real processes, and show the results."""

import argparse
import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from gossamer.cli.arguments import TORCHRUN
from gossamer.cli.commands.data import downloads
from gossamer.cli.commands.run import make_room
from gossamer.cli.launching.events import GRAPH, Event, Kind, Losses
from gossamer.cli.launching.fleet import Fleet, Host, Job, Torchrun
from gossamer.cli.launching.hosts import SeveralHosts, parse_hosts
from gossamer.cli.launching.rank import be_a_rank, finished_records, graph_digest, prepared, show_launched
from gossamer.cli.launching.supervise import LaunchOutcome, supervise
from gossamer.cli.lines import complain, note, stop_signals
from gossamer.cli.output import launch_progress, waiting
from gossamer.errors import InputError, RunError, StoppedError, check_integer, check_positive
from gossamer.files import alone_in
from gossamer.paper import spec_path
from gossamer.runtime.experiment import Experiment
from gossamer.runtime.tuning.caution import warn_of_gamma
from gossamer.trackers.tensorboard import TensorBoard


def launch(options: argparse.Namespace) -> int:
    """`gossamer launch`."""
    check_positive("timeout", options.timeout)
    if options.target is not None:
        check_positive("target", options.target)
    for name in ("checkpoint_every", "max_restarts"):
        if getattr(options, name) is not None:
            check_integer(name.replace("_", "-"), getattr(options, name), 0 if name == "max_restarts" else 1)
    if options.tensorboard is not None:
        TensorBoard(options.tensorboard)  # refused now if it cannot be written later
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return be_a_rank(options, _folder(options))
    return _start(options)


def _folder(options: argparse.Namespace) -> Path:
    return Path(options.output or Path("runs") / spec_path(options.spec).stem)


def _start(options: argparse.Namespace) -> int:
    folder = _folder(options)
    with downloads(options.quiet), waiting("Reading the data, computing the weights", options.quiet):
        experiment = prepared(options, "cpu" if options.device else None)
    clients = experiment.problem.clients
    for method, _ in experiment.methods.values():
        warn_of_gamma(method, experiment.problem.d, experiment.mixing.rho)
    start = _starter(options, clients, graph_digest(experiment))
    is_first = options.node_rank in (None, "0")  # where hosts share a disk, one of them prepares the folder
    folder.mkdir(parents=True, exist_ok=True)
    # Where hosts share a disk, one of them locks the folder for all.
    with alone_in(folder) if _nodes(options) == 1 or options.node_rank == "0" else contextlib.nullcontext() as lock:
        if options.resume and not (folder / "checkpoints").is_dir() and finished_records(folder, experiment) is None:
            note(f"There is no checkpoint in '{folder}' to resume from; the run starts at round 0.")
        logs = folder / "logs"
        if is_first:
            make_room(folder, experiment, force=options.force, resume=options.resume)
            if not options.resume:
                shutil.rmtree(folder / "checkpoints", ignore_errors=True)
                shutil.rmtree(logs, ignore_errors=True)
        logs.mkdir(parents=True, exist_ok=True)
        outcome = _run(start(logs, lock), experiment, options)
        shutil.rmtree(logs / "torchrun", ignore_errors=True)
        records = finished_records(folder, experiment)
        if outcome.is_good and records is None and _nodes(options) > 1 and not outcome.ends:
            note("The ranks of this host are done; the records are on the host of rank 0.")
            return 0
        if not outcome.is_good or records is None:
            _explain(outcome, logs, folder)
        assert records is not None
        return show_launched(records, experiment, folder, options)


def _starter(options: argparse.Namespace, clients: int, graph: str) -> Callable[[Path, int | None], Fleet]:
    """Check the options; return a function that makes the fleet from the folder of the logs and the lock."""
    flags = {name: getattr(options, name.replace("-", "_")) for name in TORCHRUN}
    given = {name: value for name, value in flags.items() if value is not None}
    nodes, restarts = _nodes(options), options.max_restarts or 0
    arguments, variables = [*_worker_arguments(options)], _variables(options.node_rank in (None, "0"))
    job = Job(arguments, "", clients, count=clients, variables=variables)
    if options.hosts is not None:
        if given:
            raise InputError(f"--hosts and --{next(iter(given))} exclude each other; leave one of them out.")
        hosts = parse_hosts(options.hosts, clients)
        port = _port(options.port, hosts)
        job = replace(job, variables={**variables, GRAPH: graph})
        return lambda logs, lock: SeveralHosts(hosts, options.rsh, replace(job, logs=str(logs)), port)
    if options.port is not None:
        raise InputError(f"--port {options.port} is for --hosts; on one host nothing listens beyond loopback.")
    if nodes == 1:  # without torchrun, nothing has to listen on the network
        if str(given.get("nproc-per-node", clients)) != str(clients):
            raise InputError(
                f"The spec has {clients} clients, one per process, but --nproc-per-node is "
                f"{given['nproc-per-node']}; leave it out."
            )
        return lambda logs, lock: Host(replace(job, logs=str(logs)), lock)
    if restarts and given.get("rdzv-backend", "static") == "static":
        raise InputError(
            f"--max-restarts {restarts} does not work with the static rendezvous of --node-rank and --master-addr, "
            "where restarted ranks do not find each other; use --hosts, or --rdzv-backend c10d."
        )
    if "nproc-per-node" not in given and clients % nodes:
        raise InputError(f"{clients} clients cannot be divided evenly among {nodes} hosts; pass --nproc-per-node.")
    given.setdefault("nproc-per-node", clients // nodes)
    # Otherwise restarted ranks look for each other in the old store (pytorch/pytorch#135712).
    variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"

    def start(logs: Path, lock: int | None) -> Fleet:
        passed = [*(f"--{name}={value}" for name, value in given.items()), "--log-dir", str(logs / "torchrun")]
        command = [sys.executable, "-m", "torch.distributed.run", *passed, "--max-restarts", str(restarts)]
        return Torchrun([*command, "-m", "gossamer", *arguments], logs / "torchrun.log", variables, restarts)

    return start


def _run(fleet: Fleet, experiment: Experiment, options: argparse.Namespace) -> LaunchOutcome:
    """Run until every rank has ended. Ctrl-C and SIGTERM stop all ranks after the same round."""
    shown, losses = set(), Losses()
    with stop_signals() as should_stop, launch_progress(experiment, options.quiet) as progress:

        def show(event: Event) -> None:
            if event.kind in (Kind.PROGRESS, Kind.LOSS):
                losses.note(event)
                if event.kind is Kind.PROGRESS:
                    progress(event.label, event.seed, event.done, losses.mean())
            elif event.sentence not in shown and (not options.quiet or event.kind is Kind.WARNING):
                shown.add(event.sentence)
                note(event.sentence)

        restarts = 0 if fleet.restarts_itself else options.max_restarts or 0
        return supervise(fleet, restarts, show, should_stop, (lambda text: None) if options.quiet else note)


def _port(port: int | None, hosts: Mapping[str, int]) -> int:
    """The first port on each host, or 0 for free ones."""
    most = max(hosts.values())
    return 0 if port is None else check_integer("port", port, 1, 65536 - most)


def _nodes(options: argparse.Namespace) -> int:
    """The number of hosts in torchrun's flags."""
    text = str(options.nnodes or 1)
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"`nnodes` must be an integer of 1 or more, got {text!r}.")
    return int(text)


def _worker_arguments(options: argparse.Namespace) -> Iterator[str]:
    yield from ("launch", options.spec, "-o", str(_folder(options)))
    for name in ("data_dir", "device", "timeout", "checkpoint_every", "tensorboard"):
        if getattr(options, name) is not None:
            yield from (f"--{name.replace('_', '-')}", str(getattr(options, name)))
    for name in ("resume", "quiet"):
        if getattr(options, name):
            yield f"--{name}"


def _variables(is_here: bool) -> dict[str, str]:
    """Environment variables that all ranks share."""
    found = {"GOSSAMER_REPORTER": "1" if is_here else "0", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    passed = ("PYTHONPATH", "GOSSAMER_DATA", "GOSSAMER_OFFLINE")
    return found | {name: os.environ[name] for name in passed if name in os.environ}


def _explain(outcome: LaunchOutcome, logs: Path, folder: Path) -> NoReturn:
    """Raise an error that tells why the ranks ended."""
    ends, crashes = list(outcome.ends.values()), outcome.crashes()
    failures = [end.sentence for end in ends if end.code]
    if not failures and (ends or outcome.was_asked):
        sentence = ends[0].sentence if ends else "The run was stopped before its first round."
        raise StoppedError(f"{sentence} Resume it with `gossamer launch ... -o {folder} --resume`.")
    wrong = [end.sentence for end in ends if end.code == 2]
    if wrong:
        raise InputError(wrong[0])
    sentences = list(dict.fromkeys([*crashes, *failures])) or ["The processes ended without writing their records."]
    for sentence in sentences[1:4]:
        complain(sentence, 1)
    texts = [] if failures else [path.read_text(errors="replace").strip() for path in sorted(logs.glob("*.log"))]
    last = dict.fromkeys(text.splitlines()[-1].strip() for text in texts if text)
    words = f" Last log lines: {' | '.join(last)[:300]}" if last else ""
    raise RunError(f"{sentences[0]} Logs: '{logs}'; resume with --resume.{words}")
