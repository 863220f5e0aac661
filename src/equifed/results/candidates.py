"""The methods and settings in results: what each is called, and whether it may be taken."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from equifed.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from equifed.results.result import Result

DATA = {
    "data": "name",
    "clients": "clients",
    "groups": "groups",
    "classes": "classes",
    "cells": "which rows clients have",
    "rows": "numbers of rows",
}
"""Equal in results on the same data with the same partition; what each is called."""


class Named(Protocol):
    """A method with one setting."""

    @property
    def label(self) -> str: ...
    @property
    def result(self) -> int: ...
    @property
    def hyper(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Candidate:
    """A method with one setting, in one of several results."""

    label: str
    """Unique among them."""
    method: str
    result: int
    """Which of the results it is in."""
    setting: dict[str, float]
    """The swept hyper-parameters at this candidate's values."""
    hyper: dict[str, Any]
    """All hyper-parameters."""


def candidates_of(results: Sequence[Result]) -> list[Candidate]:
    """Every method and setting, in the order of the results."""
    found = []
    for i, result in enumerate(results):
        method = str(result.info["method"])
        swept = result.metrics[result.swept].drop_duplicates().to_numpy().tolist() if result.swept else [()]
        for values in swept:
            setting = dict(zip(result.swept, values, strict=True))
            hyper = {**result.info.get("hyper_parameters", {}), **setting}
            found.append(Candidate(method + settings_text(setting), method, i, setting, hyper))
    return [replace(each, label=label) for each, label in zip(found, unique_labels(found, results), strict=True)]


def is_pooled(method: str) -> bool:
    """Whether it trains on all clients' rows in one place, which a federation cannot."""
    return _known(method, "pooled")


def needs_validation(method: str) -> bool:
    """Whether it trains with the server's validation rows."""
    return _known(method, "needs_validation")


def _known(method: str, attribute: str) -> bool:
    """What the method of this name is; False for a result of somebody's own method."""
    from equifed.methods import make_recorded

    try:
        return bool(getattr(make_recorded(method), attribute))
    except ConfigError:
        return False


def having(frame: pd.DataFrame, values: Mapping[str, Any]) -> pd.DataFrame:
    """The rows with these values in these columns; a missing value is one, too."""
    import pandas as pd

    for name, value in values.items():
        column = frame[name]
        frame = frame[column.isna() if pd.isna(value) else column == value]
    return frame


def data_of(info: Mapping[str, Any]) -> str:
    """Equal for results on the same data with the same partition; only those can be paired by seed."""
    return json.dumps([info.get(name) for name in DATA], default=str)


# -- labels ------------------------------------------------------------------------------------------------------------


def settings_text(values: Mapping[str, Any]) -> str:
    """` (mu=0.1, beta=2)`; nothing without settings."""
    if not values:
        return ""
    shown = (f"{k}={v:g}" if isinstance(v, float | np.floating) else f"{k}={v}" for k, v in values.items())
    return f" ({', '.join(shown)})"


def unique_labels(named: Sequence[Named], results: Sequence[Result]) -> list[str]:
    """Equal labels get what tells them apart (a hyper-parameter, the data, the rounds) or a number."""
    labels = [each.label for each in named]
    for label in {label for label in labels if labels.count(label) > 1}:
        same = [i for i, other in enumerate(labels) if other == label]
        details = [_details(named[i], results[named[i].result]) for i in same]
        differing = differing_names(details)
        for i, each in zip(same, details, strict=True):
            labels[i] = label + settings_text({name: each.get(name) for name in differing})
    before = [labels[:i].count(label) for i, label in enumerate(labels)]
    return [f"{label} #{times + 1}" if times else label for label, times in zip(labels, before, strict=True)]


def differing_names(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """In which of them these facts are not all the same."""
    names = dict.fromkeys(name for known in facts for name in known)
    return [name for name in names if len({str(known.get(name)) for known in facts}) > 1]


def _details(named: Named, result: Result) -> dict[str, Any]:
    names = ("rounds", "clients_per_round", "dropout", "clip", "robust", "liars")
    return {**named.hyper, "data": result.info["data"], **{name: getattr(result.settings, name) for name in names}}
