"""Options of the benchmark."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class BenchmarkOptions:
    """What of the benchmark is run, and what is written."""

    tier: str = field(default="quick", metadata={"metavar": "TIER"})
    """How much of it: quick (minutes), standard (hours) or full (days)."""
    datasets: str | None = field(default=None, metadata={"metavar": "A,B,..."})
    """Only these data sets of the tier. (default: all)"""
    partitions: str | None = field(default=None, metadata={"metavar": "A,B,..."})
    """Only these partitions. (default: all)"""
    methods: str | None = field(default=None, metadata={"metavar": "A,B,..."})
    """Only these methods. (default: all, and wrappers around FedAvg)"""
    seeds: int | None = field(default=None, metadata={"metavar": "N"})
    """Only so many seeds. (default: the tier's)"""
    add: list[str] | None = field(default=None, metadata={"metavar": "MODULE:NAME", "repeated": True})
    """Run only this method of your own, beside the rows that are there. May be repeated."""
    folder: Path = field(default=Path("benchmark"), metadata={"metavar": "DIR", "flags": ("--output", "-o")})
    """Where the raw rows and the page are; what is there is not run again."""
    merge: list[Path] | None = field(default=None, metadata={"metavar": "FILE", "repeated": True})
    """First add the rows of this file, a part that was run elsewhere. May be repeated."""
    only_page: bool = False
    """Run nothing: write the page from the rows that are there."""
    publish: Path | None = field(default=None, metadata={"metavar": "DIR"})
    """Also write the results into benchmark.md, .csv, .svg and .parquet of this folder."""
    keep_runs: bool = False
    """Keep the folder of every run, thousands of them."""
    json: bool = False
    """Print JSON on stdout, and nothing else there."""
