"""Files on the disk: written as a whole or not at all, and folders that one process at a time writes to."""

import contextlib
import csv
import errno
import io
import json
import logging
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gossamer.errors import InputError, RunError

logger = logging.getLogger(__name__)

_NAME = ".gossamer-lock"
_held: set[tuple[int, int, Path]] = set()  # by which process and thread
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """A file of a run is written inside; if that fails, the RunError names the file and the cause."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"The run could not be finished: '{os.fspath(path)}' cannot be written: {error.strerror or error}; free "
            "disk space or choose another folder."
        ) from None


@contextlib.contextmanager
def replacing(path: Path, *, alone: bool = True) -> Iterator[Path]:
    """Give a path beside `path` to write to, and move it into place at the end.

    A reader sees the old file or the new one, never a part. If the body fails, the old file stays.

    Args:
        path: The file to replace.
        alone: Whether no other process writes this file at the same time, such as in a locked folder.
    """
    beside = path.with_name(f".{path.name}.tmp" if alone else f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield beside
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace the content of a file."""
    with replacing(path, alone=False) as beside:
        beside.write_text(text, encoding="utf-8", newline="\n")


def write_csv(path: Path, rows: Sequence[Mapping[str, object]], columns: Sequence[str] = ("id",)) -> None:
    """Write a table of rows that have the same columns; `columns` are the headings if there is no row."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]) if rows else columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


@contextlib.contextmanager
def alone_in(folder: Path, *, wait: bool = False, reenter: bool = False) -> Iterator[int | None]:
    """Hold the lock of a folder, or raise an InputError that names the process that holds it.

    The kernel releases the lock when its holder ends, for whatever reason. A child process that inherits the yielded
    file descriptor keeps the lock until it ends as well. Where there are no file locks (Windows, some network file
    systems) nothing is locked, and None is yielded.

    Args:
        folder: An existing folder.
        wait: Wait until the lock is free instead of raising.
        reenter: Continue without a second lock if this thread already holds it.
    """
    place = (os.getpid(), threading.get_ident(), folder.resolve())
    handle = None if reenter and place in _held else _acquire(folder / _NAME, wait)
    if handle is None:
        yield None
        return
    _held.add(place)
    try:
        with contextlib.suppress(OSError):  # the lock holds even if the disk is full
            os.ftruncate(handle, 0)
            os.write(handle, json.dumps(_holder()).encode())
        yield handle
    finally:
        _held.discard(place)
        with contextlib.suppress(OSError):
            (folder / _NAME).unlink()
        os.close(handle)


def work_for_holder(folder: Path) -> None:
    """This thread works for the process that holds the lock of a folder: `alone_in(..., reenter=True)` then passes."""
    _held.add((os.getpid(), threading.get_ident(), folder.resolve()))


def _acquire(path: Path, wait: bool) -> int | None:
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    while True:
        with writing(path):
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last holder removes the file: a lock on a file that is no longer there locks nobody out.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), os.stat(path)):
                    return handle
        except BlockingIOError:
            holder = _describe(os.pread(handle, 4096, 0))
            os.close(handle)
            raise InputError(
                f"'{path.parent}' is in use by {holder}; wait until it ends, or choose another folder."
            ) from None
        except OSError as error:
            os.close(handle)
            if error.errno not in _NO_LOCKS:
                raise
            logger.warning("'%s' cannot be locked: %s.", path.parent, error.strerror)
            return None
        os.close(handle)


def _holder() -> dict[str, str | int]:
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return {"host": socket.gethostname(), "pid": os.getpid(), "since": since, "command": command[:200]}


def _describe(data: bytes) -> str:
    try:
        held = json.loads(data)
        return f"process {held['pid']} on {held['host']} since {held['since']} ({held['command']})"
    except (ValueError, KeyError, TypeError):  # it has only just been locked, or the disk is full
        return "another process"
