"""Post-processing to a stated gap: the most accurate decisions whose rates differ by at most that much between groups.

LoGoFair: Zhang et al., LoGoFair: Post-Processing for Local and Global Fairness in Federated Learning, AAAI 2025; and
the post-processing of FedFACT: A Provable Framework for Controllable Group-Fairness Calibration in Federated Learning,
NeurIPS 2025. For two classes the decisions are thresholds on the score, one for each group, randomised at ties:

    maximise  accuracy   subject to   |rate_g - rate_h| <= gap   for all groups g, h

All that the server needs for it are the scores' histograms by group and label, summed over the clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from equifed.errors import ConfigError
from equifed.methods._cells import positive
from equifed.methods._parity import (
    MET,
    NOTIONS,
    calibrated,
    confusion_of,
    fit_thresholds,
    own_decisions,
    per_lane,
    rates_of,
)
from equifed.methods._wrapper import Around, PostProcessing, derived
from equifed.methods.hyper import hyper
from equifed.protocol import ROWS, Data, Knob, Phase, Record, Task, notions

OBSERVED, UNFITTED = ("multiplier", "training_gap", "feasible"), -1.0
"""The largest multiplier of the rates, the gap on the training rows, and whether the bound is kept; before the fit."""
ACROSS = 1e-6
"""How far a score that has to change sides ends beyond the others."""


@dataclass(frozen=True)
class Fair(PostProcessing):
    """Post-processed to a stated gap between groups at the least loss of accuracy, fitted on training rows after the
    last round."""

    suffix: ClassVar[str] = "+fair"
    citation: ClassVar[str] = (
        "Post-processing to a stated gap: Zhang et al., LoGoFair: Post-Processing for Local and Global Fairness in "
        "Federated Learning, AAAI 2025."
    )
    label_kinds: ClassVar[tuple[str, ...]] = derived(
        lambda self: tuple(kind for kind in self.inner.label_kinds if kind == "binary")
    )
    predicts_with: ClassVar[tuple[str, ...]] = derived(lambda self: (*self.inner.predicts_with, "accept"))
    knob: ClassVar[Knob | None] = Knob(
        "gap", 1e-3, 0.3, notions(**{notion: {"notion": notion} for notion in NOTIONS}), fairer="less", neutral=1.0
    )

    notion: str = hyper("demographic_parity", choices=NOTIONS)
    """The rates that are compared: of positive decisions among all rows, among those with a positive label, or among
    those of each label."""
    gap: float = hyper(0.01, low=0, high=1)
    """The largest difference between two groups, over the training rows of all clients. Where the method inside keeps
    it, its decisions stay as they are; so 1 leaves the method as it is."""
    calibration: str = hyper("isotonic", choices=("isotonic", "none"))
    """How scores become probabilities: "isotonic", by the labels of the training rows, separately for each group, so
    that gap and accuracy are those of these labels; "none": scores are probabilities as they are."""
    bins: int = hyper(1000, low=2)
    """Bins of the scores' histograms, an even number."""

    def check(self, task: Task) -> None:
        super().check(task)
        if self.bins % 2:
            raise ConfigError("must be even, so that one half lies between two bins.", key="bins", value=self.bins)

    # -- fitting -------------------------------------------------------------------------------------------------------

    @property
    def final(self) -> tuple[Phase, ...]:
        limits = {"histogram": (0, ROWS)}
        down = self.inner.predicts_with
        return (*super().final, Phase("fit", down, ("histogram",), self.count, self.fit, gather="sum", limits=limits))

    def own_server(self, task: Task, like: Tensor) -> Record:
        own = torch.from_numpy(own_decisions(task.num_groups, self.bins)).to(like.device)
        return {"accept": own, "observed": {name: own.new_tensor(UNFITTED) for name in OBSERVED}}

    def count(self, down: Record, state: Around, data: Data) -> tuple[Record, Around]:
        """The rows by group, label and bin of the score [G, 2, B]."""
        score_bin = self.binned(data.task, self.inside(down, state, data))
        known = data.s >= 0
        cell = (2 * torch.where(known, data.s, 0) + data.y) * self.bins + score_bin
        weight = (data.mask * known).to(torch.float64)
        histogram = weight.new_zeros(data.task.num_groups * 2 * self.bins).index_add(0, cell, weight)
        return {"histogram": histogram.reshape(-1, 2, self.bins)}, state

    def inside(self, down: Record, state: Around, data: Data) -> Tensor:
        """What the method inside predicts."""
        return self.inner.predict(data.task, self.inner.received(down), state.inner, data.x)

    def binned(self, task: Task, prediction: Tensor) -> Tensor:
        """The bin of each row's score [n], in the upper half exactly where the method inside decides 1."""
        at = (positive(prediction).to(torch.float64) * self.bins).ceil().long() - 1
        half = self.bins // 2
        return torch.where(task.decide(prediction) > 0, at.clamp(half, self.bins - 1), at.clamp(0, half - 1))

    def fit(self, server: Around, replies: Record, validation: Data | None) -> Around:
        gap = torch.as_tensor(self.gap, dtype=torch.float64, device=replies["histogram"].device)
        accept, *observed = per_lane(self.solve, replies["histogram"], gap)
        return server._replace(own={"accept": accept, "observed": dict(zip(OBSERVED, observed, strict=True))})

    def solve(self, counts: np.ndarray, gap: np.ndarray) -> tuple[np.ndarray, ...]:
        """The acceptance by group and bin [G, B] from the histogram [G, 2, B], and what is worth a log."""
        accept, multiplier = own_decisions(len(counts), self.bins), 0.0
        mass = calibrated(counts, self.calibration)
        # the decisions of the method inside are judged by the labels themselves, where these are what counts
        judged = mass if self.calibration == "none" else counts
        rates = rates_of(self.notion, judged.sum(-1))
        if rates.gap(confusion_of(accept, judged)) > gap + MET:
            weights = np.broadcast_to(np.eye(2) / mass.sum(), (len(counts), 2, 2))
            accept, prices, _ = fit_thresholds(mass, weights, rates, float(gap))
            multiplier = np.abs(prices).max()
        achieved = rates_of(self.notion, counts.sum(-1)).gap(confusion_of(accept, counts))
        promised = rates.gap(confusion_of(accept, judged))
        return accept, np.array(multiplier), np.array(achieved), np.array(float(promised <= gap + MET))

    # -- use -----------------------------------------------------------------------------------------------------------

    def adjust(self, task: Task, server: Around, client: Around, prediction: Tensor, s: Tensor, u: Tensor) -> Tensor:
        own = task.decide(prediction)
        accept = server.own["accept"][s.clamp_min(0), self.binned(task, prediction)]
        return decided(prediction, own, torch.where(s < 0, own, (u < accept).long()))

    def observe(self, server: Around) -> dict[str, Tensor]:
        seen = server.own["observed"]
        return super().observe(server) | {name: torch.where(v == UNFITTED, torch.nan, v) for name, v in seen.items()}


def decided(prediction: Tensor, own: Tensor, decision: Tensor) -> Tensor:
    """Scores that lead to the decision [n] in place of a method's own: as they are where the two are the same, else
    mixed with the decided class until it is ahead by a hair. Of two classes each then has one half."""
    if prediction.dim() == 1:
        return torch.where(decision == own, prediction, 0.5 + 0.5 * ACROSS * decision.to(prediction.dtype))
    behind = prediction.gather(1, own[:, None]) - prediction.gather(1, decision[:, None])
    moved = prediction.scatter_add(1, decision[:, None], behind + ACROSS) / (1 + behind + ACROSS)
    return torch.where((decision == own)[:, None], prediction, moved)
