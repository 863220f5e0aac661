"""A linear layer that stays one matrix product when many models are applied to the same rows.

Under `vmap`, torch's own layer copies the rows once for every model before it multiplies. Here models that share their
rows (the settings of a sweep), and cotangents that share a pass, are laid side by side as columns of one product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Product(torch.autograd.Function):
    """a @ b for matrices."""

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        for_a, for_b = ctx.needs_input_grad
        return (
            Product.apply(gradient, b.transpose(0, 1)) if for_a else None,
            Product.apply(a.transpose(0, 1), gradient) if for_b else None,
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], a: Tensor, b: Tensor) -> tuple[Tensor, int]:
        if in_dims[0] is None:  # many b: their columns side by side
            b = b.movedim(in_dims[1], 1)  # type: ignore[arg-type]
            inner, many, columns = b.shape
            return Product.apply(a, b.reshape(inner, many * columns)).reshape(a.shape[0], many, columns), 1
        if in_dims[1] is None:  # many a: their rows one below the other
            a = a.movedim(in_dims[0], 0)
            many, rows, inner = a.shape
            return Product.apply(a.reshape(many * rows, inner), b).reshape(many, rows, b.shape[1]), 0
        return a.movedim(in_dims[0], 0) @ b.movedim(in_dims[1], 0), 0


class Linear(nn.Linear):
    """As `nn.Linear`."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 2:
            return super().forward(x)
        out: Tensor = Product.apply(x, self.weight.transpose(0, 1))
        return out if self.bias is None else out + self.bias
