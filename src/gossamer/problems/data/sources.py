"""Known data files: sources.toml has their checksums and download addresses."""

import tomllib
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class File:
    """A file that can be downloaded."""

    name: str
    sha256: str
    """Checksum of the file as served, which a download must match."""
    sources: tuple[str, ...]
    """The folders that serve it, the official one first."""
    unpacked_sha256: str | None = None
    """Checksum of its content, if the file is compressed."""

    @property
    def content_sha256(self) -> str:
        """Checksum of the uncompressed content."""
        return self.unpacked_sha256 or self.sha256


_TABLE = tomllib.loads(files("gossamer.problems.data").joinpath("sources.toml").read_text(encoding="utf-8"))
FILES: dict[str, tuple[File, ...]] = {
    name: tuple(File(**file, sources=tuple(entry["sources"])) for file in entry["files"])
    for name, entry in _TABLE.items()
}
"""By data set."""
