"""Running a spec across real processes: `gossamer launch`, which starts torchrun and tells what came of it."""

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gossamer.cli.arguments.launch import TORCHRUN
from gossamer.cli.data import downloads
from gossamer.cli.experiments import make_room
from gossamer.cli.lines import complain, note, stop_signals
from gossamer.cli.output import launch_progress, waiting
from gossamer.cli.rank import be_a_rank, finished_records, prepared, show_launched
from gossamer.errors import InputError, RunError, StoppedError, check_integer, check_positive
from gossamer.paper import spec_path
from gossamer.runtime.experiment import Experiment
from gossamer.runtime.watch import check_tensorboard

_FIRST_PORT, _PORTS = 29400, 1000  # of the first host, where several find each other
_POLL_SECONDS = 0.1


def launch(options: argparse.Namespace) -> int:
    """`gossamer launch`."""
    check_positive("timeout", options.timeout)
    if options.target is not None:
        check_positive("target", options.target)
    for name in ("checkpoint_every", "max_restarts"):
        if getattr(options, name) is not None:
            check_integer(name.replace("_", "-"), getattr(options, name), 0 if name == "max_restarts" else 1)
    if options.tensorboard is not None:
        check_tensorboard()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return be_a_rank(options, _folder(options))
    return _start(options)


def _folder(options: argparse.Namespace) -> Path:
    return Path(options.output or Path("runs") / spec_path(options.spec).stem)


def _start(options: argparse.Namespace) -> int:
    folder = _folder(options)
    with downloads(options.quiet), waiting("Reading the data, working out the weights", options.quiet):
        experiment = prepared(options, "cpu" if options.device else None)
    commands = _commands(options, experiment.problem.clients)
    logs = folder / "logs"
    if options.resume and not (folder / "checkpoints").is_dir() and finished_records(folder, experiment) is None:
        note(f"There is nothing in '{folder}' to go on from: the run begins at its beginning.")
    if options.node_rank in (None, "0"):  # on a disk that hosts share, one of them makes room
        make_room(folder, experiment, force=options.force, resume=options.resume)
        if not options.resume:
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
            shutil.rmtree(logs, ignore_errors=True)
        for old in [*logs.glob("*.error"), logs / "progress.json"]:
            old.unlink(missing_ok=True)
    logs.mkdir(parents=True, exist_ok=True)
    begun = time.time()
    code = _run_torchrun(commands, logs, experiment, options)
    for line in _news(logs, begun):
        if not options.quiet or "passed over" in line:
            note(line)
    shutil.rmtree(logs / "torchrun", ignore_errors=True)
    records = finished_records(folder, experiment)
    if code == 0 and records is None and _nodes(options) > 1 and not list(logs.glob("*.error")):
        note("This host's part is done; the records are on the host of rank 0.")
        return 0
    if code != 0 or records is None:
        _explain(logs, code, folder)
    assert records is not None
    return show_launched(records, experiment, folder, options)


def _commands(options: argparse.Namespace, clients: int) -> list[list[str]]:
    """One torchrun a host."""
    flags = {name: getattr(options, name.replace("-", "_")) for name in TORCHRUN}
    given = {name: value for name, value in flags.items() if value is not None}
    logs = _folder(options) / "logs" / "torchrun"
    common = ["--log-dir", str(logs), "--max-restarts", str(options.max_restarts or 0)]
    own = [*_worker_arguments(options)]
    if options.hosts is None:
        if not given:
            given = {"nnodes": 1, "rdzv-backend": "c10d", "rdzv-endpoint": "127.0.0.1:0", "local-addr": "127.0.0.1"}
        nodes = _nodes(options)
        if "nproc-per-node" not in given and clients % nodes:
            raise InputError(f"{clients} clients do not share out evenly over {nodes} hosts; pass --nproc-per-node.")
        given.setdefault("nproc-per-node", clients // nodes)
        return [[*_torchrun(given), *common, *own]]
    if given:
        raise InputError(f"--hosts says how torchrun is started; leave --{next(iter(given))} out, or --hosts.")
    hosts = _hosts(options.hosts, clients)
    first, run = next(iter(hosts)), os.getpid()  # so that two launches at a time do not meet
    commands = []
    for host, here in hosts.items():
        # A rendezvous over several hosts hangs unless each is told its own address and whether it is the first.
        flags = {
            "nnodes": len(hosts),
            "nproc-per-node": here,
            "rdzv-backend": "c10d",
            "rdzv-endpoint": f"{first}:{_FIRST_PORT + run % _PORTS}",
            "rdzv-id": f"gossamer-{run}",
            "rdzv-conf": f"is_host={int(host == first)}",
            "local-addr": host,
        }
        variables = [f"{name}={value}" for name, value in _variables(host == first).items()]
        there = ["env", *variables, *_torchrun(flags), *common, *own]
        words = shlex.split(options.rsh)
        if words and Path(words[0]).name == "ssh":  # which hands one string to a shell at home
            there = [f"cd {shlex.quote(str(Path.cwd()))} && {shlex.join(there)}"]
        commands.append([*words, host, *there])
    return commands


def _nodes(options: argparse.Namespace) -> int:
    """How many hosts torchrun's own flags speak of."""
    text = str(options.nnodes or 1)
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"`nnodes` must be a number of hosts, since every client must have its process; got {text!r}.")
    return int(text)


