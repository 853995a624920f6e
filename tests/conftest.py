"""Fixtures shared by all tests."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

# Machines are slow at times, and that is no failure. CI tries the same cases every time; elsewhere they are new ones.
hypothesis.settings.register_profile(
    "house",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("house")

os.environ.setdefault("GOSSAMER_OFFLINE", "1")  # no test reaches for the network, but those with a server of their own

torch.set_num_threads(1)  # tests run side by side; single-threaded sums also make their numbers repeatable


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Where the real data sets lie: $GOSSAMER_DATA, or shared/data beside the checkout."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("GOSSAMER_DATA") or beside).absolute()
    if not (folder / "a9a" / "a9a.xz").is_file():
        reason = f"the real data sets are not in {folder}; point $GOSSAMER_DATA at them"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return folder


@pytest.fixture
def no_process_left(tmp_path: Path) -> Iterator[None]:
    """Kill, also when a test fails, whatever still runs in its folder."""
    yield
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cwd").resolve().is_relative_to(tmp_path) and int(entry.name) != os.getpid():
                os.kill(int(entry.name), signal.SIGKILL)
