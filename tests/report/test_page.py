"""The page: one file, safe whatever the records hold; and in a real browser it draws, switches and zooms."""

import base64
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import forked
from records import HOSTILE, RING, SHARES, diverged, lines, write
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from gossamer.errors import InputError
from gossamer.records.record import read_record
from gossamer.report.gather import gather
from gossamer.report.page.curves import curve, points_for, thin
from gossamer.report.page.page import check_place, write_page
from gossamer.report.page.payload import payload

FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync", "--disable-quic", "--disable-dev-shm-usage"]
VERDICTS = ["holds", "holds", "does not hold", "inconclusive"]
VENDOR = resources.files("gossamer.report.page").joinpath("vendor")


def fill(folder: Path) -> None:
    """Two experiments, one with a hostile label and runs that diverged; claims, rates, and a file that is no record."""
    for seed in (0, 1, 2):
        write(folder / "one" / f"a{seed}.jsonl", lines("BEER", seed, 0.2, network=RING, shares=SHARES, command=HOSTILE))
        write(folder / "one" / f"b{seed}.jsonl", lines(HOSTILE, seed, 0.1))
    write(folder / "one" / "c.jsonl", diverged("Wild", 0, "Wild with seed 0 diverged in round 110."))
    (folder / "one" / "spec.toml").write_text(f'name = "First"\n# {HOSTILE}\n')
    for k in range(8):
        write(folder / "two" / f"m{k}.jsonl", lines(f"method {k}", 0, 0.02 * (k + 1), count=1000))
    claims = [
        {"id": f"c{k}", "where": f"Figure {k // 2}", "says": HOSTILE, "quantity": "q", "rule": "at most 1.5"}
        | {"why": "so", "values": [1.0, 1.2, 1.4], "value": 1.2, "verdict": verdict, "note": ""}
        for k, verdict in enumerate(VERDICTS)
    ]
    told = {"command": "gossamer reproduce", "date": "2026-11-15", "versions": {"torch": "2"}, "claims": claims}
    (folder / "claims.json").write_text(json.dumps(told | {"shortened": True}))
    fit = {"study": "T1", "what": "norm against T", "x": "T", "y": "norm", "points": [[10, 1], [100, 0.1], [1e3, 0.01]]}
    fits = [fit | {"method": m, "slope": -1.0, "low": -1.1, "high": -0.9, "theory": -1.0} for m in ("BEER", HOSTILE)]
    (folder / "rates.json").write_text(json.dumps({"fits": fits}))
    (folder / "bad.jsonl").write_text("hello\n")


# ---------------------------------------------------------------------------------------------- what is written


def test_page_is_one_safe_file(tmp_path: Path) -> None:
    fill(tmp_path)
    out = tmp_path / "report.html"
    (sentence,) = write_page(tmp_path, out)
    assert "bad.jsonl" in sentence
    page = out.read_text()
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")] == []
    assert len(page) < 1_000_000
    assert "<img" not in page.split("<script>")[0]
    assert page.count("</script>") == 2
    known = (
        "http://www.w3.org/2000/svg",
        "https://github.com/leeoniya/uPlot",
    )  # a name space, a comment of the library
    assert re.search(r"https?://", re.sub("|".join(known), "", page)) is None
    assert VENDOR.joinpath("LICENSE").read_text() in page
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert [group["name"] for group in data["groups"]] == ["First", "two"]
    assert data["groups"][0]["methods"][1]["label"] == HOSTILE
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]


def test_the_chart_library_is_the_published_one() -> None:
    readme = VENDOR.joinpath("README.md").read_text()
    for name, checksum in re.findall(r"\| `(\S+)` \| `([0-9a-f]{64})` \|", readme):
        assert hashlib.sha256(VENDOR.joinpath(name).read_bytes()).hexdigest() == checksum
    assert "MIT License" in VENDOR.joinpath("LICENSE").read_text()


