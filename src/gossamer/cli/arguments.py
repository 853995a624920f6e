"""The arguments of every command; nothing here imports the code of a command."""

import argparse

from gossamer._version import __version__
from gossamer.cli.command import Parser, add_commands, add_experiment, add_output, command
from gossamer.cli.data_arguments import data
from gossamer.cli.open_arguments import join, replay

TORCHRUN = (
    *("nnodes", "node-rank", "nproc-per-node", "master-addr", "master-port"),
    *("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "local-addr"),
)
"""Flags that are passed on to torchrun."""
SHELLS = ("bash", "zsh", "fish")
WHAT = ("fig1", "fig2", "fig3", "fig4", "fig5", "rates", "all", "exactness", "theory")
_EXAMPLES = """Examples:
  gossamer demo                                     BEER against three methods, on embedded data
  gossamer run figure1 --data-dir data/             figure 1 of the BEER paper, on your copy of a9a
  gossamer run my.toml --json | jq '.methods[].grad_norm'
  gossamer launch my.toml                           the same across processes
  gossamer keygen keys/                             keys for training over untrusted networks
  gossamer join my.toml --peers peers.toml --key keys/key.secret    one client of a run that others join and leave
  gossamer tune my.toml                             search for step sizes by short runs
  gossamer plan --parameters 10M --bandwidth 20Mbit --hosts 8    which method for your network
  gossamer methods                                  list the methods, with costs and rates
  gossamer methods beer                             equations, costs and rate of one method
  gossamer reproduce all                            the paper's figures, and a verdict per claim
  gossamer report runs/                             one HTML page of all records in a folder
  gossamer compare runs/mine runs/theirs            rounds, bits and seconds to a target
  gossamer compressors                              list the compressors
  gossamer compress x.npy --compressor gsgd:5       error and bits on your vector
  gossamer topology ring --clients 40               degrees and spectral gap of a graph
  gossamer data describe a9a --partition sorted     rows and labels of each client"""


@command("commands.run:demo", "gossamer demo", "gossamer demo -o talk/ --json")
def demo(parser: Parser) -> None:
    """Compare BEER, CHOCO-SGD, DSGD and D2 on real data that needs no download.

    Ten clients on a ring share a medical data set sorted by label, so that all but one have tumours of one kind
    only. Prints a table, and saves the records and a figure.
    """
    add_output(parser, "gossamer-demo")


@command(
    "commands.run:run",
    "gossamer run my.toml",
    "gossamer run figure1 --data-dir data/ -o fig1/",
    "gossamer run my.toml --resume                     after Ctrl-C or a crash",
    "gossamer run my.toml --jobs 4                     a spec with lists of steps, compressors or graphs",
    "gossamer run my.toml --device cuda --json > result.json",
)
def run(parser: Parser) -> None:
    """Run the experiment that a spec file describes.

    Prints a table of results, and saves one record per method and seed (JSON lines), a figure, and the spec itself.
    Exit code 1 means that a run diverged; its record is kept up to that round. --resume continues a run that was
    stopped by Ctrl-C, SIGTERM or a crash.
    """
    add_experiment(parser, "cpu, cuda, cuda:1, ...", "one per minute")
    jobs = "processes that run methods at the same time (default: all cores for long runs of small rounds)"
    parser.add("--jobs", "N", jobs, type=int)
    parser.add("--tensorboard", "DIR", "write TensorBoard events of every evaluation there")


@command(
    "launching.launch:launch",
    "gossamer launch my.toml",
    "gossamer launch my.toml --max-restarts 3 --checkpoint-every 100",
    "gossamer launch my.toml --hosts alpha,beta,gamma:2",
    "torchrun --nnodes 2 --nproc-per-node 4 --node-rank 0 --master-addr alpha -m gossamer launch my.toml",
)
def launch(parser: Parser) -> None:
    """Run a spec across real processes, one client per process, on this host or on several.

    Takes the same spec files as `gossamer run`, and gives the same records and tables, with the traffic on each link.
    `torchrun ... -m gossamer launch SPEC` does the same in processes that torchrun starts. --resume continues a run
    that was stopped; --max-restarts does so automatically when a process dies.
    """
    add_experiment(parser, "cpu, or cuda for one GPU per process, in turn", "after each tenth of the rounds")
    parser.add("--max-restarts", "N", "restart from checkpoints up to N times when a process dies", type=int)
    parser.add("--timeout", "S", "seconds to wait for a neighbour (default: 60)", type=float, default=60.0)
    parser.add("--tensorboard", "DIR", "write TensorBoard events of every process there: its loss, bytes, waiting time")
    parser.add("--hosts", "A,B:2", "start on these hosts; HOST:N runs N clients on that host; links ask for a key")
    ports = "with --hosts: the clients of a host listen at ports P, P+1, ... (default: free ones)"
    parser.add("--port", "P", ports, type=int)
    parser.add("--rsh", None, "command that runs a command on a host (default: ssh)", default="ssh")
    flags = parser.add_argument_group("for torchrun", "passed on unchanged if --nnodes is above 1")
    for name in TORCHRUN:
        flags.add_argument(
            f"--{name}", metavar="X", help=argparse.SUPPRESS if name != "nnodes" else "and its other flags"
        )


@command("launching.keygen:keygen", "gossamer keygen ~/.config/gossamer", "gossamer keygen keys/alpha --json")
def keygen(parser: Parser) -> None:
    """Make a key pair for training over untrusted networks, and print the public key.

    Writes key.secret, which only you can read, and key.public into the folder. Every client has its own pair, and all
    public keys are listed in a peers file (see the page "Real processes"). A key that is there is never replaced.
    """
    parser.add("folder", "DIR", "folder for the two files; it is made if needed")
    parser.flag("--json", "print the public key as JSON")


@command(
    "commands.compressors:compressors",
    "gossamer compressors",
    "gossamer compressors --dimension 1000000",
    "gossamer compressors --json | jq -r '.[].name'",
)
def compressors(parser: Parser) -> None:
    """List the compressors with their constants.

    alpha: E||C(x) - x||^2 <= (1 - alpha) ||x||^2. omega, of unbiased ones: E||C(x) - x||^2 <= omega ||x||^2. Bits are
    those of a fixed-width packet with one float32 message and its header. The examples can be used in spec files and in
    `gossamer compress`.
    """
    parser.add("--dimension", "D", "coordinates (default: 124)", type=int, default=124)
    parser.flag("--json", "print them as JSON")


@command(
    "commands.compressors:compress",
    "gossamer compress gradient.npy --compressor gsgd:5",
    "gossamer compress gradient.npy --compressor blockwise:gsgd:5,256 --json",
    "seq 1 1000 | gossamer compress - --compressor top_k:0.01",
)
def compress(parser: Parser) -> None:
    """Measure one compressor on your vector.

    Shows the relative error and the bound from alpha (or omega), the bits of a packet under each codec, and
    the entropy of the symbols. Errors of random compressors are means over 20 seeds.
    """
    parser.add("file", "FILE", "a vector: .npy, or text with one number per line; - for standard input")
    parser.add("--compressor", "C", "such as gsgd:5, top_k:10, scaled:qsgd:16", required=True)
    parser.add("--dtype", None, "default: float32", default="float32", choices=["float32", "float64"])
    parser.add("--seed", None, "seed of random compressors (default: 0)", type=int, default=0)
    parser.flag("--json", "print the measurements as JSON")


@command(
    "commands.topology:topology",
    "gossamer topology",
    "gossamer topology ring --clients 40 --weights fdla",
    "gossamer topology grid:8,5 --compare",
    "gossamer topology erdos_renyi:p=0.2,seed=1 --clients 40 --weights fdla --draw graph.png",
    "gossamer topology edge_list:my.txt --json | jq .rho",
    "gossamer topology one_peer_exponential --clients 16",
    "gossamer topology ring:dropout=0.2 --clients 16",
)
def topology(parser: Parser) -> None:
    """Show how well a graph mixes: degrees, spectral gap rho, C, and the mixing step of the BEER paper.

    Without a graph, list the graphs and the weight rules. A graph takes its settings as in `grid:8,5` or
    `erdos_renyi:p=0.2,seed=1`; `edge_list:FILE` and `adjacency:FILE` read a graph from a file. Of a graph that changes
    from round to round, it shows the rho of the product over a period, or of the expected W.
    """
    parser.add("graph", "GRAPH", "such as ring, grid:8,5, edge_list:FILE", nargs="?")
    parser.add("--clients", "N", "number of clients, if the graph does not give it", type=int)
    parser.add("--weights", "RULE", "a rule, or a .csv or .npy file (default: metropolis)")
    parser.add(
        "--alpha", None, "alpha of the compressor, for gamma (default: 1, no compression)", type=float, default=1.0
    )
    parser.flag("--compare", "compare all weight rules")
    parser.add("--draw", "FILE", "save a picture, with weights as line widths (.png, .pdf, .svg)")
    parser.flag("--json", "print the numbers as JSON")


@command(
    "commands.plan:plan",
    "gossamer plan --parameters 10M --bandwidth 20Mbit --delay 10ms --hosts 8",
    "gossamer plan --module my_package:build --bandwidth 100Mbit --hosts 4 --differing much",
    "gossamer plan --parameters 1B --bandwidth 1Gbit --hosts 1000 --graph exponential --compute 2",
    "gossamer plan --parameters 10M --bandwidth 20Mbit --hosts 8 --spec > my.toml",
    "gossamer plan --parameters 10M --bandwidth 20Mbit --hosts 8 --json | jq '.rows[0]'",
)
def plan(parser: Parser) -> None:
    """Predict what training costs over your network for each method, operator and codec, and recommend one.

    Software is timed on this machine, bytes are those of real packets, and rounds follow from a model that was fitted
    to searches. All-reduce (DDP, PowerSGD, averages every H steps) is compared, too. Nothing is trained, and every
    number is a prediction.
    """
    parser.add("--parameters", "N", "of the model, such as 10M or 1B")
    parser.add("--module", "M", "count the parameters of a module, such as my_package:build")
    parser.add("--bandwidth", "B", "of each host, such as 20Mbit, 1Gbit, or unlimited", required=True)
    parser.add("--delay", "T", "one way, such as 10ms (default: 0)", default="0")
    parser.add("--hosts", "N", "default: 4", type=int, default=4)
    parser.add("--graph", "GRAPH", "of Gossamer's methods, such as ring, exponential (default: ring)", default="ring")
    parser.add("--compute", "T", "of one gradient, such as 50ms (default: an estimate for this machine)")
    parser.add("--batch", "N", "data rows of a gradient (default: 32)", type=int, default=32)
    parser.add("--differing", None, "how much clients' data differ", choices=("little", "much"), default="little")
    parser.add("--local", "H,H", "numbers of local steps per round (default: 1,5,10,20,50)", default="1,5,10,20,50")
    parser.add("--method", "M", "compare this one; may be repeated (default: all)", action="append")
    parser.add(
        "--reduction", "X", "how many times smaller the error is to become (default: 18)", type=float, default=18.0
    )
    parser.add("--rows", "N", "rows of the table (default: 12)", type=int, default=12)
    parser.flag("--spec", "print a spec file for `gossamer run` and `gossamer launch` instead")
    parser.flag("--json", "print all rows as JSON")


@command(
    "commands.tune:tune_spec",
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
    parser.add("spec", "SPEC", "a TOML file, or the name of a shipped spec such as figure1")
    parser.add("-o --output", "FILE", "the new spec (default: SPEC-tuned.toml)")
    parser.add("--method", "LABEL", "a method to tune; may be repeated (default: all)", action="append")
    parser.add("--trials", "N", "candidates per method (default: 40)", type=int, default=40)
    parser.add("--rounds", "R", "rounds per trial (default: a fifth of the spec's, at least 50)", type=int)
    parser.add("--at-once", "K", "candidates simulated at once (default: 8)", type=int, default=8)
    parser.data_dir()
    parser.add("--device", None, "cpu, cuda, cuda:1, ... (default: the spec's, else cpu)")
    parser.flag("--force", "replace the output file")
    parser.flag("--json", "print the results as one JSON object")
    parser.flag("-q --quiet", "show no progress")


@command(
    "commands.theory:theory",
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
    parser.add("--check", "RUN", 'a record, or a folder of records with `measures = ["omegas"]`')
    parser.add("-o --output", "FILE", "the picture of --check (default: beside the record)")
    parser.add("--graph", "GRAPH", "such as ring, grid:2,5 (default: ring)")
    parser.add("--clients", "N", "default: 10", type=int)
    parser.add("--weights", "RULE", "default: metropolis")
    parser.add("--compressor", "C", "default: gsgd:5")
    parser.add("--problem", "P", "a data set, or an objective such as quadratic, sine_pl (default: breast_cancer)")
    parser.add("--epsilon", "E", "target gradient norm (default: a tenth of the norm at x0)", type=float)
    parser.data_dir()
    parser.flag("--json", "print the numbers as JSON")


@command(
    "commands.reproduce:reproduce",
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
    parser.add("what", "EXPERIMENT", ", ".join(WHAT), choices=WHAT)
    parser.add(
        "-o --output",
        "DIR",
        "where results go (default: reproduced; begun with --rounds; rehearsed with --quick; proofs for theory); "
        "for exactness, a CSV file",
    )
    parser.add("--seeds", "N", "runs per method (default: 3; 30 for theory)", type=int)
    parser.flag("--as-published", "use the settings of the published code where they differ from the text")
    parser.add("--rounds", "R", "cap the rounds per run; no verdicts are given", type=int)
    parser.flag("--quick", "rehearse everything on embedded data, without verdicts")
    parser.data_dir()
    parser.add("--device", None, "cpu, cuda, cuda:1, ... (default: cpu)")
    parser.flag("--json", "print the verdicts as JSON")
    parser.flag("-q --quiet", "show no progress")


@command(
    "commands.report:report",
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
    parser.add("source", "DIR", "a folder with records in it or in its subfolders, or one record")
    parser.add("-o --output", "FILE", "the page (default: report.html in that folder)")
    parser.flag("--force", "replace a file that Gossamer did not write")
    parser.flag("--json", "print where the page is and what is on it as JSON")


@command(
    "commands.report:compare",
    "gossamer compare runs/figure1",
    "gossamer compare runs/ring runs/grid --target 0.01",
    "gossamer compare BEER-seed0.jsonl DSGD-seed0.jsonl --metric accuracy --json | jq '.methods[].bits.mean'",
)
def compare(parser: Parser) -> None:
    """Compare methods by the rounds, bits and seconds they need.

    Each run is a record or a folder of records. For every method, shows the cost until the metric first reached the
    target (mean over seeds, and range) and the final values; `x` is the ratio to the best of the column.
    """
    parser.add("runs", "RUN", "a record, or a folder with records", nargs="+")
    parser.add("--target", "X", "target value (default: the best value that every method reaches)", type=float)
    parser.add("--metric", "M", "such as loss, accuracy (default: grad_norm)", default="grad_norm")
    parser.flag("--json", "print the comparison as one JSON object")


@command(
    "commands.methods:methods",
    "gossamer methods",
    "gossamer methods beer",
    "gossamer methods --json | jq -r '.[].name'",
)
def methods(parser: Parser) -> None:
    """List the methods with their costs per round and their rates; with a NAME, show one method in full.

    Costs per round are messages, exchanges (in sequence, so that latency multiplies them) and minibatch gradients. The
    state is in multiples of the d numbers of the model; m is the number of data rows per client. Compressors:
    contractive, unbiased, any, or none.
    """
    parser.add("name", "NAME", "show one method, with its equations", nargs="?")
    parser.flag("--json", "print them as JSON")


@command(
    "completion:completion",
    'eval "$(gossamer completion bash)"                in ~/.bashrc',
    'eval "$(gossamer completion zsh)"                 in ~/.zshrc, after compinit',
    "gossamer completion fish > ~/.config/fish/completions/gossamer.fish",
)
def completion(parser: Parser) -> None:
    """Print a script that completes commands and options in a shell."""
    parser.add("shell", "SHELL", ", ".join(SHELLS), choices=SHELLS)


COMMANDS = (
    *(demo, run, launch, join, replay, keygen, plan, compressors, compress, topology, data),
    *(tune, theory, reproduce, report, compare, methods, completion),
)


def parser() -> Parser:
    """The parser of the `gossamer` command."""
    made = Parser(
        prog="gossamer",
        description="Decentralized training in a few bits: BEER and related methods, simulated or across processes.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--version", action="version", version=f"gossamer {__version__}")
    add_commands(made, COMMANDS)
    return made
