"""Evaluation as one sum: the federation's figures are those that single replies would give; no silo's are there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from equifed.fixed_point import LIMBS, OutOfRange
from equifed.flower.evaluation import integers, of_all, size, together
from equifed.flower.records import BadMessage
from equifed.metrics.calibration import BINS
from equifed.metrics.scored import Scored
from equifed.protocol import Task
from equifed.settings import Local

RNG = np.random.default_rng(7)


def task_of(kind: str) -> Task:
    classes = {"binary": 2, "multiclass": 3, "regression": 0}[kind]
    what = "regression" if kind == "regression" else "classification"
    return Task(torch.nn.Linear(1, 1), what, classes, 2, 3, 1, Local(), binary=kind == "binary")


def scored(task: Task, rows: int) -> Scored:
    """What a silo with so many test rows of each group, and half as many of unknown group, might count."""
    groups, classes = task.num_groups + 1, max(task.num_classes, 1)
    sizes = np.array([rows] * task.num_groups + [rows // 2])
    counts = np.stack([RNG.multinomial(n, np.full(classes**2, 1 / classes**2)) for n in sizes])
    counts = counts.reshape(groups, classes, classes)
    if task.kind == "regression":
        loss, mean = RNG.random((groups, 1)) * sizes[:, None] * 1e9, RNG.normal(size=groups) * 1e4
        mean = np.where(sizes > 0, mean, np.nan)[:-1]
        histograms = np.zeros((groups, 0, 3))
        ks = RNG.random(1)
    else:
        loss, mean, ks = (
            RNG.random((groups, classes)) * counts.sum(-1),
            np.full(task.num_groups, np.nan),
            np.full(1, np.nan),
        )
        histograms = np.zeros((groups, BINS, 3))
        for g in range(groups):
            for label in range(classes):
                for decided in range(classes):
                    n = counts[g, label, decided]
                    # two classes: true is the label, and decisions are scores above one half; more: true is being right
                    true = label if classes == 2 else label == decided
                    at = RNG.integers(0, BINS // 2, n) + (BINS // 2) * (decided if classes == 2 else 1)
                    np.add.at(histograms[g, :, 0], at, 1)
                    np.add.at(histograms[g, :, 1], at, int(true))
                    np.add.at(histograms[g, :, 2], at, (at + RNG.random(n)) / BINS)
    known = counts[None, :-1], loss[None, :-1], ks, mean[None], counts[None, :-1].sum(2), histograms[None, :-1]
    return Scored(*known, counts[None, -1], loss[None, -1], histograms[None, -1])


KINDS = ("binary", "multiclass", "regression")


@pytest.mark.parametrize("kind", KINDS)
def test_the_sum_gives_what_single_replies_give(kind: str) -> None:
    """Counts exactly, all else to 1e-9: also of a silo without rows."""
    task = task_of(kind)
    clients = [scored(task, rows) for rows in (400, 0, 37, 1)]
    total = np.sum([integers(each, task, 4) for each in clients], axis=0)
    assert total.shape == (size(task),)
    found, expected = (together(each, task)["test"] for each in ([of_all(total, task, 3000, 0)], clients))
    for name, value in expected._asdict().items():
        other = getattr(found, name)
        if name in ("counts", "predicted", "unknown"):
            np.testing.assert_array_equal(other, value)
        else:
            np.testing.assert_allclose(other, value, rtol=1e-9, atol=1e-7, err_msg=name)
    assert np.isnan(found.ks).all()


def test_only_totals_are_looked_at_for_small_counts() -> None:
    """Silos of which each would withhold everything tell their sum; a sum that is small is withheld."""
    task = task_of("binary")
    clients = [scored(task, 24) for _ in range(5)]
    total = np.sum([integers(each, task, 5) for each in clients], axis=0)
    found = of_all(total, task, 300, 10)
    np.testing.assert_array_equal(found.counts[0], np.sum([each.counts[0] for each in clients], axis=0))
    few = clients[0].counts[0].copy()
    few[1] = [[9, 40], [40, 40]]
    small = clients[0]._replace(counts=few[None], predicted=few.sum(1)[None], unknown=few[1:] * 10)
    small = small._replace(
        **{name: np.zeros_like(getattr(small, name)) for name in ("calibration", "unknown_calibration")}
    )
    withheld = of_all(integers(small, task, 5), task, 3000, 10)
    assert np.isnan(withheld.counts[0, 1]).all()
    assert np.isnan(withheld.loss[0, 1]).all()
    assert withheld.predicted[0, 1].tolist() == [49, 80]


@pytest.mark.parametrize("kind", KINDS)
def test_totals_that_no_rows_have_are_refused(kind: str) -> None:
    task = task_of(kind)
    one = integers(scored(task, 50), task, 3)
    of_all(one, task, 125, 0)
    with pytest.raises(BadMessage, match="counts 125 test rows where it has 124"):
        of_all(one, task, 124, 0)
    lie = one.copy()
    lie[0] = -1
    with pytest.raises(BadMessage, match="negative counts"):
        of_all(lie, task, 125, 0)
    classes, bins = max(task.num_classes, 1), 0 if kind == "regression" else BINS
    loss = 3 * classes**2 + 3 * bins * 2 + (LIMBS - 1 if kind == "regression" else 0)
    for wrong in (-(2**61), 2**61):
        lie = one.copy()
        lie[loss] = wrong
        with pytest.raises(BadMessage, match="losses in its evaluation that its rows cannot have"):
            of_all(lie, task, 125, 0)


def test_what_a_sum_does_not_hold_is_refused_at_the_silo() -> None:
    task = task_of("binary")
    huge = scored(task, 5)
    with pytest.raises(OutOfRange):
        integers(huge._replace(loss=huge.loss + 1e10), task, 5)
    endless = task_of("regression")
    with pytest.raises(OutOfRange):
        integers(scored(endless, 5)._replace(loss=np.full((1, 2, 1), np.inf)), endless, 5)
