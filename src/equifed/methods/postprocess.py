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

import dataclasses
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from equifed import tree
from equifed.errors import ConfigError
from equifed.methods.hyper import hyper
from equifed.protocol import Data, LocalTraining, Method, Phase, Record, Start, Task
from equifed.tree import Tree

__all__ = ["CalibratedEqualizedOdds", "EqualizedOdds"]

FITS = ("client", "global")
EXACT = 1e-11
"""Probabilities may lie outside 0..1 by this much before they are cut: rounding, not infeasibility."""


def EqualizedOdds(method: Method, fit: str = "client") -> Method:
    """The method with its decisions post-processed to equal TPR and FPR of all groups.

    fit: "client", each client on its own rows, which tells the server nothing; "global", from the counts summed over
    clients, one rule for all.
    """
    return _around(method, Odds, fit=fit)


def CalibratedEqualizedOdds(method: Method, fit: str = "client", cost: str = "fnr") -> Method:
    """The method with its scores post-processed to equal cost of all groups, calibrated within each.

    fit: as for `EqualizedOdds`. cost: "fnr" (of false negatives), "fpr" (of false positives) or "weighted" (both).
    """
    return _around(method, Calibrated, fit=fit, cost=cost)


class Server(NamedTuple):
    inner: Any
    """The state of the method that is post-processed."""
    rates: Tree
    """What was fitted globally [G, 2]; () when clients fit their own."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)  # phases send the method's own fields


class Client(NamedTuple):
    inner: Tree
    """The client's state in the method that is post-processed."""
    rates: Tree
    """What the client fitted on its own rows [G, 2]; () when the fit is global."""


@dataclass(frozen=True)
class PostProcessed(Method):
    """A method and a rule fitted after it. Classes of this kind are made by `compose`, with the method as last base.

    What is not part of the protocol is called post_..., so that nothing of the method is overridden by accident.
    """

    post_suffix: ClassVar[str] = ""
    """What follows the plus in the name."""
    post_statistic: ClassVar[str] = ""
    """Name of the fields that the fit needs from every client."""
    post_citation: ClassVar[str] = ""
    """The rule's paper."""

    fit: str = hyper("client", choices=FITS)
    """On whose rows the rule is fitted: every "client" on its own, or "global", on the sums over clients."""

    @property
    def personal(self) -> bool:  # type: ignore[override]
        return self.fit == "client" or bool(super().personal)

    @property
    def predicts_with(self) -> tuple[str, ...]:  # type: ignore[override]
        return super().predicts_with if self.fit == "client" else (*super().predicts_with, "rates")

    @property
    def setup(self) -> tuple[Phase, ...]:
        return tuple(_inside(phase) for phase in super().setup)

    @property
    def round(self) -> tuple[Phase, ...]:
        return tuple(_inside(phase) for phase in super().round)

    @property
    def final(self) -> tuple[Phase, ...]:
        down, name = super().predicts_with, self.post_statistic
        if self.fit == "client":
            fit = Phase("fit", down, (), self.post_fit_own, lambda server, replies, validation: server, gather="sum")
        else:
            fit = Phase("fit", down, (name,), self.post_reply, self.post_fit_global, gather="sum")
        return (*(_inside(phase) for phase in super().final), fit)

    def init(self, task: Task, parameters: Tree) -> Server:
        inner = super().init(task, parameters)
        return Server(inner, () if self.fit == "client" else self.post_unfitted(task, parameters))

    def init_client(self, task: Task, parameters: Tree) -> Client:
        inner = super().init_client(task, parameters)
        return Client(inner, self.post_unfitted(task, parameters) if self.fit == "client" else ())

    def post_unfitted(self, task: Task, parameters: Tree) -> Tensor:
        device = tree.leaves(parameters)[0].device
        return torch.tensor(self.post_unchanged, dtype=torch.float64, device=device).expand(task.num_groups, 2).clone()

    def post_fit_own(self, down: Record, state: Client, data: Data) -> tuple[Record, Client]:
        return {}, state._replace(rates=self.post_rates(self.post_statistics(down, state, data)))

    def post_reply(self, down: Record, state: Client, data: Data) -> tuple[Record, Client]:
        return {self.post_statistic: self.post_statistics(down, state, data)}, state

    def post_fit_global(self, server: Server, replies: Record, validation: Data | None) -> Server:
        return server._replace(rates=self.post_rates(replies[self.post_statistic]))

    def post_statistics(self, down: Record, state: Client, data: Data) -> Tensor:
        """Sums over the client's rows that the rule is fitted from."""
        prediction = super().predict(data.task, SimpleNamespace(**down), state.inner, data.x)
        # rows by group and label, [n, G, 2]
        s = data.s[:, None] == torch.arange(data.task.num_groups, device=data.s.device)
        y = data.y[:, None] == torch.arange(2, device=data.y.device)
        cell = (s[:, :, None] & y[:, None, :]).to(torch.float64)
        return data.sum(cell[..., None] * self.post_measured(data.task, prediction)[:, None, None, :])

    def predict(self, task: Task, server: Server, client: Client, x: Tensor) -> Tensor:
        return super().predict(task, server, client.inner, x)

    def adjust(self, task: Task, server: Server, client: Client, prediction: Tensor, s: Tensor, u: Tensor) -> Tensor:
        rates = client.rates if self.fit == "client" else server.rates
        score = self.post_adjusted(rates[s], _score(prediction), u).to(prediction.dtype)
        return score if prediction.dim() == 1 else torch.stack([1 - score, score], -1)

    def observe(self, server: Server) -> dict[str, Tensor]:
        return super().observe(server.inner)

    def converged(self, server: Server) -> Tensor:
        return super().converged(server.inner)

    # -- what a rule has to say ----------------------------------------------------------------------------------------

    post_unchanged: ClassVar[tuple[float, float]]
    """Rates that leave a group as it is."""

    def post_measured(self, task: Task, prediction: Tensor) -> Tensor:
        """Values of each row whose sums by group and label are needed [n, M]."""
        raise NotImplementedError

    def post_rates(self, statistics: Tensor) -> Tensor:
        """The rule [G, 2] from those sums [G, 2, M]."""
        raise NotImplementedError

    def post_adjusted(self, rates: Tensor, score: Tensor, u: Tensor) -> Tensor:
        """New scores from old ones, the rates of the rows' groups [n, 2] and a random number in 0..1 for each."""
        raise NotImplementedError


