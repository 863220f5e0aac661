"""The schema that silos agree on, from the summaries of their tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from equifed.data.choose import REASONS, Kind, alike
from equifed.data.columns import Columns, Missing, Scaling
from equifed.data.dates import DatePart
from equifed.data.encode import in_order
from equifed.data.schema import (
    FAR_DEVIATIONS,
    MERGED,
    MISSING,
    OTHER,
    Column,
    LeftOut,
    Schema,
    Sensitive,
    crossed,
)
from equifed.data.summary import Asked, ColumnSummary, Numbers, Summary, asks, with_groups
from equifed.errors import ConfigError, DataError, blaming, unknown_name
from equifed.partition.base import as_text
from equifed.words import listed, quoted, shortened


def agree(summaries: Sequence[Summary], columns: Columns | None = None) -> Schema:
    """Return the schema that all silos share, from their summaries.

    columns: what is settled now, such as the positive class or the rule for missing values; what the summaries say
    already, such as the label, is refused.
    """
    columns = columns or Columns()
    if said := sorted(columns.given.keys() - columns.agreed.given.keys()):
        text = f"is what the summaries say already ({', '.join(said)}). Give it where they are made."
        raise ConfigError(text, key=said[0], value=columns.given[said[0]])
    filled = [summary for summary in summaries if summary.rows]
    if not filled:
        names = ", ".join(summary.name for summary in summaries if summary.name)
        raise DataError(f"None of the files has a row: {names}." if names else "The table has no rows.")
    asked = filled[0].asked
    for summary in filled:
        if summary.asked != asked:
            fields = [name for name in Asked.model_fields if getattr(summary.asked, name) != getattr(asked, name)]
            text = f"was made with other options than {filled[0].name}: {', '.join(fields)}. Make it again."
            raise ConfigError(text[0].upper() + text[1:], file=summary.name)
    min_count = max(summary.min_count for summary in filled)
    inputs, left_out = _choose(filled, asked, min_count, _rules(columns.missing, filled), columns.scaling)
    with blaming(key="label"):
        classes = _agree_classes(filled, asked, columns.positive, min_count)
    with blaming(key="sensitive"):
        sensitive = tuple(_agree_rule(filled, number, rule, min_count) for number, rule in enumerate(asked.sensitive))
    min_group = columns.min_group
    groups = _agree_groups(filled, sensitive, columns.privileged, min_group, min_count)
    return Schema.checked(
        {
            "columns": inputs,
            "label": asked.label,
            "task": asked.task,
            "classes": classes,
            "meaning": columns.meaning,
            "label_range": columns.label_range,
            "sensitive": sensitive,
            "groups": groups,
            "min_group": max(min_group, min_count) if MERGED in groups else min_group,
            "min_count": min_count,
            "encoding": columns.encoding,
            "scaling": columns.scaling,
            "na_values": asked.na_values,
            "left_out": left_out,
        }
    )


class _Rules(NamedTuple):
    """The rule for missing values, by column."""

    usual: Missing
    own: Mapping[str, Missing]

    def of(self, name: str, kind: Kind) -> Literal["refuse", "drop", "category", "mean", "median"]:
        rule = self.own.get(name, self.usual)
        if rule in ("drop", "refuse"):
            return rule
        if kind == "categorical":
            return "category"
        if rule == "category":
            if name in self.own:
                text = f"says 'category' for {name!r}, which holds numbers. Say 'median', or that they are categories."
                raise ConfigError(text, key="missing", value=rule)
            return "refuse"
        return "mean" if rule == "mean" else "median"


def _rules(missing: Missing | Mapping[str, Missing] | None, summaries: Sequence[Summary]) -> _Rules:
    own = dict(missing) if isinstance(missing, Mapping) else {}
    known = {column.name for summary in summaries for column in summary.columns}
    for name in own:
        if name not in known:
            raise unknown_name("column", name, known, key="missing")
    return _Rules("impute" if isinstance(missing, Mapping) or missing is None else missing, own)


class _Held(NamedTuple):
    """A column at the silos that have it."""

    summaries: tuple[Summary, ...]
    columns: tuple[ColumnSummary, ...]

    @property
    def name(self) -> str:
        return self.columns[0].name

    def at(self, kind: Kind) -> list[str]:
        return [
            s.name for s, c in zip(self.summaries, self.columns, strict=True) if c.kind == kind and c.role != "empty"
        ]


def _choose(
    summaries: Sequence[Summary], asked: Asked, min_count: int, rules: _Rules, scaling: Scaling
) -> tuple[list[Column], list[LeftOut]]:
    names = dict.fromkeys(column.name for summary in summaries for column in summary.columns)
    for name in asked.drop:
        if name not in names and asked.features is None:
            raise unknown_name("column", name, names, key="drop")
    chosen: dict[str, list[Column]] = {}
    left_out: list[LeftOut] = []
    partly: list[_Held] = []
    for name in names:
        pairs = [(s, c) for s in summaries for c in s.columns if c.name == name]
        held = _Held(tuple(s for s, _ in pairs), tuple(c for _, c in pairs))
        reason = _reason(held, asked)
        if not reason and len(held.summaries) < len(summaries):
            partly.append(held)
            continue
        made = [] if reason else _columns(held, asked, min_count, rules, scaling)
        if not reason and not made:
            if asked.features is not None or name in asked.dates:
                text = f"no table has {max(min_count, 1)} values of it, so that nothing can be told of it."
                raise DataError(f"{text} Leave the column out, or give a smaller min_count.", column=name)
            reason = "rare"
        if reason:
            left_out.append(LeftOut(column=name, reason=REASONS[reason]))
        chosen[name] = made
    _check_absent(summaries, partly)
    left_out += [LeftOut(column=held.name, reason=REASONS["not everywhere"]) for held in partly]
    return [column for made in chosen.values() for column in made], left_out


def _reason(held: _Held, asked: Asked) -> str:
    """Why the column is no input, as a key of `REASONS`; empty where it is one."""
    if any(column.role == "dropped" for column in held.columns):
        return "dropped"
    if asked.features is not None:
        return ""
    voters = [(s.rows, c) for s, c in zip(held.summaries, held.columns, strict=True) if c.role != "empty"]
    if not voters:
        return "empty"
    if held.name in asked.dates:
        return ""
    votes: Counter[str] = Counter()
    for rows, column in voters:
        if column.role != "constant":
            votes["date" if column.kind == "date" else column.role] += rows
    if not votes:
        told = {(*sorted(c.categories), c.numbers.mean if c.numbers else None) for _, c in voters if c.rows}
        return "constant" if len(told) <= 1 else ""
    (most, _), *_ = votes.most_common()
    return "" if most == "input" else most


def _columns(held: _Held, asked: Asked, min_count: int, rules: _Rules, scaling: Scaling) -> list[Column]:
    """The inputs that a column becomes; none where too little is told of it."""
    name = held.name
    kinds = {kind: held.at(kind) for kind in get_args(Kind)}
    if kinds["numeric"] and kinds["categorical"]:
        raise DataError(
            f"the column holds numbers in {listed(kinds['numeric'])}, but text in {listed(kinds['categorical'])}. "
            "Correct the one or the other, or leave the column out.",
            column=name,
        )
    missing = sum(column.missing for column in held.columns)
    if name in asked.dates:
        return _date_columns(held, asked.dates[name], min_count, missing, rules, scaling)
    if kinds["numeric"]:
        numbers = _together([column.numbers for column in held.columns])
        return (
            [] if numbers is None else [_number(numbers, rules, missing, scaling, min_count, name=name, kind="numeric")]
        )
    counts = sum((Counter(column.categories) for column in held.columns), Counter())
    values = in_order(value for value, rows in counts.items() if rows >= min_count)
    if not values and asked.features is None:
        return []
    if min_count:
        values = [*(value for value in values if value != OTHER), OTHER]
    rule = rules.of(name, "categorical")
    empty = [MISSING] if missing and rule == "category" else []
    return [Column(name=name, kind="categorical", categories=(*empty, *values), missing=rule)]


def _date_columns(
    held: _Held, parts: Sequence[DatePart], min_count: int, missing: int, rules: _Rules, scaling: Scaling
) -> list[Column]:
    """A column for every part."""
    written = [set(column.formats) for column in held.columns if column.formats]
    common = sorted(set.intersection(*written)) if written else []
    if len(common) != 1:
        how = (
            f"the dates may mean {' or '.join(common)}: which of day and month comes first is not clear"
            if common
            else "the dates are not written alike in all tables"
        )
        raise DataError(f"{how}. Write them as YYYY-MM-DD.", column=held.name)
    made: list[Column] = []
    for part in parts:
        numbers = _together([column.parts.get(part) for column in held.columns])
        if numbers is None:
            return []
        facts = {"name": held.name, "kind": "date", "part": part, "format": common[0]}
        made.append(_number(numbers, rules, 0 if made else missing, scaling, min_count, **facts))
    return made


class _Merged(NamedTuple):
    mean: float
    deviation: float
    median: float
    low: float | None
    high: float | None


def _together(told: Iterable[Numbers | None]) -> _Merged | None:
    """The numbers of all silos: means and deviations are weighted by rows, the median is that of the quantiles, the
    range the widest."""
    known = [numbers for numbers in told if numbers is not None]
    if not known:
        return None
    rows = np.array([numbers.rows for numbers in known], dtype=np.float64)
    means = np.array([numbers.mean for numbers in known])
    deviations = np.array([numbers.deviation for numbers in known])
    if len(known) == 1:
        mean, deviation = known[0].mean, known[0].deviation
    else:
        mean = float(np.average(means, weights=rows))
        deviation = float(np.sqrt(np.average(deviations**2 + (means - mean) ** 2, weights=rows)))
    lows = [numbers.low for numbers in known if numbers.low is not None]
    highs = [numbers.high for numbers in known if numbers.high is not None]
    median = _median([numbers for numbers in known if numbers.quantiles])
    return _Merged(
        mean,
        deviation,
        mean if median is None else median,
        min(lows) if lows else None,
        max(highs) if highs else None,
    )


def _median(known: Sequence[Numbers]) -> float | None:
    """Where half of all rows lie, if every silo's lie evenly between its quantiles."""
    if not known:
        return None
    total = sum(numbers.rows for numbers in known)
    points = sorted({value for numbers in known for _, value in numbers.quantiles})

    def below(at: float, side: Literal["left", "right"]) -> float:
        """The share of all rows below the point; `right`: or at it."""
        share = 0.0
        for numbers in known:
            shares, values = (np.array(each) for each in zip(*numbers.quantiles, strict=True))
            if side == "left":  # of several quantiles at one point, the first or the last
                distinct, position = np.unique(values, return_index=True)
            else:
                distinct, position = np.unique(values[::-1], return_index=True)
                position = len(values) - 1 - position
            reach = shares[position]
            if at < distinct[0]:
                mine = 0.0
            elif at > distinct[-1]:
                mine = 1.0
            elif at in distinct:
                mine = float(reach[np.searchsorted(distinct, at)])
            else:
                after = int(np.searchsorted(distinct, at))
                last = float(shares[values <= distinct[after - 1]].max())
                first = float(shares[values >= distinct[after]].min())
                width = distinct[after] - distinct[after - 1]
                mine = last + (first - last) * float((at - distinct[after - 1]) / width)
            share += numbers.rows * mine / total
        return share

    previous: tuple[float, float] | None = None
    for point in points:
        upper = below(point, "right")
        if upper >= 0.5:
            lower = below(point, "left")
            if lower <= 0.5 or previous is None:
                return float(point)
            at, share = previous
            return float(at + (point - at) * (0.5 - share) / (lower - share))
        previous = (point, upper)
    return float(points[-1])