def test_curves_are_means_and_ranges_over_the_seeds(tmp_path: Path) -> None:
    records = [read_record(write(tmp_path / f"{seed}.jsonl", lines("A", seed))) for seed in (0, 1, 2)]
    told = curve(records, 400)
    norms = np.array([[row["grad_norm"] for row in record.rows] for record in records])
    assert told["y"]["grad_norm"]["mean"] == pytest.approx(norms.mean(axis=0), rel=1e-4)
    assert told["y"]["grad_norm"]["low"] == pytest.approx(norms.min(axis=0), rel=1e-3)
    assert told["y"]["grad_norm"]["high"] == pytest.approx(norms.max(axis=0), rel=1e-3)
    assert "low" not in told["y"]["loss"]  # the same for all seeds
    assert told["x"]["round"] == [10 * t for t in range(40)]
    del records[1].rows[7:]
    assert len(curve(records, 400)["x"]["round"]) == 7
    records[2].rows = [replace(row, round=row.round + 1) for row in records[2].rows]
    assert len(curve(records, 400)["x"]["round"]) == 40  # nothing in common: the longest speaks for all


def test_thinning_keeps_ends_and_shape() -> None:
    values = np.exp(-np.linspace(0, 20, 5001))
    values[3000] = 1.0  # a single spike
    kept = thin({"a": values, "gaps": np.full(5001, np.nan)}, 5001, 400)
    assert len(kept) <= 400
    assert kept == sorted(set(kept))
    assert {0, 1, 3000, 5000} <= set(kept)
    assert thin({"a": values[:5]}, 5, 400) == [0, 1, 2, 3, 4]
    assert points_for(1) == 400
    assert points_for(10_000) == 60


def test_absurd_amounts_are_cut_and_told(tmp_path: Path) -> None:
    for k in range(405):
        write(tmp_path / f"{k:03}.jsonl", lines(f"m{k}", count=2))
    big = {"edges": [], "self": [1.0] * 201}
    many = {"labels": ["a"], "counts": [[1]] * 201}
    write(tmp_path / "deep" / "x.jsonl", lines("y" * 10_000, network=big, shares=many))
    write(tmp_path / "early" / "x.jsonl", lines("z", network={"edges": [[0, 9, 1]], "self": [1]}))
    write(tmp_path / "early" / "y.jsonl", lines("y"))
    found = gather(tmp_path)
    told = payload(found)
    assert sum(len(group["methods"]) for group in told["groups"]) == 400
    assert any("5 methods are left out" in sentence for sentence in told["leftOut"])
    told = payload(gather(tmp_path / "deep"))["groups"][0]
    assert len(told["methods"][0]["label"]) == 200
    assert "201 clients" in told["network"]["sentence"]
    assert "201 clients" in told["shares"]["sentence"]
    found = gather(tmp_path / "early")
    assert "its `network` has edges between clients that do not exist" in found.left_out[0]


