"""Models with a frozen part, found by name: a body that was trained elsewhere, and a head."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

INPUTS, FEATURES = 4, 6


def body(inputs: int = INPUTS, seed: int = 0) -> nn.Sequential:
    """A body whose values are written down by NumPy: the same in every process and version."""
    rng = np.random.default_rng(seed)
    made = nn.Sequential(
        nn.Linear(inputs, FEATURES), nn.BatchNorm1d(FEATURES), nn.Tanh(), nn.Dropout(0.5), nn.Linear(FEATURES, FEATURES)
    )
    with torch.no_grad():
        for _, value in sorted(made.state_dict().items()):
            if value.is_floating_point():
                value.copy_(torch.from_numpy(np.asarray(rng.uniform(0.2, 1.0, tuple(value.shape)))))
        made[4].weight.mul_(torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0]))
    return made.requires_grad_(False)


class Pretrained(nn.Module):
    """A frozen body and a head that is trained."""

    inputs = INPUTS

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = body(self.inputs), nn.Linear(FEATURES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.head(torch.relu(self.body(x)))
        return made


class OfThree(Pretrained):
    inputs = 3


def features(x: np.ndarray, seed: int = 0) -> np.ndarray:
    """What the head sees, by NumPy."""
    of = {name: value.double().numpy() for name, value in body(x.shape[1], seed).state_dict().items()}
    z = x.astype(np.float64) @ of["0.weight"].T + of["0.bias"]
    z = (z - of["1.running_mean"]) / np.sqrt(of["1.running_var"] + 1e-5) * of["1.weight"] + of["1.bias"]
    made: np.ndarray = np.maximum(np.tanh(z) @ of["4.weight"].T + of["4.bias"], 0)
    return made
