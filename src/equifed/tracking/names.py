"""Trackers by name: `mlflow:URI`, `tensorboard:FOLDER`, `wandb:PROJECT`, or `module:Name` of your own."""

from __future__ import annotations

import inspect
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from equifed.errors import ConfigError, EquifedError
from equifed.registry import Registry, allow
from equifed.tracking.callback import Callback, Callbacks
from equifed.tracking.mlflow import MLflow
from equifed.tracking.tensorboard import TensorBoard
from equifed.tracking.wandb import WandB
from equifed.words import clean, quoted

REGISTRY: Registry[Any] = Registry(
    "tracker",
    "equifed.trackers",
    {"mlflow": MLflow, "tensorboard": TensorBoard, "wandb": WandB},
    fits=lambda thing: isinstance(thing, type) and issubclass(thing, Callback),
    must_be="a class derived from equifed.tracking.Callback",
)
VARIABLE = "EQUIFED_TRACK"
"""The environment variable that names the trackers of runs which name none."""
NONE = "none"
PASSWORD = re.compile(r"//[^/@]*:[^/@]*@")


def name_of(text: str) -> str:
    """Return the name of a tracker without what it is given: NAME:GIVEN, module:Name, or module:Name:GIVEN."""
    name, _, rest = text.partition(":")
    return name if not rest or name in REGISTRY else f"{name}:{rest.partition(':')[0]}"


def make(text: str) -> Callback:
    """The tracker that is called so; what follows its name and a colon is given to it."""
    name = name_of(text)
    given = text.removeprefix(name).removeprefix(":")
    kind, arguments = REGISTRY[name], [given] if given else []
    try:
        inspect.signature(kind).bind(*arguments)
    except TypeError:
        text = (
            f"The tracker {quoted(name)} cannot be given {quoted(given)}."
            if given
            else (f"The tracker {quoted(name)} must be given something: {name}:WHAT.")
        )
        raise ConfigError(text, key="track") from None
    try:
        made: Callback = kind(*arguments)
    except EquifedError:
        raise
    except Exception as error:
        text = f"The tracker {quoted(text)} cannot be used: {type(error).__name__}: {clean(error)}"
        raise ConfigError(text, key="track") from error
    return made


def check(texts: Iterable[str]) -> None:
    """Refuse a password, which would be written into the run's folder and its report."""
    for text in texts:
        if PASSWORD.search(text):
            raise ConfigError(
                "has an address with a password, which would be kept in the run's folder. Give it by the tracker's own "
                "environment variables (MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_URI "
                "for the whole address).",
                key="track",
            )


def asked(given: Sequence[str | Callback], received: bool = False) -> Callbacks:
    """The callbacks that are given or named; where there are none, those that the environment names. "none": none.
    received: they are named by a file, which may be another person's."""
    named = given or shlex.split(os.environ.get(VARIABLE, ""))
    if not (given and received):
        allow(*(name_of(each) for each in named if isinstance(each, str)))
    for each in named:
        if not isinstance(each, str | Callback):
            text = f"must be callbacks, equifed.tracking.Callback, or their names, got {quoted(each)}."
            raise ConfigError(text, key="callbacks", value=each)
    return Callbacks(make(each) if isinstance(each, str) else each for each in named if each != NONE)
