"""Evaluation at the silos: clients count on their own test rows and withhold small counts; the server adds up.

`metrics.withholding` defines which counts are small.

The histogram of a group's scores is disclosed where its table is, in ranges of bins in which both labels have enough
rows. Ranges come from halving: first at one half, because the table already discloses the rows on either side, then
quarters, down to single bins as long as both parts have enough. So the ranges of two rounds, or of two similar models,
are nested and never overlap, and no difference between them is a small count. A range's content is sent in the bin of
its mean score.

With secure sums the server learns nothing about a single client: the counts of all clients are one sum of integers
(`integers`), and the same rules withhold small counts in it before anything is stored (`decode_total`).
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
"""Tolerance by which mean scores may lie outside their bin, for rounding."""
MOST_LOSS = -math.log(LEAST_PROBABILITY) * (1 + ROUNDING)
"""Largest loss of one row in classification."""
MOST_NUMBER = 1e15
"""Largest prediction of a regression model; a larger one means that training has diverged."""
FIELDS = Scored._fields
"""Names of the fields of one client's evaluation."""


def withheld(scored: Scored, min_count: int) -> ArrayRecord:
    """Return one client's scores as it sends them: withheld counts [G, C, C] and predicted [G, C] are -1, and the sums
    that belong to them 0."""
    counts = np.concatenate([scored.counts[0], scored.unknown]).astype(np.int64)
    predicted = counts.sum(-2)
    small, hidden = small_groups(counts, min_count)  # [G + 1]
    counts[small], predicted[hidden] = WITHHELD, WITHHELD
    loss = np.where(small[:, None], 0.0, np.concatenate([scored.loss[0], scored.unknown_loss]))
    # regression only
    groups = small[:-1]
    mean = np.where(groups | np.isnan(scored.mean[0]), 0.0, scored.mean[0])
    ks = np.where(groups.any() | np.isnan(scored.ks[0]), 0.0, scored.ks[0])
    histograms = np.concatenate([scored.calibration[0], scored.unknown_calibration])
    calibration = np.zeros(histograms.shape)
    for g in np.flatnonzero(~small & _is_consistent(histograms, counts)):
        _disclose(histograms[g], min_count, calibration[g])
    values = (counts[:-1], loss[:-1], ks, mean, predicted[:-1], calibration[:-1], counts[-1], loss[-1], calibration[-1])
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in zip(FIELDS, values, strict=True)})


def _disclose(bins: np.ndarray, min_count: int, into: np.ndarray, low: int = 0, high: int | None = None) -> None:
    """Write bins `low` to `high` of one group's histogram [BINS, 3] into `into`, in ranges that may be disclosed."""
    high = len(bins) if high is None else high
    middle = (low + high) // 2
    halves = [bins[low:middle].sum(0), bins[middle:high].sum(0)]
    if high - low > 1 and all(min(true, rows - true) >= min_count for rows, true, _ in halves):
        _disclose(bins, min_count, into, low, middle)
        _disclose(bins, min_count, into, middle, high)
    elif high > low and (rows := sum(halves)[0]):
        mean = sum(halves)[2] / rows
        into[np.clip(np.searchsorted(EDGES, mean), low, high - 1)] = sum(halves)


