"""What was saved predicts and adapts with the bits of what was computed, whatever the method."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.samples import sampled_methods
from torch import nn

import equifed as ef
from equifed import methods as M
from equifed.config import load_config
from equifed.data import Schema
from equifed.federation import Federation
from equifed.methods.postprocess import CalibratedEqualizedOdds, EqualizedOdds
from equifed.results.export import to_torch
from equifed.results.onnx import to_onnx
from equifed.store import RunFolder, Store
from store.silos import write_config, write_silos

VARIANTS = [
    *(M.make(name) for name in M.REGISTRY),
    EqualizedOdds(M.FedAvg()),
    EqualizedOdds(M.FairFate(lambda0=0.4), fit="global"),
    CalibratedEqualizedOdds(M.LocalOnly(), cost="weighted"),
    M.FedVal(fairness=("demographic_parity_ratio", "average_odds_ratio")),
    M.FairFed(debias="kernel", debias_weight=20.0),
    M.FairFed(debias="fairbatch", debias_step=0.1),
    M.SFFL(components=2, weight_clip=1e9),
    M.IFCA(num_groups=3, known=True),
    M.E2FL(groups="sensitive"),
    M.E2FL(groups="lowest-loss", num_groups=3, use="global"),
]
QUICK: dict[str, Any] = {"rounds": 1, "local": ef.Local(epochs=1, batch_size=16, learning_rate=0.1)}
MODEL = ef.models.MLP(hidden=(3,), activation="tanh", bias=False)


def train(method: M.Method, fed: Federation, **settings: Any) -> ef.Result:
    return ef.simulate(method, fed, **{"model": MODEL, "seeds": [5], **QUICK, **settings})


def predictions(result: ef.Result, fed: Federation, **more: Any) -> list[np.ndarray]:
    """Of every run, and of two clients where clients have models of their own."""
    x, s = fed.rows.x[:40], fed.rows.s[:40]
    made = []
    for run, state in result.final_states.items():
        clients = [state.ids[0], state.ids[-1]] if state.method.personal else [None]
        made += [result.predict(x, s=s, client=client, run=run, **more) for client in clients]
    return made


def assert_same_bits(left: list[np.ndarray], right: list[np.ndarray]) -> None:
    assert len(left) == len(right) > 0
    for one, other in zip(left, right, strict=True):
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    "method",
    sampled_methods(VARIANTS, 3),
    ids=lambda method: f"{method.name}",
)
@pytest.mark.sample(8)
def test_a_saved_result_predicts_the_same_bits(uneven: Federation, method: M.Method, tmp_path: Path) -> None:
    live = train(method, uneven)
    ef.save_result(tmp_path, live)
    loaded = ef.load_result(tmp_path)
    (state,) = loaded.final_states.values()
    assert (type(state.method), state.method) == (type(method), method)
    assert_same_bits(predictions(loaded, uneven), predictions(live, uneven))
    assert_same_bits(predictions(pickle.loads(pickle.dumps(live)), uneven), predictions(live, uneven))
    model = packaged(live, uneven, tmp_path)
    x, s = uneven.rows.x[:40], uneven.rows.s[:40]
    found = model.scores(x, groups=s if model.needs_groups else None)
    assert_same_bits([found], predictions(live, uneven)[:1])


def packaged(live: ef.Result, fed: Federation, folder: Path) -> ef.Model:
    """The model of the first client, or of all, from the package alone, which lies elsewhere now."""
    if not (folder / "model").is_dir():
        ef.save_result(folder, live)
    (folder / "model").rename(folder / "moved")
    model = ef.load_model(folder / "moved")
    return model.for_client(fed.ids[0]) if model.personal else model


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(each, marks=() if each in (M.make("e2fl"), M.make("local")) else pytest.mark.full)
        for each in VARIANTS
    ],
    ids=lambda method: f"{method.name}",
)
def test_programs_of_every_method(uneven: Federation, method: M.Method, tmp_path: Path) -> None:
    """As a torch program and as an ONNX graph, which are compared with the model as they are made."""
    model = packaged(train(method, uneven), uneven, tmp_path)
    if model.draws:
        with pytest.raises(ef.ConfigError, match="draws its decisions by chance"):
            to_onnx(model)
        return
    assert len(to_onnx(model)) > 100
    assert len(to_torch(model)) > 100


def test_every_run_of_a_sweep(uneven: Federation, tmp_path: Path) -> None:
    settings = {"over": {"fairness_weight": [0.0, 30.0]}, "seeds": [2, 3]}
    live = train(M.KFFL(), uneven, **settings)
    ef.save_result(tmp_path, live)
    loaded = ef.load_result(tmp_path)
    assert list(loaded.final_states) == list(live.parameters) == [(0.0, 2), (0.0, 3), (30.0, 2), (30.0, 3)]
    made = predictions(loaded, uneven)
    assert_same_bits(made, predictions(live, uneven))
    assert len({values.tobytes() for values in made}) == 4
    assert loaded.final_states[30.0, 3].method == M.KFFL(fairness_weight=30.0)


def test_a_sweep_over_a_setting(uneven: Federation, tmp_path: Path) -> None:
    live = train(M.FedAvg(), uneven, over={"clip": [0.001, 1.0]})
    ef.save_result(tmp_path, live)
    made = predictions(ef.load_result(tmp_path), uneven)
    assert_same_bits(made, predictions(live, uneven))
    assert len({values.tobytes() for values in made}) == 2


@pytest.mark.parametrize("method", [M.FedEM(components=2), M.SFFL(components=2)], ids=lambda method: method.name)
def test_adapting_from_a_folder(uneven: Federation, method: M.Method, tmp_path: Path) -> None:
    live = train(method, uneven)
    ef.save_result(tmp_path, live)
    rows = uneven.rows.x[:20], uneven.rows.y[:20]
    new, expected = ef.load_result(tmp_path).adapt(rows, steps=3), live.adapt(rows, steps=3)
    for name, value in expected.state[5].items():
        np.testing.assert_array_equal(new.state[5][name], value)
    assert_same_bits([new.predict(rows[0])[5]], [expected.predict(rows[0])[5]])


class Net(nn.Sequential):
    """A model of the user's own, which its name leads to."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 1))