def _number(numbers: _Merged, rules: _Rules, missing: int, scaling: Scaling, min_count: int, **facts: Any) -> Column:
    rule = rules.of(facts["name"], "numeric")
    if rule in ("mean", "median"):
        facts |= {"fill": numbers.mean if rule == "mean" else numbers.median, "indicator": bool(missing)}
    if scaling == "minmax" and numbers.low is None:
        text = "no table has values enough for min-max scaling. Scale by 'standard', or leave the column out."
        raise DataError(text, column=facts["name"])
    if scaling == "minmax" or min_count:  # which monitoring makes bins of; the ends of all values are never disclosed
        facts |= {"low": numbers.low, "high": numbers.high}
    far = 0 < numbers.deviation * FAR_DEVIATIONS < abs(numbers.mean) and numbers.low != numbers.high
    return Column(missing=rule, offset=numbers.mean if scaling == "standard" and far else 0.0, **facts)


def _check_absent(summaries: Sequence[Summary], partly: Sequence[_Held]) -> None:
    """Refuse tables that lack what most others have, or have it by a similar name."""
    problems: list[DataError] = []
    for place, summary in enumerate(summaries):
        extra = [held.name for held in partly if summary in held.summaries]
        absent: list[str] = []
        hints: list[str] = []
        for held in partly:
            if summary in held.summaries:
                continue
            similar = [name for name in extra if alike(name, held.name)]
            first = any(other in held.summaries for other in summaries[:place])
            most = 2 * len(held.summaries) > len(summaries)
            if most or (similar and first):
                absent.append(held.name)
                hints += [f" {name!r} is there: is it {held.name!r}?" for name in similar]
        if absent:
            column = absent[0] if len(absent) == 1 else ""
            text = "the column is missing." if column else f"The columns {listed(absent)} are missing."
            text += "".join(hints) + " Other tables have it." * (not hints)
            problems.append(DataError(text, file=summary.name, column=column))
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise DataError(" ".join(map(str, problems)), problems=tuple(problems))


