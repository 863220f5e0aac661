"""A result as files and back: Parquet and JSON for the frames, safetensors for the parameters."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors import SafetensorError
from safetensors.numpy import load, save

from equifed import registry
from equifed.errors import ConfigError, EquifedWarning, RunError
from equifed.federation.reading import Kind
from equifed.files import check_writable, clear_temporaries, plain, to_json
from equifed.metrics import catalogue
from equifed.metrics.seeds import moments
from equifed.notes import Note
from equifed.results.collect import MESSAGES, REJECTIONS
from equifed.results.result import Result
from equifed.settings import RunSettings
from equifed.store.locks import lock_at, take
from equifed.store.package import ABOUT, MODEL, SCHEMA, Package, write_package
from equifed.store.sums import SUMS, Sums

CONFIG = "config.toml"
CHECKPOINT = "checkpoint.safetensors"
FEDERATION = "federation.json"
"""Of a run whose clients were elsewhere: who took part, and how the inputs were standardised."""
JOURNAL = "sums"
"""The folder of such a run, while it goes on with secure sums: every exchange since the last checkpoint."""
_MEASURED: dict[str, Kind] = {
    **{"method": "text", "seed": "number", "round": "number", "split": "text", "scope": "text", "metric": "text"},
    "value": "number",
}
FRAMES: dict[str, dict[str, Kind]] = {
    "metrics": _MEASURED,
    "counts": {"method": "text", "seed": "number", "split": "text", "group": "any", "label": "any", "rows": "number"},
    "calibration": {"method": "text", "seed": "number", "split": "text", "group": "any", "rows": "number"},
    "local_gaps": {"method": "text", "seed": "number", "client": "text", "metric": "text", "value": "number"},
    "cuts": {"method": "text", "seed": "number", "client": "text", "updates": "number", "cut": "number"},
    "plain_mean": _MEASURED,
    "log": {"method": "text", "seed": "number", "round": "number", "applied": "number", "stopped": "number"},
}
"""The frames of a result, and columns that each of them has whatever was run."""
RESULT = "result.json"
FILES = {f"{name}.parquet" for name in FRAMES} | {
    *(
        "messages.json",
        "rejections.json",
        "timings.json",
        "final.safetensors",
        f"{MODEL}/{ABOUT}",
        f"{MODEL}/{SCHEMA}",
        RESULT,
    )
}
"""All that a result is read from; the model's weights are read when something is predicted."""
COPY = "Put back a copy of what was there."


def save_result(folder: str | Path, result: Result) -> None:
    """Write everything that the result holds, for `load_result` to read."""
    folder = Path(folder)
    if (folder / CHECKPOINT).exists():
        raise ConfigError(f"{folder} is the folder of a run, which has a result of its own. Name another folder.")
    check_writable(folder, "Name another folder for the result.")
    lock = lock_at(folder / "lock")
    if not take(lock):
        raise RunError(f"Another process is saving a result in {folder}.")
    try:
        clear_temporaries(folder)
        (folder / SUMS).unlink(missing_ok=True)  # until all is there, there is no result
        write_result(Sums(folder), result)
    finally:
        lock.release()


def write_result(sums: Sums, result: Result, facts: Mapping[str, Any] | None = None) -> None:
    """Everything, with the model package. SUMS.json comes last: that it has the name of result.json means that all is
    there. facts: what a run's folder knows besides, for the model card."""
    write_package(sums, result, facts)
    for name in FRAMES:
        sums.write(f"{name}.parquet", getattr(result, name).to_parquet(index=False))
    sums.write("messages.json", to_json(result.messages.to_dict("records")))
    sums.write("rejections.json", to_json(result.rejections.to_dict("records")))
    sums.write("timings.json", to_json(result.timings))
    tensors = {
        f"{_label(result, key)}/{name}": np.asarray(value, order="C")
        for key, parameters in result.parameters.items()
        for name, value in parameters.items()
    }
    sums.write("final.safetensors", save(tensors))
    about = {
        "info": result.info,
        "settings": result.settings.to_dict(),
        "notes": [note.to_json() for note in result.notes],
        "headline": headline(result),
        "runs": list(result.parameters),
    }
    sums.write(RESULT, to_json(about))
    sums.save()


