"""Two sections of the report: calibration by group, and clients' own gaps beside the one over all."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy import stats

import equifed as ef
from equifed.cli.tables import local_table
from equifed.metrics.calibration import BINS, error_by_chance, histograms
from equifed.report import verdict
from equifed.report.numbers import page_data
from equifed.verdict.comparison import Comparison
from equifed.verdict.local import Local
from report.runs import federation, run
from report.test_report import page_of


def test_curves_are_those_of_the_predictions(tmp_path):
    fed = federation()
    result = run(ef.methods.FedAvg(), fed)
    x, y, s = (part[fed.test] for part in (fed.rows.x, fed.rows.y, fed.rows.s))
    page = page_of([result, run(ef.methods.make("fedavg+eo"), fed)], tmp_path)
    own, drawn = page.data["calibration"]
    assert (own["decisions"], drawn["decisions"]) == (False, True)
    each = [histograms(y, result.predict(x, run=seed), sensitive_features=s) for seed in range(3)]
    for g, group in enumerate(own["groups"]):
        n, true, total = sum(each)[g][sum(each)[g, :, 0] > 0].T
        assert [point["score"] for point in group["curve"]] == pytest.approx(total / n)
        assert [point["rate"] for point in group["curve"]] == pytest.approx(true / n)
        assert [point["rows"] for point in group["curve"]] == pytest.approx(n / 3)
        errors = [np.abs(one[g, :, 1] - one[g, :, 2]).sum() / (s == g).sum() for one in each]
        assert (group["error"], group["std"]) == pytest.approx((np.mean(errors), np.std(errors, ddof=1)), rel=1e-5)
        assert group["chance"] == pytest.approx(np.mean([error_by_chance(one[g]) for one in each]), abs=1e-6)
        assert group["rows"] == (s == g).sum()
    assert [len(group["curve"]) for group in drawn["groups"]] == [2, 2]
    assert {point["score"] for group in drawn["groups"] for point in group["curve"]} == {0.0, 1.0}
    assert f"one of {BINS} bins" in page.text
    assert "scores of the positive class" in page.text


def test_a_regression_has_no_such_sections(tmp_path):
    page = page_of([run(ef.methods.FedAvg(), federation(task="regression"), seeds=[0])], tmp_path)
    assert (page.data["calibration"], page.data["local"]) == ([], {})
    assert "Calibration" not in page.text
    assert "Local and global gaps" not in page.text


def local_frame(rows: dict[str, list[tuple[int, int, int, int]]], overall: float = 0.1) -> pd.DataFrame:
    """Clients with (hits, rows) of the group that is ahead and of the other one, in every seed."""
    lines = []
    for client, seeds in rows.items():
        for seed, (a, m, b, n) in enumerate(seeds):
            rates = {"higher_rate": a / m if m else np.nan, "lower_rate": b / n if n else np.nan}
            gap = rates["higher_rate"] - rates["lower_rate"]
            line = {"client": client, "metric": "demographic_parity_difference", "value": gap, "overall": overall}
            line["class"] = ""
            lines.append(
                {**line, **rates, "seed": seed, "higher": "m", "lower": "f", "higher_rows": m, "lower_rows": n}
            )
    return pd.DataFrame(lines)


def test_opposite_by_sign_and_beyond_chance():
    rows = {
        "same": [(60, 100, 40, 100), (50, 100, 40, 100)],
        "sign": [(45, 100, 50, 100), (45, 100, 50, 100)],
        "surely": [(10, 200, 90, 200), (20, 200, 90, 200)],
        "wide": [(150, 200, 20, 200), (150, 200, 20, 200)],
        "few": [(1, 9, 5, 9), (2, 9, 4, 9)],
        "none": [(3, 9, 0, 0), (3, 9, 0, 0)],
    }
    local = Local.of(local_frame(rows), "demographic_parity_difference")
    assert local is not None
    assert [client.name for client in local.clients] == ["surely", "few", "sign", "same", "wide"]
    assert [client.name for client in local.opposite] == ["surely", "few", "sign"]
    assert [client.name for client in local.reversed] == ["surely"]
    assert [client.name for client in local.wider] == ["surely", "wide"]
    assert [client.name for client in local.clients if client.few] == ["few"]
    surely = local.clients[0]
    assert surely.gap == pytest.approx((-0.4 - 0.35) / 2)
    assert (surely.rows, surely.seeds, local.pair) == (200, 2, ("m", "f"))
    # all clients at once: each of the five intervals covers 99 %
    for client in local.clients:
        assert client.sure_low < client.low < client.gap < client.high < client.sure_high
    rates = (15 / 200, 90 / 200)
    low, high = zip(*(stats.binomtest(k, 200).proportion_ci(0.99, method="wilson") for k in (15, 90)), strict=True)
    assert surely.sure_high == pytest.approx(surely.gap + np.hypot(high[0] - rates[0], rates[1] - low[1]))
    assert Local.of(local_frame({"none": rows["none"]}), "demographic_parity_difference") is None
    assert Local.of(local_frame(rows), "equal_opportunity_difference") is None


def test_the_page_lists_who_is_opposite_and_the_verdict_says_so(tmp_path):
    fed = federation(ids=["north", "<b>south</b>", "east", "west"])
    result = run(ef.methods.FedAvg(), fed)
    gaps = {"north": (50, 100, 40, 100), "<b>south</b>": (10, 200, 90, 200), "east": (45, 100, 50, 100)}
    frame = local_frame({client: [row] * 3 for client, row in gaps.items()}).assign(method="fedavg")
    page = page_of([replace(result, local_gaps=frame)], tmp_path)
    [found] = page.data["local"]["demographic_parity_difference"]
    assert (found["count"], found["opposite"], found["reversed"], found["wider"]) == (3, 2, 1, 1)
    assert [(client["name"], client["mark"]) for client in found["clients"]] == [
        ("<b>south</b>", "opposite"),
        ("east", "opposite by sign"),
        ("north", ""),
    ]
    words = " ".join(page.text.split())
    assert "m ahead of f3−0.400 … +0.100121<b>south</b> −0.400 [" in words
    said = (
        "Some clients' own demographic parity difference is, beyond chance, the reverse of the one over all clients or "
        "wider: fedavg the reverse at 1 and wider than all clients' 0.100 at 1 of 3."
    )
    assert said in verdict([replace(result, local_gaps=frame)]).caveats
    assert said in words
    calm = frame[frame["client"] != "<b>south</b>"]
    assert not any("Some clients" in caveat for caveat in verdict([replace(result, local_gaps=calm)]).caveats)


def test_too_many_clients_are_counted_and_not_listed(monkeypatch):
    result = run(ef.methods.FedAvg(), federation(), seeds=[0])
    about = Comparison.of([result])
    every = page_data(about)["local"]["demographic_parity_difference"][0]
    monkeypatch.setattr("equifed.report.numbers.MAX_CLIENT_POINTS", 3)
    few = page_data(about)["local"]["demographic_parity_difference"][0]
    assert (every["listed"], few["listed"]) == (True, False)
    assert few["count"] == every["count"] == len(every["clients"])
    assert len(few["clients"]) == few["reversed"]


def test_show_names_who_is_opposite():
    rows = {"north": [(50, 100, 40, 100)], "south": [(10, 200, 90, 200)], "east": [(45, 100, 50, 100)]}
    result = replace(run(ef.methods.FedAvg(), federation(), seeds=[0]), local_gaps=local_frame(rows))
    _, table, line = local_table(result)
    written = StringIO()
    Console(width=200, file=written).print(table)
    words = written.getvalue().split()
    assert words[-7:] == ["demographic_parity_difference", "+0.100", "3", "-0.400", "+0.100", "2", "1"]
    assert line == "DP diff., beyond chance f ahead of m: south -0.400 [-0.473, -0.322]."
    assert local_table(replace(result, local_gaps=result.local_gaps[:0])) == []


def test_simulated_secure_sums_are_told_apart(tmp_path):
    fed, plain = federation(), run(ef.methods.FedAvg(), federation(), seeds=[0])
    secure = run(ef.methods.KFFL(), fed, seeds=[0], secure=True)
    text = page_of([secure], tmp_path).text
    assert "Secure sums, simulated. These exchanges are those of a federation" in text
    assert text.count("gets only the sum") == text.count("takes the masks off the sum") == 3
    assert "can hide a single client's reply" not in text
    assert "only the silo itself knows them" in text  # single clients' figures
    text = page_of([plain, secure], tmp_path).text
    assert "The exchanges of kffl are those of a federation" in text
    assert "secure sums (secure = true) can hide a single client's reply" in text
    assert "needs only sums" in text
    text = page_of([plain], tmp_path).text
    assert "simulated" not in text
    assert "sees each reply" not in text
