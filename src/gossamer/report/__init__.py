"""Tables, figures and pages from records, and figures of graphs."""

from gossamer.report.bounds import proof_figure as proof_figure
from gossamer.report.figure import convergence_figure as convergence_figure
from gossamer.report.figure import panels_figure as panels_figure
from gossamer.report.graph import network_figure as network_figure
from gossamer.report.link_table import links_table as links_table
from gossamer.report.link_table import write_links as write_links
from gossamer.report.page.page import write_page as write_page
from gossamer.report.shares import shares_figure as shares_figure
from gossamer.report.summary import summarize as summarize
from gossamer.report.table import result_table as result_table
