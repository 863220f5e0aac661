"""A result as files and back: Parquet and JSON for the frames, safetensors for the parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors.numpy import load_file, save

from equifed.data import Schema
from equifed.errors import ConfigError, RunError
from equifed.files import plain, writable_folder, write_atomic, write_json
from equifed.metrics import catalogue
from equifed.metrics.seeds import moments
from equifed.notes import Note
from equifed.results.collect import MESSAGES, REJECTIONS
from equifed.results.result import Result
from equifed.results.stored import StoredStates, describe
from equifed.settings import RunSettings

CHECKPOINT = "checkpoint.safetensors"
FRAMES = ("metrics", "counts", "calibration", "local_gaps", "log")
STATES = "states.safetensors"
SCHEMA = "schema.json"


def save_result(folder: str | Path, result: Result) -> None:
    """Write everything that the result holds, for `load_result` to read."""
    folder = Path(folder)
    if (folder / CHECKPOINT).exists():
        raise ConfigError(f"{folder} is the folder of a run, which has a result of its own. Name another folder.")
    writable_folder(folder, "Name another folder for the result.")
    arrays = StoredStates.pack(result.final_states).arrays
    write_atomic(folder / STATES, save({name: np.asarray(value, order="C") for name, value in arrays.items()}))
    write_result(folder, result)


def write_result(folder: Path, result: Result) -> None:
    """All but the states that predicting needs, which the last checkpoint of a run has. result.json comes last, so that
    its presence means that all is there."""
    for name in FRAMES:
        write_atomic(folder / f"{name}.parquet", getattr(result, name).to_parquet(index=False))
    write_json(folder / "messages.json", result.messages.to_dict("records"))
    write_json(folder / "rejections.json", result.rejections.to_dict("records"))
    write_json(folder / "timings.json", result.timings)
    tensors = {
        f"{_label(result, key)}/{name}": np.asarray(value, order="C")
        for key, parameters in result.parameters.items()
        for name, value in parameters.items()
    }
    write_atomic(folder / "final.safetensors", save(tensors))
    if result.schema is not None:
        write_atomic(folder / SCHEMA, result.schema.to_json().encode())
    write_json(
        folder / "result.json",
        {
            "info": result.info,
            "settings": result.settings.to_dict(),
            "notes": [note.to_json() for note in result.notes],
            "headline": headline(result),
            "runs": list(result.parameters),
            "final_states": describe(result.final_states),
        },
    )


def load_result(folder: str | Path) -> Result:
    """The result of a finished run's folder, or of one that `save_result` wrote: with equal frames, and predicting and
    adapting as the one that was saved. What predicting needs is read when it is first needed."""
    folder = Path(folder)
    if not (folder / "result.json").is_file():
        raise RunError(f"There is no result in {folder}: it has no result.json. A run has one when it has finished.")
    absent = [file for name in FRAMES if not (folder / (file := f"{name}.parquet")).is_file()]
    if absent:
        again = f": equifed run {folder}/config.toml" if (folder / "config.toml").is_file() else "."
        raise RunError(
            f"The result in {folder} has no {', '.join(absent)}, which this version of equifed writes: it was made by "
            f"an older version, or files were removed. Make it again{again}"
        )
    content = json.loads((folder / "result.json").read_text())
    keys = [tuple(key) if isinstance(key, list) else key for key in content["runs"]]
    hyper = content["info"]["hyper_parameters"]
    content["info"]["hyper_parameters"] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in hyper.items()
    }
    rejections = json.loads((folder / "rejections.json").read_text())
    checkpoint = folder / CHECKPOINT
    result = Result(
        **{name: pd.read_parquet(folder / f"{name}.parquet") for name in FRAMES},
        messages=pd.DataFrame(json.loads((folder / "messages.json").read_text()), columns=MESSAGES),
        rejections=pd.DataFrame(rejections, columns=[*content["info"]["swept"], *REJECTIONS]),
        parameters={key: {} for key in keys},
        info=content["info"],
        settings=RunSettings.from_dict(content["settings"]),
        timings=json.loads((folder / "timings.json").read_text()),
        notes=[Note.from_json(note) for note in content["notes"]],
        final_states=StoredStates(content["final_states"], checkpoint if checkpoint.exists() else folder / STATES),
        schema=Schema.from_json((folder / SCHEMA).read_bytes()) if (folder / SCHEMA).is_file() else None,
    )
    labels = {_label(result, key): key for key in keys}
    for name, value in load_file(folder / "final.safetensors").items():
        label, _, parameter = name.partition("/")
        result.parameters[labels[label]][parameter] = value
    return result


def headline(result: Result) -> dict[str, Any]:
    """Means over all runs of the last round's main metrics; "undefined" counts the runs that a mean lacks."""
    final = result.final()
    over = {name: moments(final[name]) for name in catalogue.shown(final.columns, "headline")}
    undefined = {name: len(final) - value.n for name, value in over.items() if value.n < len(final)}
    means = {name: value.mean for name, value in over.items()}
    shown: dict[str, Any] = plain(means | ({"undefined": undefined} if undefined else {}))
    return shown


def _label(result: Result, key: Any) -> str:
    """ "seed=0", or "mu=0.1,seed=0" after a sweep."""
    values = key if isinstance(key, tuple) else (key,)
    return ",".join(f"{name}={value}" for name, value in zip([*result.swept, "seed"], values, strict=True))
