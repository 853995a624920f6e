"""How a program ends while it still has neighbours: it takes leave of them, says what went wrong, and never aborts.

A thread that waits inside gloo while the interpreter is torn down ends the program with `terminate called without an
active exception`. So the threads of all links have ended before, in every case; where they cannot be ended, the process
ends without the interpreter's last steps.
"""

import atexit
import contextlib
import logging
import os
import sys
from collections.abc import Callable

from gossamer.errors import GossamerError
from gossamer.runtime.processes.contract import Leaving
from gossamer.runtime.processes.ranks import leave_all
from gossamer.runtime.transport.gloo import listening

_failures: list[BaseException] = []


def close_at_exit(client: Leaving) -> Callable[[], None]:
    """Close the client at the end of the program, if it is still open then; what this gives takes that back.

    The client is kept until then: its neighbours wait for its goodbye, whether or not its optimiser still exists.
    """

    def leave() -> None:
        if client.is_closed:
            return
        error = getattr(sys, "last_value", None)
        try:
            if error is not None:
                client.give_up(error)
            else:
                client.close()
        except (GossamerError, RuntimeError, ValueError) as failure:  # torch's, where the group is gone already
            _failures.append(failure)
            sys.excepthook(type(failure), failure, failure.__traceback__)

    atexit.register(leave)
    return lambda: atexit.unregister(leave)


@atexit.register  # while gossamer is imported: after whatever a program has registered itself
def _end() -> None:
    for links in listening():
        links.abort()
    if not _failures and not listening():
        with contextlib.suppress(RuntimeError, ValueError):  # torch's, where the program has done so itself
            leave_all()
        return
    with contextlib.suppress(OSError, ValueError):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(1)
