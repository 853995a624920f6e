"""Arguments of `gossamer tune`."""

from gossamer.cli.command import DATA_DIR, Parser, command


@command(
    "tune",
    "gossamer.cli.commands.tune:tune_spec",
    "gossamer tune my.toml",
    "gossamer tune my.toml --method BEER --trials 100 --rounds 500 -o best.toml",
    "gossamer tune figure1 --data-dir data/ --json | jq '.methods[].best'",
)
def tune(parser: Parser) -> None:
    """Search for the lr and gamma of each method by short runs, and write the best ones into a copy of the spec.

    Starts with the steps of `lr = "auto"`. Optuna proposes others within a factor of 30, several of which are simulated
    at once. The best few then run for all rounds of the spec. The new spec keeps the comments of the old one; run it
    with `gossamer run`. Ctrl-C writes the best steps found so far.
    """
    parser.add_argument("spec", metavar="SPEC", help="a TOML file, or the name of a shipped spec such as figure1")
    parser.add_argument("-o", "--output", metavar="FILE", help="the new spec (default: SPEC-tuned.toml)")
    parser.add_argument(
        "--method", action="append", metavar="LABEL", help="a method to tune; may be repeated (default: all)"
    )
    parser.add_argument("--trials", type=int, default=40, metavar="N", help="candidates per method (default: 40)")
    parser.add_argument(
        "--rounds", type=int, metavar="R", help="rounds per trial (default: a fifth of the spec's, at least 50)"
    )
    parser.add_argument("--at-once", type=int, default=8, metavar="K", help="candidates simulated at once (default: 8)")
    parser.add_argument("--data-dir", metavar="DIR", help=DATA_DIR)
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ... (default: the spec's, else cpu)")
    parser.add_argument("--force", action="store_true", help="replace the output file")
    parser.add_argument("--json", action="store_true", help="print the results as one JSON object")
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")
