"""Samples for tests that take long: by what things are called, never by where they stand in a list, so that a new one
does not change which others are tested. What has changed is always among them; `make test-full` takes all."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import pytest

from equifed.protocol import Method

ROOT = Path(__file__).resolve().parents[2]
MOST_CHANGED = 6
"""Methods that are added to a sample because they have changed: a change of more is for `make test-full`."""

T = TypeVar("T")


def leave_to_full(items: Iterable[pytest.Item]) -> None:
    """Mark the cases of tests with the mark `sample(n)` as `full`, but for n of each test, chosen by a stable hash."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sample") and not item.get_closest_marker("full"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for each in cases.values():
        (number,) = each[0].get_closest_marker("sample").args  # type: ignore[union-attr]
        for item in sorted(each, key=lambda item: blake2b(item.name.encode()).digest())[number:]:
            item.add_marker(pytest.mark.full)


def in_sample(name: str, one_in: int) -> bool:
    """Whether a name is in the sample that holds about one in `one_in`."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") % one_in == 0


def sampled(things: Iterable[T], one_in: int, name: Callable[[T], str] = str) -> list[Any]:
    """Return all things as parameters of a test, of which those outside the sample are marked `full`."""
    things = list(things)
    chosen = {name(each) for each in things if in_sample(name(each), one_in)} or {min(map(name, things))}
    return [pytest.param(each, marks=() if name(each) in chosen else pytest.mark.full) for each in things]


def fast(methods: Iterable[Method], which: Callable[[Method], bool]) -> list[Any]:
    """Return all methods as parameters of a test, of which only those that `which` takes and those that have changed
    are in `make test`."""
    methods = list(methods)
    changed = changed_methods([method.name for method in methods if not which(method)])
    return [pytest.param(m, marks=() if which(m) or m.name in changed else pytest.mark.full) for m in methods]


def sampled_methods(methods: Iterable[Method], one_in: int) -> list[Any]:
    """Return all methods as parameters of a test: in `make test` those of a sample, and those that have changed."""
    return fast(methods, lambda method: in_sample(method.name, one_in))


def changed_methods(names: Iterable[str]) -> set[str]:
    """Return those of the registered methods with these names that have changed; none where there is no git."""
    from equifed.methods import REGISTRY

    found = {name: Path(str(sys.modules[REGISTRY[name].__module__].__file__)) for name in names if name in REGISTRY}
    changed = {name for name, file in found.items() if file.resolve() in changed_files()}
    return set(sorted(changed, key=lambda name: blake2b(name.encode()).digest())[:MOST_CHANGED])


@cache
def changed_files() -> frozenset[Path]:
    """Return the files that differ from the common ancestor with origin/main (without that, from HEAD), new ones
    included."""

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
        return done.stdout.splitlines() if done.returncode == 0 else []

    try:
        base = (git("merge-base", "HEAD", "origin/main") or ["HEAD"])[0]
        names = [*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")]
    except OSError:
        return frozenset()
    return frozenset((ROOT / name).resolve() for name in names)
