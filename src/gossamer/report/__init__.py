"""Tables, figures and pages from records, and figures of graphs."""

from gossamer.report.bounds import proof_figure
from gossamer.report.figure import convergence_figure, panels_figure
from gossamer.report.graph import network_figure
from gossamer.report.page.page import write_page
from gossamer.report.shares import shares_figure
from gossamer.report.summary import summarize
from gossamer.report.table import result_table
from gossamer.report.traffic import links_table, write_links

__all__ = [
    "convergence_figure",
    "links_table",
    "network_figure",
    "panels_figure",
    "proof_figure",
    "result_table",
    "shares_figure",
    "summarize",
    "write_links",
    "write_page",
]
