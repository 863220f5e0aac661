"""Post-processing: fairer decisions from the scores of any method, fitted once after its last round.

Equalized odds (eo): Hardt, Price and Srebro, Equality of Opportunity in Supervised Learning, NeurIPS 2016.
A positive decision for a row of group g is kept with probability p_g, a negative one turned with probability q_g:

    minimise the error  subject to  TPR_g p_g + (1 - TPR_g) q_g = T  and  FPR_g p_g + (1 - FPR_g) q_g = F  for all g

Calibrated equalized odds (ceo): Pleiss et al., On Fairness and Calibration, NeurIPS 2017. With a cost c_g of false
negatives, 1 - mean(score | y = 1), of false positives, mean(score | y = 0), or both, each group whose cost lies below
the highest gets a share of its scores replaced by its base rate, which keeps it calibrated:

    m_g = (max c - c_g) / (c_g(base rate) - c_g),  within 0..1

Both know a row's group when they decide, and draw a random number for it.
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
from equifed.methods._wrapper import Around, PostProcessing, derived, uncertain
from equifed.methods.fair import Fair
from equifed.methods.hyper import hyper
from equifed.protocol import ROWS, Bound, Data, Phase, Record, Task, unchanged
from equifed.tree import Tree

__all__ = ["CalibratedEqualizedOdds", "EqualizedOdds", "Fair"]


@dataclass(frozen=True)
class PostProcessed(PostProcessing):
    """A method of two classes whose groups' decisions or scores are changed by two rates each."""

    statistic: ClassVar[str] = ""
    """Name of the sums that the fit needs from every client."""
    as_it_is: ClassVar[tuple[float, float]]
    """Rates that leave a group as it is."""
    label_kinds: ClassVar[tuple[str, ...]] = ("binary",)
    personal: ClassVar[bool] = derived(lambda self: self.fit == "client" or self.inner.personal)
    predicts_with: ClassVar[tuple[str, ...]] = derived(
        lambda self: (*self.inner.predicts_with, *(() if self.fit == "client" else ("rates",)))
    )

    fit_reveals: ClassVar[str] = derived(
        lambda self: "" if self.fit == "client" else f"rows and {self.statistic} by group and label"
    )

    fit: str = hyper("client", choices=("client", "global"))
    """On whose rows the rule is fitted: every "client" on its own, so that nothing leaves it, or "global", on the
    sums over clients."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if "binary" not in self.inner.label_kinds:
            raise ConfigError(f"{self.name}: post-processing is for two classes, and {self.inner.name} is not.")

    # -- what a rule has to define -------------------------------------------------------------------------------------

    def measured(self, task: Task, prediction: Tensor) -> Tensor:
        """Values of each row whose sums by group and label are needed [n, M]."""
        raise NotImplementedError

    def rates(self, sums: Tensor) -> Tensor:
        """The rule [G, 2] from those sums [G, 2, M]."""
        raise NotImplementedError

    def adjusted(self, rates: Tensor, score: Tensor, u: Tensor) -> Tensor:
        """New scores from old ones, the rates of the rows' groups [n, 2] and a random number in 0..1 for each."""
        raise NotImplementedError

    def chances(self, rates: Tensor) -> Tensor:
        """Those of the rates that are probabilities by which something is drawn."""
        return rates

    # -- fitting it ----------------------------------------------------------------------------------------------------

    @property
    def final(self) -> tuple[Phase, ...]:
        down = self.inner.predicts_with
        if self.fit == "client":
            fit = Phase("fit", down, (), self.fit_client, unchanged, gather="sum")
        else:
            bounds = {"scores": Bound(0, ROWS, per_row=math.sqrt(2))}  # a row is counted, and its score added, once
            fit = Phase("fit", down, (self.statistic,), self.reply, self.fit_global, gather="sum", bounds=bounds)
        return (*super().final, fit)

    def own_server(self, task: Task, parameters: Tree) -> Record:
        return {} if self.fit == "client" else self.unfitted(task, parameters)

    def own_client(self, task: Task, parameters: Tree) -> Record:
        return self.unfitted(task, parameters) if self.fit == "client" else {}

    def unfitted(self, task: Task, parameters: Tree) -> Record:
        rates = torch.tensor(self.as_it_is, dtype=torch.float64, device=tree.prototype(parameters).device)
        return {"rates": rates.expand(task.num_groups, 2).clone()}

    def fit_client(self, down: Record, state: Around, data: Data) -> tuple[Record, Around]:
        return {}, state._replace(own={"rates": self.rates(self.sums(down, state, data))})

    def reply(self, down: Record, state: Around, data: Data) -> tuple[Record, Around]:
        return {self.statistic: self.sums(down, state, data)}, state

    def fit_global(self, server: Around, replies: Record, validation: Data | None) -> Around:
        return server._replace(own={"rates": self.rates(replies[self.statistic])})

    def sums(self, down: Record, state: Around, data: Data) -> Tensor:
        """What the rule is fitted from, over the client's rows."""
        prediction = self.inner.predict(data.task, self.inner.received(down), state.inner, data.x)
        return cell_sums(data, self.measured(data.task, prediction))

    def adjust(self, task: Task, server: Around, client: Around, prediction: Tensor, s: Tensor, u: Tensor) -> Tensor:
        rates = self.fitted(server, client)
        score = self.adjusted(rates[s], positive(prediction), u).to(prediction.dtype)
        return score if prediction.dim() == 1 else torch.stack([1 - score, score], -1)

    def draws(self, task: Task, server: Around, client: Around) -> bool:
        return uncertain(self.chances(self.fitted(server, client)))

    def fitted(self, server: Around, client: Around) -> Tensor:
        rates: Tensor = (client if self.fit == "client" else server).own["rates"]
        return rates


