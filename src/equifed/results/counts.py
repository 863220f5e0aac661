"""What a result keeps of its last evaluation, from which intervals and curves follow: rows by group, label and
prediction, histograms of scores, and the clients' own gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from equifed.metrics.calibration import BINS
from equifed.metrics.catalogue import Evaluation, describe
from equifed.metrics.local import SIGNED, gap_interval
from equifed.metrics.scored import Scored
from equifed.partition.base import UNKNOWN

if TYPE_CHECKING:
    import pandas as pd

    from equifed.federation import Federation
    from equifed.results.result import Result
    from equifed.simulator import Job

Split = Literal["validation", "test"]
SPLITS: tuple[Split, ...] = ("test", "validation")
"""The sets of rows on which the clients are measured together."""
COLUMNS = ("split", "group", "label", "predicted", "rows")
BINNED = ("split", "group", "bin", "rows", "positives", "score_sum")
LOCAL = (
    *("client", "metric", "class", "value", "low", "high", "overall"),
    *("higher", "lower", "higher_rate", "lower_rate", "higher_rows", "lower_rows"),
)


def having(frame: pd.DataFrame, values: Mapping[str, Any]) -> pd.DataFrame:
    """The rows with these values in these columns; a missing value is one, too."""
    import pandas as pd

    for name, value in values.items():
        column = frame[name]
        frame = frame[column.isna() if pd.isna(value) else column == value]
    return frame


def counts_frame(job: Job, scores: Sequence[tuple[int, int, dict[str, Scored]]]) -> pd.DataFrame:
    """The counts of the last of these evaluations (round, run, {split: scores}): see `Result.counts`."""
    import pandas as pd

    fed, labels = job.federation, job.labels
    cells = list(product([*fed.groups, None], [*fed.classes, None], fed.classes))
    always = np.array([group is not None and label is not None for group, label, _ in cells])
    lines: list[tuple[Any, ...]] = []
    for run, scored in _last(scores):
        for split in (split for split in SPLITS if split in scored and fed.classes):
            counts, predicted = scored[split].counts[0], scored[split].predicted[0]  # [G, C, C] and [G, C]
            unlabelled = predicted - np.nan_to_num(counts).sum(-2)  # of silos that withhold the labels
            table = np.concatenate([counts, unlabelled[:, None]], axis=1)
            unknown = np.pad(scored[split].unknown[0], ((0, 1), (0, 0)))
            rows = np.concatenate([table, unknown[None]]).ravel() / _times(job, run, split, predicted)
            shown = np.flatnonzero(always | (rows != 0))
            lines += [(*labels[run].values(), split, *cells[i], float(rows[i])) for i in shown]
    return pd.DataFrame(lines, columns=[*labels[0], *COLUMNS]).astype({"rows": float})


def calibration_frame(job: Job, scores: Sequence[tuple[int, int, dict[str, Scored]]]) -> pd.DataFrame:
    """The histograms of the last of these evaluations: see `Result.calibration`."""
    import pandas as pd

    fed, labels = job.federation, job.labels
    cells = list(product(fed.groups, range(BINS)))
    lines: list[tuple[Any, ...]] = []
    for run, scored in _last(scores):
        for split in (split for split in SPLITS if split in scored and fed.classes):
            times = _times(job, run, split, scored[split].predicted[0])
            sums = (scored[split].calibration[0].reshape(-1, 3) / times).tolist()
            own = (*labels[run].values(), split)
            lines += [(*own, *cell, *three) for cell, three in zip(cells, sums, strict=True)]
    return pd.DataFrame(lines, columns=[*labels[0], *BINNED]).astype(dict.fromkeys(BINNED[3:], float))


def local_gaps_frame(job: Job, scores: Sequence[tuple[int, int, dict[str, Scored]]]) -> pd.DataFrame:
    """The clients' gaps in the last of these evaluations: see `Result.local_gaps`."""
    import pandas as pd

    fed, labels = job.federation, job.labels
    blocks = [pd.DataFrame(columns=[*labels[0], *LOCAL])]
    metrics = [name for name in SIGNED if describe(name).applies(fed)]
    for run, scored in _last(scores):
        for metric in metrics if "clients" in scored else ():
            found = Evaluation(scored["clients"]).local_gaps[metric]
            block: dict[str, Any] = {"client": list(fed.ids), "metric": metric, "overall": float(found.overall)}
            several = len(fed.classes) > 2 and not np.isnan(found.overall)
            block["class"] = fed.classes[int(found.about)] if several else ""
            block["value"], (block["low"], block["high"]) = found.gaps, gap_interval(found.rates, found.rows)
            for i, which in enumerate(("higher", "lower")):
                block[which] = None if np.isnan(found.overall) else fed.groups[found.pair[i]]
                block |= {f"{which}_rate": found.rates[:, i], f"{which}_rows": found.rows[:, i].astype(float)}
            blocks.append(pd.DataFrame(block).assign(**labels[run]))
    return pd.concat(blocks[1:] or blocks, ignore_index=True)[[*labels[0], *LOCAL]]


