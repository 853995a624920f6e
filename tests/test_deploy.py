"""The files in `examples/deploy` are valid, agree with each other, and start real clients."""

import contextlib
import importlib.util
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from curve_network import free_ports

from gossamer.cli.arguments import parser
from gossamer.errors import InputError
from gossamer.runtime.open.history import Leave, read_history
from gossamer.runtime.transport.peers import PUBLIC, SECRET, read_keys, read_peers, write_keys
from gossamer.spec import load_spec

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "examples" / "deploy"
SCRIPTS = sorted([*DEPLOY.glob("*.sh"), *DEPLOY.glob("*.sbatch")])
COMMANDS = [
    *(path for path in SCRIPTS if path.name != "container.sh"),
    DEPLOY / "README.md",
    ROOT / "docs" / "deploying.md",
]
HOSTS = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
KUBERNETES = ("1.25", "1.34", "1.37")
# The options of sbatch that the files use (https://slurm.schedmd.com/sbatch.html), and the form of their values.
SBATCH = {
    "job-name": r"\S+", "nodes": r"\d+", "ntasks-per-node": r"\d+", "cpus-per-task": r"\d+", "time": r"\d+:\d\d:\d\d",
    "signal": r"(B:)?TERM@\d+", "no-kill": None, "requeue": None, "no-requeue": None, "open-mode": r"append|truncate",
    "output": r"\S+",
}  # fmt: skip
# The options of srun (https://slurm.schedmd.com/srun.html).
SRUN = {"nodes", "ntasks", "exact", "nodelist", "output", "open-mode"}


def documents() -> dict[str, Any]:
    """The documents of kubernetes.yaml, by kind."""
    found = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    return {one["kind"]: one for one in found}


def lines_of(path: Path) -> list[str]:
    """The lines of a script or of the shell blocks of a page, with continued lines joined and comments removed."""
    text = path.read_text()
    if path.suffix == ".md":
        text = "\n".join(re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL))
    text = text.replace("\\\n", " ")
    return [line for line in text.splitlines() if not line.lstrip().startswith("#")]


def gossamer_commands(path: Path) -> list[list[str]]:
    """The arguments of every `gossamer` command in a file, with variables left as they are."""
    found = []
    for line in lines_of(path):
        for part in re.split(r"&&|\|\||;|\||[{}]", line.partition(" #")[0].replace("\\$", "$")):
            start = re.search(r"(?:^|[\s'\"])(gossamer (?:join|keygen|launch|replay|run) .*)", part)
            if start:
                text = re.sub(r"\s(?:\d?>|<|&$).*", "", start[1].rstrip(" &'\""))
                found.append(shlex.split(text)[1:])
    return found


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_the_shell_reads_the_scripts(path: Path) -> None:
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert path.suffix == ".sbatch" or os.access(path, os.X_OK)


