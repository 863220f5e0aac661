"""The rule by which settings are chosen, the scores and the ranks, against numbers worked out by hand or by SciPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from equifed_papers.benchmark.plan import BUDGETS, EXTRA, known_methods, own_values, picked, step_sizes
from equifed_papers.benchmark.ranks import critical_difference, ranking, signed_ranks
from equifed_papers.benchmark.records import table_of
from equifed_papers.benchmark.scores import scored, within

DP = "demographic_parity_difference"


def row(
    setting: str, seed: int, validation: tuple[float, float], test: tuple[float, float], **more: Any
) -> dict[str, Any]:
    """(accuracy, gap) on validation and on test rows."""
    base = {
        "tier": "quick", "data": "german", "partition": "iid", "method": "m", "family": "accuracy", "left_out": "",
        "setting": setting, "seed": seed, "majority": 0.6, "bytes": 100, "seconds": 1.0,
    }  # fmt: skip
    measured = {}
    for split, (accuracy, gap) in (("validation", validation), ("test", test)):
        measured |= {f"{split}_accuracy": accuracy, f"{split}_{DP}": gap, f"{split}_client_{DP}.worst": 2 * gap}
        measured |= {f"{split}_client_accuracy.worst": accuracy - 0.1, f"{split}_client_accuracy.mean": accuracy}
    return base | measured | more


ROWS = [
    row("a", 0, (0.90, 0.10), (0.91, 0.12)), row("a", 1, (0.92, 0.08), (0.89, 0.10)),
    row("b", 0, (0.84, 0.04), (0.80, 0.06)), row("b", 1, (0.86, 0.05), (0.84, 0.10)),
    row("c", 0, (0.70, 0.00), (0.72, 0.01)), row("c", 1, (0.70, 0.02), (0.70, 0.01)),
]  # fmt: skip


def of(rows: list[dict[str, Any]], score: str) -> pd.Series[Any]:
    found = scored(table_of(rows))
    return found[found["score"] == score].iloc[0]


def test_the_most_accurate_within_the_gap_is_chosen_and_charged_what_it_exceeds() -> None:
    found = of(ROWS, "parity")
    assert found["setting"] == "b"  # a: mean gap .09 on validation rows; c is less accurate
    assert found["gap"] == pytest.approx(0.08)
    assert not found["met"]
    assert found["value"] == pytest.approx(0.82 - 0.03)
    assert np.isnan(found["half"])  # two seeds tell nothing of their spread
    assert of(ROWS, "local")["value"] == pytest.approx(0.16)


def test_intervals_are_of_the_chosen_settings_seeds() -> None:
    rows = [row("a", seed, (0.9, 0.01), (accuracy, 0.01)) for seed, accuracy in enumerate((0.8, 0.9, 0.7, 0.8))]
    error = np.std([0.8, 0.9, 0.7, 0.8], ddof=1) / 2
    assert of(rows, "parity")["half"] == pytest.approx(stats.t.ppf(0.975, 3) * error)


def test_a_model_that_has_diverged_is_not_chosen() -> None:
    rows = [row("a", seed, (0.9, 0.01), (0.8, 0.01)) for seed in range(2)]
    diverged = [row("b", seed, (np.inf, 0.0), (np.inf, 0.0)) for seed in range(2)]
    assert of([*rows, *diverged], "parity")["setting"] == "a"


def test_the_best_score_where_none_is_within() -> None:
    quality, gap = pd.Series({"a": 0.9, "b": 0.85, "c": 0.5}), pd.Series({"a": 0.3, "b": 0.2, "c": 0.1})
    assert within(quality, gap) == "b"  # .65, .70, .45
    assert within(quality, gap, bound=0.3) == "a"
    assert within(pd.Series({"a": np.nan, "b": 0.7}), gap, bound=0.5) == "b"  # a has diverged
    assert within(pd.Series({"a": np.nan}), pd.Series({"a": 0.1})) is None


def test_what_test_rows_show_changes_no_choice() -> None:
    rng = np.random.default_rng(1)
    before = scored(table_of(ROWS)).set_index("score")["setting"]
    changed = [
        {key: rng.random() if key.startswith("test_") and value is not None else value for key, value in each.items()}
        for each in ROWS
    ]
    after = scored(table_of(changed)).set_index("score")
    assert after["setting"].to_dict() == before.to_dict()
    assert after.loc["parity", "value"] != pytest.approx(0.79)


def test_the_hypervolume_is_of_the_validation_front_on_test_rows() -> None:
    # all three are on the validation front; test means (.90, .11), (.82, .08), (.71, .01); corner (.6, .25)
    area = 0.30 * (0.25 - 0.11) + 0.22 * (0.11 - 0.08) + 0.11 * (0.08 - 0.01)
    assert of(ROWS, "hypervolume")["value"] == pytest.approx(area / (0.4 * 0.25))
    # a setting that is dominated on validation rows counts for nothing, however good it is on test rows
    worse = [*ROWS, row("d", 0, (0.5, 0.5), (1, 0)), row("d", 1, (0.5, 0.5), (1, 0))]
    assert of(worse, "hypervolume")["value"] == pytest.approx(area / (0.4 * 0.25))


def test_the_worst_client_is_chosen_by_the_worst_client_on_validation_rows() -> None:
    turned = [each | {"validation_client_accuracy.worst": 0.9 if each["setting"] == "c" else 0.1} for each in ROWS]
    assert of(turned, "worst")["setting"] == "c"
    assert of(turned, "worst")["value"] == pytest.approx(0.71 - 0.1)


def test_a_regression_counts_by_what_its_error_leaves() -> None:
    facts = {"data": "communities", "majority": None}
    rows = [
        row(name, seed, (np.nan, np.nan), (np.nan, np.nan), **facts)
        | {f"{split}_rmse": error for split in ("validation", "test")}
        | {f"{split}_ks_distance": distance for split in ("validation", "test")}
        for name, error, distance in (("a", 0.2, 0.5), ("b", 0.3, 0.04), ("diverged", 1e6, 0.0))
        for seed in (0, 1)
    ]
    found = of(rows, "parity")
    assert (found["setting"], found["value"]) == ("b", pytest.approx(0.7))


def scores_of(values: dict[str, dict[str, list[float]]]) -> pd.DataFrame:
    """{data: {method: values of its partitions}}."""
    return pd.DataFrame(
        [
            {"data": data, "partition": str(i), "method": method, "score": "parity", "value": value}
            for data, methods in values.items()
            for method, each in methods.items()
            for i, value in enumerate(each)
        ]
    )


def test_ranks_are_friedmans() -> None:
    rng = np.random.default_rng(0)
    names, data = ["fedavg", "a", "b", "c"], ["adult", "compas", "german", "law", "drug"]
    table = rng.random((5, 4, 2))
    table[:, 1] += 1
    found = ranking(
        scores_of({d: {m: table[i, j].tolist() for j, m in enumerate(names)} for i, d in enumerate(data)}), "parity"
    )
    assert found is not None
    means = table.mean(-1)  # a data set counts once, by the mean over partitions
    ranks = stats.rankdata(-means, axis=1).mean(0)
    assert found.table["rank"].to_dict() == pytest.approx(dict(zip(names, ranks, strict=True)))
    assert found.table.index[0] == "a"
    # Friedman's statistic without ties, from the rank sums
    sums = stats.rankdata(-means, axis=1).sum(0)
    statistic = 12 / (5 * 4 * 5) * (sums**2).sum() - 3 * 5 * 5
    assert found.statistic == pytest.approx(statistic)
    assert found.p == pytest.approx(stats.chi2.sf(statistic, 3))
    assert found.table.loc["a", "better"] > 0.9


def test_a_method_without_a_data_set_has_no_rank() -> None:
    whole = {"fedavg": [0.5], "a": [0.6], "b": [0.7]}
    found = ranking(scores_of({"adult": whole | {"c": [0.9]}, "german": whole}), "parity")
    assert found is not None
    assert found.partial == ("c",)
    assert "c" not in found.table.index
    assert ranking(scores_of({"adult": whole}), "parity") is None


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (5, 2.728), (10, 3.164)])
def test_the_critical_difference_is_the_tables(methods: int, q: float) -> None:
    """q at 5 % as in Demšar (2006), table 5."""
    expected = q * np.sqrt(methods * (methods + 1) / (6 * 14))
    assert critical_difference(methods, 14) == pytest.approx(expected, abs=2e-3)


def test_bayesian_signed_ranks_in_the_limits() -> None:
    assert signed_ranks(np.full(10, 0.2), 0.01)[2] > 0.99
    assert signed_ranks(np.full(10, -0.2), 0.01)[0] > 0.99
    assert signed_ranks(np.zeros(10), 0.01) == (0.0, 1.0, 0.0)
    worse, same, better = signed_ranks(np.array([0.2, -0.2] * 5), 0.0001)
    assert worse == pytest.approx(better, abs=0.05)
    assert worse + same + better == pytest.approx(1)


def test_one_difference_has_a_closed_form() -> None:
    """One difference above the rope, its half above it too: better unless the prior's weight u has u^2 >= 1/2, with u
    from Beta(1/2, 1)."""
    same = signed_ranks(np.array([1.0]), 0.01, samples=200_000)[1]
    assert same == pytest.approx(1 - (1 / np.sqrt(2)) ** 0.5, abs=0.005)


def test_every_method_has_the_same_number_of_settings() -> None:
    for settings in (3, 6, 12):
        for name in known_methods():
            own = own_values(name, 4 if settings == 12 else 3)
            values = np.prod([len(each) for each in own.values()]) if own else 1
            assert values * len(set(step_sizes(name, settings))) == settings, name
    assert set(BUDGETS) <= set(known_methods())
    assert set(EXTRA) <= set(known_methods())
    assert picked([1, 2, 3], 1) == [2]
    assert picked([1, 2, 3, 4], 2) == [1, 4]


def test_a_method_that_lacks_a_partition_has_no_rank() -> None:
    places = [(data, partition) for data in ("adult", "law", "german") for partition in ("iid", "dirichlet")]
    rows = []
    for method in ("fedavg", "b", "c", "mine"):
        for data, partition in places:
            if method == "mine" and partition == "dirichlet":
                continue  # where everybody is worse
            value = {"iid": 0.9, "dirichlet": 0.7}[partition] - (0.05 if method == "mine" else 0) - ord(method[0]) / 1e4
            rows += [row("a", 0, (value, 0.01), (value, 0.01), method=method, data=data, partition=partition)]
    found = ranking(scored(table_of(rows)), "parity")
    assert found is not None
    assert found.partial == ("mine",)
    assert set(found.table.index) == {"fedavg", "b", "c"}


def test_what_the_readme_and_the_page_say_is_what_is_published() -> None:
    root = Path(__file__).resolve().parents[3]
    results = root / "papers" / "results"
    scores = pd.read_csv(results / "benchmark.csv")
    scores = scores[(scores["score"] == "parity") & ~scores["data"].isin(["communities", "mnist"])]
    means = scores.groupby(["method", "data"])["value"].mean().groupby("method").mean()
    readme, page = (path.read_text(encoding="utf-8") for path in (root / "README.md", results / "benchmark.md"))
    for method in ("fedavg+fair", "fedgft", "fedavg"):
        figure = f"{means[method]:.3f}"
        assert f"| {method} | {figure} |" in page
        assert figure.removeprefix("0") in readme.partition("## The benchmark")[2].partition("##")[0]
        assert figure.removeprefix("0") in page.partition("What these results show")[2].partition("<!--")[0]


def test_a_setting_that_diverged_with_one_seed_is_not_chosen() -> None:
    rows = [row("a", seed, (0.8, 0.01), (0.8, 0.01)) for seed in range(3)]
    rows += [row("b", seed, (np.nan if seed else 0.9, 0.01), (0.9, 0.01)) for seed in range(3)]
    assert of(rows, "parity")["setting"] == "a"