def _is_consistent(calibration: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return True for each group [G] where histogram [G, BINS, 3] and table [G, C, C] count the same rows."""
    if not calibration.shape[1]:
        return np.ones(len(counts), dtype=bool)
    rows, true = calibration[..., 0], calibration[..., 1]
    if counts.shape[-1] > 2:
        same = true.sum(-1) == np.trace(counts, axis1=-2, axis2=-1)
    else:  # a row is predicted positive if its score exceeds one half
        sides = np.stack([rows - true, true], 1).reshape(len(counts), 2, 2, -1).sum(-1)
        same = (sides == counts).all((-2, -1))
    return same & (rows.sum(-1) == counts.sum((-2, -1)))


def read(content: RecordDict, task: Task, rows: int, fewer: bool = False) -> Scored:
    """Return a client's scores, [1, ...] each, NaN where withheld; raise `BadMessage` if they are impossible. rows: the
    test rows the client declared. fewer: its scores may cover fewer rows although none are withheld."""
    fields = unpack(content, EVALUATION, like(task))
    counts, loss, ks, mean, predicted, calibration, *unknown = (fields[name].numpy() for name in FIELDS)
    # rows of unknown group come last; their predicted totals are not sent
    counts, loss, calibration = (
        np.concatenate([part, one[None]]) for part, one in zip((counts, loss, calibration), unknown, strict=True)
    )
    for part in (counts, predicted, calibration):  # before adding up, because sums of huge numbers overflow
        if (part > rows).any():
            raise BadMessage(f"counts {part.max():.0f} test rows where it has {rows}")
    predicted = np.concatenate([predicted, counts[-1:].sum(-2).clip(WITHHELD)])
    hidden, hidden_predictions = (_find_withheld(part.reshape(len(part), -1)) for part in (counts, predicted))
    shown = max(int(np.maximum(part, 0).sum()) for part in (counts, predicted))
    if shown > rows or (shown < rows and not fewer and not hidden_predictions.any()):
        raise BadMessage(f"counts {shown} test rows where it has {rows}")
    if (~hidden & (hidden_predictions | (counts.sum(-2) != predicted).any(-1))).any():
        raise BadMessage("contradicts itself in its evaluation")
    regression = task.kind == "regression"
    most = (2 * MOST_NUMBER) ** 2 if regression else MOST_LOSS
    shown_rows = np.where(hidden[:, None], 0, counts.sum(-1))
    if (loss < 0).any() or (loss > shown_rows * most).any():
        raise BadMessage("has impossible losses in its evaluation")
    if not 0 <= ks <= 1 or (np.abs(mean) > MOST_NUMBER).any():
        raise BadMessage("has predictions in its evaluation that are out of bounds")
    shapeless = ~np.any(calibration, axis=(-2, -1))
    if (~shapeless & (hidden | ~_is_consistent(calibration, counts))).any() or not _is_possible(calibration):
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


def _is_possible(calibration: np.ndarray) -> bool:
    """Return True if row counts are whole, positives do not exceed rows, and mean scores lie in their bins."""
    rows, true, scores = np.moveaxis(calibration, -1, 0)
    low, high = np.append(0.0, EDGES)[: rows.shape[1]], np.append(EDGES, 1.0)[: rows.shape[1]]
    numbers = (true >= 0) & (true <= rows) & (true == np.floor(true)) & (rows == np.floor(rows))
    return bool((numbers & (scores >= rows * (low - ROUNDING)) & (scores <= rows * (high + ROUNDING))).all())


def _find_withheld(parts: np.ndarray) -> np.ndarray:
    """Return True for each group [G] with withheld counts [G, n]; a group is withheld as a whole."""
    gone: np.ndarray = parts == WITHHELD
    if (parts < WITHHELD).any() or (gone.any(-1) != gone.all(-1)).any():
        raise BadMessage("has negative counts in its evaluation")
    return np.all(gone, axis=-1)


def like(task: Task) -> Record:
    """Return an evaluation of zeros with the expected names, shapes and types."""
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


def combine(clients: Sequence[Scored | None], task: Task) -> dict[str, Scored]:
    """Return the clients' scores and those of their joint test set, from the disclosed counts: NaN for a group that
    no client discloses. A client without counts is None."""
    nothing = Scored(*(np.full((1, *like(task)[name].shape), np.nan) for name in FIELDS))
    every = Scored(*(np.concatenate(part) for part in zip(*(one or nothing for one in clients), strict=True)))
    whole = Scored(*(np.nansum(part, 0, keepdims=True) for part in every))
    mean = np.full(task.num_groups, np.nan)
    if task.kind == "regression":
        number = whole.counts[0, :, 0, 0]
        total = np.nansum(every.counts[:, :, 0, 0] * every.mean, 0)
        mean = np.where(number > 0, total / np.maximum(number, 1), np.nan)
    # the distance between the joint distributions does not follow from the clients' distances
    whole = whole._replace(ks=np.full(1, np.nan), mean=mean[None])
    for name in ("counts", "loss", "predicted", "calibration"):
        hidden = np.isnan(getattr(every, name)).all(0)
        whole = whole._replace(**{name: np.where(hidden, np.nan, getattr(whole, name))})
    # copied, because a view keeps the whole array in memory, round after round
    own = {name: getattr(every, name)[..., :0, :].copy() for name in ("calibration", "unknown_calibration")}
    return {"test": whole, "clients": every._replace(**own)}


# -- as one sum --------------------------------------------------------------------------------------------------------


def integers(scored: Scored, task: Task, clients: int) -> np.ndarray:
    """Encode one client's scores for a sum over `clients` clients, int64 [n]: counts unchanged, sums of losses and
    scores in fixed point, those of a regression, of any size, exactly. Raises `OutOfRange`."""
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
    """Return name, type, shape and binary places of each part of these integers."""
    groups, classes = task.num_groups + 1, max(task.num_classes, 1)
    bins = like(task)["calibration"].shape[1]
    whole = [("counts", "int64", (groups, classes, classes), 0), ("histograms", "int64", (groups, bins, 2), 0)]
    if task.kind == "regression":
        return [*whole, ("sums", "wide", (groups + task.num_groups, LIMBS), 0)]
    return [*whole, ("sums", "float64", (groups * (classes + bins),), PLACES)]


def layout_of(task: Task) -> bytes:
    return layout("evaluation", parts(task))


def size(task: Task) -> int:
    """Return the number of these integers."""
    return sum(math.prod(shape) for _, _, shape, _ in parts(task))


def decode_total(total: np.ndarray, task: Task, rows: int, min_count: int) -> Scored:
    """Return the joint scores of all clients from the sum of their `integers`, with small counts withheld (NaN);
    raise `BadMessage` if clients with `rows` test rows cannot have them."""
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
    """The groups that one client withholds, by position."""

    client: str
    counts: tuple[int, ...]
    """Groups with withheld labels and predictions."""
    predicted: tuple[int, ...]
    """Groups with withheld predicted totals, too."""


def list_withheld(clients: Sequence[Scored | None], names: Sequence[str]) -> list[Withheld]:
    """Return the withheld groups of each client that withholds any; clients that did not answer are not listed."""
    withholding = []
    for name, scored in zip(names, clients, strict=True):
        if scored is not None and np.isnan(scored.counts).any():
            gone = [np.isnan(part[0].reshape(part.shape[1], -1)).any(-1) for part in (scored.counts, scored.predicted)]
            withholding.append(Withheld(name, *(tuple(np.flatnonzero(part).tolist()) for part in gone)))
    return withholding
