"""Train methods in this process's arithmetic: `python -m contract.elsewhere FILE NUMBER...` writes what came out."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from pathlib import Path

from uneven import make_uneven

import equifed as ef
from equifed.protocol import Method

from .registered import METHODS
from .test_contract import VARIANTS, run

ALL = (*METHODS, *VARIANTS)
ENGINES = ("lanes", "reference")
NEEDS_LAYERS = ("frl", "e2fl")
BY_LOSS = ("afl", "fcfl", "fedminmax", "gifair", "ifca", "q-ffl", "term")
"""Methods that rank losses, or weigh clients by functions of them that grow fast: those of models that start at zero
are equal but for rounding."""


def settings(method: Method) -> dict[str, dict[str, object]]:
    """Return the settings that a method is tried with, by name."""
    zero = {"logistic": {"model": ef.models.Logistic()}} if method.name in BY_LOSS else {}
    return {"network": {}, **zero}


def train(numbers: Sequence[int], engines: Sequence[str]) -> dict[tuple[int, str, str], ef.Result]:
    """Return the result of every method (by its number), setting and engine."""
    federation = make_uneven()
    return {
        (number, name, engine): run(ALL[number], federation, **changes, engine=engine)
        for number in numbers
        for name, changes in settings(ALL[number]).items()
        for engine in engines
    }


if __name__ == "__main__":
    file, *given = sys.argv[1:]
    found = {
        key: {"parameters": result.parameters, "metrics": result.metrics, "rejections": result.rejections}
        for key, result in train([int(number) for number in given], ENGINES).items()
    }
    Path(file).write_bytes(pickle.dumps(found))
