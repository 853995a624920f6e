"""Arguments of `gossamer theory`."""

from gossamer.cli.arguments.base import DATA_DIR, Parser, command


@command(
    "theory",
    "gossamer.cli.commands.theory:theory",
    "gossamer theory",
    "gossamer theory --graph grid:2,5 --weights fdla --compressor gsgd:5 --problem a9a --data-dir data/",
    "gossamer theory --problem quadratic --compressor top_k:0.1 --json | jq .certified",
    "gossamer theory --check runs/my                   a recorded run against its theorem",
)
def theory(parser: Parser) -> None:
    """Show what theory says of BEER before a run: its constants, proven and practical steps, rounds and bits.

    alpha is the compressor's, rho and C the network's, L and mu the problem's. Certified steps are the largest that the
    paper's proof allows for this very network, checked in exact arithmetic; the theorem's are those of its absolute
    constants; practical ones are those of the formula of `gossamer.auto`, which is not proven. Rounds and bits are
    what the proof guarantees with full gradients from x0; runs are far faster.

    --check holds a recorded run against the proof instead: the lemma's recursions and the theorems' bounds, at every
    round, with a picture of both sides. The run must have been recorded with `omegas = true` and `eval_every = 1`. Exit
    code 1 means that something does not hold.
    """
    parser.add_argument("--check", metavar="RUN", help="a record, or a folder of records with `omegas = true`")
    parser.add_argument("-o", "--output", metavar="FILE", help="the picture of --check (default: beside the record)")
    parser.add_argument("--graph", metavar="GRAPH", help="such as ring, grid:2,5 (default: ring)")
    parser.add_argument("--clients", type=int, metavar="N", help="default: 10")
    parser.add_argument("--weights", metavar="RULE", help="default: metropolis")
    parser.add_argument("--compressor", metavar="C", help="default: gsgd:5")
    parser.add_argument(
        "--problem",
        metavar="P",
        help="a data set, or an objective such as quadratic, sine_pl (default: breast_cancer)",
    )
    parser.add_argument(
        "--epsilon", type=float, metavar="E", help="target of the gradient norm (default: a tenth of that at x0)"
    )
    parser.add_argument("--data-dir", metavar="DIR", help=DATA_DIR)
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