def _hosts(text: str, clients: int) -> dict[str, int]:
    """`a,b:3,c` as how many clients each host has; those without a number share the rest."""
    hosts: dict[str, int | None] = {}
    for part in text.split(","):
        name, _, number = part.strip().partition(":")
        if not name or name in hosts or (number and not number.isdecimal()):
            raise InputError(f"`hosts` must be different names such as a,b or a:2,b:3, got {text!r}.")
        hosts[name] = int(number) if number else None
    rest = clients - sum(number or 0 for number in hosts.values())
    open_ = [name for name, number in hosts.items() if number is None]
    shares = {name: rest // len(open_) + (at < rest % len(open_)) for at, name in enumerate(open_)}
    found = {name: shares[name] if number is None else number for name, number in hosts.items()}
    if sum(found.values()) != clients or min(found.values()) < 1:
        raise InputError(f"The spec has {clients} clients, which {text!r} does not hold: one process a client.")
    return found


def _torchrun(flags: dict[str, Any]) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *(f"--{name}={value}" for name, value in flags.items())]


def _worker_arguments(options: argparse.Namespace) -> Iterator[str]:
    yield from ("-m", "gossamer", "launch", options.spec, "-o", str(_folder(options)))
    for name in ("data_dir", "device", "timeout", "checkpoint_every", "tensorboard", "transport"):
        if getattr(options, name) is not None:
            yield from (f"--{name.replace('_', '-')}", str(getattr(options, name)))
    if options.resume:
        yield "--resume"


def _variables(is_here: bool) -> dict[str, str]:
    found = {
        # Without it, ranks that were restarted look for each other where they were before (pytorch/pytorch#135712).
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "GOSSAMER_REPORTER": "1" if is_here else "0",
        "GOSSAMER_LAUNCHED": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    for name in ("PYTHONPATH", "GOSSAMER_DATA", "GOSSAMER_OFFLINE"):
        if name in os.environ:
            found[name] = os.environ[name]
    return found


def _run_torchrun(
    commands: Sequence[Sequence[str]], logs: Path, experiment: Experiment, options: argparse.Namespace
) -> int:
    """Until every torchrun has ended; the largest exit code. Ctrl-C and SIGTERM stop the run at a common round."""
    with contextlib.ExitStack() as stack:
        should_stop = stack.enter_context(stop_signals())
        show = stack.enter_context(launch_progress(experiment, options.quiet))
        processes = []
        for number, command in enumerate(commands):
            log = stack.enter_context((logs / f"torchrun{number}.log").open("ab"))
            environment = os.environ | _variables(options.node_rank in (None, "0"))
            # A session of its own: Ctrl-C is ours to handle.
            processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True))
        try:
            asked = False
            while any(process.poll() is None for process in processes):
                time.sleep(_POLL_SECONDS)
                state = _progress(logs)
                if state is not None:
                    show(state)
                if should_stop() and not asked:
                    asked = True
                    _ask_to_stop(state, processes)
                if any(process.poll() not in (None, 0) for process in processes):
                    _end(processes)
        finally:
            _end(processes)
        return max(abs(int(process.returncode or 0)) for process in processes)


def _ask_to_stop(state: dict[str, Any] | None, processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """One rank is enough: its neighbours learn of it from its packets."""
    if state is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(int(state["pid"]), signal.SIGTERM)
            return
    for process in processes:
        process.terminate()


def _end(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Have those that still run end: torchrun ends its ranks when it is told to."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _progress(logs: Path) -> dict[str, Any] | None:
    try:
        state = json.loads((logs / "progress.json").read_text())
    except (OSError, ValueError):
        return None
    return state if isinstance(state, dict) else None


def _news(logs: Path, begun: float) -> list[str]:
    """What the ranks' logs of this time say of where they went on, and of checkpoints that they could not use."""
    said: dict[str, None] = {}
    for path in sorted(logs.glob("rank*.log")):
        if path.stat().st_mtime < begun:
            continue
        text = path.read_text(errors="replace")
        for line in text[text.rfind(" INFO Rank ") :].splitlines():
            for mark in ("goes on after round", "is passed over"):
                if mark in line:
                    said[line.split(" ", 3)[-1]] = None
    return list(said)


def _explain(logs: Path, code: int, folder: Path) -> None:
    """Raise what the ranks said of their end."""
    said = []
    for path in sorted(logs.glob("rank*.error")):
        with contextlib.suppress(OSError, ValueError):
            said.append(json.loads(path.read_text()))
    stopped = [one["sentence"] for one in said if one["code"] == 0]
    if stopped and not any(one["code"] for one in said):
        raise StoppedError(f"{stopped[0]} Go on with `gossamer launch ... -o {folder} --resume`.")
    if not said:
        last = [line for path in sorted(logs.glob("torchrun*.log")) for line in _last_line(path)]
        words = f" The last words: {' | '.join(last)[:300]}" if last else ""
        raise RunError(f"The processes ended with exit code {code}; what they said is in '{logs}'.{words}")
    wrong = [one["sentence"] for one in said if one["code"] == 2]
    if wrong:
        raise InputError(wrong[0])
    sentences = list(dict.fromkeys(one["sentence"] for one in said))
    for sentence in sentences[1:4]:
        complain(sentence, 1)
    raise RunError(f"{sentences[0]} Logs: '{logs}'; go on with --resume.")


def _last_line(path: Path) -> list[str]:
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1:]
