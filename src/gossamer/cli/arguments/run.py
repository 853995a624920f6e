"""Arguments of `gossamer demo` and `gossamer run`."""

from gossamer.cli.command import Parser, add_experiment, add_output, command


@command("demo", "gossamer.cli.commands.run:demo", "gossamer demo", "gossamer demo -o talk/ --json")
def demo(parser: Parser) -> None:
    """Compare BEER, CHOCO-SGD, DSGD and D2 on real data that needs no download.

    Ten clients on a ring share a medical data set sorted by label, so that all but one have tumours of one kind
    only. Prints a table, and saves the records and a figure.
    """
    add_output(parser, "gossamer-demo")


@command(
    "run",
    "gossamer.cli.commands.run:run",
    "gossamer run my.toml",
    "gossamer run figure1 --data-dir data/ -o fig1/",
    "gossamer run my.toml --resume                     after Ctrl-C or a crash",
    "gossamer run my.toml --device cuda --json > result.json",
)
def run(parser: Parser) -> None:
    """Run the experiment that a spec file describes.

    Prints a table of results, and saves one record per method and seed (JSON lines), a figure, and the spec itself.
    Exit code 1 means that a run diverged; its record is kept up to that round. --resume continues a run that was
    stopped by Ctrl-C, SIGTERM or a crash.
    """
    add_experiment(parser, "cpu, cuda, cuda:1, ...", "one per minute")
