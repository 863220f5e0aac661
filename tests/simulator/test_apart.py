"""One client after another with torch's own kernels, and which way local training takes."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equifed as ef
from equifed.errors import ConfigError
from equifed.federation import Federation
from equifed.methods import FedAvg, FedAvgLR, FedProx, LocalKernel
from equifed.notes import Note
from equifed.simulator import apart, make_job, stepper, tracing

QUICK: dict[str, Any] = {
    "model": ef.models.MLP(hidden=(5,), activation="tanh"),
    "rounds": 2,
    "local": ef.Local(epochs=2, batch_size=8, learning_rate=0.1),
    "seeds": (0, 5),
}


@pytest.fixture(scope="module")
def images() -> Federation:
    """Clients of 1 to 30 images of 8 x 8, in three classes."""
    rng = np.random.default_rng(3)

    def part(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        y = rng.integers(0, 3, n)
        x = rng.normal(size=(n, 1, 8, 8)).astype(np.float32) + y[:, None, None, None]
        return x, y, rng.integers(0, 2, n)

    return ef.Federation.from_arrays([part(n) for n in (30, 7, 16, 1, 22)], test=part(20))


def network() -> nn.Module:
    layers = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(24, 3))


def assert_same(a: ef.Result, b: ef.Result, tolerance: float = 2e-6) -> None:
    assert a.parameters.keys() == b.parameters.keys()
    for key, parameters in a.parameters.items():
        for name, value in parameters.items():
            np.testing.assert_allclose(value, b.parameters[key][name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("planned", [1, 10**9], ids=["traced", "eager"])
def test_threads_give_the_same_bits(images: Federation, planned: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "TRACE_FROM", planned)
    settings = {**QUICK, "model": network, "kernel": "clients"}
    one, three = (ef.simulate(FedAvg(), images, threads=count, **settings) for count in (1, 3))
    assert_same(one, ef.simulate(FedAvg(), images, **{**settings, "kernel": "auto", "engine": "reference"}))
    for seed, parameters in one.parameters.items():
        for name, value in parameters.items():
            assert value.tobytes() == three.parameters[seed][name].tobytes()


@pytest.mark.parametrize(
    "local",
    [
        ef.Local(epochs=2, batch_size=None, learning_rate=0.2),
        ef.Local(epochs=2, batch_size=7, learning_rate=0.05, momentum=0.9, weight_decay=0.01),
        ef.Local(epochs=2, batch_size=64, learning_rate=0.02, optimizer="adam", learning_rate_decay=0.5),
    ],
    ids=["full batch", "momentum", "adam"],
)
def test_every_optimiser_equals_the_reference(uneven: Federation, local: ef.Local) -> None:
    settings = {**QUICK, "local": local}
    clients = ef.simulate(FedAvgLR(), uneven, kernel="clients", threads=2, **settings)
    assert_same(clients, ef.simulate(FedAvgLR(), uneven, engine="reference", **settings), 2e-5)


def test_settings_of_a_sweep_equal_separate_runs(uneven: Federation) -> None:
    swept = ef.simulate(FedProx(), uneven, over={"mu": [0.1, 2.0]}, kernel="clients", **QUICK)
    for mu in (0.1, 2.0):
        alone = ef.simulate(FedProx(mu=mu), uneven, engine="reference", **QUICK)
        for seed, parameters in alone.parameters.items():
            for name, value in parameters.items():
                np.testing.assert_allclose(swept.parameters[(mu, seed)][name], value, rtol=2e-6, atol=2e-6)


def test_federations_that_scale_their_features(uneven: Federation) -> None:
    """Each seed has a scaling of its own, applied when a batch is taken."""
    rng = np.random.default_rng(0)
    feds = [
        dataclasses.replace(uneven, scaling=tuple(rng.uniform(0.5, 2, (2, 4)).astype(np.float32))) for _ in range(2)
    ]
    clients = ef.simulate(FedAvg(), feds, kernel="clients", **QUICK)
    assert_same(clients, ef.simulate(FedAvg(), feds, engine="reference", **QUICK))


def test_multiplications_of_a_row(images: Federation) -> None:
    job = make_job(FedAvg(), images, network, ef.RunSettings(**{k: v for k, v in QUICK.items() if k != "model"}))
    assert job.row_products == 4 * 9 * 64 + 6 * 4 * 9 * 4 + 24 * 3


def way(method: Any, federation: Federation, model: Any, **settings: Any) -> dict[str, Any]:
    result = ef.simulate(method, federation, **{**QUICK, "rounds": 1, "seeds": 1, "model": model, **settings})
    (note,) = [note for note in result.notes if note.kind == "kernel"]
    return dict(note.fields)


def test_the_way_is_chosen_by_the_multiplications_of_a_step(
    images: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = 4 * 9 * 64 + 6 * 4 * 9 * 4 + 24 * 3
    apart = {"phase": "train", "kernel": "clients", "obstacle": "model"}
    monkeypatch.setattr(stepper, "APART_FROM", 8 * row)
    assert way(FedAvg(), images, network) == apart
    assert way(FedAvg(), images, network, local=ef.Local(batch_size=7))["kernel"] == "traced"
    # the client in the middle has 16 images
    monkeypatch.setattr(stepper, "APART_FROM", 16 * row)
    assert way(FedAvg(), images, network, local=ef.Local(batch_size=None)) == apart
    monkeypatch.setattr(stepper, "APART_FROM", 16 * row + 1)
    assert way(FedAvg(), images, network, local=ef.Local(batch_size=20))["kernel"] == "traced"


def test_large_steps_are_not_fused(uneven: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ef.models.MLP(hidden=(5,), activation="tanh")
    row = 4 * 5 + 5
    monkeypatch.setattr(stepper, "UNFUSED_FROM", 8 * row)
    assert way(FedAvg(), uneven, model) == {"phase": "train", "kernel": "clients", "obstacle": "wide"}
    assert way(FedAvg(), uneven, model, kernel="fused")["kernel"] == "fused"
    assert way(FedAvg(), uneven, model, local=ef.Local(batch_size=7))["kernel"] == "fused"
    assert way(FedAvg(), uneven, model, threads=5)["kernel"] == "fused"
    # two models, which are trained together, are twice the work
    monkeypatch.setattr(stepper, "UNFUSED_FROM", 16 * row)
    assert way(ef.methods.FedEM(components=2), uneven, model)["kernel"] == "clients"
    assert way(ef.methods.FedEM(components=1), uneven, model)["kernel"] == "fused"


def test_which_way_ran_is_told(uneven: Federation) -> None:
    told = ef.simulate(LocalKernel(), uneven, kernel="clients", **QUICK).notes
    assert told == [Note("kernel", {"phase": "train", "kernel": "clients", "obstacle": "loss"})]
    assert "one client after another by torch's own operations" in str(told[0])


def test_a_gpu_takes_many_at_once(uneven: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigError, match="'clients' runs on the CPU only"):
        ef.simulate(FedAvg(), uneven, kernel="clients", device="cuda", **QUICK)


def test_threads_share_torch_s_own(images: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread is told how many torch may start in it; else operations in new ones take all cores."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    told: set[tuple[int, int]] = set()
    tell = torch.set_num_threads
    monkeypatch.setattr(torch, "set_num_threads", lambda n: (told.add((threading.get_ident(), n)), tell(n)))

    def in_another(work: Any, pieces: int, threads: int) -> None:
        thread = threading.Thread(target=lambda: [work(piece) for piece in range(pieces)])
        thread.start()
        thread.join()

    monkeypatch.setattr(apart, "share_out", in_another)
    ef.simulate(FedAvg(), images, **{**QUICK, "model": network, "kernel": "clients", "threads": 3, "rounds": 1})
    others = {count for thread, count in told if thread != threading.get_ident()}
    assert others == {1}
