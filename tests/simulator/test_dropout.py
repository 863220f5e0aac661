"""Dropout by masks that are a function of seed, round, client, phase, step, row and unit."""

from __future__ import annotations

import dataclasses
import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom
from support.samples import fast
from torch import nn

import equifed as ef
from equifed import methods as M
from equifed import randomness
from equifed.dropout import Masks, SeededDropout, use_dropout
from equifed.errors import ConfigError
from equifed.federation import Federation
from equifed.protocol import Method
from equifed.results.export import to_torch
from equifed.results.onnx import to_onnx
from equifed.settings import RunSettings
from equifed.simulation import Simulation
from equifed.simulator import make_job, tracing

MODEL = ef.models.MLP(hidden=(8, 5), activation="tanh", dropout=0.4)
QUICK: dict[str, Any] = {
    "model": MODEL,
    "rounds": 3,
    "clients_per_round": 6,
    "seeds": [3],
    "local": ef.Local(epochs=2, batch_size=8, learning_rate=0.2),
}
ADAM = ef.Local(batch_size=None, optimizer="adam", learning_rate=0.01)


# -- the documented hash, by Python's own integers ---------------------------------------------------------------------


def mix(x: int) -> int:
    x = ((x ^ x >> 16) * 0x21F0AAAD) % 2**32
    x = ((x ^ x >> 15) * 0x735A2D97) % 2**32
    return x ^ x >> 15


def folded(key: int, part: int) -> int:
    x = ((key ^ part) + 0x9E3779B97F4A7C15) % 2**64
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) % 2**64
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) % 2**64
    return x ^ x >> 31


