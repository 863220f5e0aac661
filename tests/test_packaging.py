"""What is handed out: the library alone, and the papers and the benchmark in a distribution beside it."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable
from email import message_from_string
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import equifed

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = {"equifed": ROOT, "equifed_papers": ROOT / "papers"}
MOST = 2_000_000
"""Bytes of the library's source distribution."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, type], Path]:
    """built(package, builder) is the archive of a project, as its build backend makes it."""
    folder = tmp_path_factory.mktemp("dist")

    def build(package: str, builder: type) -> Path:
        (archive,) = builder(str(PROJECTS[package])).build(directory=str(folder), versions=["standard"])
        return Path(archive)

    return build


def sources(package: str) -> set[str]:
    """The files of a package, data included, as they are in its folder src."""
    home = PROJECTS[package] / "src"
    files = (path for path in (home / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(home).as_posix() for path in files}


@pytest.mark.parametrize("package", PROJECTS)
def test_a_wheel_holds_its_package_and_nothing_else(package: str, built: Callable[[str, type], Path]) -> None:
    with zipfile.ZipFile(built(package, WheelBuilder)) as wheel:
        info = f"{package}-{equifed.__version__}.dist-info/"
        assert {name for name in wheel.namelist() if not name.startswith(info)} == sources(package)
        entry_points = wheel.read(f"{info}entry_points.txt").decode()
        metadata = message_from_string(wheel.read(f"{info}METADATA").decode())
    if package == "equifed_papers":
        assert "[equifed.commands]\nbenchmark = equifed_papers.cli.app:benchmark\nreproduce = " in entry_points
        assert metadata.get_all("Requires-Dist") == [f"equifed=={equifed.__version__}"]
    else:
        assert "equifed.commands" not in entry_points


@pytest.mark.parametrize("package", PROJECTS)
def test_a_source_distribution_holds_its_package_and_what_describes_it(
    package: str, built: Callable[[str, type], Path]
) -> None:
    archive = built(package, SdistBuilder)
    with tarfile.open(archive) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    about = names - {f"src/{name}" for name in sources(package)}
    library = {"LICENSE", "CHANGELOG.md", "CITATION.cff"} if package == "equifed" else set()
    assert about == {".gitignore", "PKG-INFO", "README.md", "pyproject.toml"} | library
    assert len(names) == len(about) + len(sources(package))
    assert archive.stat().st_size < MOST
