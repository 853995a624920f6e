"""Arguments of `gossamer reproduce`."""

from gossamer.cli.arguments.base import DATA_DIR, Parser, command

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
    """Run the paper's experiments again, draw its figures, and judge its claims one by one.

    fig1 to fig5 are the paper's figures, rates the rates of its tables and theorems, all is everything. What the folder
    holds already is not run again, and what was stopped goes on. A claim that does not hold is a result like any other:
    the exit code is 0. Two are Gossamer's own: exactness, which methods find the exact minimiser and where the others
    stop; and theory, BEER with certified steps, held against each inequality of its proof at every round. For these,
    exit code 1 means that something does not hold.
    """
    parser.add_argument("what", metavar="WHAT", choices=WHAT, help=", ".join(WHAT))
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        help="where results go (default: reproduced; begun with --rounds; rehearsed with --quick; proofs for theory); "
        "for exactness, a CSV file",
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="runs of each method (default: 3; 30 for theory)")
    parser.add_argument(
        "--as-published", action="store_true", help="as the published experiments were run, where they leave the text"
    )
    parser.add_argument("--rounds", type=int, metavar="R", help="cap the rounds per run; no verdicts are given")
    parser.add_argument("--quick", action="store_true", help="rehearse everything on embedded data, without verdicts")
    parser.add_argument("--data-dir", metavar="DIR", help=DATA_DIR)
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ... (default: cpu)")
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")
