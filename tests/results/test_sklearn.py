"""A trained model among scikit-learn's and fairlearn's tools, and what it does with arrays, NaN
and infinity."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from fairlearn.postprocessing import ThresholdOptimizer
from own_data import federation_of
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.inspection import permutation_importance
from sklearn.metrics import accuracy_score, log_loss, r2_score
from sklearn.model_selection import cross_val_predict, cross_val_score

import equifed as ef
from equifed.methods import make

QUICK: dict[str, Any] = {"rounds": 4, "seeds": [0], "local": ef.Local(batch_size=32, learning_rate=0.2)}


def patients(rows: int = 400, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.normal(60, 12, rows).round(1),
            "pressure": rng.normal(120, 15, rows).round(1),
            "ward": rng.choice(["heart", "lungs", "general"], rows),
            "sex": rng.choice(["f", "m"], rows),
        }
    )
    risk = (frame["age"] - 60) / 12 + (frame["ward"] == "heart") + 0.6 * (frame["sex"] == "m") + rng.normal(size=rows)
    frame.loc[rng.random(rows) < 0.1, "pressure"] = np.nan
    severity = np.select([risk > 1.2, risk > 0.2], ["high", "medium"], "low")
    return frame.assign(outcome=np.where(risk > 0.4, "home", "ward"), severity=severity, stay=risk + 5)


def trained(method: str = "fedavg", label: str = "outcome", **options: Any) -> ef.Model:
    features = ["age", "pressure", "ward"]
    fed = federation_of(
        patients(), label=label, sensitive="sex", features=features, partition=ef.partition.IID(3), **options
    )
    regression = options.get("task") == "regression"
    model = ef.models.Linear() if regression else ef.models.Logistic()
    return ef.simulate(make(method), fed, model=model, **QUICK).model()


@pytest.fixture(scope="module")
def model() -> ef.Model:
    return trained(positive="home")


@pytest.fixture
def arrays() -> ef.Model:
    """Of a model that was trained on arrays."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    clients = [(x[k::2], (x[k::2, 0] > 0).astype(int), np.arange(30) % 2) for k in range(2)]
    fed = ef.Federation.from_arrays(clients)
    return ef.simulate(make("fedavg"), fed, model=ef.models.Logistic(), **QUICK).model()


# -- NaN and infinity --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39])
@pytest.mark.parametrize("use", ["predict", "predict_proba", "scores"])
def test_an_array_with_no_number_in_it_is_refused_with_its_place(arrays: ef.Model, bad: float, use: str) -> None:
    x = np.zeros((20, 3))
    x[17, 2] = bad
    with pytest.raises(ef.DataError, match="feature 2 of row 17 is NaN or infinite, or too large"):
        getattr(arrays, use)(x)


def test_encoded_inputs_with_no_number_are_refused_too(model: ef.Model) -> None:
    assert model.schema is not None
    x = model.schema.inputs(patients(9))
    x[4, 1] = np.nan
    with pytest.raises(ef.DataError, match="feature 1 of row 4 is NaN"):
        model.scores_of_inputs(x)
    with pytest.raises(ef.DataError, match="rows of numbers"):
        model.scores_of_inputs([["a"] * x.shape[1]])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_diverged_model_decides_nothing(model: ef.Model, bad: float) -> None:
    server = model.state.server
    weights = {name: torch.full_like(value, np.nan) for name, value in server.theta.items()}
    diverged = dataclasses.replace(model, state=dataclasses.replace(model.state, server=server._replace(theta=weights)))
    for use in (diverged.predict, diverged.predict_proba, diverged.scores):
        with pytest.raises(ef.RunError, match=r"The model says nan of row 0.*its training diverged"):
            use(patients(5))
    for scores in (np.array([0.2, bad]), np.array([[0.5, 0.5], [bad, 0.5]])):
        with pytest.raises(ef.RunError, match=rf"The model says {bad} of row 1"):
            ef.Model.codes(scores)


