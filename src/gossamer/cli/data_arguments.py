"""The arguments of `gossamer data` and its commands."""

from gossamer.cli.command import Parser, add_commands, command


@command("commands.data:list_data")
def list_(parser: Parser) -> None:
    """List the data sets, and the folders of their files."""
    parser.data_dir()
    parser.flag("--json", "print them as JSON")


@command("commands.data:fetch", "gossamer data fetch mnist", "gossamer data fetch a9a --data-dir data/")
def fetch(parser: Parser) -> None:
    """Download a data set into the user's cache, or into --data-dir; correct files are kept."""
    parser.add("name", "NAME", "a9a, mnist or fashion_mnist")
    parser.add("--data-dir", "DIR", "folder for the files (default: the cache)")
    parser.flag("-q --quiet", "show no progress")


@command("commands.data:check")
def check(parser: Parser) -> None:
    """Check the content of every known data file, plain or compressed.

    Exit code 1 means that a file is damaged.
    """
    parser.data_dir()
    parser.flag("--json", "print the files as JSON")


@command(
    "commands.data:describe",
    "gossamer data describe a9a --clients 10 --partition sorted --draw shares.png",
    "gossamer data describe digits --partition dirichlet:0.3 --json",
)
def describe(parser: Parser) -> None:
    """Show how a data set is divided: rows and label shares of each client, and their heterogeneity.

    The heterogeneity is the mean over clients of ||grad f_i - grad f||^2 at x = 0, of logistic regression for two
    classes and of softmax regression for more, without regulariser.
    """
    parser.add("data", "DATA", "a name, or the path of a LIBSVM file")
    parser.add("--clients", "N", "default: 10", type=int, default=10)
    parser.add("--partition", "RULE", "such as iid, dirichlet:0.5", default="sorted")
    parser.add("--seed", None, "seed of a random partition (default: 0)", type=int, default=0)
    parser.flag("--all-rows", "keep all rows, so that clients may hold different numbers")
    parser.add("--draw", "FILE", "save a picture (.png, .pdf, .svg)")
    parser.data_dir()
    parser.flag("--json", "print it as JSON")


@command(
    None,
    "gossamer data list",
    "gossamer data fetch mnist",
    "gossamer data check --data-dir data/",
    "gossamer data describe a9a --clients 10 --partition sorted --draw shares.png",
)
def data(parser: Parser) -> None:
    """List, fetch and check data sets, and show how they are divided among clients."""
    add_commands(parser, (list_, fetch, check, describe))
