"""Arithmetic on trees."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from equifed import tree


class Pair(NamedTuple):
    a: Tensor
    b: tuple[Tensor, ...]


def nest() -> Pair:
    return Pair(torch.arange(6.0).reshape(2, 3), ({"x": torch.ones(2), "y": [torch.zeros(2, 1)]}, ()))  # type: ignore[arg-type]


def test_map_keeps_the_structure_and_goes_by_name() -> None:
    doubled = tree.map(lambda leaf: 2 * leaf, nest())
    assert type(doubled) is Pair
    assert doubled.b[1] == ()
    assert doubled.b[0]["y"][0].shape == (2, 1)  # type: ignore[call-overload]
    one, other = {"a": torch.ones(1), "b": torch.zeros(1)}, {"b": torch.full((1,), 3.0), "a": torch.full((1,), 5.0)}
    assert {name: float(value) for name, value in tree.add(one, other).items()} == {"a": 6, "b": 3}
    with pytest.raises(ValueError, match="Trees differ"):
        tree.add(one, {"a": torch.ones(1)})
    with pytest.raises(ValueError, match=r"shorter|longer"):
        tree.add((torch.ones(1),), (torch.ones(1), torch.ones(1)))


def test_flat_and_back_and_by_path() -> None:
    values, structure = tree.flatten(nest())
    assert len(values) == 3
    again = tree.unflatten(values, structure)
    assert again.b[0]["x"] is values[1]
    assert list(tree.to_named(nest(), "server")) == ["server.a", "server.b.0.x", "server.b.0.y.0"]
    found = tree.from_named(nest(), {path: 7 * leaf for path, leaf in tree.to_named(nest()).items()})
    assert torch.equal(found.a, 7 * nest().a)
    assert tree.to_named(torch.ones(1), "theta") == {"theta": torch.ones(1)}


def test_vectorised_is_vmap() -> None:
    def function(pair: Pair, scale: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return pair.a.sum() * scale["by"], {"own": pair.b[0]["x"] + 1}  # type: ignore[call-overload]

    total, more = tree.vmap_over(function, nest(), {"by": torch.tensor([1.0, 10.0])})
    assert total.tolist() == [3, 120]
    assert more["own"].tolist() == [2, 2]


def test_split_by_names() -> None:
    model = {"body": torch.ones(2), "head.weight": torch.zeros(3), "head.bias": torch.zeros(1)}
    head, body = tree.split(model, {"head.weight", "head.bias"})
    assert list(head) == ["head.weight", "head.bias"]
    assert list(body) == ["body"]
    assert {**body, **head}.keys() == model.keys()