@dataclass(frozen=True)
class Odds(PostProcessed):
    post_suffix: ClassVar[str] = "eo"
    post_statistic: ClassVar[str] = "decisions"
    post_citation: ClassVar[str] = (
        "Equalized odds: Hardt, Price and Srebro, Equality of Opportunity in Supervised Learning, NeurIPS 2016."
    )
    post_unchanged: ClassVar[tuple[float, float]] = (1.0, 0.0)

    def post_measured(self, task: Task, prediction: Tensor) -> Tensor:
        positive = task.decide(prediction).to(torch.float64)
        return torch.stack([1 - positive, positive], -1)

    def post_rates(self, statistics: Tensor) -> Tensor:
        return equal_odds(statistics)

    def post_adjusted(self, rates: Tensor, score: Tensor, u: Tensor) -> Tensor:
        return (u < torch.where(score > 0.5, rates[:, 0], rates[:, 1])).to(score.dtype)


@dataclass(frozen=True)
class Calibrated(PostProcessed):
    post_suffix: ClassVar[str] = "ceo"
    post_statistic: ClassVar[str] = "scores"
    post_citation: ClassVar[str] = (
        "Calibrated equalized odds: Pleiss, Raghavan, Wu, Kleinberg and Weinberger, On Fairness and Calibration, "
        "NeurIPS 2017."
    )
    post_unchanged: ClassVar[tuple[float, float]] = (0.0, 0.0)

    cost: str = hyper("fnr", choices=("fnr", "fpr", "weighted"))
    """Which error is to cost all groups the same: false negatives, false positives, or both by their frequency."""

    def post_measured(self, task: Task, prediction: Tensor) -> Tensor:
        score = _score(prediction).to(torch.float64)
        return torch.stack([torch.ones_like(score), score], -1)

    def post_rates(self, statistics: Tensor) -> Tensor:
        return equal_cost(statistics, self.cost)

    def post_adjusted(self, rates: Tensor, score: Tensor, u: Tensor) -> Tensor:
        return torch.where(u < rates[:, 0], rates[:, 1].to(score.dtype), score)


