"""Ditto: Li, Hu, Beirami, Smith, Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021.

Wraps any method that trains one common model theta; `ditto` wraps FedAvg. In every round, client k

    works on theta as it does without Ditto
    v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - theta)),  theta as received, before the server's step

v_k starts at theta's initial value, predicts for client k, and never leaves it. lambda = 0 is training alone (`local`);
the larger lambda, the closer v_k is to theta.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from equifed import tree
from equifed.errors import ConfigError
from equifed.methods._cells import DIFFERENCES, gap, positive
from equifed.methods._personal import fit_client
from equifed.methods._wrapper import Around, Wrapper, derived
from equifed.methods.fedavg import FedAvg
from equifed.methods.hyper import hyper
from equifed.protocol import (
    Data,
    EmpiricalRisk,
    Knob,
    LocalTraining,
    Method,
    Phase,
    Record,
    Start,
    Task,
    ignore_replies,
    notions,
    wrap_work,
)
from equifed.tree import Tree


@dataclass(frozen=True)
class Ditto(Wrapper):
    """Also train a personal model for each client that stays close to the common one, and predict with it."""

    suffix: ClassVar[str] = "+ditto"
    citation: ClassVar[str] = (
        "Ditto: Li, Hu, Beirami, Smith, Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021."
    )
    name: ClassVar[str] = derived(lambda self: "ditto" if self.plain else f"{self.inner.name}{self.suffix}")
    personal: ClassVar[bool] = True
    knob: ClassVar[Knob | None] = Knob(
        "personal_fairness_weight",
        0.1,
        30.0,
        notions(**{name.removesuffix("_difference"): {"personal_fairness": name} for name in DIFFERENCES}),
        neutral=0.0,
    )
    fit_reveals: ClassVar[str] = "the number of clients that had not trained by the end of the last round"

    inner: Method = dataclasses.field(default=FedAvg(), metadata={"hyper": False})

    proximity: float = hyper(1.0, low=0)
    """lambda: how strongly v_k is pulled to theta, usually 0.1 to 2; 0: every client trains alone."""
    personal_epochs: int = hyper(0, low=0, high=1_000_000)
    """Passes over the rows for v_k in a round; 0: as many as for theta."""
    personal_fairness: str = hyper("none", choices=("none", *DIFFERENCES))
    """Gap between groups that is added to v_k's loss, computed from the batch's probabilities instead of decisions."""
    personal_fairness_weight: float = hyper(1.0, low=0)
    """Weight of that gap."""

    def __post_init__(self) -> None:
        if isinstance(self.inner, Method):
            name = self.inner.name
            why = (
                f"the clients of {name} already have personal models"
                if self.inner.personal
                else f"{name} trains in one place, without clients"
                if self.inner.pooled
                else f"{name} changes predictions of theta, not those of personal models; put its suffix after Ditto's"
                if self.inner.adjusts
                else f"{name} does not send its clients a model to stay close to"
                if not any("theta" in phase.down for phase in self.inner.round)
                else ""
            )
            if why:
                raise ConfigError(f"Ditto cannot wrap {name}: {why}.")
        super().__post_init__()

    @property
    def plain(self) -> bool:
        """True for the paper's Ditto, around FedAvg."""
        return type(self.inner) is FedAvg

    @property
    def parts(self) -> tuple[Method, ...]:
        return (self,) if self.plain else super().parts

    def check(self, task: Task) -> None:
        super().check(task)
        rate = task.local.largest_rate(task.rounds)
        if task.local.optimizer == "sgd" and rate * self.proximity > 1:
            raise ConfigError(
                f"is {self.proximity:g}, and times the learning rate, {rate:g}, it is more than 1: every step would "
                f"overshoot theta, and training could diverge. Set it to {1 / rate:g} or less, or lower the learning "
                "rate.",
                key="proximity",
            )
        if self.personal_fairness != "none" and (task.kind == "regression" or task.num_classes != 2):
            raise ConfigError(f"is {self.personal_fairness!r}, which needs two classes.", key="personal_fairness")

    # -- exchanges -----------------------------------------------------------------------------------------------------

    @property
    def round(self) -> tuple[Phase, ...]:
        phases = list(super().round)
        first = next(number for number, phase in enumerate(phases) if "theta" in phase.down)
        phases[first] = dataclasses.replace(phases[first], client=wrap_work(phases[first].client, keep_theta))
        return (*phases, Phase("personal", (), (), self.training(keep_v, from_own), ignore_replies, "sum"))

    @property
    def final(self) -> tuple[Phase, ...]:
        begin = dataclasses.replace(self.training(begin_late, from_theta), scheduled=False)
        return (*super().final, Phase("personal", ("theta",), ("clients",), begin, count_late, "sum"))

    def training(self, finish: Callable[..., Any], prepare: Callable[..., Start]) -> LocalTraining:
        """Return the local training of v_k."""
        return LocalTraining(finish, self.loss, prepare, epochs=self.personal_epochs or None)

    @property
    def loss(self) -> Callable[[Tree, Tree, Data], Tensor]:
        near = EmpiricalRisk(mu=self.proximity)
        if self.personal_fairness == "none":
            return near

        def fair(v: Tree, context: Tree, batch: Data) -> Tensor:
            p = positive(batch.task.predict(v, batch.x))
            apart, _ = gap(p, torch.ones_like(p), batch, self.personal_fairness)
            return near(v, context, batch) + self.personal_fairness_weight * apart

        return fair

    # -- states --------------------------------------------------------------------------------------------------------

    def own_server(self, task: Task, parameters: Tree) -> Record:
        return {"late": tree.zeros(parameters)}

    def own_client(self, task: Task, parameters: Tree) -> Record:
        return {"v": parameters, "theta": parameters, "trained": tree.zeros(parameters)}

    # -- use -----------------------------------------------------------------------------------------------------------

    def predict(self, task: Task, server: Around, client: Around, x: Tensor) -> Tensor:
        return task.predict(client.own["v"], x)

    def adapt(self, task: Task, server: Around, data: Data, steps: int) -> Around:
        """Return v of a client that was not in the training, after steps from theta with the same loss."""
        theta = self.model_of(server, ())
        state = self.init_client(task, theta)
        v = fit_client(self.training(keep_v, from_own), from_own({}, state, data), data, steps)
        return state._replace(own={**state.own, "v": v})

    def observe(self, server: Around) -> dict[str, Tensor]:
        """Return the number of clients that started their own model only after the last round."""
        return {**super().observe(server), "late_starts": server.own["late"]}


