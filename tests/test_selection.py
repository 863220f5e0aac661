"""Cutting off the largest values, against NumPy's sort."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from equifed.edge_popup import subnetwork
from equifed.selection import cut

RNG = np.random.default_rng(0)
VALUES = {
    "uniform": RNG.uniform(-1, 1, 500),
    "few different": RNG.integers(-3, 4, 500) / 8,
    "one tie at the border": np.concatenate([np.arange(6), np.full(5, 6.0), np.arange(7, 12)]),
    "equal": np.full(40, 0.25),
    "zeros of both signs": np.array([0.0, -0.0, 1.0, -1.0, -0.0, 0.0]),
    "of all sizes": np.concatenate([10.0 ** RNG.uniform(-44, 38, 300), -(10.0 ** RNG.uniform(-44, 38, 300))]),
    "far apart": np.array([-np.inf, -3e38, -1e-45, 0, 1e-45, 1, 3e38, np.inf, np.inf]),
    "one": np.array([3.0]),
}


def kept_by_sorting(values: np.ndarray, number: int) -> np.ndarray:
    return values >= np.sort(values)[len(values) - number]


@pytest.mark.parametrize("name", VALUES)
def test_the_cut_keeps_what_sorting_keeps(name: str) -> None:
    values = RNG.permutation(VALUES[name].astype(np.float32))
    numbers = np.unique(np.linspace(1, len(values), 60).astype(int))
    lines = torch.from_numpy(np.tile(values, (len(numbers), 1)))
    cuts = cut(lines, torch.from_numpy(numbers))
    for number, mask in zip(numbers, (lines >= cuts[:, None]).numpy(), strict=True):
        np.testing.assert_array_equal(mask, kept_by_sorting(values, number))


def test_nan_ranks_highest_as_in_a_sort() -> None:
    values = torch.tensor([1.0, torch.nan, 3.0, 2.0])
    kept = [(values >= cut(values, torch.tensor(number))).tolist() for number in (1, 2, 3)]
    # NaN takes a place among the largest, but reaches no cut
    assert kept == [[False] * 4, [False, False, True, False], [False, False, True, True]]


def test_every_lane_and_setting_has_its_own_number() -> None:
    values = RNG.integers(0, 50, (3, 4, 200)).astype(np.float32)
    numbers = RNG.integers(1, 201, (3, 4))
    of_lanes: Any = vmap(vmap(cut))
    pairs = zip(values.reshape(12, 200), numbers.ravel(), strict=True)
    expected = np.stack([kept_by_sorting(*pair) for pair in pairs]).reshape(values.shape)
    lines = torch.from_numpy(values)
    np.testing.assert_array_equal(lines >= of_lanes(lines, torch.from_numpy(numbers))[..., None], expected)
    # settings share the values, lanes the numbers
    shared = vmap(vmap(cut, (None, 0)), (0, None))(lines[:, 0], torch.from_numpy(numbers[0]))
    for lane in range(3):
        for setting, number in enumerate(numbers[0]):
            expected = kept_by_sorting(values[lane, 0], number)
            np.testing.assert_array_equal(values[lane, 0] >= float(shared[lane, setting]), expected)


def test_a_traced_step_selects_anew() -> None:
    """The gradient of a lane's network by its scores, traced with some scores and run with others that have ties."""
    w, x = torch.ones(6, 5), torch.from_numpy(RNG.normal(size=(3, 5)).astype(np.float32))

    def slope(scores: torch.Tensor) -> torch.Tensor:
        return grad(lambda s: (subnetwork({"l": w}, {"l": s}, 0.4)["l"] @ x.T).square().sum())(scores)

    first, other = (torch.from_numpy(RNG.integers(0, 9, (2, 6, 5)).astype(np.float32)) for _ in range(2))
    traced = make_fx(vmap(slope))(first)(other)
    for lane in range(2):
        flat = other[lane].numpy().ravel()
        network = kept_by_sorting(flat, 12).reshape(6, 5).astype(np.float32)
        np.testing.assert_allclose(traced[lane], 2 * (network @ x.numpy().T) @ x.numpy(), rtol=1e-5, atol=1e-6)
