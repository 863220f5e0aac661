"""A trained model on raw rows: against NumPy, scikit-learn and fairlearn, from elsewhere, and as other programs."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from fairlearn.metrics import MetricFrame, demographic_parity_difference
from own_data import federation_of
from sklearn.metrics import accuracy_score, get_scorer, log_loss, roc_auc_score

import equifed as ef
from equifed.methods import make
from equifed.results.export import exported, to_torch
from equifed.results.onnx import NO_LABEL, feed_of, to_onnx

QUICK: dict[str, Any] = {"rounds": 3, "seeds": [4, 5], "local": ef.Local(batch_size=32, learning_rate=0.2)}
CLIENTS = ef.partition.Natural("site")


def patients(rows: int = 700, seed: int = 0) -> pd.DataFrame:
    """With names, dates, missing values and a rare category."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "name": [f"Person {i}" for i in range(rows)],
            "age": rng.normal(60, 12, rows).round(1),
            "ward": rng.choice(["A", "B", "C"], rows),
            "admitted": pd.to_datetime("2021-01-01") + pd.to_timedelta(rng.integers(0, 700, rows), "D"),
            "sex": rng.choice(["f", "m"], rows),
            "site": rng.choice(["north", "south", "west"], rows),
        }
    )
    risk = (frame["age"] - 60) / 12 + (frame["ward"] == "A") + 0.5 * (frame["sex"] == "m") + rng.normal(size=rows)
    frame["readmitted"] = np.where(risk > 0.5, "yes", "no")
    frame["admitted"] = frame["admitted"].dt.strftime("%Y-%m-%d")
    for column in ("age", "ward", "admitted"):
        frame.loc[rng.random(rows) < 0.1, column] = None
    frame.loc[[3, 11], "ward"] = "Isolation 7"
    return frame


def federation(frame: pd.DataFrame, **more: Any) -> ef.Federation:
    options: dict[str, Any] = {"label": "readmitted", "sensitive": "sex", "positive": "yes", "partition": CLIENTS}
    return federation_of(frame, **{**options, "dates": {"admitted": ["month", "day"]}, **more})


def new_rows() -> pd.DataFrame:
    """Without label and groups, in another order, with a ward that nobody knew."""
    rows = patients(80, seed=9)[["admitted", "name", "ward", "age"]].assign(extra=1.5)
    rows.loc[0, "ward"] = "Ward Z"
    return rows


@pytest.fixture(scope="module")
def logistic() -> ef.Result:
    return ef.simulate(make("fedavg"), federation(patients()), model=ef.models.Logistic(), **QUICK)


@pytest.fixture(scope="module")
def network() -> ef.Result:
    return ef.simulate(make("fedavg"), federation(patients()), model=ef.models.MLP(hidden=(4,)), **QUICK)


def by_hand(result: ef.Result, rows: pd.DataFrame, seed: int) -> np.ndarray:
    """The probability of "yes", from the weights: rows are encoded here, anew."""
    schema, state = result.schema, result.final_states[seed]
    assert schema is not None
    dates = pd.to_datetime(rows["admitted"])
    raw = {
        "age": rows["age"].astype(float),
        "admitted (month)": dates.dt.month.astype(float),
        "admitted (day)": dates.dt.day.astype(float),
    }
    parts = []
    for column in schema.columns:
        if column.kind == "categorical":
            listed = [value for value in column.categories if not value.startswith("(")]
            text = rows["ward"].where(rows["ward"].isin(listed), "(other)").where(rows["ward"].notna(), "(missing)")
            parts += [(text == value).to_numpy(float) for value in column.categories]
        else:
            number = raw[column.title]
            parts.append((number.fillna(column.fill) - column.offset).to_numpy())
            if column.indicator:
                parts.append(number.isna().to_numpy(float))
    shift, factor = state.scaling  # type: ignore[misc]
    x = (np.stack(parts, 1) - shift) * factor
    weight, bias = (result.parameters[seed][f"0.{name}"].astype(np.float64) for name in ("weight", "bias"))
    return 1 / (1 + np.exp(-(x @ weight[0] + bias[0])))


def test_a_frame_gives_what_the_weights_say(logistic: ef.Result) -> None:
    rows = new_rows()
    for seed in (4, 5):
        expected = by_hand(logistic, rows, seed)
        np.testing.assert_allclose(logistic.predict(rows, run=seed), expected, atol=1e-6)
        model = logistic.model(seed=seed)
        np.testing.assert_allclose(model.predict_proba(rows)[:, 1], expected, atol=1e-6)
        assert model.predict(rows).tolist() == np.where(expected > 0.5, "yes", "no").tolist()
    assert logistic.model().seed == 4


