"""Convert a reply to one vector of integers, which can be masked, and the sum of such vectors to a reply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from equifed import fixed_point, tree
from equifed.flower.masks import layout
from equifed.flower.records import BadMessage
from equifed.protocol import Record


class Vector(NamedTuple):
    """The encoding of one request's reply."""

    kind: str
    """Flower's message type of the request."""
    like: Record
    """A reply of the right names, shapes and types."""
    places: Mapping[str, int]
    """Binary places by field. Default: `fixed_point.PLACES`."""

    def _parts(self) -> list[tuple[str, torch.Tensor, int]]:
        """Return name, tensor and binary places of every part, in an order that is the same for all silos."""
        return [
            (name, leaf, self.places.get(field, fixed_point.PLACES))
            for field in sorted(self.like)
            for name, leaf in sorted(tree.to_named({field: self.like[field]}).items())
        ]

    @property
    def size(self) -> int:
        return sum(leaf.numel() for _, leaf, _ in self._parts())

    @property
    def layout(self) -> bytes:
        parts = [(name, str(leaf.dtype), tuple(leaf.shape), places) for name, leaf, places in self._parts()]
        return layout(self.kind, parts)

    def encode(self, clients: int) -> np.ndarray:
        """Encode `like` as integers [m], for a sum over `clients` clients."""
        vectors = [torch.zeros(0, dtype=torch.int64)]
        for name, leaf, places in self._parts():
            try:
                vectors.append(fixed_point.encode(leaf.detach().cpu().reshape(-1), clients, places))
            except fixed_point.OutOfRange as error:
                raise BadMessage(f"has {name} {error}") from error
        return torch.cat(vectors).numpy()

    def decode(self, total: np.ndarray) -> Record:
        """Decode the sum of replies from the sum of their integers."""
        values, begin = {}, 0
        for name, leaf, places in self._parts():
            part = torch.from_numpy(total[begin : begin + leaf.numel()]).reshape(leaf.shape)
            values[name] = fixed_point.decode(part, leaf.dtype, places)
            begin += leaf.numel()
        summed: Record = tree.from_named(self.like, values)
        return summed
