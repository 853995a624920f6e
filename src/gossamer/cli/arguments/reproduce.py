"""Arguments of `gossamer reproduce`."""

from gossamer.cli.command import DATA_DIR, Parser, command

WHAT = ("fig1", "fig2", "fig3", "fig4", "fig5", "rates", "all", "exactness", "theory")


@command(
    "reproduce",
    "gossamer.cli.commands.reproduce:reproduce",
    "gossamer reproduce fig1 --data-dir data/",
    "gossamer reproduce fig1 --as-published",
    "gossamer reproduce fig5 --device cuda",
    "gossamer reproduce all --quick                    a rehearsal, on embedded data",
    "gossamer reproduce all --json | jq '.claims[] | select(.verdict != \"holds\") | .says'",
    "gossamer reproduce exactness -o exactness.csv",
    "gossamer reproduce theory                         the proof of BEER on runs with certified steps",
)
def reproduce(parser: Parser) -> None:
    """Repeat the paper's experiments, draw its figures, and check its claims one by one.

    fig1 to fig5 are the paper's figures, rates the rates of its tables and theorems, all is everything. Finished
    runs in the folder are not repeated, and stopped ones are resumed. The exit code is 0 even if a claim does not hold.
    Two experiments are Gossamer's own: exactness (which methods find the exact minimiser, and where the others stop)
    and theory (BEER with certified steps, checked against each inequality of its proof at every round). For these, exit
    code 1 means that something does not hold.
    """
    parser.add_argument("what", metavar="EXPERIMENT", choices=WHAT, help=", ".join(WHAT))
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        help="where results go (default: reproduced; begun with --rounds; rehearsed with --quick; proofs for theory); "
        "for exactness, a CSV file",
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="runs per method (default: 3; 30 for theory)")
    parser.add_argument(
        "--as-published",
        action="store_true",
        help="use the settings of the published code where they differ from the text",
    )
    parser.add_argument("--rounds", type=int, metavar="R", help="cap the rounds per run; no verdicts are given")
    parser.add_argument("--quick", action="store_true", help="rehearse everything on embedded data, without verdicts")
    parser.add_argument("--data-dir", metavar="DIR", help=DATA_DIR)
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ... (default: cpu)")
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")
