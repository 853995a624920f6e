"""A lock on a folder: one process at a time writes to it, and whoever is refused is told who holds it."""

import contextlib
import errno
import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from gossamer.errors import InputError, writing

logger = logging.getLogger(__name__)

_NAME = ".gossamer-lock"
_held: set[tuple[int, int, Path]] = set()  # by which process and thread
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextlib.contextmanager
def alone_in(folder: Path, *, wait: bool = False, reenter: bool = False) -> Iterator[int | None]:
    """Hold the lock of a folder, or raise an InputError that names the process that holds it.

    The kernel releases the lock when its holder ends, however that happens. A child process that inherits the file
    descriptor that this gives keeps the lock until it ends, too. Where there are no file locks (Windows, some network
    file systems) nothing is locked, and there is no descriptor.

    Args:
        folder: An existing folder.
        wait: Wait until the lock is free instead of raising.
        reenter: Go on without a lock of its own where this thread holds it already.
    """
    place = (os.getpid(), threading.get_ident(), folder.resolve())
    handle = None if reenter and place in _held else _acquire(folder / _NAME, wait)
    if handle is None:
        yield None
        return
    _held.add(place)
    try:
        with contextlib.suppress(OSError):  # on a full disk the lock holds all the same
            os.ftruncate(handle, 0)
            os.write(handle, json.dumps(_holder()).encode())
        yield handle
    finally:
        _held.discard(place)
        with contextlib.suppress(OSError):
            (folder / _NAME).unlink()
        os.close(handle)


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
