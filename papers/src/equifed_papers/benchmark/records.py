"""The raw numbers: a Parquet file with a row for each tier, data set, partition, method, setting and seed.

Files are only added to, and rows say where they come from, so that parts that were run elsewhere can be joined, and
somebody else's method can be put beside those that are there.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock

import equifed
from equifed.errors import DataError
from equifed.federation.reading import check_parquet
from equifed.files import write_atomic
from equifed.words import clean
from equifed_papers import HOME
from equifed_papers.benchmark.plan import Trial, family_of, setting_text

if TYPE_CHECKING:
    from equifed.results import Result

ROWS = "benchmark.parquet"
"""The file, in the benchmark's folder and in the documentation."""
VERSION = 1
"""Of the schema; it stands in the file's metadata as `equifed.benchmark`."""
KEY = ["tier", "data", "partition", "method", "setting", "seed"]
"""What tells rows apart."""
MEASURED = {
    "accuracy": "share of all rows predicted right; where clients have models of their own, each decides all rows",
    "demographic_parity_difference": "gap in the share predicted positive, over all rows",
    "equal_opportunity_difference": "gap in the true positive rate, over all rows",
    "rmse": "root mean squared error, of a regression",
    "ks_distance": "distance of the groups' distributions of predictions, of a regression",
    "client_accuracy.mean": "mean over clients, each on its own rows",
    "client_accuracy.worst": "the client served worst, on its own rows",
    "client_rmse.mean": "mean over clients, each on its own rows, of a regression",
    "client_rmse.worst": "the client served worst, on its own rows, of a regression",
    "client_demographic_parity_difference.worst": "the client whose own gap is largest",
    "group_equity.worst10": "the group of clients served worst, where clients have known groups",
}
"""Metrics of the catalogue that are kept, each on validation and on test rows."""
SPLITS = ("validation", "test")
_TEXT, _NUMBER, _WHOLE = pa.string(), pa.float64(), pa.int64()
COLUMNS: dict[str, tuple[Any, str]] = {
    "tier": (_TEXT, "quick, standard or full"),
    "data": (_TEXT, "the data set"),
    "partition": (_TEXT, "how its rows are dealt to clients"),
    "method": (_TEXT, "the method, as `equifed methods` has it, or module:Name"),
    "setting": (_TEXT, "its step size and its own values; empty where the method is left out"),
    "seed": (_WHOLE, "of split, partition, initial model and batches; -1 where the method is left out"),
    "family": (_TEXT, "what kind of method it is"),
    "personal": (pa.bool_(), "whether clients end up with models of their own"),
    "left_out": (_TEXT, "why the method cannot run on these data; empty where it ran"),
    "rounds": (_WHOLE, "of training"),
    "clients": (_WHOLE, "how many there are, all of whom take part in every round"),
    "rows": (_WHOLE, "training rows of all clients"),
    "majority": (_NUMBER, "share of the most frequent label among the common test rows"),
    **{f"{split}_{name}": (_NUMBER, f"{text}; {split} rows") for split in SPLITS for name, text in MEASURED.items()},
    "bytes": (_WHOLE, "up and down, of one client in all rounds"),
    "seconds": (_NUMBER, "wall time of the computation, divided by the seeds and settings that shared it"),
    "device": (_TEXT, "what it ran on"),
    "threads": (_WHOLE, "of the CPU"),
    "plan": (_TEXT, "hash of the configuration but for seeds and swept values: rows of another plan are run again"),
    "commit": (_TEXT, "of equifed, where it ran from a checkout"),
    "version": (_TEXT, "of equifed"),
    "date": (_TEXT, "when the row was made, UTC"),
}
"""Name: type and meaning."""
SCHEMA = pa.schema(
    [pa.field(name, kind, metadata={"meaning": text}) for name, (kind, text) in COLUMNS.items()],
    metadata={"equifed.benchmark": str(VERSION)},
)


