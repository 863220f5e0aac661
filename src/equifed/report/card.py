"""The model card: what a trained model is for, on which data it was made and measured, for whom, with what limits, what
left each client, and how it was made. Generated from what a run recorded; anything not recorded is reported as unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from equifed.data.schema import MISSING
from equifed.metrics import catalogue
from equifed.metrics.catalogue import describe
from equifed.report.messages import messages_of
from equifed.results.stored import StoredStates
from equifed.verdict import wording
from equifed.verdict.comparison import Comparison
from equifed.verdict.groups import rate_intervals
from equifed.verdict.silos import NOT_AVAILABLE, PROMISE, Secure, Silos
from equifed.verdict.variants import Variant

if TYPE_CHECKING:
    from equifed.data.schema import Column
    from equifed.results.result import Result

MOST_CLIENTS = 30
"""Clients whose rows are listed one by one."""
MOST_SETTINGS = 30
"""Settings of a sweep whose figures are listed."""
WITHOUT_VALUE = {
    "drop": "rows without a value were left out of training, and are refused",
    "refuse": "a row without a value is refused",
    "category": "a missing value counts as one that is not listed",
}


@dataclass(frozen=True)
class Table:
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Section:
    title: str
    parts: tuple[str | tuple[str, ...] | Table, ...]
    """Paragraphs, lists and tables."""
    elsewhere: str = ""
    """The section of the report that has the same."""


@dataclass(frozen=True)
class Card:
    title: str
    sections: tuple[Section, ...]

    def markdown(self) -> str:
        lines = [f"# {_escaped(self.title)}", ""]
        for section in self.sections:
            lines += [f"## {section.title}", ""]
            for part in section.parts:
                if isinstance(part, Table):
                    lines += [_row(part.columns), _row(["---"] * len(part.columns), plain=True)]
                    lines += [_row(row) for row in part.rows]
                elif isinstance(part, tuple):
                    lines += [f"- {_escaped(each)}" for each in part]
                else:
                    lines.append(_escaped(part))
                lines.append("")
        return "\n".join(lines)


def with_facts(info: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """A result's info with what its folder knows beside it."""
    return {**info, **facts, "provenance": {**info.get("provenance", {}), **facts.get("provenance", {})}}


def card_of(result: Result, facts: Mapping[str, Any] | None = None) -> Card:
    """The card of a result's models. facts: what is known besides, by the names of `Result.info`; `weights`: the
    checksum of the file that holds them."""
    comparison = None if result.metrics.empty else result.compared
    result = replace(result, info=with_facts(result.info, facts or {}))
    info = result.info
    named = f"{info['method']} on {info['data']}" if info.get("data") else str(info["method"])
    sections = (
        Section("What it is for", tuple(_purpose(result))),
        Section("Data", tuple(_data(result))),
        Section("Between which groups", tuple(_groups(result))),
        Section("Figures", tuple(_figures(result, comparison)), elsewhere="comparison"),
        Section("Limits", (tuple(_limits(result, comparison)),)),
        Section("What left each client", tuple(_messages(result)), elsewhere="messages"),
        Section("How it was made", tuple(_making(result)), elsewhere="provenance"),
    )
    return Card(f"Model card: {wording.plain(named)}", sections)


# -- sections ----------------------------------------------------------------------------------------------------------


def _purpose(result: Result) -> list[Any]:
    info, schema = result.info, result.schema
    label = f"the column {_quoted(schema.label)}" if schema else "the labels that it was trained on"
    classes = [str(name) for name in info["classes"]]
    about = StoredStates.pack(result.final_states).about
    if info.get("task") == "regression":
        said = [f"It predicts {label}, a number."]
    else:
        decides = "a probability above one half" if len(classes) == 2 else "the largest probability"
        said = [f"It predicts {label}: {wording.listing(classes, most=12)}. It decides by {decides}."]
    said += filter(None, [wording.outcome(info)])
    if not info.get("meaning"):
        said.append("What the outcome means was not recorded.")
    said.append("For what, and for whom, it may be used was not recorded: that is for those who use it to settle.")
    models = len(about["runs"])
    kinds = [f"one for each seed ({_text(result.settings.seeds)})"] if models > 1 else []
    kinds += [f"one for each value of {wording.listing(result.swept)}"] if result.swept else []
    if kinds:
        said.append(f"It is {models} models: {' and '.join(kinds)}.")
    if _method(result) is not None and _method(result).personal:
        where = (
            "are in the package" if about.get("client_states") else "stay with the clients, and are not in the package"
        )
        said.append(f"Clients have models, or parts of one, of their own, which {where}.")
    return said


