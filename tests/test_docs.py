"""What the documentation shows is what there is."""

import doctest
import json
import math
import re
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import gossamer as gs
from gossamer.algorithms.about import markdown_table
from gossamer.cli.commands.reproduce import verdict_counts
from gossamer.paper import proofs
from gossamer.paper.claims import PUBLISHED, Judged, claims, counted
from gossamer.paper.rates.studies import studies
from gossamer.paper.reproduction import BOTH_WAYS
from gossamer.runtime.experiment import prepare
from gossamer.runtime.planning.ways import METHODS, ways
from gossamer.spec import load_spec, parse_spec

ROOT = Path(__file__).parents[1]
OWN = """
import torch
from torch.utils.data import TensorDataset

my_module = torch.nn.Linear(5, 3)
my_dataset = my_test_set = TensorDataset(torch.randn(400, 5), torch.arange(400) % 3)
"""


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), flags=re.DOTALL)


def test_every_public_name_is_documented() -> None:
    api = (ROOT / "docs" / "api.md").read_text()
    missing = [name for name in gs.__all__ if name != "__version__" and f" gossamer.{name}\n" not in api]
    assert not missing


def test_the_readme_works(tmp_path: Path) -> None:
    snippets = [OWN, *blocks(ROOT / "README.md", "python")]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(snippets)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


