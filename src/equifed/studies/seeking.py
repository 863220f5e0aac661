"""Seeking a target from Python: a sweep for each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

from equifed.federation import Federation
from equifed.methods import Method
from equifed.settings import RunOptions, RunSettings, SeekSettings
from equifed.simulation import DEFAULTS, sweep, with_fields
from equifed.tracking import Callback
from equifed.verdict.seek import Seeking, Sought


def seek(
    method: Method,
    federations: Federation | Sequence[Federation],
    *,
    model: Any,
    steps: int = SeekSettings.steps,
    at_once: int = SeekSettings.at_once,
    initial_parameters: Any = None,
    callbacks: Sequence[Callback | str] = (),
    settings: RunSettings = DEFAULTS,
    **options: Unpack[RunOptions],
) -> Sought:
    """Turn the method's knob until the targets are met with the confidence asked for, at the least loss of quality.

    target, confidence: as in `RunSettings`. steps: sweeps at most; at_once: settings in each. The other arguments are
    those of `simulate`.
    """
    settings = replace(settings, **options)
    given = [federations] if isinstance(federations, Federation) else list(federations)
    seeking = Seeking(method, given, settings, SeekSettings(steps, at_once))
    while over := seeking.over():
        common: dict[str, Any] = {"initial_parameters": initial_parameters, "callbacks": callbacks}
        seeking.add(sweep(seeking.method, federations, model=model, over=over, settings=settings, **common))
    return seeking.sought()


with_fields(seek)
