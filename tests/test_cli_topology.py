"""`gossamer topology`, in a process of its own."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from commands import forked

from gossamer.theory import theorem_gamma


def test_a_page_of_numbers(tmp_path: Path) -> None:
    done = forked("topology", "ring", "--clients", "40", "--weights", "fdla", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for said in ("40", "2 each", "0.01224", "3.951", "-0.9878", "none below 0", "theorem's gamma at alpha = 1"):
        assert said in done.stdout


def test_json(tmp_path: Path) -> None:
    done = forked("topology", "star:40", "--weights", "fdla", "--alpha", "0.5", "--json", cwd=tmp_path)
    result = json.loads(done.stdout)
    assert round(result["rho"], 4) == 0.0488
    assert (result["clients"], result["edges"], result["degree_max"], result["degree_min"]) == (40, 39, 39, 1)
    assert not result["nonnegative"]
    assert result["gamma"] == theorem_gamma(0.5, result["rho"], result["C"])


def test_compare(tmp_path: Path) -> None:
    done = forked("topology", "grid:3,4", "--compare", cwd=tmp_path)
    assert done.returncode == 0
    rules = [line.split("│")[1].strip() for line in done.stdout.splitlines() if line.startswith("│")]
    assert set(rules) == {"fdla", "fmmc", "best_constant", "metropolis", "max_degree"}
    assert set(rules[:2]) == {"fdla", "fmmc"}, "the best first"
    rows = json.loads(forked("topology", "grid:3,4", "--compare", "--json", cwd=tmp_path).stdout)
    assert max(rows, key=lambda row: row["rho"])["weights"] in ("fdla", "fmmc")
    large = forked("topology", "erdos_renyi:600,0.02", "--compare", cwd=tmp_path)
    assert large.returncode == 0
    assert large.stderr.count("cannot be computed") == 2, "rules that are too expensive are named; the others are shown"
    assert "metropolis" in large.stdout


@pytest.mark.parametrize("graph", ["erdos_renyi:12,0.4", "path:2", "complete:5", "small_world:250"])
@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_draw(tmp_path: Path, graph: str, kind: str) -> None:
    if kind != "png" and graph != "path:2":
        pytest.skip("one graph is enough for the other formats")
    rule = "metropolis" if graph == "small_world:250" else "fdla"
    done = forked("topology", graph, "--weights", rule, "--draw", f"graph.{kind}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"graph.{kind}" in done.stdout
    assert (tmp_path / f"graph.{kind}").stat().st_size > 3000
    assert len(list(tmp_path.iterdir())) == 1, "no half-made picture is left"


def test_own_files(tmp_path: Path) -> None:
    (tmp_path / "edges.txt").write_text("0 1\n1 2\n2 0\n")
    np.savetxt(tmp_path / "w.csv", np.full((3, 3), 1 / 3), delimiter=",")
    np.save(tmp_path / "a.npy", nx.to_numpy_array(nx.complete_graph(3)))
    for graph in ("edge_list:edges.txt", "adjacency:a.npy", "adjacency:matrix=a.npy"):
        done = forked("topology", graph, "--weights", "w.csv", "--json", cwd=tmp_path)
        assert json.loads(done.stdout)["rho"] == pytest.approx(1), done.stderr


def test_the_list(tmp_path: Path) -> None:
    done = forked("topology", cwd=tmp_path)
    assert done.returncode == 0
    for name in ("erdos_renyi", "small_world", "clients, degree=4, rewire=0.1, seed=0", "fmmc", "lazy:fdla"):
        assert name in done.stdout
    listed = json.loads(forked("topology", "--json", cwd=tmp_path).stdout)
    assert {
        "name": "ring",
        "settings": ["clients"],
        "about": "A cycle: each client has two neighbours.",
    } in listed["graphs"]


BAD = {
    ("ring",): "Graph 'ring' needs the setting `clients`.",
    ("ring", "--clients", "1"): "`clients` must be an integer from 2 to 1000000, got 1.",
    ("ring", "--clients", "ten"): "invalid int value: 'ten'",
    ("grid:8,5", "--clients", "30"): "The graph 'grid' has 40 clients; expected 30.",
    ("wheel:5",): "Unknown graph 'wheel'; valid graphs:",
    ("ring:5", "--weights", "uniform"): "Unknown weight rule 'uniform'",
    ("ring:5", "--weights", "lazy"): "need the name of a rule, such as 'lazy:metropolis'.",
    ("ring:5", "--weights", "none.csv"): "'none.csv' cannot be read: No such file.",
    ("edge_list:none.txt",): "'none.txt' cannot be read: No such file.",
    ("ring:5", "--alpha", "2"): "`alpha` must be in (0, 1], got 2.0.",
    ("ring:5", "--draw", "ring.gif"): "The picture 'ring.gif' must end in .png, .pdf, .svg.",
    ("ring:5", "--draw", "no/such/ring.png"): "The folder of the picture 'no/such/ring.png' does not exist",
    ("ring:3000", "--draw", "ring.png"): "A drawing shows at most 2,000 clients",
    ("ring:5", "--compare", "--weights", "fdla"): "leave --weights out",
    ("ring:5", "--weights", ""): "Unknown weight rule ''",
    ("complete:500", "--draw", "x.png"): "at most 2,000 clients and 50,000 edges, got 500 and 124,750",
}


@pytest.mark.parametrize(("arguments", "said"), BAD.items(), ids=[" ".join(bad) for bad in BAD])
def test_bad_input(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = forked("topology", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("gossamer: ")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("more", [["--compare"], ["--compare", "--json"], ["--compare", "--draw", "x.png"], []])
@pytest.mark.parametrize("edges", ["0 1\n2 3\n", "0 1\n1 2\n3 4\n4 5\n"])
def test_a_graph_in_parts(tmp_path: Path, more: list[str], edges: str) -> None:
    (tmp_path / "parts.txt").write_text(edges)
    done = forked("topology", "edge_list:parts.txt", *more, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "not connected" in done.stderr


def test_a_sign_of_life_on_a_terminal(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "gossamer", "topology", "grid:6,6", "--weights", "fdla"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=follower,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(follower)
    seen = b""
    try:
        while part := os.read(leader, 4096):
            seen += part
    except OSError:
        pass  # on Linux, the other end was closed
    os.close(leader)
    assert process.wait() == 0
    assert b"Computing the weights fdla" in seen