def _last(scores: Sequence[tuple[int, int, dict[str, Scored]]]) -> list[tuple[int, dict[str, Scored]]]:
    """(run, {split: scores}) of the last of these evaluations."""
    last = max((number for number, _, _ in scores), default=0)
    return [(run, scored) for number, run, scored in scores if number == last]


def _times(job: Job, run: int, split: str, predicted: np.ndarray) -> float:
    """How often a row is counted: by every client's model, where clients have models of their own."""
    fed = job.runs[run].federation
    if len(getattr(fed, split)):
        return float(job.task.num_clients) if job.method.personal else 1.0
    # of the clients' own test rows, which they may share; 0: elsewhere. What is counted here are rows of known groups
    own = np.unique(_positions(fed, split))
    rows = int((fed.rows.s[own] != UNKNOWN).sum())
    return max(1.0, float(np.nansum(predicted)) / rows) if rows else 1.0


def _positions(fed: Federation, split: str) -> np.ndarray:
    """Where the split's rows are: those of all clients where there is no common test set."""
    common: np.ndarray = getattr(fed, split)
    return fed.client_test.index if split == "test" and not len(common) and fed.client_test is not None else common


def shared_rows(feds: Sequence[Federation], split: str) -> float:
    """Which share of a seed's rows another seed has too, the mean over all pairs of seeds: 1 where one federation
    serves all, about a fifth where each seed draws a fifth of the same data. A single seed has 1."""
    if all(fed is feds[0] for fed in feds):
        return 1.0
    one_table = all(np.may_share_memory(fed.rows.x, feds[0].rows.x) for fed in feds)
    drawn = [_drawn(fed, split) for fed in feds]
    if all(file == drawn[0][0] != "" for file, _ in drawn):  # of one mapped file
        sets = [positions for _, positions in drawn]
    elif one_table:
        sets = [np.unique(_positions(fed, split)) for fed in feds]
    else:
        sets = [np.unique([str(row) for row in _contents(fed, split)]) for fed in feds]
    size = np.mean([len(rows) for rows in sets])
    # a row that c seeds have is common to c (c - 1) / 2 pairs of seeds
    held = np.unique(np.concatenate(sets), return_counts=True)[1]
    common = (held * (held - 1)).sum() / (len(sets) * (len(sets) - 1))
    return float(common / size) if size else 0.0


def _drawn(fed: Federation, split: str) -> tuple[str, np.ndarray]:
    """The mapped file that the split's rows were drawn from, and where they were; "" for none."""
    held = np.empty(0, np.int64) if fed.mapped is None else fed.mapped.held[split]
    return ("", held) if fed.mapped is None or not len(held) else (fed.mapped.file.about["digest"], held)


def _contents(fed: Federation, split: str) -> list[bytes]:
    """The rows themselves: federations that were made one by one may hold the same ones. Rows that are only alike pass
    for the same, which errs on the careful side."""
    where = _positions(fed, split)
    if not len(where):
        return []
    parts = [fed.rows.x[where].reshape(len(where), -1), fed.rows.y[where, None], fed.rows.s[where, None]]
    return [row.tobytes() for row in np.hstack([part.astype(np.float64) for part in parts])]


def whole_tables(frame: pd.DataFrame, info: Mapping[str, Any], split: str) -> dict[tuple[Any, ...], np.ndarray]:
    """All that counts say about a split, by (swept values..., seed): [group, label, prediction], with one more group
    for rows of unknown group, where there are any, and one more label for rows whose label is withheld."""
    import pandas as pd

    groups, classes, swept = list(info["groups"]), info["classes"], info.get("swept", [])
    if frame["group"].isna().any():
        groups.append(None)
    cells = pd.MultiIndex.from_product([groups, [*classes, None], classes])
    tables = {}
    for key, block in frame[frame["split"] == split].groupby([*swept, "seed"], sort=False, dropna=False):
        rows = block.set_index(list(COLUMNS[1:4]))["rows"].reindex(cells, fill_value=0.0).to_numpy()
        tables[key] = rows.reshape(len(groups), len(classes) + 1, len(classes))
    return tables


def of_kind(tables: np.ndarray, info: Mapping[str, Any], labels: bool, unknown: bool) -> np.ndarray:
    """What a metric takes of whole tables [..., group, label, prediction]: see `Result.count_tables`."""
    shown = tables if unknown else tables[..., : len(info["groups"]), :, :]
    counts, unlabelled = shown[..., :-1, :], shown[..., -1, :]
    if labels:
        return counts
    predicted = np.zeros_like(counts)
    predicted[..., 0, :] = np.nan_to_num(counts).sum(-2) + unlabelled
    return predicted


def setting_tables(result: Result, setting: Mapping[str, Any], split: str) -> np.ndarray | None:
    """The whole tables of all seeds of one setting [S, ...]; None for a regression, and where nothing was measured."""
    own = whole_tables(having(result.counts, setting), result.info, split)
    return np.stack([*own.values()]) if own else None
