"""Post-processing: fairer decisions from the scores of any method, fitted once after its last round.

Equalized odds (eo): Hardt, Price and Srebro, Equality of Opportunity in Supervised Learning, NeurIPS 2016.
A positive decision for a row of group g is kept with probability p_g, a negative one flipped with probability q_g:

    minimise the error  subject to  TPR_g p_g + (1 - TPR_g) q_g = T  and  FPR_g p_g + (1 - FPR_g) q_g = F  for all g

Calibrated equalized odds (ceo): Pleiss et al., On Fairness and Calibration, NeurIPS 2017. With a cost c_g of false
negatives, 1 - mean(score | y = 1), of false positives, mean(score | y = 0), or both, each group whose cost lies below
the highest gets a share of its scores replaced by its base rate, which keeps it calibrated:

    m_g = (max c - c_g) / (c_g(base rate) - c_g),  within 0..1

Both need a row's group for its decision, and draw a random number for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equifed import tree
from equifed.errors import ConfigError
from equifed.methods._cells import cell_sums, positive
from equifed.methods._rules import equal_cost, equal_odds
from equifed.methods._wrapper import Around, PostProcessing, derived, has_chance
from equifed.methods.fair import Fair
from equifed.methods.hyper import hyper
from equifed.protocol import ROWS, Bound, Data, Phase, Record, Task, ignore_replies
from equifed.tree import Tree

__all__ = ["CalibratedEqualizedOdds", "EqualizedOdds", "Fair"]


@dataclass(frozen=True)
class TwoRates(PostProcessing):
    """The base of rules for two classes that change each group's decisions or scores by two rates."""

    statistic: ClassVar[str] = ""
    """Name of the sums that the fit needs from every client."""
    neutral: ClassVar[tuple[float, float]]
    """Rates that leave a group unchanged."""
    label_kinds: ClassVar[tuple[str, ...]] = ("binary",)
    personal: ClassVar[bool] = derived(lambda self: self.fit == "client" or self.inner.personal)
    predicts_with: ClassVar[tuple[str, ...]] = derived(
        lambda self: (*self.inner.predicts_with, *(() if self.fit == "client" else ("rates",)))
    )

    fit_reveals: ClassVar[str] = derived(
        lambda self: "" if self.fit == "client" else f"rows and {self.statistic} by group and label"
    )

    fit: str = hyper("client", choices=("client", "global"))
    """Rows on which the rule is fitted: "client" for each client on its own, so that nothing leaves it, or "global"
    for the sums over clients."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if "binary" not in self.inner.label_kinds:
            raise ConfigError(f"{self.name}: post-processing is for two classes, and {self.inner.name} is not.")

    # -- to be defined by a rule ---------------------------------------------------------------------------------------

    def row_values(self, task: Task, prediction: Tensor) -> Tensor:
        """Return the values of each row that are summed by group and label [n, M]."""
        raise NotImplementedError

    def rates(self, sums: Tensor) -> Tensor:
        """Return the rule's rates [G, 2] from these sums [G, 2, M]."""
        raise NotImplementedError

    def adjust_scores(self, rates: Tensor, score: Tensor, u: Tensor) -> Tensor:
        """Return new scores from scores, the rates of the rows' groups [n, 2] and a random number in 0..1 for each."""
        raise NotImplementedError

    def chances(self, rates: Tensor) -> Tensor:
        """Return the rates that are probabilities of a random draw."""
        return rates

    # -- fit -----------------------------------------------------------------------------------------------------------

    @property
    def final(self) -> tuple[Phase, ...]:
        down = self.inner.predicts_with
        if self.fit == "client":
            fit = Phase("fit", down, (), self.fit_client, ignore_replies, gather="sum")
        else:
            bounds = {"scores": Bound(0, ROWS, per_row=math.sqrt(2))}  # each row and its score are added once
            fit = Phase("fit", down, (self.statistic,), self.reply, self.fit_global, gather="sum", bounds=bounds)
        return (*super().final, fit)

    def own_server(self, task: Task, parameters: Tree) -> Record:
        return {} if self.fit == "client" else self.initial_rates(task, parameters)

    def own_client(self, task: Task, parameters: Tree) -> Record:
        return self.initial_rates(task, parameters) if self.fit == "client" else {}

    def initial_rates(self, task: Task, parameters: Tree) -> Record:
        """Return the wrapper's state before the fit."""
        rates = torch.tensor(self.neutral, dtype=torch.float64, device=tree.prototype(parameters).device)
        return {"rates": rates.expand(task.num_groups, 2).clone()}

    def fit_client(self, down: Record, state: Around, data: Data) -> tuple[Record, Around]:
        return {}, state._replace(own={"rates": self.rates(self.sums(down, state, data))})

    def reply(self, down: Record, state: Around, data: Data) -> tuple[Record, Around]:
        return {self.statistic: self.sums(down, state, data)}, state

    def fit_global(self, server: Around, replies: Record, validation: Data | None) -> Around:
        return server._replace(own={"rates": self.rates(replies[self.statistic])})

    def sums(self, down: Record, state: Around, data: Data) -> Tensor:
        """Return the sums over the client's rows that the fit needs."""
        prediction = self.inner.predict(data.task, self.inner.received(down), state.inner, data.x)
        return cell_sums(data, self.row_values(data.task, prediction))

    def adjust(self, task: Task, server: Around, client: Around, prediction: Tensor, s: Tensor, u: Tensor) -> Tensor:
        rates = self.fitted_rates(server, client)
        score = self.adjust_scores(rates[s], positive(prediction), u).to(prediction.dtype)
        return score if prediction.dim() == 1 else torch.stack([1 - score, score], -1)

    def draws(self, task: Task, server: Around, client: Around) -> bool:
        return has_chance(self.chances(self.fitted_rates(server, client)))

    def fitted_rates(self, server: Around, client: Around) -> Tensor:
        """Return the rates, which the server or the client keeps."""
        rates: Tensor = (client if self.fit == "client" else server).own["rates"]
        return rates


