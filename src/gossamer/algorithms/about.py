"""What is known of a method, as plain data: for `gossamer methods`, and for the table in the documentation."""

import dataclasses
import textwrap
from collections.abc import Sequence
from typing import Any

from gossamer import registry


def about(name: str) -> dict[str, Any]:
    """The facts of the method that is registered under a name."""
    method: Any = registry.methods.get(name)
    fields = dataclasses.fields(method)
    settings = {field.name: None if field.default is dataclasses.MISSING else field.default for field in fields}
    info = method.info
    plain = ("title", "paper", "messages", "exchanges", "gradients", "state", "assumes", "rate")
    return {
        "name": registry.normal(name),
        **{name: getattr(info, name) for name in plain},
        "compressors": info.compressors.value if "compressor" in settings else "none",
        "settings": settings,
        "required": [field.name for field in fields if field.default is dataclasses.MISSING],
        "equations": textwrap.dedent(info.equations).strip("\n").rstrip(),
    }


_COSTS = ("name", "title", "messages", "exchanges", "gradients", "state")
_PROMISES = ("name", "compressors", "assumes", "rate")
_HEADINGS = {"title": "method", "state": "state / d"}  # of the other columns, their name


def markdown_table() -> str:
    """All methods in Markdown, as in the documentation: what they cost and what they promise, as wide as a page."""
    return _table(_COSTS) + "\n" + _table(_PROMISES)


def _table(columns: Sequence[str]) -> str:
    lines = [f"| {' | '.join(_HEADINGS.get(key, key) for key in columns)} |", f"|{'---|' * len(columns)}"]
    for name in registry.methods.names():
        facts = about(name)
        cells = [f"`{facts[key]}`" if key == "name" else str(facts[key]).replace("|", "\\|") for key in columns]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
