"""The most accurate decisions with rates that differ by at most a stated gap between groups: exact, by small linear
programmes over mixtures of rules.

A rule is described by its confusion counts M[g, y, j], the mass of rows of group g and label y that it decides as j.
Accuracy and rates are linear in them, so the best mixture of given rules is a linear programme:

    maximise  sum_t share_t <W, M_t>   subject to   z_q <= sum_t share_t rate_qg(M_t) <= z_q + gap   for all q, g

W is 1 for j = y (divided by the number of rows) for accuracy. The multipliers p_qg of the rates turn it into the
weights W - sum_q p_qg d rate_qg / dM; the next rule to add is the best one with these weights. All is NumPy; `per_lane`
runs it inside vectorised computations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

NOTIONS = ("demographic_parity", "equal_opportunity", "equalized_odds")
MET = 1e-9
"""Largest excess of a gap over its bound that rounding may cause."""


def per_lane(work: Callable[..., tuple[np.ndarray, ...]], *values: Tensor) -> tuple[Tensor, ...]:
    """Return work(*values as arrays), inside a vmap for each lane: for computations without tensor operations."""
    results: tuple[Tensor, ...] = _PerLane.apply(work, *values)
    return results


class _PerLane(torch.autograd.Function):
    @staticmethod
    def forward(work: Callable[..., tuple[np.ndarray, ...]], *values: Tensor) -> tuple[Tensor, ...]:
        results = work(*(value.detach().cpu().numpy() for value in values))
        return tuple(torch.from_numpy(np.array(result)).to(values[0].device) for result in results)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Save nothing: there is no gradient."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], work: Any, *values: Tensor) -> tuple[tuple[Tensor, ...], Any]:
        def lane(i: int) -> tuple[Tensor, ...]:
            own = (v if dim is None else v.select(dim, i) for v, dim in zip(values, in_dims[1:], strict=True))
            return per_lane(work, *own)

        stacked = tuple(torch.stack(part) for part in zip(*map(lane, range(info.batch_size)), strict=True))
        return stacked, (0,) * len(stacked)


# -- rates -------------------------------------------------------------------------------------------------------------


class Rates(NamedTuple):
    """The rates that a notion compares, as linear functions of confusion counts."""

    slope: np.ndarray
    """d rate / d M [Q, G, C, C]; 0 where the rate is undefined."""
    compared: np.ndarray
    """True for groups that have the rate, if at least two have it [Q, G]."""

    def of(self, confusion: np.ndarray) -> np.ndarray:
        """Return the rates [..., Q, G] of confusion counts [..., G, C, C]."""
        return np.einsum("qgyj,...gyj->...qg", self.slope, confusion)

    def gap(self, confusion: np.ndarray) -> float:
        """Return the largest difference between two groups; 0 if no two can be compared."""
        rates = self.of(confusion)
        high = np.where(self.compared, rates, -np.inf).max(1)
        low = np.where(self.compared, rates, np.inf).min(1)
        return float(np.maximum(high - low, 0).max())


def cells_of(notion: str, classes: int) -> np.ndarray:
    """Return the rates that the notion compares, each as 1 for the labels and decisions that it counts [Q, C, C].

    Two classes: the share of decisions 1 among all rows, among those with the label 1, or within each label. More: the
    share of each decision, of the right decision within each label, or of each decision within each label.
    """
    one = np.eye(classes)
    labels = [np.ones(classes)] if notion == "demographic_parity" else [*one]
    cells = [np.outer(label, decision) for label in labels for decision in one]
    if notion == "equal_opportunity":
        cells = [cell for cell in cells if np.trace(cell)]
    if classes == 2:  # the other share is one minus this one
        cells = [cell for cell in cells if cell[:, 1].any()]
    return np.stack(cells)


def rates_of(notion: str, mass: np.ndarray) -> Rates:
    """Return the notion's rates for groups with this mass by label [G, C]."""
    cells = cells_of(notion, mass.shape[1])
    number = cells.max(-1) @ mass.T  # [Q, G]
    there = number > 0
    slope = cells[:, None] * (there / np.where(there, number, 1.0))[..., None, None]
    return Rates(slope, there & (there.sum(1, keepdims=True) >= 2))


# -- the linear programme ----------------------------------------------------------------------------------------------


class Mixture(NamedTuple):
    shares: np.ndarray
    """Share of each rule [N]; they sum to 1 in every part."""
    prices: np.ndarray
    """Multipliers of the rates [Q, G]: positive where a group's rate is at its upper limit."""
    value: float
    """<W, M> of the mixture."""


