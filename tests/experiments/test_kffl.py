"""KFFL's experiments: data, published figures, choice on validation rows, and what `equifed reproduce` prints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import equifed as ef
from equifed.experiments.base import Arm
from equifed.experiments.kffl import settings as kffl
from experiments.command import record, run, silent


def test_published_figures() -> None:
    adult = kffl.published_figures(7, "adult", "non-iid")
    assert adult["KFFL", "", "accuracy"] == (0.8314, 0.0042)
    assert adult["KFFL-TD", "", "equal_opportunity_difference"] == (0.04, 0.1)
    assert len(adult) == 6 * 3
    table4 = kffl.published_figures(4, "communities", "iid")
    assert table4["KFFL", "100", "ks_distance"] == (0.290872, 0.099638)
    rows = {
        number: len(kffl.published_figures(number, *kffl.REGRESSION_TABLES[number][:2]))
        for number in (9, 10, 13, 14, 15)
    }
    assert rows == {9: 8, 10: 10, 13: 10, 14: 14, 15: 14}
    best = kffl.published_at_equal_rmse(15)
    assert (best.weight, best.ks, best.ks_at_0) == (5, 0.26067, 0.38293)
    assert best.rmse_at_half == 0.5216


def test_the_published_communities_models_are_worse_than_the_mean(needs: Callable[[str], None]) -> None:
    """Why the published halving of KS at equal RMSE is no target for a trained model."""
    needs("communities")
    trivial = kffl.trivial_rmse(kffl.federations("communities", "iid", range(5), regression=True))
    assert trivial < 0.24
    assert kffl.published_at_equal_rmse(4).rmse_at_0 > 1.3 * trivial


@pytest.mark.parametrize("skew", kffl.SKEWS)
def test_clients(skew: str, needs: Callable[[str], None]) -> None:
    needs("compas")
    fed = kffl.federations("compas", skew, [0])[0]
    share = fed.cells().sum(2) / fed.cells().sum((1, 2))[:, None]  # of the groups in each client
    assert (len(fed.validation), len(fed.test)) == (617, 1234)
    if skew == "iid":
        np.testing.assert_allclose(share, share.mean(0)[None].repeat(4, 0), atol=0.05)
    else:
        np.testing.assert_allclose(share[:, 0], [0.9, 0.9, 0.1, 0.1], atol=0.01)


def test_a_setting_is_chosen_on_validation_rows(needs: Callable[[str], None]) -> None:
    needs("german")
    feds = kffl.federations("german", "non-iid", range(2))
    arm = Arm("KFFL", ef.methods.KFFL(), {"fairness_weight": [0.0, 5.0, 40.0]})
    ((_, result),) = kffl.sweeps(feds, [arm], ef.models.Logistic(), 3, silent)
    seen = result.final("validation").groupby("fairness_weight")[["accuracy", kffl.MEASURES["SPD"]]].mean()
    for floor in (0.0, float(seen["accuracy"].median()), 2.0):
        allowed = seen[seen["accuracy"] >= floor]
        wanted = allowed[kffl.MEASURES["SPD"]].idxmin() if len(allowed) else seen["accuracy"].idxmax()
        assert kffl.best_setting(result, kffl.MEASURES["SPD"], floor) == {"fairness_weight": wanted}
    runs = kffl.of_setting(result, {"fairness_weight": 5.0})
    assert (runs["fairness_weight"] == 5).all()
    assert len(runs) == 2


def test_rows_are_named_as_in_the_paper_or_in_the_registry() -> None:
    rows = kffl.arms("SPD")
    assert [arm.label for arm in kffl.chosen(rows, ["kffl-td", "MinMax"])] == ["FedAvg", "KFFL-TD", "MinMax"]
    assert [arm.label for arm in kffl.chosen(rows, ["fairfed"])] == ["FedAvg", "FairFed/FairBatch", "FairFed-Kernel"]
    with pytest.raises(ef.ConfigError, match="Did you mean 'kffl'"):
        kffl.chosen(rows, ["kfl"])


@pytest.mark.full
def test_table_on_the_command_line(tmp_path: Path, needs: Callable[[str], None]) -> None:
    needs("german")
    done = run(
        "kffl/table6", "--datasets", "german", "--methods", "kffl", "--quick", "--pages", str(tmp_path / "p"),
        folder=tmp_path,
    )  # fmt: skip
    assert "german, non-IID: ours (published)" in done.stdout
    assert "(0.725)" in done.stdout  # the published accuracy of both rows
    assert (tmp_path / "p" / "german.html").stat().st_size > 10_000
    assert len(list(tmp_path.glob("kffl-table6-*.csv"))) == 1


def test_figure_and_regression_as_json(tmp_path: Path, needs: Callable[[str], None]) -> None:
    needs("compas")
    needs("communities")
    fronts = record("kffl/figure3", "--methods", "fedminmax", folder=tmp_path)["fronts"]
    assert [(front["measure"], front["method"]) for front in fronts] == [
        ("SPD", "FedAvg"), ("SPD", "MinMax"), ("EOD", "FedAvg"), ("EOD", "MinMax"),
    ]  # fmt: skip
    assert all(front["hypervolume_low"] <= front["hypervolume_high"] for front in fronts)
    value = record("kffl/table10", folder=tmp_path)
    assert len(value["points"]) == 16
    assert value["published"]["ks_at_0"] == 0.671308


def test_options_of_another_paper_are_refused(tmp_path: Path) -> None:
    done = run("kffl/table4", "--sigma", "0.5", folder=tmp_path, code=2)
    assert "kffl/table4 has no --sigma. It takes --seeds, --rounds, --quick, --pages." in done.stderr.replace("\n", " ")
    assert "Did you mean 'compas'" in run("kffl/table6", "--datasets", "compass", folder=tmp_path, code=2).stderr
