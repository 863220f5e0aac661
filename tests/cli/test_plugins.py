"""Commands of other packages: found by entry points, as good as the built-in ones, and no danger to those."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import CliRunner, Result

from equifed import registry
from equifed.cli.app import app
from equifed.cli.plugins import COMMANDS, SEPARATE

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")
MODULE = (
    PAGE.partition("## Commands")[2].split("```python\n")[1].split("```")[0]
    + '''
garden = typer.Typer(help="Plants.")


@garden.command()
def water() -> None:
    """Water them."""
    print("watered")


@garden.command()
def weed() -> None:
    """Weed them."""


def unreadable(what: complex) -> None:
    """A parameter that no command line has."""


NUMBER = 3
'''
)
"""The page's example, and other things that a package may name."""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """install(name=target, ...) installs a package with these commands."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(COMMANDS, "_imported", {})
    modules = {"courtesy": MODULE, "quitting": "raise SystemExit(0)", "broken": "import nothing_of_this_name"}

    def put(package: str = "courtesy", **commands: str) -> None:
        site = tmp_path / package
        info = site / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"{package}.py").write_text(modules.get(package, MODULE))
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name} = {target}" for name, target in commands.items()]
        (info / "entry_points.txt").write_text("\n".join(["[equifed.commands]", *lines, ""]))
        sys.path.append(str(site))

    yield put
    for name in ("courtesy", "quitting", "broken", "rude"):
        sys.modules.pop(name, None)


def invoke(*words: str) -> Result:
    """Those of a command line that is made anew, as in a process of its own."""
    return CliRunner().invoke(typer.main.get_command(app), list(words), env={"COLUMNS": "160", "NO_COLOR": "1"})


def test_a_command_of_another_package_is_listed_and_runs(install: Callable[..., None]) -> None:
    install(greet="courtesy:greet")
    listed = invoke("--help").stdout
    assert "Greet someone by name." in listed
    assert listed.index("compare") < listed.index("greet")
    assert "greet" not in invoke("data", "--help").stdout
    described = invoke("greet", "--help").stdout
    assert "Who is greeted." in described
    assert "Folder of the runs." in described
    done = invoke("greet", "Ada", "--runs", "elsewhere")
    assert (done.exit_code, done.stdout) == (0, "hello Ada\n")
    assert "Did you mean 'greet'" in invoke("gree").stderr


def test_its_errors_are_exit_codes_as_those_of_the_built_in_ones(install: Callable[..., None]) -> None:
    install(greet="courtesy:greet")
    done = invoke("greet", "")
    assert (done.exit_code, done.stdout, done.stderr) == (3, "", "Error: The name is empty. Give one.\n")


def test_a_package_may_bring_a_group_of_commands(install: Callable[..., None]) -> None:
    install(garden="courtesy:garden")
    assert "Plants." in invoke("--help").stdout
    assert "Weed them." in invoke("garden", "--help").stdout
    assert invoke("garden", "water").stdout == "watered\n"


def test_nothing_is_imported_for_a_built_in_command(install: Callable[..., None]) -> None:
    install(greet="courtesy:greet")
    assert invoke("methods", "fedavg").exit_code == 0
    assert "courtesy" not in sys.modules
    assert invoke("greet", "Ada").exit_code == 0
    assert "courtesy" in sys.modules


def test_built_in_commands_cannot_be_taken_over(install: Callable[..., None]) -> None:
    install(compare="courtesy:greet", greet="courtesy:greet")
    assert "Who is greeted." in invoke("greet", "--help").stdout
    assert "Who is greeted." not in invoke("compare", "--help").stdout


@pytest.mark.parametrize(
    ("package", "target", "why"),
    [
        ("broken", "broken:greet", "cannot be imported: ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("quitting", "quitting:greet", "cannot be used: SystemExit"),
        ("courtesy", "courtesy:missing", "cannot be found: the module courtesy has no 'missing'"),
        ("courtesy", "courtesy:NUMBER", "is not a command: it must be a function with the parameters of a command"),
        ("courtesy", "courtesy:unreadable", "cannot be used: RuntimeError: Type not yet supported: <class 'complex'>"),
        ("courtesy", "absent:greet", "cannot be imported: there is no module absent"),
    ],
)
def test_a_command_that_cannot_be_used_says_why_and_leaves_the_others(
    package: str, target: str, why: str, install: Callable[..., None]
) -> None:
    install(package, wrong=target)
    install("rude", greet="rude:greet")
    listed = invoke("--help")
    assert listed.exit_code == 0
    assert "Cannot be used: equifed wrong says why." in listed.stdout
    assert "Greet someone by name." in listed.stdout
    for words in (("wrong",), ("wrong", "--help"), ("wrong", "x", "--option", "3")):
        done = invoke(*words)
        assert (done.exit_code, done.stdout) == (2, "")
        assert why in done.stderr
        assert "Traceback" not in done.stderr
    assert invoke("greet", "Ada").exit_code == 0


def test_two_packages_with_one_command_are_named(install: Callable[..., None]) -> None:
    install(greet="courtesy:greet")
    install("rude", greet="rude:greet")
    done = invoke("greet", "Ada")
    assert done.exit_code == 2
    assert "more than one installed command: courtesy:greet, rude:greet" in done.stderr


@pytest.mark.parametrize("name", SEPARATE)
def test_a_command_of_a_package_that_is_not_installed_says_how_to_install_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []
    monkeypatch.setattr(registry, "_entry_points", lambda group: found)
    assert name not in invoke("--help").stdout
    for words in ((name,), (name, "--help"), (name, "fair-fate/table1", "--quick")):
        done = invoke(*words)
        assert (done.exit_code, done.stdout) == (2, "")
        assert f"`equifed {name}` comes with equifed-papers, which is not installed here." in done.stderr
        assert "pip install ./papers" in done.stderr
