"""What a run leaves behind, live or read from its folder."""

from equifed.results.collect import Collector
from equifed.results.result import Result

__all__ = ["Collector", "Result"]