def load_result(folder: str | Path, *, trust: Sequence[str] = ()) -> Result:
    """The result of a finished run's folder, or of one that `save_result` wrote: with equal frames, and predicting and
    adapting as the one that was saved. Every file is looked at: one that the result needs must be as it was written,
    and others are warned of. What predicting needs is read when it is first needed. trust: as for `load_model`."""
    registry.trust(*trust)
    folder = Path(folder)
    if not os.path.isfile(folder / RESULT):
        raise RunError(f"There is no result in {folder}: it has no {RESULT}. A run has one when it has finished.")
    sums = Sums.load(folder, remedy(folder))
    wrong = check_result(sums)
    if wrong:
        warnings.warn(
            f"Beside the result in {folder}, which is as it was written, {_listed(wrong)}. {sums.remedy}",
            EquifedWarning,
            stacklevel=2,
        )
    try:
        return _read_result(sums)
    except (KeyError, TypeError, ValueError, SafetensorError) as error:
        raise RunError(
            f"The result in {folder} is not one that this version of equifed can read ({error!r}). {sums.remedy}"
        ) from error


def check_result(sums: Sums) -> dict[str, str]:
    """Refuse a result that is not as it was written; what is wrong with files that it does not need."""
    wrong = sums.wrong()
    if not wrong and RESULT in sums:
        return {}
    if CONFIG in wrong:
        sums.remedy = COPY
    needed = {name: why for name, why in wrong.items() if name in FILES}
    if all(name in FILES or name.startswith(f"{MODEL}/") for name in wrong) and (sums.folder / CHECKPOINT).is_file():
        sums.remedy = f"The run itself is intact: `{resuming(sums.folder)}` makes its result again, without computing."
    if needed:
        raise RunError(f"The result in {sums.folder} cannot be used: {_listed(needed)}. {sums.remedy}")
    if RESULT not in sums:
        todo = f"Let the run finish: {resuming(sums.folder)}" if (sums.folder / CHECKPOINT).is_file() else sums.remedy
        raise RunError(f"The result in {sums.folder} was not written to its end: {SUMS} has no {RESULT}. {todo}")
    return wrong


def _listed(wrong: dict[str, str], most: int = 5) -> str:
    more = f" and {len(wrong) - most} more" if len(wrong) > most else ""
    return ", ".join(f"{name} {why}" for name, why in list(wrong.items())[:most]) + more


def remedy(folder: Path) -> str:
    """What can be done where a file is damaged."""
    again = f"compute it again: equifed run {folder}/config.toml" if (folder / CONFIG).is_file() else "make it again."
    return f"{COPY[:-1]}, or {again}"


def resuming(folder: Path, name: str | None = None) -> str:
    """The command that goes on with a run; `name`: what it may be called where the command is typed."""
    if (folder / FEDERATION).is_file():
        return f"equifed flower resume {folder.parent.parent} {folder.name}"
    return f"equifed resume {name or folder}"


def _read_result(sums: Sums) -> Result:
    content = sums.read_json(RESULT)
    keys = [tuple(key) if isinstance(key, list) else key for key in content["runs"]]
    hyper = content["info"]["hyper_parameters"]
    content["info"]["hyper_parameters"] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in hyper.items()
    }
    rejections = sums.read_json("rejections.json")
    package = Package.of(sums, f"{MODEL}/")
    result = Result(
        **{name: sums.read_parquet(f"{name}.parquet", columns) for name, columns in FRAMES.items()},
        messages=pd.DataFrame(sums.read_json("messages.json"), columns=MESSAGES),
        rejections=pd.DataFrame(rejections, columns=[*content["info"]["swept"], *REJECTIONS]),
        parameters={key: {} for key in keys},
        info=content["info"],
        settings=RunSettings.from_dict(content["settings"]),
        timings=sums.read_json("timings.json"),
        notes=[Note.from_json(note) for note in content["notes"]],
        final_states=package.states,
        schema=package.schema,
    )
    labels = {_label(result, key): key for key in keys}
    for name, value in load(sums.read("final.safetensors")).items():
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
