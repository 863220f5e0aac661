"""What a method does after each step of local training, and passes of its own, against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
from contract.sketches import Projected
from methods.plain import client, sigmoid

import equifed as ef
from equifed.federation import Federation


@pytest.mark.parametrize("kernel", ["auto", "clients", "traced"])
def test_steps_of_three_passes_stay_in_a_ball(uneven: Federation, kernel: str) -> None:
    rate, radius = 0.5, 0.15
    ran = ef.simulate(
        Projected(radius), uneven, model=ef.models.Logistic(), rounds=2, seeds=[0], kernel=kernel,
        local=ef.Local(epochs=1, batch_size=None, learning_rate=rate),
    )  # fmt: skip
    theta = np.zeros(uneven.rows.x.shape[1] + 1)
    for _ in range(2):
        total, rows = np.zeros_like(theta), 0
        for k in range(uneven.num_clients):
            x, y, _ = client(uneven, k)
            x, own = np.column_stack([x, np.ones(len(x))]), theta
            for _ in range(3 if len(x) else 0):
                own = own - rate * x.T @ (sigmoid(x @ own) - y) / len(y)
                away = own - theta
                own = theta + away * min(1.0, radius / np.linalg.norm(away))
            total, rows = total + len(x) * (own - theta), rows + len(x)
        assert np.linalg.norm(total) > 0
        theta = theta + total / rows
    weight, bias = ran.parameters[0].values()
    np.testing.assert_allclose(np.r_[weight[0], bias], theta, rtol=1e-5, atol=1e-6)
    note = next(str(note) for note in ran.notes if note.kind == "kernel")
    assert "the method changes the parameters after each step" in note
