"""Gaps by attribute: each sensitive column by itself, all of them crossed, and the groups that are farthest apart."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import equifed as ef
from equifed.report.numbers import records
from equifed.verdict.comparison import Comparison
from equifed.verdict.variants import variants_of


def made(min_group: int = 0) -> tuple[ef.Result, pd.DataFrame]:
    """A result on crossed groups, and its test rows with what was decided for them."""
    rng = np.random.default_rng(0)
    n = 900
    frame = pd.DataFrame(
        {
            "x": rng.normal(size=n),
            "sex": rng.choice(["f", "m"], n),
            "race": rng.choice(["a", "b", "c"], n, p=[0.6, 0.36, 0.04]),
        }
    )
    frame["x"] += 0.8 * (frame["sex"] == "m") - 0.6 * (frame["race"] == "b")
    frame["y"] = np.where(frame["x"] + rng.normal(size=n) > 0, "yes", "no")
    fed = ef.Federation.from_tables(
        frame,
        ef.Columns(label="y", sensitive=["sex", "race"], min_group=min_group),
        holdout=ef.Holdout(test=0.4, validation=0.2),
        partition=ef.partition.IID(3),
    )
    local = ef.Local(batch_size=50, learning_rate=0.2)
    result = ef.simulate(ef.methods.FedAvg(), fed, model=ef.models.Logistic(), rounds=3, local=local)
    test = frame.iloc[fed.test].assign(chosen=result.predict(fed.rows.x[fed.test]) > 0.5)
    return result, test.assign(group=[fed.groups[code] for code in fed.rows.s[fed.test]], label=test["y"] == "yes")


@pytest.mark.full
def test_gaps_are_those_of_a_group_by():
    result, test = made()
    (variant,) = variants_of([result])
    for metric, rows in (
        ("demographic_parity_difference", test),
        ("equal_opportunity_difference", test[test["label"]]),
    ):
        found = {gap.attribute: gap for gap in variant.gaps(metric)}
        assert list(found) == ["sex", "race", "sex & race"]
        for attribute, by in {"sex": "sex", "race": "race", "sex & race": "group"}.items():
            rates, gap = rows.groupby(by)["chosen"].agg(["mean", "size"]), found[attribute]
            assert gap.mean == pytest.approx(rates["mean"].max() - rates["mean"].min())
            assert (gap.pair.low_rate, gap.pair.high_rate) == pytest.approx((rates["mean"].min(), rates["mean"].max()))
            assert (gap.pair.low_rate, gap.pair.low_rows) == pytest.approx(tuple(rates.loc[gap.pair.low]))
            assert (gap.pair.high_rate, gap.pair.high_rows) == pytest.approx(tuple(rates.loc[gap.pair.high]))
            assert 0 <= gap.low <= gap.mean <= gap.high <= 1
    crossed = found["sex & race"]
    lines = records(Comparison.of([result])).query("scope == 'attribute:sex & race'").set_index("metric")
    assert lines.loc["equal_opportunity_difference", ["lowest", "highest"]].tolist() == [*crossed.pair[1:3]]
    assert lines.loc["equal_opportunity_difference", "mean"] == pytest.approx(crossed.mean)


def test_merged_groups_are_crossed_but_in_no_single_column():
    result, test = made(min_group=60)
    assert result.info["groups"][0] == "other (merged)"
    (variant,) = variants_of([result])
    found = {gap.attribute: gap for gap in variant.gaps("demographic_parity_difference")}
    rest = test[test["group"] != "other (merged)"]
    for attribute, rows, by in (("sex", rest, "sex"), ("race", rest, "race"), ("sex & race", test, "group")):
        rates = rows.groupby(by)["chosen"].mean()
        assert found[attribute].mean == pytest.approx(rates.max() - rates.min())


def test_two_groups_have_nothing_to_take_apart():
    rng = np.random.default_rng(1)

    def part(n: int) -> tuple[np.ndarray, ...]:
        x, s = rng.normal(size=(n, 2)), rng.integers(0, 2, n)
        return x, (x[:, 0] + s > 0.5).astype(int), s

    fed = ef.Federation.from_arrays([part(40), part(40)], test=part(40))
    local = ef.Local(batch_size=20, learning_rate=0.1)
    result = ef.simulate(ef.methods.FedAvg(), fed, model=ef.models.Logistic(), rounds=1, local=local)
    (variant,) = variants_of([result])
    assert variant.gaps("demographic_parity_difference") == []
