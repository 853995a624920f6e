"""What the commands of open runs take. Imports nothing heavy."""

from gossamer.cli.command import Parser, command


@command(
    "launching.join:join",
    "gossamer join my.toml --peers peers.toml --key keys/key.secret",
    "gossamer join my.toml --peers peers.toml --key keys/key.secret --via alpha --patience 2",
)
def join(parser: Parser) -> None:
    """Be one client of a run whose members come and go, over an untrusted network.

    Start it on every host. Which client it is follows from its key, which is in the peers file with its address. The
    run begins when the neighbours in the peers file are there. With --via it takes the model of a neighbour that runs
    already. SIGTERM or Ctrl-C makes it leave: a neighbour takes over its part of the gradient tracker. If it is killed,
    the others go on without it. SIGHUP reads the peers file again.
    """
    _add_spec(parser)
    parser.add("--peers", "FILE", "peers file with the address and public key of every client", required=True)
    parser.add("--key", "FILE", "secret key of this client, made by `gossamer keygen`", required=True)
    parser.add("--via", "NAME", "join with the model of this neighbour (name or address); of any, if it is silent")
    parser.add("--patience", "S", "seconds that a step waits for late neighbours (default: until gone)", type=float)
    gone = "seconds of silence after which a neighbour is gone (default: 30)"
    parser.add("--gone-after", "S", gone, type=float, default=30.0)
    start = "seconds for the first neighbours to appear (default: 300)"
    parser.add("--start-timeout", "S", start, type=float, default=300.0)
    apart = "where the graph falls apart: continue, or wait until it is whole again (default: continue)"
    parser.add("--apart", "WHAT", apart, choices=("continue", "wait"), default="continue")
    parser.add("--listen", "HOST:PORT", "where to listen, if not at the address in the peers file")
    parser.add("--out", "DIR", "folder for the model and the history (default: open)")


@command(
    "launching.replay:replay",
    "gossamer replay my.toml --history open",
    "gossamer replay my.toml --history events.toml",
)
def replay(parser: Parser) -> None:
    """Compute an open run again in one process, from the histories that its clients recorded.

    The models are the same bit for bit in float64 on one kind of processor, and it says so where a client kept its
    model. The history may also be a TOML file of events that never happened: who is lost, leaves, joins or is frozen,
    and which links are down, in units of a usual round.
    """
    _add_spec(parser)
    parser.add("--history", "PATH", "folder with client*.history, or a TOML file of events", required=True)
    parser.flag("--json", "print JSON")


def _add_spec(parser: Parser) -> None:
    parser.add("spec", "SPEC", "a TOML file with one method and one seed")
    parser.data_dir()
    parser.add("--device", None, "cpu, cuda, cuda:1, ... (default: the spec's, else cpu)")
    parser.flag("-q --quiet", "show no progress")
