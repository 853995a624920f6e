"""The lock on a folder: one holder, who is named, and who takes it along however it ends."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gossamer.errors import InputError
from gossamer.files import alone_in

HOLD = """
import sys, time
from pathlib import Path
from gossamer.files import alone_in
with alone_in(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_holder_is_named(tmp_path: Path) -> None:
    with alone_in(tmp_path), pytest.raises(InputError) as caught, alone_in(tmp_path):
        pytest.fail("two hold it")
    assert str(caught.value).startswith(f"'{tmp_path}' is in use by process {os.getpid()} on {socket.gethostname()} ")
    assert time.strftime("since %Y-%m-%d") in str(caught.value)
    with alone_in(tmp_path):
        assert list(tmp_path.iterdir()) != []
    assert list(tmp_path.iterdir()) == [], "nothing stays behind"


def test_the_lock_goes_with_its_holder(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=f"in use by process {process.pid} "), alone_in(tmp_path):
            pytest.fail("two hold it")
        process.send_signal(signal.SIGKILL)
        process.wait()
        with alone_in(tmp_path):
            pass
    finally:
        process.kill()
        process.communicate()
    assert list(tmp_path.iterdir()) == []


def test_those_who_wait_get_it_one_after_another(tmp_path: Path) -> None:
    """The file is removed by each holder, and made again by the next: at no time do two hold the lock."""
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(50):
            with alone_in(tmp_path, wait=True):
                inside += 1
                most = max(most, inside)
                time.sleep(0.0005)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
