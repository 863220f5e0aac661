"""Server optimisers: Reddi et al., Adaptive Federated Optimization, ICLR 2021.

Wraps any method that moves its model by the clients' updates. D is the change of its model in a round:

    D = theta after the round - theta before
    m <- beta1 m + (1 - beta1) D                                                                        (all of them)
    v <- v + D^2                                                                                        (X@adagrad)
    v <- v - (1 - beta2) D^2 sign(v - D^2)                                                              (X@yogi)
    v <- beta2 v + (1 - beta2) D^2                                                                      (X@adam)
    theta <- theta before + eta m / (sqrt(v) + tau)            X@momentum:  theta <- theta before + eta m

m starts at 0, v at tau^2, without bias correction. X@momentum with beta1 = 0 and eta = 1 is X itself. The clients' work
and the messages are those of X.
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
    """The base of the server optimisers; not itself a wrapper."""

    citation: ClassVar[str] = "Server optimisers: Reddi et al., Adaptive Federated Optimization, ICLR 2021."

    beta1: float = hyper(0.9, low=0, high=0.9999)
    """Weight of the previous rounds in the direction."""

    def __post_init__(self) -> None:
        if isinstance(self.inner, Method):
            if any(isinstance(part, ServerOptimizer) for part in self.inner.parts):
                raise ConfigError(f"{self.name}: {self.inner.name} already has a server optimiser. Give only one.")
            if not any(phase.updates for phase in self.inner.round):
                raise ConfigError(
                    f"{self.name}: a server optimiser uses the clients' updates as a gradient, and {self.inner.name} "
                    "does not move the server's model by updates. Leave it out."
                )
        super().__post_init__()

    def compute_step(self, m: Tree, v: Tree, D: Tree) -> tuple[Tree, Tree]:
        """Return the step from theta, and the new v, from the new m."""
        raise NotImplementedError

    def own_server(self, task: Task, parameters: Tree) -> Record:
        zeros = tree.zeros_like(parameters)
        return {"m": zeros, "before": zeros} if self.moving else {"m": zeros}

    @property
    def moving(self) -> int:
        """The index of the last phase of a round that moves the model; later phases see the model after the step."""
        return max(number for number, phase in enumerate(self.inner.round) if phase.updates)

    @property
    def round(self) -> tuple[Phase, ...]:
        phases = list(super().round)
        phases[self.moving] = self.add_step(phases[self.moving])
        if self.moving:
            phases[0] = self.store_before(phases[0])
        return tuple(phases)

    def store_before(self, phase: Phase) -> Phase:
        """Return the round's first phase with theta stored before it, if theta may move in several phases."""

        def step(server: Around, replies: Record, validation: Data | None) -> Around:
            before = trained_model(server)
            after: Around = phase.server(server, replies, validation)
            return after._replace(own={**after.own, "before": before})

        return dataclasses.replace(phase, server=step)

    def add_step(self, phase: Phase) -> Phase:
        """Return the phase with the optimiser's step at its end."""

        def step(server: Around, replies: Record, validation: Data | None) -> Around:
            before = server.own["before"] if self.moving else trained_model(server)
            server = phase.server(server, replies, validation)
            after, own = trained_model(server), server.own
            D = tree.sub(after, before)
            m = tree.map(lambda m, d: self.beta1 * m + (1 - self.beta1) * d, own["m"], D)
            ahead, v = self.compute_step(m, own.get("v", ()), D)
            # if the step equals D, theta has the same bits as in the inner method
            theta = tree.map(lambda a, b, s, d: torch.where(s == d, a, b + s), after, before, ahead, D)
            new = {"m": m} | ({"v": v} if "v" in own else {})
            # a round without rows has D = 0 and leaves m and v unchanged
            went = tree.squared_norm(D) > 0
            theta, kept = tree.where(went, (theta, new), (after, {name: own[name] for name in new}))
            return Around(with_model(server.inner, theta), own | kept)

        return dataclasses.replace(phase, server=step)

    def observe(self, server: Around) -> dict[str, Tensor]:
        return {**super().observe(server), "server_momentum_norm": tree.squared_norm(server.own["m"]).sqrt()}


def trained_model(server: Any) -> Tree:
    """Return the model that updates move. Another one may predict, such as a mean over the rounds."""
    return trained_model(server.inner) if isinstance(server, Around) else server.theta


def with_model(server: Any, theta: Tree) -> Any:
    """Return the server's state with another model, inside any number of wrappers."""
    if isinstance(server, Around):
        return server._replace(inner=with_model(server.inner, theta))
    return server._replace(theta=theta)


@dataclass(frozen=True)
class Momentum(ServerOptimizer):
    """A server step with momentum from the previous rounds."""

    suffix: ClassVar[str] = "@momentum"

    server_learning_rate: float = hyper(1.0, low=0)
    """eta: step size of the server; 1 with a beta1 of 0 gives the method itself."""

    def compute_step(self, m: Tree, v: Tree, D: Tree) -> tuple[Tree, Tree]:
        return tree.scale(m, self.server_learning_rate), v


@dataclass(frozen=True)
class Adaptive(ServerOptimizer):
    """The base of optimisers with a step size for each parameter; not itself a wrapper."""

    server_learning_rate: float = hyper(0.1, low=0)
    """eta: step size of the server; try 0.01 to 1 on validation rows."""
    tau: float = hyper(1e-3, low=1e-9)
    """Constant added to the root of v: the smaller, the more similar the steps of all parameters."""

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the new v from the previous one and D^2."""
        raise NotImplementedError

    def own_server(self, task: Task, parameters: Tree) -> Record:
        v = tree.map(lambda leaf: torch.zeros_like(leaf) + self.tau**2, parameters)
        return {**super().own_server(task, parameters), "v": v}

    def compute_step(self, m: Tree, v: Tree, D: Tree) -> tuple[Tree, Tree]:
        v = tree.map(lambda v, d: self.second(v, d * d), v, D)
        return tree.map(lambda m, v: self.server_learning_rate * m / (v.sqrt() + self.tau), m, v), v


@dataclass(frozen=True)
class Adagrad(Adaptive):
    """A server step that is smaller for parameters that have moved far, and shrinks over the rounds."""

    suffix: ClassVar[str] = "@adagrad"

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


@dataclass(frozen=True)
class Fading(Adaptive):
    """The base of optimisers with a decaying v; not itself a wrapper."""

    beta2: float = hyper(0.99, low=0, high=0.9999)
    """Weight of the previous rounds in v."""


@dataclass(frozen=True)
class Adam(Fading):
    """A server step that is smaller for parameters that have moved far in recent rounds."""

    suffix: ClassVar[str] = "@adam"

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class Yogi(Fading):
    """A server step like Adam's, with a v that falls no faster than it rises."""

    suffix: ClassVar[str] = "@yogi"

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)
