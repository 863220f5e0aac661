"""What a data set is: its files, how they become a table, and its presets (one per paper that used it)."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from equifed.data.columns import Columns, Encoding, Scaling, TaskKind
from equifed.data.download import Fetched, File, fetch_files, where
from equifed.data.schema import Encoded, Schema, Sensitive
from equifed.errors import DataError, unknown_name
from equifed.partition import IID, Dirichlet, Natural, Partitioner

if TYPE_CHECKING:
    from equifed.models import Model


class Bunch(dict[str, Any]):
    """A dictionary whose entries are also attributes, as the loaders of fairlearn return."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self]


@dataclass(frozen=True)
class Preset:
    """How one study read a data set; loading must reproduce its `rows`, `inputs` and `groups`."""

    name: str
    description: str
    rows: int
    inputs: int
    groups: tuple[str, ...]
    """Group names in code order, the privileged one last."""
    label: str
    features: tuple[str, ...]
    """The columns used as inputs; the sensitive ones are among them exactly when the study used them."""
    sensitive: tuple[Sensitive, ...]
    positive: str | None = None
    """The label value that is class 1; None for several classes and for numbers."""
    meaning: str = ""
    """What that class says of a row, or what the number to be predicted is, in a few words."""
    categorical: tuple[str, ...] = ()
    """Number columns whose numbers are codes of categories."""
    encoding: Encoding = "onehot"
    scaling: Scaling = "standard"
    """minmax: over all rows, before the split; standard: by the caller, on the training rows only."""
    task: TaskKind = "classification"
    label_range: tuple[float, float] | None = None
    split: tuple[float, float, float] = (0.6, 0.2, 0.2)
    """Train, validation and test: shares that add up to 1, or numbers of rows."""
    client_test: float = 0.0
    """The share of each client's rows that is kept for its own test."""
    split_column: str | None = None
    """A column with "train" and "test" where the data set comes with its split."""
    num_partitions: int = 10
    alpha: float | None = 0.5
    """Concentration of the Dirichlet partition over label and group; None: equal random chunks."""
    clients_per_round: int | None = None
    """Clients sampled in each round; None: all."""
    natural: str | None = None
    """A column that says to whom a row belongs by nature, such as the state."""
    partition: Partitioner | None = None
    """The study's way of dealing rows to clients, where it is none of these."""
    where: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Keep the rows whose column has one of these values."""
    min_group: int = 0
    """Groups with fewer rows than this become one."""
    drop_missing: bool = False
    """Drop the rows that miss a value in a column that the preset uses."""
    image: tuple[int, int, int] | None = None
    """The features are the pixels (0..255) of images of this shape: channels, height, width."""

    @property
    def privileged(self) -> str | None:
        return self.groups[-1] if self.sensitive and self.groups else None

    @property
    def sampled(self) -> int:
        """How many clients are sampled in each round."""
        return self.clients_per_round or self.num_partitions

    @property
    def sensitive_as_input(self) -> bool:
        return any(rule.column in self.features for rule in self.sensitive)

    def select(self, frame: pd.DataFrame, dataset: str) -> pd.DataFrame:
        """The rows of this preset; another number of them than the study had is an error, not a surprise."""
        for column, values in self.where:
            frame = frame[frame[column].isin(values)]
        if self.drop_missing:
            used = [*self.features, self.label, *(rule.column for rule in self.sensitive)]
            frame = frame.dropna(subset=list(dict.fromkeys(used)))
        if len(frame) != self.rows:
            raise DataError(
                f"Preset {self.name!r} of {dataset} must have {self.rows} rows, but the files give "
                f"{len(frame)}. Check the files in the data home."
            )
        return frame.reset_index(drop=True)

    def schema(self, frame: pd.DataFrame) -> Schema:
        """The schema of this preset, read off its rows."""
        meant = {
            each.name: getattr(self, each.name) for each in dataclasses.fields(Columns) if hasattr(self, each.name)
        }
        meant |= {
            "missing": "category",
            "min_count": 0,
            "na_values": (),
        }  # the files are public, and `read` has read them
        if self.image:
            meant["features"] = ()
        return Schema.infer(frame, Columns(**meant))

    def grouped_by(self, sensitive: str | Sensitive | Sequence[str | Sensitive] | None, min_group: int = 0) -> Preset:
        """The same rows and inputs with the groups of other columns. A column that the preset itself has groups of
        means those groups (COMPAS: Caucasian and all others), also where it is crossed with others."""
        own = {rule.column: rule for rule in self.sensitive}
        given = self.sensitive if sensitive is None else sensitive
        rules = tuple(
            rule if isinstance(rule, Sensitive) else own.get(rule, Sensitive(column=rule))
            for rule in ([given] if isinstance(given, str | Sensitive) else given)
        )
        groups = self.groups if rules == self.sensitive else ()
        return dataclasses.replace(self, sensitive=rules, groups=groups, min_group=min_group)

    def default_partition(self) -> Partitioner:
        """How the rows are dealt to clients where no partition is given, in Python and in configurations alike."""
        if self.partition is not None:
            return self.partition
        if self.natural is not None:
            return Natural(self.natural)
        return IID(self.num_partitions) if self.alpha is None else Dirichlet(self.num_partitions, self.alpha)

    def default_model(self) -> Model:
        """What is trained where no model is given."""
        from equifed.models import LeNet, Linear, Logistic  # late: reading data must not wait for torch

        return LeNet() if self.image else Linear() if self.task == "regression" else Logistic()

    def describe(self) -> dict[str, Any]:
        """The facts of this preset, for people and for JSON."""
        return {
            "description": self.description,
            "task": self.task,
            "rows": self.rows,
            "columns": len(self.features),
            "inputs": self.inputs,
            "label": self.label,
            "positive": self.positive,
            "meaning": self.meaning,
            "sensitive": [rule.column for rule in self.sensitive],
            "sensitive_as_input": self.sensitive_as_input,
            "groups": list(self.groups),
            "privileged": self.privileged,
            "encoding": self.encoding,
            "scaling": self.scaling,
            "split": list(self.split),
            "clients": self.num_partitions,
            "clients_per_round": self.sampled,
            "natural": self.natural,
        }


@dataclass(frozen=True)
class Dataset:
    """A named data set: files, reader, presets (the first is the default), and its description."""

    name: str
    title: str
    files: tuple[File, ...]
    read: Callable[[Mapping[str, bytes]], pd.DataFrame]
    presets: Mapping[str, Preset]
    description: str
    citation: str
    license: str

    def preset(self, preset: str | Preset | None) -> Preset:
        if isinstance(preset, Preset):
            return preset
        if preset is None:
            return next(iter(self.presets.values()))
        if preset not in self.presets:
            raise unknown_name(f"preset of {self.name}", preset, self.presets, key="preset")
        return self.presets[preset]

    def table(self, preset: Preset, home: str | os.PathLike[str] | None = None) -> tuple[pd.DataFrame, dict[str, str]]:
        """The rows of a preset with all columns, and the SHA-256 of each file they come from."""
        fetched: Mapping[str, Fetched] = fetch_files(self.files, home)
        table = self.read({name: file.content for name, file in fetched.items()})
        return preset.select(table, self.name), {name: file.sha256 for name, file in fetched.items()}

    def fetch(self, preset: str | Preset | None = None, home: str | os.PathLike[str] | None = None) -> Bunch:
        """The table of a preset, with fairlearn's names for its parts."""
        chosen = self.preset(preset)
        return self.bunch(chosen, *self.table(chosen, home))

    def bunch(self, preset: Preset, frame: pd.DataFrame, source_hashes: Mapping[str, str]) -> Bunch:
        """A preset's table with its parts by name."""
        groups = {rule.column: _group_names(rule, frame) for rule in preset.sensitive}
        sensitive = pd.DataFrame(groups, index=frame.index)
        return Bunch(
            frame=frame,
            data=frame[list(preset.features)],
            target=frame[preset.label],
            sensitive=sensitive.iloc[:, 0] if len(groups) == 1 else sensitive,
            feature_names=list(preset.features),
            target_name=preset.label,
            sensitive_names=list(groups),
            description=self.description,
            citation=self.citation,
            license=self.license,
            source_hashes=dict(source_hashes),
        )

    def encode(
        self,
        preset: str | Preset | None = None,
        home: str | os.PathLike[str] | None = None,
        columns: Sequence[str] = (),
        sensitive: str | Sensitive | Sequence[str | Sensitive] | None = None,
        min_group: int = 0,
    ) -> Loaded:
        """The data set as numbers, by one of its presets (or a changed copy of one), with further `columns` as they
        are. sensitive, min_group: see `Preset.grouped_by`."""
        chosen = self.preset(preset)
        frame, hashes = self.table(chosen, home)
        chosen = chosen.grouped_by(sensitive, min_group)
        pixels = set(chosen.features) if chosen.image else set()
        known = [column for column in frame.columns if column not in pixels]
        for rule in chosen.sensitive:
            if rule.column not in known or rule.column == chosen.label:
                possible = [column for column in known if column != chosen.label]
                raise unknown_name(f"sensitive column of {self.name}", rule.column, possible, key="sensitive")
        for column in columns:
            if column not in known:
                raise unknown_name(f"column of {self.name}", column, ["label", "group", *known])
        kept = dict.fromkeys(column for column in (chosen.natural, chosen.split_column, *columns) if column)
        encoded = chosen.schema(frame).encode(frame, columns=list(kept))
        if chosen.image:
            images = frame[list(chosen.features)].to_numpy().astype(np.float32).reshape(-1, *chosen.image)
            images /= 255
            unscaled = np.zeros(len(chosen.features), dtype=np.bool_)
            encoded = dataclasses.replace(
                encoded, x=images, feature_names=chosen.features, scale_columns=unscaled, schema=None
            )
        return Loaded(encoded, chosen, frame, hashes)

    def describe(self, home: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """What the data set is, its presets, and where its files lie ("not here" when they must be fetched)."""
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "citation": self.citation,
            "license": self.license,
            "presets": {preset.name: preset.describe() for preset in self.presets.values()},
            "files": {file.name: str(where(file, home) or "not here") for file in self.files},
        }


class Loaded(NamedTuple):
    """A data set as numbers, and what they were made from."""

    encoded: Encoded
    preset: Preset
    frame: pd.DataFrame
    """The preset's rows with all columns."""
    source_hashes: dict[str, str]
    """SHA-256 of each file."""


def names(text: str) -> tuple[str, ...]:
    """Names of columns, written with spaces between them."""
    return tuple(text.split())


def kffl(preset: Preset) -> Preset:
    """A preset with the split and the clients of KFFL's experiments."""
    return dataclasses.replace(preset, name="kffl", split=(0.8, 0.0, 0.2), num_partitions=4)


def presets(*given: Preset) -> dict[str, Preset]:
    """By name, in the order given: the first is the default."""
    return {preset.name: preset for preset in given}


def _group_names(rule: Sensitive, frame: pd.DataFrame) -> pd.Categorical[str]:
    codes, names = rule.infer(frame).names(frame)
    return pd.Categorical.from_codes(codes, pd.Index(names))
