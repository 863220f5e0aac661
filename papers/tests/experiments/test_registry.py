"""Every experiment that is listed can be found, and every one that can be found is listed."""

from __future__ import annotations

from dataclasses import fields

import pytest

from equifed_papers.experiments import EXPERIMENTS, Request
from equifed_papers.experiments.base import find


def test_every_listed_experiment_exists_and_takes_known_options() -> None:
    options = {field.name for field in fields(Request)}
    for name, about in EXPERIMENTS.items():
        assert callable(find(name).parts)
        assert set(about.options) <= options


def test_every_experiment_is_listed() -> None:
    for paper in {name.partition("/")[0] for name in EXPERIMENTS}:
        module = pytest.importorskip(f"equifed_papers.experiments.{paper.replace('-', '_')}.show")
        assert {f"{paper}/{part}" for part in module.EXPERIMENTS} == {
            name for name in EXPERIMENTS if name.startswith(f"{paper}/")
        }


def test_quick_is_at_most_two_by_two() -> None:
    assert Request().amount(5, 100) == (5, 100)
    assert Request(seeds=3, rounds=7).amount(5, 100) == (3, 7)
    assert Request(seeds=1, quick=True).amount(5, None) == (1, 2)
