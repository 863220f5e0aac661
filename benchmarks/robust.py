"""Robust rules against silos that lie: accuracy and gap of FedAvg with each rule and with the plain mean.

    python benchmarks/robust.py [--data adult] [--clients 20] [--alpha 5] [--rounds 30] [--seeds 3] [--shares 0.1,0.3]

The rows of the data set are dealt to the clients at random, or with alpha in Dirichlet shares of each label and group,
and a share of the clients lies in every round:

    sign flip            it sends the opposite of its update
    scaling              its update, times 10
    scaled sign flip     the opposite, times 10
    label flip           what training with the other label on all its rows gives
    scaled label flip    the same, times 10

A rule is told the share that lies. Every number is a mean over seeds on the test rows: accuracy in %, in brackets the
demographic parity difference. Then the case against robust rules: nobody lies, and all rows of the smaller group are at
a fifth of the clients. Two minutes on a core.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import equifed as ef
from equifed import tree
from equifed.federation import Federation, RowSets
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


def measured(frame: pd.DataFrame, metric: str, scope: str = "global") -> float:
    """The mean over seeds on the test rows, from rows of `metrics`."""
    own = frame[(frame["split"] == "test") & (frame["scope"] == scope) & (frame["metric"] == metric)]
    return float(own["value"].mean())


def shown(frame: pd.DataFrame) -> str:
    return f"{100 * measured(frame, 'accuracy'):.1f} ({measured(frame, GAP):.3f})"


def attacks_table(feds: Sequence[Federation], shares: Sequence[float], **options: Any) -> None:
    print("| liars | how they lie | plain mean |", " | ".join(RULES), "|")
    print("|---|---|" + "---|" * (1 + len(RULES)))
    for attack, share in [("", 0.0), *((attack, share) for attack in ATTACKS for share in shares)]:
        found = [attacked(feds, attack, share, robust=rule, liars=share or max(shares), **options) for rule in RULES]
        cells = [shown(found[0].plain_mean), *(shown(result.metrics) for result in found)]
        print(f"| {share:.0%} | {attack or 'nobody lies'} | {' | '.join(cells)} |", flush=True)


def apart(fed: Federation, seed: int) -> Federation:
    """The federation with all training rows of its smallest group at the first fifth of the clients."""
    rows = np.random.default_rng(seed).permutation(fed.train.flat()[1])
    group = fed.rows.s[rows]
    smallest, few = int(np.bincount(group[group >= 0]).argmin()), fed.num_clients // 5
    own, others = rows[group == smallest], rows[group != smallest]
    parts = [*np.array_split(own, few), *np.array_split(others, fed.num_clients - few)]
    return replace(fed, train=RowSets.of(parts))


def minority_table(feds: Sequence[Federation], **options: Any) -> None:
    """Nobody lies."""
    feds = [apart(fed, seed) for seed, fed in enumerate(feds)]
    few = feds[0].num_clients // 5
    group = str(np.asarray(feds[0].groups)[np.bincount(feds[0].rows.s[feds[0].train[0]]).argmax()])
    names = ("accuracy", GAP, "equal_opportunity_difference")
    print(f"\n| | {' | '.join(names)} | accuracy of {group} | cut of its clients | cut of the others |")
    print("|---|" + "---|" * (len(names) + 3))
    for rule in RULES:
        result = attacked(feds, "", 0.0, robust=rule, liars=0.2, **options)
        first = result.cuts["client"].isin(result.info["clients"][:few])
        cut = [f"{result.cuts.loc[own, 'cut'].mean():.0%}" for own in (first, ~first)]
        lines = {"plain mean": (result.plain_mean, ["", ""])} if rule == RULES[0] else {}
        for name, (frame, more) in (lines | {rule: (result.metrics, cut)}).items():
            numbers = [*(measured(frame, metric) for metric in names), measured(frame, "accuracy", f"group:{group}")]
            print(f"| {name} | {' | '.join([*(f'{number:.3f}' for number in numbers), *more])} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="adult")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--alpha", type=float)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--shares", default="0.1,0.2,0.3")
    given = parser.parse_args()
    random, skewed = ef.partition.IID(given.clients), partial(ef.partition.Dirichlet, given.clients)
    feds = ef.load(given.data, partition=skewed(given.alpha) if given.alpha else random, seeds=range(given.seeds))
    options: dict[str, Any] = {"model": ef.models.Logistic(), "rounds": given.rounds}
    attacks_table(feds, [float(share) for share in given.shares.split(",")], **options)
    minority_table(feds, **options)


if __name__ == "__main__":
    main()
