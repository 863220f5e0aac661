"""Results as tables for people and as records for machines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

if TYPE_CHECKING:
    from equifed.simulator import Result
    from equifed.store import Entry, RunFolder

COLUMNS = {
    "accuracy": "accuracy",
    "rmse": "rmse",
    "worst_group_accuracy": "worst group",
    "worst_group_rmse": "worst group",
    "demographic_parity_difference": "DP diff.",
    "equal_opportunity_difference": "EOpp diff.",
    "equalized_odds_difference": "EOdds diff.",
    "accuracy_difference": "accuracy diff.",
    "ks_distance": "KS distance",
    "mean_difference": "mean diff.",
}
"""Metrics of the comparison, where the task has them, and their headings."""
ABBREVIATIONS = {
    "demographic_parity": "DP",
    "equal_opportunity": "EOpp",
    "equalized_odds": "EOdds",
    "accuracy": "acc.",
    "_difference": " diff.",
}
NARROW = 110
"""Below this width means and deviations go on two lines."""

Record = dict[str, Any]


def record(folder: RunFolder, result: Result) -> Record:
    """What one run says about itself: {metric: {mean, std}} over seeds, costs, degenerate seeds."""
    final = result.final()
    metrics = [name for name in final.columns if name not in ("method", "seed", *result.swept)]
    sent = result.messages[result.messages["stage"] == "round"]
    degenerate = final.get("degenerate")
    return {
        "run": folder.id,
        "folder": str(folder.path),
        "method": result.info["method"],
        "data": result.info["data"],
        "rounds": result.info["rounds"],
        "seeds": result.info["seeds"],
        "metrics": {name: {"mean": float(final[name].mean()), "std": float(final[name].std())} for name in metrics},
        "bytes_up": int(sent["bytes_up"].sum()),
        "bytes_down": int(sent["bytes_down"].sum()),
        "seconds": result.timings["seconds"],
        "degenerate_runs": 0 if degenerate is None else int((degenerate > 0).sum()),
        "runs": len(final),
        "notes": result.notes,
    }


def plain_table(*headings: str, numbers: Sequence[int] = (), title: str | None = None) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, show_edge=False, padding=(0, 1, 0, 0)
    )
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i in numbers else "left", overflow="fold", no_wrap=i in numbers)
    return table


def short(metric: str) -> str:
    """A metric's name where there is little room."""
    for name, abbreviation in ABBREVIATIONS.items():
        metric = metric.replace(name, abbreviation)
    return metric.replace("_", " ")


def comparison(records: Sequence[Record], width: int) -> Table:
    """A row per method: mean ± sample standard deviation over seeds of the final test metrics."""
    narrow = width < NARROW
    known = set().union(*(each["metrics"] for each in records))
    columns = [name for name in COLUMNS if name in known]
    if "demographic_parity_difference" in columns:
        columns.remove("accuracy_difference")
    headings = ["method", *(COLUMNS[name] for name in columns), "up + down", "seconds"]
    if narrow:
        headings = [heading.replace(" ", "\n", 1) for heading in headings]
    table = plain_table(*headings, numbers=range(1, len(headings)))
    for each in records:
        table.add_row(
            each["method"] + ("*" if each["degenerate_runs"] else ""),
            *(spread(each["metrics"].get(name)).replace("±", "\n±" if narrow else "±") for name in columns),
            f"{size(each['bytes_up'])}{chr(10) if narrow else ' '}+ {size(each['bytes_down'])}",
            f"{each['seconds']:.1f}",
        )
    return table


def footnotes(records: Sequence[Record]) -> str:
    lines = ["Mean ± standard deviation over seeds on the test set; bytes per client and round."]
    if any("demographic_parity_difference" in each["metrics"] for each in records):
        lines.append("DP demographic parity, EOpp equal opportunity, EOdds equalized odds: largest gap of two groups.")
    lines.append(warnings_of(records))
    return "\n".join(filter(None, lines))


def warnings_of(records: Sequence[Record]) -> str:
    """What makes a run's figures mean less than they seem to."""
    lines = []
    flagged = [each for each in records if each["degenerate_runs"]]
    if flagged:
        who = ", ".join(f"{each['method']} ({each['degenerate_runs']} of {each['runs']} runs)" for each in flagged)
        lines.append(
            f"* Degenerate: for some group (almost) everybody gets the same prediction, so small disparities "
            f"mean nothing: {who}."
        )
    diverged = [each["method"] for each in records if not math.isfinite(each["metrics"]["loss"]["mean"])]
    if diverged:
        lines.append(f"Diverged (infinite loss): {', '.join(diverged)}. Lower the learning rate.")
    return "\n".join(lines)


def spread(value: dict[str, float] | None) -> str:
    if value is None or value["mean"] != value["mean"]:
        return "undefined"
    mean = f"{value['mean']:.3f}"
    return mean if value["std"] != value["std"] else f"{mean}±{value['std']:.3f}"


def size(number: float) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"


def frame_table(frame: Any, title: str | None = None) -> Table:
    """A data frame as it is, numbers rounded."""
    numbers = [i for i, kind in enumerate(frame.dtypes) if kind.kind in "fiu"]
    table = plain_table(*map(str, frame.columns), numbers=numbers, title=title)
    for row in frame.itertuples(index=False):
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else _word(value) for value in row))
    return table


def _word(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def metrics_table(each: Record) -> Table:
    table = plain_table("metric", "mean ± std", numbers=[1], title=f"Final test metrics over {each['runs']} runs")
    for name, value in each["metrics"].items():
        table.add_row(name, spread(value))
    return table


def groups_table(result: Result) -> Table:
    """Per-group means over seeds of the last round."""
    frame = result.metrics
    frame = frame[(frame["split"] == "test") & (frame["round"] == frame["round"].max())]
    frame = frame[frame["scope"].astype(str).str.startswith("group:")]
    wide = frame.pivot_table(index="metric", columns="scope", values="value", observed=True, sort=False)
    wide.columns = [str(scope).removeprefix("group:") for scope in wide.columns]
    return frame_table(wide.reset_index(), "By group, means over seeds")


def runs_table(entries: Sequence[Entry]) -> Table:
    table = plain_table("run", "status", "method", "data", "rounds", "seeds", "result", "name", numbers=[4, 5])
    table.columns[0].no_wrap = True  # to be copied
    for entry in entries:
        shown = [
            f"{short(name)} {float(entry.metrics[name]):.3f}"
            for name in ("accuracy", "rmse", "demographic_parity_difference", "ks_distance")
            if name in entry.metrics
        ]
        table.add_row(
            entry.id,
            entry.status,
            entry.method,
            entry.data,
            str(entry.rounds),
            str(entry.seeds),
            ", ".join(shown),
            entry.name,
        )
    return table
