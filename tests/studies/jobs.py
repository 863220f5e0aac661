"""Small pieces of work, in a module where workers find them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, NoReturn

import numpy as np


def where(data: dict[str, np.ndarray], seconds: float) -> tuple[str, bool, float]:
    """The node, whether the data could be written, which memory shared with others never can, and what they hold."""
    import ray

    time.sleep(seconds)
    return ray.get_runtime_context().get_node_id(), bool(data["x"].flags.writeable), float(data["x"].sum())


def dies(data: Any, log: Path) -> NoReturn:
    with open(log, "a") as file:
        file.write("x")
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def adds(data: int, number: int) -> int:
    if number < 0:
        raise ValueError(f"{number} is below 0")
    return data + number


class Unreadable:
    """What another process cannot make anew, as a method that is not installed there."""

    def __reduce__(self) -> Any:
        return _missing, ()


def _missing() -> NoReturn:
    raise ModuleNotFoundError("No module named 'mine'")
