"""FCFL: Cui et al., Addressing Algorithmic Disparity and Performance Inconsistency in Federated Learning, NeurIPS 2021.

client k:  loss_k = mean loss of theta on all its rows, d_k = its gap in the mean of sigmoid(10 z), and both gradients
server:    a_l = softmax(loss_k / delta_l),  a_g = softmax((d_k - epsilon) / delta_g)           (smooth maxima over k)
           g_l = sum_k a_lk grad loss_k,     g_g = sum_k a_gk grad d_k
stage 1:   g = u g_l + v g_g on the simplex:  largest g.g_l  if max d_k <= epsilon,
           else largest g.g_g  subject to  g.g_l >= 0
stage 2:   g = sum_j a_j G_j on the simplex, G = every grad loss_k, and g_g (0 if max d_k <= epsilon):
           largest g.(mean of grad loss_k)  subject to  g.G_j >= 0 for all j;  that mean itself if infeasible
           theta <- theta - step g;  delta <- 0.01 delta whenever 0.1 ||g|| <= delta, down to 1e-4

One exchange is one full-batch gradient: `Local` is not used, and FCFL takes many more rounds than methods that train
locally. z is the logit, and d_k is over the criterion's rows (y = 1 for equal opportunity); with several groups it is
the gap between the highest and the lowest. A client without two groups has no d_k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equifed import tree
from equifed.gradients import grad_and_value
from equifed.methods._cells import AIMS, DIFFERENCES, gap, logit
from equifed.methods._programme import best_weights
from equifed.methods.hyper import hyper
from equifed.protocol import WRONG, Bound, Data, Knob, Method, Phase, Record, Task, Update, worst_loss
from equifed.tree import Tree

SHARPNESS, SMALLEST = 10.0, 1e-4
"""Slope of the sigmoid that replaces a decision; smallest delta."""


class Server(NamedTuple):
    theta: Tree
    """theta, the global model."""
    delta: Tensor
    """(delta_l, delta_g), the smoothness of the maxima over clients."""
    t: Tensor
    """Number of rounds so far."""
    second: Tensor
    """First round of stage 2."""
    fallback: Tensor
    """Number of rounds of stage 2 in which no direction lowered every objective."""
    feasible: Tensor
    """1 if max d_k <= epsilon for theta before the last round."""


@dataclass(frozen=True)
class FCFL(Method):
    """Lower the worst client's loss and disparity together, then all clients' losses without harming one."""

    name: ClassVar[str] = "fcfl"
    label_kinds: ClassVar[tuple[str, ...]] = ("binary",)
    sweepable: ClassVar[bool] = False
    knob: ClassVar[Knob | None] = Knob("epsilon", 1e-3, 0.3, AIMS, fairer="less", neutral=1.0)

    epsilon: float = hyper(0.01, low=0)
    """Largest gap on each client's rows."""
    fairness: str = hyper("equal_opportunity_difference", choices=DIFFERENCES)
    """Gap between groups: in true positive rate, in both error rates (the larger), or in selection rate."""
    step_size: float = hyper(0.1, low=0)
    """Step of theta along the common direction."""
    first_stage: float = hyper(0.5, low=0, high=1)
    """Share of the rounds in stage 1."""
    smoothness: float = hyper(0.5, low=SMALLEST)
    """delta at the start of each stage."""

    @property
    def round(self) -> tuple[Phase, ...]:
        up = ("loss", "loss_gradient", "gap", "gap_gradient", "rows", "defined")
        updates = {"loss_gradient": Update(), "gap_gradient": Update()}
        bounds = {"loss": Bound(low=0, norm=worst_loss, alike=WRONG), "gap": Bound(0, 1)}
        return (Phase("gradients", ("theta",), up, self.gradients, self.step, bounds=bounds, updates=updates),)

    def init(self, task: Task, parameters: Tree) -> Server:
        zero = tree.zeros(parameters)
        delta = torch.stack([zero, zero]) + self.smoothness
        return Server(parameters, delta, zero, zero + round(task.rounds * self.first_stage), zero, zero)

    def gradients(self, down: Record, state: Tree, data: Data) -> tuple[Record, Tree]:
        def loss(theta: Tree) -> Tensor:
            return data.mean(data.task.row_loss(theta, data.x, data.y))

        def disparity(theta: Tree) -> tuple[Tensor, Tensor]:
            # |d_k|: difference between groups in the mean of sigmoid(10 z)
            soft = torch.sigmoid(SHARPNESS * logit(theta, data))
            return gap(soft, torch.ones_like(data.mask), data, self.fairness)

        loss_gradient, value = grad_and_value(loss)(down["theta"])
        gap_gradient, (width, defined) = grad_and_value(disparity, has_aux=True)(down["theta"])
        return {
            "loss": value,
            "loss_gradient": loss_gradient,
            "gap": width,
            "gap_gradient": gap_gradient,
            "rows": data.n,
            "defined": defined.to(data.mask.dtype),
        }, state

    def step(self, server: Server, replies: Record, validation: Data | None) -> Server:
        answered = (replies["present"] > 0) & (replies["rows"] > 0)
        if not bool(answered.any()):
            return server
        t, second = int(server.t), int(server.second)
        # stage 2 begins with the smoothness of stage 1
        delta = np.full(2, float(self.smoothness)) if t == second else server.delta.double().cpu().numpy()
        losses, gaps, defined = (replies[name][answered].double().cpu().numpy() for name in ("loss", "gap", "defined"))
        of_loss, of_gap = (_rows(replies[name], answered) for name in ("loss_gradient", "gap_gradient"))
        excess = np.where(defined > 0, gaps, -np.inf) - float(self.epsilon)
        violated = bool((excess > 0).any())
        g_l = _smooth(losses, delta[0]) @ of_loss
        g_g = _smooth(excess, delta[1]) @ of_gap if defined.any() else np.zeros_like(g_l)
        direction = first_direction(g_l, g_g, violated) if t < second else second_direction(of_loss, g_g * violated)
        missed = direction is None
        if direction is None:
            direction = of_loss.mean(0)
        norm = float(np.linalg.norm(direction))
        # delta <- 0.01 delta whenever 0.1 ||g|| <= delta
        delta = np.where(0.1 * norm <= delta, np.maximum(0.01 * delta, SMALLEST), delta)
        like = tree.prototype(server.theta)
        moved = _like(torch.from_numpy(direction).to(like), server.theta)
        return Server(
            tree.add_scaled(server.theta, moved, -float(self.step_size)),
            torch.from_numpy(delta).to(like),
            server.t + 1,
            server.second,
            server.fallback + float(missed),
            torch.ones_like(server.t) * float(not violated),
        )

    def observe(self, server: Server) -> dict[str, Tensor]:
        return {
            "delta_loss": server.delta[0],
            "delta_gap": server.delta[1],
            "fallbacks": server.fallback,
            "feasible": server.feasible,
        }