def test_a_place_for_the_page(tmp_path: Path) -> None:
    (tmp_path / "mine.html").write_text("<p>mine</p>")
    with pytest.raises(InputError, match="is not a report of Gossamer"):
        check_place(tmp_path / "mine.html")
    check_place(tmp_path / "mine.html", force=True)
    with pytest.raises(InputError, match="is a folder"):
        check_place(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        check_place(tmp_path / "no" / "page.html")
    with pytest.raises(InputError, match="is a device or a pipe; give another file with -o"):
        check_place(Path(os.devnull), force=True)
    write(tmp_path / "a.jsonl", lines("A"))
    write_page(tmp_path, tmp_path / "page.html")
    check_place(tmp_path / "page.html")


def test_command(tmp_path: Path) -> None:
    fill(tmp_path / "runs")
    done = forked("report", "runs", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "runs/report.html\n")
    assert done.stderr == "gossamer: 'runs/bad.jsonl' is not a record of Gossamer: its first line is no header.\n"
    told = json.loads(forked("report", "runs", "-o", "x.html", "--json", cwd=tmp_path).stdout)
    assert (told["page"], told["experiments"], len(told["left_out"])) == ("x.html", ["First", "two"], 1)
    assert forked("report", "runs/one/a0.jsonl", cwd=tmp_path).stdout == "runs/one/a0.html\n"
    (tmp_path / "x.html").write_text("mine")
    for wrong in (["runs", "-o", "x.html"], ["nowhere"], ["runs/bad.jsonl"], ["runs", "-o", "runs"]):
        done = forked("report", *wrong, cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert (tmp_path / "x.html").read_text() == "mine"
    assert forked("report", "runs", "-o", "x.html", "--force", cwd=tmp_path).returncode == 0


# ------------------------------------------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """A Chromium of its own, with a fresh profile."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        reason = "Chromium and its driver are not installed (Debian: chromium, chromium-driver)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=Service(driver))
    yield found
    found.quit()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    fill(folder)
    write_page(folder, folder / "report.html")
    return folder


POINTS = """
    const found = {};
    u.series.forEach((series, at) => {
      if (at === 0 || !series.width) return;  // the axis, or an edge of a band
      const points = u.data[0].map((x, k) => [x, u.data[at][k]]).filter(([, y]) => y !== null && y !== undefined);
      found[series.method] = points.map(([x, y]) => [u.valToPos(x, "x"), u.valToPos(y, "y")]);
    });
    return found;"""
COLOURS = """
    const css = getComputedStyle(document.documentElement), { width, height } = u.ctx.canvas, found = new Set();
    const pixels = u.ctx.getImageData(0, 0, width, height).data;
    const wanted = new Map([0, 1, 2, 3, 4, 5, 6].map((k) => [css.getPropertyValue(`--c${k}`).trim(), String(k)]));
    const hex = (k) => "#" + [0, 1, 2].map((i) => pixels[k + i].toString(16).padStart(2, "0")).join("");
    for (let k = 0; k < pixels.length; k += 4) if (pixels[k + 3] === 255) found.add(wanted.get(hex(k)));
    found.delete(undefined);
    return [...found];"""


class Page:
    """A page in a browser, of a given width."""

    def __init__(self, browser: webdriver.Chrome, path: Path, width: int, scheme: str = "light") -> None:
        self.browser = browser
        for kind in ("browser", "performance"):
            browser.get_log(kind)  # type: ignore[no-untyped-call]
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        wanted = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wanted.items()]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        browser.get(path.as_uri())
        assert self.run("return document.documentElement.dataset.ready") == "yes"
        self.plots = self.all(".plot")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def all(self, selector: str, inside: WebElement | None = None) -> list[WebElement]:
        return (inside or self.browser).find_elements("css selector", selector)

    def click(self, plot: int, selector: str) -> None:
        (node,) = self.all(selector, self.plots[plot])
        node.click()

    def chart(self, plot: int, script: str) -> Any:
        """What a script says of the chart `u` of a plot, or None where nothing is drawn."""
        (node,) = self.all(".canvas", self.plots[plot])
        return self.run(f"const u = arguments[0].chart; if (!u) return null; {script}", node)

    def curves(self, plot: int) -> dict[str, list[list[float]]]:
        """Pixels of the points of each curve that is drawn, by the number of its method."""
        return self.chart(plot, POINTS) or {}

    def bands(self, plot: int) -> int:
        return int(self.chart(plot, "return u.bands.length"))

    def ticks(self, plot: int, side: str) -> list[str]:
        return list(self.chart(plot, f"return u.axes[{('across', 'up').index(side)}]._values"))

    def colours(self, plot: int) -> set[str]:
        """The colours of methods that the pixels of a chart show."""
        return set(self.chart(plot, COLOURS))

    def canvas(self, plot: int) -> WebElement:
        (node,) = self.all(".canvas", self.plots[plot])
        self.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", node)
        return node

    def shoot(self, path: Path) -> None:
        height = self.run("return document.documentElement.scrollHeight")
        width = self.run("return innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": min(height, 8000), "scale": 1}
        shot = self.browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[Any]:
        return self.browser.get_log("browser")  # type: ignore[no-untyped-call, no-any-return]

    def requests(self) -> list[str]:
        log = [json.loads(e["message"])["message"] for e in self.browser.get_log("performance")]  # type: ignore[no-untyped-call]
        return [e["params"]["request"]["url"] for e in log if e["method"] == "Network.requestWillBeSent"]


@pytest.fixture
def page(browser: webdriver.Chrome, place: Path) -> Iterator[Page]:
    found = Page(browser, place / "report.html", 1440)
    yield found
    assert found.complaints() == []
    own = {"chrome"}  # pages of the browser itself
    assert {url.split(":")[0] for url in found.requests()} - own <= {"file", "data"}


def test_everything_is_drawn(page: Page) -> None:
    assert [list(page.curves(k)) for k in (0, 1)] == [list("012"), list("01234567")]
    for plot in (0, 1):
        for name in [str(node.get_attribute("data-name")) for node in page.all("[data-axis=y]", page.plots[plot])]:
            page.click(plot, f"[data-axis=y][data-name={name}]")
            for points in page.curves(plot).values():
                assert len(points) >= 10
                assert all(math.isfinite(value) for point in points for value in point)
    page.click(0, "[data-axis=y][data-name=accuracy]")
    assert page.bands(0) == 0  # the same for all seeds
    page.click(0, "[data-axis=y][data-name=grad_norm]")
    assert page.colours(0) == set("012")
    page.click(1, "[data-axis=y][data-name=grad_norm]")
    assert page.colours(1) == set("0123456")
    rates = page.run("const u = document.querySelector('.rates .canvas').chart; return [u.data, u.series.length - 1]")
    assert [rates[1], rates[0][3], rates[0][6]] == [6, [1, 0.1, 0.01], [1, 0.1, 0.01]]  # theory, line, points; twice
    assert len(page.all(".network .edge.negative")) == 2  # one, and its sample
    assert len(page.all(".network .client")) == 5
    assert len(page.all(".shares rect.share")) == 6 + 2
    assert [node.text for node in page.all("#left-out li")] == [str(gather_left_out(page))]
    assert "Wild with seed 0 diverged in round 110." in page.plots[0].text


def gather_left_out(page: Page) -> str:
    data = json.loads(page.run("return document.getElementById('data').textContent"))
    (sentence,) = data["leftOut"]
    return str(sentence)


def test_switches_and_scales(page: Page) -> None:
    begin, across, up = page.curves(0), page.ticks(0, "across"), page.ticks(0, "up")
    assert across[0] == "0"
    assert "10⁻²" in up
    page.click(0, "[data-log=y]")
    assert page.curves(0) != begin
    assert "10⁻²" not in page.ticks(0, "up")
    page.click(0, "[data-log=y]")
    assert page.curves(0) == begin
    page.click(0, "[data-axis=x][data-name=seconds]")
    (seconds,) = page.all("[data-axis=x][data-name=seconds]", page.plots[0])
    assert seconds.get_attribute("aria-pressed") == "true"
    assert page.ticks(0, "across") != across
    page.click(0, "[data-axis=x][data-name=bits]")  # logarithmic, where nothing is not on the axis
    assert page.ticks(0, "across")[0] == "10 k"
    page.click(0, "[data-axis=y][data-name=accuracy]")
    assert page.curves(0) != begin
    assert page.curves(1)  # the other plot is its own


def test_legend_hides_and_shows(page: Page) -> None:
    assert page.bands(0) == 2
    page.click(0, ".legend [data-method='0']")
    assert list(page.curves(0)) == ["1", "2"]
    assert page.colours(0) == {"1", "2"}
    (entry,) = page.all(".legend [data-method='0']", page.plots[0])
    assert entry.get_attribute("aria-pressed") == "false"
    for other in "12":
        page.click(0, f".legend [data-method='{other}']")
    assert page.curves(0) == {}
    assert "Nothing to draw" in page.canvas(0).text
    entry.send_keys(Keys.ENTER)  # a real button
    assert list(page.curves(0)) == ["0"]


def test_zoom_and_reset(page: Page) -> None:
    begin, across = page.curves(0), page.ticks(0, "across")
    canvas = page.canvas(0)
    pull = ActionChains(page.browser, duration=20).move_to_element_with_offset(canvas, -50, 0).click_and_hold()
    pull.move_by_offset(120, 0).release().perform()
    zoomed = page.ticks(0, "across")
    assert zoomed != across
    assert float(zoomed[0]) > 100
    page.click(0, "[data-zoom=reset]")
    assert (page.curves(0), page.ticks(0, "across")) == (begin, across)
    page.click(0, "[data-zoom='in']")
    assert page.curves(0) != begin
    page.click(0, "[data-zoom=out]")
    assert page.ticks(0, "across") == across
    page.click(0, "[data-zoom='in']")
    ActionChains(page.browser, duration=20).double_click(page.canvas(0)).perform()
    assert page.ticks(0, "across") == across
    page.canvas(0).send_keys("+")
    assert page.ticks(0, "across") != across
    page.canvas(0).send_keys("0")
    assert page.ticks(0, "across") == across


def test_hover_shows_what_the_records_hold(page: Page) -> None:
    canvas = page.canvas(0)
    ActionChains(page.browser, duration=20).move_to_element_with_offset(canvas, 60, 0).perform()
    (tip,) = page.all(".tip", page.plots[0])
    assert tip.is_displayed()
    at = int(tip.text.split("\n")[0].removeprefix("round ").replace(",", ""))
    t = round(at / 10)
    rows = page.all(".tip .row", page.plots[0])
    assert [row.get_attribute("data-method") for row in rows] == ["1", "0"]  # by height; the wild one has ended
    for row, rate in zip(rows, (0.1, 0.2), strict=True):
        mean, low, high = (wobble * math.exp(-rate * t) for wobble in (1.1, 1.0, 1.2))
        shown = [float(text) for text in re.findall(r"[\d.]+(?=[ )]|$)", row.text.split("\n")[-1]) if text != "."]
        assert shown == pytest.approx([mean, low, high], rel=0.01)
    legend = page.all(".legend .value", page.plots[0])
    assert legend[2].text == "–"
    assert float(legend[1].text) == pytest.approx(1.1 * math.exp(-0.1 * t), rel=0.01)
    before = tip.text
    canvas.send_keys(Keys.ARROW_LEFT)
    assert tip.text != before


def test_fingers_pinch(page: Page) -> None:
    canvas, across = page.canvas(0), page.ticks(0, "across")
    box = page.run("const b = arguments[0].getBoundingClientRect(); return [b.left, b.top, b.width, b.height]", canvas)
    middle, y = box[0] + box[2] / 2, box[1] + box[3] / 2

    def touch(kind: str, *xs: float) -> None:
        points = [{"x": x, "y": y, "id": k} for k, x in enumerate(xs)]
        page.browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    page.browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True, "maxTouchPoints": 2})
    try:
        touch("touchStart", middle)
        assert page.all(".place", page.plots[0])[0].text.startswith("gradient norm at round")
        touch("touchStart", middle, middle + 60)
        touch("touchMove", middle - 100, middle + 160)
        touch("touchEnd")
        assert page.ticks(0, "across") != across
    finally:
        page.browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})


