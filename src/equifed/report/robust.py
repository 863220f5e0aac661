"""What a robust rule did: whom it cut how often, and accuracy and gaps with it and with the plain mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from equifed.metrics import catalogue
from equifed.metrics.catalogue import describe
from equifed.results.counts import having
from equifed.results.model import settings_text
from equifed.verdict import wording

if TYPE_CHECKING:
    from equifed.results.result import Result

MORE = 0.05
"""A client whose updates are cut by this much more than those of all is named."""
CLEAR = 0.02
"""Groups whose clients are cut alike up to this are not distinguished."""


@dataclass(frozen=True)
class Client:
    """One client, over the seeds."""

    name: str
    updates: float
    """How many of its updates the rule looked at, in a run."""
    cut: float
    """How much of them it cut."""
    everyone: float
    """The same of all clients in these rounds."""
    shares: tuple[float, ...] = ()
    """Of its training rows in the first seed, those of each group; empty where that is not known."""

    @property
    def singled_out(self) -> bool:
        return self.cut > self.everyone + MORE


@dataclass(frozen=True)
class Group:
    """One group, over the seeds."""

    name: str
    cut: float | None
    """How much was cut of the updates of the clients that hold its rows, a mean over rows of the first seed; None where
    that is not known."""
    rates: tuple[tuple[float, float], ...]
    """Of each metric, with the rule and with the plain mean."""


@dataclass(frozen=True)
class Robustness:
    """What the rule did in one setting of a method."""

    label: str
    rule: str
    liars: float
    clients: tuple[Client, ...]
    """Those that were cut most, against the others of their rounds, first."""
    groups: tuple[Group, ...]
    names: tuple[str, ...]
    """The groups that `Client.shares` are of."""
    rates: tuple[str, ...]
    """The metrics of `Group.rates`."""
    overall: tuple[tuple[str, float, float], ...]
    """Metric, with the rule, with the plain mean. Empty on a real federation, which trains once."""

    @property
    def sentences(self) -> list[str]:
        """What it means."""
        named = [f"{wording.plain(client.name)} ({client.cut:.0%})" for client in self.clients if client.singled_out]
        return [
            f"The rule {self.rule}, set to withstand a share of {self.liars:g} liars among a round's clients, cut "
            + (
                f"more of some clients' updates than of all: {wording.listing(named)}."
                if named
                else "no client more than the others."
            ),
            "It cannot distinguish a malicious client from an honest one that is unlike the others, such as one with a "
            f"minority's rows: check the clients that it cuts.{self._by_group()}",
            self._with_and_without(),
        ]

    def _by_group(self) -> str:
        """Whether the clients that it cut hold some group's rows rather than another's."""
        known = sorted((group.cut, group.name) for group in self.groups if group.cut is not None)
        if len(known) < 2 or known[-1][0] - known[0][0] < CLEAR:
            return ""
        (least, first), (most, last) = known[0], known[-1]
        return (
            f" Of the updates of clients that hold rows of {wording.group(last)} it cut {most:.0%}, of those that hold "
            f"rows of {wording.group(first)} {least:.0%}."
        )

    def _with_and_without(self) -> str:
        if not self.overall:
            return (
                "A real federation trains once, so what the rule does to accuracy and gaps is not known here: run it "
                "again without the rule, or simulate both on rows like these."
            )
        values = {name: [*map(wording.number, both)] for name, *both in self.overall}
        said = "; ".join(
            f"{describe(name).title} is {values[name][0]}, and {values[name][1]} with the plain mean"
            for name in filter(None, catalogue.main_pair(values))
        )
        said = said[:1].upper() + said[1:]
        return f"{said}. The plain mean withstands no liar: where clients lied, it shows what they did."


def robustness(result: Result, split: str = "test") -> list[Robustness]:
    """Of every setting of a result; none without a rule."""
    return list(_settings(result, split)) if result.settings.robust is not None and len(result.cuts) else []


def _settings(result: Result, split: str) -> Iterator[Robustness]:
    keys = ["method", *result.swept]
    last = result.metrics[(result.metrics["round"] == result.metrics["round"].max())]
    cells = result.info.get("cells")
    rows = None if cells is None else np.asarray(cells, dtype=float).sum(2)  # [clients, groups]
    if rows is not None and not rows.sum():  # a server does not know them
        rows = None
    place = {name: k for k, name in enumerate(result.info["clients"])}
    groups = [str(name) for name in result.info["groups"]]
    for key, own in result.cuts.groupby(keys, observed=True, sort=False, dropna=False):
        setting = dict(zip(keys, key, strict=True))
        means = own.groupby("client", sort=False)[["updates", "cut", "everyone"]].mean()
        first = own[own["seed"] == own["seed"].iloc[0]]  # whose partition `cells` is
        cut = {str(name): float(share) for name, share in zip(first["client"], first["cut"], strict=True)}
        clients = [
            Client(str(name), updates, share, everyone, () if rows is None else _shares(rows[place[str(name)]]))
            for name, updates, share, everyone in means.itertuples()
        ]
        with_rule, plain = (_means(having(frame, setting), split) for frame in (last, result.plain_mean))
        measured = [name for scope, name in plain if scope == "global"]
        rates = [
            name
            for name in catalogue.ordered({name for scope, name in plain if scope.startswith("group:")})
            if describe(name).in_groups == "rate"
        ]
        yield Robustness(
            label=str(setting.pop("method")) + settings_text(setting),
            rule=str(result.settings.robust),
            liars=float(str(setting.get("liars", result.settings.liars))),
            clients=tuple(sorted(clients, key=lambda client: client.everyone - client.cut)),
            groups=tuple(
                Group(
                    name,
                    None if rows is None else _cut_of(rows[:, g], cut, place),
                    tuple((with_rule[f"group:{name}", rate], plain[f"group:{name}", rate]) for rate in rates),
                )
                for g, name in enumerate(groups)
            ),
            names=() if rows is None else tuple(groups),
            rates=tuple(rates),
            overall=tuple(
                (name, with_rule["global", name], plain["global", name])
                for name in (catalogue.shown(measured, "table") if measured else ())
            ),
        )


def _shares(rows: np.ndarray) -> tuple[float, ...]:
    return tuple((rows / max(rows.sum(), 1)).tolist())


def _cut_of(rows: np.ndarray, cut: Mapping[str, float], place: Mapping[str, int]) -> float | None:
    """The mean cut of the clients, each as often as it has these rows."""
    weights = np.array([rows[place[name]] for name in cut])
    return float(np.average([*cut.values()], weights=weights)) if weights.sum() else None


def _means(frame: pd.DataFrame, split: str) -> dict[tuple[str, str], float]:
    """Over seeds, by scope and metric."""
    if frame.empty:
        return {}
    own = frame[frame["split"] == split].astype({"scope": str, "metric": str})
    means: dict[Any, float] = own.groupby(["scope", "metric"])["value"].mean().to_dict()
    return means
