"""Tables on the terminal: no name is lost however narrow it is, and what was asked for has a column."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from report.runs import rows, run

import equifed as ef
from equifed.cli.console import out
from equifed.cli.tables import gaps_table, groups_tables
from equifed.verdict.groups import worst_pair

RACES = ("White", "Black", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other")


@pytest.fixture(scope="module")
def ten_groups() -> ef.Result:
    rng = np.random.default_rng(4)

    def both(n: int) -> tuple[Any, Any, Any]:
        x, y, _ = rows(rng, n, ["a"])
        return x, y, np.stack([rng.choice(["Female", "Male"], n), rng.choice(RACES, n)], 1)

    fed = ef.Federation.from_arrays([both(60) for _ in range(3)], test=both(600))
    return run(ef.methods.FedAvg(), fed, rounds=1)


@pytest.mark.parametrize("width", [80, 120, 160])
@pytest.mark.sample(1)
def test_show_keeps_the_names_of_many_groups(
    width: int, ten_groups: ef.Result, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for part in groups_tables(ten_groups):
        out().print(part)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    frame = ten_groups.metrics.astype({"scope": str, "metric": str})
    last = frame[frame["scope"].str.startswith("group:") & (frame["round"] == 1)]
    blocks = re.split(r"By group, means over seeds(?: \(continued\))?\n", text)[1:]
    assert len(blocks) > 1
    values: dict[str, list[float]] = {}
    for block in blocks:
        table = [line.split() for line in block.splitlines() if line.strip()]
        body = [line for line in table if line[0] in set(last["metric"])]
        assert [line[0] for line in body] == list(dict.fromkeys(last["metric"]))
        for name, *cells in body:
            values.setdefault(name, []).extend(map(float, cells))
    names = list(dict.fromkeys(last["scope"].str.removeprefix("group:")))
    headings = " ".join(block.split("─")[0] for block in blocks).split()
    words = [word for name in names for word in name.split()]
    assert sorted(headings) == sorted(["metric"] * len(blocks) + words)
    means = last.groupby(["metric", "scope"], sort=False)["value"].mean()
    for metric, shown in values.items():
        assert shown == pytest.approx([means[metric, f"group:{name}"] for name in names], rel=1e-3), metric
    for part in gaps_table(ten_groups):
        out().print(part)
    gaps = "".join(capsys.readouterr().out.split())
    assert all(name in gaps for name in ("disparity", "attribute", "lowest", "highest", "Asian-Pac-Islander"[:8]))


def test_a_rate_without_rows_in_some_seeds_is_beside_the_rows_of_the_others() -> None:
    """A group with one positive row in one of three seeds: its rate rests on 1 row, not on a third of one."""
    lines = []
    for seed, group in itertools.product(range(3), "ab"):
        positives = 20 if group == "a" else int(seed == 0)
        rate = 0.5 if group == "a" else 1.0 if positives else np.nan
        facts = {"count": 40, "positives": positives, "true_positive_rate": rate, "false_positive_rate": 0.25}
        lines += [(seed, group, metric, value) for metric, value in facts.items()]
    frame = pd.DataFrame(lines, columns=["seed", "name", "metric", "value"])
    pair = worst_pair(frame, "equal_opportunity_difference")
    assert pair is not None
    assert (pair.high, pair.high_rate, pair.high_rows) == ("b", 1.0, 1.0)
    assert (pair.low, pair.low_rate, pair.low_rows) == ("a", 0.5, 20.0)


def test_few_rows_are_said_beside_a_rate(ten_groups: ef.Result) -> None:
    (_, table) = gaps_table(ten_groups)
    cells = [cell for column in table.columns[-2:] for cell in column.cells]  # type: ignore[union-attr]
    assert cells
    for cell in cells:
        said = re.fullmatch(r".+: [\d.]+ \(([\d,]+) rows?(, few)?\)", str(cell))
        assert said, cell
        if said[1] not in ("49", "50"):  # rounded
            assert bool(said[2]) == (int(said[1]) < 50), cell


@pytest.mark.parametrize(
    "asked",
    [
        ("--metrics", "discrimination_index"),
        ("--target", "discrimination_index <= 0.9"),
        ("--fail-if", "discrimination_index > 1"),
    ],
)
@pytest.mark.sample(1)
def test_a_metric_that_is_asked_for_has_a_column(asked: tuple[str, str], invoke: Any, tiny: str) -> None:
    quick = ("compare", tiny, "--methods", "fedavg", "--rounds", "1", "--seeds", "1")
    without, done = invoke(*quick), invoke(*quick, *asked)
    assert done.exit_code == 0, done.stderr
    headings = [each.stdout.split("\n\n")[1].splitlines()[0] for each in (without, done)]
    assert ["discrimination index" in heading for heading in headings] == [False, True]
    shortened = "EOdds diff.: equalized odds difference"
    assert shortened in without.stdout
