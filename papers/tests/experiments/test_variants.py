"""Numbers under other readings: evidence for reasons."""

from __future__ import annotations

import csv
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from equifed_papers.experiments import record as records
from equifed_papers.experiments import variants
from equifed_papers.experiments.fair_fate import settings as fair_fate
from equifed_papers.experiments.fedfair import settings as fedfair
from equifed_papers.experiments.kffl import settings as kffl
from equifed_papers.experiments.page import TITLES
from equifed_papers.experiments.record import Row, read
from equifed_papers.experiments.sffl import settings as sffl
from equifed_papers.experiments.variants import COLUMNS, RUNS, Tried, counts, repeats, rounded

ROOT = Path(__file__).parents[3]
NAN = float("nan")
WITH_VARIANTS = ("fair-fate", "kffl", "sffl")


def number(**values: Any) -> Row:
    start: dict[str, Any] = {"experiment": "kffl/table7", "part": "", "commit": "c", "date": "2026-01-01"}
    start |= {"dataset": "d", "place": "p", "method": "m", "metric": "a"}
    return Row(**start | {"published": 0.5, "published_std": 0.03, "ours": 0.7, "std": 0.04, "runs": 3} | values)


WHERE = ("table7", "d", "p", "m", "a")


def test_a_number_is_repeated_where_a_variant_is_within_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"near": Tried(0.53, 0.04, 4), "far": Tried(0.56, 0.04, 4), "varied": Tried(0.56, 0.2, 4)}
    monkeypatch.setattr(variants, "tried", lambda paper: {(*WHERE, name): found for name, found in known.items()})
    # two standard errors, the paper having three runs: 2 sqrt(0.04^2 / 4 + 0.03^2 / 3) = 0.053
    assert repeats("near")(number())
    assert not repeats("far")(number())
    # one that varies more than ours and theirs is judged as if it did not
    assert not repeats("varied")(number())
    assert repeats("varied")(number(std=0.2))
    # and what is no closer than ours explains nothing
    assert not repeats("near")(number(ours=0.559))
    assert repeats("near")(number(ours=0.561))
    assert not repeats("never-tried")(number())
    assert not repeats("near")(number(method="another"))
    # without a published deviation ours stands for it: 2 sqrt(0.04^2 / 4 + 0.04^2 / 3) = 0.0611
    assert repeats("near")(number(published=0.47, published_std=NAN))
    assert not repeats("near")(number(published=0.468, published_std=NAN))


def test_what_a_variant_gains_and_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"a": 0.5, "b": 0.5, "c": 0.9, "d": 0.9, "e": 0.9}
    known = {(*WHERE[:4], metric, "new"): Tried(mean, 0.03, 3) for metric, mean in found.items()}
    monkeypatch.setattr(variants, "tried", lambda paper: known)
    before = {"a": True, "b": False, "c": True, "d": True, "e": None, "never tried": True}
    rows = [number(metric=metric, within=within) for metric, within in before.items()]
    assert counts("kffl", rows) == [("new", 4, 3, 2, 1, 2)]


def test_a_number_of_two_decimals_may_be_half_a_hundredth_away() -> None:
    def near(ours: float, published: float = 0.85) -> bool:
        # the noise is 2 * 0.01 / sqrt(4) = 0.01
        return rounded(2)(number(ours=ours, std=0.01, runs=4, published=published, published_std=0.0))

    assert [near(ours) for ours in (0.834, 0.836, 0.85, 0.864, 0.866)] == [False, True, True, True, False]
    assert not near(0.8495, published=0.8501)  # it has four


@pytest.mark.parametrize("paper", WITH_VARIANTS)
def test_what_was_tried_are_published_numbers_and_reasons_use_it(paper: str) -> None:
    folder = paper.replace("-", "_")
    path = Path(records.__file__).parent / folder / "variants.csv"
    with path.open(encoding="utf-8") as file:
        reader = csv.DictReader(file)
        assert reader.fieldnames == list(COLUMNS)
        rows = list(reader)
    found = variants.tried(paper)
    assert len(found) == len(rows)  # none twice
    assert all(math.isfinite(each.mean) and each.runs > 1 for each in found.values())
    recorded = {row.number for row in read(ROOT / "papers/results/reproduction.csv") if row.paper == paper}
    assert {key[:5] for key in found} <= recorded
    source = (path.parent / "reasons.py").read_text(encoding="utf-8")
    assert {key[5] for key in found} == set(re.findall(r'repeats\("([^"]+)"\)', source))


def test_the_runs_of_the_papers_are_their_experiments() -> None:
    seeds = {"fair-fate": fair_fate.SEEDS, "fedfair": fedfair.SEEDS, "kffl": kffl.CLASSIFICATION_SEEDS}
    assert seeds | {"sffl": sffl.SEEDS} == RUNS


def test_papers_without_variants_have_none() -> None:
    there = {path.parent.name.replace("_", "-") for path in Path(records.__file__).parent.glob("*/variants.csv")}
    assert there == set(WITH_VARIANTS) <= set(TITLES)


@pytest.mark.full
def test_the_benchmark_writes_what_is_there(needs: Any, tmp_path: Path) -> None:
    """One place anew, in a process of its own, gives the numbers that were published with the package."""
    needs("german")
    made = tmp_path / "made.csv"
    command = [sys.executable, ROOT / "benchmarks/variants.py", "kffl", "--only", "german", "--out", made]
    subprocess.run([*command, "--workers", "1"], check=True, capture_output=True)
    there = variants.tried("kffl")
    with made.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6  # two methods, three measures
    for row in rows:
        mean, std, runs = there[tuple(row[name] for name in COLUMNS[:6])]
        assert (float(row["mean"]), float(row["std"]), int(row["runs"])) == pytest.approx((mean, std, runs), abs=1e-3)
