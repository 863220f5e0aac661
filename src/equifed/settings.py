"""How a run is made: one value with one set of defaults, for Python, configuration files, the command line, Flower and
results."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypedDict

from equifed.channel import Channel
from equifed.errors import ConfigError, check_number, unknown_name
from equifed.training import Local

EngineName = Literal["lanes", "reference"]


@dataclass(frozen=True)
class RunSettings:
    """How long a run is, who takes part, how often it is measured, and on which machine."""

    rounds: int = field(default=40, metadata={"low": 1})
    """Rounds of training."""
    clients_per_round: int | Literal["all"] | None = None
    """Clients sampled in each round, or "all". Left out: the preset's number, or all clients where there is none."""
    seeds: Sequence[int] | int | None = None
    """A list of seeds, or how many (0, 1, ...), all in one computation. Each has its own initial model and batches, and
    in configuration files and on the command line its own split and partition. Left out: the federations' own."""
    eval_every: int = field(default=1, metadata={"low": 1})
    """Evaluate after every so many rounds; the last round is always evaluated."""
    dropout: float = field(default=0.0, metadata={"low": 0})
    """Probability that a sampled client does not answer."""
    engine: EngineName = "lanes"
    """"lanes" (all clients at once, fast) or "reference" (one client at a time, for checking and debugging)."""
    device: str = "auto"
    """"auto", "cpu", "cuda" or "cuda:N"."""
    compile: bool | Literal["auto"] = "auto"
    """Compile the training step; "auto" decides by the length of the run."""
    clip: float | None = None
    """The largest L2 norm that a client's model update may have; longer ones are scaled down to it. Left out: any."""
    local: Local = field(default_factory=Local)
    """How each client trains in a round."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if "low" in each.metadata:
                whole = type(each.default) is int
                check_number(each.name, getattr(self, each.name), whole=whole, low=each.metadata["low"])
        _ = self.channel  # which checks its own settings
        if self.dropout >= 1:
            raise ConfigError(f"dropout is a probability below 1, got {self.dropout}.")
        if self.clients_per_round not in (None, "all"):
            check_number("clients_per_round", self.clients_per_round, whole=True, low=1)
        if self.seeds is not None:
            object.__setattr__(self, "seeds", _checked_seeds(self.seeds))
        if self.engine not in ("lanes", "reference"):
            raise ConfigError(unknown_name("engine", self.engine, ("lanes", "reference")))
        if not isinstance(self.device, str):
            raise ConfigError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {self.device!r}.")
        if self.compile not in (True, False, "auto"):
            raise ConfigError(f"compile must be True, False or 'auto', got {self.compile!r}.")
        if not isinstance(self.local, Local):
            raise ConfigError(f"local must be equifed.Local(...), got {self.local!r}.")

    @property
    def seed_list(self) -> list[int]:
        """The seeds, none where they are left to the federations."""
        return [] if self.seeds is None or isinstance(self.seeds, int) else list(self.seeds)

    @property
    def channel(self) -> Channel:
        """What replies go through."""
        return Channel(self.clip)

    def changed(self, options: RunOptions) -> RunSettings:
        """These settings with some of them replaced."""
        return dataclasses.replace(self, **options)


class RunOptions(TypedDict, total=False):
    """The fields of `RunSettings` as keyword arguments."""

    rounds: int
    clients_per_round: int | Literal["all"] | None
    seeds: Sequence[int] | int | None
    eval_every: int
    dropout: float
    engine: EngineName
    device: str
    compile: bool | Literal["auto"]
    clip: float | None
    local: Local


def _checked_seeds(given: Any) -> tuple[int, ...]:
    if isinstance(given, numbers.Integral):
        check_number("seeds, when it says how many,", given, whole=True, low=1)
        return tuple(range(int(given)))
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(f"seeds must be a list of whole numbers, or how many, got {given!r}.")
    seeds = tuple(given)
    if not seeds:
        raise ConfigError("seeds must name at least one seed.")
    for seed in seeds:
        check_number("a seed", seed, whole=True, low=0)
    if len(set(seeds)) != len(seeds):
        raise ConfigError(f"seeds must differ, got {list(seeds)}.")
    return tuple(int(seed) for seed in seeds)
