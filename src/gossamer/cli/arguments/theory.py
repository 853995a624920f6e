"""Arguments of `gossamer theory`."""

from gossamer.cli.command import DATA_DIR, Parser, command


@command(
    "theory",
    "gossamer.cli.commands.theory:theory",
    "gossamer theory",
    "gossamer theory --graph grid:2,5 --weights fdla --compressor gsgd:5 --problem a9a --data-dir data/",
    "gossamer theory --problem quadratic --compressor top_k:0.1 --json | jq .certified",
    "gossamer theory --check runs/my                   compare a recorded run with its theorem",
)
def theory(parser: Parser) -> None:
    """Show what theory says about BEER before a run: constants, proven and practical step sizes, rounds and bits.

    alpha belongs to the compressor, rho and C to the network, L and mu to the problem. Certified steps are the largest
    that the paper's proof allows for this network, checked in exact arithmetic. The theorem's steps follow from its
    absolute constants. Practical steps come from the formula of `gossamer.auto_steps`, which is not proven. Rounds and
    bits are guarantees of the proof with full gradients from x0; actual runs are far faster.

    --check compares a recorded run with the proof instead: the lemma's recursions and the theorems' bounds at every
    round, with a picture of both sides. The run must have been recorded with `measures = ["omegas"]` and
    `eval_every = 1`. Exit code 1 means that something does not hold.
    """
    parser.add_argument("--check", metavar="RUN", help='a record, or a folder of records with `measures = ["omegas"]`')
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
        "--epsilon", type=float, metavar="E", help="target gradient norm (default: a tenth of the norm at x0)"
    )
    parser.add_argument("--data-dir", metavar="DIR", help=DATA_DIR)
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