def rows_of(trial: Trial, result: Result, environment: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a trial's result adds to the records. environment: of the run."""
    finals = {split: result.final(split) for split in SPLITS}
    keys = [*result.swept, "seed"]
    merged = finals["test"].merge(finals["validation"], on=keys, suffixes=("", " validation"))
    common = {
        **_facts(trial),
        "left_out": "",
        "rounds": result.settings.rounds,
        "clients": result.info["num_clients"],
        "rows": result.info["rows"]["train"],
        "majority": _majority(result),
        "bytes": _bytes(result),
        "seconds": result.timings["seconds"] / len(merged),
        "device": environment["device"],
        "threads": environment["threads"],
    }
    found = []
    for row in merged.to_dict("records"):
        values = {name: float(row[name]) for name in result.swept}
        measured = {
            f"{split}_{name}": row.get(f"{name}{suffix}")
            for split, suffix in (("test", ""), ("validation", " validation"))
            for name in MEASURED
        }
        found.append({**common, "setting": setting_text(trial.step, values), "seed": int(row["seed"]), **measured})
    return found


def left_out(trial: Trial, reason: str) -> dict[str, Any]:
    """The row of a method that cannot run on these data."""
    return {**_facts(trial), "setting": "", "seed": -1, "left_out": reason}


def _facts(trial: Trial) -> dict[str, Any]:
    from equifed.store.environment import commit

    return {
        "tier": trial.tier,
        "data": trial.data,
        "partition": trial.partition,
        "method": trial.method,
        "family": family_of(trial.method),
        "personal": trial.config.method.personal,
        "plan": trial.plan,
        "commit": commit(HOME) or "",
        "version": equifed.__version__,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def _majority(result: Result) -> float | None:
    """The share of the most frequent label, over the seeds' test rows; None for a regression."""
    if not result.info.get("classes"):
        return None
    rows = result.counts[result.counts["split"] == "test"].groupby("label")["rows"].sum()
    return float(rows.max() / rows.sum())


def _bytes(result: Result) -> int:
    messages = result.messages
    times = messages["times"] * messages["stage"].map({"round": result.settings.rounds, "setup": 1, "final": 1})
    return int(((messages["bytes_up"] + messages["bytes_down"]) * times).sum())


# -- files -------------------------------------------------------------------------------------------------------------


def table_of(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a frame with all columns of the schema, in its order."""
    made = [{name: row.get(name) for name in COLUMNS} for row in rows]
    return pa.Table.from_pylist(made, schema=SCHEMA).to_pandas()


def read(path: Path) -> pd.DataFrame:
    """The rows of a file; none where there is no file."""
    if not path.exists():
        return table_of([])
    try:
        schema = pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read as a Parquet file: {error}.") from None
    version = (schema.metadata or {}).get(b"equifed.benchmark", b"").decode(errors="replace")
    if version != str(VERSION):
        what = f"version {clean(version)} of the benchmark's schema" if version else "no benchmark's schema"
        raise DataError(f"{path} has {what}, and this equifed reads version {VERSION}. Run the benchmark again.")
    missing = [name for name in COLUMNS if name not in schema.names]
    if missing:
        raise DataError(f"{path} lacks columns of the benchmark's schema: {', '.join(missing)}.")
    try:
        check_parquet(path, str(path))
        return pq.read_table(path, columns=list(COLUMNS)).to_pandas()
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read as a Parquet file: {error}.") from None


def write(path: Path, frame: pd.DataFrame) -> None:
    """In the schema, in the order of the keys."""
    ordered = frame.sort_values(KEY, kind="stable")[list(COLUMNS)]
    content = io.BytesIO()
    pq.write_table(pa.Table.from_pandas(ordered, schema=SCHEMA, preserve_index=False), content, compression="zstd")
    write_atomic(path, content.getvalue())


def add(path: Path, new: pd.DataFrame, over: bool = True) -> pd.DataFrame:
    """All rows of the file and these; of two with the same key, the one of these, or else (over=False) the file's.
    Several processes may add."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        there = read(path)
        all_rows = joined([there, new] if over else [new, there])
        if len(new):
            write(path, all_rows)
    return all_rows


def keep(path: Path, plans: Mapping[tuple[str, ...], Mapping[str, set[str]]]) -> pd.DataFrame:
    """The rows of the file but for those of other plans or settings than these, by place (tier, data, partition,
    method), where a place is here at all: they would be chosen among beside those that are run in their stead."""
    with FileLock(path.with_name(f".{path.name}.lock")):
        rows = read(path)
        places = rows[KEY[:4]].itertuples(index=False, name=None)
        kept = [
            place not in plans or setting in plans[place].get(plan, ())
            for place, plan, setting in zip(places, rows["plan"], rows["setting"], strict=True)
        ]
        if not all(kept):
            rows = rows[kept].reset_index(drop=True)
            write(path, rows)
    return rows


def joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Of rows with the same key, the last."""
    filled = [frame for frame in frames if len(frame)]
    if not filled:
        return table_of([])
    return pd.concat(filled, ignore_index=True).drop_duplicates(KEY, keep="last").reset_index(drop=True)


def done(frame: pd.DataFrame) -> set[tuple[Any, ...]]:
    """The keys that are there, with their plan."""
    return set(frame[[*KEY, "plan"]].itertuples(index=False, name=None))