def _agree_classes(summaries: Sequence[Summary], asked: Asked, positive: object, min_count: int) -> tuple[str, ...]:
    if not asked.with_classes:
        return ()
    counts = sum((Counter(summary.classes) for summary in summaries), Counter())
    values = in_order(value for value, rows in counts.items() if rows >= min_count)
    rare = any(summary.rare_classes for summary in summaries)
    if rare and (len(summaries) == 1 or len(values) < 2):
        raise DataError(
            f"The label has a value in fewer than {min_count} rows of a table (min_count), which is too few to be told "
            "and to learn from. Leave such rows out, join values, or give a smaller min_count.",
            column=asked.label,
        )
    if len(values) < 2:
        only = f"has only one class, {quoted(values[0])}" if values else "has no value at all"
        raise DataError(f"The label {only}: nothing can be learnt. Check the rows and the column.", column=asked.label)
    if positive is None:
        return tuple(values)
    one = as_text(positive)
    if one not in values:
        text = f"The label has no value {one!r} to be class 1. It has: {shortened(values)}."
        raise DataError(text, key="positive", value=positive, column=asked.label)
    if len(values) > 2:
        raise DataError(
            f"The label has {len(values)} values ({shortened(values)}), so no single one is the positive class. Leave "
            "`positive` out, or make a column with two values.",
            key="positive",
            value=positive,
            column=asked.label,
        )
    return (*(value for value in values if value != one), one)


