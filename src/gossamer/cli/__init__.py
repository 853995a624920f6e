"""The command line: parse, call, print.

Results go to standard output, everything else to standard error. Exit codes: 0; 1 if a run diverged or could not be
finished; 2 for bad input, with one sentence; 130 after Ctrl-C, 143 after SIGTERM.
"""

import argparse
import inspect
import signal
from collections.abc import Sequence
from typing import Any, NoReturn

from gossamer._version import __version__
from gossamer.cli import components, data, experiments, network, reports, tuning
from gossamer.cli import launch as processes
from gossamer.cli import reproduce as claims
from gossamer.cli import theory as proofs
from gossamer.cli.output import complain, mend_streams, stop_request
from gossamer.errors import NO_ROOM, GossamerError, InputError, RunError, StoppedError

__all__ = ["main"]


class _Parser(argparse.ArgumentParser):
    """argparse, with mistakes in the same one-line form as all the others."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message[:1].upper()}{message[1:].rstrip('.')}; see `{self.prog} --help`.")


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point of the `gossamer` command."""
    mend_streams()
    try:
        options = _parser().parse_args(arguments)
        code: int = options.command(options)
        return code
    except StoppedError as error:
        return complain(error, 128 + (stop_request.signal or signal.SIGINT))
    except RunError as error:
        return complain(error, 1)
    except GossamerError as error:
        return complain(error, 2)
    except OSError as error:
        name = error.filename2 or error.filename  # of a file that was to be put in its place, the place
        where = f" '{name}'" if name else ""
        if error.errno in NO_ROOM:
            return complain(f"There is no room left on the disk to write{where or ' a file'}; make some and retry.", 1)
        return complain(f"Cannot write or read{where}: {error.strerror or error}.", 2)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not ("memory" in str(error) or "alloc" in str(error).lower()):
            raise
        return complain("There is not enough memory for this; ask for something smaller.", 1)
    except KeyboardInterrupt:
        return complain("Interrupted; what was measured is in the records, if any run had begun.", 130)