@pytest.mark.slow
def test_the_spec_of_the_tutorial_runs(tmp_path: Path) -> None:
    (spec,) = blocks(ROOT / "docs" / "tutorial.md", "toml")
    (tmp_path / "my.toml").write_text(spec)
    done = subprocess.run(
        [sys.executable, "-m", "gossamer", "run", "my.toml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_trackers_of_the_tutorial_hear_a_run(tmp_path: Path) -> None:
    (program,) = (block for block in blocks(ROOT / "docs" / "tutorial.md", "python") if "Tracker" in block)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "TrackerWarning" not in done.stderr
    assert "('BEER', 0): " in done.stdout
    assert {path.name for path in tmp_path.iterdir()} >= {"events", "wandb", "mlflow.db"}


def test_the_extending_page_works() -> None:
    snippet = blocks(ROOT / "docs" / "extending.md", "python")[0]
    done = subprocess.run([sys.executable, "-c", snippet], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_theory_page_works() -> None:
    """Its examples are one session, in the order of the page."""
    snippets = blocks(ROOT / "docs" / "theory.md", "python")
    session = doctest.DocTestParser().get_doctest("\n".join(snippets), {}, "theory.md", "docs/theory.md", 0)
    assert session.examples
    told: list[str] = []
    assert not doctest.DocTestRunner().run(session, out=told.append).failed, "".join(told)


def test_the_theory_page_shows_what_the_command_says() -> None:
    page = ROOT / "docs" / "theory.md"
    (command,) = (block for block in blocks(page, "sh") if block.startswith("gossamer theory --problem"))
    (shown,) = (block for block in blocks(page, "text") if block.startswith("certified steps"))
    done = subprocess.run([sys.executable, "-m", *command.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines()]
    for line in shown.splitlines():
        assert re.split(" {2,}", line) in rows


def test_the_spec_page_is_a_spec(tmp_path: Path, data_dir: Path) -> None:
    spec, lists = blocks(ROOT / "docs" / "spec.md", "toml")
    path = tmp_path / "spec.toml"
    path.write_text(spec)
    experiment = prepare(load_spec(path), data_dir=str(data_dir))
    assert experiment.methods["CHOCO-SGD, twice as long"][1] == 4000
    small = {"rounds": 5, "problem": {"objective": "quadratic"}}
    labels = list(prepare(parse_spec(small | tomllib.loads(lists))).methods)
    assert len(labels) == 8
    for label in ("BEER lr=0.1 gsgd:5 ring", "BEER lr=0.05 top_k:0.1 exponential"):
        assert label in labels


def section(text: str, name: str) -> str:
    """What stands between `<!-- name: ... -->` and `<!-- end of name -->`."""
    found = re.search(rf"<!-- {name}: .*? -->\n(.*?)<!-- end of {name} -->", text, flags=re.DOTALL)
    assert found is not None
    return found[1]


def proofs_table() -> str:
    table = pd.read_csv(ROOT / "docs" / "results" / "theory.csv")
    lines = [
        "| experiment | seeds | lr | rounds | inequalities that hold | 4.1, 4.2 | 4.3, 4.4 |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, rows in table.groupby("experiment", sort=False):
        near = rows.set_index("inequality").tightest
        shares = [f"{near[one]:.2g}" if one in near else "" for one in ("Theorem 4.1, 4.2", "Theorem 4.3, 4.4")]
        held, first = f"{(rows.verdict == 'holds').sum()} of {len(rows)}", rows.iloc[0]
        cells = (name, first.seeds, f"{first.lr:.3g}", f"{first.rounds:,}", held, *shares)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def test_the_proofs_table_is_that_of_the_results() -> None:
    assert section((ROOT / "docs" / "theory.md").read_text(), "proofs") == proofs_table()
    table = pd.read_csv(ROOT / "docs" / "results" / "theory.csv")
    assert list(table.experiment.unique()) == [job.spec.name for job in proofs.jobs()]


def auto_table() -> str:
    table = pd.read_csv(ROOT / "docs" / "results" / "auto.csv")
    lines = ["| method | cells | diverged | median | 90% within | worst |", "|---|---|---|---|---|---|"]
    for network in (False, True):
        for method, rows in table[(table.problem == "mnist") == network].groupby("method"):
            label = f"{method!s}, MNIST's network" if network else str(method)
            ratio = rows.ratio.dropna()
            numbers = (ratio.median(), ratio.quantile(0.9), ratio.max())
            shown = " | ".join(f"{number:.2f}" for number in numbers)
            lines.append(f"| {label} | {len(ratio)} | {rows.diverged.sum()} | {shown} |")
    return "\n".join(lines) + "\n"


def suggest_table() -> str:
    table = pd.read_csv(ROOT / "docs" / "results" / "suggest.csv")
    lines = [
        "| compressor | data | cells | at the best gamma: median | worst | at the best gamma and lr: median | worst |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for (compressor, split), rows in table.groupby(["compressor", "split"], sort=False):
        ratios = rows.loss / rows.loss_at_best_gamma, rows.loss / rows.loss_at_best_pair
        shown = " | ".join(f"{number:.2f}" for ratio in ratios for number in (ratio.median(), ratio.max()))
        lines.append(f"| {compressor} | {split} | {len(rows)} | {shown} |")
    return "\n".join(lines) + "\n"


def test_the_table_of_suggestions_is_that_of_the_results() -> None:
    assert section((ROOT / "docs" / "processes.md").read_text(), "suggest") == suggest_table()


def in_words(verdict: str) -> str:
    """A verdict as the documentation writes it; files of earlier versions say "cannot be told"."""
    return "inconclusive" if verdict == "cannot be told" else verdict


def verdict_words(rows: list[dict[str, Any]], end: str) -> str:
    counts = Counter(in_words(row["verdict"]) for row in rows)
    return f"{counts['holds']} hold, {counts['does not hold']} do not hold{end.format(counts['inconclusive'])}"


def verdicts_table() -> str:
    """The claims by section."""
    rows = json.loads((ROOT / "docs" / "results" / "claims.json").read_text())["claims"]
    lines, where = ["| the paper says | measured | holds if | verdict |", "|---|---|---|---|"], ""
    for row in rows:
        if row["where"] != where:
            where = row["where"]
            lines.append(f"| **{where}** | | | |")
        low, high = (f"{end:.3g}" for end in _ends(row["values"]))
        value = low if low == high else f"{low} to {high}"
        lines.append(f"| {row['says']} | {value} | {row['rule']} | {row['verdict']} |")
    counts = counted([row["verdict"] for row in rows])
    words = f"{counts['holds']} hold, {counts['does not hold']} do not hold, {counts['inconclusive']} inconclusive."
    return "\n".join(lines) + f"\n\n{words}\n"


def _ends(values: list[float | None]) -> tuple[float, float]:
    known = [math.inf if value is None else value for value in values]
    return min(known), max(known)


def rates_table() -> str:
    fits = json.loads((ROOT / "docs" / "results" / "rates.json").read_text())["fits"]
    lines = ["| slope of | method | measured | interval | theory | verdict |", "|---|---|---|---|---|---|"]
    for fit in fits:
        theory = f"{'at most ' if fit['is_bound'] else ''}{fit['theory']:.3g}"
        verdict = in_words(fit["agrees"]) + (", tight" if fit["is_bound"] and fit["is_reached"] else "")
        interval = f"{fit['low']:.3g} to {fit['high']:.3g}"
        lines.append(f"| {fit['what']} | {fit['method']} | {fit['slope']:.3g} | {interval} | {theory} | {verdict} |")
    return "\n".join(lines) + "\n"


def test_the_verdicts_are_up_to_date() -> None:
    text = (ROOT / "docs" / "reproduce.md").read_text()
    assert section(text, "verdicts") == verdicts_table()
    assert section(text, "rates") == rates_table()


def test_the_number_of_verdicts_is_explained_where_it_is_shown() -> None:
    rows = json.loads((ROOT / "docs" / "results" / "claims.json").read_text())["claims"]
    text = [row for row in rows if not row["id"].endswith(PUBLISHED)]
    again = [row for row in rows if row["id"].endswith(PUBLISHED)]
    both = [row for row in again if row["id"].startswith(BOTH_WAYS)]
    readme, page = ((ROOT / name).read_text() for name in ("README.md", "docs/reproduce.md"))
    words = " ".join(readme.split())
    assert f"Of {len(text)} verdicts on the claims and rates of the BEER paper" in words
    assert verdict_words(text, " and {} are inconclusive.") in words
    before = " ".join(page.split("<!-- verdicts")[0].split())
    assert f"The {len(rows)} verdicts below are {len(text)} on runs that follow the text and {len(again)}" in before
    assert f"prints {len(text) + len(both)} of them" in before
    quick, full = (next(one for one in studies(quick) if one.name == "linear") for quick in (True, False))
    assert quick.settings["lr"] == full.settings["lr"], "a rehearsal has a verdict for each, too"
    verdicts = [Judged(replace(claims()[0], id=row["id"]), "holds", [1.0]) for row in [*text, *both]]
    assert verdict_counts(verdicts) == (
        f"{len(text) + len(both)} verdicts ({len(text)} on the paper's text, {len(both)} again on the published runs): "
        f"{len(text) + len(both)} hold, 0 do not hold, 0 inconclusive."
    )


def test_every_folder_in_the_tutorial_is_made_by_an_earlier_line() -> None:
    made: set[str] = set()
    checked = []
    for line in "\n".join(blocks(ROOT / "docs" / "tutorial.md", "sh")).splitlines():
        words = line.split("#")[0].split()
        if words[:2] == ["gossamer", "run"]:
            made.add(f"runs/{words[2].removesuffix('.toml')}")
        elif words[:3] == ["gossamer", "reproduce", "theory"]:
            made.add("proofs")
        elif words[:2] in (["gossamer", "report"], ["gossamer", "compare"]):
            checked.append(words[2])
            assert words[2] in made, line
        elif words[:3] == ["gossamer", "theory", "--check"]:
            checked.append(words[3])
            assert words[3] in made, line
    assert checked == ["runs/my", "runs/my", "proofs"]


def test_final_means_one_thing_on_a_page() -> None:
    """`run.final` is one row; in tables and claims a final value is a mean, which the page of the claims says."""
    tutorial = (ROOT / "docs" / "tutorial.md").read_text()
    assert re.findall(r"\S*\bfinal\b", tutorial) == ["bool(run.final", "`run.final"]
    shown = " ".join(str(thing.__doc__) for thing in (gs.Run, gs.Run.x, gs.Run.average, gs.Run.final))
    assert "final" not in shown
    page = (ROOT / "docs" / "reproduce.md").read_text()
    assert "A *final*\nvalue in a claim is the mean over the last tenth of the evaluations." in page


def test_the_committed_results_are_of_todays_claims() -> None:
    told = json.loads((ROOT / "docs" / "results" / "claims.json").read_text())
    assert not told["shortened"]
    assert told["command"].startswith("gossamer reproduce")
    rows = {row["id"]: row for row in told["claims"]}
    assert len(rows) == len(told["claims"]), "one name per claim"
    for claim in claims():
        row = rows[claim.id]
        assert (row["says"], row["rule"], row["why"]) == (claim.says, claim.rule, claim.why)
        if "not defined" not in row["note"]:
            met = [claim.is_met(math.inf if one is None else one) for one in row["values"]]
            assert row["verdict"] == ("holds" if all(met) else "does not hold" if not any(met) else "inconclusive")


def test_the_tables_of_methods_and_steps_are_up_to_date() -> None:
    text = (ROOT / "docs" / "methods.md").read_text()
    assert section(text, "methods") == markdown_table()
    assert section(text, "auto") == auto_table()


def test_what_is_said_of_local_steps_was_measured() -> None:
    results, methods = ROOT / "docs" / "results", (ROOT / "docs" / "methods.md").read_text()
    kept = json.loads((results / "local_steps.json").read_text())["final"]["corrected AdamW, H = 10"]
    assert max(kept["shares"]) <= 0.35
    assert kept["accuracy"] >= 0.9
    assert kept["worst client"] >= 0.8
    lines = [json.loads(line) for line in (results / "language_model.jsonl").read_text().splitlines()]
    final = {(one["split"], one["contender"]): one for one in lines if one["stage"] == "final"}
    loss = {key: float(np.array(one["losses"]).min(axis=0).mean()) for key, one in final.items()}
    sent = {key: float(np.mean(one["bytes"][-1])) for key, one in final.items()}
    above = [100 * (loss[split, "CHOCO-SGD"] / loss[split, "DiLoCo"] - 1) for split in ("iid", "topic")]
    assert f"{above[0]:.1f} % above" in methods.replace("\n", " ")
    assert f"and {above[1]:.1f} % where each file" in methods
    fewer = [sent["iid", other] / sent["iid", "CHOCO-SGD"] for other in ("DiLoCo", "All-reduce AdamW")]
    assert f"sends {fewer[0]:.1f} times fewer bytes than DiLoCo and {fewer[1]:.0f} times fewer than" in methods
    assert f"and {fewer[1]:.0f} times fewer than all-reduce, with a loss 5 % above" in (ROOT / "README.md").read_text()


def test_the_tables_of_the_network_page_are_of_todays_ways() -> None:
    """`python benchmarks/links/choosing.py --write` makes them; times differ between machines, names do not."""
    page = (ROOT / "docs" / "network.md").read_text()
    made = page[page.index("<!-- choosing: begin -->") : page.index("<!-- choosing: end -->")]
    cells = [cell.strip() for line in made.splitlines() if re.match(r"\| \d", line) for cell in line.split("|")[3:-1]]
    assert len(cells) == 50
    known = {(way.title, way.steps) for way in ways((1, 5, 10, 20, 50), METHODS)}
    for cell in cells:
        found = re.fullmatch(r"([^,]+), (?:`\S+`, (?:auto|fixed), )?H (\d+): [\d.e+]+ (?:ms|s|min|h|days)", cell)
        assert found is not None, cell
        assert (found[1], int(found[2])) in known


def test_the_network_page_works() -> None:
    (snippet,) = blocks(ROOT / "docs" / "network.md", "python")
    found: dict[str, Any] = {}
    exec(snippet.replace("print(found)", "str(found)"), found)
    assert len(found["found"].frame) == len(found["found"].rows)
