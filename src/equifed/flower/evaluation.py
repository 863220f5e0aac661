"""Evaluation where the test rows are: clients count on their own rows and withhold small counts; the server adds up.

A (group, label) row of counts with a cell below the limit is withheld as a whole. Withholding the small cell alone
would tell it: its row's sum is known from any other round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, RecordDict

from equifed.flower.records import EVALUATION, BadMessage, unpack
from equifed.protocol import Record, Task
from equifed.simulator.evaluate import Scored

WITHHELD = -1
FIELDS = ("counts", "loss", "ks", "mean")


def withheld(scored: Scored, min_count: int) -> ArrayRecord:
    """One client's scores as it sends them: [G, C, C] counts with -1 for what is withheld, and 0 in its place in the
    sums that belong to it."""
    counts = scored.counts[0].astype(np.int64)  # [G, C, C], or [G, 1, 1] for regression
    small = (counts < min_count).any(-1)  # [G, C]
    counts[small] = WITHHELD
    loss = np.where(small, 0.0, scored.loss[0])
    # of a regression: both speak of groups, so that a small group is in neither
    mean = np.where(small.any(-1) | np.isnan(scored.mean[0]), 0.0, scored.mean[0])
    ks = np.where(small.any() | np.isnan(scored.ks[0]), 0.0, scored.ks[0])
    return ArrayRecord(
        {name: Array(np.asarray(value)) for name, value in zip(FIELDS, (counts, loss, ks, mean), strict=True)}
    )


def read(content: RecordDict, task: Task, rows: int) -> Scored:
    """A client's scores, [1, ...] each with NaN for what is withheld; refused when they cannot be right. rows: how many
    test rows the client has declared."""
    found = unpack(content, EVALUATION, like(task))
    counts, loss, ks, mean = (found[name].numpy() for name in FIELDS)
    gone = (counts == WITHHELD).any(-1)
    if (counts < WITHHELD).any() or (gone != (counts == WITHHELD).all(-1)).any():
        raise BadMessage("has negative counts in its evaluation")
    shown = int(counts[counts > 0].sum())
    if shown > rows:
        raise BadMessage(f"counts {shown} test rows where it has {rows}")
    if (loss < 0).any():
        raise BadMessage("has a negative loss in its evaluation")
    numbers = np.where(gone[..., None], np.nan, counts)
    if task.kind != "regression":
        return Scored(
            numbers[None], np.where(gone, np.nan, loss)[None], np.full(1, np.nan), np.full((1, len(mean)), np.nan)
        )
    return Scored(
        numbers[None],
        np.where(gone, np.nan, loss)[None],
        np.where(gone.any(), np.nan, ks)[None],
        np.where(gone.any(-1), np.nan, mean)[None],
    )


def like(task: Task) -> Record:
    groups, classes = task.num_groups, max(task.num_classes, 1)
    double = torch.float64
    return {
        "counts": torch.zeros(groups, classes, classes, dtype=torch.int64),
        "loss": torch.zeros(groups, classes, dtype=double),
        "ks": torch.zeros((), dtype=double),
        "mean": torch.zeros(groups, dtype=double),
    }


def together(clients: Sequence[Scored | None], task: Task) -> dict[str, Scored]:
    """The scores of all clients, and the test set that they are together, from the counts that are shown. None: a
    client whose counts are not here."""
    nothing = Scored(*(np.full((1, *like(task)[name].shape), np.nan) for name in FIELDS))
    each = Scored(*(np.concatenate(part) for part in zip(*(one or nothing for one in clients), strict=True)))
    counts, loss = np.nansum(each.counts, 0), np.nansum(each.loss, 0)
    mean = np.full(task.num_groups, np.nan)
    if task.kind == "regression":
        number = counts[:, 0, 0]
        total = np.nansum(each.counts[:, :, 0, 0] * each.mean, 0)
        mean = np.where(number > 0, total / np.maximum(number, 1), np.nan)
    # a distance between distributions cannot be put together from the clients' own distances
    return {"test": Scored(counts[None], loss[None], np.full(1, np.nan), mean[None]), "clients": each}


class Withheld(NamedTuple):
    """What one client withholds."""

    client: str
    cells: tuple[tuple[int, int], ...]
    """(group, label) each."""


def withheld_cells(clients: Sequence[Scored | None], names: Sequence[str]) -> list[Withheld]:
    """Who withholds which cells; clients that did not answer withhold nothing."""
    found = []
    for name, scored in zip(names, clients, strict=True):
        gone = [] if scored is None else np.argwhere(np.isnan(scored.counts[0]).any(-1)).tolist()
        cells = tuple((group, label) for group, label in gone)
        if cells:
            found.append(Withheld(name, cells))
    return found