def _data(result: Result) -> list[Any]:
    info, schema = result.info, result.schema
    rows = ", ".join(
        f"{number:,} {what}" if number is not None else f"an unknown number of {what}"
        for what, number in ((f"{split} rows", info["rows"][split]) for split in ("train", "validation", "test"))
    )
    what = _quoted(info["data"]) if info.get("data") else "Arrays" if schema is None else "A table"
    parts: list[Any] = [f"{what}: {rows}, at {len(info['clients']):,} clients."]
    parts += _rows_by_client(result)
    if schema is None:
        return [*parts, "The inputs are arrays: no schema says what they mean."]
    parts.append(f"Its inputs come from {len({column.name for column in schema.columns})} columns:")
    parts.append(Table(("column", "kind", "values"), tuple(_column(column) for column in schema.columns)))
    if schema.left_out:
        parts.append("Columns that were there, and left out:")
        parts.append(Table(("column", "why"), tuple((each.column, each.reason) for each in schema.left_out)))
    scaling = {"standard": "standardised by mean and deviation of the training rows", "none": "taken as they are"}
    parts.append(f"Numbers are {scaling.get(schema.scaling, 'scaled to 0..1 by the range in the schema')}.")
    return parts


def _column(column: Column) -> tuple[str, ...]:
    values = f"{len(column.categories)} categories" if column.kind == "categorical" else ""
    missing = WITHOUT_VALUE.get(column.missing, "")
    if column.fill is not None:
        missing = f"a missing value becomes {column.fill:g}, the {column.missing}"
        missing += ", and an input says where" if column.indicator else ""
    elif MISSING in column.categories:
        missing = "a missing value is a category of its own"
    return column.title, column.kind, ", ".join(filter(None, (values, missing)))


def _rows_by_client(result: Result) -> list[Any]:
    info, silos = result.info, Silos.of(result)
    if silos is not None:
        if silos.secure is not None:
            return ["The number of rows of a silo is known to that silo only."]
        return [
            Table(("silo", "training rows", "test rows"), tuple((silo.name, *silo.counted) for silo in silos.members))
        ]
    if info.get("cells") is None:
        return []
    cells = np.asarray(info["cells"]).sum(-1)  # [clients, groups]
    unknown = np.asarray(info["unknown_cells"]).sum(-1) if info.get("unknown_cells") else None
    columns = ["client", *map(str, info["groups"]), *(["group unknown"] if unknown is not None else [])]
    if len(cells) > MOST_CLIENTS:
        sizes, totals = cells.sum(1), cells.sum(0)
        by_group = ", ".join(
            f"{wording.group(str(name))} {int(n):,}" for name, n in zip(info["groups"], totals, strict=True)
        )
        return [
            f"Training rows of a client: {sizes.min():,} to {sizes.max():,}, median {int(np.median(sizes)):,}.",
            f"Training rows of all by group: {by_group}.",
        ]
    rows = [
        (str(name), *(f"{int(n):,}" for n in of), *([f"{int(unknown[k].sum()):,}"] if unknown is not None else []))
        for k, (name, of) in enumerate(zip(info["clients"], cells, strict=True))
    ]
    return [
        "Training rows by client and group (of the first seed, where seeds split the data anew):",
        Table(tuple(columns), tuple(rows)),
    ]


