"""What a configuration holds: its sections, and how they are written."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from equifed import models, partition
from equifed.data import Columns, Holdout, Sensitive
from equifed.data.dates import DatePart
from equifed.disclosure import MIN_COUNT
from equifed.options import options_of
from equifed.protocol import Method
from equifed.registry import Registry
from equifed.settings import Cluster, RunSettings, SeekSettings
from equifed.tracking.names import check as check_tracked

SECTIONS = ("run", "data", "partition", "model", "local", "method", "sweep", "seek", "flower", "cluster")


def kebab(name: str) -> str:
    return name.strip("_").replace("_", "-")


class _Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, alias_generator=kebab, use_attribute_docstrings=True
    )


@dataclass(frozen=True)
class RunSection(RunSettings):
    """[run]: the settings of a run, with those of [local], and what only a saved run has."""

    name: str = ""
    """A name of your own; `equifed show` finds the run by it."""
    checkpoint_every: int = field(default=1, metadata={"low": 1})
    """Write a checkpoint every so many rounds; a resumed run repeats the rounds after the last one."""
    track: Sequence[str] = ()
    """Trackers that are told how the run goes: "mlflow", "mlflow:URI", "tensorboard:FOLDER", "wandb:PROJECT", or
    "module:Name". Folders are relative to where the command is started. Default: those that $EQUIFED_TRACK names."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tracked(self.track)


class _Sources(_Section):
    """[data]: where the rows are, but for what their columns mean and which of them are held out."""

    name: str | None = None
    """A data set of `equifed data list`."""
    preset: str | None = None
    """One of its presets; left out: its first."""
    files: list[str] | dict[str, str] | None = None
    """One CSV, Parquet or Arrow file per client: a list, or a table client = "file". Relative to this config file."""
    folder: str | None = None
    """In place of files: a folder with one such file per client. Relative to this config file."""
    table: str | None = None
    """In place of files: one file with all rows; [partition] says who holds which. Relative to this config file."""
    mapped: str | None = None
    """In place of files: a Parquet or Arrow file, or a folder of them, that may be larger than memory; the column
    `client` says who holds a row. Relative to this config file."""
    client: str | None = None
    """Of mapped files: the column that names the client."""
    cache: str | None = None
    """Of mapped files: the folder in which their rows are prepared, once. Relative to this config file. Default:
    beside them."""
    schema_: str | None = None
    """The schema file that all clients share (JSON)."""
    test_file: str | None = None
    """Of mapped files: the test rows, a file of their own. Relative to this config file."""
    client_test: float | None = Field(None, ge=0, lt=1)
    """Share of each client's rows that is kept for a test of its own, of a named data set. Default: the preset's."""
    rows: int | None = Field(None, ge=1)
    """Number of rows of a named data set to use, drawn at random once, the same for every seed. Default: all."""
    validation_file: str | None = None
    """The server's own validation rows, a file like the clients'. Relative to this config file."""
    client_groups: dict[str, str] | None = None
    """The known group of every client, a table client = "group", for methods that need it."""


def _written(hint: Any) -> Any:
    """Return the part of a type that a configuration can hold; None where there is none."""
    inside = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return Union[tuple(kind for each in inside if (kind := _written(each)) is not None)]  # noqa: UP007
    if get_origin(hint) is Literal:
        return str
    if get_origin(hint) is Sequence:
        return list[_written(inside[0])]  # type: ignore[misc]
    if get_origin(hint) is Mapping:
        return dict[str, _written(inside[1])]  # type: ignore[misc]
    return hint if hint in (str, int, float, NoneType) else None


def _keys() -> Iterator[tuple[str, Any]]:
    """Yield a key for each field of `Columns` and `Holdout` that a configuration has. None: its default."""
    for owner in (Columns, Holdout):
        hints = get_type_hints(owner, localns={"Sensitive": Sensitive, "DatePart": DatePart})
        for option in options_of(owner):
            facts = option.field.metadata
            if "metavar" in facts:
                limits = Field(None, ge=facts.get("low"), lt=facts.get("below"), description=option.description)
                yield option.name, (_written(hints[option.name] | None), limits)


class DataSection(create_model("DataKeys", __base__=_Sources, **dict(_keys()))):  # type: ignore[misc]
    """[data]: a data set by name, one file per client, or one table that [partition] deals to clients."""

    @property
    def title(self) -> str:
        """What the data are called in reports."""
        return self.name or (Path(self.table or self.mapped or "files").stem)

    @property
    def columns(self) -> Columns:
        """What the columns of own tables mean."""
        values = {each.name: getattr(self, each.name, None) for each in dataclasses.fields(Columns)}
        return Columns(**{name: value for name, value in values.items() if value is not None})

    def holdout(self, folder: Path) -> Holdout:
        """Which rows of own tables are held out; their files are found from `folder`."""
        files = {key: getattr(self, key) for key in ("test_file", "validation_file")}
        found = {key: folder / file for key, file in files.items() if file is not None}
        return Holdout(self.test, self.validation or 0.0, **found)


