"""What a data set is: its files, how they become a table, and its presets (one per paper that used it)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from equifed.data.download import Fetched, File, fetch_files
from equifed.data.encoding import Encoding, Scaling, Schema, Sensitive, Task
from equifed.errors import ConfigError, DataError, unknown_name


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
    privileged: str | None = None
    categorical: tuple[str, ...] = ()
    """Number columns whose numbers are codes of categories."""
    encoding: Encoding = "onehot"
    scaling: Scaling = "standard"
    """minmax: over all rows, before the split; standard: by the caller, on the training rows only."""
    task: Task = "classification"
    label_range: tuple[float, float] | None = None
    split: tuple[float, float, float] = (0.6, 0.2, 0.2)
    """Train, validation and test: shares that add up to 1, or numbers of rows."""
    client_test: float = 0.0
    """The share of each client's rows that is kept for its own test."""
    split_column: str | None = None
    """A column with "train" and "test" where the data set comes with its split."""
    num_partitions: int = 10
    clients_per_round: int = 10
    natural: str | None = None
    """A column that says to whom a row belongs by nature, such as the state."""
    where: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Keep the rows whose column has one of these values."""
    drop_missing: bool = False
    """Drop the rows that miss a value in a column used here."""
    image: tuple[int, int, int] | None = None
    """The features are the pixels (0..255) of images of this shape: channels, height, width."""

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
        return Schema.infer(
            frame,
            label=self.label,
            sensitive=self.sensitive,
            features=() if self.image else self.features,
            positive=self.positive,
            privileged=self.privileged,
            categorical=self.categorical,
            encoding=self.encoding,
            scaling=self.scaling,
            task=self.task,
            label_range=self.label_range,
        )


@dataclass(frozen=True)
class Dataset:
    """A named data set: files, reader, presets (the first is the default), and what to tell about it."""

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
            raise ConfigError(unknown_name(f"preset of {self.name}", preset, self.presets))
        return self.presets[preset]

    def fetch(self, preset: str | Preset | None, home: str | os.PathLike[str] | None) -> Bunch:
        """The table of a preset, with fairlearn's names for its parts."""
        chosen = self.preset(preset)
        fetched: Mapping[str, Fetched] = fetch_files(self.files, home)
        table = self.read({name: file.content for name, file in fetched.items()})
        frame = chosen.select(table, self.name)
        groups = {rule.column: _group_names(rule, frame) for rule in chosen.sensitive}
        sensitive = pd.DataFrame(groups, index=frame.index)
        return Bunch(
            frame=frame,
            data=frame[list(chosen.features)],
            target=frame[chosen.label],
            sensitive=sensitive.iloc[:, 0] if len(groups) == 1 else sensitive,
            feature_names=list(chosen.features),
            target_name=chosen.label,
            sensitive_names=list(groups),
            description=self.description,
            citation=self.citation,
            license=self.license,
            source_hashes={name: file.sha256 for name, file in fetched.items()},
        )


def presets(*given: Preset) -> dict[str, Preset]:
    """By name, in the order given: the first is the default."""
    return {preset.name: preset for preset in given}


def _group_names(rule: Sensitive, frame: pd.DataFrame) -> pd.Categorical[str]:
    codes, names = rule.infer(frame).names(frame)
    return pd.Categorical.from_codes(codes, pd.Index(names))
