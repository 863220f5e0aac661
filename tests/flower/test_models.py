"""Models on Flower: of one with a frozen part the head alone travels, and all places must have the same body; of one
with dropout every silo drops the units that the simulator drops."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from simulator import frozen_models

import equifed as ef
from equifed.flower.silo import SiloApp
from flower.inprocess import Nodes, federate, nodes, setting, simulate

MODEL = {"kind": "simulator.frozen_models:Pretrained", "hidden": None, "activation": None}


@pytest.mark.parametrize(
    "name", ["kffl", *(pytest.param(name, marks=pytest.mark.full) for name in ("fedavg", "local"))]
)
def test_a_federation_equals_the_simulator(name: str, silos: Path, tmp_path: Path) -> None:
    made = setting(silos, ef.methods.make(name), model=MODEL)
    found, expected = federate(made, nodes(made), tmp_path), simulate(made)
    assert not len(found.rejections), found.rejections
    assert found.parameters[3].keys() <= {"head.weight", "head.bias"}
    for key, value in found.parameters[3].items():
        np.testing.assert_allclose(value, expected.parameters[3][key], rtol=1e-5, atol=1e-6)
    head = 4 * (frozen_models.FEATURES + 1)
    if name == "fedavg":
        train = found.messages.set_index("phase").loc["train"]
        assert (train["bytes_down"], train["sizes_up"]) == (head, {"update": head, "rows": 4})
        x = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
        loaded = ef.load_model(tmp_path / "run")
        np.testing.assert_allclose(loaded.scores(x), found.predict(x), rtol=0, atol=0)


def test_a_silo_with_another_body_is_refused(silos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = setting(silos, model=MODEL, run={"clients-per-round": "all", "rounds": 1}, flower={"join-deadline": 0.05})
    same = dataclasses.replace(made)  # its own, not yet made
    assert same.digest == made.digest
    original, other = frozen_models.body, dataclasses.replace(made)
    with monkeypatch.context() as patched:
        patched.setattr(frozen_models, "body", lambda inputs, seed=0: original(inputs, 1))
        assert other.digest != made.digest
        app = SiloApp(other)
    plain = nodes(made)
    grid = Nodes(plain.app, [context.node_config for context in plain.contexts.values()], apps={"b": app})
    found = federate(made, grid, tmp_path)
    (refused,) = found.rejections.itertuples()
    assert refused.client == "b"
    assert "frozen part of the model" in refused.reason


def test_what_is_not_frozen_is_not_in_the_digest(silos: Path) -> None:
    assert setting(silos).frozen == ""


@pytest.mark.parametrize(
    "name", ["fedminmax", *(pytest.param(name, marks=pytest.mark.full) for name in ("fedavg", "fair-fate"))]
)
def test_silos_drop_the_units_that_the_simulator_drops(name: str, silos: Path, tmp_path: Path) -> None:
    made = setting(silos, ef.methods.make(name), model={"dropout": 0.4})
    found, expected = federate(made, nodes(made), tmp_path), simulate(made)
    plain = simulate(setting(silos, ef.methods.make(name)))
    assert not len(found.rejections), found.rejections
    names = zip(expected.parameters[3], plain.parameters[3], strict=True)  # a layer more
    for key, without in names:
        np.testing.assert_allclose(found.parameters[3][key], expected.parameters[3][key], rtol=1e-5, atol=1e-6)
        assert np.abs(expected.parameters[3][key] - plain.parameters[3][without]).max() > 1e-3