def keep_theta(down: Record, state: Around, reply: Record, after: Any) -> tuple[Record, Around]:
    return reply, after._replace(own={**after.own, "theta": down["theta"]})


def from_own(down: Record, state: Around, data: Data) -> Start:
    """Start from the client's own v, near the theta that it keeps."""
    return Start(state.own["v"], context={"centre": state.own["theta"]})


def keep_v(v: Tree, down: Record, state: Around, data: Data, context: Tree) -> tuple[Record, Around]:
    """Keep v; a client without rows takes theta."""
    v = tree.where(data.n > 0, v, context["centre"])
    return {}, state._replace(own={**state.own, "v": v, "trained": torch.ones_like(data.n)})


def from_theta(down: Record, state: Around, data: Data) -> Start:
    return Start(down["theta"], context={"centre": down["theta"]})


def begin_late(v: Tree, down: Record, state: Around, data: Data, context: Tree) -> tuple[Record, Around]:
    """After the last round, start v at clients that do not have one; all others keep theirs."""
    late = state.own["trained"] == 0
    v = tree.where(late, v, state.own["v"])
    return {"clients": late.to(data.mask.dtype)}, state._replace(own={**state.own, "v": v})


def count_late(server: Around, replies: Record, validation: Data | None) -> Around:
    return server._replace(own={**server.own, "late": replies["clients"]})