def test_models_of_ones_own(uneven: Federation, tmp_path: Path) -> None:
    width = uneven.shape[0]
    module = nn.Sequential(nn.Linear(width, 2), nn.Tanh(), nn.Linear(2, 1))
    live = train(M.FedAvg(), uneven, model=module)
    ef.save_result(tmp_path, live)
    for stored in (ef.load_result(tmp_path), pickle.loads(pickle.dumps(live))):
        assert stored.parameters.keys() == live.parameters.keys()
        with pytest.raises(ef.ConfigError, match=r"its model was made in Python.*model=\.\.\."):
            stored.predict(uneven.rows.x[:3])
        assert_same_bits([stored.predict(uneven.rows.x, model=module)], [live.predict(uneven.rows.x)])
        with pytest.raises(ef.ConfigError, match=r"does not fit the stored states: server.theta.0.weight has shape"):
            stored.predict(uneven.rows.x, model=ef.models.MLP(hidden=(7,)))
    named = train(M.FedAvg(), uneven, model=Net)
    assert_same_bits([pickle.loads(pickle.dumps(named)).predict(uneven.rows.x)], [named.predict(uneven.rows.x)])
    # saved once more, although nothing of it was rebuilt
    ef.save_result(tmp_path / "again", ef.load_result(tmp_path))
    again = ef.load_result(tmp_path / "again")
    assert_same_bits([again.predict(uneven.rows.x, model=module)], [live.predict(uneven.rows.x)])


@pytest.mark.full
def test_a_run_folder_is_enough_for_a_new_process(tmp_path: Path, start: Any) -> None:
    """Files, a schema and standardised inputs."""
    write_silos(tmp_path)
    config = load_config(write_config(tmp_path, method={"name": "fedavg-gr+eo"}))
    with Store(tmp_path / "runs").start(config) as recording:
        for _ in recording.rounds():
            pass
        live = recording.finish()
    folder = recording.folder.path
    fed = recording.simulation.job.runs[0].federation
    assert fed.scaling is not None
    with pytest.raises(ef.ConfigError, match="the folder of a run, which has a result of its own"):
        ef.save_result(folder, live)
    loaded = RunFolder(folder).result()
    assert_same_bits(predictions(loaded, fed), predictions(live, fed))
    assert loaded.schema == live.schema == fed.schema
    encoded = loaded.schema.encode(pd.read_csv(next(tmp_path.glob("*.csv"))))
    np.save(tmp_path / "x.npy", encoded.x)
    np.save(tmp_path / "s.npy", encoded.s)
    run, client = next(iter(live.parameters)), fed.ids[0]
    program = (
        "import sys, json, numpy as np, equifed as ef\n"
        "folder, x, s, run, client, out = sys.argv[1:]\n"
        "result = ef.load_result(folder)\n"
        "np.save(out, result.predict(np.load(x), s=np.load(s), run=json.loads(run), client=client))\n"
    )
    paths = [str(tmp_path / name) for name in ("x.npy", "s.npy", "out.npy")]
    process = start(program, str(folder), paths[0], paths[1], json.dumps(run), client, paths[2])
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    expected = live.predict(encoded.x, s=encoded.s, run=run, client=client)
    assert_same_bits([np.load(paths[2])], [expected])


def test_a_schema_comes_back_as_it_was(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=60), "b": rng.choice(["x", "y"], 60), "sex": rng.choice(["f", "m"], 60)})
    frame["label"] = (frame["a"] > 0).astype(int)
    fed = Federation.from_tables(
        frame,
        ef.Columns(label="label", sensitive="sex"),
        holdout=ef.Holdout(validation=0.2),
        partition=ef.partition.IID(num_partitions=3),
        seed=1,
    )
    assert isinstance(fed.schema, Schema)
    live = train(M.FedAvg(), fed)
    ef.save_result(tmp_path, live)
    loaded = ef.load_result(tmp_path)
    assert loaded.schema == fed.schema
    x = loaded.schema.encode(frame).x
    assert_same_bits([loaded.predict(x)], [live.predict(x)])


def test_what_is_missing_is_named(uneven: Federation, tmp_path: Path) -> None:
    with pytest.raises(ef.RunError, match=r"There is no result in .*no result.json"):
        ef.load_result(tmp_path)
    ef.save_result(tmp_path, train(M.FedAvg(), uneven))
    (tmp_path / "model" / "model.safetensors").unlink()
    with pytest.warns(ef.EquifedWarning, match=r"model/model.safetensors is missing. Put back a copy"):
        loaded = ef.load_result(tmp_path)
    assert len(loaded.metrics)  # all but predicting
    with pytest.raises(ef.RunError, match=r"model.safetensors is missing. Put back a copy"):
        loaded.predict(uneven.rows.x[:3])
