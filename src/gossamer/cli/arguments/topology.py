"""Arguments of `gossamer topology`."""

from gossamer.cli.command import Parser, command


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
    """Show how well a graph mixes: degrees, spectral gap rho, C, and the mixing step of the BEER paper.

    Without a graph, list the graphs and the weight rules. A graph takes its settings as in `grid:8,5` or
    `erdos_renyi:p=0.2,seed=1`; `edge_list:FILE` and `adjacency:FILE` read a graph from a file.
    """
    parser.add_argument("graph", metavar="GRAPH", nargs="?", help="such as ring, grid:8,5, edge_list:FILE")
    parser.add_argument("--clients", type=int, metavar="N", help="number of clients, if the graph does not give it")
    parser.add_argument("--weights", metavar="RULE", help="a rule, or a .csv or .npy file (default: metropolis)")
    parser.add_argument(
        "--alpha", type=float, default=1.0, help="alpha of the compressor, for gamma (default: 1, no compression)"
    )
    parser.add_argument("--compare", action="store_true", help="compare all weight rules")
    parser.add_argument("--draw", metavar="FILE", help="save a picture, with weights as line widths (.png, .pdf, .svg)")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