def test_order_and_further_columns_do_not_matter_and_a_missing_one_is_named(network: ef.Result) -> None:
    model, rows = network.model(), new_rows()
    expected = model.predict_proba(rows)
    again = model.predict_proba(rows[["age", "ward", "admitted"]].set_axis(range(100, 180)))
    assert again.tobytes() == expected.tobytes()
    assert model.columns == ("age", "ward", "admitted")
    with pytest.raises(ef.DataError, match=r"Column 'ward': the column is missing"):
        model.predict(rows.drop(columns="ward"))
    with pytest.raises(ef.DataError, match=r"'age', 'ward' are missing"):
        model.predict(rows[["admitted"]])


def test_what_scikit_learn_and_fairlearn_ask_for(network: ef.Result) -> None:
    model, rows = network.model(seed=5), patients(300, seed=2)
    decided, label, positive = model.predict(rows), rows["readmitted"], rows["readmitted"] == "yes"
    assert model.classes_.tolist() == ["no", "yes"]
    assert (model.n_features_in_, model.feature_names_in_.tolist()) == (3, ["age", "ward", "admitted"])
    right = float((decided == label).mean())
    assert accuracy_score(label, decided) == right
    assert get_scorer("accuracy")(model, rows, label) == right
    score = model.predict_proba(rows)[:, 1]
    above = (score[positive][:, None] > score[~positive]).mean() + 0.5 * (
        score[positive][:, None] == score[~positive]
    ).mean()
    assert get_scorer("roc_auc")(model, rows, label) == pytest.approx(above) == roc_auc_score(positive, score)
    assert log_loss(label, model.predict_proba(rows)) > 0
    shares = {sex: float((decided[rows["sex"] == sex] == "yes").mean()) for sex in ("f", "m")}
    gap = demographic_parity_difference(positive, decided == "yes", sensitive_features=rows["sex"])
    assert gap == pytest.approx(abs(shares["f"] - shares["m"]))
    frame = MetricFrame(metrics=accuracy_score, y_true=label, y_pred=decided, sensitive_features=rows["sex"])
    assert frame.by_group["f"] == pytest.approx(float((decided == label)[rows["sex"] == "f"].mean()))
    with pytest.raises(ef.ConfigError, match="trained already"):
        model.fit(rows, label)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [([0, 1], [0, 1]), ([False, True], [False, True]), (["01", "02"], ["01", "02"]), ([-1, 3], [-1, 3])],
)
def test_labels_come_back_as_a_table_has_them(labels: list[Any], classes: list[Any]) -> None:
    frame = patients(200)
    frame["readmitted"] = np.where(frame["readmitted"] == "yes", labels[1], labels[0])
    fed = federation(frame, positive=None)
    model = ef.simulate(make("fedavg"), fed, model=ef.models.Logistic(), rounds=1, seeds=[0]).model()
    assert model.classes_.tolist() == classes
    assert accuracy_score(frame["readmitted"], model.predict(frame)) > 0


def test_a_regression_speaks_in_the_unit_of_its_label() -> None:
    frame = patients(200).assign(stay=lambda rows: rows["age"].fillna(50) / 4)
    fed = federation(frame, label="stay", positive=None, task="regression", features=["age", "ward"], dates=None)
    schema = fed.schema.model_copy(update={"label_range": (0.0, 40.0)})
    result = ef.simulate(make("fedavg"), fed, model=ef.models.Linear(), rounds=1, seeds=[0])
    result.schema = schema
    model = result.model()
    assert not hasattr(model, "classes_")
    np.testing.assert_allclose(model.predict(frame), 40 * result.predict(frame).astype(np.float64), rtol=1e-6)
    session = onnxruntime.InferenceSession(to_onnx(model))
    np.testing.assert_allclose(
        session.run(["value"], feed_of(model, frame))[0], model.predict(frame), rtol=1e-6, atol=1e-6
    )


