"""MLflow: an MLflow run for each run, and one below it for each setting of a sweep."""

from __future__ import annotations

import logging
import os
import re
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from equifed.errors import ConfigError
from equifed.results import Result
from equifed.tracking.callback import Callback, Round, Run, without_user
from equifed.tracking.series import artifacts, extra, named, values_of
from equifed.words import clean

EXPERIMENT = "equifed"
ID, SETTING = "equifed.run", "equifed.setting"
"""Tags by which a resumed run is found again."""
USUAL = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3"}
"""Of MLflow's environment, where it is not set: it tells its makers nothing, and a server that does not answer holds a
run up for seconds, not for minutes."""
MOST_RUNS = 50_000
LONGEST_NAME, LONGEST_VALUE = 240, 500
MOST_METRICS, MOST_PARAMETERS = 1000, 100
"""In one request."""


class MLflow(Callback):
    """Parameters, metrics by round and group, and at the end the report and the model package as artifacts."""

    def __init__(self, uri: str = "", experiment: str = "") -> None:
        """uri: of the tracking server or store; left out: what MLFLOW_TRACKING_URI says, or MLflow's own default.
        experiment: left out: what MLFLOW_EXPERIMENT_NAME says, or "equifed"."""
        for name, value in USUAL.items():
            os.environ.setdefault(name, value)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mlflow = extra("mlflow", "mlflow", "MLflow")
        self._entities = mlflow.entities
        with _quiet():  # not around the import, which sets the levels of logging
            try:
                self._client = mlflow.MlflowClient(tracking_uri=uri or None)
            except ImportError as error:
                raise ConfigError(
                    f"MLflow's local stores need more than the extra of equifed ({clean(error)}). Install all of it, "
                    "pip install mlflow, or name a tracking server: mlflow:http://HOST:PORT",
                    key="track",
                ) from error
            except mlflow.exceptions.MlflowException as error:
                raise ConfigError(f"MLflow does not take {uri or 'its default store'}: {clean(error)}") from error
        self.uri = str(self._client.tracking_uri)
        self.experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        self._runs: dict[str, str] = {}
        self._main = ""
        self._names = _Names()

    def __str__(self) -> str:
        return f"MLflow at {without_user(self.uri)}, experiment {self.experiment!r}"

    def run_started(self, run: Run) -> None:
        self._runs, self._names = {}, _Names()
        with _quiet():
            known = self._known(run)
            if run.over == ({},):
                self._main = self._runs[""] = known.get("") or self._create(run, {})
            else:
                self._main = known.get("") or self._create(run, {})
                for setting in run.over:
                    name = named(setting)
                    self._runs[name] = known.get(name) or self._create(run, setting, parent=self._main)
            for each in known.values():
                self._client.update_run(each, status="RUNNING")

    def round_finished(self, round: Round) -> None:
        now = int(time.time() * 1000)
        with _quiet():
            for setting, number, values in values_of(round):
                metrics = [
                    self._entities.Metric(self._names[name], value, now, number) for name, value in values.items()
                ]
                for begin in range(0, len(metrics), MOST_METRICS):
                    part = metrics[begin : begin + MOST_METRICS]
                    self._client.log_batch(self._runs[named(setting)], metrics=part)

    def run_finished(self, result: Result, folder: Path | None) -> None:
        with _quiet():
            self._end("FINISHED")
            with artifacts(result, folder) as paths:
                for path in paths:
                    self._client.log_artifact(self._main, str(path))

    def run_stopped(self, error: BaseException) -> None:
        with _quiet():
            self._end("FAILED" if isinstance(error, Exception) else "KILLED")

    def _end(self, status: str) -> None:
        for run in dict.fromkeys(filter(None, (*self._runs.values(), self._main))):
            self._client.set_terminated(run, status=status)

    def _known(self, run: Run) -> dict[str, str]:
        """The MLflow runs that an earlier process has made for this one, by setting."""
        self._experiment = self._found_experiment()
        if not run.id:
            return {}
        found = self._client.search_runs([self._experiment], f"tags.`{ID}` = '{run.id}'", max_results=MOST_RUNS)
        return {each.data.tags.get(SETTING, ""): each.info.run_id for each in found}

    def _found_experiment(self) -> str:
        found = self._client.get_experiment_by_name(self.experiment)
        return str(found.experiment_id if found else self._client.create_experiment(self.experiment))

    def _create(self, run: Run, setting: Mapping[str, float], parent: str = "") -> str:
        name = named(setting)
        tags = {"mlflow.source.name": "equifed", SETTING: name}
        tags |= {ID: run.id} if run.id else {}
        tags |= {"mlflow.parentRunId": parent} if parent else {}
        made = self._client.create_run(self._experiment, tags=tags, run_name=name or run.title).info.run_id
        parameters = [
            self._entities.Param(key, str(value)[:LONGEST_VALUE]) for key, value in run.parameters(setting).items()
        ]
        for begin in range(0, len(parameters), MOST_PARAMETERS):
            self._client.log_batch(made, params=parameters[begin : begin + MOST_PARAMETERS])
        return str(made)


class _Names(dict[str, str]):
    """Names that MLflow takes for those of values: a group may be called anything. No two become one."""

    def __missing__(self, name: str) -> str:
        parts = [re.sub(r"[^\w\-. ]", "_", part).strip() or "_" for part in name.split("/")]
        plain = "/".join(re.sub(r"^\.+$", "_", part) for part in parts)[:LONGEST_NAME]
        number, taken = 1, {*self.values()}
        self[name] = plain
        while self[name] in taken:
            number += 1
            self[name] = f"{plain} {number}"
        return self[name]


@contextmanager
def _quiet() -> Iterator[None]:
    """What MLflow and what it is made of say about themselves is not for who follows a run."""
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