def _parser() -> _Parser:
    parser = _Parser(
        prog="gossamer",
        description="Decentralized training in a few bits: BEER and its kin, simulated or across processes.",
        epilog="Examples:\n"
        "  gossamer demo                                     BEER against three others, on embedded data\n"
        "  gossamer run figure1 --data-dir data/             figure 1 of the BEER paper, on your copy of a9a\n"
        "  gossamer run my.toml --json | jq '.methods[].grad_norm'\n"
        "  gossamer launch my.toml                           the same across real processes\n"
        "  gossamer tune my.toml                             find its step sizes by short runs\n"
        "  gossamer methods                                  what can be run, and what is known of it\n"
        "  gossamer methods beer                             one method's equations, costs and rate\n"
        "  gossamer reproduce all                            the paper's figures, and a verdict on every claim\n"
        "  gossamer report runs/                             one HTML page of all records in a folder\n"
        "  gossamer compare runs/mine runs/theirs            rounds, bits and seconds to a target\n"
        "  gossamer compressors                              what messages can be made of\n"
        "  gossamer compress x.npy --compressor gsgd:5       error and bits on a vector of your own\n"
        "  gossamer topology ring --clients 40               how well a graph mixes\n"
        "  gossamer data describe a9a --partition sorted     who holds what",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gossamer {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Parser)

    def add(name: str, function: Any, examples: str) -> argparse.ArgumentParser:
        about = inspect.getdoc(function) or ""
        command = commands.add_parser(
            name,
            help=about.split("\n")[0].rstrip("."),
            description=about,
            epilog=f"Examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(command=function)
        return command

    def add_output(command: argparse.ArgumentParser, default: str) -> None:
        command.add_argument(
            "-o", "--output", metavar="DIR", help=f"folder for records and figure (default: {default})"
        )
        command.add_argument("--json", action="store_true", help="print the results as one JSON object")
        command.add_argument("-q", "--quiet", action="store_true", help="no progress")

    demo = add("demo", experiments.demo, "  gossamer demo\n  gossamer demo -o talk/ --json")
    add_output(demo, "gossamer-demo")

    run = add(
        "run",
        experiments.run,
        "  gossamer run my.toml\n"
        "  gossamer run figure1 --data-dir data/ -o fig1/\n"
        "  gossamer run my.toml --resume                     after Ctrl-C, or a crash\n"
        "  gossamer run my.toml --device cuda --json > result.json",
    )
    _add_experiment(run, add_output, "cpu, cuda, cuda:1, ...", "one a minute")

    _add_launch(add, add_output)

    compressors = add(
        "compressors",
        components.compressors,
        "  gossamer compressors\n"
        "  gossamer compressors --dimension 1000000\n"
        "  gossamer compressors --json | jq -r '.[].name'",
    )
    compressors.add_argument("--dimension", type=int, default=124, metavar="D", help="coordinates (default: 124)")
    compressors.add_argument("--json", action="store_true", help="print them as JSON")

    compress = add(
        "compress",
        components.compress,
        "  gossamer compress gradient.npy --compressor gsgd:5\n"
        "  gossamer compress gradient.npy --compressor blockwise:gsgd:5,256 --json\n"
        "  seq 1 1000 | gossamer compress - --compressor top_k:0.01",
    )
    compress.add_argument("file", metavar="FILE", help="a vector: .npy, or text with one number a line; - for a pipe")
    compress.add_argument("--compressor", required=True, metavar="C", help="such as gsgd:5, top_k:10, scaled:qsgd:16")
    compress.add_argument("--dtype", default="float32", choices=["float32", "float64"], help="default: float32")
    compress.add_argument("--seed", type=int, default=0, help="of random compressors (default: 0)")
    compress.add_argument("--json", action="store_true", help="print the measurements as JSON")

    topology = add(
        "topology",
        network.topology,
        "  gossamer topology\n"
        "  gossamer topology ring --clients 40 --weights fdla\n"
        "  gossamer topology grid:8,5 --compare\n"
        "  gossamer topology erdos_renyi:p=0.2,seed=1 --clients 40 --weights fdla --draw graph.png\n"
        "  gossamer topology edge_list:my.txt --json | jq .rho",
    )
    topology.add_argument("graph", metavar="GRAPH", nargs="?", help="such as ring, grid:8,5, edge_list:FILE")
    topology.add_argument("--clients", type=int, metavar="N", help="how many, where the graph does not say")
    topology.add_argument("--weights", metavar="RULE", help="a rule, or a .csv or .npy file (default: metropolis)")
    topology.add_argument("--alpha", type=float, default=1.0, help="the compressor's, for gamma (default: 1, none)")
    topology.add_argument("--compare", action="store_true", help="tabulate every rule for weights")
    topology.add_argument("--draw", metavar="FILE", help="draw the graph, weights as widths (.png, .pdf, .svg)")
    topology.add_argument("--json", action="store_true", help="print the numbers as JSON")

    _add_data(add)
    _add_tune(add)
    _add_theory(add)
    _add_reproduce(add)
    _add_reports(add)

    methods = add(
        "methods",
        components.methods,
        "  gossamer methods\n  gossamer methods beer\n  gossamer methods --json | jq -r '.[].name'",
    )
    methods.add_argument("name", metavar="NAME", nargs="?", help="show one method, with its equations")
    methods.add_argument("--json", action="store_true", help="print them as JSON")
    return parser


def _add_experiment(command: argparse.ArgumentParser, add_output: Any, devices: str, checkpoints: str) -> None:
    """What `run` and `launch` have in common."""
    command.add_argument("spec", metavar="SPEC", help="a TOML file, or the name of a shipped spec such as figure1")
    add_output(command, "runs/ and the spec's file name")
    command.add_argument("--data-dir", metavar="DIR", help="where data files lie (default: $GOSSAMER_DATA, the cache)")
    command.add_argument("--device", help=f"{devices} (default: the spec's, else cpu)")
    command.add_argument(
        "--target", type=float, metavar="NORM", help="also show what was sent until this gradient norm"
    )
    command.add_argument("--force", action="store_true", help="replace what an earlier run left in the output folder")
    command.add_argument(
        "--resume", action="store_true", help="go on where an earlier run in the output folder stopped"
    )
    command.add_argument(
        "--checkpoint-every", type=int, metavar="K", help=f"rounds between checkpoints (default: {checkpoints})"
    )


def _add_launch(add: Any, add_output: Any) -> None:
    """`gossamer launch`."""
    launch = add(
        "launch",
        processes.launch,
        "  gossamer launch my.toml\n"
        "  gossamer launch my.toml --max-restarts 3 --checkpoint-every 100\n"
        "  gossamer launch my.toml --hosts alpha,beta,gamma:2\n"
        "  torchrun --nnodes 2 --nproc-per-node 4 --node-rank 0 --master-addr alpha -m gossamer launch my.toml",
    )
    _add_experiment(launch, add_output, "cpu, or cuda for one GPU a process, in turn", "after each tenth of the rounds")
    launch.add_argument("--max-restarts", type=int, metavar="N", help="begin again from the checkpoints when ranks die")
    launch.add_argument("--timeout", type=float, default=60.0, metavar="S", help="for a silent neighbour (default: 60)")
    launch.add_argument(
        "--transport", choices=["gloo", "nccl"], default="gloo", help="nccl: from GPU to GPU (default: gloo, over TCP)"
    )
    launch.add_argument("--tensorboard", metavar="DIR", help="write events of every rank there while it runs")
    launch.add_argument("--hosts", metavar="A,B:2", help="start on these hosts, with as many clients if so said")
    launch.add_argument("--rsh", default="ssh", help="how a command is run on a host (default: ssh)")
    flags = launch.add_argument_group("for torchrun", "handed on as they are")
    for name in processes.TORCHRUN:
        flags.add_argument(
            f"--{name}", metavar="X", help=argparse.SUPPRESS if name != "nnodes" else "and its other flags"
        )


def _add_theory(add: Any) -> None:
    """`gossamer theory`."""
    command = add(
        "theory",
        proofs.theory,
        "  gossamer theory\n"
        "  gossamer theory --graph grid:2,5 --weights fdla --compressor gsgd:5 --problem a9a --data-dir data/\n"
        "  gossamer theory --problem quadratic --compressor top_k:0.1 --json | jq .certified\n"
        "  gossamer theory --check runs/my                   a recorded run against its theorem",
    )
    command.add_argument("--check", metavar="RUN", help="a record, or a folder of records with `omegas = true`")
    command.add_argument("-o", "--output", metavar="FILE", help="the picture of --check (default: beside the record)")
    command.add_argument("--graph", metavar="GRAPH", help="such as ring, grid:2,5 (default: ring)")
    command.add_argument("--clients", type=int, metavar="N", help="default: 10")
    command.add_argument("--weights", metavar="RULE", help="default: metropolis")
    command.add_argument("--compressor", metavar="C", help="default: gsgd:5")
    command.add_argument(
        "--problem",
        metavar="P",
        help="a data set, or an objective such as quadratic, sine_pl (default: breast_cancer)",
    )
    command.add_argument(
        "--epsilon", type=float, metavar="E", help="target of the gradient norm (default: a tenth of that at x0)"
    )
    command.add_argument("--data-dir", metavar="DIR", help="where data files lie (default: $GOSSAMER_DATA, the cache)")
    command.add_argument("--json", action="store_true", help="print the numbers as JSON")


def _add_reproduce(add: Any) -> None:
    """`gossamer reproduce`."""
    reproduce = add(
        "reproduce",
        claims.reproduce,
        "  gossamer reproduce fig1 --data-dir data/\n"
        "  gossamer reproduce fig1 --as-published\n"
        "  gossamer reproduce fig5 --device cuda\n"
        "  gossamer reproduce all --quick                    a rehearsal, on embedded data\n"
        "  gossamer reproduce all --json | jq '.claims[] | select(.verdict != \"holds\") | .says'\n"
        "  gossamer reproduce exactness -o exactness.csv\n"
        "  gossamer reproduce theory                         the proof of BEER on runs with certified steps",
    )
    reproduce.add_argument("what", metavar="WHAT", choices=claims.WHAT, help=", ".join(claims.WHAT))
    reproduce.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        help="where it goes (default: reproduced; begun with --rounds; rehearsed if --quick; proofs for theory); for "
        "exactness, a CSV file",
    )
    reproduce.add_argument("--seeds", type=int, metavar="N", help="runs of each method (default: 3; 30 for theory)")
    reproduce.add_argument(
        "--as-published", action="store_true", help="as the published experiments were run, where they leave the text"
    )
    reproduce.add_argument(
        "--rounds", type=int, metavar="R", help="at most so many a run: a beginning, without verdicts"
    )
    reproduce.add_argument(
        "--quick", action="store_true", help="a rehearsal of everything on embedded data, without verdicts"
    )
    reproduce.add_argument(
        "--data-dir", metavar="DIR", help="where data files lie (default: $GOSSAMER_DATA, the cache)"
    )
    reproduce.add_argument("--device", help="cpu, cuda, cuda:1, ... (default: cpu)")
    reproduce.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    reproduce.add_argument("-q", "--quiet", action="store_true", help="no progress")


def _add_reports(add: Any) -> None:
    """`gossamer report` and `gossamer compare`."""
    report = add(
        "report",
        reports.report,
        "  gossamer report runs/figure1\n"
        "  gossamer report runs/ -o talk.html\n"
        "  gossamer report runs/figure1/BEER-seed0.jsonl --json | jq -r .page",
    )
    report.add_argument("source", metavar="DIR", help="a folder with records, at any depth; or one record")
    report.add_argument("-o", "--output", metavar="FILE", help="the page (default: report.html in that folder)")
    report.add_argument("--force", action="store_true", help="replace a file that is not a report of Gossamer")
    report.add_argument("--json", action="store_true", help="print where the page is and what is on it as JSON")

    compare = add(
        "compare",
        reports.compare,
        "  gossamer compare runs/figure1\n"
        "  gossamer compare runs/ring runs/grid --target 0.01\n"
        "  gossamer compare BEER-seed0.jsonl DSGD-seed0.jsonl --metric accuracy --json | jq '.methods[].bits.mean'",
    )
    compare.add_argument("runs", metavar="RUN", nargs="+", help="a record, or a folder with records")
    compare.add_argument(
        "--target", type=float, metavar="X", help="what to reach (default: the best that every method reaches)"
    )
    compare.add_argument(
        "--metric", default="grad_norm", metavar="M", help="such as loss, accuracy (default: grad_norm)"
    )
    compare.add_argument("--json", action="store_true", help="print the comparison as one JSON object")


def _add_tune(add: Any) -> None:
    """`gossamer tune`."""
    tune = add(
        "tune",
        tuning.tune_spec,
        "  gossamer tune my.toml\n"
        "  gossamer tune my.toml --method BEER --trials 100 --rounds 500 -o best.toml\n"
        "  gossamer tune figure1 --data-dir data/ --json | jq '.methods[].best'",
    )
    tune.add_argument("spec", metavar="SPEC", help="a TOML file, or the name of a shipped spec such as figure1")
    tune.add_argument("-o", "--output", metavar="FILE", help="where the spec that won goes (default: SPEC-tuned.toml)")
    tune.add_argument(
        "--method", action="append", metavar="LABEL", help="tune this one; may be repeated (default: all)"
    )
    tune.add_argument("--trials", type=int, default=40, metavar="N", help="candidates a method (default: 40)")
    tune.add_argument(
        "--rounds", type=int, metavar="R", help="of each run (default: a fifth of the spec's, at least 50)"
    )
    tune.add_argument("--at-once", type=int, default=8, metavar="K", help="simulated side by side (default: 8)")
    tune.add_argument("--data-dir", metavar="DIR", help="where data files lie (default: $GOSSAMER_DATA, the cache)")
    tune.add_argument("--device", help="cpu, cuda, cuda:1, ... (default: the spec's, else cpu)")
    tune.add_argument("--force", action="store_true", help="replace the output file")
    tune.add_argument("--json", action="store_true", help="print the results as one JSON object")
    tune.add_argument("-q", "--quiet", action="store_true", help="no progress")


def _add_data(add: Any) -> None:
    """`gossamer data list | fetch | check | describe`."""
    parser = add(
        "data",
        data.list_data,
        "  gossamer data list\n"
        "  gossamer data fetch mnist\n"
        "  gossamer data check --data-dir data/\n"
        "  gossamer data describe a9a --clients 10 --partition sorted --draw shares.png",
    )
    parser.description = "Data sets: list them, fetch them, check them, and see how they are shared out among clients."
    kinds = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Parser)
    for name, function in (
        ("list", data.list_data),
        ("fetch", data.fetch),
        ("check", data.check),
        ("describe", data.describe),
    ):
        about = inspect.getdoc(function) or ""
        command = kinds.add_parser(
            name,
            help=about.split("\n")[0].rstrip("."),
            description=about,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(command=function)
        command.add_argument("--data-dir", metavar="DIR", help="where files lie (default: $GOSSAMER_DATA, the cache)")
        if name == "fetch":
            command.add_argument("name", metavar="NAME", help="a9a, mnist or fashion_mnist")
            command.add_argument("-q", "--quiet", action="store_true", help="no progress")
        else:
            command.add_argument("--json", action="store_true", help="print it as JSON")
        if name == "describe":
            command.add_argument("data", metavar="DATA", help="a name, or the path of a LIBSVM file")
            command.add_argument("--clients", type=int, default=10, metavar="N", help="default: 10")
            command.add_argument("--partition", default="sorted", metavar="RULE", help="such as iid, dirichlet:0.5")
            command.add_argument("--seed", type=int, default=0, help="of a random partition (default: 0)")
            command.add_argument(
                "--all-rows", action="store_true", help="keep every row: clients may hold more or less"
            )
            command.add_argument("--draw", metavar="FILE", help="draw it (.png, .pdf, .svg)")
