"""Server optimisers: Reddi et al., Adaptive Federated Optimization, ICLR 2021.

Around any method that moves its model by the clients' updates. D is the way that its model goes in a round:

    D = theta after the round - theta before
    m <- beta1 m + (1 - beta1) D                                                                        (all of them)
    v <- v + D^2                                                                                        (X@adagrad)
    v <- v - (1 - beta2) D^2 sign(v - D^2)                                                              (X@yogi)
    v <- beta2 v + (1 - beta2) D^2                                                                      (X@adam)
    theta <- theta before + eta m / (sqrt(v) + tau)            X@momentum:  theta <- theta before + eta m

m starts at 0, v at tau^2, and neither is corrected for that. X@momentum with beta1 = 0 and eta = 1 is X itself. Clients
do what they do in X, and nothing else is sent.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from equifed import tree
from equifed.errors import ConfigError
from equifed.methods._wrapper import Around, Wrapper
from equifed.methods.hyper import hyper
from equifed.protocol import Data, Method, Phase, Record, Task
from equifed.tree import Tree


@dataclass(frozen=True)
class ServerOptimizer(Wrapper):
    """Base of the server optimisers; not a wrapper by itself."""

    citation: ClassVar[str] = "Server optimisers: Reddi et al., Adaptive Federated Optimization, ICLR 2021."

    beta1: float = hyper(0.9, low=0, high=0.9999)
    """How much of the direction is that of the rounds before."""

    def __post_init__(self) -> None:
        if isinstance(self.inner, Method):
            if any(isinstance(part, ServerOptimizer) for part in self.inner.parts):
                raise ConfigError(f"{self.name}: {self.inner.name} has a server optimiser already. Name one.")
            if not any(phase.updates for phase in self.inner.round):
                raise ConfigError(
                    f"{self.name}: a server optimiser takes the clients' updates for a gradient, and {self.inner.name} "
                    "does not move a model of the server by updates. Leave it out."
                )
        super().__post_init__()

    def ahead(self, m: Tree, v: Tree, D: Tree) -> tuple[Tree, Tree]:
        """The step from theta, and the new v; m is new already."""
        raise NotImplementedError

    def own_server(self, task: Task, parameters: Tree) -> Record:
        zeros = tree.zeros_like(parameters)
        return {"m": zeros, "before": zeros} if self.moving else {"m": zeros}

    @property
    def moving(self) -> int:
        """Which phase of a round is the last that moves the model: what follows it is to see it where it ends up."""
        return max(number for number, phase in enumerate(self.inner.round) if phase.updates)

    @property
    def round(self) -> tuple[Phase, ...]:
        phases = list(super().round)
        phases[self.moving] = self.stepping(phases[self.moving])
        if self.moving:
            phases[0] = self.remembering(phases[0])
        return tuple(phases)

    def remembering(self, phase: Phase) -> Phase:
        """The round's first phase, if theta may move in several."""

        def step(server: Around, replies: Record, validation: Data | None) -> Around:
            before = trained(server)
            after: Around = phase.server(server, replies, validation)
            return after._replace(own={**after.own, "before": before})

        return dataclasses.replace(phase, server=step)

    def stepping(self, phase: Phase) -> Phase:
        def step(server: Around, replies: Record, validation: Data | None) -> Around:
            before = server.own["before"] if self.moving else trained(server)
            server = phase.server(server, replies, validation)
            after, own = trained(server), server.own
            D = tree.sub(after, before)
            m = tree.map(lambda m, d: self.beta1 * m + (1 - self.beta1) * d, own["m"], D)
            ahead, v = self.ahead(m, own.get("v", ()), D)
            # where the step is D itself, theta is the very number that the method inside has
            theta = tree.map(lambda a, b, s, d: torch.where(s == d, a, b + s), after, before, ahead, D)
            new = {"m": m} | ({"v": v} if "v" in own else {})
            # a round in which nobody has rows goes nowhere, and leaves all as it was
            went = tree.squared_norm(D) > 0
            theta, kept = tree.where(went, (theta, new), (after, {name: own[name] for name in new}))
            return Around(moved(server.inner, theta), own | kept)

        return dataclasses.replace(phase, server=step)

    def observe(self, server: Around) -> dict[str, Tensor]:
        return {**super().observe(server), "server_momentum_norm": tree.squared_norm(server.own["m"]).sqrt()}


def trained(server: Any) -> Tree:
    """The model that updates move, which need not be the one that predicts, such as a mean over the rounds."""
    return trained(server.inner) if isinstance(server, Around) else server.theta


def moved(server: Any, theta: Tree) -> Any:
    """The server's state with another model, however many wrappers it is in."""
    if isinstance(server, Around):
        return server._replace(inner=moved(server.inner, theta))
    return server._replace(theta=theta)


@dataclass(frozen=True)
class Momentum(ServerOptimizer):
    """Goes on in the direction of the rounds before."""

    suffix: ClassVar[str] = "@momentum"

    server_learning_rate: float = hyper(1.0, low=0)
    """eta: how far the server goes; 1, with a beta1 of 0: as far as the method itself."""

    def ahead(self, m: Tree, v: Tree, D: Tree) -> tuple[Tree, Tree]:
        return tree.scale(m, self.server_learning_rate), v


@dataclass(frozen=True)
class Adaptive(ServerOptimizer):
    """Base of those that give every parameter a step size of its own; not a wrapper by itself."""

    server_learning_rate: float = hyper(0.1, low=0)
    """eta: how far the server goes; 0.01 to 1 are worth trying on validation rows."""
    tau: float = hyper(1e-3, low=1e-9)
    """Added to the root of v: the smaller, the more alike are the steps of all parameters."""

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """v from the one before and D^2."""
        raise NotImplementedError

    def own_server(self, task: Task, parameters: Tree) -> Record:
        v = tree.map(lambda leaf: torch.zeros_like(leaf) + self.tau**2, parameters)
        return {**super().own_server(task, parameters), "v": v}

    def ahead(self, m: Tree, v: Tree, D: Tree) -> tuple[Tree, Tree]:
        v = tree.map(lambda v, d: self.second(v, d * d), v, D)
        return tree.map(lambda m, v: self.server_learning_rate * m / (v.sqrt() + self.tau), m, v), v


@dataclass(frozen=True)
class Adagrad(Adaptive):
    """Smaller steps for parameters that have moved far; every step makes the later ones smaller."""

    suffix: ClassVar[str] = "@adagrad"

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


@dataclass(frozen=True)
class Fading(Adaptive):
    """Base of those whose v forgets; not a wrapper by itself."""

    beta2: float = hyper(0.99, low=0, high=0.9999)
    """How much of v is that of the rounds before."""


@dataclass(frozen=True)
class Adam(Fading):
    """Smaller steps for parameters that have moved far lately."""

    suffix: ClassVar[str] = "@adam"

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class Yogi(Fading):
    """Like Adam, but v falls no faster than it rises."""

    suffix: ClassVar[str] = "@yogi"

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)
