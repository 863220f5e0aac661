"""MLflow: one MLflow run per run, with a child run per setting of a sweep."""

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
from equifed.tracking.callback import Callback, Round, Run, remove_user
from equifed.tracking.series import artifacts, import_extra, name_setting, values_of
from equifed.words import clean

EXPERIMENT = "equifed"
ID, SETTING = "equifed.run", "equifed.setting"
"""Tags that identify a resumed run."""
USUAL = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3"}
"""Defaults for MLflow's environment variables: no telemetry, and an unreachable server delays a run for seconds, not
minutes."""
MOST_RUNS = 50_000
LONGEST_NAME, LONGEST_VALUE = 240, 500
MOST_METRICS, MOST_PARAMETERS = 1000, 100
"""Largest numbers of metrics and parameters in one request."""


class MLflow(Callback):
    """A tracker for MLflow: parameters, metrics by round and group, finally report and model package as artifacts."""

    def __init__(self, uri: str = "", experiment: str = "") -> None:
        """uri: that of the tracking server or store. Default: MLFLOW_TRACKING_URI, or MLflow's own default.
        experiment: its name. Default: MLFLOW_EXPERIMENT_NAME, or "equifed"."""
        for name, value in USUAL.items():
            os.environ.setdefault(name, value)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mlflow = import_extra("mlflow", "mlflow", "MLflow")
        self._entities = mlflow.entities
        with _silence():  # not around the import, which sets logging levels
            try:
                self._client = mlflow.MlflowClient(tracking_uri=uri or None)
            except ImportError as error:
                raise ConfigError(
                    f"MLflow's local stores need more than equifed's extra installs ({clean(error)}). Install the full "
                    "package, pip install mlflow, or name a tracking server: mlflow:http://HOST:PORT",
                    key="track",
                ) from error
            except mlflow.exceptions.MlflowException as error:
                raise ConfigError(f"MLflow does not accept {uri or 'its default store'}: {clean(error)}") from error
        self.uri = str(self._client.tracking_uri)
        self.experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        self._runs: dict[str, str] = {}
        self._main = ""
        self._names = _Names()

    def __str__(self) -> str:
        return f"MLflow at {remove_user(self.uri)}, experiment {self.experiment!r}"

    def run_started(self, run: Run) -> None:
        self._runs, self._names = {}, _Names()
        with _silence():
            known = self._find_known(run)
            if run.over == ({},):
                self._main = self._runs[""] = known.get("") or self._create(run, {})
            else:
                self._main = known.get("") or self._create(run, {})
                for setting in run.over:
                    name = name_setting(setting)
                    self._runs[name] = known.get(name) or self._create(run, setting, parent=self._main)
            for each in known.values():
                self._client.update_run(each, status="RUNNING")

    def round_finished(self, round: Round) -> None:
        now = int(time.time() * 1000)
        with _silence():
            for setting, number, values in values_of(round):
                metrics = [
                    self._entities.Metric(self._names[name], value, now, number) for name, value in values.items()
                ]
                for begin in range(0, len(metrics), MOST_METRICS):
                    part = metrics[begin : begin + MOST_METRICS]
                    self._client.log_batch(self._runs[name_setting(setting)], metrics=part)

    def run_finished(self, result: Result, folder: Path | None) -> None:
        with _silence():
            self._end("FINISHED")
            with artifacts(result, folder) as paths:
                for path in paths:
                    self._client.log_artifact(self._main, str(path))

    def run_stopped(self, error: BaseException) -> None:
        with _silence():
            self._end("FAILED" if isinstance(error, Exception) else "KILLED")

    def _end(self, status: str) -> None:
        for run in dict.fromkeys(filter(None, (*self._runs.values(), self._main))):
            self._client.set_terminated(run, status=status)

    def _find_known(self, run: Run) -> dict[str, str]:
        """Return the MLflow runs that an earlier process made for this run, by setting."""
        self._experiment = self._get_experiment()
        if not run.id:
            return {}
        found = self._client.search_runs([self._experiment], f"tags.`{ID}` = '{run.id}'", max_results=MOST_RUNS)
        return {each.data.tags.get(SETTING, ""): each.info.run_id for each in found}

    def _get_experiment(self) -> str:
        found = self._client.get_experiment_by_name(self.experiment)
        return str(found.experiment_id if found else self._client.create_experiment(self.experiment))

    def _create(self, run: Run, setting: Mapping[str, float], parent: str = "") -> str:
        name = name_setting(setting)
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
    """A map from names of values to names that MLflow accepts, because groups may have any name. It is one-to-one."""

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
def _silence() -> Iterator[None]:
    """Suppress messages of MLflow and its dependencies, which do not concern the user of a run."""
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
