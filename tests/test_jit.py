"""Compiled loops run where nothing can be written, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from numba.core import caching

from equifed.jit import kept


def doubled() -> Callable[[int], int]:
    @kept(error_model="numpy")
    def double(number: int) -> int:
        return 2 * number

    result: Callable[[int], int] = double
    return result


def test_what_is_compiled_is_kept_where_a_folder_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = doubled()
    assert made.stats.cache_path is not None

    def refuse(self: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(caching._CacheLocator, "ensure_cache_path", refuse)
    made = doubled()
    assert made.stats.cache_path is None
    assert made(21) == 42
