"""The model package: the folder `model` of a finished run or a saved result, which can be copied anywhere.

    model.safetensors  the weights, and per client what predicting needs where clients have models of their own
    model.json         method, architecture, scaling, classes, groups, and which runs there are
    schema.json        how a table becomes inputs, missing values included; absent where the data were arrays
    MODEL_CARD.md      what it is, for people
    SUMS.json          checksums of these

Nothing in it is a row, and nothing of it is code: it is read without the data it was trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from equifed import registry
from equifed.data import Schema
from equifed.errors import ConfigError, RunError
from equifed.files import MOST_JSON, check_writable, checksum, clear_temporaries, read_regular, refuse_link, to_json
from equifed.report.card import card_of
from equifed.results.model import Model, choose_run
from equifed.results.result import Result
from equifed.results.stored import StoredStates
from equifed.store.sums import SUMS, Sums

MODEL = "model"
"""The folder."""
WEIGHTS, ABOUT, SCHEMA, CARD = "model.safetensors", "model.json", "schema.json", "MODEL_CARD.md"
FORMAT = 1
COPY = "Copy the folder again from where it was made."


@dataclass(frozen=True, eq=False)
class Package:
    """What a package holds, as it was written; the weights are read when they are first needed."""

    about: Mapping[str, Any]
    states: StoredStates
    schema: Schema | None

    @classmethod
    def open(cls, folder: Path, remedy: str = COPY) -> Package:
        """A package by itself."""
        return cls.of(Sums.load(folder, remedy))

    @classmethod
    def of(cls, sums: Sums, under: str = "") -> Package:
        """The package in a folder whose checksums are at hand; under: where in it, "model/"."""
        weights, about, schema = (f"{under}{name}" for name in (WEIGHTS, ABOUT, SCHEMA))
        if about not in sums:
            raise RunError(
                f"The model in {sums.folder} was not written to its end: {SUMS} has no {about}. {sums.remedy}"
            )
        try:
            content = sums.read_json(about)
            if content["format"] != FORMAT:
                raise RunError(
                    f"The model in {sums.folder} has format {content['format']!r}, and this version of equifed reads "
                    f"{FORMAT}. Use the version that made it, which its model card names."
                )
            return cls(
                content,
                StoredStates(content["final_states"], lambda: _weights(sums, weights)),
                Schema.from_json(sums.read(schema, MOST_JSON)) if schema in sums else None,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"The model in {sums.folder} cannot be read ({error!r}). {sums.remedy}") from error

    def model(self, seed: int | None, setting: Mapping[str, float] | None, client: str | None, model: Any) -> Model:
        swept = self.about["swept"]
        run = choose_run(list(self.states), swept, seed, setting, self.about["chosen"])
        state = self.states.rebuilt(model)[run]
        return Model(
            state,
            self.schema,
            labels=tuple(self.about["classes"]),
            groups=tuple(self.about["groups"]),
            meaning=self.about["meaning"],
            data=self.about["data"],
            setting=dict(zip(swept, run[:-1], strict=True)) if swept else None,
            client=client,
        )


def write_package(sums: Sums, result: Result, facts: Mapping[str, Any] | None = None) -> None:
    """Write the package of a result into its folder, and its files into the folder's checksums. facts: what the folder
    knows besides, for the card: see `documented`."""
    folder = sums.folder / MODEL
    refuse_link(folder)
    check_writable(folder, "Make room for the model there.")
    clear_temporaries(folder)
    (folder / SUMS).unlink(missing_ok=True)  # until all is there, there is no model
    own, states = Sums(folder), StoredStates.pack(result.final_states)
    own.write(WEIGHTS, save({name: np.asarray(value, order="C") for name, value in states.arrays.items()}))
    if result.schema is not None:
        own.write(SCHEMA, result.schema.to_json().encode())
    about = {
        "format": FORMAT,
        **{name: result.info.get(name, "") for name in ("method", "data", "task", "classes", "groups", "meaning")},
        "swept": result.swept,
        "chosen": result.chosen_setting(),
        "final_states": states.about,
    }
    own.write(ABOUT, to_json(about))
    card = card_of(result, {**(facts or {}), "weights": own[WEIGHTS]})
    own.write(CARD, card.markdown().encode())
    own.save()
    sums |= {f"{MODEL}/{name}": digest for name, digest in own.items()}
    sums[f"{MODEL}/{SUMS}"] = checksum(read_regular(folder / SUMS))


def load_model(
    reference: str | PathLike[str],
    *,
    seed: int | None = None,
    setting: Mapping[str, float] | None = None,
    client: str | None = None,
    runs: str | PathLike[str] | None = None,
    model: Any = None,
    trust: Sequence[str] = (),
) -> Model:
    """The model of a finished run, with scikit-learn's interface: `predict`, `predict_proba`, `classes_`.

    reference: the run's id, name or folder, "latest", or its folder `model` alone, wherever that was copied; neither
    the data nor the rest of the run are needed. seed: left out, the first. setting: of a sweep, {hyperparameter:
    value}; left out, the one that meets the run's target on validation rows. client: whose model, where clients have
    models of their own. runs: the folder of the runs, where it is not `runs` or $EQUIFED_RUNS. model: the model that
    was trained, where it was made in Python by hand, so that nothing leads to it again. trust: modules whose names the
    package may use, such as that of a method of your own: to import a module runs its code, and anything else that is
    neither built in nor installed as a plug-in is refused.
    """
    registry.trust(*trust)
    return _found(reference, runs).model(seed, setting, client, model)


def _found(reference: str | PathLike[str], runs: str | PathLike[str] | None) -> Package:
    """The package that is meant."""
    from equifed.store import RunFolder, Store  # late: a run's folder is written with this

    path = Path(reference)
    if (path / ABOUT).is_file():
        return Package.open(path)
    if path.is_dir() and not RunFolder.is_one(path):
        if (path / MODEL / ABOUT).is_file():
            return Package.open(path / MODEL)
        raise ConfigError(f"There is no model in {path}: neither it nor a folder {MODEL} in it has {ABOUT}.")
    run = Store(runs).find(str(reference))
    if not (run.path / MODEL / ABOUT).is_file():
        run.result()  # says what is wrong where the run has not finished
    return Package.open(run.path / MODEL, f"Make it again, without computing: {run.resuming()}")


def _weights(sums: Sums, name: str) -> dict[str, np.ndarray]:
    try:
        found: dict[str, np.ndarray] = load(sums.read(name))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise sums.damaged(name, f"cannot be read ({error})") from error
    return found
