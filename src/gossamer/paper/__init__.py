"""The paper's experiments as spec files, shipped with the package."""

from importlib.resources import files
from pathlib import Path

from gossamer.errors import unknown

_FOLDER = Path(str(files(__name__))) / "specs"


def shipped_specs() -> list[str]:
    """The names of the specs that come with the package."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def shipped_spec(name: str) -> Path:
    """The file of a shipped spec."""
    if name not in shipped_specs():
        raise unknown("spec", name, shipped_specs())
    return _FOLDER / f"{name}.toml"


def spec_path(spec: str) -> Path:
    """A spec file by its path, or by its name if it is a shipped one; a file of that name comes first."""
    path = Path(spec)
    if path.is_file() or path.suffix or path.name != spec:
        return path
    return shipped_spec(spec)