@dataclass(frozen=True)
class EqualizedOdds(PostProcessed):
    """Post-processed to equal TPR and FPR for all groups, fitted on training rows after the last round."""

    suffix: ClassVar[str] = "+eo"
    citation: ClassVar[str] = (
        "Equalized odds: Hardt, Price and Srebro, Equality of Opportunity in Supervised Learning, NeurIPS 2016."
    )
    statistic: ClassVar[str] = "decisions"
    as_it_is: ClassVar[tuple[float, float]] = (1.0, 0.0)

    def measured(self, task: Task, prediction: Tensor) -> Tensor:
        positive = task.decide(prediction).to(torch.float64)
        return torch.stack([1 - positive, positive], -1)

    def rates(self, sums: Tensor) -> Tensor:
        return equal_odds(sums)

    def adjusted(self, rates: Tensor, score: Tensor, u: Tensor) -> Tensor:
        return (u < torch.where(score > 0.5, rates[:, 0], rates[:, 1])).to(score.dtype)


@dataclass(frozen=True)
class CalibratedEqualizedOdds(PostProcessed):
    """Post-processed to equal cost and calibrated scores for all groups, fitted on training rows after the last
    round."""

    suffix: ClassVar[str] = "+ceo"
    citation: ClassVar[str] = (
        "Calibrated equalized odds: Pleiss, Raghavan, Wu, Kleinberg and Weinberger, On Fairness and Calibration, "
        "NeurIPS 2017."
    )
    statistic: ClassVar[str] = "scores"
    as_it_is: ClassVar[tuple[float, float]] = (0.0, 0.0)

    cost: str = hyper("fnr", choices=("fnr", "fpr", "weighted"))
    """Which error is to cost all groups the same: false negatives, false positives, or both by their frequency."""

    def measured(self, task: Task, prediction: Tensor) -> Tensor:
        score = positive(prediction).to(torch.float64)
        return torch.stack([torch.ones_like(score), score], -1)

    def rates(self, sums: Tensor) -> Tensor:
        return equal_cost(sums, self.cost)

    def adjusted(self, rates: Tensor, score: Tensor, u: Tensor) -> Tensor:
        return torch.where(u < rates[:, 0], rates[:, 1].to(score.dtype), score)

    def chances(self, rates: Tensor) -> Tensor:
        return rates[:, 0]
