"""How the CPU kernels are compiled: by numba, once per type, and kept in the user's cache folder."""

import contextlib
import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba import config as numba_config
from numba.core import event
from numba.core.compiler_lock import global_compiler_lock
from platformdirs import user_cache_dir

config: Any = numba_config


class _Clock(event.Listener):
    """Adds up the time that numba compiles."""

    def __init__(self) -> None:
        self.seconds, self._depth, self._since = 0.0, 0, 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count what happens inside."""
        self.on_start(None)
        try:
            yield
        finally:
            self.on_end(None)

    def on_start(self, event: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            self._since = time.perf_counter()

    def on_end(self, event: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.perf_counter() - self._since


clock = _Clock()
event.register("numba:compile", clock)  # type: ignore[no-untyped-call]


def seconds() -> float:
    """Seconds spent compiling so far; a run does not count them as its own."""
    return clock.seconds


def jit(**options: Any) -> Callable[[Any], Any]:
    """Compile when first called with new types. Kernels release the interpreter, and divide as IEEE says."""

    def compiled(function: Any) -> Any:
        settings = {"nogil": True, "error_model": "numpy", **options}
        with _kept() as is_kept:
            kernel: Any = numba.njit(cache=is_kept, **settings)(function)
        prepare = kernel._compile_for_args

        def one_at_a_time(*args: Any, **named: Any) -> Any:
            with global_compiler_lock:  # numba compiles under it, but reads kept kernels without
                return prepare(*args, **named)

        kernel._compile_for_args = one_at_a_time
        return kernel

    return compiled


@contextlib.contextmanager
def _kept() -> Iterator[bool]:
    """Have numba keep what it compiles in the user's cache folder; without a folder to write to, nowhere."""
    folder = _folder()
    if folder is None or config.CACHE_DIR:  # NUMBA_CACHE_DIR is the user's own wish
        yield bool(config.CACHE_DIR)
        return
    config.CACHE_DIR = str(folder)
    try:
        yield True
    finally:
        config.CACHE_DIR = ""


@cache
def _folder() -> Path | None:
    """A folder that can be written to, of its own for each version of the kernels: they are compiled into each other,
    and numba compares only the file of the outermost.
    """
    here = Path(__file__).parent
    sources = b"".join(path.read_bytes() for path in sorted(here.rglob("*.py")))
    folder = Path(user_cache_dir("gossamer", appauthor=False)) / f"kernels-{hashlib.sha256(sources).hexdigest()[:12]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        return None
    return folder
