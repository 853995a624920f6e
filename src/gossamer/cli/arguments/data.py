"""Arguments of `gossamer data list`, `fetch`, `check` and `describe`."""

from gossamer.cli.command import DATA_DIR, Parser, add_commands, command


@command("list", "gossamer.cli.commands.data:list_data")
def list_data(parser: Parser) -> None:
    """List the data sets, and the folders of their files."""
    parser.add_argument("--data-dir", metavar="DIR", help=DATA_DIR)
    parser.add_argument("--json", action="store_true", help="print them as JSON")


@command(
    "fetch", "gossamer.cli.commands.data:fetch", "gossamer data fetch mnist", "gossamer data fetch a9a --data-dir data/"
)
def fetch(parser: Parser) -> None:
    """Download a data set into the user's cache, or into --data-dir; correct files are kept."""
    parser.add_argument("name", metavar="NAME", help="a9a, mnist or fashion_mnist")
    parser.add_argument("--data-dir", metavar="DIR", help="folder for the files (default: the cache)")
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


@command("check", "gossamer.cli.commands.data:check")
def check(parser: Parser) -> None:
    """Check the content of every known data file, plain or compressed.

    Exit code 1 means that a file is damaged.
    """
    parser.add_argument("--data-dir", metavar="DIR", help=DATA_DIR)
    parser.add_argument("--json", action="store_true", help="print the files as JSON")


@command(
    "describe",
    "gossamer.cli.commands.data:describe",
    "gossamer data describe a9a --clients 10 --partition sorted --draw shares.png",
    "gossamer data describe digits --partition dirichlet:0.3 --json",
)
def describe(parser: Parser) -> None:
    """Show how a data set is divided: rows and label shares of each client, and their heterogeneity.

    The heterogeneity is the mean over clients of ||grad f_i - grad f||^2 at x = 0, of logistic regression for two
    classes and of softmax regression for more, without regulariser.
    """
    parser.add_argument("data", metavar="DATA", help="a name, or the path of a LIBSVM file")
    parser.add_argument("--clients", type=int, default=10, metavar="N", help="default: 10")
    parser.add_argument("--partition", default="sorted", metavar="RULE", help="such as iid, dirichlet:0.5")
    parser.add_argument("--seed", type=int, default=0, help="seed of a random partition (default: 0)")
    parser.add_argument(
        "--all-rows", action="store_true", help="keep all rows, so that clients may hold different numbers"
    )
    parser.add_argument("--draw", metavar="FILE", help="save a picture (.png, .pdf, .svg)")
    parser.add_argument("--data-dir", metavar="DIR", help=DATA_DIR)
    parser.add_argument("--json", action="store_true", help="print it as JSON")


@command(
    "data",
    None,
    "gossamer data list",
    "gossamer data fetch mnist",
    "gossamer data check --data-dir data/",
    "gossamer data describe a9a --clients 10 --partition sorted --draw shares.png",
)
def data(parser: Parser) -> None:
    """List, fetch and check data sets, and show how they are divided among clients."""
    add_commands(parser, (list_data, fetch, check, describe))
