"""Robust rules against silos that lie: accuracy and gap of FedAvg with each rule, with and without liars.

    python benchmarks/robust.py [--data adult] [--clients 20] [--rounds 30] [--seeds 3] [--shares 0.1,0.2,0.3]

The rows of the data set are dealt to the clients at random, and a share of the clients lies in every round:

    sign flip            it sends the opposite of its update
    scaling              its update, times 10
    scaled sign flip     the opposite, times 10
    label flip           what training with the other label on all its rows gives
    scaled label flip    the same, times 10

A rule is told the share that lies. Every number is a mean over seeds on the test rows. Then the case against robust
rules: nobody lies, and one group has most of its rows at a few clients that differ from the others. A few minutes on a
core.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import equifed as ef
from equifed import tree
from equifed.federation import Federation
from equifed.methods import FedAvg
from equifed.protocol import Data, LocalTraining, Phase, Record
from equifed.settings import RULES
from equifed.tree import Tree

ATTACKS: dict[str, tuple[float, bool]] = {
    "sign flip": (-1.0, False),
    "scaling": (10.0, False),
    "scaled sign flip": (-10.0, False),
    "label flip": (1.0, True),
    "scaled label flip": (10.0, True),
}
"""What liars multiply their updates by, and whether they exchange labels."""
GAP = "demographic_parity_difference"


@dataclass(frozen=True)
class Lying(FedAvg):
    """FedAvg in which some clients multiply their updates by a number before they send them."""

    name: ClassVar[str] = "lying"

    liars: tuple[int, ...] = field(default=(), metadata={"hyper": False})
    """Positions of the clients that lie."""
    factor: float = field(default=1.0, metadata={"hyper": False})

    @property
    def round(self) -> tuple[Phase, ...]:
        return tuple(self._lied(phase) for phase in super().round)

    def _lied(self, phase: Phase) -> Phase:
        work = phase.client
        assert isinstance(work, LocalTraining)

        def finish(parameters: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
            reply, state = work.finish(parameters, down, state, data, context)
            factor = torch.where(self._lies(data.client), self.factor, 1.0)
            return {**reply, **{field: tree.scale(reply[field], factor) for field in phase.updates}}, state

        return replace(phase, client=replace(work, finish=finish))

    def _lies(self, client: Tensor | None) -> Tensor:
        assert client is not None
        return (client == torch.tensor(self.liars, dtype=client.dtype, device=client.device)).any()


def flipped(federation: Federation, liars: Sequence[int]) -> Federation:
    """The federation in which these clients have the other label on all their training rows."""
    y = federation.rows.y.copy()
    for client in liars:
        y[federation.train[client]] = 1 - y[federation.train[client]]
    return replace(federation, rows=federation.rows._replace(y=y))


def attacked(feds: Sequence[Federation], attack: str, share: float, **options: Any) -> ef.Result:
    """FedAvg where this share of the clients lies."""
    liars = tuple(range(round(share * feds[0].num_clients))) if attack else ()
    factor, labels = ATTACKS[attack] if attack else (1.0, False)
    told = [flipped(fed, liars) for fed in feds] if labels else list(feds)
    return ef.simulate(Lying(liars=liars, factor=factor), told, clients_per_round="all", eval_every=1000, **options)


def means(frame: pd.DataFrame) -> tuple[float, float]:
    """Accuracy and gap over the test rows of all, from rows of `metrics`."""
    frame = frame[(frame["split"] == "test") & (frame["scope"] == "global")]
    accuracy, gap = (float(frame.loc[frame["metric"] == name, "value"].mean()) for name in ("accuracy", GAP))
    return accuracy, gap


def shown(found: tuple[float, float]) -> str:
    return f"{100 * found[0]:.1f} ({found[1]:.3f})"


def table(feds: Sequence[Federation], shares: Sequence[float], rounds: int) -> None:
    options: dict[str, Any] = {"model": ef.models.Logistic(), "rounds": rounds}
    print("| who lies | how | plain mean |", " | ".join(RULES), "|")
    print("|---|---|" + "---|" * (1 + len(RULES)))
    for attack, share in [("", 0.0), *((attack, share) for attack in ATTACKS for share in shares)]:
        cells, plain = [], (np.nan, np.nan)
        for rule in RULES:
            result = attacked(feds, attack, share, robust=rule, liars=share or max(shares), **options)
            cells.append(shown(means(result.metrics)))
            plain = means(result.plain_mean)
        who = f"{share:.0%} of clients" if attack else "nobody"
        print(f"| {who} | {attack} | {shown(plain)} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="adult")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--shares", default="0.1,0.2,0.3")
    given = parser.parse_args()
    feds = ef.load(given.data, partition=ef.partition.IID(given.clients), seeds=range(given.seeds))
    table(feds, [float(share) for share in given.shares.split(",")], given.rounds)


if __name__ == "__main__":
    main()
