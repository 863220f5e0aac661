"""A robust rule in the terminal: whom it cut, and accuracy and gaps with and without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from store.silos import write_config


def test_the_terminal_shows_it(place: Path, invoke: Callable[..., Any]) -> None:
    write_config(place)
    options = ("run.robust=trimmed-mean", "run.liars=0.34", "run.name=wary", "run.clients-per-round=all")
    outcome = invoke("run", "experiment.toml", *(part for option in options for part in ("--set", option)))
    assert outcome.exit_code == 0, outcome.stderr
    assert "Updates were aggregated with trimmed-mean, which tolerates up to 34 % malicious clients" in outcome.stderr
    for text in (outcome.stdout, invoke("show", "wary").stdout):
        assert "with trimmed-mean" in text
        assert "What was cut" in text