# -- scikit-learn's interface ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", ["outcome", "severity"])
def test_probabilities_are_64_bit_and_add_up_to_one(label: str) -> None:
    made, rows = trained(label=label), patients(200, seed=3)
    shares = made.predict_proba(rows)
    assert shares.dtype == np.float64
    np.testing.assert_allclose(shares.sum(1), 1, rtol=0, atol=4e-16)
    given = made.scores(rows).astype(np.float64)
    np.testing.assert_allclose(shares[:, 1], given if given.ndim == 1 else given[:, 1], atol=2e-7)
    assert log_loss(rows[label], shares, labels=made.classes_) > 0  # which warns of sums that are not one


@pytest.mark.parametrize("constraints", ["demographic_parity", "equalized_odds"])
def test_fairlearns_threshold_optimizer_works_on_probabilities(model: ef.Model, constraints: str) -> None:
    frame = patients(2000, seed=3)
    optimizer = ThresholdOptimizer(
        estimator=model, constraints=constraints, prefit=True, predict_method="predict_proba"
    )
    optimizer.fit(frame, frame["outcome"] == "home", sensitive_features=frame["sex"])
    decided = optimizer.predict(frame, sensitive_features=frame["sex"], random_state=0)
    rows = np.ones(2000, dtype=bool) if constraints == "demographic_parity" else (frame["outcome"] == "home").to_numpy()
    rates = [decided[rows & (frame["sex"] == sex).to_numpy()].mean() for sex in ("f", "m")]
    assert 0.1 < rates[0] < 0.9
    assert rates[0] == pytest.approx(rates[1], abs=0.05)  # the rows that it was fitted to


def test_the_score_is_scikit_learns_accuracy(model: ef.Model) -> None:
    rows, weight = patients(300, seed=5), np.random.default_rng(0).random(300)
    decided = model.predict(rows)
    assert model.score(rows, rows["outcome"]) == pytest.approx(accuracy_score(rows["outcome"], decided))
    weighted = accuracy_score(rows["outcome"], decided, sample_weight=weight)
    assert model.score(rows, rows["outcome"], weight) == pytest.approx(weighted)
    with pytest.raises(ef.DataError, match="a label for each of the 300 rows"):
        model.score(rows, rows["outcome"][:7])
    with pytest.raises(ef.DataError, match="no label for row 3"):
        model.score(rows, rows["outcome"].where(rows.index != 3).astype(object))


def test_the_score_of_a_regression_is_scikit_learns_r2() -> None:
    made, rows = trained(label="stay", task="regression"), patients(300, seed=5)
    weight = np.random.default_rng(0).random(300)
    said = made.predict(rows)
    assert made.score(rows, rows["stay"]) == pytest.approx(r2_score(rows["stay"], said))
    weighted = r2_score(rows["stay"], said, sample_weight=weight)
    assert made.score(rows, rows["stay"], weight) == pytest.approx(weighted)
    assert made.score(rows, np.ones(300)) == r2_score(np.ones(300), said) == 0


def test_a_clone_is_the_trained_model_and_has_nothing_to_set(model: ef.Model) -> None:
    assert clone(model) is model
    assert model.get_params() == model.get_params(deep=False) == {}
    assert model.set_params() is model
    with pytest.raises(ef.ConfigError, match="no parameter 'alpha'"):
        model.set_params(alpha=1)
    with pytest.raises(ef.ConfigError, match="trained already"):
        model.fit(patients(), patients()["outcome"])


def test_cross_validation_and_importance_take_the_model_as_it_is(model: ef.Model) -> None:
    rows = patients(120, seed=6)
    frozen = FrozenEstimator(model)
    np.testing.assert_array_equal(cross_val_predict(frozen, rows, rows["outcome"], cv=3), model.predict(rows))
    found = cross_val_score(frozen, rows, rows["outcome"], cv=3)
    weights = [40, 40, 40]
    assert np.average(found, weights=weights) == pytest.approx((model.predict(rows) == rows["outcome"]).mean())
    columns = rows[["age", "pressure", "ward", "sex"]]
    importance = permutation_importance(model, columns, rows["outcome"], n_repeats=3, random_state=0)
    assert importance.importances_mean[0] > 0.05  # age decides
    assert importance.importances_mean[3] == 0  # sex is not an input