def best_mixture(confusion: np.ndarray, part: np.ndarray, weights: np.ndarray, rates: Rates, gap: float) -> Mixture:
    """Return the best mixture of rules [N, G, C, C]. A rule belongs to a part [N] of the decisions, such as one
    group's, and shares are normalised within each part. There must be a feasible mixture."""
    from scipy.optimize import linprog  # here, so that the simulator needs only torch and NumPy

    N, Q = len(confusion), len(rates.slope)
    q, g = np.nonzero(rates.compared)
    of_rule, common = rates.of(confusion)[:, q, g].T, np.eye(Q)[q]
    worth = np.einsum("gyj,ngyj->n", weights, confusion)
    scale = max(float(np.abs(worth).max()), 1e-300)  # the solver's tolerances are absolute
    found = linprog(
        -np.concatenate([worth / scale, np.zeros(Q)]),
        A_ub=np.block([[of_rule, -common], [-of_rule, common]]),  # above z + gap, below z
        b_ub=np.repeat([gap, 0.0], len(q)),
        A_eq=np.hstack([np.eye(part.max() + 1)[part].T, np.zeros((part.max() + 1, Q))]),
        b_eq=np.ones(part.max() + 1),
        bounds=[(0, None)] * N + [(None, None)] * Q,
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if not found.success:
        raise ArithmeticError(f"The mixture's linear programme was not solved: {found.message}")
    shares = np.clip(found.x[:N], 0, None)
    shares /= np.bincount(part, shares)[part]
    prices = np.zeros((Q, rates.slope.shape[1]))
    above, below = -scale * found.ineqlin.marginals.reshape(2, -1)
    prices[q, g] = above - below
    return Mixture(shares, prices, float(worth @ shares))


# -- two classes: thresholds on a score --------------------------------------------------------------------------------


class Thresholds(NamedTuple):
    """The decisions for two classes by thresholds on binned scores, fitted to a gap."""

    accept: np.ndarray
    """Probability of the decision 1, by group and bin [G, B]."""
    prices: np.ndarray
    value: float
    """<W, M> of these decisions."""


def own_decisions(groups: int, bins: int) -> np.ndarray:
    """Return the threshold one half, as an acceptance by group and bin [G, B]."""
    return np.tile((np.arange(bins) >= bins / 2).astype(np.float64), (groups, 1))


def confusion_of(accept: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """Return M [G, 2, 2] for the mass by group, label and bin [G, 2, B]."""
    one = np.einsum("gb,gyb->gy", accept, mass)
    return np.stack([mass.sum(-1) - one, one], -1)


def calibrate(counts: np.ndarray, calibration: str) -> np.ndarray:
    """Return the mass by group, label and bin [G, 2, B] for choosing decisions: rows of a bin times P(y | bin, group).

    "isotonic": the nondecreasing probabilities that fit the labels best, by group. Mixtures of thresholds on them are
    the concave hull of the ROC curve, and have exactly the fitted rates and accuracy on the counted rows.
    "none": the score itself, the middle of the bin.
    """
    rows, bins = counts.sum(1), counts.shape[-1]
    if calibration == "none":
        eta = np.broadcast_to((np.arange(bins) + 0.5) / bins, rows.shape)
    else:
        from scipy.optimize import isotonic_regression

        eta = np.zeros_like(rows)
        for g, filled in enumerate(rows > 0):
            if filled.any():
                share = counts[g, 1, filled] / rows[g, filled]
                eta[g, filled] = isotonic_regression(share, weights=rows[g, filled]).x
    return np.stack([rows * (1 - eta), rows * eta], 1)


def fit_thresholds(
    mass: np.ndarray, weights: np.ndarray, rates: Rates, gap: float, moves: np.ndarray | None = None
) -> Thresholds:
    """Return the best mixture of thresholds for each group, from the mass by group, label and bin [G, 2, B], in which
    the share of the label 1 must not fall from bin to bin.

    moves [G]: True for groups with decisions that may change. Default: the groups that the gap compares.
    """
    G, _, B = mass.shape
    rows = mass.sum(1)
    moves = rates.compared.sum(0) > 0 if moves is None else moves
    cuts: list[tuple[int, int]] = []
    for g in range(G):
        if not moves[g]:
            cuts.append((g, B // 2))
            continue
        filled = np.flatnonzero(rows[g] > 0)
        eta = mass[g, 1, filled] / rows[g, filled]
        # there is no threshold between bins of equal probability: they are decided alike
        ends = np.flatnonzero(np.diff(eta, prepend=-1.0) > MET)
        low, high = np.r_[0, filled[ends[1:] - 1] + 1, filled[-1] + 1], np.r_[filled[ends], B]
        # in a range of empty bins, take the threshold nearest to one half
        cuts += [(g, int(cut)) for cut in np.clip(B // 2, low, high)]
    part, cut = np.array(cuts).T
    confusion = np.zeros((len(cuts), G, 2, 2))
    above = np.concatenate([np.cumsum(mass[..., ::-1], -1)[..., ::-1], np.zeros((G, 2, 1))], -1)  # [G, 2, B + 1]
    confusion[np.arange(len(cuts)), part, :, 1] = above[part, :, cut]
    confusion[np.arange(len(cuts)), part, :, 0] = above[part, :, 0] - above[part, :, cut]
    best = best_mixture(confusion, part, weights, rates, gap)
    accept = np.zeros((G, B + 1))
    np.add.at(accept, (part, cut), best.shares)
    return Thresholds(np.cumsum(accept, 1)[:, :B].clip(0, 1), best.prices, best.value)


# -- rules for any number of classes -----------------------------------------------------------------------------------


def accuracy_weights(mass: np.ndarray) -> np.ndarray:
    """Return W of the accuracy [G, C, C], from the mass by group and label [G, C]."""
    G, C = mass.shape
    return np.broadcast_to(np.eye(C) / max(mass.sum(), 1.0), (G, C, C))


def constant_rules(groups: int, classes: int) -> np.ndarray:
    """Return the weights of the rules that decide everything as one class [C, G, C, C]: they have no gap."""
    return np.broadcast_to(np.eye(classes)[:, None, None, :], (classes, groups, classes, classes)).copy()


def apply_prices(weights: np.ndarray, rates: Rates, prices: np.ndarray) -> np.ndarray:
    """Return the weights [G, C, C] for which the best rule improves a mixture with these prices most."""
    return weights - np.einsum("qg,qgyj->gyj", prices, rates.slope)


class MixtureStep(NamedTuple):
    """The best mixture of all known rules, and the rule to ask for next."""

    shares: np.ndarray
    """Shares of the known rules, then of the constant ones [N + C]."""
    weights: np.ndarray
    """Weights of the next rule [G, C, C]."""
    prices: np.ndarray
    value: float
    allowance: float
    """Addition of the multipliers to the value of the best rule with these weights; the sum bounds every value."""


def search(known: np.ndarray, objective: np.ndarray, notion: str, gap: float) -> MixtureStep:
    """Take a step of column generation (Dantzig and Wolfe 1960), from the confusion counts of known rules
    [N, G, C, C]. Constant rules are always included, so that there is a feasible mixture."""
    C = known.shape[-1]
    mass = known[0].sum(-1)
    constant = mass[None, :, :, None] * np.eye(C)[:, None, None, :]
    rates = rates_of(notion, mass)
    rules = np.concatenate([known, constant])
    best = best_mixture(rules, np.zeros(len(rules), dtype=int), objective, rates, gap)
    allowance = gap * float(np.maximum(best.prices, 0).sum())
    return MixtureStep(best.shares, apply_prices(objective, rates, best.prices), best.prices, best.value, allowance)


class RuleMixture(NamedTuple):
    """The rules for any number of classes; each row draws one of them."""

    weights: np.ndarray
    """Weights of each rule [M, G, C, C]; all 0: the most probable class."""
    shares: np.ndarray
    """Probability of each rule [M]."""


# -- rows in one place -------------------------------------------------------------------------------------------------


class BinnedRows:
    """The rows of one or all clients for two classes, counted by group, label and bin of the score [G, 2, B]."""

    def __init__(self, counts: np.ndarray, *, notion: str, calibration: str) -> None:
        self.counts, self.mass = counts, calibrate(counts, calibration)
        self.judged = self.mass if calibration == "none" else counts
        """Mass for gap and accuracy: by the actual labels, or by those expected from the scores."""
        self.rates = rates_of(notion, self.judged.sum(-1))

    def best(self, weights: np.ndarray, gap: float) -> Thresholds:
        """Return the best rule with these weights [G, 2, 2] within the gap. If all weights are 0, maximise accuracy;
        decisions stay unchanged if they meet the gap, and for groups that it does not compare."""
        own = own_decisions(*self.counts.shape[::2])
        moves = None
        if weights.any():
            moves = self.counts.sum((1, 2)) > 0
        elif self.rates.gap(confusion_of(own, self.judged)) <= gap + MET:
            return Thresholds(own, np.zeros(self.rates.compared.shape), 0.0)
        else:
            weights = accuracy_weights(self.judged.sum(-1))
        return fit_thresholds(self.mass, weights, self.rates, gap, moves)

    def confusion(self, rule: Thresholds) -> np.ndarray:
        """Return the confusion counts [2, G, 2, 2] for gap and accuracy, and by the actual labels."""
        return np.stack([confusion_of(rule.accept, self.judged), confusion_of(rule.accept, self.counts)])

    def mix(self, rules: list[Thresholds], shares: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the acceptance [G, B] of rules with these shares."""
        return (np.tensordot(shares, np.stack([rule.accept for rule in rules]), 1).clip(0, 1),)


class ScoredRows:
    """The rows of a client, with the probability of each class and a label [n, C], and a group (negative: no row)."""

    def __init__(
        self,
        eta: np.ndarray,
        label: np.ndarray,
        s: np.ndarray,
        *,
        groups: int,
        notion: str,
        calibration: str,
        steps: int,
    ) -> None:
        self.eta, self.label, self.s = eta[s >= 0], label[s >= 0], s[s >= 0]
        self.judged = self.eta if calibration == "none" else self.label
        self.groups, self.notion, self.steps = groups, notion, steps

    def best(self, weights: np.ndarray, gap: float) -> RuleMixture:
        """Return the best rule, as in `BinnedRows`, by column generation if the gap is a restriction."""
        asked = [np.zeros_like(weights), weights]
        known = [self._count(self.judged, each) for each in asked]
        mass = known[0].sum(-1)
        rates = rates_of(self.notion, mass)
        at_first = int(weights.any())
        if rates.gap(known[at_first]) <= gap + MET:
            return RuleMixture(asked[at_first][None], np.ones(1))
        objective, bound = weights if at_first else accuracy_weights(mass), np.inf
        for _ in range(self.steps):
            found = search(np.stack(known), objective, self.notion, gap)
            response = self._count(self.judged, found.weights)
            bound = min(bound, float((found.weights * response).sum()) + found.allowance)
            if bound - found.value <= MET * np.abs(objective).max():
                break
            asked, known = [*asked, found.weights], [*known, response]
        shares = search(np.stack(known), objective, self.notion, gap).shares
        rules = np.concatenate([np.stack(asked), constant_rules(*weights.shape[:2])])
        return RuleMixture(rules[shares > 0], shares[shares > 0])

    def confusion(self, rule: RuleMixture) -> np.ndarray:
        """Return the confusion counts [2, G, C, C] for gap and accuracy, and by the actual labels."""
        return np.stack([self._mean(labels, rule) for labels in (self.judged, self.label)])

    def mix(self, rules: list[RuleMixture], shares: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the weights [M, G, C, C] and shares [M] of a mixture of mixtures. M is the number of entries of
        confusion counts plus one: that many rules suffice for any mixture (Caratheodory)."""
        from scipy.optimize import linprog

        weights = np.concatenate([rule.weights for rule in rules])
        share = np.concatenate([part * rule.shares for part, rule in zip(shares, rules, strict=True)])
        most = weights[0].size + 1
        if len(share) > most:
            flat = np.stack([self._count(self.judged, each).ravel() for each in weights], 1)
            equal = np.vstack([flat / max(flat.max(), 1.0), np.ones(len(share))])
            found = linprog(np.zeros(len(share)), A_eq=equal, b_eq=equal @ share, method="highs-ds")
            if not found.success:
                raise ArithmeticError(f"The rules could not be mixed: {found.message}")
            weights, share = weights[found.x > 0], found.x[found.x > 0]
        room = most - len(share)
        return np.pad(weights, [(0, room), (0, 0), (0, 0), (0, 0)]), np.pad(share / share.sum(), (0, room))

    def _count(self, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return M [G, C, C] of the decisions with these weights; all 0: of the most probable classes."""
        scores = np.einsum("ny,nyj->nj", self.eta, weights[self.s]) if weights.any() else self.eta
        confusion = np.zeros((self.groups, *weights.shape[1:]))
        np.add.at(confusion.swapaxes(1, 2), (self.s, scores.argmax(1)), labels)
        return confusion

    def _mean(self, labels: np.ndarray, rule: RuleMixture) -> np.ndarray:
        counted = np.stack([self._count(labels, weights) for weights in rule.weights])
        return np.tensordot(rule.shares, counted, 1)
