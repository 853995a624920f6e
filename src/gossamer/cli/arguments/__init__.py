"""The arguments of every command. Nothing here imports what a command needs to do its work."""

import argparse

from gossamer._version import __version__
from gossamer.cli.arguments import completion, components, data, launch, reports, reproduce, run, theory, topology, tune
from gossamer.cli.arguments.base import Parser, add_commands, call

__all__ = ["COMMANDS", "call", "parser"]

COMMANDS = (
    run.demo,
    run.run,
    launch.launch,
    components.compressors,
    components.compress,
    topology.topology,
    data.data,
    tune.tune,
    theory.theory,
    reproduce.reproduce,
    reports.report,
    reports.compare,
    components.methods,
    completion.completion,
)
_EXAMPLES = """Examples:
  gossamer demo                                     BEER against three others, on embedded data
  gossamer run figure1 --data-dir data/             figure 1 of the BEER paper, on your copy of a9a
  gossamer run my.toml --json | jq '.methods[].grad_norm'
  gossamer launch my.toml                           the same across real processes
  gossamer tune my.toml                             find its step sizes by short runs
  gossamer methods                                  what can be run, and what is known of it
  gossamer methods beer                             one method's equations, costs and rate
  gossamer reproduce all                            the paper's figures, and a verdict on every claim
  gossamer report runs/                             one HTML page of all records in a folder
  gossamer compare runs/mine runs/theirs            rounds, bits and seconds to a target
  gossamer compressors                              what messages can be made of
  gossamer compress x.npy --compressor gsgd:5       error and bits on a vector of your own
  gossamer topology ring --clients 40               how well a graph mixes
  gossamer data describe a9a --partition sorted     who holds what"""


def parser() -> Parser:
    """The parser of the `gossamer` command."""
    made = Parser(
        prog="gossamer",
        description="Decentralized training in a few bits: BEER and its kin, simulated or across processes.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--version", action="version", version=f"gossamer {__version__}")
    add_commands(made, COMMANDS)
    return made
