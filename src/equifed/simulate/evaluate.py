"""Evaluation: what a run's current models predict on the test rows, reduced to counts and sums.

Disparities come from summed (group, label, prediction) counts, never from averages of clients' disparities.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from equifed import tree
from equifed.simulate.engine import State
from equifed.simulate.job import Job
from equifed.simulate.tables import Tables

EVAL_ROWS = 200_000
"""Rows predicted at once."""


class Scored(NamedTuple):
    """One split of one run at one round. The leading axis S is 1 for a global set, or the clients."""

    counts: np.ndarray
    """Rows by group, label and prediction [S, G, C, C]; for regression [S, G, 1, 1]."""
    loss: np.ndarray
    """Summed loss by group and label [S, G, C] (squared error for regression: [S, G, 1])."""
    ks: np.ndarray
    """Largest KS distance between two groups' predictions [S] (regression; nan otherwise)."""
    mean: np.ndarray
    """Mean prediction by group [S, G] (regression; nan otherwise)."""


class Evaluator:
    """Holds the evaluation rows of every run and scores states on them."""

    def __init__(self, job: Job, tables: Tables) -> None:
        self.job, self.tables = job, tables

    def score(self, state: State, run: int) -> dict[str, Scored]:
        """Scores by set: "test" and "validation" (global), "clients" (each client's own test rows)."""
        fed = self.job.runs[run].federation
        server = tree.take(state.server, run)
        clients = tree.map(lambda leaf: leaf[run], state.clients)
        scores = {}
        for name, rows in (("test", fed.test), ("validation", fed.validation)):
            if len(rows):
                where = self.tables.rows_of(rows, run)
                scores[name] = self._pooled(server, clients, where, run)
        if fed.client_test is not None:
            scores["clients"] = self._by_client(server, clients, run)
        return scores

    def _pooled(self, server: Any, clients: Any, rows: Tensor, run: int) -> Scored:
        """A common set of rows. Where clients have models of their own, all of them are scored on it and added up."""
        if not self.job.method.personal:
            prediction = self._predict(server, clients, rows, run)
            return self._reduce(prediction, rows, torch.zeros_like(rows), 1)
        many = self.job.task.num_clients
        at_once = max(1, EVAL_ROWS // len(rows))
        parts = []
        for begin in range(0, many, at_once):
            some = tree.map(lambda leaf, a=begin: leaf[a : a + at_once], clients)
            predictions = vmap(lambda client: self._predict(server, client, rows, run))(some)
            k = len(predictions)
            flat = predictions.reshape(k * len(rows), *predictions.shape[2:])
            parts.append(self._reduce(flat, rows.repeat(k), torch.zeros_like(rows).repeat(k), 1))
        total = Scored(*(np.sum([part[i] for part in parts], axis=0) for i in range(4)))
        # distances and means of many models over one set are averaged
        return total._replace(ks=total.ks / len(parts), mean=total.mean / len(parts))

    def _by_client(self, server: Any, clients: Any, run: int) -> Scored:
        fed = self.job.runs[run].federation
        sets = fed.client_test
        assert sets is not None
        if not self.job.method.personal:
            # clients that share a test set (one range of rows) share its scores
            ranges, which = np.unique(np.stack([sets.start, sets.stop], 1), axis=0, return_inverse=True)
            sizes = ranges[:, 1] - ranges[:, 0]
            rows = np.concatenate([sets.index[a:b] for a, b in ranges])
            where = self.tables.rows_of(rows, run)
            owner = torch.from_numpy(np.repeat(np.arange(len(ranges)), sizes)).to(self.job.device)
            scored = self._reduce(self._predict(server, clients, where, run), where, owner, len(ranges))
            return Scored(*(values[which.reshape(-1)] for values in scored))
        parts = []
        for k in range(len(sets)):
            where = self.tables.rows_of(sets[k], run)
            prediction = self._predict(server, tree.take(clients, k), where, run)
            parts.append(self._reduce(prediction, where, torch.zeros_like(where), 1))
        return Scored(*(np.concatenate([part[i] for part in parts]) for i in range(4)))

    def _predict(self, server: Any, client: Any, rows: Tensor, run: int) -> Tensor:
        method, task = self.job.method_of(run), self.job.task
        return torch.cat(
            [
                method.predict(task, server, client, self.tables.features(some, run))
                for some in rows.split(EVAL_ROWS)
            ]
        )

    def _reduce(self, prediction: Tensor, rows: Tensor, owner: Tensor, owners: int) -> Scored:
        task = self.job.task
        y, s = self.tables.y[rows], self.tables.s[rows]
        groups = task.num_groups
        loss = task.loss_of_prediction(prediction, y).double()
        if task.kind == "regression":
            cell = owner * groups + s
            size = owners * groups
            counts = torch.bincount(cell, minlength=size).reshape(owners, groups, 1, 1)
            sums = torch.bincount(cell, loss, minlength=size).reshape(owners, groups, 1)
            total = torch.bincount(cell, prediction.double(), minlength=size).reshape(owners, groups)
            number = counts.reshape(owners, groups)
            mean = torch.where(number > 0, total / number.clamp_min(1), torch.nan)
            ks = _ks(prediction.cpu().numpy(), s.cpu().numpy(), owner.cpu().numpy(), owners)
            return Scored(counts.cpu().numpy(), sums.cpu().numpy(), ks, mean.cpu().numpy())
        classes = task.num_classes
        cell = (owner * groups + s) * classes + y
        flat = cell * classes + task.decide(prediction)
        counts = torch.bincount(flat, minlength=owners * groups * classes * classes)
        sums = torch.bincount(cell, loss, minlength=owners * groups * classes)
        return Scored(
            counts.reshape(owners, groups, classes, classes).cpu().numpy(),
            sums.reshape(owners, groups, classes).cpu().numpy(),
            np.full(owners, np.nan),
            np.full((owners, groups), np.nan),
        )


def _ks(prediction: np.ndarray, s: np.ndarray, owner: np.ndarray, owners: int) -> np.ndarray:
    from equifed.metrics import ks_distance

    return np.array(
        [ks_distance(prediction[owner == k], sensitive_features=s[owner == k]) for k in range(owners)]
    )
