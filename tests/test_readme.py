"""The README's Python and commands run; the table of methods is the registry's; links lead somewhere."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from equifed import methods
from equifed.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EQUIFED_RUNS", raising=False)
    return tmp_path


def test_the_python_quickstart_runs(
    folder: Path, capsys: pytest.CaptureFixture[str], needs: Callable[[str], Path]
) -> None:
    needs("compas")
    (quickstart,) = blocks("python")
    code = [line for line in quickstart.splitlines() if line.strip() and not line.strip().startswith("#")]
    assert len(code) <= 20
    exec(quickstart, {})
    assert "accuracy" in capsys.readouterr().out
    assert (folder / "fedprox.html").stat().st_size > 10_000


def commands(flower: bool) -> list[str]:
    lines = [line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith("equifed ") and line.startswith("equifed flower ") == flower]


def output(words: list[str]) -> str:
    done = CliRunner().invoke(app, words, env={"NO_COLOR": "1", "COLUMNS": "160"})
    assert done.exit_code == 0, done.output
    return done.stdout.strip()


def test_commands_run(folder: Path, needs: Callable[[str], Path]) -> None:
    """In order, in one folder: the comparison's runs are there for `list`."""
    needs("compas")
    for silo in ("north", "south"):
        (folder / f"{silo}.csv").write_text("age,sex,ill\n" + "31,f,yes\n52,m,no\n47,f,no\n28,m,yes\n" * 10)
    for command in commands(flower=False):
        assert output(shlex.split(command)[1:]), command


def test_commands_of_a_federation(folder: Path) -> None:
    """`init` makes its folder. The others start programs, as tests/flower does; they are known, with their options."""
    (folder / "sample.csv").write_text("age,sex,outcome\n" + "31,f,yes\n52,m,no\n47,f,no\n28,m,yes\n" * 10)
    seen = []
    for command in commands(flower=True):
        _, _, name, *rest = shlex.split(command)
        seen.append(name)
        if name == "init":
            assert output(["flower", name, *rest]) == "hospitals/README.md"
        else:
            described = output(["flower", name, "--help"])
            assert all(word in described for word in rest if word.startswith("--")), command
    assert seen == ["demo", "init", "bundle", "run", "resume"]


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"make ([a-z-]+)", README):
        assert re.search(rf"^{target}:", makefile, flags=re.M), target


def demo() -> list[list[str]]:
    """The commands of `make demo`, without the program."""
    printed = subprocess.run(["make", "-n", "demo"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = printed.replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if "/equifed " in line]


def test_the_demo_is_what_the_readme_says() -> None:
    said = README.partition("## The demo")[2].partition("\n## ")[0]
    compare, sweep, report = demo()
    assert [command[0] for command in (compare, sweep, report)] == ["compare", "sweep", "report"]
    methods_of = compare[compare.index("--methods") + 1]
    assert f"`{methods_of}`" in said
    rows = re.findall(r"^\| ([\w+-]+)[, ]", said, flags=re.M)[1:]
    assert rows == [*methods_of.split(","), sweep[sweep.index("--method") + 1]]
    assert f'--target "{sweep[sweep.index("--target") + 1]}"' in said
    assert "--set kffl.fairness-weight=30" in " ".join(compare)
    assert "`kffl`'s weight, 30," in said
    assert report[report.index("--output") + 1] == "demo-report.html"
    settings = {name: [command[command.index(name) + 1] for command in (compare, sweep)] for name in DEMO}
    assert all(len(set(values)) == 1 for values in settings.values())  # or differences would not be the methods'
    assert (settings["--seeds"][0], settings["--rounds"][0]) == ("10", "15")


DEMO = ("--rounds", "--seeds", "--batch-size", "--learning-rate", "--local-epochs", "--target", "--runs")


@pytest.mark.full  # real data, three commands
def test_the_demo_runs(folder: Path, needs: Callable[[str], Path]) -> None:
    needs("adult")
    compare, sweep, report = demo()
    output([*compare, "--rounds", "2", "--seeds", "3"])
    output([*sweep, "--rounds", "2", "--seeds", "3"])
    runs = [str(path.relative_to(folder)) for path in sorted((folder / "runs" / "demo").iterdir()) if path.is_dir()]
    assert len(runs) == 9
    assert output(["report", *runs, *report[2:]]) == "demo-report.html"


def test_the_table_of_methods_is_the_registry() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (ROOT / "docs" / "methods.md").read_text(encoding="utf-8").splitlines()
        if re.match(r"\| \[`", line)
    ]
    assert [row[0] for row in rows] == [f"[`{name}`](methods/{name}.md)" for name in methods.REGISTRY]
    for name, (_, _, needs, seen, leaves) in zip(methods.REGISTRY, rows, strict=True):
        method = methods.make(name)
        phases = [phase for stage in ("setup", "round", "final") for phase in getattr(method, stage)]
        fields = list(dict.fromkeys(field for phase in phases for field in phase.up))
        assert leaves == (", ".join(fields) or "nothing")
        assert seen == ("sums only" if all(phase.gather == "sum" for phase in phases) else "each reply")
        assert ("validation set" in needs) == method.needs_validation
        assert ("client groups" in needs) == method.needs_client_groups
        assert ("client memory" in needs) == method.remembers


def test_every_method_has_its_page() -> None:
    pages = {page.stem for page in (ROOT / "docs" / "methods").glob("*.md")}
    assert pages == {*methods.REGISTRY, "fair", "server-optimizers"}  # and wrappers that have one of their own


def test_links_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "papers").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
