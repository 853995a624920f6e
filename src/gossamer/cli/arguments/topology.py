"""Arguments of `gossamer topology`."""

from gossamer.cli.arguments.base import Parser, command


@command(
    "topology",
    "gossamer.cli.commands.topology:topology",
    "gossamer topology",
    "gossamer topology ring --clients 40 --weights fdla",
    "gossamer topology grid:8,5 --compare",
    "gossamer topology erdos_renyi:p=0.2,seed=1 --clients 40 --weights fdla --draw graph.png",
    "gossamer topology edge_list:my.txt --json | jq .rho",
)
def topology(parser: Parser) -> None:
    """Show how well a graph mixes: its degrees, spectral gap rho, C, and the BEER paper's mixing step.

    Without a graph, list the graphs and the rules for weights. A graph takes its settings as in `grid:8,5` or
    `erdos_renyi:p=0.2,seed=1`; `edge_list:FILE` and `adjacency:FILE` read your own.
    """
    parser.add_argument("graph", metavar="GRAPH", nargs="?", help="such as ring, grid:8,5, edge_list:FILE")
    parser.add_argument("--clients", type=int, metavar="N", help="how many, where the graph does not say")
    parser.add_argument("--weights", metavar="RULE", help="a rule, or a .csv or .npy file (default: metropolis)")
    parser.add_argument("--alpha", type=float, default=1.0, help="the compressor's, for gamma (default: 1, none)")
    parser.add_argument("--compare", action="store_true", help="tabulate every rule for weights")
    parser.add_argument("--draw", metavar="FILE", help="draw the graph, weights as widths (.png, .pdf, .svg)")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
