"""The setting that the server's and the clients' apps agree on, read from the configuration that both hold."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import numpy as np

from equifed import models
from equifed.config import Config, FlowerSection, identity, job_of, load_config
from equifed.data import Schema
from equifed.errors import ConfigError, blaming
from equifed.federation import Federation
from equifed.federation.silo import from_one_place
from equifed.federation.tables import no_rows, read_schema
from equifed.modules import fingerprint
from equifed.protocol import STAGES, Method, Phase, Stage
from equifed.secure import FEWEST
from equifed.simulator import Job
from equifed.task import num_outputs
from equifed.tracking.names import VARIABLE

Scaling = tuple[np.ndarray, np.ndarray]
"""Shift subtracted from the inputs [d], and factor that they are then multiplied by [d]."""


def reason_file(runs: str | Path, run: str) -> Path:
    """Return the file in which a server writes why it could not begin a run, for the command that started it."""
    return Path(runs) / f".{Path(run).name}.reason"


@dataclass(frozen=True, eq=False)
class Setting:
    """A federation's configuration, checked for the additional requirements of a real federation."""

    config: Config
    schema: Schema

    @classmethod
    def load(cls, path: str | Path, *, received: bool = False) -> Setting:
        """Load and check a configuration. received: for inspection only: only trusted modules are imported."""
        config = load_config(path, received=received)
        with blaming(source=config.source):
            _check(config)
        assert config.data.schema_ is not None
        return cls(config, read_schema(config.folder / config.data.schema_))

    @property
    def silos(self) -> tuple[str, ...]:
        return tuple(self.config.paths())

    @property
    def secure(self) -> bool:
        """True if the server sees sums of replies only."""
        return self.config.run.secure

    @property
    def method(self) -> Method:
        """The method as it runs."""
        found = self.config.method.summed if self.secure else self.config.method
        return found or self.config.method  # without secure sums: refused when the job is made

    @property
    def flower(self) -> FlowerSection:
        return self.config.flower or FlowerSection.model_validate({})

    @property
    def min_replies(self) -> int:
        cohort = self.config.run.clients_per_round
        return self.flower.min_replies or min(2, cohort if isinstance(cohort, int) else len(self.silos))

    @cached_property
    def scaled(self) -> np.ndarray:
        """Mask of the inputs that are standardised [d]."""
        return no_rows(self.schema).scale_columns

    @cached_property
    def frozen(self) -> str:
        """Fingerprint of the model's frozen parameters, computed by every party itself; empty if nothing is frozen."""
        with blaming(source=self.config.source, section="model"):
            fed = self.view()
            return fingerprint(models.build(self.config.model, fed.shape, num_outputs(fed.task, len(fed.classes))))

    @cached_property
    def digest(self) -> str:
        """Digest of everything that affects the computation: all settings but file locations, and frozen parameters."""
        sections = identity(self.config.resolved())
        sections["data"] = {
            key: value for key, value in sections["data"].items() if key not in ("files", "schema", "validation-file")
        }
        agreed = {
            **sections,
            "silos": self.silos,
            "schema": json.loads(self.schema.model_dump_json()),
            "equifed": version("equifed"),
            **({"frozen": self.frozen} if self.frozen else {}),
        }
        return hashlib.blake2b(json.dumps(agreed, sort_keys=True).encode(), digest_size=16).hexdigest()

    def view(self, silo: str | None = None, file: Path | None = None, validation: Path | None = None) -> Federation:
        """Return the federation as one party sees it; see `from_one_place`."""
        data = self.config.data
        return from_one_place(
            self.silos,
            self.schema,
            silo=silo,
            file=file,
            validation_file=validation,
            client_groups=data.client_groups,
            test=data.test,
            seed=self.config.run.seed_list[0],
            name=self.config.run.name or "federation",
        )

    def job(self, federation: Federation, scaling: Scaling | None) -> Job:
        return job_of(self.config, [dataclasses.replace(federation, scaling=scaling)], one_place=True)


def exchanges(method: Method) -> Iterator[tuple[Stage, int, Phase]]:
    """Yield all phases of a method with their stage and position."""
    for stage in STAGES:
        for position, phase in enumerate(getattr(method, stage)):
            yield stage, position, phase


def codecs(method: Method) -> dict[str, str]:
    """Return the codec of each of the method's fields that has one, for messages in both directions."""
    return {field: codec for _, _, phase in exchanges(method) for field, codec in phase.codecs.items()}


def action(stage: Stage, phase: Phase) -> str:
    """Return the part of the Flower message type after "train."; phases of different stages may share a name."""
    return phase.name if stage == "round" else f"{stage}_{phase.name}"


def _check(config: Config) -> None:
    """Refuse a configuration that a federation cannot carry out."""
    data, method = config.data, config.method
    if not data.files:
        text = "A federation needs a table silo = 'file' here, with one entry per silo."
        raise ConfigError(text, section="data", key="files")
    if data.schema_ is None:
        text = "A federation needs a schema file, because a silo does not see the other silos' columns."
        raise ConfigError(text, section="data", key="schema")
    if data.validation:
        raise ConfigError(
            "The server of a federation does not hold the silos' rows. Set validation-file = '...' to a file on the "
            "server, or remove validation.",
            section="data",
            key="validation",
        )
    if len(config.run.seed_list) > 1:
        raise ConfigError("A federation carries out a single run: give one seed.", section="run", key="seeds")
    for section, there in (("sweep", config.sweep), ("seek", config.seek)):
        if there:
            raise ConfigError("A federation carries out a single run: remove the section.", section=section)
    for name in ("dropout", "dropout_late"):
        if getattr(config.run, name):
            text = "Dropout is simulated only in simulations; real silos drop out by themselves. Remove the setting."
            raise ConfigError(text, section="run", key=name)
    if config.run.track:
        text = f"This file is shipped to every silo. Name the server's trackers in its environment: ${VARIABLE}."
        raise ConfigError(text, section="run", key="track")
    if config.run.secure and len(config.paths()) < FEWEST:
        text = f"needs at least {FEWEST} silos, got {len(config.paths())}: a smaller sum would disclose replies."
        raise ConfigError(text, section="run", key="secure")
    if method.pooled:
        text = f"{method.name} trains on the rows of all clients in one place, which a federation cannot do."
        raise ConfigError(text, section="method", key="name")
    cohort = config.run.clients_per_round
    required = config.flower.min_replies if config.flower else None
    most = cohort if isinstance(cohort, int) else len(config.paths())
    if required is not None and required > most:
        text = f"{required} replies are impossible with {most} clients per round."
        raise ConfigError(text, section="flower", key="min-replies", value=required)