NAMED = (
    *("name", "preset", "client_test", "rows"),
    *(each.name for kind in (Columns, Holdout) for each in dataclasses.fields(kind) if each.metadata.get("named")),
)
"""Keys of [data] that go with a named data set."""
YEAR = 365 * 86_400
"""In seconds: the longest wait for an answer."""


class FlowerSection(_Section):
    """[flower]: how patient and how careful a real federation is; a simulation has no use for it."""

    min_replies: Annotated[int, Field(ge=1)] | None = None
    """A round with fewer usable replies is not applied. Default: 2, so that no aggregate is a single silo's reply."""
    deadline: float = Field(300.0, gt=0, le=YEAR)
    """Seconds that the clients have to answer in a phase."""
    join_deadline: float = Field(300.0, gt=0, le=YEAR)
    """Seconds that the server waits for the clients before the first round."""
    min_count: int = Field(MIN_COUNT, ge=0)
    """Clients withhold counts of their test rows below this number; a silo's own setting may be higher. 0: nothing."""


@dataclass(frozen=True)
class Config:
    """A checked configuration with every default filled in."""

    run: RunSection
    data: DataSection
    partition: partition.Partitioner | None
    """None where every file is a client."""
    model: models.Model
    method: Method
    sweep: Mapping[str, Sequence[float]]
    """Hyperparameter -> values; one run for each combination, all in one computation."""
    seek: SeekSettings | None = None
    """How the target is sought, by turning the method's knob; None where the file has no such section."""
    flower: FlowerSection | None = None
    """None where the file has no such section."""
    cluster: Cluster | None = None
    """How its jobs are shared out; None where the file has no such section. No part of what is computed, so no part of
    the resolved file either."""
    source: str = "configuration"
    """Where it came from, for messages."""
    folder: Path = Path()
    """What relative paths in it are relative to."""

    def resolved(self, folder: Path | None = None) -> dict[str, Any]:
        """All sections with all values, ready for TOML; paths relative to `folder`, where the file will lie."""
        values = self.data.model_dump()
        if self.data.name is None and values["meaning"] is None:
            values["meaning"] = ""  # as it has always been written, which runs are recognised by
        data = _spelt(values)
        if self.data.name is not None:
            data = {kebab(key): data[kebab(key)] for key in NAMED if kebab(key) in data}
        elif folder is not None:
            named = {
                "table": self.data.table,
                "mapped": self.data.mapped,
                "cache": self.data.cache,
                "test-file": self.data.test_file,
                "schema": self.data.schema_,
                "validation-file": self.data.validation_file,
            }
            files = {key: self.folder / file for key, file in named.items() if file is not None}
            data |= _relative(files, folder)
            if self.data.files:
                data["files"] = _relative(self.paths(), folder)
        sections: dict[str, Any] = {"run": _options(self.run), "data": data}
        if self.partition is not None:
            sections["partition"] = described(self.partition, partition.REGISTRY)
        sections["model"] = described(self.model, models.REGISTRY)
        sections["local"] = {**_options(self.run.local), "batch-size": self.run.local.batch_size or "all"}
        sections["method"] = {"name": self.method.name} | _spelt(self.method.hyper)
        if self.sweep:
            sections["sweep"] = {kebab(name): list(values) for name, values in self.sweep.items()}
        if self.seek is not None:
            sections["seek"] = _options(self.seek)
        if self.flower is not None:
            sections["flower"] = _spelt(self.flower.model_dump())
        return sections

    def fingerprint(self, folder: Path | None = None) -> str:
        """A hash of `identity`: equal exactly when the runs are the same."""
        text = json.dumps(identity(self.resolved(folder)), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def paths(self) -> dict[str, Path]:
        """The clients' files by client name."""
        files = self.data.files or {}
        named = files if isinstance(files, dict) else {Path(file).stem: file for file in files}
        return {name: self.folder / file for name, file in named.items()}

    def tables(self) -> dict[str, Path]:
        """All files whose rows are dealt to clients or are theirs, by name."""
        table = self.data.table
        return self.paths() if table is None else {Path(table).stem: self.folder / table}


def identity(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved configuration without what only says who is told of the run."""
    return {**resolved, "run": {key: value for key, value in resolved["run"].items() if key != "track"}}


def _relative(files: Mapping[str, Path], folder: Path) -> dict[str, str]:
    return {name: os.path.relpath(path.resolve(), folder.resolve()) for name, path in files.items()}


def _options(value: Any) -> dict[str, Any]:
    """A dataclass's options by their keys."""
    owner: type = type(value)
    return _spelt({option.key: getattr(value, option.name) for option in options_of(owner)})


def _spelt(values: Mapping[str, Any]) -> dict[str, Any]:
    """Keys in kebab-case; TOML has no null, so None is left out."""
    return {
        kebab(key): list(value) if isinstance(value, tuple) else value
        for key, value in values.items()
        if value is not None
    }


def described(value: Any, registry: Registry[Any]) -> dict[str, Any]:
    """A partition or a model as its section."""
    if dataclasses.is_dataclass(value):
        return {"kind": registry.name_of(type(value))} | _options(value)
    return {"kind": registry.name_of(value)}
