"""Downloads of data files: resumed after an interruption, checked, and moved into place only when complete."""

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
from gossamer.files import alone_in
from gossamer.problems.data.sources import File

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int | None], None]
"""Called with the file's name, the bytes received so far, and the total, if the server announces it."""

_CHUNK_BYTES = 1 << 16
_TIMEOUT_SECONDS = 20.0  # without a byte
_MOST_BYTES = 1 << 30  # per file, so that a faulty server does not fill the disk
_progress: ContextVar[Progress | None] = ContextVar("progress", default=None)


@contextlib.contextmanager
def showing(progress: Progress) -> Iterator[None]:
    """Report the progress of every download inside to `progress`."""
    token = _progress.set(progress)
    try:
        yield
    finally:
        _progress.reset(token)


def fetch(file: File, folder: Path) -> Path:
    """Download the file into `folder` from the first source that serves it; an existing file stays until then."""
    if os.environ.get("GOSSAMER_OFFLINE"):
        raise DataError(f"The data file {file.name!r} cannot be fetched: $GOSSAMER_OFFLINE forbids it.")
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with alone_in(folder, wait=True):
            target = folder / file.name
            if target.is_file() and _sha256(target) == file.sha256:  # another process has fetched it meanwhile
                return target
            return _fetch(file, folder)
    except DataError:
        if is_new:
            with contextlib.suppress(OSError):  # it may hold a part that the next try resumes
                folder.rmdir()
        raise
    except OSError as error:
        kind = RunError if error.errno in NO_ROOM else DataError
        raise kind(f"The data file {file.name!r} cannot be written to '{folder}': {error.strerror or error}.") from None


def _fetch(file: File, folder: Path) -> Path:
    target, part = folder / file.name, folder / f".{file.name}.part"
    reasons = []
    try:
        for url in (f"{source}/{file.name}" for source in file.sources):
            logger.info("Fetching %s", url)
            try:
                _receive(url, part, file.name)
            except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno in (*NO_ROOM, errno.EACCES, errno.EROFS):
                    raise
                reasons.append(f"{url} {_reason(error)}")
                continue
            if _sha256(part) == file.sha256:
                os.replace(part, target)
                return target
            part.unlink()
            reasons.append(f"{url} served a file whose SHA-256 is not the original's")
    except OSError as error:
        if error.errno in NO_ROOM:
            part.unlink(missing_ok=True)
        raise
    raise DataError(f"The data file {file.name!r} could not be fetched: {'; '.join(reasons)}.")


def _receive(url: str, part: Path, name: str) -> None:
    """Download `url` into `part`, resuming from the bytes in it; an error if fewer arrive than the server announced."""
    received = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": f"gossamer/{__version__}"})
    if received:
        request.add_header("Range", f"bytes={received}-")
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not received:
            raise
        part.unlink()  # the part is longer than the file on the server
        _receive(url, part, name)
        return
    progress = _progress.get()
    with answer:
        resumed = answer.status == http.HTTPStatus.PARTIAL_CONTENT
        received = received if resumed else 0
        length = answer.headers.get("Content-Length", "")
        total = received + int(length) if length.isdigit() else None
        with part.open("ab" if resumed else "wb") as out:
            while chunk := answer.read(_CHUNK_BYTES):
                out.write(chunk)
                received += len(chunk)
                if received > _MOST_BYTES:
                    raise ValueError(f"sent more than {_MOST_BYTES >> 30} GiB")
                if progress is not None:
                    progress(name, received, total)
            out.flush()
            os.fsync(out.fileno())
    if total is not None and received < total:
        raise http.client.IncompleteRead(b"", total - received)


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"answered {error.code} {error.reason}"
    if isinstance(error, http.client.IncompleteRead):
        return f"closed the connection with {error.expected or 'some'} bytes missing (the next try resumes there)"
    reason = getattr(error, "reason", error)
    text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    return f"could not be reached ({text.rstrip('.')})"


def _sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
