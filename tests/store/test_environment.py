"""Which code a run was made by."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

environment = import_module("equifed.store.environment")  # the package has a function of this name


@pytest.fixture
def revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str | None]:
    """That of a package in `tmp_path`, asked for by a new process each time."""
    package = tmp_path / "package"
    package.mkdir()
    monkeypatch.setattr(environment, "PACKAGE", package)
    cached = (environment.commit, environment.is_changed, environment.revision)

    def asked(*others: Path) -> str | None:
        for each in cached:
            each.cache_clear()
        return environment.revision(*others)

    return asked


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What was found here is not what other tests run by."""
    yield
    for each in (environment.commit, environment.is_changed, environment.revision):
        each.cache_clear()


def _git(folder: Path, *words: str) -> str:
    name = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *name, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_every_change_of_the_package_is_another_revision(tmp_path: Path, revision: Callable[..., str | None]) -> None:
    file, new = tmp_path / "package" / "a.py", tmp_path / "package" / "b.py"
    file.write_text("a = 1\n")
    assert revision() is None  # not under git
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-q", "-m", "first")
    first = _git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "notes.txt").write_text("not of the package")
    assert revision() == first

    seen = [first]
    for text in ("a = 2\n", "a = 3\n"):
        file.write_text(text)
        seen.append(str(revision()))
    _git(tmp_path, "add", ".")
    assert revision() == seen[-1]  # what is staged is the same code
    new.write_text("b = 1\n")
    seen.append(str(revision()))
    file.unlink()
    seen.append(str(revision()))
    assert len(set(seen)) == len(seen) == 5
    assert all(each.startswith(f"{first}+") for each in seen[1:])
    new.unlink()
    file.write_text("a = 1\n")
    _git(tmp_path, "add", ".")
    assert revision() == first  # all is as it was
    assert environment.versions()["commit"] == first


def test_a_package_beside_it_is_part_of_the_revision_where_it_is_named(
    tmp_path: Path, revision: Callable[..., str | None]
) -> None:
    beside = tmp_path / "papers"
    beside.mkdir()
    (tmp_path / "package" / "a.py").write_text("a = 1\n")
    (beside / "b.py").write_text("b = 1\n")
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-q", "-m", "first")
    first = _git(tmp_path, "rev-parse", "HEAD")
    (beside / "b.py").write_text("b = 2\n")
    assert revision() == first
    changed = str(revision(beside))
    assert changed.startswith(f"{first}+")
    (beside / "b.py").write_text("b = 3\n")
    assert revision(beside) not in (first, changed)
    _git(tmp_path, "commit", "-q", "-a", "-m", "second")
    assert revision() == first
    assert revision(beside) == _git(tmp_path, "rev-parse", "HEAD") != first
    assert revision(tmp_path.parent) is None  # which is not under git
