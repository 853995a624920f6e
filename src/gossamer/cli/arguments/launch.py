"""Arguments of `gossamer launch`."""

import argparse

from gossamer.cli.arguments.base import Parser, add_experiment, command

TORCHRUN = (
    *("nnodes", "node-rank", "nproc-per-node", "master-addr", "master-port"),
    *("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "local-addr"),
)
"""Flags that are handed on to torchrun."""


@command(
    "launch",
    "gossamer.cli.commands.launch:launch",
    "gossamer launch my.toml",
    "gossamer launch my.toml --max-restarts 3 --checkpoint-every 100",
    "gossamer launch my.toml --hosts alpha,beta,gamma:2",
    "torchrun --nnodes 2 --nproc-per-node 4 --node-rank 0 --master-addr alpha -m gossamer launch my.toml",
)
def launch(parser: Parser) -> None:
    """Run a spec across real processes, one client per process, on this host or on several.

    The same spec files as `gossamer run`, the same records and the same report, with the account of every link beside
    it. `torchrun ... -m gossamer launch SPEC` does the same where torchrun starts the processes. A run that was stopped
    goes on with --resume; with --max-restarts it goes on by itself.
    """
    add_experiment(parser, "cpu, or cuda for one GPU per process, in turn", "after each tenth of the rounds")
    parser.add_argument("--max-restarts", type=int, metavar="N", help="restart from the checkpoints when ranks die")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="for a silent neighbour (default: 60)")
    parser.add_argument(
        "--transport", choices=["gloo", "nccl"], default="gloo", help="nccl: from GPU to GPU (default: gloo, over TCP)"
    )
    parser.add_argument("--tensorboard", metavar="DIR", help="write events of every rank there while it runs")
    parser.add_argument("--hosts", metavar="A,B:2", help="start on these hosts; HOST:N runs N clients on that host")
    parser.add_argument("--rsh", default="ssh", help="how a command is run on a host (default: ssh)")
    flags = parser.add_argument_group("for torchrun", "handed on as they are if --nnodes is above 1")
    for name in TORCHRUN:
        flags.add_argument(
            f"--{name}", metavar="X", help=argparse.SUPPRESS if name != "nnodes" else "and its other flags"
        )
