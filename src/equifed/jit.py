"""numba's compiler for loops that are called from Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def kept(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit` that keeps what it compiles between processes, wherever a folder for that can be written."""

    def compiled(function: Callable[..., Any]) -> Any:
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError:  # numba found no such folder: every process compiles
            return njit(**options)(function)

    return compiled