def first_direction(g_l: np.ndarray, g_g: np.ndarray, violated: bool) -> np.ndarray:
    """Return the direction of stage 1, a point between both gradients; the step is theta - step * direction."""
    G = np.stack([g_l, g_g])
    products = G @ G.T
    # (u g_l + v g_g).g_l >= 0 is always feasible: u = 1
    u = _mixture(products[1], products[:1]) if violated else _mixture(products[0], None)
    assert u is not None
    return u @ G


def second_direction(of_loss: np.ndarray, g_g: np.ndarray) -> np.ndarray | None:
    """Return the direction of stage 2, which lowers the mean loss most without raising any; None if infeasible."""
    G = np.concatenate([of_loss, g_g[None]])
    a = _mixture(G @ of_loss.mean(0), G @ G.T)
    return None if a is None else a @ G


def _mixture(worth: np.ndarray, limits: np.ndarray | None) -> np.ndarray | None:
    """Return argmax worth.a over the simplex with limits a >= 0; None if infeasible."""

    def scale(values: np.ndarray) -> np.ndarray:  # the solver's tolerances are absolute
        return values / max(float(np.abs(values).max()), 1e-300)

    above: dict[str, Any] = {} if limits is None else {"A_ub": -scale(limits), "b_ub": np.zeros(len(limits))}
    return best_weights(scale(worth), np.ones(len(worth)), **above)


def _smooth(values: np.ndarray, delta: float) -> np.ndarray:
    """Return softmax(values / delta): the weights of a smooth maximum."""
    exponent = (values - values.max()) / delta
    return np.exp(exponent) / np.exp(exponent).sum()


def _rows(gradient: Tree, chosen: Tensor) -> np.ndarray:
    """Return the chosen clients' gradients as rows [K, P]."""
    return torch.cat([leaf[chosen].flatten(1) for leaf in tree.leaves(gradient)], 1).double().cpu().numpy()


def _like(flat: Tensor, theta: Tree) -> Tree:
    """Return a vector [P] as a tree with theta's shapes."""
    leaves, structure = tree.flatten(theta)
    parts = flat.split([leaf.numel() for leaf in leaves])
    return tree.unflatten([part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)], structure)
