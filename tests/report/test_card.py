"""The model card says what the run recorded, and nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from store.silos import write_config, write_silos

import equifed as ef
from equifed.config import load_config
from equifed.report.card import Card, Table, card_of
from equifed.store import Store
from equifed.verdict.comparison import Comparison


@pytest.fixture(scope="module")
def result() -> ef.Result:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(50, 9, 500), "unit": rng.choice(["x", "y"], 500)})
    frame["patient"] = [f"Ada {i}" for i in range(500)]
    frame["sex"], frame["site"] = rng.choice(["f", "m"], 500), rng.choice(["a|b", "*c*"], 500)
    frame["ill"] = (frame["age"] + 9 * rng.normal(size=500) > 50).astype(int)
    fed = ef.Federation.from_tables(
        frame,
        ef.Columns(label="ill", sensitive="sex", meaning="fell ill within a year"),
        holdout=ef.Holdout(validation=0.2),
        partition=ef.partition.Natural("site"),
    )
    return ef.simulate(ef.methods.FedAvg(), fed, model=ef.models.Logistic(), rounds=3, seeds=[0, 1, 2])


def tables(card: Card, title: str) -> list[Table]:
    (section,) = (section for section in card.sections if section.title == title)
    return [part for part in section.parts if isinstance(part, Table)]


def test_rows_columns_and_groups_are_those_of_the_data(result: ef.Result) -> None:
    card = card_of(result)
    rows, columns, left_out = tables(card, "Data")
    cells = np.asarray(result.info["cells"]).sum(-1)
    assert rows.columns == ("client", "f", "m")
    assert [row[1:] for row in rows.rows] == [tuple(map(str, of)) for of in cells.tolist()]
    assert [row[0] for row in columns.rows] == ["age", "unit"]
    assert [row[0] for row in left_out.rows] == ["patient"]
    text = card.markdown()
    assert "Positive: '1', fell ill within a year." in text
    assert "Ada " not in text
    assert "To predict, the model does not need a row's group." in text


def test_figures_have_the_reports_intervals(result: ef.Result) -> None:
    (variant,) = Comparison.of([result]).variants
    figures, groups = tables(card_of(result), "Figures")
    shown = {row[0]: row[1] for row in figures.rows}
    low, high = variant.interval("accuracy") or (np.nan, np.nan)
    mean = result.final()["accuracy"].mean()
    assert shown["Accuracy"] == f"{mean:.3f} [{low:.3f}, {high:.3f}]"
    assert [row[0] for row in groups.rows] == ["f", "m"]
    counts = result.metrics[(result.metrics["scope"] == "group:f") & (result.metrics["metric"] == "count")]
    assert groups.rows[0][1] == f"{counts[counts['split'] == 'test']['value'].iloc[-1]:.0f}"


def test_names_cannot_break_the_markdown(result: ef.Result) -> None:
    text = card_of(result).markdown()
    assert r"a\|b" in text
    assert r"\*c\*" in text
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1
    named = replace(result, info={**result.info, "data": "<script>alert(1)</script>\n# Heading"})
    assert "<script>" not in card_of(named).markdown()
    assert "\n# Heading" not in card_of(named).markdown()


def test_what_is_not_known_is_said(uneven: ef.Federation) -> None:
    bare = ef.simulate(ef.methods.FedAvg(), uneven, model=ef.models.Logistic(), rounds=1, seeds=[0])
    text = card_of(replace(bare, metrics=bare.metrics[:0])).markdown()
    for said in ("Nothing was measured", "What the outcome means was not recorded", "no schema says what they mean"):
        assert said in text


def test_limits_are_the_reports_caveats_and_withheld_is_not_a_number(result: ef.Result) -> None:
    from equifed.verdict.sentences import verdict_of

    caveats = verdict_of(Comparison.of([result])).caveats
    text = card_of(result).markdown()
    assert caveats
    for caveat in caveats:
        assert caveat.replace("\u00a0", " ")[:40] in text


def test_the_folder_of_a_run_has_it_with_what_only_the_folder_knows(tmp_path: Path) -> None:
    write_silos(tmp_path)
    with Store(tmp_path / "runs").start(load_config(write_config(tmp_path))) as recording:
        for _ in recording.rounds():
            pass
        live = recording.finish()
    folder = recording.folder
    text = (folder.path / "model" / "MODEL_CARD.md").read_text()
    facts: dict[str, Any] = folder.facts()
    for known in (folder.id, facts["versions"]["torch"], facts["provenance"]["fingerprint of the rows"]):
        assert known.replace("_", r"\_") in text
    assert text.startswith(r"# Model card: fedavg on files")
    page = live.to_html(tmp_path / "page.html").read_text()
    assert page.count('id="card"') == 1
    assert "Model card: fedavg on files" in page