def number(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def step_key(seed: int, round: int, client: str, phase: str, epoch: int, step: int) -> int:
    key = 0
    for part in (number("dropout-masks"), seed, round, number(client), number(phase), epoch, step):
        key = folded(key, part)
    return key


def kept(key: int, shape: tuple[int, ...], p: float, call: int = 0) -> np.ndarray:
    """1 for units that stay."""
    a, b = key % 2**32, key >> 32
    hashed = [[mix(i ^ mix(a ^ mix(b ^ (16 * call + j)))) for i in range(size)] for j, size in enumerate(shape)]
    made = np.empty(shape)
    for place in np.ndindex(*shape):
        bits = 0
        for j, i in enumerate(place):
            bits ^= hashed[j][i]
        made[place] = mix(bits) >= round(p * 2**32)
    return made


# -- masks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(7, 5), (4, 3, 2), (9,)])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.75])
def test_masks_are_the_documented_hash(shape: tuple[int, ...], p: float) -> None:
    words = randomness.dropout_words(randomness.dropout_keys(11, 4, randomness.key("north"), "train"), 1, range(2, 4))
    for step in (2, 3):
        masks, key = Masks(torch.from_numpy(words[step - 2, 0])), step_key(11, 4, "north", "train", 1, step)
        for call in range(3):
            np.testing.assert_allclose(masks.take(shape, p), kept(key, shape, p, call) / (1 - p), rtol=1e-6)


def standardised(mask: torch.Tensor, p: float) -> np.ndarray:
    """With mean 0 and variance 1 where units are dropped with probability p."""
    made: np.ndarray = ((mask * (1 - p)).double().numpy() - (1 - p)) / np.sqrt(p * (1 - p))
    return made


@pytest.mark.parametrize("p", [0.05, 0.3, 0.5, 0.9])
def test_units_are_dropped_at_the_rate_and_independently(p: float) -> None:
    """Between rows, units, layers, steps, epochs, clients, rounds, seeds and phases."""
    rows, units = 512, 256
    limit = 5 / np.sqrt(rows * units)  # five standard deviations
    who = [(0, 1, "a", "train"), (0, 1, "b", "train"), (0, 2, "a", "train"), (1, 1, "a", "train"), (0, 1, "a", "tune")]
    masks = []
    for seed, number_of_round, client, phase in who:
        key = randomness.dropout_keys(seed, number_of_round, randomness.key(client), phase)
        for epoch in range(2):
            for words in randomness.dropout_words(key, epoch, range(2))[:, 0]:
                drawn = Masks(torch.from_numpy(words))
                masks += [standardised(drawn.take((rows, units), p), p) for _ in range(2)]
    for mask in masks:
        assert abs(mask.mean()) < limit
        for apart in (1, 2, 4, 16, 64):
            assert abs((mask[apart:] * mask[:-apart]).mean()) < limit * 1.5
            assert abs((mask[:, apart:] * mask[:, :-apart]).mean()) < limit * 1.5
        # a row, a unit and their neighbours: what an exclusive or of two hashes alone would tie together
        assert abs((mask[1:, 1:] * mask[:-1, 1:] * mask[1:, :-1] * mask[:-1, :-1]).mean()) < limit * 1.5
    for axis, n in ((1, rows), (2, units)):
        left = np.stack([mask > 0 for mask in masks]).sum(axis)  # of each unit, then of each row
        assert left.min() >= binom.ppf(1e-10, n, 1 - p)  # some 30,000 looks: what chance allows once in 10^5 tests
        assert left.max() <= binom.isf(1e-10, n, 1 - p)
        spread, kurtosis = n * p * (1 - p), (1 - 6 * p * (1 - p)) / (n * p * (1 - p))
        variance = np.square(left - n * (1 - p)).mean() / spread
        assert abs(variance - 1) < 5 * np.sqrt((2 + kurtosis) / left.size)
    flat = np.stack([mask.ravel() for mask in masks])
    correlation = flat @ flat.T / flat.shape[1]
    assert np.abs(correlation - np.diag(np.diag(correlation))).max() < limit


def test_channels_are_dropped_whole() -> None:
    layer, x = SeededDropout(0.5, channels=True), torch.ones(6, 8, 3, 3)
    with use_dropout(torch.tensor([5, 9])):
        first, second = layer(x), layer(x)
    assert torch.equal(first, first[..., :1, :1].expand_as(first))
    assert set(first.unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(first, second)  # a layer that is called twice drops others
    assert torch.equal(layer(x), x)


# -- training ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"engine": "reference"}, {"kernel": "traced"}, {"kernel": "clients"}])
@pytest.mark.parametrize("size", [None, 8])
def test_steps_against_numpy(how: dict[str, Any], size: int | None, uneven: Federation) -> None:
    """Logistic regression whose inputs are dropped, for two rounds of two epochs."""
    p, seed, local = 0.3, 3, ef.Local(epochs=2, batch_size=size, learning_rate=0.5)
    layer = nn.Linear(4, 1)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    model = nn.Sequential(nn.Dropout(p), layer)
    result = ef.simulate(M.FedAvg(), uneven, model=model, rounds=2, local=local, seeds=[seed], **how)
    w = np.zeros(5)
    for turn in (1, 2):
        sums, total = np.zeros(5), 0
        for k, name in enumerate(uneven.ids):
            held = uneven.train[k]
            x, y, own = uneven.rows.x[held].astype(float), uneven.rows.y[held].astype(float), w.copy()
            batches = randomness.Batches(seed, turn, randomness.key(name), "train", len(y), local)
            for epoch in range(2):
                for step, rows in enumerate(batches.of_epoch(epoch)):
                    key = step_key(seed, turn, name, "train", epoch, step)
                    seen = x[rows] * kept(key, (len(rows), 4), p) / (1 - p)
                    error = 1 / (1 + np.exp(-(own[0] + seen @ own[1:]))) - y[rows]
                    own = own - 0.5 * np.concatenate([[error.mean()], seen.T @ error / len(rows)])
            sums, total = sums + len(y) * own, total + len(y)
        w = sums / total
    found = result.parameters[seed]
    np.testing.assert_allclose(np.concatenate([found["1.bias"], found["1.weight"][0]]), w, rtol=1e-5, atol=1e-6)


METHODS: list[Method] = [M.FedAvg(), M.FedProx(mu=0.3), M.KFFL(), M.FedMinMax(), M.FairFate(), M.FedEM(), M.SFFL()]


@pytest.mark.parametrize("method", fast(METHODS, lambda m: m.name in ("fedavg", "kffl", "fedem")), ids=repr)
def test_lanes_equal_the_reference(method: Method, uneven: Federation) -> None:
    lanes, reference = (ef.simulate(method, uneven, engine=name, **QUICK) for name in ("lanes", "reference"))  # type: ignore[arg-type]
    for name, value in reference.parameters[3].items():
        np.testing.assert_allclose(lanes.parameters[3][name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "kernel", ["clients", *(pytest.param(way, marks=pytest.mark.full) for way in ("traced", "compiled"))]
)
@pytest.mark.parametrize("local", [QUICK["local"], pytest.param(ADAM, marks=pytest.mark.full)])
def test_every_way_of_training(
    kernel: str, local: ef.Local, uneven: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced from the first step on; two seeds, and threads that have copies of the model."""
    monkeypatch.setattr(tracing, "TRACE_FROM", 1)
    how: dict[str, Any] = {**QUICK, "rounds": 2, "seeds": [3, 4], "local": local}
    found = ef.simulate(M.FedAvg(), uneven, kernel=kernel, threads=2, **how)  # type: ignore[arg-type]
    again = ef.simulate(M.FedAvg(), uneven, kernel=kernel, threads=2, **how)  # type: ignore[arg-type]
    expected = ef.simulate(M.FedAvg(), uneven, engine="reference", **how)
    for seed in (3, 4):
        for name, value in expected.parameters[seed].items():
            np.testing.assert_allclose(found.parameters[seed][name], value, rtol=1e-4, atol=2e-5)
            np.testing.assert_array_equal(found.parameters[seed][name], again.parameters[seed][name])


@pytest.mark.parametrize("kernel", ["clients", "traced"])
def test_settings_of_a_sweep_drop_the_same(kernel: str, uneven: Federation) -> None:
    over = {"mu": [0.0, 0.5]}
    swept = ef.simulate(M.FedProx(), uneven, over=over, kernel=kernel, **QUICK)  # type: ignore[arg-type]
    for mu in over["mu"]:
        alone = ef.simulate(M.FedProx(mu=mu), uneven, kernel=kernel, **QUICK)  # type: ignore[arg-type]
        for name, value in alone.parameters[3].items():
            np.testing.assert_allclose(swept.parameters[mu, 3][name], value, rtol=1e-5, atol=1e-6)


class Convolutions(nn.Module):
    """With one dropout layer that is called twice, and one for whole channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 3, 3, padding=1), nn.Linear(3 * 16, 2)
        self.channels, self.units = nn.Dropout2d(0.3), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.units(self.channels(torch.relu(self.first(self.units(x)))))
        logits: torch.Tensor = self.last(made.flatten(1))
        return logits


def test_images(uneven: Federation) -> None:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(len(uneven.rows.y), 1, 4, 4)).astype(np.float32) + uneven.rows.y[:, None, None, None]
    fed = dataclasses.replace(uneven, rows=uneven.rows._replace(x=images.astype(np.float32)), features=())
    torch.manual_seed(0)
    how: dict[str, Any] = {**QUICK, "model": Convolutions(), "eval_every": 3}
    expected = ef.simulate(M.FedAvg(), fed, engine="reference", **how)
    for kernel in ("traced", "clients"):
        found = ef.simulate(M.FedAvg(), fed, kernel=kernel, **how)  # type: ignore[arg-type]
        for name, value in expected.parameters[3].items():
            np.testing.assert_allclose(found.parameters[3][name], value, rtol=1e-4, atol=1e-5)


def test_a_resumed_run_has_the_same_bits(uneven: Federation) -> None:
    settings = RunSettings(rounds=4, seeds=2, clients_per_round=5, local=QUICK["local"])
    job = make_job(M.FedAvg(), uneven, MODEL, settings)
    whole = list(Simulation(job).rounds())[-1].state
    half = next(step for step in Simulation(job).rounds() if step.round == 2)
    rest = list(Simulation(job).rounds((2, half.state)))[-1].state
    for name, value in whole.server.theta.items():
        assert torch.equal(value, rest.server.theta[name])


# -- everything else sees none -----------------------------------------------------------------------------------------


def test_evaluation_and_prediction_drop_nothing(uneven: Federation, tmp_path: Path) -> None:
    result, x = ef.simulate(M.FedAvg(), uneven, **QUICK), uneven.rows.x[uneven.test]
    own = result.parameters[3]
    hidden = np.tanh(x @ own["0.weight"].T + own["0.bias"])
    hidden = np.tanh(hidden @ own["3.weight"].T + own["3.bias"])
    expected = 1 / (1 + np.exp(-(hidden @ own["6.weight"].T + own["6.bias"])[:, 0]))
    np.testing.assert_allclose(result.predict(x), expected, rtol=1e-5, atol=1e-6)
    right = ((expected > 0.5) == uneven.rows.y[uneven.test]).mean()
    assert result.final()["accuracy"].item() == pytest.approx(right)
    ef.save_result(tmp_path, result)
    model = ef.load_model(tmp_path)
    np.testing.assert_array_equal(model.scores(x), result.predict(x))
    program = torch.export.load(io.BytesIO(to_torch(model))).module()
    np.testing.assert_allclose(program(torch.from_numpy(x))[:, 1].detach(), expected, rtol=1e-5, atol=1e-6)
    assert to_onnx(model)  # which is compared with the model


def test_what_a_client_tells_before_and_after_training_is_of_all_units(uneven: Federation) -> None:
    """q-FFL replies with the loss of the global model on all rows, which must be that of the model itself."""
    job = make_job(M.QFFL(), uneven, MODEL, RunSettings(local=QUICK["local"]))
    assert job.task.dropout is None
    theta = job.initial[0]
    x, y = torch.from_numpy(uneven.rows.x[:20]), torch.from_numpy(uneven.rows.y[:20])
    first = job.task.row_loss(theta, x, y)
    assert torch.equal(first, job.task.row_loss(theta, x, y))
    dropped = job.task.in_step(torch.tensor([1, 2])).row_loss(theta, x, y)
    assert not torch.equal(first, dropped)
    assert torch.equal(first, job.task.row_loss(theta, x, y))


def test_methods_without_local_steps_say_so(uneven: Federation) -> None:
    results = [ef.simulate(M.FedFair(), uneven, **{**QUICK, "model": model}) for model in (MODEL, ef.models.MLP((8,)))]
    notes = [[str(note) for note in result.notes if note.kind == "nothing-dropped"] for result in results]
    assert notes[1] == []
    assert "dropout had no effect" in notes[0][0]


def test_why_it_is_not_fused(uneven: Federation) -> None:
    result = ef.simulate(M.FedAvg(), uneven, **QUICK)
    assert "the model has dropout, which compiled loops do not support" in " ".join(map(str, result.notes))
    with pytest.raises(ConfigError, match=r"cannot be 'fused' .* the model has dropout"):
        ef.simulate(M.FedAvg(), uneven, kernel="fused", **QUICK)


def test_the_users_module_keeps_its_layers(uneven: Federation) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.2), nn.Linear(3, 1)).eval()  # whatever mode it is in
    with_dropout = ef.simulate(M.FedAvg(), uneven, **{**QUICK, "model": model})
    assert type(model[1]) is nn.Dropout
    model[1].p = 0.0
    without = ef.simulate(M.FedAvg(), uneven, **{**QUICK, "model": model})
    assert not np.allclose(with_dropout.parameters[3]["0.weight"], without.parameters[3]["0.weight"], atol=1e-4)


@pytest.mark.parametrize("p", [-0.1, 1.0, "x"])
def test_shares_that_are_none(p: Any) -> None:
    with pytest.raises(ConfigError, match="dropout must be"):
        ef.models.MLP(dropout=p)


def test_no_dropout_is_the_same_network() -> None:
    assert str(ef.models.MLP(dropout=0.0).build((4,), 1)) == str(ef.models.MLP().build((4,), 1))
    layers = ef.models.MLP(hidden=(3, 2), dropout=0.1).build((4,), 1)
    assert [type(layer).__name__ for layer in layers] == [  # type: ignore[attr-defined]
        *("NetworkLinear", "ReLU", "Dropout") * 2,
        "NetworkLinear",
    ]
