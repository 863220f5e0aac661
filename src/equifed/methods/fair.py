"""Post-processing to a stated gap: the most accurate decisions with rates that differ by at most that between groups.

LoGoFair: Zhang et al., LoGoFair: Post-Processing for Local and Global Fairness in Federated Learning, AAAI 2025; and
the post-processing of FedFACT: Zhang et al., FedFACT: A Provable Framework for Controllable Group-Fairness Calibration
in Federated Learning, NeurIPS 2025.

    maximise  accuracy   subject to   |rate_g - rate_h| <= gap         over the rows of all clients   (level "global")
                                      |rate_gk - rate_hk| <= local_gap  at every client k              (level "local")

Two classes and a global gap: thresholds on the score for each group, randomised at ties, which the server computes from
the clients' summed histograms of scores by group and label. Two classes and a local gap: each client computes its own.
Otherwise, by column generation: the server asks for the best rule with weights W by group, label and decision,

    decision = argmax_j sum_y eta_y W[g, y, j],

each client replies the confusion counts of its best rule (within its local gap) on its rows, and the server computes
the next weights from the multipliers of the best mixture of all rules so far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from equifed import tree
from equifed.errors import ConfigError
from equifed.methods._cells import one_hot, positive
from equifed.methods._parity import (
    MET,
    NOTIONS,
    BinnedRows,
    ScoredRows,
    accuracy_weights,
    constant_rules,
    own_decisions,
    per_lane,
    rates_of,
    search,
)
from equifed.methods._wrapper import Around, PostProcessing, derived, has_chance
from equifed.methods.hyper import hyper
from equifed.protocol import ROWS, Bound, Data, Knob, Phase, Record, Task, ignore_replies, notions
from equifed.tree import Tree

OBSERVED, UNFITTED = ("multiplier", "training_gap", "slack", "feasible"), -1.0
"""Logged values: the largest multiplier of the rates, the gap on the training rows by their actual labels, the largest
possible shortfall of the accuracy, and 1 if the gap is within the bound; their value before the fit."""
KNOB = Knob("gap", 1e-3, 0.3, notions(**{notion: {"notion": notion} for notion in NOTIONS}), fairer="less", neutral=1.0)
ACROSS = 1e-6
"""Margin by which a changed score exceeds the others."""


@dataclass(frozen=True)
class Fair(PostProcessing):
    """Post-processed to a stated gap between groups at the least loss of accuracy, fitted on training rows after the
    last round."""

    suffix: ClassVar[str] = "+fair"
    citation: ClassVar[str] = (
        "Post-processing to a stated gap: Zhang, Chen, Han, Zhong and Zheng, LoGoFair: Post-Processing for Local and "
        "Global Fairness in Federated Learning, AAAI 2025."
    )
    label_kinds: ClassVar[tuple[str, ...]] = derived(
        lambda self: tuple(kind for kind in self.inner.label_kinds if kind != "regression")
    )
    personal: ClassVar[bool] = derived(lambda self: self.level != "global" or self.inner.personal)
    predicts_with: ClassVar[tuple[str, ...]] = derived(
        lambda self: (*self.inner.predicts_with, *(("rule",) if self.level == "global" else ()))
    )
    keeps_gap: ClassVar[Literal["", "global", "local"]] = derived(
        lambda self: "global" if self.level == "global" else "local"
    )
    knob: ClassVar[Knob | None] = derived(lambda self: None if self.level == "local" else KNOB)

    fit_reveals: ClassVar[str] = derived(
        lambda self: "" if self.level == "local" else "rows by group, label and score or decision"
    )

    notion: str = hyper("demographic_parity", choices=NOTIONS)
    """Rates to compare: of positive decisions among all rows, among those with a positive label, or within each label.
    With more than two classes: of each decision, of the right one within each label, or of each decision within each
    label."""
    level: str = hyper("global", choices=("global", "local", "both"))
    """Rows over which the gap is limited: those of all clients together, of each client, or both."""
    gap: float = hyper(0.01, low=0, high=1)
    """Largest difference between two groups over the training rows of all clients. If the inner method meets it, its
    decisions stay unchanged; so 1 leaves the method unchanged."""
    local_gap: float = hyper(0.01, low=0, high=1)
    """Largest difference between two groups over the training rows of each client."""
    calibration: str = hyper("isotonic", choices=("isotonic", "none"))
    """Calibration of scores: "isotonic", to the labels of the training rows, separately for each group, so that gap and
    accuracy hold for these labels; "none": scores are used as probabilities. With more than two classes, scores are not
    changed, and "isotonic" means that gap and accuracy are counted by the labels."""
    bins: int = hyper(1000, low=2, high=1_000_000)
    """Bins of the scores' histograms, an even number."""
    exchanges: int = hyper(30, low=2, high=900)
    """Steps of the search that is needed for both gaps together and for more than two classes."""

    def check(self, task: Task) -> None:
        super().check(task)
        if self.bins % 2:
            raise ConfigError("must be even, so that 0.5 is an edge between two bins.", key="bins", value=self.bins)

    # -- exchanges -----------------------------------------------------------------------------------------------------

    @property
    def final(self) -> tuple[Phase, ...]:
        down = self.inner.predicts_with
        bounds = {"confusion": Bound(0, ROWS, per_row=math.sqrt(2))}  # a row is in each of the two tables once
        once = Phase("fit", down, ("histogram",), self.count, self.fit, "sum", repeat=self.at_once)
        alone = Phase("fit", down, (), self.fit_client, ignore_replies, "sum")
        ask = Phase(
            "ask", (*down, "asked"), ("confusion",), self.reply, self.step, "sum", bounds=bounds, repeat=self.steps
        )
        keep = Phase("keep", (*down, "rule"), (), self.keep, ignore_replies, "sum")
        return (*super().final, *{"global": (once, ask), "local": (alone,), "both": (ask, keep)}[self.level])

    def at_once(self, task: Task) -> int:
        return int(task.num_classes == 2)

    def steps(self, task: Task) -> int:
        return 0 if self.level == "global" and self.at_once(task) else self.exchanges

    def own_server(self, task: Task, parameters: Tree) -> Record:
        if self.level == "local":
            return {}
        zero = torch.zeros((), dtype=torch.float64, device=tree.prototype(parameters).device)
        observed = dict.fromkeys(OBSERVED, zero + UNFITTED)
        if not self.steps(task):
            return {"rule": self.unchanged_rule(task, parameters), "observed": observed}
        G, C = task.num_groups, task.num_classes
        weights = torch.cat([zero.new_zeros(self.exchanges, G, C, C), torch.from_numpy(constant_rules(G, C)).to(zero)])
        search = {
            "known": zero.new_zeros(self.exchanges, 2, G, C, C),
            "asks": zero,
            "bound": zero + 1,
            "allowance": zero,
        }
        rule = {"weights": weights, "shares": _first(weights)}
        return {"rule": rule, "asked": weights[0], "search": search, "observed": observed}

    def own_client(self, task: Task, parameters: Tree) -> Record:
        return {} if self.level == "global" else {"rule": self.unchanged_rule(task, parameters)}

    def unchanged_rule(self, task: Task, parameters: Tree) -> Tree:
        """Return the rule that leaves all decisions unchanged."""
        G, C = task.num_groups, task.num_classes
        if C == 2:
            return {"accept": torch.from_numpy(own_decisions(G, self.bins)).to(tree.prototype(parameters).device)}
        weights = torch.zeros(G * C * C + 1, G, C, C, dtype=torch.float64, device=tree.prototype(parameters).device)
        return {"weights": weights, "shares": _first(weights)}

    # -- rows ----------------------------------------------------------------------------------------------------------

    def binned(self, task: Task, prediction: Tensor) -> Tensor:
        """Return the bin of each row's score [n], in the upper half exactly if the inner method decides 1."""
        at = (positive(prediction).to(torch.float64) * self.bins).ceil().long() - 1
        half = self.bins // 2
        return torch.where(task.decide(prediction) > 0, at.clamp(half, self.bins - 1), at.clamp(0, half - 1))

    def rows(self, down: Record, state: Around, data: Data) -> tuple[Tensor, ...]:
        """Return the client's rows for `rows_of`. Two classes: their number by group, label and bin of the score
        [G, 2, B]. More: probabilities and labels [n, C], and groups. Rows of unknown groups do not count."""
        task, counts = data.task, (data.mask > 0) & (data.s >= 0)
        prediction = self.inner.predict(task, self.inner.received(down), state.inner, data.x)
        if task.num_classes == 2:
            cell = (2 * torch.where(counts, data.s, 0) + data.y) * self.bins + self.binned(task, prediction)
            weight = counts.to(torch.float64)
            cells = weight.new_zeros(task.num_groups * 2 * self.bins).index_add(0, cell, weight)
            return (cells.reshape(-1, 2, self.bins),)
        eta = prediction.to(torch.float64)
        label = one_hot(data.y, task.num_classes, eta)
        return eta / eta.sum(1, keepdim=True), label, torch.where(counts, data.s, -1)

    def rows_of(self, groups: int, *rows: np.ndarray) -> Any:
        """Return these rows as `BinnedRows` or `ScoredRows`."""
        if len(rows) == 1:
            return BinnedRows(*rows, notion=self.notion, calibration=self.calibration)
        return ScoredRows(*rows, groups=groups, notion=self.notion, calibration=self.calibration, steps=self.exchanges)

    # -- two classes and a global gap ----------------------------------------------------------------------------------

    def count(self, down: Record, state: Around, data: Data) -> tuple[Record, Around]:
        (histogram,) = self.rows(down, state, data)
        return {"histogram": histogram}, state

    def fit(self, server: Around, replies: Record, validation: Data | None) -> Around:
        accept, *observed = per_lane(self.solve, replies["histogram"], _like(self.gap, replies["histogram"]))
        own = {"rule": {"accept": accept}, "observed": dict(zip(OBSERVED, observed, strict=True))}
        return server._replace(own=own)

    def solve(self, counts: np.ndarray, gap: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the acceptance by group and bin [G, B] from the histogram [G, 2, B], and the logged values."""
        rows = self.rows_of(len(counts), counts)
        found = rows.best(np.zeros((len(counts), 2, 2)), float(gap))
        return found.accept, *self.observations(rows.confusion(found), found.prices, 0.0, gap)

    def observations(
        self, confusion: np.ndarray, prices: np.ndarray, slack: float, gap: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """Return the values of `OBSERVED` from the confusion counts [2, G, C, C] of `BinnedRows.confusion`."""
        actual = confusion[1]
        reached = rates_of(self.notion, actual.sum(-1)).gap(actual)
        values = (np.abs(prices).max(), reached, slack, reached <= gap + 10 * MET)
        return tuple(np.array(value, dtype=np.float64) for value in values)

    # -- the search ----------------------------------------------------------------------------------------------------

    @property
    def own_gap(self) -> float | Tensor:
        """The limit of a client's own gap."""
        return 1.0 if self.level == "global" else self.local_gap

    def reply(self, down: Record, state: Around, data: Data) -> tuple[Record, Around]:
        """Reply the confusion counts [2, G, C, C] of the client's best rule with the requested weights."""

        def best(asked: np.ndarray, gap: np.ndarray, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
            rows = self.rows_of(len(asked), *arrays)
            return (rows.confusion(rows.best(asked, float(gap))),)

        asked = down["asked"]
        (confusion,) = per_lane(best, asked, _like(self.own_gap, asked), *self.rows(down, state, data))
        return {"confusion": confusion.clamp(torch.zeros_like(data.n), data.n)}, state

    def step(self, server: Around, replies: Record, validation: Data | None) -> Around:
        own, confusion = server.own, replies["confusion"]
        gap = _like(self.gap, confusion)
        weights, shares, asked, known, asks, bound, allowance, *observed = per_lane(
            self.search_step, confusion, gap, own["rule"]["weights"], *(own["search"][name] for name in SEARCH)
        )
        search = dict(zip(SEARCH, (known, asks, bound, allowance), strict=True))
        seen = dict(zip(OBSERVED, observed, strict=True))
        rule = {"weights": weights, "shares": shares}
        return server._replace(own={"rule": rule, "asked": asked, "search": search, "observed": seen})

    def search_step(
        self,
        confusion: np.ndarray,
        gap: np.ndarray,
        weights: np.ndarray,
        known: np.ndarray,
        asks: np.ndarray,
        bound: np.ndarray,
        allowance: np.ndarray,
    ) -> tuple[np.ndarray, ...]:
        """Add the clients' confusion counts for the requested rule, and find the next one from the best mixture of all
        rules. The first request is for unchanged decisions."""
        t, T = int(asks), self.exchanges
        known, weights, shares = known.copy(), weights.copy(), np.zeros(len(weights))
        known[t] = confusion
        judged = known[: t + 1, 0]
        mass = judged[0].sum(-1)
        found = search(judged, accuracy_weights(mass), self.notion, float(gap))
        if weights[t].any():
            bound = np.minimum(bound, (weights[t] * judged[t]).sum() + allowance)
        prices, slack = found.prices, max(float(bound) - found.value, 0.0)
        if rates_of(self.notion, mass).gap(judged[0]) <= gap + MET:
            shares[0], prices, slack = 1.0, np.zeros_like(prices), 0.0
        else:
            shares[: t + 1], shares[T:] = found.shares[: t + 1], found.shares[t + 1 :]
        if slack > MET and t + 1 < T:  # else the search is done, and the next weights stay 0
            weights[t + 1] = found.weights
        mean = np.tensordot(shares[: t + 1], known[: t + 1], 1) + _constant(known[0], shares[T:])
        if mass.shape[1] > 2 and self.calibration != "none":
            slack = UNFITTED  # the best rule by the scores need not be the best by the labels
        state = known, asks + 1, bound, np.array(found.allowance)
        return weights, shares, weights[min(t + 1, T - 1)], *state, *self.observations(mean, prices, slack, gap)

    # -- rules that clients keep ---------------------------------------------------------------------------------------

    def fit_client(self, down: Record, state: Around, data: Data) -> tuple[Record, Around]:
        """Keep the client's best rule within its own gap."""
        G, C = data.task.num_groups, data.task.num_classes
        only = torch.zeros(1, G, C, C, dtype=torch.float64, device=data.mask.device)
        return self.keep(down | {"rule": {"weights": only, "shares": _first(only)}}, state, data)

    def keep(self, down: Record, state: Around, data: Data) -> tuple[Record, Around]:
        """Keep the mixture of the client's best rules with these weights."""

        def mix(weights: np.ndarray, shares: np.ndarray, gap: np.ndarray, *arrays: np.ndarray) -> Any:
            rows, used = self.rows_of(weights.shape[1], *arrays), shares > 0
            return rows.mix([rows.best(asked, float(gap)) for asked in weights[used]], shares[used])

        rule, rows = down["rule"], self.rows(down, state, data)
        made = per_lane(mix, rule["weights"], rule["shares"], _like(self.own_gap, rule["shares"]), *rows)
        names = ("accept",) if len(made) == 1 else ("weights", "shares")
        return {}, state._replace(own={"rule": dict(zip(names, made, strict=True))})

    # -- use -----------------------------------------------------------------------------------------------------------

    def adjust(self, task: Task, server: Around, client: Around, prediction: Tensor, s: Tensor, u: Tensor) -> Tensor:
        rule = (server if self.level == "global" else client).own["rule"]
        own, group = task.decide(prediction), s.clamp_min(0)
        if task.num_classes == 2:
            decision = (u < rule["accept"][group, self.binned(task, prediction)]).long()
        else:
            drawn = (u[:, None] >= rule["shares"].cumsum(0)).sum(1).clamp(max=len(rule["shares"]) - 1)
            weights = rule["weights"][drawn, group]  # [n, C, C]
            score = torch.einsum("ny,nyj->nj", prediction.to(torch.float64), weights)
            decision = torch.where(weights.flatten(1).any(1), score.argmax(1), own)
        return move_scores(prediction, own, torch.where(s < 0, own, decision))

    def draws(self, task: Task, server: Around, client: Around) -> bool:
        rule = (server if self.level == "global" else client).own["rule"]
        return has_chance(rule["accept" if task.num_classes == 2 else "shares"])

    def observe(self, server: Around) -> dict[str, Tensor]:
        seen = server.own.get("observed", {})
        return super().observe(server) | {name: torch.where(v == UNFITTED, torch.nan, v) for name, v in seen.items()}

    def remedy(self, converged: bool) -> str:
        return "calibration" if self.calibration == "none" else super().remedy(converged)


SEARCH = ("known", "asks", "bound", "allowance")
"""State of the search: the confusion counts of the requested rules, their number, the lowest bound on accuracy so far,
and the multipliers' addition to the next bound."""


def _like(value: float | Tensor, other: Tensor) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64, device=other.device)


def _first(rules: Tensor) -> Tensor:
    """Return shares with all weight on the first rule."""
    return one_hot(torch.zeros((), device=rules.device), len(rules), rules)


def _constant(known: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return the confusion counts [2, G, C, C] of constant rules with these shares, from those of another rule."""
    return known.sum(-1)[..., None] * shares


def move_scores(prediction: Tensor, own: Tensor, decision: Tensor) -> Tensor:
    """Return scores that give the decision [n] instead of a method's own: unchanged if both agree, else mixed with the
    decided class until it is slightly ahead. With two classes each is then about one half."""
    if prediction.dim() == 1:
        return torch.where(decision == own, prediction, 0.5 + 0.5 * ACROSS * decision.to(prediction.dtype))
    behind = prediction.gather(1, own[:, None]) - prediction.gather(1, decision[:, None])
    moved = prediction.scatter_add(1, decision[:, None], behind + ACROSS) / (1 + behind + ACROSS)
    return torch.where((decision == own)[:, None], prediction, moved)
