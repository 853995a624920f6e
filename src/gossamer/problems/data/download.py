"""Fetching data files: resumed where a try was cut off, checked, and moved into place only when whole and right."""

import contextlib
import errno
import hashlib
import http.client
import logging
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path

from gossamer._version import __version__
from gossamer.errors import NO_ROOM, DataError, RunError
from gossamer.lock import alone_in
from gossamer.problems.data.sources import File

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int | None], None]
"""Called with the file's name, the bytes had so far, and the bytes in all, if the server says."""

_PIECE = 1 << 16
_PATIENCE = 20.0  # seconds without a byte
_MOST_BYTES = 1 << 30  # of a file: a server that never ends does not fill the disk
_progress: ContextVar[Progress | None] = ContextVar("progress", default=None)


@contextlib.contextmanager
def showing(progress: Progress) -> Iterator[None]:
    """Whatever is fetched inside tells `progress` how far it is."""
    token = _progress.set(progress)
    try:
        yield
    finally:
        _progress.reset(token)


def fetch(file: File, folder: Path) -> Path:
    """The file in `folder`, from the first source that has it whole; what is there already stays until then."""
    if os.environ.get("GOSSAMER_OFFLINE"):
        raise DataError(f"The data file {file.name!r} cannot be fetched: $GOSSAMER_OFFLINE forbids it.")
    missing = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with alone_in(folder, wait=True):
            target = folder / file.name
            if target.is_file() and _sha256(target) == file.sha256:  # somebody else has fetched it meanwhile
                return target
            return _fetch(file, folder)
    except DataError:
        if missing:
            with contextlib.suppress(OSError):  # there may be a beginning in it, which the next try goes on from
                folder.rmdir()
        raise
    except OSError as error:
        kind = RunError if error.errno in NO_ROOM else DataError
        raise kind(f"The data file {file.name!r} cannot be written to '{folder}': {error.strerror or error}.") from None


def _fetch(file: File, folder: Path) -> Path:
    target, part = folder / file.name, folder / f".{file.name}.part"
    reasons = []
    try:
        for url in file.urls:
            logger.info("Fetching %s", url)
            try:
                _receive(url, part, file.name)
            except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno in (*NO_ROOM, errno.EACCES, errno.EROFS):
                    raise
                reasons.append(f"{url} {_why(error)}")
                continue
            if _sha256(part) == file.sha256:
                os.replace(part, target)
                return target
            part.unlink()
            reasons.append(f"{url} gave other bytes than the original (SHA-256)")
    except OSError as error:
        if error.errno in NO_ROOM:
            part.unlink(missing_ok=True)
        raise
    raise DataError(f"The data file {file.name!r} could not be fetched: {'; '.join(reasons)}.")


def _receive(url: str, part: Path, name: str) -> None:
    """All bytes of `url` into `part`, going on from what is there; an error if fewer came than were announced."""
    had = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": f"gossamer/{__version__}"})
    if had:
        request.add_header("Range", f"bytes={had}-")
    try:
        answer = urllib.request.urlopen(request, timeout=_PATIENCE)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not had:
            raise
        part.unlink()  # nothing is left to send: what is there is not what the server has
        _receive(url, part, name)
        return
    progress = _progress.get()
    with answer:
        resumed = answer.status == http.HTTPStatus.PARTIAL_CONTENT
        had = had if resumed else 0
        length = answer.headers.get("Content-Length", "")
        total = had + int(length) if length.isdigit() else None
        with part.open("ab" if resumed else "wb") as out:
            while piece := answer.read(_PIECE):
                out.write(piece)
                had += len(piece)
                if had > _MOST_BYTES:
                    raise ValueError(f"sent more than {_MOST_BYTES >> 30} GiB")
                if progress is not None:
                    progress(name, had, total)
            out.flush()
            os.fsync(out.fileno())
    if total is not None and had < total:
        raise http.client.IncompleteRead(b"", total - had)


def _why(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"answered {error.code} {error.reason}"
    if isinstance(error, http.client.IncompleteRead):
        return f"broke off with {error.expected or 'some'} bytes missing (the next try goes on from there)"
    reason = getattr(error, "reason", error)
    said = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    return f"could not be reached ({said.rstrip('.')})"


def _sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
