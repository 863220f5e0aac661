"""Charts as Vega-Lite specifications: how they look, and drawing them in a page, a notebook or a file.

A specification is a plain dictionary with its data inside. `spec` has the parts that charts share; a chart itself is
defined once, where its data are: `report/charts.py`, `monitor/charts.py`, and here `partition`, which the report and
`Federation.describe()` share. Names are data in it and never part of an expression.
"""

from equifed.charts.files import FORMATS, check_formats, draw, write_chart
from equifed.charts.page import Scripts, embedded
from equifed.charts.partition import partition_chart

__all__ = ["FORMATS", "Scripts", "check_formats", "draw", "embedded", "partition_chart", "write_chart"]