HOW: dict[str, type[PostProcessed]] = {"eo": Odds, "ceo": Calibrated}
"""What may follow a method's name and a plus."""


# -- the rules ---------------------------------------------------------------------------------------------------------


def equal_odds(counts: Tensor) -> Tensor:
    """(p, q) of each group [G, 2] from counts by group, label and decision [G, 2, 2]: the linear programme's optimum.

    What group g can reach by p and q is the parallelogram with the corners (0, 0), (FPR, TPR), (1, 1), (1-FPR, 1-TPR)
    in the plane of (F, T), and the error is linear there. So the optimum lies at a corner of the intersection of all
    parallelograms: a corner of one of them, or where two of their edges meet. These are few, and all are tried, which
    is exact, needs no solver, and so can run where the rows are. (0, 0) and (1, 1) lie in all of them: there always is
    a solution. Groups without both labels have no rates and stay as they are; so do all when fewer than two are left.
    """
    number = counts.sum(-1)
    usable = (number > 0).all(-1)
    rate = torch.where(usable[:, None], counts[..., 1] / number.clamp_min(1), torch.zeros_like(number))  # FPR, TPR
    zero, one = torch.zeros_like(rate), torch.ones_like(rate)
    corners = torch.stack([zero, rate, one, 1 - rate], 1)  # [G, 4, 2], in order around the parallelogram
    corner, along = corners.reshape(-1, 2), (corners.roll(-1, 1) - corners).reshape(-1, 2)
    points = torch.cat([corner, _crossings(corner, along)])  # [M, 2]

    # p and q of every group for every point
    F, T = points[:, None, 0], points[:, None, 1]
    fpr, tpr = rate[:, 0], rate[:, 1]
    det = tpr - fpr
    flat = det.abs() < EXACT  # decisions without information: only F = T can be reached, by a coin
    scale = torch.where(flat, torch.ones_like(det), det)
    p = torch.where(flat, T, (T * (1 - fpr) - F * (1 - tpr)) / scale)
    q = torch.where(flat, T, (F * tpr - T * fpr) / scale)
    reached = (torch.minimum(p, q) >= -EXACT) & (torch.maximum(p, q) <= 1 + EXACT)
    reached &= ~flat | ((T - F).abs() < EXACT)

    # the error is that of the groups which have rates
    weight = number * usable[:, None]
    error = points[:, 0] * weight[:, 0].sum() + (1 - points[:, 1]) * weight[:, 1].sum()
    best = torch.where((reached | ~usable).all(1), error, torch.inf).argmin()[None]
    fitted = torch.cat([p.index_select(0, best), q.index_select(0, best)]).T.clamp(0, 1)
    as_it_is = torch.stack([one[:, 0], zero[:, 0]], -1)
    return torch.where(usable[:, None] & (usable.sum() >= 2), fitted, as_it_is)


def _crossings(start: Tensor, along: Tensor) -> Tensor:
    """Where the lines start + t along meet, all pairs of them [M * M, 2]; (0, 0) for parallel ones."""
    a, da, b, db = start[:, None], along[:, None], start[None], along[None]
    cross = da[..., 0] * db[..., 1] - da[..., 1] * db[..., 0]
    parallel = cross.abs() < EXACT
    gap = b - a
    t = (gap[..., 0] * db[..., 1] - gap[..., 1] * db[..., 0]) / torch.where(parallel, torch.ones_like(cross), cross)
    points = torch.where(parallel[..., None], torch.zeros_like(gap), a + t[..., None] * da)
    return points.reshape(-1, 2)


