"""Models with a frozen part: only the rest is trained and sent, and everything else is as if the frozen part had been
applied to the rows beforehand."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from store.silos import write_config, write_silos
from torch import nn

import equifed as ef
from equifed import methods as M
from equifed import models, modules
from equifed.config import build, load_config
from equifed.errors import ConfigError, DataError
from equifed.federation import Federation
from equifed.protocol import Method
from equifed.results.export import to_torch
from equifed.results.onnx import to_onnx
from equifed.simulator import tracing
from equifed.store import Store
from simulator import frozen_models
from simulator.frozen_models import FEATURES, Pretrained, body, features

QUICK: dict[str, Any] = {
    "rounds": 3,
    "clients_per_round": 6,
    "local": ef.Local(epochs=2, batch_size=8, learning_rate=0.1),
    "seeds": [5],
}


@pytest.fixture(scope="module")
def seen(uneven: Federation) -> Federation:
    """The same federation with what the frozen body makes of its rows, by NumPy."""
    x = features(uneven.rows.x).astype(np.float32)
    names = tuple(f"f{i}" for i in range(FEATURES))
    return dataclasses.replace(uneven, rows=uneven.rows._replace(x=x), features=names)


def head_of(model: Pretrained) -> nn.Linear:
    return copy.deepcopy(model.head)


METHODS: list[Method] = [
    M.FedAvg(),
    M.FedProx(mu=0.5),
    M.KFFL(),
    M.FedMinMax(),
    M.QFFL(),
    M.FairFed(),
    M.LocalOnly(),
    M.FedFair(),
    M.IFCA(num_groups=2),
]


@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize("engine", ["lanes", pytest.param("reference", marks=pytest.mark.full)])
def test_as_the_head_alone_on_the_bodys_features(
    method: Method, engine: str, uneven: Federation, seen: Federation
) -> None:
    torch.manual_seed(1)
    model = Pretrained()
    whole = ef.simulate(method, uneven, model=model, engine=engine, **QUICK)  # type: ignore[arg-type]
    alone = ef.simulate(method, seen, model=head_of(model), engine=engine, **QUICK)  # type: ignore[arg-type]
    assert_same(whole, alone)
    assert (whole.messages["bytes_up"].tolist(), whole.messages["bytes_down"].tolist()) == (
        alone.messages["bytes_up"].tolist(),
        alone.messages["bytes_down"].tolist(),
    )


def assert_same(whole: ef.Result, alone: ef.Result) -> None:
    assert whole.parameters[5].keys() == {f"head.{name}" for name in alone.parameters[5]}
    for name, value in alone.parameters[5].items():
        np.testing.assert_allclose(whole.parameters[5][f"head.{name}"], value, rtol=1e-6, atol=1e-6)
    of = ["round", "split", "scope", "metric"]
    left, right = (result.metrics.set_index(of)["value"].sort_index() for result in (whole, alone))
    assert left.index.equals(right.index)
    np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-5)


ADAM = ef.Local(batch_size=None, optimizer="adam", learning_rate=0.01)


@pytest.mark.parametrize("kernel", ["clients", "traced", pytest.param("compiled", marks=pytest.mark.full)])
@pytest.mark.parametrize("local", [QUICK["local"], pytest.param(ADAM, marks=pytest.mark.full)])
def test_every_way_of_training(
    kernel: str, local: ef.Local, uneven: Federation, seen: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced from the first step on."""
    monkeypatch.setattr(tracing, "TRACE_FROM", 1)
    torch.manual_seed(1)
    model, how = Pretrained(), {**QUICK, "rounds": 2, "local": local}
    whole = ef.simulate(M.FedAvg(), uneven, model=model, kernel=kernel, **how)  # type: ignore[arg-type]
    alone = ef.simulate(M.FedAvg(), seen, model=head_of(model), engine="reference", **how)
    for name, value in alone.parameters[5].items():
        np.testing.assert_allclose(whole.parameters[5][f"head.{name}"], value, rtol=1e-6, atol=1e-6)


def test_a_sweep_and_several_seeds(uneven: Federation, seen: Federation) -> None:
    over, how = {"mu": [0.0, 1.0]}, {**QUICK, "seeds": [5, 6]}
    torch.manual_seed(1)
    model = Pretrained()
    whole = ef.simulate(M.FedProx(), uneven, model=model, over=over, **how)
    alone = ef.simulate(M.FedProx(), seen, model=head_of(model), over=over, **how)
    for key, values in alone.parameters.items():
        for name, value in values.items():
            np.testing.assert_allclose(whole.parameters[key][f"head.{name}"], value, rtol=1e-6, atol=1e-6)
    assert not np.array_equal(whole.parameters[0.0, 5]["head.weight"], whole.parameters[1.0, 5]["head.weight"])


