"""Arguments of `gossamer launch`."""

import argparse

from gossamer.cli.command import Parser, add_experiment, command

TORCHRUN = (
    *("nnodes", "node-rank", "nproc-per-node", "master-addr", "master-port"),
    *("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "local-addr"),
)
"""Flags that are passed on to torchrun."""


@command(
    "launch",
    "gossamer.cli.launching.launch:launch",
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
    parser.add_argument(
        "--max-restarts", type=int, metavar="N", help="restart from checkpoints up to N times when a process dies"
    )
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="seconds to wait for a neighbour (default: 60)"
    )
    parser.add_argument("--tensorboard", metavar="DIR", help="write TensorBoard events of every process there")
    parser.add_argument("--hosts", metavar="A,B:2", help="start on these hosts; HOST:N runs N clients on that host")
    parser.add_argument("--rsh", default="ssh", help="command that runs a command on a host (default: ssh)")
    flags = parser.add_argument_group("for torchrun", "passed on unchanged if --nnodes is above 1")
    for name in TORCHRUN:
        flags.add_argument(
            f"--{name}", metavar="X", help=argparse.SUPPRESS if name != "nnodes" else "and its other flags"
        )
