"""Downloads from a local server that closes connections early, announces wrong lengths, and serves wrong bytes."""

import contextlib
import errno
import hashlib
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import gossamer as gs
from gossamer.errors import RunError
from gossamer.problems.data import datasets, download
from gossamer.problems.data.download import fetch, showing
from gossamer.problems.data.sources import FILES, File

CONTENT = bytes(range(256)) * 1200
SHA = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves CONTENT under any name, in the way that the first part of the path says."""

    seen: list[tuple[str, str | None]]
    cut = len(CONTENT) // 3


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        way = self.path.split("/")[1]
        self.server.seen.append((way, asked))
        begin = int(asked.split("=")[1].rstrip("-")) if asked and way not in ("noresume",) else 0
        body = CONTENT[begin:]
        if way == "missing":
            self.send_error(404)
            return
        if begin >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if begin else 200)
        length = len(body)
        if way == "wrong":
            body = b"x" * length
        elif way == "short":
            length = len(body) // 2
        elif way == "long":
            length = len(body) + 1000
        if way != "unknown":
            self.send_header("Content-Length", str(length))
        self.end_headers()
        if way in ("cut", "noresume") and (not asked or way == "noresume"):
            body = body[: self.server.cut]
        with contextlib.suppress(OSError):  # the client may have left
            self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(("127.0.0.1", 0), Handler)
    made.seen = []
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOSSAMER_OFFLINE", raising=False)


def file_at(server: Server, *ways: str) -> File:
    return File("thing", SHA, tuple(f"http://127.0.0.1:{server.server_port}/{way}" for way in ways))


def test_fetched_whole_with_progress(server: Server, tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    with showing(lambda *seen: told.append(seen)):
        path = fetch(file_at(server, "good"), tmp_path / "new" / "folder")
    assert path.read_bytes() == CONTENT
    assert [item.name for item in path.parent.iterdir()] == ["thing"], "nothing else is left"
    assert told[-1] == ("thing", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    heard = len(told)
    fetch(file_at(server, "unknown"), tmp_path / "other")
    assert len(told) == heard, "nobody is told after"


def test_a_cut_off_try_is_resumed(server: Server, tmp_path: Path) -> None:
    with pytest.raises(gs.DataError, match=r"closed the connection with \d+ bytes missing"):
        fetch(file_at(server, "cut"), tmp_path)
    assert not (tmp_path / "thing").exists()
    path = fetch(file_at(server, "cut"), tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.seen == [("cut", None), ("cut", f"bytes={Server.cut}-")]


def test_the_next_source_goes_on_where_one_broke_off(server: Server, tmp_path: Path) -> None:
    path = fetch(file_at(server, "missing", "cut", "good"), tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.seen[-1] == ("good", f"bytes={Server.cut}-")


def test_a_server_that_cannot_resume_starts_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / ".thing.part").write_bytes(b"y" * 100)
    with pytest.raises(gs.DataError, match="closed the connection"):
        fetch(file_at(server, "noresume"), tmp_path)
    assert (tmp_path / ".thing.part").stat().st_size == Server.cut
    (tmp_path / ".thing.part").write_bytes(CONTENT + b"too much")
    assert fetch(file_at(server, "good"), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("wrong", "served a file whose SHA-256 is not the original's"),
        ("short", "served a file whose SHA-256 is not the original's"),
        ("long", "closed the connection with 1000 bytes missing"),
        ("missing", "answered 404 Not Found"),
    ],
)
def test_a_server_that_lies(server: Server, tmp_path: Path, way: str, said: str) -> None:
    (tmp_path / "thing").write_bytes(b"the old file")
    with pytest.raises(gs.DataError, match=f"'thing' could not be fetched: .*{said}") as error:
        fetch(file_at(server, way), tmp_path)
    assert "\n" not in str(error.value)
    assert (tmp_path / "thing").read_bytes() == b"the old file"
    assert fetch(file_at(server, way, "good"), tmp_path).read_bytes() == CONTENT, "another source has it"


def test_wrong_bytes_do_not_poison_the_next_try(server: Server, tmp_path: Path) -> None:
    (tmp_path / ".thing.part").write_bytes(b"z" * 5000)
    with pytest.raises(gs.DataError, match="SHA-256"):
        fetch(file_at(server, "good"), tmp_path)
    assert fetch(file_at(server, "good"), tmp_path).read_bytes() == CONTENT


def test_no_network(tmp_path: Path) -> None:
    with pytest.raises(gs.DataError, match=r"http://127.0.0.1:9/thing could not be reached \(Connection refused\)"):
        fetch(File("thing", SHA, ("http://127.0.0.1:9",)), tmp_path)
    with pytest.raises(gs.DataError, match="could not be reached"):
        fetch(File("thing", SHA, ("nonsense://x",)), tmp_path)


def test_no_room(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "thing").write_bytes(b"the old file")
    monkeypatch.setattr(download, "_receive", full)
    with pytest.raises(RunError, match=r"'thing' cannot be written to .*: No space left on device."):
        fetch(file_at(server, "good"), tmp_path)
    assert (tmp_path / "thing").read_bytes() == b"the old file"


def test_no_permission(server: Server, tmp_path: Path) -> None:
    (tmp_path / "occupied").write_text("a file where a folder should be")
    with pytest.raises(gs.DataError, match=r"cannot be written to .*occupied"):
        fetch(file_at(server, "good"), tmp_path / "occupied")


def test_two_at_once_do_not_meet(server: Server, tmp_path: Path) -> None:
    """Each in a process of its own; the second waits, and finds the file there."""
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = int(fetch(file_at(server, "good"), tmp_path).read_bytes() != CONTENT)
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
    assert len(server.seen) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["thing"]


def test_nothing_is_left_of_a_try_that_got_nothing(tmp_path: Path) -> None:
    with pytest.raises(gs.DataError):
        fetch(File("thing", SHA, ("http://127.0.0.1:9",)), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_offline(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSAMER_OFFLINE", "1")
    with pytest.raises(gs.DataError, match=r"'thing' cannot be fetched: \$GOSSAMER_OFFLINE forbids it"):
        fetch(file_at(server, "good"), tmp_path)
    assert not server.seen


def test_a_server_without_end(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_MOST_BYTES", 1000)
    with pytest.raises(gs.DataError, match=r"could not be reached|sent more"):
        fetch(file_at(server, "unknown"), tmp_path)
    assert not (tmp_path / "thing").exists()


def test_missing_files_are_fetched_into_the_cache(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = b"+1 1:1\n-1 2:1\n" * 5
    digest = hashlib.sha256(rows).hexdigest()
    monkeypatch.setitem(globals(), "CONTENT", rows)
    source = (f"http://127.0.0.1:{server.server_port}/good",)
    monkeypatch.setitem(FILES, "a9a", (File("a9a", digest, source), File("a9a.t", digest, source)))
    monkeypatch.delenv("GOSSAMER_OFFLINE", raising=False)
    monkeypatch.delenv("GOSSAMER_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = datasets.load("a9a")
    assert data.features.shape == (10, 2)
    assert len(server.seen) == 2
    datasets.load("a9a")
    assert len(server.seen) == 2, "what is there is not fetched again"
    monkeypatch.setenv("GOSSAMER_OFFLINE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    with pytest.raises(gs.DataError, match=r"'a9a' was not found in .*empty.*GOSSAMER_OFFLINE.* Point `data_dir`"):
        datasets.load("a9a")
