"""The pages of the documentation as a browser shows them, without a network."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx", reason="needs the extra `docs`")
    out = tmp_path_factory.mktemp("pages")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", str(out / "doctrees")]
    done = subprocess.run([*command, "docs", str(out)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[webdriver.Chrome]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        reason = "Chromium and its driver are not installed (Debian: chromium, chromium-driver)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,900"):
        options.add_argument(flag)
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND")  # no network, wherever the test runs
    options.add_argument(f"--user-data-dir={tmp_path / 'profile'}")
    found = webdriver.Chrome(options=options, service=Service(driver))
    yield found
    found.quit()


def test_nothing_is_loaded_from_elsewhere(pages: Path) -> None:
    for page in pages.glob("*.html"):
        text = page.read_text()
        loaded = re.findall(r"<(?:script|img|iframe|link(?=[^>]*stylesheet))[^>]*(?:src|href)=\"([^\"]*)\"", text)
        assert loaded
        assert [address for address in loaded if "//" in address] == []


def test_no_word_with_a_full_stop_becomes_a_list(pages: Path) -> None:
    """`compressor: C. Any contraction` would be read as the third item of a list."""
    assert re.findall(r'<ol class="(?:lower|upper)[a-z]+', (pages / "api.html").read_text()) == []


def test_formulas_are_drawn_and_tables_are_no_wider_than_the_page(pages: Path, browser: webdriver.Chrome) -> None:
    drawn = 0
    for page in sorted(pages.glob("*.html")):
        browser.get(page.as_uri())
        ready = "return window.MathJax && MathJax.startup ? MathJax.startup.promise.then(() => 1) : 1"
        browser.execute_script(ready)
        formulas, done, wrong, wide = browser.execute_script(
            """
            const count = (what) => document.querySelectorAll(what).length;
            const tables = [...document.querySelectorAll("article table")];
            const wide = tables.filter((table) => table.scrollWidth > table.parentElement.clientWidth + 1);
            return [count(".math"), count("mjx-container"), count("mjx-merror"), wide.map((table) => table.innerText)];
            """
        )
        assert (done, wrong) == (formulas, 0), page.name
        assert wide == [], page.name
        drawn += done
    assert drawn > 200