@dataclass(frozen=True)
class EqualizedOdds(TwoRates):
    """Post-processed to equal TPR and FPR for all groups, fitted on training rows after the last round."""

    suffix: ClassVar[str] = "+eo"
    citation: ClassVar[str] = (
        "Equalized odds: Hardt, Price and Srebro, Equality of Opportunity in Supervised Learning, NeurIPS 2016."
    )
    statistic: ClassVar[str] = "decisions"
    neutral: ClassVar[tuple[float, float]] = (1.0, 0.0)

    def row_values(self, task: Task, prediction: Tensor) -> Tensor:
        positive = task.decide(prediction).to(torch.float64)
        return torch.stack([1 - positive, positive], -1)

    def rates(self, sums: Tensor) -> Tensor:
        return equal_odds(sums)

    def adjust_scores(self, rates: Tensor, score: Tensor, u: Tensor) -> Tensor:
        return (u < torch.where(score > 0.5, rates[:, 0], rates[:, 1])).to(score.dtype)


@dataclass(frozen=True)
class CalibratedEqualizedOdds(TwoRates):
    """Post-processed to equal cost and calibrated scores for all groups, fitted on training rows after the last
    round."""

    suffix: ClassVar[str] = "+ceo"
    citation: ClassVar[str] = (
        "Calibrated equalized odds: Pleiss, Raghavan, Wu, Kleinberg and Weinberger, On Fairness and Calibration, "
        "NeurIPS 2017."
    )
    statistic: ClassVar[str] = "scores"
    neutral: ClassVar[tuple[float, float]] = (0.0, 0.0)

    cost: str = hyper("fnr", choices=("fnr", "fpr", "weighted"))
    """Error with equal cost for all groups: false negatives, false positives, or both weighted by their frequency."""

    def row_values(self, task: Task, prediction: Tensor) -> Tensor:
        score = positive(prediction).to(torch.float64)
        return torch.stack([torch.ones_like(score), score], -1)

    def rates(self, sums: Tensor) -> Tensor:
        return equal_cost(sums, self.cost)

    def adjust_scores(self, rates: Tensor, score: Tensor, u: Tensor) -> Tensor:
        return torch.where(u < rates[:, 0], rates[:, 1].to(score.dtype), score)

    def chances(self, rates: Tensor) -> Tensor:
        return rates[:, 0]
