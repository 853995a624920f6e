"""Arguments of `gossamer methods`, `gossamer compressors` and `gossamer compress`."""

from gossamer.cli.arguments.base import Parser, command


@command(
    "methods",
    "gossamer.cli.commands.components:methods",
    "gossamer methods",
    "gossamer methods beer",
    "gossamer methods --json | jq -r '.[].name'",
)
def methods(parser: Parser) -> None:
    """List the methods, with what a round costs and what their theory says; with a NAME, show one of them in full.

    Costs per round: messages, exchanges (they follow one another, so latency multiplies them) and minibatch gradients.
    The state is in multiples of the model's d numbers; m is a client's rows of data. Compressors: contractive ones,
    unbiased ones, both (any), or none.
    """
    parser.add_argument("name", metavar="NAME", nargs="?", help="show one method, with its equations")
    parser.add_argument("--json", action="store_true", help="print them as JSON")


@command(
    "compressors",
    "gossamer.cli.commands.components:compressors",
    "gossamer compressors",
    "gossamer compressors --dimension 1000000",
    "gossamer compressors --json | jq -r '.[].name'",
)
def compressors(parser: Parser) -> None:
    """List the compressors with their constants.

    alpha: E||C(x) - x||^2 <= (1 - alpha) ||x||^2. omega, of unbiased ones: E||C(x) - x||^2 <= omega ||x||^2. Bits are
    those of a fixed-width packet with one float32 message, header included. A spec file and `gossamer compress` take
    the examples as shown.
    """
    parser.add_argument("--dimension", type=int, default=124, metavar="D", help="coordinates (default: 124)")
    parser.add_argument("--json", action="store_true", help="print them as JSON")


@command(
    "compress",
    "gossamer.cli.commands.components:compress",
    "gossamer compress gradient.npy --compressor gsgd:5",
    "gossamer compress gradient.npy --compressor blockwise:gsgd:5,256 --json",
    "seq 1 1000 | gossamer compress - --compressor top_k:0.01",
)
def compress(parser: Parser) -> None:
    """Measure one compressor on a vector of your own.

    Shows the relative error beside the bound that alpha (or omega) promises, the bits of a packet under each codec, and
    the entropy of the symbols. Errors of random compressors are means over 20 seeds.
    """
    parser.add_argument("file", metavar="FILE", help="a vector: .npy, or text with one number per line; - for a pipe")
    parser.add_argument("--compressor", required=True, metavar="C", help="such as gsgd:5, top_k:10, scaled:qsgd:16")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"], help="default: float32")
    parser.add_argument("--seed", type=int, default=0, help="of random compressors (default: 0)")
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
