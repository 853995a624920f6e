"""Bytes to and from neighbours."""

from gossamer.registry import transports
from gossamer.runtime.transport.base import Opening, Transport


@transports.register("gloo")
def open_gloo(opening: Opening) -> Transport:
    """TCP between processes, by torch's gloo."""
    from gossamer.runtime.transport.gloo import GlooTransport

    return GlooTransport(opening)
