"""Evaluation where the test rows are: clients count on their own rows and withhold small counts; the server adds up.

What is small is said in `metrics.withholding`.

The histogram of a group's scores is disclosed where its table is, in ranges of bins that both labels have enough rows
in. Ranges come from halving: one half first, because the table tells how many rows lie on either side of it, then
quarters, down to single bins as long as both parts have enough. So the ranges of two rounds, or of two similar models,
are nested and never overlap, and no difference between them is a small count. What a range holds is sent in the bin of
its mean score.

Under secure sums the server is told nothing of a single client: what all of them counted is one sum, of integers
(`integers`), and the same rules withhold what is small in it before anything is kept (`of_all`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, RecordDict

from equifed.fixed_point import LIMBS, PLACES, decode, decode_wide, encode, encode_wide
from equifed.flower.masks import layout
from equifed.flower.records import EVALUATION, BadMessage, unpack
from equifed.metrics.calibration import BINS, EDGES
from equifed.metrics.scored import Scored
from equifed.metrics.withholding import small_groups
from equifed.protocol import Record, Task
from equifed.task import LEAST_PROBABILITY

WITHHELD = -1
ROUNDING = 1e-6
"""Mean scores may lie so far outside their bin."""
MOST_LOSS = -math.log(LEAST_PROBABILITY) * (1 + ROUNDING)
"""Of a row, where the label is a class."""
MOST_NUMBER = 1e15
"""That a model may predict where the label is a number: larger ones are those of a model that has run away."""
FIELDS = Scored._fields
"""Of one client."""


def withheld(scored: Scored, min_count: int) -> ArrayRecord:
    """One client's scores as it sends them: counts [G, C, C] and predicted [G, C] with -1 for what is withheld, and 0
    in its place in the sums that belong to it."""
    counts = np.concatenate([scored.counts[0], scored.unknown]).astype(np.int64)
    predicted = counts.sum(-2)
    small, hidden = small_groups(counts, min_count)  # [G + 1]
    counts[small], predicted[hidden] = WITHHELD, WITHHELD
    loss = np.where(small[:, None], 0.0, np.concatenate([scored.loss[0], scored.unknown_loss]))
    # of a regression
    groups = small[:-1]
    mean = np.where(groups | np.isnan(scored.mean[0]), 0.0, scored.mean[0])
    ks = np.where(groups.any() | np.isnan(scored.ks[0]), 0.0, scored.ks[0])
    histograms = np.concatenate([scored.calibration[0], scored.unknown_calibration])
    calibration = np.zeros(histograms.shape)
    for g in np.flatnonzero(~small & _agree(histograms, counts)):
        _disclose(histograms[g], min_count, calibration[g])
    values = (counts[:-1], loss[:-1], ks, mean, predicted[:-1], calibration[:-1], counts[-1], loss[-1], calibration[-1])
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in zip(FIELDS, values, strict=True)})


def _disclose(bins: np.ndarray, min_count: int, into: np.ndarray, low: int = 0, high: int | None = None) -> None:
    """Put one group's histogram [BINS, 3] into `into`, bins `low` to `high` of it in ranges that may be disclosed."""
    high = len(bins) if high is None else high
    middle = (low + high) // 2
    halves = [bins[low:middle].sum(0), bins[middle:high].sum(0)]
    if high - low > 1 and all(min(true, rows - true) >= min_count for rows, true, _ in halves):
        _disclose(bins, min_count, into, low, middle)
        _disclose(bins, min_count, into, middle, high)
    elif high > low and (rows := sum(halves)[0]):
        mean = sum(halves)[2] / rows
        into[np.clip(np.searchsorted(EDGES, mean), low, high - 1)] = sum(halves)


