"""What is said of the methods: their papers, assumptions and rates, and what each was checked against."""

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from gossamer.algorithms.about import about
from gossamer.registry import methods
from gossamer.theory import orders

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "methods.md"


def docstring(name: str) -> str:
    """On one line."""
    cls: Any = methods.get(name)
    return " ".join((inspect.getdoc(cls) or "").split())


@pytest.mark.parametrize("name", ["beer", "choco_sgd", "deepsqueeze", "squarm_sgd"])
def test_methods_and_orders_state_the_same_assumptions(name: str) -> None:
    assert about(name)["assumes"] == orders(name).assumes


@pytest.mark.parametrize(
    ("name", "field", "stated", "not_stated"),
    [
        ("porter", "assumes", "bounded dissimilarity", "any difference"),
        ("porter", "rate", "sum clip(grad f_i) = 0", None),
        ("c_gt", "paper", "2205.12623", "2103.13748"),
        ("c_gt", "assumes", "strong convexity", "nothing more"),
        ("gt_saga", "paper", "2011.03853", "1912.04230"),
        ("gt_saga", "rate", "O(1/T); linear under PL", None),
        ("gt_sarah", "rate", "N + O(sqrt(N)/eps)", None),
        ("gt_sarah", "rate", "if n <= O(sqrt(N) rho^3)", None),
        ("lead", "assumes", "strong convexity", None),
        ("choco_sgd", "rate", "1907.09356", None),
        ("beer", "rate", "linear under PL with full gradients", None),
        ("docom", "rate", "linear under PL with full gradients", None),
    ],
)
def test_facts(name: str, field: str, stated: str, not_stated: str | None) -> None:
    fact = about(name)[field]
    assert stated in fact
    assert not_stated is None or not_stated not in fact


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("gradient_tracking", '`"semi"` (NEXT, and with stochastic gradients DSGT)'),
        ("gt_sarah", "The full gradient is therefore taken every q + 1 rounds."),
        ("d_get", "the full gradient is taken every q rounds"),
        ("gt_saga", "One index serves both the estimate and the table."),
        ("d2", "nor does the D2 in the code that the authors of BEER published"),
        ("d2", "each gradient keeps the lr of its own round"),
        ("nids", "each gradient keeps the lr of its own round"),
        ("motef", "The code has M^0 = 0 and V^0 = F(X^0)."),
        ("choco_sgd", "The rate for nonconvex ones is that of Koloskova, Lin, Stich, Jaggi, arXiv 1907.09356."),
    ],
)
def test_docstrings(name: str, sentence: str) -> None:
    assert sentence in docstring(name)


def checks() -> list[list[str]]:
    """The cells of the table of checks in the documentation."""
    found = re.search(r"<!-- checks: .*? -->\n(.*?)<!-- end of checks -->", PAGE.read_text(), flags=re.DOTALL)
    assert found is not None
    heading, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in found[1].splitlines())
    assert heading == ["method", "transcription test", "equality or limit it was checked by", "paper or code"]
    return rows


def defined_tests() -> dict[str, str]:
    """Every test function of this folder with its source."""
    found = {}
    for path in HERE.glob("test_*.py"):
        text = path.read_text()
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found[node.name] = ast.get_source_segment(text, node) or ""
    return found


def test_every_method_has_one_row_of_checks() -> None:
    assert sorted(row[0].strip("`") for row in checks()) == sorted(methods.names())


@pytest.mark.parametrize("row", checks(), ids=lambda row: row[0].strip("`"))
def test_the_checks_of_a_method_exist(row: list[str]) -> None:
    name, tests = row[0].strip("`"), defined_tests()
    assert all(row)
    transcriptions = re.findall(r"`(test_\w+)`", row[1])
    assert transcriptions
    for test in transcriptions:
        assert re.search("assert_agree|assert_equal_runs", tests[test]), f"{test} compares with no transcription"
        assert name.replace("_", "") in tests[test].lower().replace("_", ""), f"{test} is not about {name}"
    for test in re.findall(r"`(test_\w+)`", " ".join(row[2:])):
        assert test in tests
    number = re.search(r"arXiv (\d+\.\d+)", about(name)["paper"])
    assert number is None or number[1] in row[3], "the table cites another paper than the class"
