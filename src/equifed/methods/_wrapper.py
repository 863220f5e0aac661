"""Wrappers: methods around another method. A wrapper takes everything that it does not change from the inner method."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor

from equifed.errors import ConfigError
from equifed.protocol import Data, Knob, Method, Phase, Record, Task, wrap_work
from equifed.tree import Tree


class Around(NamedTuple):
    """The state of the server, or of a client, under a wrapper."""

    inner: Any
    """State of the inner method."""
    own: Record
    """State of the wrapper, by name."""


class _Derived:
    def __init__(self, value: Callable[[Any], Any]) -> None:
        self.value = value

    def __get__(self, method: Method | None, kind: type[Method]) -> Any:
        if method is None:
            fields = kind.__dict__.get("__dataclass_fields__", {}).values()  # none while the class is created
            if not fields or any(field.default is dataclasses.MISSING for field in fields):
                return self
            method = kind()
        return self.value(method)


def derived(value: Callable[[Any], Any]) -> Any:
    """Return a class attribute of methods that is computed from an instance, such as a wrapper's from its inner method.
    The attribute of a class itself is that of the instance with all defaults, if each field has one."""
    return _Derived(value)


@dataclass(frozen=True)
class Wrapper(Method):
    """The base of methods around another: hyperparameters, phases and states of the inner method, and its own."""

    suffix: ClassVar[str] = ""
    """Suffix of the inner method's name."""
    citation: ClassVar[str] = ""
    """The wrapper's paper, in one line."""
    name: ClassVar[str] = derived(lambda self: f"{self.inner.name}{self.suffix}")
    knob: ClassVar[Knob | None] = derived(attrgetter("inner.knob"))
    label_kinds: ClassVar[tuple[str, ...]] = derived(attrgetter("inner.label_kinds"))
    needs_validation: ClassVar[bool] = derived(attrgetter("inner.needs_validation"))
    needs_client_groups: ClassVar[bool] = derived(attrgetter("inner.needs_client_groups"))
    personal: ClassVar[bool] = derived(attrgetter("inner.personal"))
    predicts_with: ClassVar[tuple[str, ...]] = derived(attrgetter("inner.predicts_with"))
    adjusts: ClassVar[bool] = derived(attrgetter("inner.adjusts"))
    keeps_gap: ClassVar[Literal["", "global", "local"]] = derived(attrgetter("inner.keeps_gap"))
    reveals: ClassVar[str] = derived(lambda self: "; ".join(filter(None, (self.inner.reveals, self.fit_reveals))))
    pooled: ClassVar[bool] = derived(attrgetter("inner.pooled"))
    sweepable: ClassVar[bool] = derived(attrgetter("inner.sweepable"))

    fit_reveals: ClassVar[str] = ""
    """Information that the wrapper's own sums disclose."""

    inner: Method = dataclasses.field(metadata={"hyper": False})

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Method):
            raise ConfigError(
                f"{type(self).__name__} wraps a method such as equifed.methods.FedAvg(), got {self.inner!r}."
            )
        shared = self.inner.hyper.keys() & super().hyper.keys()
        if shared:
            raise ConfigError(
                f"{self.name}: {self.inner.name} and {type(self).__name__} both have a hyperparameter "
                f"{', '.join(sorted(shared))}. Give it another name in one of them."
            )

    # -- hyperparameters -----------------------------------------------------------------------------------------------

    @property
    def parts(self) -> tuple[Method, ...]:
        return (*self.inner.parts, self)

    @property
    def hyper(self) -> dict[str, Any]:
        return {**self.inner.hyper, **super().hyper}

    def with_hyper(self, **values: Any) -> Method:
        own = {name: values.pop(name) for name in super().hyper if name in values}
        return dataclasses.replace(self, inner=self.inner.with_hyper(**values), **own)

    def check(self, task: Task) -> None:
        self.inner.check(task)

    @property
    def remembers(self) -> bool:
        return self.inner.remembers or type(self).own_client is not Wrapper.own_client

    # -- exchanges -----------------------------------------------------------------------------------------------------

    @property
    def setup(self) -> tuple[Phase, ...]:
        return tuple(self.around(phase) for phase in self.inner.setup)

    @property
    def round(self) -> tuple[Phase, ...]:
        return tuple(self.around(phase) for phase in self.inner.round)

    @property
    def final(self) -> tuple[Phase, ...]:
        return tuple(self.around(phase) for phase in self.inner.final)

    def around(self, phase: Phase) -> Phase:
        """Return a phase of the inner method that works on its part of the states."""

        def after(down: Record, state: Around, reply: Record, inner: Tree) -> tuple[Record, Around]:
            return reply, state._replace(inner=inner)

        def server(server: Around, replies: Record, validation: Data | None) -> Around:
            return server._replace(inner=phase.server(server.inner, replies, validation))

        return dataclasses.replace(phase, client=wrap_work(phase.client, after, attrgetter("inner")), server=server)

    @property
    def summed(self) -> Method | None:
        inner = self.inner.summed
        return None if inner is None else super(Wrapper, dataclasses.replace(self, inner=inner)).summed

    # -- states --------------------------------------------------------------------------------------------------------

    @property
    def num_models(self) -> int | None:
        return self.inner.num_models

    def init(self, task: Task, parameters: Tree) -> Around:
        return Around(self.inner.init(task, parameters), self.own_server(task, parameters))

    def init_client(self, task: Task, parameters: Tree) -> Around:
        return Around(self.inner.init_client(task, parameters), self.own_client(task, parameters))

    def own_server(self, task: Task, parameters: Tree) -> Record:
        """Return the wrapper's own state at the server before round 1, on the device of the parameters."""
        return {}

    def own_client(self, task: Task, parameters: Tree) -> Record:
        """Return the wrapper's own state at a client."""
        return {}

    def sent(self, server: Around, names: tuple[str, ...]) -> Record:
        own = {name: server.own[name] for name in names if name in server.own}
        return own | self.inner.sent(server.inner, tuple(name for name in names if name not in own))

    def received(self, fields: Record) -> Around:
        return Around(self.inner.received(fields), fields)

    def model_of(self, server: Around, clients: Any) -> Tree:
        # clients may be empty: their states may not be available
        return self.inner.model_of(server.inner, clients.inner if clients else ())

    # -- use -----------------------------------------------------------------------------------------------------------

    def predict(self, task: Task, server: Around, client: Around, x: Tensor) -> Tensor:
        return self.inner.predict(task, server.inner, client.inner, x)

    def adjust(self, task: Task, server: Around, client: Around, prediction: Tensor, s: Tensor, u: Tensor) -> Tensor:
        return self.inner.adjust(task, server.inner, client.inner, prediction, s, u)

    def draws(self, task: Task, server: Around, client: Around) -> bool:
        return self.inner.draws(task, server.inner, client.inner)

    def adapt(self, task: Task, server: Around, data: Data, steps: int) -> Around:
        return Around(self.inner.adapt(task, server.inner, data, steps), self.own_client(task, data.mask))

    def observe(self, server: Around) -> dict[str, Tensor]:
        return self.inner.observe(server.inner)

    def remedy(self, converged: bool) -> str:
        return self.inner.remedy(converged)

    @property
    def may_converge(self) -> bool:
        return self.inner.may_converge

    def converged(self, server: Around) -> Tensor:
        return self.inner.converged(server.inner)


def has_chance(chances: Tensor) -> bool:
    """Return True if any of these probabilities is neither 0 nor 1."""
    return bool(((chances > 0) & (chances < 1)).any())


@dataclass(frozen=True)
class PostProcessing(Wrapper):
    """The base of rules that change the predictions of a trained method and are fitted after its last round."""

    adjusts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.inner, Method) and self.inner.adjusts:
            raise ConfigError(
                f"{self.name}: {self.inner.name} is already post-processed. Give one rule after the plus."
            )
        super().__post_init__()
