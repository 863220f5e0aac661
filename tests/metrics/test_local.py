"""Clients' gaps with their sign: against plain loops over rows, and published intervals."""

from __future__ import annotations

import numpy as np
import pytest

import equifed as ef
from equifed.metrics import local
from equifed.metrics.local import gap_interval


def test_the_interval_is_newcombes():
    """The examples of his Table II, method 10."""
    examples = {
        (56, 70, 48, 80): (0.0524, 0.3339),
        (9, 10, 3, 10): (0.1705, 0.8090),
        (6, 7, 2, 7): (0.0582, 0.8062),
        (5, 56, 0, 29): (-0.0381, 0.1926),
        (10, 10, 0, 20): (0.6791, 1.0),
        (10, 10, 0, 10): (0.6075, 1.0),
    }
    for (a, m, b, n), bounds in examples.items():
        found = gap_interval(np.array([a / m, b / n]), np.array([m, n]))
        assert found == pytest.approx(bounds, abs=5e-5), (a, m, b, n)
    assert np.isnan(gap_interval(np.array([[0.5, np.nan]]), np.array([[4, 0]]))).all()


def local_gaps(hits: np.ndarray, rows: np.ndarray) -> local.LocalGaps:
    """Of two classes, from the hits [..., K, G] of the positive one."""
    return local.local_gaps(np.stack([rows - hits, hits], -1), np.stack([rows, rows], -1))


def test_gaps_are_those_of_the_pair_that_is_farthest_apart_over_all():
    """Three groups, a client without one of them, one that withholds: the pair is the same for every client."""
    hits = np.array([[30.0, 2.0, 5.0], [1.0, 8.0, 5.0], [3.0, 0.0, 0.0], [np.nan, 3.0, 1.0]])
    rows = np.array([[40.0, 20.0, 10.0], [10.0, 10.0, 10.0], [4.0, 0.0, 7.0], [np.nan, 6.0, 2.0]])
    found = local_gaps(hits, rows)
    # 34/54 of the first, 13/36 of the second, 11/29 of the third
    assert found.pair.tolist() == [0, 1]
    assert found.overall == pytest.approx(34 / 54 - 13 / 36)
    np.testing.assert_allclose(found.gaps, [0.75 - 0.1, 0.1 - 0.8, np.nan, np.nan])
    assert found.opposite == 0.5  # of the two that have a gap
    turned = local_gaps(np.stack([hits, hits]), np.stack([rows, rows]))
    np.testing.assert_array_equal(turned.gaps, [found.gaps, found.gaps])


def test_one_group_has_no_gap_and_equal_ones_no_opposite():
    alone = local_gaps(np.array([[3.0, 0.0]]), np.array([[5.0, 0.0]]))
    assert np.isnan([alone.overall, alone.opposite, *alone.gaps]).all()
    equal = local_gaps(np.array([[2.0, 1.0], [1.0, 2.0]]), np.full((2, 2), 4.0))
    assert (equal.overall, equal.opposite) == (0, 0)


def test_a_run_tells_every_clients_own_gap():
    """Two clients that favour one group and one that favours the other; a model that sees the group."""
    rng = np.random.default_rng(0)

    def rows(n: int, sign: float):
        s = rng.integers(0, 2, n)
        x = np.stack([s * sign, rng.normal(size=n)], 1).astype(np.float32)
        return x, (x[:, 0] + x[:, 1] + 0.3 * rng.normal(size=n) > 0).astype(int), np.array(["f", "m"])[s]

    signs, tests = {"u": 2, "v": 2, "w": -2}, {}
    for name, sign in signs.items():
        tests[name] = rows(60, sign)
    fed = ef.Federation.from_arrays(
        [rows(80, sign) for sign in signs.values()], client_tests=list(tests.values()), ids=list(signs)
    )
    settings = {"rounds": 4, "local": ef.Local(batch_size=20, learning_rate=0.5), "seeds": [0, 1]}
    result = ef.simulate(ef.methods.FedAvg(), fed, model=ef.models.Logistic(), **settings)
    for seed in (0, 1):
        chosen = {name: result.predict(x, run=seed) > 0.5 for name, (x, _, _) in tests.items()}
        for metric, kept in (("demographic_parity_difference", (0, 1)), ("equal_opportunity_difference", (1,))):
            found = result.local_gaps.query("seed == @seed and metric == @metric").set_index("client")
            for name, (_, y, s) in tests.items():
                rates = [chosen[name][(s == group) & np.isin(y, kept)].mean() for group in "mf"]
                assert found.loc[name, "value"] == pytest.approx(rates[0] - rates[1])
                assert found.loc[name, "higher_rows"] == ((s == "m") & np.isin(y, kept)).sum()
                assert found.loc[name, "low"] < found.loc[name, "value"] < found.loc[name, "high"]
            assert set(found["higher"]) == {"m"}
            assert found.loc["w", "high"] < 0
            final = result.final().set_index("seed").loc[seed]
            assert final[f"client_{metric}.opposite"] == pytest.approx(1 / 3)
            assert found["overall"].tolist() == pytest.approx([final[metric]] * 3)


def test_a_sweep_over_the_gap_of_a_post_processing_keeps_its_column() -> None:
    rng = np.random.default_rng(0)

    def rows(count: int) -> tuple[np.ndarray, ...]:
        x, s = rng.normal(size=(count, 2)).astype(np.float32), np.arange(count) % 2
        return x, (x[:, 0] + 0.5 * s > 0).astype(int), s

    fed = ef.Federation.from_arrays([rows(40), rows(40)], client_tests=[rows(30), rows(30)])
    method = ef.methods.make("fedavg+fair")
    swept = ef.simulate(method, fed, model=ef.models.Logistic(), over={"gap": [0.0, 1.0]}, rounds=1)
    assert swept.local_gaps.columns.is_unique
    assert set(swept.local_gaps["gap"]) == {0.0, 1.0}
