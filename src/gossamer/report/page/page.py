"""One HTML page of everything in a folder, that needs nothing but itself: no network, no library, one file.

What comes from a record is data: it enters as JSON that cannot end its own element, and the page shows it as text. The
policy in the page's head allows the page's own script and style, by their hashes, and nothing else.
"""

import base64
import hashlib
import html
import json
import os
import re
import secrets
from importlib import resources
from pathlib import Path
from typing import Any

from gossamer._version import __version__
from gossamer.errors import InputError
from gossamer.report.gather import Gathered, gather
from gossamer.report.page.payload import payload

MARK = "<!-- gossamer report"
_SCRIPTS = ("axes.js", "plot.js", "drawings.js", "tables.js", "page.js")


def write_page(folder: str | os.PathLike[str], out: str | os.PathLike[str]) -> list[str]:
    """Report all that lies in a folder (or in one record) on the page `out`, and tell what could not be read.

    The page is written beside its place and then renamed: whoever reads it meanwhile sees the old one or the new one.
    Raises `InputError` if there is nothing to report.
    """
    found = gather(folder)
    save_page(found, Path(out))
    return found.left_out


def save_page(found: Gathered, out: Path) -> None:
    """Write the page of what was gathered; sentences on what it cannot show are added to `found.left_out`."""
    page = render(payload(found))
    part = out.with_name(f".{out.name}.{secrets.token_hex(4)}.part")
    try:
        part.write_bytes(page.encode("utf-8", errors="replace"))
        os.replace(part, out)
    finally:
        part.unlink(missing_ok=True)


def check_place(out: Path, *, force: bool = False, remedy: str = "give another file with -o, or --force") -> None:
    """Refuse a place where the page cannot go, or where something lies that is not a page of ours."""
    if out.is_dir():
        raise InputError(f"The page '{out}' is a folder; {remedy.removesuffix(', or --force')}.")
    if not out.parent.is_dir():
        raise InputError(f"The folder of the page '{out}' does not exist; make it first.")
    if out.exists() and not out.is_file():
        raise InputError(f"The page '{out}' is a device or a pipe; {remedy.removesuffix(', or --force')}.")
    if out.exists() and not force and not is_page(out):
        raise InputError(f"'{out}' exists and is not a report of Gossamer; {remedy}.")


def is_page(path: Path) -> bool:
    """Whether a file is a page that was written here, as its first lines say."""
    try:
        with path.open("rb") as file:
            return MARK.encode() in file.read(200)
    except OSError:
        return False


def render(data: dict[str, Any]) -> str:
    """The page that shows `data`."""
    files = resources.files("gossamer.report.page")
    style = files.joinpath("page.css").read_text(encoding="utf-8")
    code = "\n".join(files.joinpath(name).read_text(encoding="utf-8") for name in _SCRIPTS)
    script = f'"use strict";\n(() => {{\n{code}\n}})();\n'
    parts = {
        "mark": f"{MARK} {__version__} -->",
        "policy": "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"script-src '{_hash(script)}'; style-src '{_hash(style)}'",
        "title": html.escape(data["title"]),
        "style": style,
        "data": _embedded(data),
        "script": script,
    }
    template = files.joinpath("page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _embedded(data: dict[str, Any]) -> str:
    """JSON that no string in it can break out of: signs that HTML knows are written as escapes, all in ASCII."""
    written = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        written = written.replace(sign, f"\\u{ord(sign):04x}")
    return written


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