def test_verdicts_are_counted_and_filtered(page: Page) -> None:
    (section,) = page.all("#verdicts")
    assert "2 hold, 1 does not hold, 1 inconclusive." in section.text
    assert "shortened" in section.text
    page.all("#verdicts button[data-verdict='does not hold']")[0].click()
    shown = [row for row in page.all("tr[data-verdict]") if row.is_displayed()]
    assert [row.get_attribute("data-verdict") for row in shown] == ["does not hold"]
    assert "1 to 1.4, 3 seeds" in shown[0].text
    page.all("#verdicts .filters button")[0].click()
    assert len([row for row in page.all("tr[data-verdict]") if row.is_displayed()]) == 4


def test_hostile_text_stays_text(page: Page) -> None:
    assert page.all("img") == []
    assert len(page.all("script")) == 2
    label = page.run("return document.querySelectorAll('.legend .label')[1].textContent")
    assert label == HOSTILE
    assert HOSTILE in page.run("return document.querySelector('#verdicts').textContent")
    assert HOSTILE in page.run("return document.querySelector('pre').textContent")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_can_be_read(browser: webdriver.Chrome, place: Path, tmp_path: Path, width: int, scheme: str) -> None:
    page = Page(browser, place / "report.html", width, scheme)
    page.run("document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    assert page.run("return document.documentElement.scrollWidth") <= width
    small = """
        const nodes = [...document.querySelectorAll("body *")].filter((n) => [...n.childNodes].some((c) =>
          c.nodeType === 3 && c.textContent.trim()) && !["SCRIPT", "TITLE", "title"].includes(n.tagName));
        const scale = (n) => n.ownerSVGElement ? n.getScreenCTM().a : 1;
        return nodes.map((n) => [parseFloat(getComputedStyle(n).fontSize) * scale(n), n.textContent.slice(0, 40)])
          .filter(([size]) => size < 11);"""
    assert page.run(small) == []
    paper = page.run("return getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    shot = tmp_path / f"{width}-{scheme}.png"
    page.shoot(shot)
    assert shot.stat().st_size > 50_000
    assert page.complaints() == []


def test_the_policy_stops_what_is_not_ours(browser: webdriver.Chrome, place: Path) -> None:
    page = Page(browser, place / "report.html", 1440)
    page.run("""
        const bad = document.createElement("script"); bad.textContent = "window.bad = 1"; document.body.append(bad);
        const image = document.createElement("img"); image.src = "file:///x.png"; document.body.append(image);""")
    assert page.run("return window.bad ?? 'stopped'") == "stopped"
    assert "Content Security Policy" in str(page.complaints())
