"""The arguments of every command; nothing here imports the code of a command."""

import argparse

from gossamer._version import __version__
from gossamer.cli.arguments import (
    completion,
    compressors,
    data,
    launch,
    methods,
    report,
    reproduce,
    run,
    theory,
    topology,
    tune,
)
from gossamer.cli.command import Parser, add_commands, call

__all__ = ["COMMANDS", "call", "parser"]

COMMANDS = (
    run.demo,
    run.run,
    launch.launch,
    compressors.compressors,
    compressors.compress,
    topology.topology,
    data.data,
    tune.tune,
    theory.theory,
    reproduce.reproduce,
    report.report,
    report.compare,
    methods.methods,
    completion.completion,
)
_EXAMPLES = """Examples:
  gossamer demo                                     BEER against three methods, on embedded data
  gossamer run figure1 --data-dir data/             figure 1 of the BEER paper, on your copy of a9a
  gossamer run my.toml --json | jq '.methods[].grad_norm'
  gossamer launch my.toml                           the same across processes
  gossamer tune my.toml                             search for step sizes by short runs
  gossamer methods                                  list the methods, with costs and rates
  gossamer methods beer                             equations, costs and rate of one method
  gossamer reproduce all                            the paper's figures, and a verdict per claim
  gossamer report runs/                             one HTML page of all records in a folder
  gossamer compare runs/mine runs/theirs            rounds, bits and seconds to a target
  gossamer compressors                              list the compressors
  gossamer compress x.npy --compressor gsgd:5       error and bits on your vector
  gossamer topology ring --clients 40               degrees and spectral gap of a graph
  gossamer data describe a9a --partition sorted     rows and labels of each client"""


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
