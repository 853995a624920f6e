"""Arguments of `gossamer report` and `gossamer compare`."""

from gossamer.cli.command import Parser, command


@command(
    "report",
    "gossamer.cli.commands.report:report",
    "gossamer report runs/figure1",
    "gossamer report runs/ -o talk.html",
    "gossamer report runs/figure1/BEER-seed0.jsonl --json | jq -r .page",
)
def report(parser: Parser) -> None:
    """Put all records below a folder on one HTML page.

    The page is self-contained. It shows curves that can be switched and zoomed, tables, graphs, settings and, if the
    folder is from `gossamer reproduce`, the verdicts on the paper's claims. Unreadable files are listed on standard
    error and on the page.
    """
    parser.add_argument("source", metavar="DIR", help="a folder with records in it or in its subfolders, or one record")
    parser.add_argument("-o", "--output", metavar="FILE", help="the page (default: report.html in that folder)")
    parser.add_argument("--force", action="store_true", help="replace a file that Gossamer did not write")
    parser.add_argument("--json", action="store_true", help="print where the page is and what is on it as JSON")


@command(
    "compare",
    "gossamer.cli.commands.report:compare",
    "gossamer compare runs/figure1",
    "gossamer compare runs/ring runs/grid --target 0.01",
    "gossamer compare BEER-seed0.jsonl DSGD-seed0.jsonl --metric accuracy --json | jq '.methods[].bits.mean'",
)
def compare(parser: Parser) -> None:
    """Compare methods by the rounds, bits and seconds they need.

    Each run is a record or a folder of records. For every method, shows the cost until the metric first reached the
    target (mean over seeds, and range) and the final values; `x` is the ratio to the best of the column.
    """
    parser.add_argument("runs", metavar="RUN", nargs="+", help="a record, or a folder with records")
    parser.add_argument(
        "--target", type=float, metavar="X", help="target value (default: the best value that every method reaches)"
    )
    parser.add_argument(
        "--metric", default="grad_norm", metavar="M", help="such as loss, accuracy (default: grad_norm)"
    )
    parser.add_argument("--json", action="store_true", help="print the comparison as one JSON object")
