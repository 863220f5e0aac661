"""What a run leaves behind, live or read from its folder."""

from equifed.results.result import Collector, Result

__all__ = ["Collector", "Result"]
