"""The GPU's kernels against plain NumPy in double precision. The same cases run in benchmarks/gpu.py, for machines that
have a GPU and not this suite. Without a GPU, Triton's interpreter runs them: TRITON_INTERPRET=1, slowly."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest
import torch

from equifed import shuffle
from equifed.settings import Local
from equifed.simulator.fused import cuda

from .fused_reference import CASES, RELU, expected, make, problem, trained

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if not cuda.has_triton() or (DEVICE == "cpu" and not os.environ.get("TRITON_INTERPRET")):
    pytest.skip("no GPU with Triton", allow_module_level=True)


@pytest.mark.parametrize("models", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_kernels_equal_plain_numpy(case: str, models: int) -> None:
    network, local, flags = CASES[case]
    rng = np.random.default_rng(len(case))
    p = problem(network, local, [163, 40, 8, 1, 0] if DEVICE == "cuda" else [21, 8, 1, 0], models, rng, **flags)
    theta = rng.uniform(-0.5, 0.5, (len(p.n), models, network.size)).astype(np.float32)
    epochs = range(local.epochs)
    done = trained(cuda, p, theta, epochs, device=DEVICE)
    np.testing.assert_allclose(done, expected(p, theta, epochs), rtol=1e-5, atol=5e-6)
    assert (done[-1] == theta[-1]).all()  # no rows, no steps
    # again, and epoch by epoch: the same bits
    assert trained(cuda, p, theta, epochs, device=DEVICE).tobytes() == done.tobytes()
    assert trained(cuda, p, theta, *(range(e, e + 1) for e in epochs), device=DEVICE).tobytes() == done.tobytes()


@pytest.mark.parametrize("widths", [(4, 1), (4, 3, 1), (40, 33, 1)])
def test_a_diverged_model_shows(widths: tuple[int, ...]) -> None:
    network = make(widths, (RELU,) * (len(widths) - 2), "squared")
    p = problem(network, Local(epochs=2, batch_size=2), [20, 20], 1, np.random.default_rng(0))
    theta = np.ones((2, 1, network.size), np.float32)
    done = trained(cuda, dataclasses.replace(p, rate=1e30), theta, range(2), device=DEVICE)
    assert not np.isfinite(done).all(-1).any()


def test_orders_are_those_of_everyone() -> None:
    n = torch.tensor([0, 1, 2, 3, 5, 16, 17, 100, 257, 1000])
    keys = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, len(n))
    found = cuda.orders(torch.from_numpy(keys).to(DEVICE), 7, n.to(DEVICE), 1000).cpu().numpy()
    epoch = shuffle.fold(keys.view(np.uint64), 7)
    for key, count, order in zip(epoch, n.tolist(), found, strict=True):
        if count:
            np.testing.assert_array_equal(order[:count], shuffle.order(int(key), count))
        assert (order[count:] == 0).all()
