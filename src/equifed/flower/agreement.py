"""What the server's and the clients' apps agree on, read from the configuration that both hold."""

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
"""What is subtracted from the inputs [d], and what they are multiplied by [d]."""


def reason_file(runs: str | Path, run: str) -> Path:
    """Where a server writes why it could not begin a run, for the command that started it."""
    return Path(runs) / f".{Path(run).name}.reason"


@dataclass(frozen=True, eq=False)
class Setting:
    """A federation's configuration, checked for what only a real one asks."""

    config: Config
    schema: Schema

    @classmethod
    def load(cls, path: str | Path, *, received: bool = False) -> Setting:
        """received: it is only looked at, so that modules that it names are not imported unless they are trusted."""
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
        """Whether the server sees sums of replies only."""
        return self.config.run.secure

    @property
    def method(self) -> Method:
        """The method as it runs."""
        found = self.config.method.summed if self.secure else self.config.method
        return found or self.config.method  # which is refused when the job is made

    @property
    def flower(self) -> FlowerSection:
        return self.config.flower or FlowerSection.model_validate({})

    @property
    def min_replies(self) -> int:
        cohort = self.config.run.clients_per_round
        return self.flower.min_replies or min(2, cohort if isinstance(cohort, int) else len(self.silos))

    @cached_property
    def scaled(self) -> np.ndarray:
        """Which inputs [d] are standardised."""
        return no_rows(self.schema).scale_columns

    @cached_property
    def frozen(self) -> str:
        """A fingerprint of what is frozen in the model, which every place makes itself; empty where nothing is."""
        with blaming(source=self.config.source, section="model"):
            fed = self.view()
            return fingerprint(models.build(self.config.model, fed.shape, num_outputs(fed.task, len(fed.classes))))

    @cached_property
    def digest(self) -> str:
        """Equal for apps that compute the same: everything but where files lie; also what is frozen in the model."""
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
        """The federation as one place sees it; see `from_one_place`."""
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
    """All phases of a method with their stage and position."""
    for stage in STAGES:
        for position, phase in enumerate(getattr(method, stage)):
            yield stage, position, phase


def codecs(method: Method) -> dict[str, str]:
    """How the method's fields are written, whichever message they travel in."""
    return {field: codec for _, _, phase in exchanges(method) for field, codec in phase.codecs.items()}


def action(stage: Stage, phase: Phase) -> str:
    """The part of the Flower message type after "train."; phases of different stages may have one name."""
    return phase.name if stage == "round" else f"{stage}_{phase.name}"


def _check(config: Config) -> None:
    """Refuse a configuration that a federation cannot carry out."""
    data, method = config.data, config.method
    if not data.files:
        text = "A federation needs its silos' names here, a table silo = 'file' with one entry for each."
        raise ConfigError(text, section="data", key="files")
    if data.schema_ is None:
        text = "A federation needs a schema file, because no silo sees the others' columns."
        raise ConfigError(text, section="data", key="schema")
    if data.validation:
        raise ConfigError(
            "The server of a federation holds none of the silos' rows. Give it a file of its own, "
            "validation-file = '...', or leave validation out.",
            section="data",
            key="validation",
        )
    if len(config.run.seed_list) > 1:
        raise ConfigError("A federation carries out one run: give one seed.", section="run", key="seeds")
    for section, there in (("sweep", config.sweep), ("seek", config.seek)):
        if there:
            raise ConfigError("A federation carries out one run: remove the section.", section=section)
    for name in ("dropout", "dropout_late"):
        if getattr(config.run, name):
            text = "The silos of a federation drop out by themselves. Remove it."
            raise ConfigError(text, section="run", key=name)
    if config.run.track:
        text = f"This file is shipped to every silo. Name the server's trackers in its environment: ${VARIABLE}."
        raise ConfigError(text, section="run", key="track")
    if config.run.secure and len(config.paths()) < FEWEST:
        text = f"needs at least {FEWEST} silos, and there are {len(config.paths())}: a sum over fewer hides nobody."
        raise ConfigError(text, section="run", key="secure")
    if method.pooled:
        text = f"{method.name} trains on the rows of all clients in one place, which a federation does not have."
        raise ConfigError(text, section="method", key="name")
    cohort = config.run.clients_per_round
    required = config.flower.min_replies if config.flower else None
    most = cohort if isinstance(cohort, int) else len(config.paths())
    if required is not None and required > most:
        text = f"{required} replies can never come from {most} clients per round."
        raise ConfigError(text, section="flower", key="min-replies", value=required)
