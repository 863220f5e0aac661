"""Kernel measures of dependence between predictions and the sensitive attribute, which KFFL drives towards 0.

k(a, b) = exp(-||a - b||^2 / (2 sigma^2)),  the Gaussian kernel
phi(a)  = sqrt(2/D) cos(W'a / sigma + b),   random features, E phi(a)'phi(b) = k(a, b)  (Rahimi and Recht 2007)
G       = sum_i Z_s,i' Z_f,i - n mu_s mu_f',  Z_s = phi_s(s), Z_f = phi_f(f), mu their means over all rows
psi     = ||G||_F^2 / (n-1)^2,              an estimate of HSIC = tr(K_s H K_f H) / (n-1)^2

phi_s and phi_f are drawn independently, so that the expectation of psi over the draws is HSIC for any D. G needs only
sums over clients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from equifed.methods._cells import over_rows
from equifed.protocol import Data, Draw, Task
from equifed.tree import Tree


def frequencies(rng: np.random.Generator, inputs: int, features: int) -> np.ndarray:
    """Draw W and b of phi, float32 [inputs + 1, features]: a column of W is N(0, I), columns of a block are orthogonal.

    Orthogonal columns (Yu et al. 2016) reduce the variance of the estimate; for one input they are plain random
    features.
    """
    blocks = []
    for _ in range(-(-features // inputs)):
        # a random rotation, with columns as long as Gaussian vectors
        rotation, triangle = np.linalg.qr(rng.normal(size=(inputs, inputs)))
        length = np.sqrt(rng.chisquare(inputs, size=inputs))
        blocks.append(rotation * np.sign(np.diag(triangle)) * length)
    W = np.concatenate(blocks, axis=1)[:, :features]
    b = rng.uniform(0, 2 * math.pi, size=(1, features))
    return np.concatenate([W, b]).astype(np.float32)


def feature_draws(features: int, redraw: Literal["round", "once"] = "round") -> Mapping[str, Draw]:
    """Return the draws of phi_s and phi_f, shared by all clients: new every round, or once for the whole run."""
    per: Literal["round", "run"] = "run" if redraw == "once" else "round"
    return {
        "phi_s": Draw(lambda rng, task: frequencies(rng, task.sensitive_size, features), per),
        "phi_f": Draw(lambda rng, task: frequencies(rng, output_size(task), features), per),
    }


def phi(values: Tensor, draw: Tensor, width: Tensor | float) -> Tensor:
    """Return the random features of values [n, d] -> [n, D]."""
    W, b = draw[:-1], draw[-1]
    return math.sqrt(2 / b.shape[0]) * torch.cos(values @ W / width + b)


def output_size(task: Task) -> int:
    """Return the number of columns of `outputs`."""
    return 1 if task.binary or task.kind == "regression" else task.num_classes


def outputs(theta: Tree, data: Data) -> Tensor:
    """Return f: probabilities (classification) or predictions (regression) [n, d]."""
    f = data.task.predict(theta, data.x)
    return f[:, None] if f.dim() == 1 else f


def dependence(s: Tensor, f: Tensor, data: Data, draws: Mapping[str, Tensor], width: Tensor | float) -> Tensor:
    """Return psi of the rows of `data`, by random features: a local regulariser."""
    zs, zf = data.masked(phi(s, draws["phi_s"], width)), data.masked(phi(f, draws["phi_f"], width))
    n = data.n.clamp_min(1)
    # G = Z_s'Z_f - n mu_s mu_f'
    G = over_rows(zs.T, zf) - torch.outer(zs.sum(0), zf.sum(0)) / n
    return G.square().sum() / (n - 1).clamp_min(1) ** 2


def exact_dependence(s: Tensor, f: Tensor, data: Data, width: Tensor | float) -> Tensor:
    """Return HSIC of the rows of `data` with exact kernels: n^2 numbers each."""
    pair = data.mask[:, None] * data.mask
    n = data.n.clamp_min(1)

    def kernel(a: Tensor) -> Tensor:
        a = data.masked(a)
        distance = (a[:, None] - a[None]).square().sum(-1)
        return pair * torch.exp(-distance / (2 * width**2))

    K, L = kernel(s), kernel(f)
    # tr(K H L H) = <K, H L H>,  H L H = L - row means - column means + mean
    mean = L.sum(0) / n
    centred = pair * (L - mean[:, None] - mean[None] + mean.sum() / n)
    return (K * centred).sum() / (n - 1).clamp_min(1) ** 2