# -- elsewhere ---------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_the_package_alone_says_the_same_in_another_process(network: ef.Result, tmp_path: Path, start: Any) -> None:
    ef.save_result(tmp_path / "saved", network)
    shutil.copytree(tmp_path / "saved" / "model", tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "saved")
    rows = new_rows()
    rows.to_csv(tmp_path / "rows.csv", index=False)
    program = (
        "import sys, numpy as np, pandas as pd, equifed as ef\n"
        "folder, rows, out = sys.argv[1:]\n"
        "np.save(out, ef.load_model(folder, seed=5).predict_proba(pd.read_csv(rows)))\n"
    )
    process = start(program, *(str(tmp_path / name) for name in ("elsewhere", "rows.csv", "out.npy")))
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert np.load(tmp_path / "out.npy").tobytes() == network.model(seed=5).predict_proba(rows).tobytes()
    names = {path.name for path in (tmp_path / "elsewhere").iterdir()}
    assert names == {"model.safetensors", "model.json", "schema.json", "MODEL_CARD.md", "SUMS.json"}
    for path in (tmp_path / "elsewhere").iterdir():
        for personal in (b"Person ", b"Isolation 7"):
            assert personal not in path.read_bytes(), path.name


def test_a_package_that_was_changed_is_refused(network: ef.Result, tmp_path: Path) -> None:
    ef.save_result(tmp_path, network)
    for name in ("model.json", "schema.json", "model.safetensors"):
        content = (tmp_path / "model" / name).read_bytes()
        (tmp_path / "model" / name).write_bytes(content[:-3] + b"}}\n")
        with pytest.raises(ef.RunError, match=rf"{name} is damaged.*Copy the folder again"):
            ef.load_model(tmp_path / "model")
        (tmp_path / "model" / name).write_bytes(content)
    assert ef.load_model(tmp_path).seed == 4
    (tmp_path / "model" / "SUMS.json").unlink()
    with pytest.raises(ef.RunError, match=r"has no SUMS.json"):
        ef.load_model(tmp_path / "model")
    with pytest.raises(ef.ConfigError, match="There is no model in"):
        ef.load_model(tmp_path.parent)


def test_which_of_several_models(tmp_path: Path) -> None:
    def swept(**more: Any) -> ef.Result:
        fed = federation(patients())
        return ef.simulate(
            make("kffl"), fed, model=ef.models.Logistic(), over={"fairness_weight": [0.0, 50.0]}, **QUICK, **more
        )

    plain = swept()
    with pytest.raises(ef.ConfigError, match=r"Which setting\? The run has 2.*fairness_weight=0; fairness_weight=50"):
        plain.model()
    with pytest.raises(ef.ConfigError, match=r"No setting has \(fairness_weight=3\)"):
        plain.model(setting={"fairness_weight": 3.0})
    with pytest.raises(ef.ConfigError, match=r"Unknown seed 7. Known: 4, 5"):
        plain.model(setting={"fairness_weight": 0.0}, seed=7)
    ef.save_result(tmp_path / "plain", plain)
    rows = new_rows()
    model = ef.load_model(tmp_path / "plain", setting={"fairness_weight": 50.0}, seed=5)
    assert (model.setting, model.seed) == ({"fairness_weight": 50.0}, 5)
    assert model.scores(rows).tobytes() == plain.predict(rows, run=(50.0, 5)).tobytes()
    with pytest.raises(ef.ConfigError, match=r"Which setting\?"):
        ef.load_model(tmp_path / "plain")
    asked = swept(target=["accuracy >= 0.5"], confidence="mean")
    chosen = asked.answer().chosen
    ef.save_result(tmp_path / "asked", asked)
    assert chosen is not None
    assert ef.load_model(tmp_path / "asked").setting == asked.model().setting == chosen.setting


def test_models_of_arrays_take_arrays(uneven: ef.Federation, tmp_path: Path) -> None:
    result = ef.simulate(make("fedem"), uneven, model=ef.models.MLP(hidden=(3,)), rounds=1, seeds=[0])
    ef.save_result(tmp_path, result)
    model, x = ef.load_model(tmp_path), uneven.rows.x[:9]
    assert model.n_features_in_ == uneven.shape[0]
    with pytest.raises(ef.ConfigError, match=r"clients have models of their own: name one.*They are"):
        model.predict(x)
    with pytest.raises(ef.ConfigError, match="Unknown client 'nobody'"):
        model.for_client("nobody")
    own = model.for_client(uneven.ids[1])
    assert own.scores(x).tobytes() == result.predict(x, client=uneven.ids[1]).tobytes()
    np.testing.assert_allclose(session_of(own).run(["probabilities"], {"x": x})[0], own.predict_proba(x), atol=1e-6)


# -- groups ------------------------------------------------------------------------------------------------------------