def _agree(calibration: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Whether a group's histogram [G, BINS, 3] counts the rows of its table [G, C, C]: [G]."""
    if not calibration.shape[1]:
        return np.ones(len(counts), dtype=bool)
    rows, true = calibration[..., 0], calibration[..., 1]
    if counts.shape[-1] > 2:
        same = true.sum(-1) == np.trace(counts, axis1=-2, axis2=-1)
    else:  # decisions are scores above one half
        sides = np.stack([rows - true, true], 1).reshape(len(counts), 2, 2, -1).sum(-1)
        same = (sides == counts).all((-2, -1))
    return same & (rows.sum(-1) == counts.sum((-2, -1)))


def read(content: RecordDict, task: Task, rows: int, fewer: bool = False) -> Scored:
    """A client's scores, [1, ...] each with NaN for what is withheld; refused when they cannot be right. rows: how many
    test rows the client has declared. fewer: there may be fewer, though none are withheld."""
    fields = unpack(content, EVALUATION, like(task))
    counts, loss, ks, mean, predicted, calibration, *unknown = (fields[name].numpy() for name in FIELDS)
    # the rows of unknown group last; nothing is said of their predictions alone
    counts, loss, calibration = (
        np.concatenate([part, one[None]]) for part, one in zip((counts, loss, calibration), unknown, strict=True)
    )
    for part in (counts, predicted, calibration):  # before anything is added up: sums of huge numbers wrap
        if (part > rows).any():
            raise BadMessage(f"counts {part.max():.0f} test rows where it has {rows}")
    predicted = np.concatenate([predicted, counts[-1:].sum(-2).clip(WITHHELD)])
    hidden, hidden_predictions = (_withheld(part.reshape(len(part), -1)) for part in (counts, predicted))
    shown = max(int(np.maximum(part, 0).sum()) for part in (counts, predicted))
    if shown > rows or (shown < rows and not fewer and not hidden_predictions.any()):
        raise BadMessage(f"counts {shown} test rows where it has {rows}")
    if (~hidden & (hidden_predictions | (counts.sum(-2) != predicted).any(-1))).any():
        raise BadMessage("contradicts itself in its evaluation")
    regression = task.kind == "regression"
    most = (2 * MOST_NUMBER) ** 2 if regression else MOST_LOSS
    shown_rows = np.where(hidden[:, None], 0, counts.sum(-1))
    if (loss < 0).any() or (loss > shown_rows * most).any():
        raise BadMessage("has losses in its evaluation that its rows cannot have")
    if not 0 <= ks <= 1 or (np.abs(mean) > MOST_NUMBER).any():
        raise BadMessage("has predictions in its evaluation that are out of all bounds")
    shapeless = ~np.any(calibration, axis=(-2, -1))
    if (~shapeless & (hidden | ~_agree(calibration, counts))).any() or not _possible(calibration):
        raise BadMessage("contradicts itself in the histograms of its evaluation")
    by_group = (
        np.where(hidden[:, None, None], np.nan, counts),
        np.where(hidden[:, None], np.nan, loss),
        np.where(shapeless[:, None, None], np.nan, calibration),
    )
    groups = hidden[:-1]
    counts, loss, calibration = (part[None, :-1] for part in by_group)
    return Scored(
        counts,
        loss,
        np.where(groups.any() or not regression, np.nan, ks)[None],
        np.where(groups | (not regression), np.nan, mean)[None],
        np.where(hidden_predictions[:-1, None], np.nan, predicted[:-1])[None],
        calibration,
        *(part[-1:] for part in by_group),
    )


def _possible(calibration: np.ndarray) -> bool:
    """Whether numbers of rows are whole, and no more come true than there are; and mean scores lie in their bins."""
    rows, true, scores = np.moveaxis(calibration, -1, 0)
    low, high = np.append(0.0, EDGES)[: rows.shape[1]], np.append(EDGES, 1.0)[: rows.shape[1]]
    numbers = (true >= 0) & (true <= rows) & (true == np.floor(true)) & (rows == np.floor(rows))
    return bool((numbers & (scores >= rows * (low - ROUNDING)) & (scores <= rows * (high + ROUNDING))).all())


def _withheld(parts: np.ndarray) -> np.ndarray:
    """Which groups [G] of these counts [G, n] are withheld, all of each."""
    gone: np.ndarray = parts == WITHHELD
    if (parts < WITHHELD).any() or (gone.any(-1) != gone.all(-1)).any():
        raise BadMessage("has negative counts in its evaluation")
    return np.all(gone, axis=-1)


def like(task: Task) -> Record:
    """Names, shapes and types of an evaluation."""
    groups, classes = task.num_groups, max(task.num_classes, 1)
    bins = 0 if task.kind == "regression" else BINS
    double = torch.float64
    return {
        "counts": torch.zeros(groups, classes, classes, dtype=torch.int64),
        "loss": torch.zeros(groups, classes, dtype=double),
        "ks": torch.zeros((), dtype=double),
        "mean": torch.zeros(groups, dtype=double),
        "predicted": torch.zeros(groups, classes, dtype=torch.int64),
        "calibration": torch.zeros(groups, bins, 3, dtype=double),
        "unknown": torch.zeros(classes, classes, dtype=torch.int64),
        "unknown_loss": torch.zeros(classes, dtype=double),
        "unknown_calibration": torch.zeros(bins, 3, dtype=double),
    }


def together(clients: Sequence[Scored | None], task: Task) -> dict[str, Scored]:
    """The scores of all clients, and the test set that they are together, from the counts that are shown: NaN for a
    group of which nobody shows any. None: a client whose counts are not here."""
    nothing = Scored(*(np.full((1, *like(task)[name].shape), np.nan) for name in FIELDS))
    every = Scored(*(np.concatenate(part) for part in zip(*(one or nothing for one in clients), strict=True)))
    whole = Scored(*(np.nansum(part, 0, keepdims=True) for part in every))
    mean = np.full(task.num_groups, np.nan)
    if task.kind == "regression":
        number = whole.counts[0, :, 0, 0]
        total = np.nansum(every.counts[:, :, 0, 0] * every.mean, 0)
        mean = np.where(number > 0, total / np.maximum(number, 1), np.nan)
    # a distance between distributions cannot be put together from the clients' own distances
    whole = whole._replace(ks=np.full(1, np.nan), mean=mean[None])
    for name in ("counts", "loss", "predicted", "calibration"):
        hidden = np.isnan(getattr(every, name)).all(0)
        whole = whole._replace(**{name: np.where(hidden, np.nan, getattr(whole, name))})
    # copied: a part of an array keeps all of it in memory, round after round
    own = {name: getattr(every, name)[..., :0, :].copy() for name in ("calibration", "unknown_calibration")}
    return {"test": whole, "clients": every._replace(**own)}


# -- as one sum --------------------------------------------------------------------------------------------------------


def integers(scored: Scored, task: Task, clients: int) -> np.ndarray:
    """One client's scores as what is summed over so many clients, int64 [n]: rows as they are, sums of losses and
    scores in fixed point, those of a regression, which may be of any size, exactly. Raises `OutOfRange`."""
    counts = np.concatenate([scored.counts[0], scored.unknown])
    loss = np.concatenate([scored.loss[0], scored.unknown_loss])
    histograms = np.concatenate([scored.calibration[0], scored.unknown_calibration])
    whole = np.concatenate([counts.ravel(), histograms[..., :2].ravel()]).astype(np.int64)
    if task.kind == "regression":
        total = np.nan_to_num(scored.mean[0]) * scored.counts[0, :, 0, 0]
        sums = encode_wide(np.concatenate([loss.ravel(), total]), clients)
    else:
        sums = encode(torch.from_numpy(np.concatenate([loss.ravel(), histograms[..., 2].ravel()])), clients).numpy()
    return np.concatenate([whole, sums.ravel()])


def parts(task: Task) -> list[tuple[str, str, tuple[int, ...], int]]:
    """What these integers are: name, type, shape and binary places."""
    groups, classes = task.num_groups + 1, max(task.num_classes, 1)
    bins = like(task)["calibration"].shape[1]
    whole = [("counts", "int64", (groups, classes, classes), 0), ("histograms", "int64", (groups, bins, 2), 0)]
    if task.kind == "regression":
        return [*whole, ("sums", "wide", (groups + task.num_groups, LIMBS), 0)]
    return [*whole, ("sums", "float64", (groups * (classes + bins),), PLACES)]


def layout_of(task: Task) -> bytes:
    return layout("evaluation", parts(task))


def size(task: Task) -> int:
    """How many integers there are."""
    return sum(math.prod(shape) for _, _, shape, _ in parts(task))


def of_all(total: np.ndarray, task: Task, rows: int, min_count: int) -> Scored:
    """The scores of all clients together, as if they were one, from the sum of their `integers`; NaN for what is small
    and withheld. Refused when no clients with so many test rows have them."""
    shapes = [shape for _, _, shape, _ in parts(task)]
    ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
    counts, histograms, sums = (part.reshape(shape) for part, shape in zip(np.split(total, ends), shapes, strict=True))
    groups, classes = counts.shape[:2]
    regression = task.kind == "regression"
    decoded = decode_wide(sums) if regression else decode(torch.from_numpy(sums), torch.float64).numpy()
    loss, rest = np.split(decoded, [groups * classes])
    loss = loss.reshape(groups, classes)
    mean, scores = np.full(task.num_groups, np.nan), np.zeros((groups, 0))
    if regression:
        number = counts[:-1, 0, 0]
        mean = np.where(number > 0, rest / np.maximum(number, 1), np.nan)
    else:
        scores = rest.reshape(histograms.shape[:2])
    histograms = np.concatenate([histograms, scores[..., None]], -1)
    known, unknown = ([part[None, where] for part in (counts, loss, histograms)] for where in (slice(-1), -1))
    scored = Scored(known[0], known[1], np.full(1, np.nan), mean[None], known[0].sum(2), known[2], *unknown)
    if (counts < 0).any():
        raise BadMessage("has negative counts in its evaluation")
    return read(RecordDict({EVALUATION: withheld(scored, min_count)}), task, rows, fewer=True)


class Withheld(NamedTuple):
    """What one client withholds, by the groups' positions."""

    client: str
    counts: tuple[int, ...]
    """Groups whose labels and predictions are withheld."""
    predicted: tuple[int, ...]
    """Those of which not even the predictions are."""


def withheld_by(clients: Sequence[Scored | None], names: Sequence[str]) -> list[Withheld]:
    """Who withholds what; clients that did not answer withhold nothing."""
    withholding = []
    for name, scored in zip(names, clients, strict=True):
        if scored is not None and np.isnan(scored.counts).any():
            gone = [np.isnan(part[0].reshape(part.shape[1], -1)).any(-1) for part in (scored.counts, scored.predicted)]
            withholding.append(Withheld(name, *(tuple(np.flatnonzero(part).tolist()) for part in gone)))
    return withholding
