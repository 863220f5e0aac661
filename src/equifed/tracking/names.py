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
"""Environment variable with the default trackers."""
NONE = "none"
PASSWORD = re.compile(r"//[^/@]*:[^/@]*@")


def name_of(text: str) -> str:
    """Return the name of a tracker without its argument: NAME:ARGUMENT, module:Name, or module:Name:ARGUMENT."""
    name, _, rest = text.partition(":")
    return name if not rest or name in REGISTRY else f"{name}:{rest.partition(':')[0]}"


def make(text: str) -> Callback:
    """Make a tracker from its name, and an argument after a colon."""
    name = name_of(text)
    given = text.removeprefix(name).removeprefix(":")
    kind, arguments = REGISTRY[name], [given] if given else []
    try:
        inspect.signature(kind).bind(*arguments)
    except TypeError:
        text = (
            f"The tracker {quoted(name)} does not accept the argument {quoted(given)}."
            if given
            else f"The tracker {quoted(name)} needs an argument: {name}:ARGUMENT."
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
    """Refuse passwords, which would be written to the run's folder and report."""
    for text in texts:
        if PASSWORD.search(text):
            raise ConfigError(
                "has an address with a password, which would be stored in the run's folder. Set it by the tracker's "
                "environment variables (MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_URI "
                "for the whole address).",
                key="track",
            )


def get_callbacks(given: Sequence[str | Callback], received: bool = False) -> Callbacks:
    """Return the given or named callbacks; by default those named by the environment. "none": no callbacks. received:
    the names come from a file that may be another person's, so only trusted modules are imported."""
    named = given or shlex.split(os.environ.get(VARIABLE, ""))
    if not (given and received):
        allow(*(name_of(each) for each in named if isinstance(each, str)))
    for each in named:
        if not isinstance(each, str | Callback):
            text = f"must be callbacks, equifed.tracking.Callback, or their names, got {quoted(each)}."
            raise ConfigError(text, key="callbacks", value=each)
    return Callbacks(make(each) if isinstance(each, str) else each for each in named if each != NONE)