@pytest.mark.parametrize("path", sorted(DEPLOY.glob("*.sbatch")), ids=lambda path: path.name)
def test_the_options_of_slurm_exist(path: Path) -> None:
    lines = path.read_text().splitlines()
    options = [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")]
    assert len(options) > 5
    first_command = next(at for at, line in enumerate(lines) if line and not line.startswith("#"))
    assert all(at < first_command for at, line in enumerate(lines) if line.startswith("#SBATCH")), "others are ignored"
    for option in options:
        name, _, value = option.partition("=")
        form = SBATCH[name]
        assert value == "" if form is None else re.fullmatch(form, value), option
    srun = [word for line in lines_of(path) for word in re.findall(r"srun (.*)", line)]
    used = {name for line in srun for name in re.findall(r"--([a-z-]+)", line.partition("gossamer")[0])}
    assert used
    assert used <= SRUN | {"output", "resume", "max-restarts", "quiet"}


@pytest.mark.parametrize("path", COMMANDS, ids=lambda p: p.name)
def test_the_commands_exist(path: Path) -> None:
    commands = gossamer_commands(path)
    assert commands
    for command in commands:
        options = parser().parse_args(command)
        for name in ("patience", "gone_after", "start_timeout"):
            assert getattr(options, name, None) is None or getattr(options, name) > 0


def test_the_messages_of_the_page_exist() -> None:
    """What the page says of a message would mislead if the message were another one by now."""
    page = (ROOT / "docs" / "deploying.md").read_text().partition("## When it goes wrong")[2]
    messages = re.findall(r"^\| `([^|]*)` \|", page, flags=re.MULTILINE)
    assert len(messages) > 10
    source = "\n".join(path.read_text() for path in (ROOT / "src" / "gossamer").rglob("*.py"))
    source = re.sub(r'"\s+f?"', "", source)
    of_the_system = r"No such device|Address already in use"
    for message in messages:
        for part in re.split(rf"\S+:\d+:|\d+(?: s$)?|{of_the_system}", message):
            assert part.strip(" ():") in source, message


def test_the_documents_fit_the_schemas_of_kubernetes() -> None:
    found = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    assert len(found) == len(documents()) == 4
    for version in KUBERNETES:
        for one in found:
            kubernetes_validate.validate(one, version, strict=True)


def test_the_schemas_can_say_no() -> None:
    wrong = documents()["StatefulSet"]
    wrong["spec"]["template"]["spec"]["containers"][0]["argz"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES[-1], strict=True)


def test_the_documents_agree_with_each_other() -> None:
    service, stateful, budget, policy = documents().values()
    pods = stateful["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["clusterIP"] == "None"
    assert stateful["spec"]["serviceName"] == service["metadata"]["name"]
    selectors = (service["spec"]["selector"], stateful["spec"]["selector"]["matchLabels"])
    assert all(one == pods for one in selectors)
    assert budget["spec"]["selector"]["matchLabels"] == policy["spec"]["podSelector"]["matchLabels"] == pods
    (client,) = stateful["spec"]["template"]["spec"]["containers"]
    out, *arguments = client["args"]
    options = parser().parse_args(["join", *arguments, "--out", out])
    port = int(options.listen.rpartition(":")[2])
    assert [one["port"] for one in service["spec"]["ports"]] == [one["containerPort"] for one in client["ports"]]
    assert {port} == {one["port"] for one in service["spec"]["ports"]}
    for rule in (*policy["spec"]["ingress"], *policy["spec"]["egress"]):
        peers = [one["podSelector"]["matchLabels"] for one in (*rule.get("from", ()), *rule.get("to", ()))]
        ports = {one["port"] for one in rule["ports"]}
        assert (peers, ports) in (([pods], {port}), ([], {53}))
    mounts = {one["mountPath"] for one in client["volumeMounts"]}
    assert {str(Path(one).parent) for one in (options.peers, options.key, options.spec)} | {out} == mounts
    assert load_spec(DEPLOY / "run.toml").problem["clients"] == stateful["spec"]["replicas"]
    # Leaving takes a round, at most the wait for silent neighbours in it, then 10 s for packets and 5 s for goodbyes.
    assert stateful["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > options.gone_after + 15


def test_the_image_has_what_the_pods_need() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    assert {one[0] for one in steps} <= {"FROM", "RUN", "COPY", "USER", "WORKDIR", "ENTRYPOINT"}
    values = dict(steps)
    context = documents()["StatefulSet"]["spec"]["template"]["spec"]["securityContext"]
    assert values["USER"] == f"{context['runAsUser']}:{context['runAsGroup']}"
    assert values["ENTRYPOINT"] == '["container.sh"]'
    assert "examples/deploy/container.sh /usr/local/bin/container.sh" in values["RUN"] + str(steps)


def init_command(**paths: str) -> list[str]:
    """The command of the init container for the pod gossamer-1, with other paths."""
    (container,) = documents()["StatefulSet"]["spec"]["template"]["spec"]["initContainers"]
    text = "\0".join(container["command"]).replace("$(POD_NAME)", "gossamer-1")
    for name, path in paths.items():
        text = text.replace(f"/{name}/", f"{path}/")
    return text.split("\0")


def test_the_pod_copies_its_key_so_that_it_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of a Secret belong to root, and with `fsGroup` they have the mode 0440."""
    context = documents()["StatefulSet"]["spec"]["template"]["spec"]["securityContext"]
    is_root = os.getuid() == 0
    user, group = (context["runAsUser"], context["fsGroup"]) if is_root else (os.getuid(), os.getgid())
    as_user: Any = {"user": user, "group": group, "extra_groups": []} if is_root else {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        keys = write_keys(folder / "made")
        secret, copy = folder / "secret", folder / "key"
        secret.mkdir()
        (secret / "gossamer-1").write_bytes((folder / "made" / SECRET).read_bytes())
        (secret / "gossamer-1").chmod(0o440)
        copy.mkdir()
        if is_root:
            os.chown(secret / "gossamer-1", 0, group)
            os.chown(copy, 0, group)
            copy.chmod(0o2777)
        monkeypatch.setattr(os, "getuid", lambda: user)
        with pytest.raises(InputError, match=r"can be read by other users \(mode 0440\)"):
            read_keys(secret / "gossamer-1")
        subprocess.run(init_command(secret=str(secret), key=str(copy)), check=True, **as_user)
        status = (copy / SECRET).stat()
        assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (user, 0o600)
        assert read_keys(copy / SECRET) == keys


def make_peers() -> Any:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("make_peers", DEPLOY / "make_peers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_peers_file_is_made(tmp_path: Path) -> None:
    module = make_peers()
    known = write_keys(tmp_path / "elsewhere")
    (tmp_path / "run" / "keys" / "gossamer-1").mkdir(parents=True)
    (tmp_path / "run" / "keys" / "gossamer-1" / PUBLIC).write_bytes(known.public + b"\n")
    names = [f"gossamer-{i}" for i in range(3)]
    found = read_peers(module.make_peers(tmp_path / "run", names, 5555, ".gossamer"))
    assert [(one.client, one.name, one.address) for one in found.values()] == [
        (i, f"gossamer-{i}", f"gossamer-{i}.gossamer:5555") for i in range(3)
    ]
    assert found[1].key == known.public
    assert not (tmp_path / "run" / "keys" / "gossamer-1" / SECRET).exists(), "it stays where it was made"
    assert found[0].key == read_keys(tmp_path / "run" / "keys" / "gossamer-0" / SECRET).public
    again = read_peers(module.make_peers(tmp_path / "run", names, 6666, ""))
    assert [one.key for one in again.values()] == [one.key for one in found.values()]
    with pytest.raises(InputError, match="needs its own"):
        module.make_peers(tmp_path / "run", ["alpha", "alpha"], 5555, "")
    assert read_peers(tmp_path / "run" / "peers.toml") == again, "a file that is refused does not replace the old one"


class Workplace:
    """A folder with the example files and, on its PATH, what a host or a cluster has."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "bin"
        self._started: list[subprocess.Popen[str]] = []
        (port,) = free_ports(1)
        self.port = str(port)
        (self.bin).mkdir()
        (folder / "make_peers.py").write_bytes((DEPLOY / "make_peers.py").read_bytes())
        # All hosts are this machine, so a client listens at the address of its host, and not at all of them.
        python = shlex.quote(sys.executable)
        self.put("gossamer", f'exec {python} -m gossamer "${{@/#0.0.0.0:/${{HERE-0.0.0.0}}:}}"')
        self.environment = os.environ | {
            "PATH": f"{self.bin}:{os.environ['PATH']}", "PYTHON": sys.executable, "PORT": self.port,
            "OMP_NUM_THREADS": "1", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-3]",
            "PYTHONPATH": f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}",
        }  # fmt: skip

    def spec(self, rounds: int) -> Path:
        """The example's spec with another number of rounds, for three clients; the folder of the run."""
        text = (DEPLOY / "run.toml").read_text()
        text = text.replace("rounds = 3000", f"rounds = {rounds}").replace("clients = 4", f"clients = {len(HOSTS)}")
        (self.folder / "run.toml").write_text(text)
        return self.folder

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):  # not read to the end: what it has started has them, too
                if pipe is not None:
                    pipe.close()

    def put(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/usr/bin/env bash\n{script}\n")
        path.chmod(0o755)

    def start(self, *command: str | Path, **more: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            command, cwd=self.folder, env=self.environment | more, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self._started.append(process)
        return process

    def run(self, *command: str | Path) -> str:
        out, err = self.start(*command).communicate(timeout=60)
        return f"{out}\n{err}"

    def clients(self, host: str = "") -> list[int]:
        """The processes of `gossamer join` that were started in this folder, on all hosts or on one."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                is_ours = (entry / "cwd").resolve().is_relative_to(self.folder)
                is_here = any(word.endswith(f"{host}:{self.port}".encode()) for word in words)
                if is_ours and is_here and words[1:4] == [b"-m", b"gossamer", b"join"]:
                    found.append(int(entry.name))
        return found

    def slurm(self) -> None:
        self.put("scontrol", f'[ "$1" = show ] && printf \'%s\\n\' {" ".join(HOSTS)} || echo "$@" >> scontrol.log')
        words = "case $1 in --nodelist) HERE=$2; shift;; --nodelist=*) HERE=${1#*=};; --output=*) out=${1#*=};; esac"
        self.put(
            "srun", f'out=/dev/stdout\nwhile [[ $1 == --* ]]; do {words}; shift; done\nHERE=$HERE "$@" >> "$out" 2>&1'
        )


def until(condition: Any, seconds: float = 90) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.1)


def rounds(history: Path) -> int:
    return history.read_text().count('"step"') if history.exists() else 0


@pytest.fixture
def work(tmp_path: Path, no_process_left: None) -> Iterator[Workplace]:
    made = Workplace(tmp_path)
    yield made
    made.close()


@pytest.mark.slow
def test_three_containers(work: Workplace) -> None:
    """With the arguments of kubernetes.yaml; a container whose client has finished stays, and ends when it is told."""
    place = work.spec(rounds=30)
    make_peers().make_peers(place / "peers", HOSTS, int(work.port), "")
    (client,) = documents()["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    containers = []
    for i, host in enumerate(HOSTS):
        here = {
            "/run/gossamer/peers.toml": f"{place}/peers/peers.toml", "/run/gossamer/": f"{place}/",
            "/out": f"{place}/out{i}", "/key/": f"{place}/peers/keys/{host}/", "=0.0.0.0:5555": f"={host}:{work.port}",
        }  # fmt: skip
        text = "\0".join(client["args"])
        for known, instead in here.items():
            text = text.replace(known, instead)
        containers.append(work.start(DEPLOY / "container.sh", *text.split("\0")))
    until(lambda: all((place / f"out{i}" / "finished").exists() for i in range(3)))
    assert work.clients() == []
    for i, container in enumerate(containers):
        assert container.poll() is None
        container.send_signal(signal.SIGTERM)
        out, err = container.communicate(timeout=10)
        assert (container.returncode, err) == (0, "")
        assert f"Client {i} finished after round 30 of 30" in out
        assert (place / f"out{i}" / f"client{i}.safetensors").exists()
    again = work.start(DEPLOY / "container.sh", place / "out0")
    assert again.stdout is not None
    assert "has finished" in again.stdout.readline(), "no new run begins"
    again.send_signal(signal.SIGTERM)
    assert again.communicate(timeout=10) == ("", "")
    assert again.returncode == 0


@pytest.mark.long
def test_a_container_that_is_told_to_end_leaves(work: Workplace) -> None:
    place = work.spec(rounds=100_000)
    module = make_peers()
    module.make_peers(place / "run", HOSTS, int(work.port), "")
    containers = [
        work.start(
            DEPLOY / "container.sh", place / f"out{i}", "run.toml", "--peers=run/peers.toml",
            f"--key=run/keys/{host}/{SECRET}", f"--listen={host}:{work.port}", "--gone-after=5", "--quiet",
        )
        for i, host in enumerate(HOSTS)
    ]  # fmt: skip
    until(lambda: rounds(place / "out0" / "client0.history") > 50)
    containers[1].send_signal(signal.SIGHUP)  # the client reads its peers file again, and goes on
    containers[1].send_signal(signal.SIGTERM)
    out, err = containers[1].communicate(timeout=60)
    assert containers[1].returncode == 0, err
    assert "Client 1 left after round" in out
    assert not (place / "out1" / "finished").exists()
    assert work.clients(HOSTS[0])
    assert isinstance(read_history(place / "out1" / "client1.history")[-1], Leave)
    (lost,) = work.clients(HOSTS[2])
    os.kill(lost, signal.SIGKILL)
    containers[2].communicate(timeout=30)
    assert containers[2].returncode == 137, "Kubernetes starts it again"


@pytest.mark.slow
def test_hosts_by_ssh(work: Workplace) -> None:
    """Three hosts on one machine: prepared, started, left, started again, lost, started again."""
    place = work.spec(rounds=100_000)
    work.put(
        "ssh",
        '[ "$1" = -n ] && shift\nexport HERE=$1\nmkdir -p "hosts/$1/gossamer-run"\ncd "hosts/$1" && exec bash -c "$2"',
    )
    ssh = DEPLOY / "ssh.sh"
    home = place / "hosts"
    said = work.run(ssh, "prepare", "run.toml", *HOSTS)
    assert "run/peers.toml" in said
    assert [one.address for one in read_peers(home / HOSTS[2] / "gossamer-run" / "peers.toml").values()] == [
        f"{host}:{work.port}" for host in HOSTS
    ]
    assert not list((place / "run").rglob(SECRET)), "secret keys stay on their hosts"
    work.run(ssh, "start", *HOSTS)
    histories = [home / host / "gossamer-run" / "out" / f"client{i}.history" for i, host in enumerate(HOSTS)]
    until(lambda: rounds(histories[0]) > 20)
    assert "open in round 0" in work.run(ssh, "log", HOSTS[0])
    work.run(ssh, "reload", *HOSTS)
    work.run(ssh, "leave", HOSTS[1])
    until(lambda: len(work.clients()) == 2)
    assert "Client 1 left after round" in work.run(ssh, "log", HOSTS[1])
    work.run(ssh, "start", HOSTS[1])
    until(lambda: "takes the model of client" in (home / HOSTS[1] / "gossamer-run" / "log").read_text())
    before = rounds(histories[0])
    until(lambda: rounds(histories[0]) > before + 20)
    work.run(ssh, "leave", *HOSTS)
    until(lambda: work.clients() == [])
    assert work.run(ssh, "stop").endswith("valid actions: prepare, start, log, leave, reload\n")


@pytest.mark.slow
def test_a_job_of_slurm(work: Workplace) -> None:
    """A client is killed and comes back; at the time limit all leave and keep their models."""
    place = work.spec(rounds=100_000)
    work.slurm()
    job = work.start("bash", DEPLOY / "slurm.sbatch")
    out = place / "run-7" / "out"
    until(lambda: rounds(out / "client2.history") > 20)
    assert stat.S_IMODE((place / "run-7" / "keys" / HOSTS[0] / SECRET).stat().st_mode) == 0o600
    (lost,) = work.clients(HOSTS[1])
    os.kill(lost, signal.SIGKILL)
    log = place / "run-7" / f"{HOSTS[1]}.log"
    until(lambda: '"begin"' in (out / "client1.history").read_text().partition('"step"')[2])
    at = rounds(out / "client2.history")
    until(lambda: rounds(out / "client2.history") > at + 20)
    for client in work.clients():  # what --signal does
        os.kill(client, signal.SIGTERM)
    _, err = job.communicate(timeout=60)
    assert job.returncode == 0, err
    assert "Client 1 left after round" in log.read_text()
    assert len(list(out.glob("client*.safetensors"))) == 3
    assert work.clients() == []


@pytest.mark.long
def test_a_job_of_slurm_in_lockstep(work: Workplace) -> None:
    """It is stopped at its time limit, put back into the queue, and goes on to the end."""
    place = work.spec(rounds=400)
    work.slurm()
    job = work.start("bash", DEPLOY / "slurm-launch.sbatch")
    until(lambda: list((place / "run-7" / "checkpoints").glob("*")))
    job.send_signal(signal.SIGTERM)
    _, err = job.communicate(timeout=120)
    assert (job.returncode, (place / "scontrol.log").read_text()) == (143, "requeue 7\n"), err
    again = work.start("bash", DEPLOY / "slurm-launch.sbatch")
    out, err = again.communicate(timeout=200)
    assert again.returncode == 0, err
    assert "BEER" in out