def equal_cost(sums: Tensor, cost: str) -> Tensor:
    """(m, base rate) of each group [G, 2] from (rows, sum of scores) by group and label [G, 2, 2].

    A group without both labels has no cost and stays as it is. One whose base rate costs it less than the highest cost
    cannot be brought up to it and gets m = 1, the nearest it can come; one that its base rate would not bring up at all
    gets 0.
    """
    number, score = sums[..., 0], sums[..., 1]
    usable = (number > 0).all(-1)
    mean = score / number.clamp_min(1)
    base = number[:, 1] / number.sum(-1).clamp_min(1)
    c_fp, c_fn = mean[:, 0], 1 - mean[:, 1]
    own, trivial = {
        "fnr": (c_fn, 1 - base),
        "fpr": (c_fp, base),
        "weighted": (base * c_fn + (1 - base) * c_fp, 2 * base * (1 - base)),
    }[cost]
    highest = torch.where(usable, own, -torch.inf).amax()
    wanted, possible = highest - own, trivial - own
    m = torch.where(possible > 0, wanted / torch.where(possible > 0, possible, 1.0), torch.zeros_like(own)).clamp(0, 1)
    return torch.stack([torch.where(usable & (usable.sum() >= 2), m, torch.zeros_like(m)), base], -1)


# -- putting them together ---------------------------------------------------------------------------------------------


@cache
def compose(kind: type[Method], how: type[PostProcessed]) -> type[Method]:
    """The class of a method with this post-processing: its fields are those of both."""
    name = f"{kind.name}+{how.post_suffix}"
    if issubclass(kind, PostProcessed):
        raise ConfigError(f"{name}: {kind.name} is post-processed already. Name one rule after the plus.")
    if "binary" not in kind.tasks:
        raise ConfigError(f"{name}: post-processing is for two classes, and {kind.name} is not.")
    clash = _own_names(how) & set(dir(kind))
    if clash:
        raise ConfigError(
            f"{name}: {kind.__name__} defines {', '.join(sorted(clash))}, which {how.__name__} would override. "
            "Give it another name there."
        )
    about = {"eo": "equal TPR and FPR for all groups", "ceo": "equal cost and calibrated scores for all groups"}
    body = {
        "name": name,
        "parent": "",
        "tasks": ("binary",),
        "__module__": __name__,
        "__doc__": f"{kind.name}, post-processed: {about[how.post_suffix]}, fitted on training rows after the last "
        "round.",
    }
    return dataclass(frozen=True)(type(f"{kind.__name__}{how.__name__}", (how, kind), body))


def _own_names(how: type[PostProcessed]) -> set[str]:
    """What the rule defines beyond the protocol, which the method inside must not."""
    fields = {field.name for field in dataclasses.fields(how)}
    defined = {name for base in how.__mro__ if issubclass(base, PostProcessed) for name in vars(base)}
    return {name for name in fields | defined if not name.startswith("__")} - set(dir(Method))


def _around(method: Method, how: type[PostProcessed], **options: Any) -> Method:
    if not isinstance(method, Method):
        raise ConfigError(f"Post-processing goes around a method such as equifed.methods.FedAvg(), got {method!r}.")
    values = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
    return compose(type(method), how)(**values, **options)  # type: ignore[arg-type]


def _inside(phase: Phase) -> Phase:
    """The phase of the method inside, on its part of the states."""
    work = phase.client
    if isinstance(work, LocalTraining):

        def prepare(down: Record, state: Client, data: Data) -> Start:
            return work.prepare(down, state.inner, data)

        def finish(parameters: Tree, down: Record, state: Client, data: Data, context: Tree) -> tuple[Record, Client]:
            reply, inner = work.finish(parameters, down, state.inner, data, context)
            return reply, state._replace(inner=inner)

        client: Any = dataclasses.replace(work, prepare=prepare, finish=finish)
    else:

        def client(down: Record, state: Client, data: Data) -> tuple[Record, Client]:
            reply, inner = work(down, state.inner, data)
            return reply, state._replace(inner=inner)

    def server(server: Server, replies: Record, validation: Data | None) -> Server:
        return server._replace(inner=phase.server(server.inner, replies, validation))

    return dataclasses.replace(phase, client=client, server=server)


def _score(prediction: Tensor) -> Tensor:
    """The probability of class 1 [n]."""
    return prediction if prediction.dim() == 1 else prediction[..., 1]
