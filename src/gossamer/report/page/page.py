"""One self-contained HTML file that shows all records of a folder. It needs no network.

Values from records are embedded as JSON with HTML's special characters escaped, and the page shows them as text. The
content-security policy allows only the script and the style of the page, by their hashes. The charts are by uPlot, in
`vendor/`.
"""

import base64
import hashlib
import html
import json
import os
import re
from importlib import resources
from pathlib import Path

from gossamer._version import __version__
from gossamer.errors import InputError
from gossamer.files import replacing
from gossamer.report.gather import Gathered, gather
from gossamer.report.page.payload import Tree, payload

MARK = "<!-- gossamer report"
_SCRIPTS = ("vendor/uPlot.iife.min.js", "elements.js", "chart.js", "curves.js", "drawings.js", "tables.js", "page.js")


def write_page(folder: str | os.PathLike[str], out: str | os.PathLike[str]) -> list[str]:
    """Write the page `out` of a folder or a record (`InputError`: there is none); return what could not be read."""
    found = gather(folder)
    save_page(found, Path(out))
    return found.left_out


def save_page(found: Gathered, out: Path) -> None:
    """Write the page atomically; sentences on what it cannot show are added to `found.left_out`."""
    page = render(payload(found))
    with replacing(out, alone=False) as beside:
        beside.write_bytes(page.encode("utf-8", errors="replace"))


def check_place(out: Path, *, force: bool = False, remedy: str = "give another file with -o, or --force") -> None:
    """Refuse a path that cannot be written, or a file that is not a report of Gossamer."""
    if out.is_dir():
        raise InputError(f"The page '{out}' is a folder; {remedy.removesuffix(', or --force')}.")
    if not out.parent.is_dir():
        raise InputError(f"The folder of the page '{out}' does not exist; make it first.")
    if out.exists() and not out.is_file():
        raise InputError(f"The page '{out}' is a device or a pipe; {remedy.removesuffix(', or --force')}.")
    if out.exists() and not force and not is_page(out):
        raise InputError(f"'{out}' exists and is not a report of Gossamer; {remedy}.")


def is_page(path: Path) -> bool:
    """Whether a file is a report of Gossamer, by its first lines."""
    try:
        with path.open("rb") as file:
            return MARK.encode() in file.read(200)
    except OSError:
        return False


def render(data: Tree) -> str:
    """The page that shows `data`."""
    files = resources.files("gossamer.report.page")

    def read(*names: str) -> str:
        return "\n".join(files.joinpath(name).read_text(encoding="utf-8") for name in names)

    style = read("vendor/uPlot.min.css", "page.css")
    script = f'"use strict";\n(() => {{\n/*! uPlot: {read("vendor/LICENSE")} */\n{read(*_SCRIPTS)}\n}})();\n'
    parts = {
        "mark": f"{MARK} {__version__} -->",
        "policy": "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"script-src '{_hash(script)}'; style-src '{_hash(style)}'",
        "title": html.escape(data["title"]),
        "style": style,
        "data": _embedded(data),
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], read("page.html"))


def _embedded(data: Tree) -> str:
    """JSON in ASCII with HTML's special characters escaped, so that no string can end the element."""
    written = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        written = written.replace(sign, f"\\u{ord(sign):04x}")
    return written


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