def _groups(result: Result) -> list[Any]:
    schema, method = result.schema, _method(result)
    groups = wording.listing([wording.plain(str(name)) for name in result.info["groups"]], most=20)
    parts = [f"Fairness was measured between: {groups}."]
    if schema is not None and schema.sensitive:
        columns = [rule.column for rule in schema.sensitive]
        inputs = [name for name in columns if name in {column.name for column in schema.columns}]
        told = (
            f"Of these, the model has as inputs: {wording.listing(inputs)}."
            if inputs
            else "No such column is an input."
        )
        parts.append(f"They come from the column{'s' * (len(columns) > 1)} {wording.listing(columns)}. {told}")
    if method is not None:
        needs = "needs" if method.adjusts else "does not need"
        parts.append(f"To predict, the model {needs} a row's group.")
    return parts


def _figures(result: Result, comparison: Comparison | None) -> list[Any]:
    if comparison is None:
        return ["Nothing was measured: there were no test rows."]
    variants = comparison.variants
    seeds, split = variants[0].seeds, variants[0].split
    parts: list[Any] = [
        f"On {split} rows, the mean over {seeds} seed{'s' * (seeds > 1)}. Intervals are of 95 %: by rows and seeds "
        "where a figure follows from counts, else by seeds; a noise floor is what a perfectly fair model might show on "
        "so many rows."
    ]
    if len(variants) > 1:
        metrics = comparison.judged
        columns = ("setting", *(describe(name).title for name in metrics))
        rows = [
            (variant.label, *(_with_interval(variant, name) for name in metrics))
            for variant in variants[:MOST_SETTINGS]
        ]
        parts.append(Table(columns, tuple(rows)))
        if len(variants) > MOST_SETTINGS:
            parts.append(f"{len(variants) - MOST_SETTINGS} more settings are in the run's report.")
    told = _told(comparison)
    if told is None:
        return [*parts, "No setting was chosen."]
    if len(variants) > 1:
        parts.append(f"Of the chosen setting, {told.label}:")
    rows = [
        (
            describe(name).heading,
            _with_interval(told, name),
            wording.number(told.noise_floor(name))
            if describe(name).disparity and math.isfinite(told.noise_floor(name))
            else "",
        )
        for name in comparison.metrics
    ]
    parts.append(Table(("figure", "mean [95 % interval]", "noise floor"), tuple(rows)))
    parts += _by_group(told)
    return parts


def _told(comparison: Comparison) -> Variant | None:
    """The only setting, or the one that meets the target."""
    if len(comparison.variants) == 1:
        return comparison.variants[0]
    answer = comparison.answer
    if answer is None or answer.chosen is None or not answer.chosen_meets:
        return None
    return next((variant for variant in comparison.variants if variant.label == answer.chosen.label), None)


def _with_interval(variant: Variant, metric: str) -> str:
    mean = variant.over_seeds(metric).mean
    if math.isnan(mean):
        return variant.absent(metric)
    interval = variant.interval(metric)
    return wording.number(mean) + (
        f" [{wording.number(interval[0])}, {wording.number(interval[1])}]" if interval else ""
    )


def _by_group(variant: Variant) -> list[Any]:
    means = variant.groups.groupby(["metric", "name"], sort=False)["value"].mean()
    known = set(means.index.get_level_values(0))
    metrics = [name for name in catalogue.ordered(known) if describe(name).in_groups in ("count", "rate")]
    if not metrics:
        return []
    intervals = rate_intervals(variant.groups, variant.models)
    rows = []
    for group in dict.fromkeys(variant.groups["name"]):
        values = means.xs(group, level="name")
        cells = []
        for name in metrics:
            value = float(values.get(name, np.nan))
            if math.isnan(value):
                cells.append(variant.absent(name, groups=[group]))
            elif describe(name).in_groups == "count":
                cells.append(f"{value / variant.models:,.0f}")
            else:
                low, high = intervals.loc[(group, name)]
                cells.append(
                    wording.number(value)
                    + (f" [{wording.number(low)}, {wording.number(high)}]" if math.isfinite(low) else "")
                )
        rows.append((str(group), *cells))
    return ["By group:", Table(("group", *(describe(name).title for name in metrics)), tuple(rows))]


