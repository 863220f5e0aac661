"""What `make` installs is in the locks, with hashes, and what is installed here is what the lock says."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCKS = [ROOT / "requirements.lock", *sorted((ROOT / "benchmarks" / "peers").glob("*.lock"))]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
GROUPS = PYPROJECT["dependency-groups"]
ONLY_CUDA = set(PYPROJECT["tool"]["uv"]["exclude-dependencies"])


def entries(lock: Path) -> list[tuple[Requirement, list[str]]]:
    """What a lock pins, with the hashes of each."""
    lines = lock.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    found = (line.split(" --hash=") for line in lines if line and not line.lstrip().startswith("#"))
    return [(Requirement(pin), [each.strip() for each in hashes]) for pin, *hashes in found]


def pins(lock: Path) -> dict[str, str]:
    """The version of every package of a lock that is for this Python and this system."""
    here = [pin for pin, _ in entries(lock) if pin.marker is None or pin.marker.evaluate()]
    assert len({pin.name for pin in here}) == len(here)
    return {pin.name: str(pin.specifier).removeprefix("==") for pin in here}


def problems(asked: Iterable[str], locked: Mapping[str, str]) -> set[str]:
    """What is not as the lock says among requirements, what they require, and so on, by the metadata of the packages
    that are installed here. torch itself is in no lock, but what all its builds require is."""
    found, seen = set[str](), set[Requirement]()
    waiting = [(Requirement(line), "") for line in asked]
    while waiting:
        requirement, extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if not wanted or requirement in seen or name in ONLY_CUDA:
            continue
        seen.add(requirement)
        installed = distribution(name)
        if name != "torch":
            if name not in locked:
                found.add(f"{name} is not in the lock")
            elif not requirement.specifier.contains(locked[name], prereleases=True):
                found.add(f"{requirement} is asked for, but {locked[name]} is in the lock")
            elif installed.version != locked[name]:
                found.add(f"{name} {installed.version} is installed, but {locked[name]} is in the lock")
        requires = [Requirement(line) for line in installed.requires or ()]
        waiting += [(each, extra) for each in requires for extra in ("", *requirement.extras)]
    return found


def asked_for() -> list[str]:
    """The dependencies of the package and of the extras that `make` installs: `dev`, and those that it names."""
    extras, lines = PYPROJECT["project"]["optional-dependencies"], [*PYPROJECT["project"]["dependencies"]]
    for line in extras["dev"]:
        named = Requirement(line)
        lines += [each for extra in named.extras for each in extras[extra]] if named.name == "equifed" else [line]
    return lines


def test_everything_that_is_installed_is_locked() -> None:
    assert problems(asked_for(), pins(LOCKS[0])) == set(), "`make lock` renews the lock, `make clean` the environment"
    (torch,) = map(Requirement, GROUPS["torch"])
    assert torch.specifier.contains(distribution("torch").version)


def test_packages_that_are_missing_old_or_other_than_the_lock_says_are_found() -> None:
    locked = pins(LOCKS[0])
    del locked["mpmath"]  # torch requires sympy, which requires it
    locked |= {"numba": "0.1", "markupsafe": "0.2"}
    found = "\n".join(problems(asked_for(), locked))
    assert "mpmath is not in the lock" in found
    assert "numba>=0.61 is asked for, but 0.1 is in the lock" in found
    assert "0.2 is in the lock" in found


@pytest.mark.parametrize(
    ("lock", "groups"),
    [(LOCKS[0], ["install"]), *((lock, [lock.stem]) for lock in LOCKS[1:])],
    ids=[lock.stem for lock in LOCKS],
)
def test_groups_are_locked(lock: Path, groups: list[str]) -> None:
    locked = pins(lock)
    lines = [line for group in groups for line in GROUPS[group] if isinstance(line, str)]
    lines += PYPROJECT["build-system"]["requires"] if "install" in groups else []
    for requirement in map(Requirement, lines):
        assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)]), requirement


@pytest.mark.parametrize("lock", LOCKS, ids=[lock.stem for lock in LOCKS])
def test_a_lock_holds_versions_and_hashes_and_names_no_place(lock: Path) -> None:
    for pin, hashes in entries(lock):
        assert re.fullmatch(r"==[0-9a-z.+!]+", str(pin.specifier)), pin
        assert pin.url is None
        assert hashes, f"{pin} has no hash"
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", each) for each in hashes), pin
        assert not re.match("torch$|triton|nvidia|cuda", pin.name), f"{pin} belongs to a build of torch"
    assert "/" not in lock.read_text(encoding="utf-8")


def test_every_peer_with_an_environment_of_its_own_has_a_lock() -> None:
    assert {lock.stem for lock in LOCKS[1:]} == GROUPS.keys() - {"torch", "install"}
