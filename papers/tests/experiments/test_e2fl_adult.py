"""E2FL's Tables 3 and 4, on Adult: against the raw file and plain NumPy."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import equifed as ef
from equifed.federation import Federation, RowSets
from equifed_papers.experiments import Request
from equifed_papers.experiments.base import carry_out, unwatched
from equifed_papers.experiments.e2fl import adult, show
from experiments.command import record


@pytest.fixture(autouse=True)
def people(needs: Any) -> None:
    needs("adult")


@pytest.fixture(scope="module")
def raw(needs: Any) -> pd.DataFrame:
    """Sex and income of the people without missing values, in the order of the files."""
    parts, home = [], needs("adult") / "adult"
    for name in ("adult.data", "adult.test"):
        path = next(p for p in (home / name, home / f"{name}.gz") if p.exists())
        lines = pd.read_csv(path, header=None, skipinitialspace=True, comment="|", na_values="?").dropna()
        parts.append(pd.DataFrame({"male": lines[9] == "Male", "rich": lines[14].str.startswith(">50K")}))
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize("alpha", adult.ALPHAS)
def test_clients_hold_rows_of_both_sexes(alpha: str, raw: pd.DataFrame) -> None:
    """Every row is dealt once, with the sex and income of the file; each of the four cells is spread over the clients
    evenly (alpha 5000) or not (alpha 1)."""
    (fed,) = adult.federations(alpha, [0])
    assert fed.groups == ("Female", "Male")
    owned = [fed.train[k] for k in range(fed.num_clients)]
    assert sorted(np.concatenate([*owned, fed.validation, fed.test])) == list(range(45_222))
    assert (len(fed.validation), len(fed.test)) == (round(0.1 * 45_222), round(0.2 * 45_222))
    np.testing.assert_array_equal(fed.rows.s == 1, raw["male"])
    np.testing.assert_array_equal(fed.rows.y == 1, raw["rich"])
    dealt = np.zeros((5, 2, 2))
    for k, rows in enumerate(owned):
        np.add.at(dealt[k], (raw["male"].to_numpy()[rows].astype(int), raw["rich"].to_numpy()[rows].astype(int)), 1)
    assert (dealt.sum(2) > 0).all()
    share = dealt / dealt.sum(0)
    assert (abs(share - 0.2).max() < 0.03) == (alpha == "5000")


def test_table3_is_of_the_files(raw: pd.DataFrame) -> None:
    (part,) = show.table3(Request(seeds=3), unwatched)
    cells = {(cell.method, cell.metric): cell for cell in part.rows}
    assert len(cells) == 8
    expected: dict[tuple[str, str], list[float]] = {key: [] for key in cells}
    for fed in adult.federations("5000", range(3)):  # the same rows whatever the partition
        tested = np.isin(np.arange(len(raw)), fed.test)
        for name, rows in (("train data", raw[~tested]), ("test data", raw[tested])):
            men = rows[rows["male"]]
            women = rows[~rows["male"]]
            for metric, share in (
                ("Pr[A = 1]", len(men) / len(rows)),
                ("Pr[A = 0]", len(women) / len(rows)),
                ("Pr[Y = 1 | A = 1]", men["rich"].sum() / len(men)),
                ("Pr[Y = 1 | A = 0]", women["rich"].sum() / len(women)),
            ):
                expected[name, metric].append(100 * share)
    for key, values in expected.items():
        assert cells[key].mean == pytest.approx(np.mean(values))
        assert cells[key].std == pytest.approx(np.std(values, ddof=1))
    assert cells["train data", "Pr[Y = 1 | A = 1]"].published_mean == 31.4
    assert all(cell.within is not None for cell in part.rows)


def test_the_network_has_two_outputs() -> None:
    """As many edges as in the paper's Table 7; the sigmoid of the difference is the softmax of both outputs."""
    module = adult.TwoOutputs((1024, 1024)).build((101,), 1)
    assert [p.numel() for p in module.parameters()] == [103_424, 1_048_576, 2_048]
    x = torch.randn(7, 101)
    outputs = module[0](x)  # type: ignore[operator]
    assert outputs.shape == (7, 2)
    torch.testing.assert_close(torch.sigmoid(module(x))[:, 0], torch.softmax(outputs, 1)[:, 1])


