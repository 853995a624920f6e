"""Records to tables and figures."""

from gossamer.report.figure import convergence_figure
from gossamer.report.summary import summarize
from gossamer.report.table import result_table

__all__ = ["convergence_figure", "result_table", "summarize"]
