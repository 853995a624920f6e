"""Arguments of `gossamer methods`."""

from gossamer.cli.command import Parser, command


@command(
    "methods",
    "gossamer.cli.commands.methods:methods",
    "gossamer methods",
    "gossamer methods beer",
    "gossamer methods --json | jq -r '.[].name'",
)
def methods(parser: Parser) -> None:
    """List the methods with their costs per round and their rates; with a NAME, show one method in full.

    Costs per round are messages, exchanges (in sequence, so that latency multiplies them) and minibatch gradients. The
    state is in multiples of the d numbers of the model; m is the number of data rows per client. Compressors:
    contractive, unbiased, any, or none.
    """
    parser.add_argument("name", metavar="NAME", nargs="?", help="show one method, with its equations")
    parser.add_argument("--json", action="store_true", help="print them as JSON")