def _agree_rule(summaries: Sequence[Summary], number: int, rule: Sensitive, min_count: int) -> Sensitive:
    nothing = DataError(
        "the column has no value at all, so that no group is known."
        if not min_count
        else f"no table has {min_count} rows of any value (min_count), so that no group is known.",
        column=rule.column,
    )
    if rule.continuous and (rule.mean is None or rule.deviation is None):
        found = _together([summary.moments[number] for summary in summaries])
        if found is None:
            raise nothing
        return rule.model_copy(update={"mean": found.mean, "deviation": found.deviation or 1.0})
    if not asks(rule):
        return rule
    counts = sum((Counter(summary.values[number]) for summary in summaries), Counter())
    values = [value for value, rows in counts.items() if rows >= min_count]
    if not values:
        raise nothing
    return with_groups(rule, values, min_count)


def _agree_groups(
    summaries: Sequence[Summary],
    rules: Sequence[Sensitive],
    privileged: str | None,
    min_group: int,
    min_count: int,
) -> tuple[str, ...]:
    rows = sum((Counter(summary.groups) for summary in summaries), Counter())
    names = ["all"]
    for number, rule in enumerate(rules):
        more = rule.group_names
        names = crossed(names, more) if number else more
    present = [name for name in names if rows[name] and name != MERGED]
    large = [name for name in present if rows[name] >= max(min_group, min_count)]
    if not present:
        raise DataError("No row has a value in all sensitive columns, so that no group is known.", key="sensitive")
    if not large:
        raise DataError(
            f"no group has {min_group} rows, the largest {max(rows.values())}. Give a smaller number.",
            key="min_group",
            value=min_group,
        )
    if privileged is not None and privileged not in present:
        raise DataError(f"No row belongs to the privileged group {privileged!r}. Groups: {', '.join(present)}.")
    if rows[MERGED] or len(present) - len(large) > 1:  # one small group by itself has nothing to be merged with
        present = [MERGED, *large]
    if privileged is None or privileged not in present:
        return tuple(present)
    return (*(name for name in present if name != privileged), privileged)