def test_a_method_that_decides_by_groups_asks_for_their_columns(tmp_path: Path) -> None:
    fed = federation(patients())
    result = ef.simulate(make("fedavg+eo", fit="global"), fed, model=ef.models.Logistic(), **QUICK)
    model, rows = result.model(), patients(80, seed=9).drop(columns="readmitted")
    assert model.columns == ("age", "ward", "admitted", "sex")
    assert model.draws
    with pytest.raises(ef.DataError, match=r"fedavg\+eo decides by a row's group, and the rows have no column 'sex'"):
        model.predict(rows.drop(columns="sex"))
    assert model.predict(rows).tolist() == model.predict(rows).tolist()
    assert (model.predict(rows, draw=1) != model.predict(rows)).any()
    # by hand: a positive decision is kept, a negative one turned, with its group's probability
    u = ef.results.predict.randomness.generator(4, "predict", 0).random(len(rows))
    rates = model.state.server.own["rates"].numpy()[(rows["sex"] == "m").to_numpy(int)]
    plain = by_hand(result, rows, 4) > 0.5
    expected = u < np.where(plain, rates[:, 0], rates[:, 1])
    assert model.predict(rows).tolist() == np.where(expected, "yes", "no").tolist()
    with pytest.raises(ef.ConfigError, match="draws its decisions by chance"):
        exported(model)


def session_of(model: ef.Model) -> Any:
    return onnxruntime.InferenceSession(to_onnx(model))


@pytest.mark.parametrize(("encoding", "scaling"), [("onehot", "standard"), ("ordinal", "minmax")])
@pytest.mark.sample(1)
def test_graph_and_torch_program_say_the_same(encoding: str, scaling: str) -> None:
    """With thresholds of its own for each group, unknown groups, missing values and unknown categories."""
    fed = federation(patients(), encoding=encoding, scaling=scaling)
    result = ef.simulate(make("fedavg+fair"), fed, model=ef.models.MLP(hidden=(4,)), rounds=2, seeds=[0])
    accept = result.final_states[0].server.own["rule"]["accept"]
    bins = torch.arange(accept.shape[1]) / accept.shape[1]
    accept.copy_(torch.stack([bins > 0.4, bins > 0.6]).to(accept.dtype))
    model, rows = result.model(), patients(80, seed=9).drop(columns="readmitted")
    assert not model.draws
    rows.loc[:5, "sex"], rows.loc[7, "ward"] = None, "Ward Z"
    expected, decided = model.predict_proba(rows), model.predict(rows)
    plain = ef.simulate(make("fedavg"), fed, model=ef.models.MLP(hidden=(4,)), rounds=2, seeds=[0]).model()
    assert (plain.predict(rows) != decided).any()
    assert (plain.predict(rows)[:6] == decided[:6]).all()
    session = session_of(model)
    label, probabilities = session.run(["label", "probabilities"], feed_of(model, rows))
    np.testing.assert_allclose(probabilities, expected, atol=1e-6)
    assert label.tolist() == decided.tolist()
    kinds = {each.name: each.type for each in session.get_inputs()}
    assert kinds == {
        **dict.fromkeys(("age", "admitted (month)", "admitted (day)"), "tensor(double)"),
        **dict.fromkeys(("ward", "sex"), "tensor(string)"),
    }
    program = torch.export.load(io.BytesIO(to_torch(model))).module()
    assert fed.schema is not None
    inputs = torch.from_numpy(fed.schema.inputs(rows)), torch.from_numpy(fed.schema.group_codes(rows))
    np.testing.assert_allclose(program(*inputs).detach().numpy(), expected, atol=1e-6)


def test_rows_that_the_schema_refuses_have_no_numbers_in_the_graph() -> None:
    frame = patients(300).dropna().drop(columns=["admitted", "name"])
    frame["readmitted"] = (frame["readmitted"] == "yes").astype(int)
    fed = federation(frame, positive=None, dates=None, missing="refuse", min_count=0)
    model = ef.simulate(make("fedavg"), fed, model=ef.models.Logistic(), rounds=1, seeds=[0]).model()
    rows = frame[["age", "ward"]].head(4).reset_index(drop=True)
    with pytest.raises(ef.DataError):
        model.predict(rows.assign(ward="Ward Z"))
    feed = feed_of(model, rows)
    feed["ward"][0], feed["ward"][1], feed["age"][2] = "Ward Z", "", np.nan
    label, probabilities = session_of(model).run(["label", "probabilities"], feed)
    assert np.isnan(probabilities[:3]).all()
    assert label[:3].tolist() == [NO_LABEL] * 3
    np.testing.assert_allclose(probabilities[3:], model.predict_proba(rows)[3:], atol=1e-6)
    assert label[3] == model.predict(rows)[3]


def test_without_the_extra_it_is_named(network: ef.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ef.ConfigError, match=r"pip install 'equifed\[onnx\]'"):
        to_onnx(network.model())
