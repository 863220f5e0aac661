"""Whatever moment a process dies at, and whatever a disk does to a folder: no round is lost or doubled, and no number
changes unseen. A share of what `faults.py` does, and all of it in the full suite."""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from equifed.errors import RunError
from equifed.store import Store
from store.faults import (
    FEW,
    Case,
    contents,
    corruptions,
    count_steps,
    deaths,
    folder_of,
    kills,
    outcome,
    put_back,
)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("share", [pytest.param(1.0, marks=pytest.mark.full), 0.01])
def test_a_death_at_any_step_of_the_store_leaves_no_trace(
    tmp_path: Path, rng: np.random.Generator, share: float
) -> None:
    case = Case.new(tmp_path, **FEW)
    steps = count_steps(case)
    assert steps > 100
    chosen = np.flatnonzero(rng.random(steps) < share)
    assert [tried for tried in deaths(case, map(int, chosen), rng) if tried[1]] == []


@pytest.mark.parametrize("count", [pytest.param(100, marks=pytest.mark.full), 1])
@pytest.mark.full
def test_a_kill_at_a_random_moment_leaves_no_trace(tmp_path: Path, rng: np.random.Generator, count: int) -> None:
    case = Case.new(tmp_path)
    assert [tried for tried in kills(case, count, rng) if tried[1]] == []


@pytest.mark.parametrize("count", [pytest.param(5000, marks=pytest.mark.full), 100])
@pytest.mark.parametrize("kind", ["interrupted", "finished", "saved"])
@pytest.mark.sample(1)
def test_no_corruption_is_loaded_silently(tmp_path: Path, rng: np.random.Generator, kind: str, count: int) -> None:
    case = Case.new(tmp_path)
    came: Counter[str] = Counter()
    with folder_of(case, kind) as (path, old, use):
        for name, how, outcome in corruptions(path, count, rng, use, old):
            came[outcome] += 1
            assert outcome in ("refused", "warned", "unaffected"), (name, how, outcome)
            # a tail of lines, or an older checkpoint, is what a killed process leaves: those rounds are computed again
            assert outcome != "unaffected" or (kind == "interrupted" and how in ("more", "stale")), (name, how)
    assert came["refused"] > 0.5 * count


@pytest.mark.parametrize("kind", ["interrupted", "finished", "saved"])
def test_what_is_no_ordinary_file_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    """A device that never ends, a pipe that nobody writes to, a folder, a link to nowhere."""
    case = Case.new(tmp_path)
    with folder_of(case, kind) as (path, _, use):
        before = contents(path)
        for name in sorted(name for name in before if name != "lock")[::2]:
            for make in (partial(os.symlink, "/dev/zero"), os.mkfifo, partial(os.symlink, "nowhere")):
                (path / name).unlink()
                make(path / name)
                assert outcome(path, [name], use) in ("refused", "warned"), name
                (path / name).unlink()
                put_back(path, before)


def test_folders_among_the_files_of_a_run_are_left_alone(tmp_path: Path) -> None:
    """A run is resumed beside them, and a lock that is none is named."""
    case = Case.new(tmp_path)
    with folder_of(case, "interrupted") as (path, _, _):
        (path / "scores" / "mine").mkdir()
        (path / ".mine.0123456789ab").mkdir()
        (path / "lock").unlink()
        (path / "lock").mkdir()
        with pytest.raises(RunError, match=r"lock could not be locked: Is a directory\. If it is anything but"):
            Store(path.parent).resume(str(path))
        (path / "lock").rmdir()
        with Store(path.parent).resume(str(path)) as recording:
            assert [step.round for step in recording.rounds()]
            recording.finish()
        assert (path / "scores" / "mine").is_dir()
        assert (path / ".mine.0123456789ab").is_dir()
