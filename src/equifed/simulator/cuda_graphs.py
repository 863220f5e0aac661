"""Steps on a GPU: several are captured in one CUDA graph, which makes launching kernels cheap."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

STEPS = 10
"""Steps per graph; the remainder of a segment is replayed from a graph of one step."""


class CudaSteps:
    """A runner of a segment's steps, which replays CUDA graphs over fixed buffers."""

    def __init__(self, step: Callable[..., list[Tensor]]) -> None:
        self._step = step
        self._graphs: dict[int, _CapturedSteps] = {}

    def __call__(self, carry: list[Tensor], same: list[Tensor], batches: list[Tensor]) -> list[Tensor]:
        total, done = len(batches[0]), 0
        for size in (STEPS, 1):
            while total - done >= size:
                part = [values[done : done + size] for values in batches]
                if size not in self._graphs:
                    self._graphs[size] = _CapturedSteps(self._step, size, carry, same, part)
                carry = self._graphs[size].replay(carry, same, part)
                done += size
        return [leaf.clone() for leaf in carry]


class _CapturedSteps:
    """A CUDA graph of `size` steps, over buffers of the shapes first seen."""

    def __init__(
        self,
        step: Callable[..., list[Tensor]],
        size: int,
        carry: list[Tensor],
        same: list[Tensor],
        batches: list[Tensor],
    ) -> None:
        self._inputs = [torch.empty_like(value).copy_(value) for value in (*carry, *same, *batches)]
        first, second = len(carry), len(carry) + len(same)
        begin, fixed, batch = self._inputs[:first], self._inputs[first:second], self._inputs[second:]

        def steps() -> list[Tensor]:
            values = begin
            for i in range(size):
                values = step(*values, *fixed, *(column[i] for column in batch))
            return values

        # libraries allocate their workspaces on first use, which must not happen while capturing
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            steps()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._outputs = steps()

    def replay(self, carry: list[Tensor], same: list[Tensor], batches: list[Tensor]) -> list[Tensor]:
        for buffer, value in zip(self._inputs, (*carry, *same, *batches), strict=True):
            buffer.copy_(value)
        self._graph.replay()
        return self._outputs
