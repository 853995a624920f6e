"""`gossamer data`, in a process of its own."""

import json
import lzma
from pathlib import Path

import pytest
from commands import forked


def test_list(tmp_path: Path, data_dir: Path) -> None:
    rows = json.loads(forked("data", "list", "--json", "--data-dir", str(data_dir), cwd=tmp_path).stdout)
    found = {row["name"]: row for row in rows}
    assert found["a9a"]["where"] == "here"
    assert found["a9a"]["folder"].endswith("a9a")
    assert found["digits"]["where"] == "embedded"
    assert found["gaussian_mixture"]["where"] == "synthetic"
    assert "embedded" in forked("data", "list", cwd=tmp_path).stdout


def test_check(tmp_path: Path, data_dir: Path) -> None:
    done = forked("data", "check", "--data-dir", str(data_dir), cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0
    assert done.stdout.count("correct") == 6
    (tmp_path / "a9a").write_text("+1 1:1\n")
    damaged = forked("data", "check", "--data-dir", str(tmp_path), cwd=tmp_path)
    assert damaged.returncode == 1
    assert "Damaged:" in damaged.stderr
    assert damaged.stderr.count("\n") == 1


def test_describe(tmp_path: Path, data_dir: Path) -> None:
    asked = ["data", "describe", "a9a", "--clients", "10", "--partition", "sorted", "--data-dir", str(data_dir)]
    done = forked(*asked, "--draw", "shares.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "3,256" in done.stdout
    assert "40.8%" in done.stdout
    assert "Heterogeneity" in done.stdout
    assert (tmp_path / "shares.png").stat().st_size > 5000
    result = json.loads(forked(*asked, "--json", cwd=tmp_path).stdout)
    assert [sum(row) for row in result["clients"]] == [3256] * 10
    assert (result["rows"], result["dropped"], result["test_rows"]) == (32561, 1, 16281)
    iid = json.loads(forked(*asked[:6], "iid", *asked[7:], "--json", cwd=tmp_path).stdout)
    assert result["heterogeneity"] > 50 * iid["heterogeneity"]


def test_describe_many_labels_and_clients(tmp_path: Path) -> None:
    done = forked(
        "data", "describe", "digits", "--clients", "80", "--partition", "shards:2", "--all-rows", cwd=tmp_path
    )
    assert done.returncode == 0
    assert "and 20 more clients" in done.stdout
    mixture = "gaussian_mixture:rows=400,classes=30"
    done = forked("data", "describe", mixture, "--partition", "dirichlet:0.1", "--draw", "m.svg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "m.svg").exists()


BAD = {
    ("fetch", "cifar"): "Unknown data set 'cifar'; valid data sets: 'a9a', 'mnist', 'fashion_mnist'.",
    ("fetch", "digits"): "The data set 'digits' needs no files.",
    ("describe", "a9b"): "`data` must be one of 'a9a'",
    ("describe", "digits", "--partition", "sorte"): "Did you mean 'sorted'?",
    ("describe", "digits", "--clients", "0"): "`clients` must be an integer of 1 or more, got 0.",
    ("describe", "digits", "--clients", "2000"): "2000 clients cannot share 1438 rows",
    ("describe", "digits", "--seed", "-1"): "`seed` must be an integer of 0 or more, got -1.",
    ("describe", "digits", "--draw", "x.gif"): "The picture 'x.gif' must end in",
    ("describe", "digits", "--clients", "600", "--draw", "x.png"): "at most 500 clients",
    ("describe",): "the following arguments are required: DATA",
    (): "the following arguments are required: COMMAND",
    ("describe", "fashion_mnist"): "was not found in",
}


@pytest.mark.parametrize(("arguments", "said"), BAD.items(), ids=[" ".join(bad) for bad in BAD])
def test_bad_input(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = forked("data", *arguments, cwd=tmp_path, GOSSAMER_DATA="", XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("gossamer: ")
    assert done.stderr.count("\n") == 1
    assert said.lower() in done.stderr.lower()
    assert not list(tmp_path.iterdir())


def test_fetch_mends_a_damaged_file_that_is_packed(tmp_path: Path, data_dir: Path) -> None:
    """What was fetched is found before what is packed in another way."""
    (tmp_path / "a9a").mkdir()
    (tmp_path / "a9a" / "a9a.xz").write_bytes(b"broken")
    content = lzma.decompress((data_dir / "a9a" / "a9a.xz").read_bytes())
    (tmp_path / "a9a" / "a9a").write_bytes(content)
    rows = json.loads(forked("data", "check", "--json", "--data-dir", str(tmp_path), cwd=tmp_path).stdout)
    assert rows[0]["state"] == "correct"
    offline = forked("data", "fetch", "mnist", "--data-dir", str(tmp_path / "new"), cwd=tmp_path, GOSSAMER_OFFLINE="1")
    assert offline.returncode == 2
    assert "$GOSSAMER_OFFLINE forbids it" in offline.stderr


def test_a_flat_folder_of_mnist_is_not_a_damaged_fashion_mnist(tmp_path: Path, data_dir: Path) -> None:
    folder = str(data_dir / "mnist")
    done = forked("data", "check", "--json", "--data-dir", folder, cwd=tmp_path, GOSSAMER_DATA="", XDG_CACHE_HOME=".")
    states = {(row["data"], row["state"]) for row in json.loads(done.stdout)}
    assert done.returncode == 0
    assert states == {("a9a", "missing"), ("mnist", "correct"), ("fashion_mnist", "missing")}


@pytest.mark.slow
def test_too_much_for_the_memory(tmp_path: Path) -> None:
    done = forked("data", "describe", "gaussian_mixture:rows=100000000,features=1000000", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "gossamer: There is not enough memory; try a smaller problem.\n"
