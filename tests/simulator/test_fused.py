"""The fused kernels against plain NumPy in double precision, and the path's place in the simulator."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import equifed as ef
from equifed.errors import ConfigError
from equifed.federation import Federation
from equifed.methods import FedAvg
from equifed.notes import Note
from equifed.settings import Local
from equifed.simulator import threads
from equifed.simulator.fused import cpu
from equifed.simulator.fused.problem import Problem, network_of

from .fused_reference import CASES, SIGMOID, TANH, expected, make, problem, trained


@pytest.mark.parametrize("models", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_kernels_equal_plain_numpy(case: str, models: int) -> None:
    network, local, flags = CASES[case]
    rng = np.random.default_rng(len(case))
    p = problem(network, local, [163, 40, 8, 1, 0], models, rng, **flags)
    theta = rng.uniform(-0.5, 0.5, (5, models, network.size)).astype(np.float32)
    epochs = range(local.epochs)
    done = trained(cpu, p, theta, epochs)
    np.testing.assert_allclose(done, expected(p, theta, epochs), rtol=2e-5, atol=5e-6)
    assert (done[-1] == theta[-1]).all()  # no rows, no steps
    assert not np.allclose(done[:-1], theta[:-1])
    # epoch by epoch, as for methods that choose their rows anew: the same bits
    assert trained(cpu, p, theta, *(range(e, e + 1) for e in epochs)).tobytes() == done.tobytes()
    # more threads: the same bits
    assert trained(cpu, dataclasses.replace(p, threads=3), theta, epochs).tobytes() == done.tobytes()


def test_functions_of_one_number_keep_their_digits() -> None:
    """A model with the identity inside shows them: one step from zero has the activation's value as its gradient."""
    x = np.concatenate([np.linspace(-95, 95, 1501), np.geomspace(1e-6, 1, 200), -np.geomspace(1e-6, 1, 200)])
    x = x.astype(np.float32)
    n = len(x)
    for number, true in ((TANH, np.tanh(x.astype(float))), (SIGMOID, 1 / (1 + np.exp(-x.astype(float))))):
        network = make((1, 1, 1), (number,), "squared", False)
        p = Problem(
            *(
                network,
                Local(epochs=1, batch_size=1),
                torch.from_numpy(x)[:, None],
                torch.full((n,), -0.5),
            ),
            *(torch.arange(n, dtype=torch.int32), torch.arange(n), torch.ones(n, dtype=torch.int64)),
            *(torch.zeros(n, dtype=torch.int64), 1.0),
        )
        theta = np.tile(np.array([1, 0], np.float32), (n, 1, 1))
        # squared error at output 0 and label -0.5 has slope 1: theta_2 <- 0 - activation
        np.testing.assert_allclose(-trained(cpu, p, theta, range(1))[:, 0, 1], true, rtol=4e-7, atol=1e-37)


def test_a_diverged_model_shows(uneven: Federation) -> None:
    network = make((4, 1), loss="squared")
    p = problem(network, Local(epochs=60, batch_size=2), [60], 1, np.random.default_rng(0))
    p = dataclasses.replace(p, rate=1e3)
    theta = np.ones((1, 1, network.size), np.float32)
    assert not np.isfinite(trained(cpu, p, theta, range(60))).all()
    result = ef.simulate(
        FedAvg(), uneven, model=nn.Linear(4, 1), rounds=2, local=Local(learning_rate=1e38, batch_size=4), kernel="fused"
    )
    assert "NaN or Inf in its reply" in set(result.rejections["reason"])


def test_threads_are_those_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads.count_usable_cores() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    assert threads.count_usable_cores() == 4
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 5}, raising=False)
    assert threads.count_usable_cores() == 2


def test_threads_do_every_piece_once_and_tell_errors() -> None:
    done: list[int] = []
    threads.share_out(done.append, 50, 4)
    assert sorted(done) == list(range(50))

    def fails(piece: int) -> None:
        if piece == 3:
            raise ValueError("piece three")

    with pytest.raises(ValueError, match="piece three"):
        threads.share_out(fails, 5, 2)
    threads.share_out(done.append, 0, 2)


NETWORKS: list[tuple[nn.Module, tuple[int, ...] | None]] = [
    (nn.Linear(4, 1), (4, 1)),
    (nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2, bias=False)), (4, 3, 2)),
    (nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.Linear(3, 1)), None),
    (nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1)), None),
    (nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.ReLU(), nn.Linear(3, 1)), None),
    (nn.Sequential(nn.Linear(4, 3), nn.ReLU()), None),
]


@pytest.mark.parametrize(("module", "widths"), NETWORKS)
def test_networks_are_recognised(module: nn.Module, widths: tuple[int, ...] | None, uneven: Federation) -> None:
    from equifed.simulator import make_job

    job = make_job(FedAvg(), uneven, ef.models.Logistic(), ef.RunSettings(seeds=1))
    found = network_of(dataclasses.replace(job.task, module=module))
    assert (found and found.widths) == widths
    hooked = nn.Sequential(nn.Linear(4, 1))
    hooked[0].register_forward_hook(lambda module, inputs, output: output * 2)
    assert network_of(dataclasses.replace(job.task, module=hooked)) is None
    twice = nn.Linear(4, 4)
    again = nn.Sequential(twice, nn.ReLU(), twice, nn.ReLU(), nn.Linear(4, 1))
    assert network_of(dataclasses.replace(job.task, module=again)) is None


class Squashed(nn.Linear):
    """Is a linear layer by its class, and something else by what it does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) ** 3


def test_a_layer_of_one_s_own_is_not_taken_for_a_linear_one(uneven: Federation) -> None:
    with pytest.raises(ConfigError, match="neither linear nor a fully connected network"):
        ef.simulate(FedAvg(), uneven, model=lambda: nn.Sequential(Squashed(4, 1)), rounds=1, kernel="fused")


def test_which_kernel_ran_is_told(uneven: Federation) -> None:
    result = ef.simulate(FedAvg(), uneven, model=ef.models.Logistic(), rounds=1)
    assert result.notes == [Note("kernel", {"phase": "train", "kernel": "fused"})]
    gelu = ef.simulate(FedAvg(), uneven, model=ef.models.MLP(activation="gelu"), rounds=1)
    assert gelu.notes == [Note("kernel", {"phase": "train", "kernel": "traced", "obstacle": "model"})]
    assert "neither linear nor a fully connected network" in str(gelu.notes[0])
    own = ef.simulate(ef.methods.LocalKernel(), uneven, model=ef.models.Logistic(), rounds=1)
    assert own.notes[-1].fields["obstacle"] == "loss"
    with pytest.raises(
        ConfigError,
        match="kernel cannot be 'fused' for local-kernel, phase 'train': compiled loops do not support its loss",
    ):
        ef.simulate(ef.methods.LocalKernel(), uneven, model=ef.models.Logistic(), rounds=1, kernel="fused")