def test_edges_of_the_head_are_ranked(uneven: Federation, seen: Federation) -> None:
    class Headed(Pretrained):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(FEATURES, 1, bias=False)

    torch.manual_seed(1)
    model = Headed()
    whole = ef.simulate(M.FRL(keep=0.5), uneven, model=model, **QUICK)
    alone = ef.simulate(M.FRL(keep=0.5), seen, model=head_of(model), **QUICK)
    assert_same(whole, alone)


def test_the_users_module_stays_as_it_is_and_why_it_is_not_fused(uneven: Federation) -> None:
    model = Pretrained()
    before = copy.deepcopy(model.state_dict())
    result = ef.simulate(M.FedAvg(), uneven, model=model, **QUICK)
    assert model.body.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert "a part of the model is frozen" in " ".join(map(str, result.notes))
    with pytest.raises(ConfigError, match=r"cannot be 'fused' .* frozen"):
        ef.simulate(M.FedAvg(), uneven, model=model, kernel="fused", **QUICK)


def test_each_seed_has_its_own_head_and_all_have_one_body(uneven: Federation) -> None:
    def random_features() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 5).requires_grad_(False), nn.ReLU(), nn.Linear(5, 1))

    results = [ef.simulate(M.FedAvg(), uneven, model=random_features, **{**QUICK, "seeds": [1, 2]}) for _ in range(2)]
    tasks = [result.final_states[seed].task for result in results for seed in (1, 2)]
    assert len({modules.fingerprint(task.module) for task in tasks}) == 1
    first, second = (results[0].parameters[seed]["2.weight"] for seed in (1, 2))
    assert not np.allclose(first, second)
    np.testing.assert_array_equal(first, results[1].parameters[1]["2.weight"])


def test_specifications_initialise_what_is_trained(uneven: Federation) -> None:
    @dataclasses.dataclass(frozen=True)
    class Half(models.MLP):
        def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
            made = super().build(shape, outputs)
            made[0].requires_grad_(False)  # type: ignore[index]
            return made

    result = ef.simulate(M.FedAvg(), uneven, model=Half(hidden=(3,)), **QUICK)
    assert set(result.parameters[5]) == {"2.weight", "2.bias"}


# -- what is refused ---------------------------------------------------------------------------------------------------


class Constant(nn.Module):
    def __init__(self, trainable: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4).requires_grad_(trainable)
        self.register_buffer("shift", torch.ones(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layer(x) + self.shift
        return made


HEAD = nn.Linear(FEATURES, 1)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(body(), nn.BatchNorm1d(FEATURES), HEAD), r"buffers \(1.running_mean"),
        (nn.Sequential(body(), nn.BatchNorm1d(FEATURES, affine=False), HEAD), r"buffers \(1.running_mean"),
        (nn.Sequential(Constant(trainable=True), nn.Linear(4, 1)), r"buffers \(0.shift\), which are state outside"),
        (
            nn.Sequential(
                nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)).requires_grad_(False),
                nn.Linear(3, 1),
            ),
            r"batch normalisation layer \(0.1\)",
        ),
        (nn.Sequential(body(), nn.Linear(FEATURES, 1).requires_grad_(False)), "All parameters .* are frozen"),
        (nn.Sequential(body(), HEAD, nn.Sigmoid()), "ends in a sigmoid"),
    ],
)
def test_refused(model: nn.Module, words: str, uneven: Federation) -> None:
    with pytest.raises(ConfigError, match=words):
        ef.simulate(M.FedAvg(), uneven, model=model, **QUICK)


def test_constants_of_a_frozen_part_are_kept(uneven: Federation, tmp_path: Path) -> None:
    model = nn.Sequential(Constant(trainable=False), nn.Linear(4, 1))
    live = ef.simulate(M.FedAvg(), uneven, model=model, **QUICK)
    ef.save_result(tmp_path, live)
    other = nn.Sequential(Constant(trainable=False), nn.Linear(4, 1))
    other[0].shift.fill_(7.0)  # type: ignore[union-attr, operator]
    x = uneven.rows.x[:30]
    found = ef.load_model(tmp_path, model=other).scores(x)
    np.testing.assert_array_equal(found, live.predict(x, run=5))
    assert float(other[0].shift[0]) == 7.0  # type: ignore[index, union-attr]
    with pytest.raises(ConfigError, match="does not fit the stored one: its frozen values differ"):
        ef.load_model(tmp_path, model=nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)))


