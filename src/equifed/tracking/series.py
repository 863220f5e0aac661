"""The time series of trackers: the values of a round by name, as means over seeds."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from equifed.errors import ConfigError
from equifed.metrics.seeds import moments_by
from equifed.results import Result
from equifed.tracking.callback import Round

GROUP, CLIENT = "group:", "client:"
HAPPENED = ("sampled", "replied", "dropped", "rejected", "applied")
KEPT = ("config.toml", "environment.json", "data.json", "result.json", "schema.json", "metrics.parquet")
"""Files of a run's folder that trackers store, if they exist; also the folder with its model package."""
MODEL = "model"


class Values(NamedTuple):
    """The values of one setting after one round."""

    setting: Mapping[str, float]
    """Values of the swept hyperparameters; empty without a sweep."""
    round: int
    values: dict[str, float]
    """Values by name, without undefined ones."""


def values_of(round: Round) -> Iterator[Values]:
    """Yield a round's values, setting by setting: `test/accuracy`, `test/group/NAME/accuracy`, `log/replied`; with
    several seeds also `test/accuracy_std`."""
    swept = list(round.job.runs[0].hyper)
    found: dict[tuple[int, tuple[float, ...]], dict[str, float]] = {}
    for key, name, value in (*_list_log_values(round, swept), *_list_metric_values(round, swept)):
        if not np.isnan(value):
            found.setdefault(key, {})[name] = value
    for (number, setting), values in sorted(found.items(), key=lambda each: each[0][0]):
        yield Values(dict(zip(swept, setting, strict=True)), number, values)


Line = tuple[tuple[int, tuple[float, ...]], str, float]
"""Round and setting, name, value."""


def _list_log_values(round: Round, swept: list[str]) -> Iterator[Line]:
    log = round.log
    if not len(log):
        return
    observed = [name for log in round.logs for name in log.observed]
    for name in dict.fromkeys((*HAPPENED, *observed)):
        for *setting, mean in _means(log.assign(value=log[name].astype(float)), swept)[[*swept, "mean"]].to_numpy():
            yield (round.number, tuple(setting)), f"log/{name}", float(mean)
    for setting in dict.fromkeys(map(tuple, log[swept].to_numpy().tolist())):
        yield (round.number, setting), "log/seconds", round.seconds


def _list_metric_values(round: Round, swept: list[str]) -> Iterator[Line]:
    if not round.evaluated:
        return
    frame = round.metrics
    frame = frame[~frame["scope"].astype(str).str.startswith(CLIENT)]
    for row in _means(frame, [*swept, "round", "split", "scope", "metric"]).to_dict("records"):
        key = int(row["round"]), tuple(row[name] for name in swept)
        if str(row["scope"]).startswith(GROUP):
            yield key, f"{row['split']}/group/{row['scope'].removeprefix(GROUP)}/{row['metric']}", float(row["mean"])
        else:
            yield key, f"{row['split']}/{row['metric']}", float(row["mean"])
            yield key, f"{row['split']}/{row['metric']}_std", float(row["std"])


def _means(frame: Any, keys: list[str]) -> Any:
    """Return means and standard deviations over seeds."""
    whole = frame.assign(all=0)
    return moments_by(whole, ["all", *keys]).reset_index()


def name_setting(setting: Mapping[str, float]) -> str:
    """Return a setting's name, such as "mu=0.1,clip=1.0"."""
    return ",".join(f"{name}={float(value)!r}" for name, value in setting.items())


@contextmanager
def artifacts(result: Result, folder: Path | None) -> Iterator[list[Path]]:
    """Yield the paths of a finished run's artifacts: the report, files of its folder and the model package."""
    with TemporaryDirectory() as made:
        report = [] if result.metrics.empty else [result.to_html(Path(made) / "report.html")]
        there = [] if folder is None else [folder / name for name in (*KEPT, MODEL)]
        yield [*report, *(path for path in there if path.exists())]


def import_extra(module: str, extra: str, what: str) -> Any:
    """Import a module of an optional package; raise `ConfigError` if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        text = f"{what} is not installed ({error}). Install it with: pip install 'equifed[{extra}]'"
        raise ConfigError(text, key="track") from error
