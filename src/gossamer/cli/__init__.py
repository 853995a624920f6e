"""The command line: parse, call, print.

Results go to standard output, everything else to standard error. Exit codes: 0; 1 if a run diverged or failed; 2
for bad input, with a one-line message; 130 after Ctrl-C, 143 after SIGTERM.

Nothing heavy is imported here, so that `--help`, `--version` and error messages appear at once. `arguments` declares
what each command takes, and names the module that is imported when the command is called.
"""

import atexit
import gc
import signal
from collections.abc import Sequence

from gossamer.cli.arguments import parser
from gossamer.cli.command import call
from gossamer.cli.lines import complain, mend_streams, show_warnings_as_lines, stop_request
from gossamer.errors import NO_ROOM, GossamerError, RunError, StoppedError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point of the `gossamer` command."""
    atexit.register(gc.freeze)  # the interpreter ends at once: else it looks through all modules for garbage first
    mend_streams()
    show_warnings_as_lines()
    try:
        return call(parser().parse_args(arguments))
    except StoppedError as error:
        return complain(error, 128 + (stop_request.signal or signal.SIGINT))
    except RunError as error:
        return complain(error, 1)
    except GossamerError as error:
        return complain(error, 2)
    except OSError as error:
        name = error.filename2 or error.filename  # a failed move names its target second
        where = f" '{name}'" if name else ""
        if error.errno in NO_ROOM:
            return complain(f"No space left on the disk to write{where or ' a file'}; free some and retry.", 1)
        return complain(f"Cannot write or read{where}: {error.strerror or error}.", 2)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not ("memory" in str(error) or "alloc" in str(error).lower()):
            raise
        return complain("There is not enough memory; try a smaller problem.", 1)
    except KeyboardInterrupt:
        return complain("Interrupted; measurements up to here are in the records.", 130)
