"""Samples of methods in the fast tests: stable, by name, with all that has changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from contract.registered import METHODS
from support import samples

from equifed.methods import REGISTRY

METHODS_FOLDER = Path("src/equifed/methods")


def chosen(parameters: list) -> list[str]:  # type: ignore[type-arg]
    return [each.values[0].name for each in parameters if not each.marks]


def test_a_sample_does_not_depend_on_what_else_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "changed_files", frozenset)
    whole = chosen(samples.sampled_methods(METHODS, 4))
    assert 43 / 8 < len(whole) < 43 / 2
    for start in range(3):
        some = METHODS[start::3][::-1]
        assert set(chosen(samples.sampled_methods(some, 4))) == {m.name for m in some} & set(whole)


def test_every_thing_is_a_parameter_and_some_is_always_tried() -> None:
    for things in (["a"], ["b", "c"], [f"text {i}" for i in range(50)]):
        made = samples.sampled(things, 7)
        assert [each.values[0] for each in made] == things
        assert any(not each.marks for each in made)


def test_what_has_changed_is_in_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    left_out = sorted(set(REGISTRY) - set(chosen(samples.sampled_methods(METHODS, 4))))
    file = samples.ROOT / METHODS_FOLDER / f"{left_out[0].replace('-', '_')}.py"
    monkeypatch.setattr(samples, "changed_files", lambda: frozenset({file}))
    assert left_out[0] in chosen(samples.sampled_methods(METHODS, 4))
    assert left_out[0] in chosen(samples.fast(METHODS, lambda method: method.name == "fedavg"))
    every = frozenset((samples.ROOT / METHODS_FOLDER).glob("*.py"))
    monkeypatch.setattr(samples, "changed_files", lambda: every)
    assert len(chosen(samples.fast(METHODS, lambda method: False))) == samples.MOST_CHANGED


def test_changed_files_are_those_of_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What differs from where the branch left origin/main, committed or not, and new files; nothing without git."""
    find = samples.changed_files.__wrapped__
    monkeypatch.setattr(samples, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert find() == frozenset()

    def git(*words: str) -> None:
        own = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *own, *words], cwd=tmp_path, check=True, capture_output=True)

    def write(*names: str) -> None:
        for name in names:
            (tmp_path / name).write_text(name)
        git("add", *names)

    git("init", "-b", "main")
    write("old", "edited", "committed")
    git("commit", "-m", "first")
    (tmp_path / "edited").write_text("anew")
    (tmp_path / "new").write_text("")
    assert find() == {tmp_path / "edited", tmp_path / "new"}  # without origin/main: from HEAD
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    (tmp_path / "committed").write_text("anew")
    git("commit", "-m", "second", "committed")
    assert find() == {tmp_path / name for name in ("committed", "edited", "new")}