# -- what is left behind -----------------------------------------------------------------------------------------------


def numpy_scores(result: ef.Result, x: np.ndarray) -> np.ndarray:
    own = result.parameters[5]
    made: np.ndarray = 1 / (1 + np.exp(-(features(x) @ own["head.weight"].T + own["head.bias"])[:, 0]))
    return made


@pytest.mark.full
def test_saved_pickled_and_exported_models_predict_with_the_frozen_part(uneven: Federation, tmp_path: Path) -> None:
    live, x = ef.simulate(M.FedAvg(), uneven, model=Pretrained, **QUICK), uneven.rows.x[:40]
    expected = live.predict(x)
    np.testing.assert_allclose(expected, numpy_scores(live, x), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(live)).predict(x), expected)
    ef.save_result(tmp_path / "saved", live)
    np.testing.assert_array_equal(ef.load_result(tmp_path / "saved").predict(x), expected)
    model = ef.load_model(tmp_path / "saved")
    program = torch.export.load(io.BytesIO(to_torch(model))).module()
    np.testing.assert_allclose(program(torch.from_numpy(x))[:, 1].detach(), expected, rtol=1e-5, atol=1e-6)
    import onnxruntime

    session = onnxruntime.InferenceSession(to_onnx(model))
    np.testing.assert_allclose(session.run(["probabilities"], {"x": x})[0][:, 1], expected, rtol=1e-5, atol=1e-6)
    # a new process, where the function that made the model has other values by now
    np.save(tmp_path / "x.npy", x)
    script = """
import numpy as np, equifed as ef
from simulator import frozen_models
made = frozen_models.body
frozen_models.body = lambda inputs=4, seed=0: made(inputs, seed + 1)
np.save("found.npy", ef.load_model("saved", trust=["simulator.frozen_models"]).scores(np.load("x.npy")))
"""
    paths = {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))}
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path, env={**os.environ, **paths})
    np.testing.assert_array_equal(np.load(tmp_path / "found.npy"), expected)


def test_a_run_with_another_body_is_not_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_silos(tmp_path)
    config = load_config(write_config(tmp_path, model={"kind": "simulator.frozen_models:OfThree"}))
    store = Store(tmp_path / "runs")
    with contextlib.suppress(KeyboardInterrupt), store.start(config) as recording:
        for _ in recording.rounds():
            raise KeyboardInterrupt
    folder = recording.folder
    found = store.same(config, build(config).job)
    assert found is not None
    assert found.id == folder.id
    made = frozen_models.body
    monkeypatch.setattr(frozen_models, "body", lambda inputs, seed=0: made(inputs, 1))
    assert store.same(config, build(config).job) is None
    with pytest.raises(DataError, match=r"What is frozen in the model of run .* has other values"):
        store.resume(folder.id)
    monkeypatch.undo()
    with store.resume(folder.id) as recording:
        for _ in recording.rounds():
            pass
        assert set(recording.finish().parameters[0]) == {"head.weight", "head.bias"}


@pytest.mark.parametrize("method", [M.FedPer(), M.FedRep(head_epochs=1)], ids=repr)
def test_a_head_of_the_clients_own_on_a_body_that_is_frozen_in_part(method: Method, uneven: Federation) -> None:
    """The frozen layer neither counts as one that clients could share, nor as one that they could keep."""
    width = uneven.rows.x.shape[1]

    def make() -> nn.Module:
        frozen = nn.Linear(width, 4).requires_grad_(False)
        return nn.Sequential(frozen, nn.Tanh(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))

    result = ef.simulate(method, uneven, **{**QUICK, "model": make})
    assert {name.split(".")[0] for name in result.parameters[5]} == {"2", "4"}
    with pytest.raises(ConfigError, match="there is no layer left for the clients to share"):
        ef.simulate(method.with_hyper(head_layers=2), uneven, **{**QUICK, "model": make})


def test_numbers_that_cannot_be_stored_are_refused(uneven: Federation) -> None:
    body = nn.Linear(uneven.rows.x.shape[1], 4).to(torch.bfloat16).requires_grad_(False)
    with pytest.raises(ConfigError, match=r"bfloat16 \(0.weight, 0.bias\)"):
        ef.simulate(M.FedAvg(), uneven, **{**QUICK, "model": nn.Sequential(body, nn.Linear(4, 1))})
