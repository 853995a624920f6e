"""Bytes to and from neighbours."""

import os
from typing import TYPE_CHECKING

from gossamer.errors import InputError
from gossamer.registry import transports
from gossamer.runtime.transport.base import Opening, Transport

if TYPE_CHECKING:
    from gossamer.runtime.transport.curve import CurveOpener


@transports.register("gloo")
def open_gloo(opening: Opening) -> Transport:
    """TCP between processes, by torch's gloo."""
    from gossamer.runtime.transport.gloo import GlooTransport

    return GlooTransport(opening)


@transports.register("curve")
def open_curve(opening: Opening) -> Transport:
    """ZeroMQ with CURVE; $GOSSAMER_PEERS is the peers file, and $GOSSAMER_KEY the file of the secret key."""
    return opener_from_environment()(opening)


def opener_from_environment() -> "CurveOpener":
    """What opens the transport 'curve' as the environment says."""
    from gossamer.runtime.transport.curve import shared

    peers, key = (os.environ.get(name) for name in ("GOSSAMER_PEERS", "GOSSAMER_KEY"))
    if not peers or not key:
        raise InputError(
            "The transport 'curve' needs $GOSSAMER_PEERS, a peers file, and $GOSSAMER_KEY, a secret key; or pass "
            "transport=gossamer.runtime.transport.curve.opened(peers, key)."
        )
    return shared(peers, key)
