"""Texts: files and strings, and those that come with Python."""

import hashlib
import os
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gossamer.errors import DataError, InputError

Source = str | bytes | os.PathLike[str] | Mapping[str, str | bytes]
"""What a text may be given as."""
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


@dataclass(frozen=True)
class Text:
    """A text of one or several topics."""

    name: str
    topics: dict[str, bytes]

    @property
    def length(self) -> int:
        """In bytes."""
        return sum(map(len, self.topics.values()))

    @property
    def sha256(self) -> str:
        """A checksum of all topics, with their names."""
        digest = hashlib.sha256()
        for name, content in self.topics.items():
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        return digest.hexdigest()


def read_text(source: Source) -> Text:
    """The text "topics" or "stdlib", a file, a string that is the text itself, bytes, or texts by topic."""
    if isinstance(source, Mapping):
        for name, content in source.items():
            if not isinstance(name, str) or not isinstance(content, str | bytes):
                raise InputError(f"`text` must map topics to strings or bytes, got {name!r}: {type(content).__name__}.")
        return Text("mapping", {name: _bytes(content) for name, content in source.items()})
    if isinstance(source, str) and source in ("topics", "stdlib"):
        return Text(source, _topics() if source == "topics" else _stdlib())
    if isinstance(source, bytes) or (isinstance(source, str) and "\n" in source):
        return Text("given", {"": _bytes(source)})
    if not isinstance(source, str | os.PathLike):
        raise InputError(f"`text` must be a file, a string, bytes or a mapping of topics, got {type(source).__name__}.")
    try:
        return Text(Path(source).name, {"": Path(source).read_bytes()})
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"The text {str(source)[:80]!r} cannot be read: {reason}; name a file, or 'topics' or 'stdlib'."
        ) from None


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def _topics() -> dict[str, bytes]:
    """The documentation that `help("if")` shows."""
    from pydoc_data.topics import topics  # half a megabyte

    return {name: topics[name].encode() for name in sorted(topics)}


def _stdlib() -> dict[str, bytes]:
    """The source of Python's standard library, without its tests; a topic is a file."""
    folder = Path(sysconfig.get_path("stdlib"))
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.py"))
    chosen = [name for name in names if not _LEFT_OUT & set(name.split("/"))]
    if not chosen:
        raise DataError(f"The standard library in '{folder}' has no source files; use text = 'topics'.")
    return {name: (folder / name).read_bytes() for name in chosen}
