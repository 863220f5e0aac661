"""FAIR-FATE's Table 1: the authors' splits, partitions and cohorts, the published figures, the rule for noise."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

import equifed as ef
from equifed.methods import FairFate
from equifed_papers.experiments.base import choose, unwatched, within_noise
from equifed_papers.experiments.fair_fate import settings as fair_fate
from experiments.command import record, run


def test_the_split_is_scikit_learn_s() -> None:
    rows = np.arange(6167)
    for seed in (10, 70):
        train, rest = train_test_split(rows, test_size=0.4, random_state=seed)
        test, validation = train_test_split(rest, test_size=0.5, random_state=seed)
        for ours, theirs in zip(fair_fate._split(6167, seed), (train, validation, test), strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("dataset", "clients", "rows"),
    [("compas", 10, 3700), ("adult", 15, 29305), ("law", 12, 12478), ("dutch", 20, 36252)],
)
def test_the_partition_is_drawn_as_the_authors_do(
    dataset: str, clients: int, rows: int, needs: Callable[[str], Path]
) -> None:
    needs(dataset)
    (fed,) = fair_fate.federations(dataset, "0.5", [30])
    assert fed.train.sizes.sum() == rows
    np.random.seed(30)  # noqa: NPY002
    shares = np.random.dirichlet(np.ones(clients) * 0.5, 4)  # noqa: NPY002
    cells = fed.cells()  # [client, group, label]
    for share, (label, group) in zip(shares, ((1, 1), (1, 0), (0, 1), (0, 0)), strict=True):
        own = cells[:, group, label]
        assert own[:-1].tolist() == [round(own.sum() * p) for p in share[:-1]]
    (equal,) = fair_fate.federations(dataset, "RND", [30])
    assert set(equal.train.sizes) == {rows // clients}


def test_the_cohorts_are_the_authors(needs: Callable[[str], Path]) -> None:
    needs("compas")
    random.seed(20)
    for row in fair_fate._cohorts(20, 100, 10, 3):
        chosen: list[int] = []
        while len(chosen) < 3:
            client = random.randint(0, 9)
            if client not in chosen:
                chosen.append(client)
        assert sorted(chosen) == row.tolist()
    sim = fair_fate.simulation(ef.methods.FedAvg(), fair_fate.federations("compas", "RND", [10, 20]), 2)
    np.testing.assert_array_equal(sim.job.cohorts(2)[1], fair_fate._cohorts(20, 2, 10, 3)[1])


def test_published_figures() -> None:
    compas = fair_fate.published_figures("compas", "0.5")
    assert compas["fair-fate", "SP", "SP"] == (1.00, 0.01)
    assert compas["feddemon", "", "EO"] == (0.46, 0.34)
    assert fair_fate.published_figures("adult", "RND")["fair-fate", "EQO", "ACC"] == (0.77, 0.01)
    for dataset in fair_fate.CLIENTS:
        for sigma in fair_fate.SIGMAS:
            figures = fair_fate.published_figures(dataset, sigma)
            keys = {(arm.method.name, fair_fate.short_name(arm.method)) for arm in fair_fate.arms(dataset, sigma, "")}
            assert set(figures) == {(*key, metric) for key in keys for metric in fair_fate.MEASURES}
    # Table 2, to the two decimals that the paper prints
    law, dutch = (fair_fate.published_figures(dataset, "0.5") for dataset in ("law", "dutch"))
    assert law["fedavg", "", "SP"] == pytest.approx((0.87, 0.13), abs=0.005)
    assert law["fair-fate", "EQO", "EQO"] == pytest.approx((0.92, 0.06), abs=0.005)
    assert dutch["fedval", "SP", "SP"] == pytest.approx((0.67, 0.13), abs=0.005)
    assert fair_fate.published_figures("dutch", "RND")["fair-fate", "EO", "EO"] == pytest.approx(
        (0.97, 0.03), abs=0.005
    )


def test_the_authors_settings_of_law_and_dutch() -> None:
    """In the names of their result files."""
    methods = {arm.label: arm.method for arm in fair_fate.arms("dutch", "1.0", "as-published")}
    fair = methods["FAIR-FATE (EO)"]
    assert isinstance(fair, FairFate)
    assert (fair.beta0, fair.rho, fair.lambda0, fair.lambda_max) == (0.8, 0.05, 0.5, 1.0)
    assert [
        next(arm.method.hyper for arm in fair_fate.arms("law", sigma, "as-published") if arm.label == label)
        for label, sigma in (("FedMom", "0.5"), ("FedMom", "RND"), ("FedDemon", "0.5"))
    ] == [{"beta": 0.8}, {"beta": 0.99}, {"beta0": 0.99}]
    grid = set(itertools.product(*fair_fate.GRID.values()))
    assert {each for chosen in fair_fate.CONFIGURATIONS.values() for each in chosen} <= grid


def test_the_rule_for_noise() -> None:
    limit = 2 * np.sqrt((0.1**2 + 0.2**2) / 10)  # 0.141
    assert within_noise((0.50, 0.1), (0.64, 0.2), 10)
    assert not within_noise((0.50, 0.1), (0.65, 0.2), 10)
    assert 0.14 < limit < 0.15


def test_every_row_of_the_table_and_both_readings() -> None:
    published, corrected = (fair_fate.arms("compas", "0.5", reading) for reading in fair_fate.READINGS)
    assert [arm.label for arm in published] == [arm.label for arm in corrected]
    assert len(published) == 11
    fair = published[-1].method
    assert isinstance(fair, FairFate)
    assert (fair.fairness, fair.beta0, fair.rho, fair.lambda0, fair.lambda_max, fair.as_published) == (
        "average_odds_ratio", 0.99, 0.04, 0.1, 0.9, True,
    )  # fmt: skip
    assert corrected[-1].method.as_published is False  # type: ignore[attr-defined]
    assert published[4].method.scope == "round"  # type: ignore[attr-defined]


def test_choosing_keeps_the_quality() -> None:
    quality, disparity = [0.7, 0.9, 0.8, float("nan")], [0.1, 0.3, 0.2, 0.0]
    assert [choose(quality, disparity, floor) for floor in (0.0, 0.75, 0.85, 1.0)] == [0, 2, 1, 1]
    assert choose(quality, [float("nan"), 0.3, 0.2, 0.0], 0.0) == 2
    assert choose([0.5, 0.5], [0.2, 0.2], 0.0) == 0


def test_choosing_on_validation_follows_the_rule(needs: Callable[[str], Path]) -> None:
    needs("compas")
    feds = fair_fate.federations("compas", "1.0", [10, 20])
    method = FairFate("demographic_parity_ratio", rho=0.3, lambda0=0.5)
    values = [0.0, 1.0]
    chosen = fair_fate.select_on_validation(method, feds, 3, 0.0, unwatched, {"lambda_max": values})
    # by hand: each setting alone, fairness on validation counts, all accuracies allowed
    scores = {}
    for value in values:
        sim = fair_fate.simulation(
            FairFate("demographic_parity_ratio", rho=0.3, lambda0=0.5, lambda_max=value), feds, 3
        )
        *_, last = sim.rounds()
        counts = [scored["validation"].counts[0] for scored in last.scores[last.round]]
        ratios = [float(ef.metrics.disparities(c)["demographic_parity_ratio"]) for c in counts]
        scores[value] = np.mean(np.nan_to_num(ratios))
    assert len(set(scores.values())) == 2
    assert chosen.lambda_max == max(scores, key=lambda value: scores[value])


def test_the_command_prints_ours_beside_the_published(tmp_path: Path, needs: Callable[[str], Path]) -> None:
    needs("compas")
    done = run(
        "fair-fate/table1", "--quick", "--sigma", "RND", "--methods", "fedavg,fair-fate (sp)", "--pages",
        str(tmp_path / "pages"), folder=tmp_path / "runs",
    )  # fmt: skip
    assert "(0.69±0.01)" in done.stdout  # FedAvg's published accuracy
    assert "FAIR-FATE (SP)" in done.stdout
    assert "cells within noise" in done.stdout
    assert "repeat its RND column" in done.stdout
    assert "a look, not a test" in done.stdout
    assert {page.name for page in (tmp_path / "pages").iterdir()} == {
        "compas-RND-as-published.html", "compas-RND-algorithm-1.html",
    }  # fmt: skip
    (table,) = (tmp_path / "runs").glob("fair-fate-table1-*.csv")
    assert len(table.read_text().splitlines()) == 1 + 2 * 2 * 4
    assert f"All rows: {table}" in done.stderr.replace("\n", "")


def test_the_command_as_json(tmp_path: Path, needs: Callable[[str], Path]) -> None:
    needs("compas")
    value = record(
        "fair-fate/table1", "--sigma", "RND", "--methods", "fedavg", "--reading", "as-published", folder=tmp_path
    )
    assert [cell["metric"] for cell in value["cells"]] == ["ACC", "SP", "EO", "EQO"]
    assert value["summary"]["compared"] == 4
    figure = record("fair-fate/figure3", "--seeds", "1", "--sigma", "RND", folder=tmp_path)
    assert {point["F"] for point in figure["points"]} == {"SP", "EO", "EQO"}
    assert len(figure["points"]) == 3 * len(fair_fate.TRADE_OFF)
    assert {(point["defined"], point["runs"]) for point in figure["points"]} == {(1, 1)}


def test_table2_and_curves_as_json(tmp_path: Path, needs: Callable[[str], Path]) -> None:
    needs("compas")
    needs("law")
    cells = record(
        "fair-fate/table2", "--sigma", "0.5", "--methods", "feddemon", "--reading", "as-published", folder=tmp_path
    )["cells"]
    assert [(cell["dataset"], cell["metric"]) for cell in cells] == [("law", name) for name in fair_fate.MEASURES]
    assert [cell["printed"] for cell in cells] == [0.90, 0.91, 0.92, 0.78]  # its RND column, by mistake
    assert cells[0]["published_mean"] == 0.882
    points = record(
        "fair-fate/figure2", "--datasets", "compas", "--sigma", "RND", "--methods", "fedavg", folder=tmp_path
    )["points"]
    assert [(point["round"], point["metric"]) for point in points] == list(
        itertools.product((1, 2), fair_fate.MEASURES)
    )
    # the curve ends where the table is
    last = record(
        "fair-fate/table1", "--sigma", "RND", "--methods", "fedavg", "--reading", "as-published",
        folder=tmp_path,
    )["cells"]  # fmt: skip
    assert [point["mean"] for point in points[4:]] == [cell["mean"] for cell in last]


def test_the_partition_picture(tmp_path: Path, needs: Callable[[str], Path]) -> None:
    needs("compas")
    points = record("fair-fate/figure1", folder=tmp_path)["points"]
    for sigma, uneven in (("0.5", True), ("inf", False)):
        for group in {point["group"] for point in points}:
            for label in {point["label"] for point in points}:
                own = [p["share"] for p in points if (p["sigma"], p["group"], p["label"]) == (sigma, group, label)]
                assert len(own) == 10
                assert sum(own) == pytest.approx(1)
                assert (max(own) > 0.2) is uneven


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fair-fate/table9"], "Unknown experiment 'fair-fate/table9'. Did you mean 'fair-fate/table2'"),
        (["fair-fate/table1", "--datasets", "compass"], "Did you mean 'compas'"),
        (["fair-fate/table2", "--datasets", "compas"], "Known: dutch, law"),
        (["fair-fate/table1", "--sigma", "2"], "Unknown sigma '2'. Known: 0.5, 1.0, RND"),
        (["fair-fate/table1", "--reading", "theirs"], "Unknown reading 'theirs'"),
        (["fair-fate/table1", "--methods", "kffl", "--quick"], "Unknown method of the table 'kffl'"),
        (["fair-fate/table1", "--select", "test"], "--select takes only validation"),
        (["fair-fate/figure3", "--methods", "fedavg"], "fair-fate/figure3 has no --methods"),
    ],
)
def test_wrong_requests(arguments: list[str], message: str, tmp_path: Path) -> None:
    assert message in " ".join(run(*arguments, folder=tmp_path, code=2).stderr.split())
    assert not list(tmp_path.rglob("*.csv"))  # what is wrong is said before there is a file
