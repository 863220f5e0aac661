"""The report: one self-contained HTML page from one result, a comparison or a sweep."""

from equifed.report.page import write_report
from equifed.report.tables import table
from equifed.verdict.comparison import summary_table
from equifed.verdict.sentences import Verdict, verdict

__all__ = ["Verdict", "summary_table", "table", "verdict", "write_report"]
