"""The table of model sizes and bandwidths of docs/network.md.

    python benchmarks/links/choosing.py              print it
    python benchmarks/links/choosing.py --write      put it between the markers of the page

Predictions for eight hosts on a ring, a delay of 10 ms, and gradients of a millisecond per 100,000 parameters, so that
only the times of the software depend on the machine.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from gossamer.files import write_text
from gossamer.runtime.planning.plan import plan
from gossamer.runtime.planning.progress import Differing
from gossamer.runtime.planning.quantities import shown_seconds

PAGE = ROOT / "docs" / "network.md"
BEGIN, END = "<!-- choosing: begin -->", "<!-- choosing: end -->"
SIZES = {"100k": 1e5, "1M": 1e6, "10M": 1e7, "100M": 1e8, "1B": 1e9}
LINKS = ("1Mbit", "20Mbit", "100Mbit", "1Gbit", "10Gbit")
PER_PARAMETER = 1e-8  # seconds of a gradient


def _cell(size: float, link: str, differing: Differing) -> str:
    found = plan(int(size), link, "10ms", 8, compute=PER_PARAMETER * size, differing=differing)
    way, seconds = found.best.way, shown_seconds(found.best.cost.seconds)
    operator = f"`{way.compressor}`, {way.codec}, " if way.kind == "gossip" else ""
    return f"{way.title}, {operator}H {way.steps}: {seconds}"


def text() -> str:
    """The table, with a row for each size and bandwidth."""
    lines = ["| parameters | bandwidth | data differ little | data differ much |", "|---|---|---|---|"]
    for name, size in SIZES.items():
        lines += [
            f"| {name} | {link} | {_cell(size, link, 'little')} | {_cell(size, link, 'much')} |" for link in LINKS
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into docs/network.md")
    made = text()
    if not parser.parse_args().write:
        print(made)
        return
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    write_text(PAGE, f"{before}{BEGIN}\n\n{made}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
