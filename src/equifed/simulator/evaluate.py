"""Evaluation: the predictions of a run's current models on the test rows, reduced to counts and sums.

Disparities come from summed (group, label, prediction) counts, never from averages of clients' disparities.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from equifed import randomness, tree
from equifed.federation import RowSets
from equifed.metrics.calibration import BINS
from equifed.metrics.disparities import ks_distance
from equifed.metrics.scored import Scored
from equifed.protocol import adjust_predictions
from equifed.simulator.engine import State
from equifed.simulator.job import FEW_NUMBERS, Job
from equifed.simulator.tables import Tables

EVAL_BYTES = 256 * 2**20
"""Memory for the rows that are predicted at once, in bytes."""
TOGETHER = 2**14
"""Largest number of rows for which several runs are evaluated at once. With more, arithmetic dominates, and one run's
rows use the cache best."""


class Measure(Protocol):
    """The interface between round loop and evaluators."""

    def measure(self, number: int, state: State, running: np.ndarray) -> dict[int, list[dict[str, Scored]]]:
        """Return the scores of every run after round `number`, by the round they belong to; {} if there are none.
        `running` [R]: True for runs that continue."""
        ...


class Evaluator:
    """An evaluator that scores states on the evaluation rows of every run."""

    def __init__(self, job: Job, tables: Tables) -> None:
        self.job, self.tables = job, tables
        self._at_once = max(64, EVAL_BYTES // job.row_bytes())
        self._draws: dict[int, Tensor] = {}
        self._settled: dict[int, dict[str, Scored]] = {}
        """Scores of the runs that have finished."""

    def measure(self, number: int, state: State, running: np.ndarray) -> dict[int, list[dict[str, Scored]]]:
        if number % self.job.settings.eval_every and running.any():
            return {}
        going = [run for run in range(len(self.job.runs)) if run not in self._settled]
        common: dict[int, dict[str, Scored]] = {run: {} for run in going}
        for name in ("test", "validation"):
            for runs in self._group_runs(name):
                if not self._settled.keys() >= set(runs):
                    for run, scored in zip(runs, self._score_sets(state, runs, name), strict=True):
                        common.get(run, {})[name] = scored
        scores = self._settled | {run: self._add_client_scores(state, run, common[run]) for run in going}
        self._settled |= {run: scores[run] for run in going if not running[run]}
        return {number: [scores[run] for run in range(len(self.job.runs))]}

    def score(self, state: State, run: int) -> dict[str, Scored]:
        """Return scores by set: "test" and "validation" (global), "clients" and "clients-validation" (each client's own
        rows)."""
        names = [name for name in ("test", "validation") if len(self._positions(run, name))]
        return self._add_client_scores(state, run, {name: self._score_sets(state, [run], name)[0] for name in names})

    def _add_client_scores(self, state: State, run: int, scores: dict[str, Scored]) -> dict[str, Scored]:
        """Add the scores on the clients' own rows to those of common sets."""
        fed = self.job.runs[run].federation
        server, clients = tree.take((state.server, state.clients), run)
        for name, sets in (("clients", fed.client_test), ("clients-validation", fed.client_validation)):
            if sets is None:
                continue
            prediction, rows, owner, which = self._predict_own_rows(server, clients, sets, run)
            by_set = self._reduce(prediction, rows, owner, int(which.max()) + 1, calibrated=False)
            scores[name] = Scored(*(values[which] for values in by_set))
            if name == "clients" and "test" not in scores:
                scores["test"] = self._reduce(prediction, rows, torch.zeros_like(owner), 1)
        return scores

    def _positions(self, run: int, name: str) -> np.ndarray:
        rows: np.ndarray = getattr(self.job.runs[run].federation, name)
        return rows

    def _group_runs(self, name: str) -> list[list[int]]:
        """Return the runs with rows of this set, in groups scored at once. These do not depend on which runs have
        finished, so that a resumed run gives the same bits."""
        sizes = {run: len(self._positions(run, name)) for run in range(len(self.job.runs))}
        runs = [run for run, size in sizes.items() if size]
        method = self.job.method
        # methods for the reference engine need not work inside vmap
        alone = method.personal or method.adjusts or not method.sweepable or self.job.settings.engine != "lanes"
        many = 1 if alone or not runs else max(1, TOGETHER // max(sizes.values()))
        return [runs[begin : begin + many] for begin in range(0, len(runs), many)]

    def _score_sets(self, state: State, runs: list[int], name: str) -> list[Scored]:
        """Return the scores of each run on its rows of this set."""
        rows = [self.tables.rows_of(self._positions(run, name), run) for run in runs]
        if len(runs) == 1:
            server, clients = tree.take((state.server, state.clients), runs[0])
            return [self._score_common(server, clients, rows[0], runs[0])]

        def one(server: Any, clients: Any, hyper: dict[str, Tensor], scaling: Any, x: Tensor) -> Tensor:
            x = (x - scaling[0]) * scaling[1] if scaling else x
            return self.job.configure(hyper)[0].predict(self.job.task, server, clients, x)

        at = torch.tensor(runs, device=self.job.device)
        state, hyper, scaling = tree.take((state, self.job.hyper, self.tables.scaling), at)
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        x = self.tables.x.index_select(0, padded.flatten()).view(*padded.shape, *self.tables.x.shape[1:])
        padded_prediction: Tensor = vmap(one)(state.server, state.clients, hyper, scaling, x)
        prediction = torch.cat([every[: len(own)] for every, own in zip(padded_prediction, rows, strict=True)])
        owner = torch.cat([torch.full_like(own, k) for k, own in enumerate(rows)])
        scored = self._reduce(prediction, torch.cat(rows), owner, len(runs))
        return [Scored(*(values[k : k + 1] for values in scored)) for k in range(len(runs))]

    def score_common(self, server: Any, positions: np.ndarray) -> Scored:
        """Score the model that all clients share on these rows."""
        anyone = self.job.method.init_client(self.job.task, self.job.initial[0])
        return self._score_common(server, anyone, self.tables.rows_of(positions, 0), 0)

    def own(self, server: Any, client: Any, k: int) -> Scored:
        """Score client k's test rows, from the server's fields that `predict` needs and the client's state."""
        sets = self.job.runs[0].federation.client_test
        assert sets is not None
        rows = self.tables.rows_of(sets[k], 0)
        return self._reduce(self._predict(server, client, rows, 0), rows, torch.zeros_like(rows), 1)

    def _score_common(self, server: Any, clients: Any, rows: Tensor, run: int) -> Scored:
        """Score a common set of rows. If clients have personal models, all are scored on it: counts and losses are
        added, the KS distances of regression averaged."""
        same_owner = torch.zeros_like(rows)
        if not self.job.method.personal:
            return self._reduce(self._predict(server, clients, rows, run), rows, same_owner, 1)
        at_once = max(1, self._at_once // len(rows))
        one, which = _find_distinct(clients, self.job.task.num_clients)
        parts = []
        for part in torch.from_numpy(one).split(at_once):
            models = tree.take(clients, part.to(rows.device))
            prediction = vmap(lambda client: self._predict(server, client, rows, run))(models)
            owner = torch.arange(len(part), device=rows.device).repeat_interleave(len(rows))
            parts.append(self._reduce(prediction.flatten(0, 1), rows.repeat(len(part)), owner, len(part)))
        every = Scored(*(np.concatenate(values) for values in zip(*parts, strict=True)))
        times = np.bincount(which)
        added = Scored(*(np.tensordot(times, values, 1)[None] for values in every))
        ks, mean = (np.average(values, axis=0, weights=times)[None] for values in (every.ks, every.mean))
        return added._replace(ks=ks, mean=mean)

    def _predict_own_rows(
        self, server: Any, clients: Any, sets: RowSets, run: int
    ) -> tuple[Tensor, Tensor, Tensor, np.ndarray]:
        """Return (prediction, row, set) of every row of these sets, and each client's set. A model is applied once to a
        range of rows that clients share."""
        personal = self.job.method.personal
        one, model = _find_distinct(clients, len(sets)) if personal else (np.zeros(1, int), np.zeros(len(sets), int))
        ranges, which = np.unique(np.stack([sets.start, sets.stop, model], 1), axis=0, return_inverse=True)
        which = which.reshape(-1)
        rows = self.tables.rows_of(np.concatenate([sets.index[a:b] for a, b, _ in ranges]), run)
        sizes = ranges[:, 1] - ranges[:, 0]
        owner = torch.from_numpy(np.repeat(np.arange(len(ranges)), sizes)).to(self.job.device)
        if not personal:
            return self._predict(server, clients, rows, run), rows, owner, which
        parts = [
            self._predict(server, tree.take(clients, int(one[model])), part, run)
            for model, part in zip(ranges[:, 2], rows.split(sizes.tolist()), strict=True)
        ]
        return torch.cat(parts), rows, owner, which

    def _predict(self, server: Any, client: Any, rows: Tensor, run: int) -> Tensor:
        method, task = self.job.method_of(run), self.job.task
        parts = []
        for part in rows.split(self._at_once):
            prediction = method.predict(task, server, client, self.tables.features(part, run))
            if method.adjusts:
                u = self._draw_uniforms(run)[part - int(self.tables.offset[run])]
                prediction = adjust_predictions(method, task, server, client, prediction, self.tables.s[part], u)
            parts.append(prediction)
        return torch.cat(parts)

    def _draw_uniforms(self, run: int) -> Tensor:
        """Return a uniform number for each row of the run's data, the same in every round and for every model."""
        if run not in self._draws:
            seed, fed = self.job.runs[run].seed, self.job.runs[run].federation
            made = randomness.generator(seed, "adjust").random(len(fed.rows.y))
            # numbers for the server's and a client's own rows must not depend on rows elsewhere
            made[fed.validation] = randomness.generator(seed, "adjust-validation").random(len(fed.validation))
            if fed.client_test is not None:
                everyone = self.job.everyone()[run]
                for k, key in zip(everyone, self.job.client_keys(everyone).tolist(), strict=True):
                    tests = fed.client_test[k]
                    made[tests] = randomness.generator(seed, "adjust", key).random(len(tests))
            self._draws[run] = torch.from_numpy(made).to(self.job.device)
        return self._draws[run]

    def _reduce(self, prediction: Tensor, rows: Tensor, owner: Tensor, owners: int, calibrated: bool = True) -> Scored:
        """Reduce predictions to scores. calibrated: with histograms of the scores, which are large for many owners."""
        task = self.job.task
        # on the CPU, because sums on a GPU are not reproducible
        y, s = (column.index_select(0, rows) for column in (self.tables.y, self.tables.s))
        y, s, prediction, owner = (part.cpu() for part in (y, s, prediction, owner))
        loss = task.loss_of_prediction(prediction, y).double()
        # rows of unknown group are counted as an extra last group and split off below
        shape = (owners, task.num_groups + 1, max(task.num_classes, 1))
        group = owner * shape[1] + torch.where(s < 0, task.num_groups, s)
        if task.kind == "regression":
            label = decision = group
            mean = (_sum_cells(shape[:2], group, prediction.double()) / _sum_cells(shape[:2], group)).numpy()
            known = s >= 0
            ks = _compute_ks(prediction[known].numpy(), s[known].numpy(), owner[known].numpy(), owners)
        else:
            label = group * task.num_classes + y
            decision = label * task.num_classes + task.decide(prediction)
            mean, ks = np.full(shape[:2], np.nan), np.full(owners, np.nan)
        histograms = np.zeros((*shape[:2], 0, 3))
        if calibrated and task.kind == "classification":
            histograms = _count_calibration(prediction, y, group, shape[:2])
        sums = _sum_cells((*shape, shape[2]), decision).numpy(), _sum_cells(shape, label, loss).numpy(), histograms
        (counts, losses, calibration), unknown = ([part[:, where] for part in sums] for where in (slice(-1), -1))
        return Scored(counts, losses, ks, mean[:, :-1], counts.sum(2), calibration, *unknown)


def _count_calibration(prediction: Tensor, y: Tensor, group: Tensor, shape: tuple[int, int]) -> np.ndarray:
    """Return rows, positive rows and the sum of scores, by owner, group and bin [owners, G, BINS, 3]."""
    if prediction.dim() == 1 or prediction.shape[-1] == 2:
        score, true = (prediction if prediction.dim() == 1 else prediction[:, 1]), y
    else:
        score, decided = prediction.max(-1)
        true = (decided == y).long()
    # (low, high], exact because BINS is a power of two; NaN scores make the sum NaN
    cell = group * BINS + (score * BINS).ceil().long().sub(1).clamp(0, BINS - 1)
    rows = _sum_cells((*shape, BINS, 2), cell * 2 + true)
    return torch.stack([rows.sum(-1), rows[..., 1], _sum_cells((*shape, BINS), cell, score.double())], -1).numpy()


def _sum_cells(shape: tuple[int, ...], cell: Tensor, values: Tensor | None = None) -> Tensor:
    """Sum the values, or count the rows, in the cells of an array of this shape."""
    return torch.bincount(cell, values, minlength=math.prod(shape)).reshape(shape)


def _find_distinct(clients: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (one client per distinct model, the model of each client [N]). Clients with the same few state numbers,
    such as their group, share a model; clients that keep a personal model each have their own."""
    leaves = [leaf.reshape(count, -1) for leaf in tree.leaves(clients)]
    if sum(leaf.shape[1] for leaf in leaves) > FEW_NUMBERS:
        return np.arange(count), np.arange(count)
    kept = torch.cat([leaf.double() for leaf in leaves], 1).cpu().numpy()
    _, one, which = np.unique(kept, axis=0, return_index=True, return_inverse=True)
    return one, which.reshape(-1)


def _compute_ks(prediction: np.ndarray, s: np.ndarray, owner: np.ndarray, owners: int) -> np.ndarray:
    # a diverged model's predictions have no distribution
    return np.array(
        [
            ks_distance(prediction[rows], sensitive_features=s[rows]) if np.isfinite(prediction[rows]).all() else np.nan
            for rows in (owner == k for k in range(owners))
        ]
    )
