"""The real command line, in a process of its own."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from commands import forked, gossamer

SPEC = """
name = "test"
rounds = 30
seeds = [0, 1]
batch_size = 8

[problem]
objective = "logistic_regression"
data = "breast_cancer"
clients = 6

[graph]
name = "ring"
weights = "fdla"

[[methods]]
name = "beer"
lr = 0.1
gamma = 0.5
compressor = "gsgd:5"

[[methods]]
name = "dsgd"
lr = 0.1
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "my.toml"
    path.write_text(SPEC)
    return path


def test_run_writes_records_figure_and_table(spec: Path, tmp_path: Path) -> None:
    done = gossamer("run", "my.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "BEER" in done.stdout
    assert "gradient norm" in done.stdout
    assert done.stderr == "BEER: 30 rounds, 2 seeds\nDSGD: 30 rounds, 2 seeds\n", "plain lines in a pipe"
    folder = tmp_path / "runs" / "my"
    names = sorted(path.name for path in folder.iterdir())
    runs = [f"{method}-seed{seed}" for method in ("BEER", "DSGD") for seed in (0, 1)]
    each = [f"{run}.{kind}" for run in runs for kind in ("jsonl", "safetensors")]
    assert names == [*each, "convergence.png", "spec.toml"]
    assert (folder / "spec.toml").read_text() == SPEC
    assert (folder / "convergence.png").read_bytes().startswith(b"\x89PNG")


def test_json_is_for_machines(spec: Path, tmp_path: Path) -> None:
    done = forked("run", "my.toml", "--json", "-q", "-o", "out", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr == ""
    result = json.loads(done.stdout)
    assert [method["method"] for method in result["methods"]] == ["BEER", "DSGD"]
    assert result["methods"][0]["seeds"] == [0, 1]
    assert result["methods"][0]["grad_norm"] > 0


def test_earlier_records_are_not_lost(spec: Path, tmp_path: Path) -> None:
    assert forked("run", "my.toml", "-q", cwd=tmp_path).returncode == 0
    before = (tmp_path / "runs/my/BEER-seed0.jsonl").read_bytes()
    again = forked("run", "my.toml", "-q", cwd=tmp_path)
    assert again.returncode == 2
    assert again.stderr.count("\n") == 1
    assert "exists already" in again.stderr
    assert (tmp_path / "runs/my/BEER-seed0.jsonl").read_bytes() == before
    assert forked("run", "my.toml", "-q", "--force", cwd=tmp_path).returncode == 0


def test_a_run_that_diverges_exits_with_1_and_keeps_its_record(spec: Path, tmp_path: Path) -> None:
    problem = '[problem]\nobjective = "quadratic"\nclients = 6\n'
    spec.write_text(SPEC.replace(SPEC[SPEC.index("[problem]") : SPEC.index("[graph]")], problem).replace("30", "3000"))
    spec.write_text(spec.read_text().replace('name = "dsgd"\nlr = 0.1', 'name = "dsgd"\nlr = 99.0'))
    done = forked("run", "my.toml", "-q", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 2, "one line a seed"
    assert "DSGD with seed 0 diverged in round" in lines[0]
    assert "try `lr` below 99.0" in lines[0]
    assert "diverged" in done.stdout
    last = json.loads((tmp_path / "runs/my/DSGD-seed0.jsonl").read_text().splitlines()[-1])
    assert last["end"]["status"] == "diverged"


BAD_SPECS = {
    "gamma outside (0, 1]": ("gamma = 0.5", "gamma = 1.5", "`gamma` must be in (0, 1], got 1.5."),
    "negative step": ("lr = 0.1\ngamma", "lr = -0.1\ngamma", "`lr` must be a number above 0, got -0.1."),
    "step that is text": (
        "lr = 0.1\ngamma",
        'lr = "big"\ngamma',
        "a schedule such as 'cosine:0.1,2000', or in a spec 'auto' or 'certified'; got 'big'.",
    ),
    "client count": (
        'name = "ring"',
        'name = "ring"\nclients = 7',
        "The graph 'ring' has 7 clients; expected 6.",
    ),
    "unknown method": ('name = "beer"', 'name = "bear"', "Did you mean 'beer'?"),
    "unknown compressor": (
        '"gsgd:5"',
        '"gzip:5"',
        "Unknown compressor 'gzip'; valid compressors:",
    ),
    "unknown graph": (
        'name = "ring"',
        'name = "rang"',
        "Did you mean 'ring'?",
    ),
    "unknown weights": (
        '"fdla"',
        '"fdlb"',
        "Unknown weight rule 'fdlb'; valid weight rules: 'best_constant', 'fdla', 'fmmc', 'max_degree', 'metropolis'.",
    ),
    "unknown data": ('"breast_cancer"', '"brest_cancer"', "got 'brest_cancer'."),
    "missing data": ('"breast_cancer"', '"no/such/file"', "The data file 'no/such/file' does not exist."),
    "corrupt data": ('"breast_cancer"', '"bad.xz"', "The data file 'bad.xz' is damaged"),
    "unknown key": (
        "rounds = 30",
        "rounds = 30\nround = 5",
        "The spec has no key 'round'; valid keys: 'name', 'rounds',",
    ),
    "unknown setting": (
        "gamma = 0.5",
        "gama = 0.5",
        "Method 'beer' has no setting 'gama'; valid settings: 'lr', 'gamma',",
    ),
    "unknown problem key": (
        "clients = 6",
        "clients = 6\ncolour = 3",
        "Objective 'logistic_regression' has no setting 'colour'",
    ),
    "missing key": ("rounds = 30", "", "The spec needs the key `rounds`."),
    "missing setting": ("gamma = 0.5", "", "Method 'beer' needs the setting `gamma`."),
    "wrong type": ("rounds = 30", 'rounds = "many"', "`rounds` must be an integer, got 'many'."),
    "bad seeds": ("[0, 1]", '[0, "a"]', "`seeds` must be an integer of 0 or more, got 'a'."),
    "not TOML": ("rounds = 30", "rounds = = 30", "is not TOML"),
    "more clients than rows": ("clients = 6", "clients = 9999", "9999 clients cannot share 456 rows"),
    "a label twice": ('name = "dsgd"', 'name = "dsgd"\nlabel = "BEER"', "Two methods of the spec are called 'BEER'"),
    "method without name": ('name = "dsgd"', 'title = "dsgd"', "Method 2 of the spec needs a `name`"),
    "weights of another kind": ('weights = "fdla"', "weights = 5", "`weights` must be"),
    "compressor of another kind": ('"gsgd:5"', "5", "such as gossamer.gsgd(5), got 5."),
    "batch of nothing": ("batch_size = 8", "batch_size = 0", "`batch_size` must be an integer of 1 or more, got 0."),
    "batch of too much": (
        "batch_size = 8",
        "batch_size = 999",
        "`batch_size` must be at most 76, the rows of a client",
    ),
    "name in place of objective": ("clients = 6", 'clients = 6\nname = "x"', "[problem] takes `objective`"),
    "empty label": ('name = "dsgd"', 'name = "dsgd"\nlabel = ""', "`label` must be a non-empty string"),
    "number too long": ("lr = 0.1\ngamma", f"lr = {'9' * 5001}\ngamma", "is not TOML"),
    "start beyond numbers": ("batch_size = 8", 'batch_size = 8\nx0 = "normal:inf"', "must be finite"),
    "bad start": ("batch_size = 8", 'batch_size = 8\nx0 = "ones"', "`x0` must be 'uniform' or 'normal'"),
}


@pytest.mark.parametrize("case", BAD_SPECS)
def test_bad_specs_get_one_sentence_and_leave_nothing(case: str, spec: Path, tmp_path: Path) -> None:
    old, new, said = BAD_SPECS[case]
    assert SPEC.count(old) >= 1
    spec.write_text(SPEC.replace(old, new, 1))
    (tmp_path / "bad.xz").write_bytes(b"\xfd7zXZ\x00 and no more")
    before = sorted(tmp_path.rglob("*"))
    done = forked("run", "my.toml", cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr
    assert done.stderr.startswith("gossamer: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stdout == ""
    assert sorted(tmp_path.rglob("*")) == before, "no file is left"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "nowhere.toml"], "The spec 'nowhere.toml' cannot be read: No such file or directory."),
        (["run", "figur1"], "Did you mean 'figure1'?"),
        (["run"], "required: SPEC"),
        (["run", "my.toml", "--device", "abacus"], "The device 'abacus' cannot be used"),
        (["run", "my.toml", "-o", "my.toml/x"], "my.toml"),
        (
            ["run", "nope"],
            "Unknown spec 'nope'; valid specs: 'demo', 'figure1', 'figure2', 'figure3', "
            "'figure4', 'figure4_tuned', 'figure5', 'operators'.",
        ),
        (["run", "figure1", "--data-dir", "nowhere"], "The data folder 'nowhere' does not exist"),
        (["demo", "--loud"], "--loud"),
        (["dance"], "'dance'"),
        ([], "COMMAND"),
    ],
)
def test_bad_calls_get_one_sentence(arguments: list[str], said: str, spec: Path, tmp_path: Path) -> None:
    done = forked(*arguments, cwd=tmp_path, GOSSAMER_DATA="")
    assert done.returncode == 2, done.stdout
    assert said in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my.toml"]


def test_help_has_examples(tmp_path: Path) -> None:
    for command in ([], ["demo"], ["run"], ["methods"], ["compressors"], ["compress"]):
        done = forked(*command, "--help", cwd=tmp_path)
        assert done.returncode == 0
        assert "Examples:" in done.stdout


def test_version_and_methods(tmp_path: Path) -> None:
    assert gossamer("--version", cwd=tmp_path).stdout == "gossamer 0.1.0\n"
    methods = json.loads(gossamer("methods", "--json", cwd=tmp_path).stdout)
    assert {"beer", "choco_sgd", "d2", "dsgd", "motef"} < {method["name"] for method in methods}
    assert next(one for one in methods if one["name"] == "beer")["settings"]["start"] == "full"
    assert "2201.13320" in gossamer("methods", cwd=tmp_path).stdout


def test_compressors_and_compress(tmp_path: Path) -> None:
    listed = {row["name"]: row for row in json.loads(forked("compressors", "--json", cwd=tmp_path).stdout)}
    assert set(listed) >= {"identity", "gsgd", "qsgd", "top_k", "rand_k", "sign", "natural", "scaled", "blockwise"}
    assert listed["gsgd"]["alpha"] == pytest.approx(1 / (1 + 124 / 256))
    million = forked("compressors", "--dimension", "1000000", cwd=tmp_path)
    assert million.returncode == 0
    assert "0.0157" in million.stdout, "alpha of gsgd_5"
    large = json.loads(forked("compressors", "--dimension", "1000000", "--json", cwd=tmp_path).stdout)
    kept = {row["name"]: (row["example"], row["alpha"]) for row in large if row["name"] in ("top_k", "rand_k")}
    assert kept == {"top_k": ("top_k:0.1", 0.1), "rand_k": ("rand_k:0.1", 0.1)}, "and not three of a million"
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal(1000))
    done = forked("compress", "x.npy", "--compressor", "blockwise:gsgd:5,256", "--json", cwd=tmp_path)
    result = json.loads(done.stdout)
    assert result["error"] <= 1 - result["alpha"]
    assert result["bits"]["auto"] == min(result["bits"]["fixed"], result["bits"]["entropy"])
    assert 0 < result["symbol_entropy"] < result["bits_per_coordinate"]["entropy"]
    (tmp_path / "x.txt").write_text("1\n2.5\n-3\n")
    shown = forked("compress", "x.txt", "--compressor", "qsgd:1", cwd=tmp_path)
    assert "promised: at most 1.73" in shown.stdout
    piped = subprocess.run(
        f"seq 1 50 | {sys.executable} -m gossamer compress - --compressor top_k:0.1",
        shell=True, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "50 coordinates" in piped.stdout


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        ("1\nnan\n", [], "holds nan in row 0, coordinate 1"),
        ("1\nx\n", [], "is not a vector of numbers: could not convert string 'x'"),
        ("", [], "must hold real numbers, got 0"),
        ("1\n", ["--compressor", "gzip"], "Unknown compressor 'gzip'"),
        ("1\n", ["--compressor", "gsgd"], "needs the setting `bits`"),
        ("1\n", ["--seed", "-1"], "`seed`"),
        ("1\n", ["--dtype", "int8"], "invalid choice"),
    ],
)
def test_bad_vectors(content: str, arguments: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text(content)
    done = forked("compress", "x.txt", "--compressor", "gsgd:5", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_odd_vectors(tmp_path: Path) -> None:
    (tmp_path / "empty.npy").write_bytes(b"")
    np.savez(tmp_path / "several.npz", a=np.ones(3))
    (tmp_path / "several.npz").rename(tmp_path / "several.npy")
    (tmp_path / "tiny.txt").write_text("1e-300\n2e-300\n-1e-300\n")
    for name, said in (
        ("empty.npy", "is not a vector of numbers"),
        ("several.npy", "archive"),
        ("nofile", "cannot be read: nofile not found."),
    ):
        done = forked("compress", name, "--compressor", "sign", cwd=tmp_path)
        assert done.returncode == 2
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
    done = forked("compress", "tiny.txt", "--compressor", "sign", "--dtype", "float64", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["error"] == pytest.approx(1 / 9), "1 - 16/(3 * 6)"
    (tmp_path / "huge.txt").write_text("1e300\n")
    assert "too large for float32" in forked("compress", "huge.txt", "--compressor", "sign", cwd=tmp_path).stderr


def test_target_shows_the_price(spec: Path, tmp_path: Path) -> None:
    done = forked("run", "my.toml", "-q", "--target", "0.5", "--json", cwd=tmp_path)
    beer = json.loads(done.stdout)["methods"][0]
    assert 0 < beer["bits_to_target"] < beer["bits"]
    assert 0 < beer["alpha"] < 1
    assert json.loads(done.stdout)["methods"][1]["alpha"] == 1


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m gossamer methods --json | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.slow
def test_an_interrupt_keeps_the_records(spec: Path, tmp_path: Path) -> None:
    spec.write_text(SPEC.replace("rounds = 30", "rounds = 100000000"))
    process = subprocess.Popen(
        [sys.executable, "-m", "gossamer", "run", "my.toml"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        # A shell makes what it starts in the background deaf to Ctrl-C, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 (one thread, before exec)
    )
    record = tmp_path / "runs/my/BEER-seed1.jsonl"
    deadline = time.monotonic() + 60
    while not record.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    try:
        _, stderr = process.communicate(timeout=30)
    finally:
        process.kill()  # a run of a hundred million rounds must not outlive a test that fails
    assert process.returncode == 130
    assert "was stopped after round" in stderr
    assert "--resume" in stderr
    assert list((tmp_path / "runs/my/checkpoints").glob("BEER-round*.safetensors"))
    assert "Traceback" not in stderr
    assert all(json.loads(line) for line in record.read_text().splitlines())


@pytest.mark.slow
def test_a_terminal_gets_a_progress_bar(spec: Path, tmp_path: Path) -> None:
    spec.write_text(SPEC.replace("rounds = 30", "rounds = 2000"))
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "gossamer", "run", "my.toml"],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=follower, env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )  # fmt: skip
    os.close(follower)
    shown = b""
    while True:
        try:
            part = os.read(leader, 4096)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(leader)
    assert process.wait(timeout=60) == 0
    assert "━".encode() in shown
    assert b"2000/2000" in shown


NASTY = ["a[/x]", "[bold]b[/bold]", "$\\foo$", "cost $a_$ x", "_hidden", "λ 网络", "x" * 300, "a/../b"]


def test_any_label_is_only_a_label(spec: Path, tmp_path: Path) -> None:
    tables = "".join(f"[[methods]]\nname = 'dsgd'\nlr = 0.1\nlabel = '{label}'\n" for label in NASTY)
    spec.write_text(SPEC[: SPEC.index("[[methods]]")].replace('"test"', "'[/b] $x_$'") + tables)
    done = forked("run", "my.toml", "-q", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "[/b] $x_$" in done.stdout
    assert len(list((tmp_path / "runs/my").glob("*.jsonl"))) == 2 * len(NASTY)
    ascii_only = forked("run", "my.toml", "-q", "-o", "ascii", cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert ascii_only.returncode == 0, ascii_only.stderr


def test_what_is_not_ours_is_left_alone(spec: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "train.jsonl").write_text("{}")
    (folder / "spec.toml").write_text("mine = 1")
    refused = forked("run", "my.toml", "-q", "-o", "out", cwd=tmp_path)
    assert refused.returncode == 2
    assert "'out/spec.toml' is a different spec" in refused.stderr
    refused = forked("demo", "-q", "-o", "out", cwd=tmp_path)
    assert refused.returncode == 2
    forced = forked("run", "my.toml", "-q", "-o", "out", "--force", cwd=tmp_path)
    assert forced.returncode == 0
    assert (folder / "train.jsonl").read_text() == "{}"


@pytest.mark.slow
def test_streams_may_be_closed_and_pipes_may_break(spec: Path, tmp_path: Path) -> None:
    command = f"{sys.executable} -m gossamer"
    for line in (
        f"{command} run my.toml -o a >&-",
        f"{command} run my.toml -o b 2>&-",
        f"{command} run my.toml -o c 2>&1 | true; exit ${{PIPESTATUS[0]}}",
        f"{command} methods | head -1 > /dev/null; exit ${{PIPESTATUS[0]}}",
        f"{command} run <(cat my.toml) -q -o d",
    ):
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (line, done.stderr)
        assert "Traceback" not in done.stderr
    for folder in "abcd":
        assert (tmp_path / folder / "convergence.png").exists()
        assert (tmp_path / folder / "spec.toml").read_text() == SPEC


def test_a_narrow_terminal_keeps_the_names(spec: Path, tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "gossamer", "run", "my.toml", "-q"],
        cwd=tmp_path, stdout=follower, stderr=subprocess.DEVNULL, env=os.environ | {"TERM": "xterm", "COLUMNS": "70"},
    )  # fmt: skip
    os.close(follower)
    shown = b""
    with contextlib.suppress(OSError):
        while part := os.read(leader, 4096):
            shown += part
    os.close(leader)
    process.wait(timeout=60)
    text = shown.decode()
    assert "BEER" in text
    assert "gradient norm" in text
    assert "…" not in text


def test_a_run_that_fails_exits_with_1(spec: Path, tmp_path: Path) -> None:
    """The disk is full: /dev/full takes the place of a record."""
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    out = tmp_path / "out"
    out.mkdir()
    (out / ".BEER-seed0.jsonl.tmp").symlink_to("/dev/full")
    done = forked("run", "my.toml", "-q", "-o", "out", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        "gossamer: The run could not be finished: 'out/BEER-seed0.jsonl' cannot be written: No space left on device; "
        "free disk space or choose another folder.\n"
    )
    (out / "spec.toml").unlink()
    (out / "spec.toml").symlink_to("/dev/full")
    done = forked("run", "my.toml", "-q", "-o", "out", "--force", cwd=tmp_path)
    assert done.returncode == 1
    said = "gossamer: No space left on the disk to write 'out/spec.toml'; free some and retry.\n"
    assert done.stderr == said


def test_force_says_what_stays(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(SPEC)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "OLD-seed0.jsonl").write_text("{}")
    done = forked("run", "my.toml", "-o", "out", "--force", "-q", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "OLD-seed0.jsonl' remain from an earlier run" in done.stderr
    assert (tmp_path / "out" / "OLD-seed0.jsonl").exists()


def test_demo(tmp_path: Path) -> None:
    done = gossamer("demo", "--json", "-q", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    norms = {method["method"]: method["grad_norm"] for method in json.loads(done.stdout)["methods"]}
    assert list(norms) == ["BEER", "CHOCO-SGD", "DSGD", "D2"]
    assert max(norms["BEER"], norms["D2"]) < 1e-4
    assert min(norms["CHOCO-SGD"], norms["DSGD"]) > 1e-3
    assert (tmp_path / "gossamer-demo" / "convergence.png").stat().st_size > 20_000


def test_warnings_about_a_run_are_lines(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(
        'rounds = 60\n[problem]\nobjective = "quadratic"\nclients = 6\nd = 400\n[graph]\nname = "ring"\n'
        '[[methods]]\nname = "beer"\nlr = 5.0\ngamma = 0.9\ncompressor = "rand_k:4"\n'
    )
    done = gossamer("run", "my.toml", "-q", cwd=tmp_path)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0].startswith("gossamer: `gamma` = 0.9 of BEER is far above what rand_k")
    assert any(line.startswith("gossamer: BEER with seed 0 is diverging: its loss after round") for line in lines[1:])
    assert all(line.startswith("gossamer: ") for line in lines)


def test_resuming_with_another_spec_names_what_differs(spec: Path, tmp_path: Path) -> None:
    assert forked("run", "my.toml", "-q", cwd=tmp_path).returncode == 0
    before = {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()}
    spec.write_text(spec.read_text().replace("rounds = 30", "rounds = 31"))
    refused = forked("run", "my.toml", "-q", "--resume", cwd=tmp_path)
    assert refused.returncode == 2
    assert "`rounds` is 30 there and 31 here" in refused.stderr
    assert {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()} == before
    spec.write_text("# a comment\n" + spec.read_text().replace("rounds = 31", "rounds = 30"))
    assert forked("run", "my.toml", "-q", "--resume", cwd=tmp_path).returncode == 0
