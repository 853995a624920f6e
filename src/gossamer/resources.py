"""What the machine has: free memory."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch

_beside = 1


def share_memory(processes: int) -> None:
    """From now on, expect so many runs at the same time, each in its process."""
    global _beside  # noqa: PLW0603 (a fact about the process)
    _beside = processes


def free_memory(device: torch.device) -> int | None:
    """The bytes that are free on a device; None if that cannot be known."""
    if device.type == "cuda":
        return (
            int(torch.cuda.mem_get_info(device)[0])
            + torch.cuda.memory_reserved(device)
            - torch.cuda.memory_allocated(device)
        )
    if device.type != "cpu":
        return None
    known = [found // _beside for found in (_system(), *_groups()) if found is not None]
    return min(known, default=None)


def _system() -> int | None:
    """What the operating system could give, caches included."""
    for line in _text(Path("/proc/meminfo")).splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return 1024 * int(value.split()[0])
    names: Sequence[str] = ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES")
    for pages in names:
        try:
            return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, ValueError, OSError):  # another operating system
            continue
    return None


def _groups(root: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """What the limits of a container leave: its limit, less what it uses beside files that it could read again."""
    left = []
    for folder, limit, used, cache in (
        (root, "memory.max", "memory.current", "inactive_file"),
        (root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        most, now = _text(folder / limit).strip(), _text(folder / used).strip()
        if most.isdigit() and now.isdigit() and int(most) < 1 << 60:
            lines = (line.split() for line in _text(folder / "memory.stat").splitlines())
            again = next((int(line[1]) for line in lines if line[0] == cache), 0)
            left.append(max(0, int(most) - int(now) + again))
    return left


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def in_words(count: int) -> str:
    """Bytes as people say them."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count / 1e3:.3g} kB"
