"""Arguments of `gossamer compressors` and `gossamer compress`."""

from gossamer.cli.command import Parser, command


@command(
    "compressors",
    "gossamer.cli.commands.compressors:compressors",
    "gossamer compressors",
    "gossamer compressors --dimension 1000000",
    "gossamer compressors --json | jq -r '.[].name'",
)
def compressors(parser: Parser) -> None:
    """List the compressors with their constants.

    alpha: E||C(x) - x||^2 <= (1 - alpha) ||x||^2. omega, of unbiased ones: E||C(x) - x||^2 <= omega ||x||^2. Bits are
    those of a fixed-width packet with one float32 message and its header. The examples can be used in spec files and in
    `gossamer compress`.
    """
    parser.add_argument("--dimension", type=int, default=124, metavar="D", help="coordinates (default: 124)")
    parser.add_argument("--json", action="store_true", help="print them as JSON")


@command(
    "compress",
    "gossamer.cli.commands.compressors:compress",
    "gossamer compress gradient.npy --compressor gsgd:5",
    "gossamer compress gradient.npy --compressor blockwise:gsgd:5,256 --json",
    "seq 1 1000 | gossamer compress - --compressor top_k:0.01",
)
def compress(parser: Parser) -> None:
    """Measure one compressor on your vector.

    Shows the relative error and the bound from alpha (or omega), the bits of a packet under each codec, and
    the entropy of the symbols. Errors of random compressors are means over 20 seeds.
    """
    parser.add_argument(
        "file", metavar="FILE", help="a vector: .npy, or text with one number per line; - for standard input"
    )
    parser.add_argument("--compressor", required=True, metavar="C", help="such as gsgd:5, top_k:10, scaled:qsgd:16")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"], help="default: float32")
    parser.add_argument("--seed", type=int, default=0, help="seed of random compressors (default: 0)")
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