def _limits(result: Result, comparison: Comparison | None) -> list[str]:
    said = [] if comparison is None else list(comparison.verdict.caveats)
    said += [str(note) for note in result.notes if comparison is None]
    said.append(
        "The figures are of rows of the same clients that were held back from training; they say nothing of other "
        "populations, other places or later years."
    )
    said.append("Fairness is measured between the groups above, and between no others.")
    method = _method(result)
    if method is not None and method.adjusts:
        said.append(
            "Decisions are changed by the row's group after the model has scored it. Where they are drawn by chance, "
            "the i-th row of a call gets the i-th random number of the model's seed: the same call gives the same."
        )
    if result.schema is not None:
        said.append("A row that does not fit the schema is refused, with its column and row.")
    return [wording.plain(each, 1000) for each in said]


def _messages(result: Result) -> list[Any]:
    exchanges, secure = messages_of(result), Secure.of(result.info)
    if exchanges["pooled"]:
        return ["All rows: it is a reference that trains on the rows of all clients in one place."]
    parts: list[Any] = []
    if secure is not None:
        parts += [f"{PROMISE.format(least=secure.least)}.", NOT_AVAILABLE]
    elif "federation" in result.info:
        parts.append("No secure aggregation: the server received every silo's reply by itself.")
    else:
        parts.append("Simulated: all rows were on one machine. These are the exchanges that a federation would have.")
    rows = tuple(
        (
            phase["phase"],
            phase["stage"],
            _fields(phase["down"]),
            _fields(phase["up"]),
            phase["gather"] + (", but sees each reply" if phase["seen"] and phase["private"] else ""),
        )
        for phase in exchanges["phases"]
    )
    parts.append(Table(("exchange", "when", "sent to clients", "sent back", "the server"), rows))
    return parts


def _fields(sizes: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"{name} ({wording.size(size)})" for name, size in sizes) or "nothing"


def _making(result: Result) -> list[Any]:
    info, settings = result.info, result.settings.to_dict()
    local = settings.pop("local", {})
    hyper = {**info.get("hyper_parameters", {}), **dict.fromkeys(result.swept, "swept")}
    facts: dict[str, Any] = {
        "method": info["method"],
        **{f"hyperparameter {name}": value for name, value in hyper.items()},
        "model": " ".join(str(info.get("model", "")).split()),
        **{
            name: settings[name]
            for name in ("rounds", "seeds", "clients_per_round", "secure", "robust", "clip", "target")
        },
        **{f"local {name}": value for name, value in local.items()},
        **{f"run {name}": value for name, value in info.get("run", {}).items()},
        **{f"environment: {name}": value for name, value in info.get("versions", {}).items() if name != "commit"},
        "commit of equifed": info.get("versions", {}).get("commit"),
        **{f"data: {name}": value for name, value in info.get("provenance", {}).items()},
        "checksum of the weights (BLAKE2)": info.get("weights"),
    }
    rows = tuple((name.replace("_", " "), text) for name, value in facts.items() if (text := _text(value)))
    return [Table(("what", "value"), rows)]


# -- words -------------------------------------------------------------------------------------------------------------


def _method(result: Result) -> Any:
    """The method of the first run; None where it cannot be made again."""
    from equifed.errors import ConfigError
    from equifed.methods import make_recorded

    if result.final_states and not isinstance(result.final_states, StoredStates):
        return next(iter(result.final_states.values())).method
    try:
        return make_recorded(str(result.info["method"]), **result.info.get("hyper_parameters", {}))
    except ConfigError:
        return None


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(inner)}" for name, inner in value.items())
    if isinstance(value, list | tuple):
        return _listing(value, 20)
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None else str(value)


def _listing(values: Sequence[Any], most: int) -> str:
    return wording.listing([_text(value) for value in values], most=most) if values else ""


def _quoted(name: object) -> str:
    return f"'{wording.plain(str(name))}'"


def _escaped(text: str) -> str:
    """Fit for Markdown: names come from files, and may hold what would be a link, a tag or a column."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", wording.plain(text, 4000))


def _row(cells: Sequence[str], plain: bool = False) -> str:
    return f"| {' | '.join(cells if plain else map(_escaped, cells))} |"