def few(fed: Federation, rows: int) -> Federation:
    """The first rows of every client, and of the test."""
    train = RowSets.of([fed.train[k][:rows] for k in range(fed.num_clients)])
    return dataclasses.replace(fed, train=train, test=fed.test[: 10 * rows])


def test_gaps_and_bytes_by_hand() -> None:
    """Accuracy, EOD and DI from the predictions; a client sends a ranking for each sex and receives one."""
    feds = [few(fed, 200) for fed in adult.federations("1", [0, 1])]
    for arm in (adult.ARMS[0], adult.ARMS[2]):
        sim = adult.simulation(arm.method, arm.rate, feds, 16, 2)
        carry_out(sim, "", unwatched)
        result = sim.result()
        found = adult.measured(result)
        for run, fed in enumerate(feds):
            x, y, s = (values[fed.test] for values in (fed.rows.x, fed.rows.y, fed.rows.s))
            client = "0" if arm.method.personal else None  # with rankings of rows, all have the global one
            decided = (result.predict(x, run=fed.seed, client=client) > 0.5).astype(int)
            assert 0 < decided.mean() < 1
            rates = []
            for group in (0, 1):
                mine, truth = decided[s == group], y[s == group]
                right, wrong = int((mine * truth).sum()), int((mine != truth).sum())
                rates.append((right / int(truth.sum()), 2 * right / (2 * right + wrong)))
            assert found["accuracy"][run] == pytest.approx(100 * np.mean(decided == y))
            assert found["EOD"][run] == pytest.approx(rates[0][0] - rates[1][0])
            assert found["DI"][run] == pytest.approx(rates[0][1] - rates[1][1])
        cells = adult.cells("1", 16, arm.label, result)
        assert [cell.mean for cell in cells] == pytest.approx([np.mean(values) for values in found.values()])
        assert {cell.place for cell in cells} == {"alpha 1, 16 units"}
    (message,) = result.messages[result.messages["stage"] == "round"].to_dict("records")
    # 101 x 16 edges of 11 bits, 16 x 16 of 8, 16 x 2 of 5
    ranking = 101 * 16 * 11 // 8 + 16 * 16 + 16 * 2 * 5 // 8
    assert message["bytes_down"] == ranking
    assert message["bytes_up"] == 2 * ranking + 2  # and which of them are votes


def test_what_table4_does_not_know() -> None:
    for wrong, words in (
        (Request(alpha=["0.5"]), "0.5"),
        (Request(methods=["ifca"]), "ifca"),
        (Request(datasets=["huge"]), "huge"),
        (Request(select="test"), "validation"),
    ):
        with pytest.raises(ef.ConfigError, match=words):
            next(show.table4(wrong, unwatched))


@pytest.mark.full
def test_table4_on_the_command_line(tmp_path: Path) -> None:
    cells = record("e2fl/table4", "--alpha", "1", "--methods", "FedAvg,E2FL", folder=tmp_path)["cells"]
    assert [(cell["method"], cell["metric"], cell["published_mean"]) for cell in cells] == [
        ("FedAvg", "accuracy", 85.47),
        ("FedAvg", "EOD", -0.0834),
        ("FedAvg", "DI", -0.0517),
        ("E2FL", "accuracy", 85.20),
        ("E2FL", "EOD", -0.0222),
        ("E2FL", "DI", -0.0252),
    ]
    assert all(75 < cell["mean"] < 90 for cell in cells if cell["metric"] == "accuracy")


@pytest.mark.full
def test_rates_are_chosen_on_validation_rows() -> None:
    """The rate with the best accuracy on validation rows, as a run of its own has it."""
    request = Request(alpha=["5000"], methods=["FedAvg"], seeds=1, quick=True, select="validation")
    *_, part, _ = show.table4(request, unwatched)
    feds = adult.federations("5000", [0])
    best = {}
    for rate in adult.RATES:
        sim = adult.simulation(adult.ARMS[0].method, rate, feds, adult.QUICK_WIDTH, 2)
        carry_out(sim, "", unwatched)
        x, y = feds[0].rows.x[feds[0].validation], feds[0].rows.y[feds[0].validation]
        best[rate] = np.mean((sim.result().predict(x) > 0.5) == y)
    assert {cell.rate for cell in part.rows} == {max(best, key=lambda rate: best[rate])}
