"""`gossamer join`: one client of a run whose members come and go."""

import argparse
import logging
import signal
import sys
import time
from pathlib import Path

from gossamer.cli.launching.rank import prepared
from gossamer.cli.lines import stop_signals
from gossamer.cli.output import counters
from gossamer.runtime.open.participant import Openness
from gossamer.runtime.open.specs import OpenRun
from gossamer.runtime.transport.curve import opened


def join(options: argparse.Namespace) -> int:
    """`gossamer join`."""
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is a peers file to read again
    how = Openness(options.patience, options.gone_after, options.start_timeout, options.apart)
    opener = opened(options.peers, options.key, listen=options.listen, start_timeout=options.start_timeout)
    run = OpenRun.of(prepared(options, options.device))
    folder, client = Path(options.out or "open"), opener.me.client
    via = None if options.via is None else opener.find(options.via)
    _log_to_stderr(quiet=options.quiet)
    begin = time.monotonic()
    with counters(options.quiet, {run.label: run.rounds}) as update, stop_signals(loud=False) as is_signalled:
        part = run.take_part(
            opener,
            folder,
            how=how,
            join=via,
            progress=(lambda t: None) if update is None else (lambda t: update(run.label, t)),
            should_leave=is_signalled,
        )
    member, seconds = part.member, time.monotonic() - begin
    ended = "left" if part.t < run.rounds else "finished"
    print(
        f"Client {client} {ended} after round {part.t:,} of {run.rounds:,}: {seconds:.1f} s, of which waiting "
        f"{part.waited:.1f} s; {member.bytes / 1e6:.3g} MB sent. Model: {folder / f'client{client}.safetensors'}"
    )
    return 0


def _log_to_stderr(*, quiet: bool) -> None:
    logger = logging.getLogger("gossamer")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