# -- arrays in place of a table ----------------------------------------------------------------------------------------


def test_an_array_is_read_as_the_named_columns_in_their_order(model: ef.Model) -> None:
    rows = patients(50, seed=7)
    assert model.n_features_in_ == 3
    assert model.feature_names_in_.tolist() == ["age", "pressure", "ward"]
    expected = model.predict_proba(rows)
    cells = rows[["age", "pressure", "ward"]]
    texts = cells.astype(object).where(cells.notna(), "").to_numpy(dtype="U")
    for given in (cells.to_numpy(), cells.to_numpy().tolist(), texts):
        np.testing.assert_array_equal(model.predict_proba(given), expected)
    np.testing.assert_array_equal(model.predict_proba(cells.to_dict("list")), expected)
    np.testing.assert_array_equal(model.predict_proba(cells.to_dict("records")), expected)


def test_a_table_of_numbers_alone_takes_a_missing_cell_of_an_array_as_missing() -> None:
    """Where both widths are the same, an array was taken for encoded inputs, and NaN went through."""
    fed = ef.Federation.from_tables(
        patients().dropna()[["age", "pressure", "sex", "outcome"]],
        ef.Columns(label="outcome", sensitive="sex", positive="home"),
        holdout=ef.Holdout(validation=0.2),
        partition=ef.partition.IID(2),
    )
    made = ef.simulate(make("fedavg"), fed, model=ef.models.Logistic(), **QUICK).model()
    assert made.schema is not None
    assert len(made.schema.input_names) == made.n_features_in_ == 2
    fill = next(column.fill for column in made.schema.columns if column.name == "pressure")
    found = made.predict_proba(np.array([[70.0, np.nan], [70.0, fill]]))
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize("shape", [(4, 9), (4, 2), (3,), (2, 3, 1)])
def test_an_array_of_another_width_is_told_what_to_give(model: ef.Model, shape: tuple[int, ...]) -> None:
    with pytest.raises(ef.DataError) as raised:
        model.predict(np.zeros(shape))
    text = str(raised.value)
    assert "must have the 3 columns 'age', 'pressure', 'ward', in this order" in text
    assert f"got shape {list(shape)}" in text
    assert "scores_of_inputs" in text


def test_rows_of_unequal_length_are_refused(model: ef.Model) -> None:
    for rows in ([[1.0, 2.0, "heart"], [1.0]], {"age": [1, 2], "pressure": [1], "ward": ["heart"]}):
        with pytest.raises(ef.DataError):
            model.predict(rows)


def test_encoded_inputs_have_a_method_of_their_own(model: ef.Model) -> None:
    rows = patients(50, seed=7)
    assert model.schema is not None
    x = model.schema.inputs(rows)
    assert x.shape[1] > model.n_features_in_
    assert model.scores_of_inputs(x).tobytes() == model.scores(rows).tobytes()
    with pytest.raises(ef.DataError, match=rf"shape \[{x.shape[1]}\] each; got shape \[50, 3\]"):
        model.scores_of_inputs(x[:, :3])


def test_an_array_has_the_column_of_groups_where_decisions_depend_on_it() -> None:
    made = trained("fedavg+fair", positive="home")
    rows = patients(50, seed=7)
    assert made.columns == ("age", "pressure", "ward", "sex")
    expected = made.predict_proba(rows)
    np.testing.assert_array_equal(made.predict_proba(rows[list(made.columns)].to_numpy()), expected)
    inputs, groups = rows[["age", "pressure", "ward"]].to_numpy(), rows["sex"].to_numpy()
    np.testing.assert_array_equal(made.predict_proba(inputs, groups=groups), expected)
    with pytest.raises(ef.DataError, match="must have the 4 columns"):
        made.predict(inputs)
