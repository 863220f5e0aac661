"""What a silo hands in: the counts of its table, less what is small, and nothing else of it."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from equifed import Columns
from equifed.cli.app import app
from equifed.data import Schema
from equifed.errors import ConfigError, DataError
from equifed.federation.reading import read_table
from equifed.metrics.withholding import small_bins
from equifed.monitor import count, read_hand_in, revise, write_hand_in
from equifed.monitor.periods import first_day, name_periods, next_period
from equifed.words import csv_of
from monitor.made import CLASSES, SCHEMA, decisions, hand_in

COLUMNS = {"silo": "north", "date": "when", "decision": "decision", "label": "outcome"}


def test_counts_are_those_of_pandas() -> None:
    frame = decisions()
    made = count(frame, schema=SCHEMA, **COLUMNS).hand_in
    frame["month"], frame["group"] = frame["when"].str[:7], frame["sex"].map({"f": "women", "m": "men"})
    by_decision = frame.groupby(["month", "group", "decision"]).size()
    by_label = frame.groupby(["month", "group", "outcome", "decision"]).size()
    assert list(made.periods) == sorted(frame["month"].unique())
    shown = 0
    for month, counts in made.periods.items():
        assert counts.rows == (frame["month"] == month).sum()
        for group in ("women", "men"):
            cells = [[by_label.get((month, group, y, d), 0) for d in CLASSES] for y in CLASSES]
            small = np.min(cells) < 10
            assert counts.labels[group] == (None if small else cells)
            assert counts.decisions[group] == [by_decision[month, group, d] for d in CLASSES]
            shown += not small
    assert shown >= 10


def test_decisions_that_are_signs_are_counted_in_a_file_that_equifed_wrote(tmp_path: Path) -> None:
    frame = decisions()
    signs = frame.assign(decision=np.where(frame["decision"] == CLASSES[1], "+", "-"))[["when", "decision", "sex"]]
    (tmp_path / "scored.csv").write_text(csv_of(signs))
    read = read_table(tmp_path / "scored.csv")
    made = count(read, silo="north", date="when", decision="decision", group="sex", classes=["-", "+"]).hand_in
    month = next(iter(made.periods))
    expected = signs[signs["when"].str.startswith(month)].groupby(["sex", "decision"]).size()
    assert made.periods[month].decisions == {sex: [expected[sex, sign] for sign in "-+"] for sex in ("f", "m")}


def test_inputs_are_counted_in_the_schemas_bins() -> None:
    frame = decisions()
    frame.loc[:99, "age"], frame.loc[100:119, "age"], frame.loc[:59, "job"] = 15.0, np.nan, "astronaut"
    frame["age"] = frame["age"].clip(upper=70)  # the upper end belongs to the last bin
    counted = count(frame.assign(when="2024-01-15"), schema=SCHEMA, **{**COLUMNS, "label": None}, min_count=0)
    counts = counted.hand_in.periods["2024-01"]
    expected = np.histogram(frame["age"].dropna(), np.linspace(20, 70, 11))[0]
    below = int((frame["age"] < 20).sum())
    assert counts.inputs["age"] == [below, *expected, 0, 20]
    jobs = frame["job"].value_counts()
    assert counts.inputs["job"][:3] == jobs[["clerk", "farmer", "nurse"]].tolist()
    assert dict(zip(counted.hand_in.bins["job"], counts.inputs["job"], strict=True))["(other)"] == 60
    assert counted.left_out == [("income", "the table does not have the column")]
    assert not counted.without_range
    with_income = count(frame.assign(income=1.0), schema=SCHEMA, **COLUMNS)
    assert with_income.left_out == [("income", "the schema does not state its range")]
    assert with_income.without_range == ["income"]
    empty = count(frame.assign(income=1.0), schema=SCHEMA, **COLUMNS, ranges={"income": (9, 9)})
    assert empty.left_out == [("income", "its range is empty")]
    assert not empty.without_range
    given = count(frame.assign(income=1.0), schema=SCHEMA, **COLUMNS, ranges={"income": (0, 9)})
    assert not given.left_out
    assert "income" in given.hand_in.bins


def test_a_schema_that_was_read_off_a_table_says_the_ranges() -> None:
    """By ends that ten rows are beyond at least; dates are not counted."""
    frame = decisions()
    schema = Schema.infer(
        frame.drop(columns="decision"),
        Columns(label="outcome", sensitive="sex", positive="granted", dates={"when": ["month"]}),
    )
    counted = count(frame, schema=schema, **COLUMNS)
    assert counted.left_out == [("when", "dates are not counted: new dates are always later")]
    below, above = (re.sub("[a-z ]", "", counted.hand_in.bins["age"][i]) for i in (0, -2))
    ages = frame["age"].sort_values().to_numpy()
    assert float(below) == pytest.approx(ages[9], abs=0.2)
    assert float(above) == pytest.approx(ages[-10], abs=0.2)


def test_small_counts_are_withheld_with_what_would_tell_them() -> None:
    rows = {("women", 0, 0): 50, ("women", 0, 1): 60, ("women", 1, 0): 9, ("women", 1, 1): 40, ("men", 0, 0): 30}
    rows |= {("men", 0, 1): 30, ("men", 1, 0): 30, ("men", 1, 1): 30, ("others", 0, 0): 3}
    lines = [(g, CLASSES[y], CLASSES[d]) for (g, y, d), n in rows.items() for _ in range(n)]
    frame = pd.DataFrame(lines, columns=["group", "outcome", "decision"]).assign(when="2024-05-05")
    schema = SCHEMA.model_copy(update={"groups": ("women", "men", "others"), "columns": ()})
    counts = count(frame, schema=schema, group="group", **COLUMNS).hand_in.periods["2024-05"]
    # 9 women: no labels of theirs. 3 others: they would follow from all rows, so the next smallest group goes with them
    assert counts.labels == {"women": None, "men": None, "others": None}
    hidden = {group for group, decided in counts.decisions.items() if decided is None}
    assert hidden == {"others", "men"}
    assert counts.decisions["women"] == [59, 100]
    few = count(frame.head(9), schema=schema, group="group", **COLUMNS).hand_in.periods["2024-05"]
    assert few.rows is None
    assert not any(few.decisions.values())
    assert not few.inputs


def test_what_is_withheld_of_bins_is_no_small_count() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        counts = rng.integers(0, 30, 8)
        hidden = small_bins(counts, 10)
        assert hidden[counts < 10].all()
        assert not hidden.any() or counts[hidden].sum() >= 10 or hidden.all()


def test_rows_without_a_label_do_not_follow_from_the_others() -> None:
    frame = decisions(months=1).assign(when="2024-01-10")
    whole = count(frame, schema=SCHEMA, **COLUMNS).hand_in.periods["2024-01"]
    few = frame.copy()
    few.loc[few.index[few["sex"] == "f"][:5], "outcome"] = None
    left = count(few, schema=SCHEMA, **COLUMNS).hand_in.periods["2024-01"]
    assert left.rows == whole.rows - 5
    assert np.sum(left.labels["women"]) == np.sum(left.decisions["women"]) == np.sum(whole.decisions["women"]) - 5
    # many of one decision and few of the other: labels are withheld, decisions are not
    mixed = frame.copy()
    women = mixed["sex"] == "f"
    mixed.loc[mixed.index[women & (mixed["decision"] == "refused")][:50], "outcome"] = None
    mixed.loc[mixed.index[women & (mixed["decision"] == "granted")][:3], "outcome"] = None
    partly = count(mixed, schema=SCHEMA, **COLUMNS).hand_in.periods["2024-01"]
    assert partly.labels["women"] is None
    assert partly.decisions == whole.decisions
    assert count(frame, schema=SCHEMA, **{**COLUMNS, "label": None}).hand_in.periods["2024-01"].labels is None


def test_nothing_of_the_table_is_in_the_file(tmp_path: Path) -> None:
    frame = decisions()
    frame["note"] = [f"note-{i}-secret" for i in range(len(frame))]
    frame.loc[:4, "sex"] = "x-rare"
    frame.loc[:4, "job"] = "lion tamer"
    rare = {"silo": "north", "date": "when", "decision": "decision", "label": "outcome", "group": "sex"}
    for number, options in enumerate(({"schema": SCHEMA, **COLUMNS}, {"classes": CLASSES, **rare})):
        table = frame if number else frame.assign(sex=frame["sex"].replace("x-rare", "f"))
        counted = count(table, **options)
        write_hand_in(tmp_path / "north.json", counted.hand_in)
        text = (tmp_path / "north.json").read_text()
        assert counted.merged == (5 if number else 0)
        for secret in ("Person", "Number", "secret", "x-rare", "lion", *frame["when"], *map(str, frame["age"])):
            assert secret not in text, secret
        words = set(re.findall(r'"([^"]*)"', text))
        listed = {*CLASSES, "women", "men", "f", "m", "clerk", "farmer", "nurse", "north", "month", "equifed-monitor-1"}
        frames = {"(missing)", "(other)", *counted.hand_in.bins, *counted.hand_in.periods}
        keys = {"format", "silo", "revision", "period", "min_count", "classes", "groups", "bins", "periods", "rows"}
        keys |= {"decisions", "labels", "unknown", "inputs", "blake2"}
        rest = {word for word in words - listed - frames - keys if not re.fullmatch("[0-9a-f]{64}", word)}
        edges = np.linspace(20, 70, 11)
        assert rest <= {"below 20", "above 70", *(f"{a:g} to {b:g}" for a, b in pairwise(edges))}


def test_a_hand_in_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = count(decisions(), schema=SCHEMA, **COLUMNS).hand_in
    write_hand_in(tmp_path / "a.json", made)
    (tmp_path / "renamed.json").write_bytes((tmp_path / "a.json").read_bytes())
    assert read_hand_in(tmp_path / "renamed.json") == made


def test_a_revision_does_not_tell_small_differences() -> None:
    rng = np.random.default_rng(0)
    table = rng.integers(50, 90, (4, 2, 2, 2)).astype(float)
    later = table.copy()
    later[1, 0, 0, 0] += 1  # a person more
    later[2] += 20
    extended = np.concatenate([later, table[:1]])
    old, new = hand_in("north", table), hand_in("north", extended)
    made, kept = revise(new, old)
    _, second, third, *_ = new.periods
    assert kept == [second]
    assert made.revision == 2
    assert made.periods == {**new.periods, second: old.periods[second]}
    assert made.periods[third] != old.periods[third]
    with pytest.raises(ConfigError, match="silo"):
        revise(hand_in("south", later), old)


@pytest.mark.parametrize("kind", ["day", "week", "month", "quarter", "year"])
def test_names_of_periods(kind: str) -> None:
    days = pd.Series(pd.date_range("2019-12-20", "2021-01-15", tz="UTC"))
    names = name_periods(days, kind).tolist()
    assert sorted(names) == names
    known = list(dict.fromkeys(names))
    for name, then in pairwise(known):
        assert next_period(name, kind) == then
        assert names[days.tolist().index(pd.Timestamp(first_day(then, kind), tz="UTC"))] == then
    for wrong in ("2020-13", "2020-W60", "", "2020-1", "x", "2020-02-30", "2020-Q5", "20", "٢٠٢٠"):
        with pytest.raises(ValueError, match=r"not the name|month|week|day|range"):
            first_day(wrong, kind)


WRONG = {
    "no such column": ({"date": "day"}, DataError, "missing"),
    "no dates": ({"date": "name"}, DataError, "is not a date"),
    "another format": ({"date_format": "%d.%m.%Y"}, DataError, "of the form"),
    "no classes": ({"decision": "job"}, DataError, "not a known class"),
    "a wrong period": ({"period": "fortnight"}, ConfigError, "fortnight"),
    "a range of nothing": ({"ranges": {"agee": (0, 1)}}, ConfigError, "Did you mean 'age'"),
    "neither schema nor group": ({"schema": None, "classes": CLASSES}, ConfigError, "The groups are needed"),
    "neither schema nor classes": (
        {"schema": None, "group": "sex"},
        ConfigError,
        "The classes of decisions are needed",
    ),
    "a name that is none": ({"silo": "a\x1b[31m"}, DataError, "not printable"),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_are_explained(case: str) -> None:
    changed, kind, said = WRONG[case]
    with pytest.raises(kind, match=said):
        count(decisions(200), **{"schema": SCHEMA, **COLUMNS, **changed})


def test_other_tables() -> None:
    frame = decisions(600)
    with pytest.raises(DataError, match="no rows"):
        count(frame.head(0), schema=SCHEMA, **COLUMNS)
    with pytest.raises(DataError, match="decision is missing"):
        count(frame.assign(decision=frame["decision"].where(frame.index != 7)), schema=SCHEMA, **COLUMNS)
    with pytest.raises(DataError, match="date is missing"):
        count(frame.assign(when=frame["when"].where(frame.index != 7)), schema=SCHEMA, **COLUMNS)
    regression = Schema.model_validate({"columns": [], "label": "y", "task": "regression"})
    with pytest.raises(ConfigError, match="regression"):
        count(frame, schema=regression, **COLUMNS)
    german = pd.to_datetime(frame["when"]).dt.strftime("%d.%m.%Y")
    same = count(frame.assign(when=german), schema=SCHEMA, **COLUMNS, date_format="%d.%m.%Y").hand_in
    parsed = count(frame.assign(when=pd.to_datetime(frame["when"])), schema=SCHEMA, **COLUMNS).hand_in
    assert same == parsed == count(frame, schema=SCHEMA, **COLUMNS).hand_in
    # a row of unknown group is counted as such
    unknown = count(frame.assign(sex=frame["sex"].where(frame.index > 299)), schema=SCHEMA, **COLUMNS, period="year")
    (counts,) = unknown.hand_in.periods.values()
    assert sum(counts.unknown) == 300


def test_missing_cells_are_those_of_training(tmp_path: Path) -> None:
    """Empty texts and the schema's words count as null does; without a schema the words are given."""
    empty = decisions()
    empty.loc[::3, "outcome"], empty.loc[::4, "job"] = None, None
    schema = SCHEMA.model_copy(update={"na_values": ("?",)})
    expected = count(empty, schema=schema, **COLUMNS).hand_in
    assert expected.bins["job"][-2:] == ("(missing)", "(other)")
    for mark in ("", "  ", "?"):
        frame = empty.fillna({"outcome": mark, "job": mark})
        assert count(frame, schema=schema, **COLUMNS).hand_in == expected
    plain = {**COLUMNS, "group": "sex", "classes": CLASSES}
    unlabelled = count(empty, **plain).hand_in
    assert count(empty.fillna({"outcome": "NA"}), **plain, na_values=["NA"]).hand_in == unlabelled
    with pytest.raises(DataError, match=r"'NA' is not a known class.*na_values = \['NA'\]"):
        count(empty.fillna({"outcome": "NA"}), **plain)
    with pytest.raises(ConfigError, match="which lists such words"):
        count(empty, schema=schema, **COLUMNS, na_values=["NA"])

    written = []
    for kind in ("csv", "parquet"):
        path = tmp_path / f"decisions.{kind}"
        frame = empty.fillna({"outcome": "?", "job": " "})
        frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
        options = ["--silo", "north", "--date", "when", "--decision", "decision", "--label", "outcome"]
        options += ["--group", "sex", "--classes", ",".join(CLASSES), "--na-values", "?"]
        out = tmp_path / f"{kind}.json"
        done = CliRunner().invoke(app, ["monitor", "count", str(path), *options, "--out", str(out)])
        assert done.exit_code == 0, done.output
        written.append(out.read_bytes())
    assert written[0] == written[1]
    assert read_hand_in(tmp_path / "csv.json").periods == unlabelled.periods
