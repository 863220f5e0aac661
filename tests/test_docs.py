"""The page on federations keeps its word: its table is the methods', its settings are the configuration's, what it
says that a server says is what a server says."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
from store.faults import FEW, Case, count_steps
from test_bounds import LIES

from equifed.cli.describe import describe_method
from equifed.cli.progress import EVERY, MANY
from equifed.config import DataSection, FlowerSection
from equifed.flower.server import _line as line_of
from equifed.methods import REGISTRY
from equifed.notes import Note
from equifed.options import options_of
from equifed.settings import Cluster
from equifed.simulator.engine import Rejection
from equifed.studies.on_ray import DEATHS

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "federation.md").read_text(encoding="utf-8")
COMMANDS = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def rows_of(heading: str) -> list[list[str]]:
    """The table below its first line's beginning."""
    table = PAGE[PAGE.index(f"\n| {heading} |") :].split("\n\n")[0].strip().splitlines()
    return [cells(line) for line in table[2:]]


def test_generated_tables_are_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    for name in made["PAGES"]:
        page = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert made["written"](name) == page, f"Bring {name} up to date: python docs/generate.py"


def test_the_page_on_reliability_has_the_counts_of_the_tests(tmp_path: Path) -> None:
    """Those that are counted in seconds; the others are of the last measurement."""
    record = json.loads((ROOT / "docs" / "reliability.json").read_text(encoding="utf-8"))
    again = "measure again: python benchmarks/reliability.py lies deaths && python docs/generate.py"
    assert record["lies"] == {"lies": len(LIES), "methods": len({method.name for method, *_ in LIES})}, again
    assert record["deaths"]["steps"] == count_steps(Case.new(tmp_path, **FEW)), again
    assert record["deaths"]["runs"] == 3 * record["deaths"]["steps"]
    for suite in ("deaths", "kills"):
        assert record[suite]["right"] == record[suite]["runs"]
    assert record["corruptions"]["silent"] == record["corruptions"]["unclean"] == 0


def test_no_section_of_a_page_is_there_twice() -> None:
    for path in sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "papers").rglob("*.md")]):
        lines = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL).splitlines()
        headings = [line for line in lines if line.startswith("#")]
        assert len(headings) == len(set(headings)), path.name


def test_the_table_has_every_field_that_leaves_a_silo() -> None:
    lines = rows_of("method")
    for name, kind in REGISTRY.items():
        own = [line for line in lines if line[0] == f"[{name}](methods/{name}.md)"]
        assert bool(own) != kind.pooled
        left = {field for line in own for field in re.findall(r"`(\w+)`", line[4])}
        assert kind.pooled or left == set(describe_method(name)["leaves_a_client"])


def test_personal_methods_are_named() -> None:
    (said,) = re.findall(r"\*\*Personal methods\*\* \((.*?), and", PAGE, re.DOTALL)
    assert re.findall(r"`([\w-]+)`", said) == [name for name in REGISTRY if describe_method(name)["personal"]]


def test_the_settings_are_the_configurations() -> None:
    described = {line[0].strip("`"): line[1] for line in rows_of("`[flower]`")}
    fields = {name.replace("_", "-"): field for name, field in FlowerSection.model_fields.items()}
    assert described.keys() == fields.keys()
    for name in ("deadline", "join-deadline", "min-count"):
        assert float(described[name]) == fields[name].default
    example = COMMANDS[COMMANDS.index("```toml") :].split("```")[1]
    section = example[example.index("[flower]") :]
    assert set(re.findall(r"^([a-z-]+) = ", section, re.MULTILINE)) == fields.keys()
    known = {field.alias or name.replace("_", "-") for name, field in DataSection.model_fields.items()}
    data = example[example.index("[data]") : example.index("[partition]")]
    assert set(re.findall(r"\b(validation-file|client-groups|files|schema|test|validation) = ", data)) <= known
    for name in ("validation-file", "client-groups"):
        assert f"# {name} = " in data


@pytest.mark.parametrize("said", [line[0] for line in rows_of("the server says of a silo")])
def test_what_a_server_says(said: str) -> None:
    flower = ROOT / "src/equifed/flower"
    files = [*sorted(flower.glob("*.py")), *sorted(flower.glob("silo/*.py")), ROOT / "src/equifed/bounds.py"]
    source = " ".join(path.read_text() for path in files)
    source = re.sub(r'"\s+f?"', "", source)  # strings that are written on several lines
    source = re.sub(r"\{[^{}\n]*\}", "...", source)
    for part in re.split(r"; | \.\.\.|\d+ s$", said):
        assert not part or part.strip() in source, part


def test_the_proxy_shows_the_nodes_api_only() -> None:
    (config,) = re.findall(r"```nginx\n(.*?)```", PAGE, re.DOTALL)
    assert re.findall(r"location (\S+) \{", config) == ["/v1/fleet/", "/"]
    assert "location / { return 404; }" in config
    assert "proxy_ssl_verify on;" in config


def test_rounds_are_told_as_the_page_says() -> None:
    """A server to which the same happened writes the same lines."""
    lines = [line for line in PAGE.splitlines() if line.startswith("Round ")]
    assert len(lines) == 8
    for line in lines:
        number, rounds, replied, sampled = map(int, re.findall(r"\d+", line)[:4])
        lost = re.findall(r"(hospital-\w) in (train) \((.+?)\)(?=; )", line)
        obstacle = None if replied >= 2 else Note("too-few-replies")
        log = SimpleNamespace(replied=replied, sampled=sampled, obstacle=obstacle)
        rejections = [(number, Rejection(0, *each)) for each in lost]
        seconds = float(re.findall(r"; (\d+) s$", line)[0])
        step = SimpleNamespace(round=number, logs=[log], rejections=rejections, seconds=seconds)
        assert line_of(SimpleNamespace(rounds=rounds), step) == line


def test_the_page_on_studies_has_every_setting() -> None:
    page = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
    table = page[page.index("| `[cluster]` |") :].split("\n\n")[0]
    keys = {key.replace("_", "-") for key in (option.key for option in options_of(Cluster))}
    assert {key for line in table.splitlines()[2:] for key in re.findall(r"`([a-z-]+)`", cells(line)[0])} == keys
    assert set(re.findall(r"^# ([a-z-]+) = ", COMMANDS.split("# [cluster]")[1].split("[flower]")[0], re.M)) == keys
    assert f"{MANY} jobs, one every {EVERY:.0f} seconds" in page
    assert DEATHS == 3
    assert "Three deaths in a row" in page
