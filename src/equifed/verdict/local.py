"""Local and global gaps at once: every client's own gap, and which clients have one of the opposite sign."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd

from equifed.metrics.local import SIGNED, gap_interval
from equifed.metrics.seeds import LEVEL
from equifed.verdict.groups import SMALL_GROUP

Mark = Literal["", "opposite by sign", "opposite"]


@dataclass(frozen=True)
class Client:
    """One client's gap, the mean over the seeds in which it has one."""

    name: str
    gap: float
    """Negative where it has the opposite sign of the gap over all clients."""
    low: float
    high: float
    """95 % interval, as the client's rows of one test set support it."""
    sure_low: float
    sure_high: float
    """The interval that holds for all clients at once (Bonferroni)."""
    rows: float
    """Test rows of the smaller of the two groups that the gap rests on."""
    seeds: int

    @property
    def mark(self) -> Mark:
        """opposite: beyond chance, whichever of all clients it is."""
        return "opposite" if self.sure_high < 0 else "opposite by sign" if self.gap < 0 else ""

    @property
    def few(self) -> bool:
        return self.rows < SMALL_GROUP


@dataclass(frozen=True)
class Local:
    """The clients' gaps of one variant in one metric."""

    metric: str
    overall: float
    """The gap over all clients' test rows, between the two groups that are farthest apart there."""
    pair: tuple[str, str] | None
    """Those groups, the one that is ahead first; None where they are not the same in all seeds."""
    outcome: str
    """Of more than two classes the one in which they are; "" for two, and where it is not the same in all seeds."""
    clients: tuple[Client, ...]
    """Those that have both groups, the most opposite first."""

    @classmethod
    def of(cls, frame: pd.DataFrame, metric: str) -> Local | None:
        """frame: `Result.local_gaps` of one setting. None where no client has a gap."""
        known = frame[(frame["metric"] == metric) & frame["value"].notna()]
        if known.empty:
            return None
        pairs = set(zip(known["higher"], known["lower"], known["class"], strict=True))
        means = known.groupby("client", sort=False).agg(
            {"higher_rate": "mean", "lower_rate": "mean", "higher_rows": "mean", "lower_rows": "mean", "seed": "count"}
        )
        rates, rows = (means[[f"higher_{what}", f"lower_{what}"]].to_numpy(dtype=float) for what in ("rate", "rows"))
        ends = (*gap_interval(rates, rows), *gap_interval(rates, rows, LEVEL / len(means)))
        values = np.stack([rates[:, 0] - rates[:, 1], *ends, rows.min(-1)], -1).tolist()
        clients = [
            Client(str(name), *numbers, seeds)  # type: ignore[call-arg]
            for name, numbers, seeds in zip(means.index, values, means["seed"].tolist(), strict=True)
        ]
        overall = known.groupby("seed")["overall"].first().mean()
        higher, lower, outcome = next(iter(pairs))
        pair = (higher, lower) if len(pairs) == 1 else None
        outcome = outcome if pair else ""
        return cls(metric, float(overall), pair, outcome, tuple(sorted(clients, key=lambda client: client.gap)))

    @cached_property
    def opposite(self) -> list[Client]:
        """Whose gap has the opposite sign."""
        return [client for client in self.clients if client.mark]

    @cached_property
    def reversed(self) -> list[Client]:
        """Those of which chance does not explain it."""
        return [client for client in self.clients if client.mark == "opposite"]

    @cached_property
    def wider(self) -> list[Client]:
        """Whose gap, of either sign, is wider than the one over all clients, beyond what chance explains."""
        return [client for client in self.clients if max(client.sure_low, -client.sure_high) > self.overall]


def local_data(frames: Sequence[pd.DataFrame], most: int) -> dict[str, list[dict[str, Any] | None]]:
    """By metric, of every variant. frames: `Result.local_gaps` of each. most: points beyond which none are listed."""
    found = {metric: [Local.of(frame, metric) for frame in frames] for metric in SIGNED}
    points = sum(len(local.clients) for of_variants in found.values() for local in of_variants if local)
    return {
        metric: [None if local is None else _facts(local, listed=points <= most) for local in of_variants]
        for metric, of_variants in found.items()
        if any(of_variants)
    }


def _facts(local: Local, listed: bool) -> dict[str, Any]:
    gaps = np.array([client.gap for client in local.clients])
    return {
        "overall": local.overall,
        "pair": local.pair,
        "outcome": local.outcome,
        "count": len(local.clients),
        "opposite": len(local.opposite),
        "reversed": len(local.reversed),
        "wider": len(local.wider),
        "range": [float(gaps.min()), float(gaps.max())],
        "clients": [
            {**vars(client), "mark": client.mark, "few": client.few}
            for client in (local.clients if listed else local.reversed)
        ],
        "listed": listed,
    }
