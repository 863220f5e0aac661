"""One HTML page that needs nothing else: the numbers as JSON, the charts drawn from it, the tables as text."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from equifed.charts import Scripts
from equifed.errors import ConfigError
from equifed.files import write_atomic
from equifed.metrics import catalogue
from equifed.metrics.calibration import BINS
from equifed.metrics.catalogue import describe
from equifed.metrics.seeds import MIN_SEEDS, moments_by
from equifed.report.card import Card, card_of
from equifed.report.charts import charts_of
from equifed.report.messages import messages_of
from equifed.report.numbers import page_data, summary_data
from equifed.report.robust import robustness
from equifed.settings import MARGIN
from equifed.verdict import wording
from equifed.verdict.comparison import Comparison
from equifed.verdict.groups import SMALL_GROUP, parts
from equifed.verdict.sentences import Verdict
from equifed.verdict.silos import DISCLOSED, NOT_AVAILABLE, Secure, Silos
from equifed.verdict.variants import Variant, differing_names

if TYPE_CHECKING:
    from equifed.results.result import Result
    from equifed.target import Confidence

WORST_CLIENTS = 5
"""Clients named per variant."""
CARDS = 4
"""Numbers of the chosen method that stand beside the verdict."""


def write_report(
    results: Sequence[Result],
    path: str | Path,
    *,
    title: str | None = None,
    disparity: str | None = None,
    baseline: str | None = None,
    margin: float = MARGIN,
    target: Any = None,
    confidence: Confidence | None = None,
) -> Path:
    """Write the report on one result, several methods or a sweep: one HTML file that loads nothing from elsewhere.

    disparity: the metric that the verdict is about; by default the first main one that was measured.
    baseline: the method that the others are tested against; by default FedAvg, or else the first.
    margin: how much accuracy the verdict may give up for fairness, 0.01 for one point; of an RMSE, 0.01 is 1 %.
    target, confidence: what the model is to reach, see `equifed.answer`; by default what the results were made with.
    """
    return write_page(Comparison.of(results, disparity, baseline, margin, target, confidence), path, title)


def write_page(comparison: Comparison, path: str | Path, title: str | None = None) -> Path:
    path = Path(path)
    text = render(comparison, title)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.encode("utf-8", "replace"))
    return path


def render(comparison: Comparison, title: str | None = None) -> str:
    """The page's text."""
    variants, results = comparison.variants, comparison.results
    data = page_data(comparison)
    verdict = comparison.verdict
    charts = charts_of(data, verdict.chosen)
    return (
        templates()
        .get_template("page.html.j2")
        .render(
            title=title or _title(results),
            heading=lambda name: describe(name).heading,
            rows=wording.rows,
            verdict=verdict,
            cards=_cards(data, verdict, variants),
            data=data,
            outcomes=list(dict.fromkeys(filter(None, (wording.outcome(result.info) for result in results)))),
            seeds=variants[0].seeds if len({variant.seeds for variant in variants}) == 1 else None,
            group_tables=_group_tables(data, variants),
            gap_rows=_gap_rows(comparison),
            counts=[name for name in data["groups"]["metrics"] if describe(name).in_groups == "count"],
            robust=[found for result in results for found in robustness(result)],
            silos=_silos(results),
            unseen=[str(result.info["method"]) for result in results if Secure.of(result.info)],
            not_available=NOT_AVAILABLE,
            worst_clients=_worst_clients(comparison),
            messages=[messages_of(result) for result in results],
            card=_card(comparison, verdict),
            settings=_settings(results),
            configs=[result.info for result in results if result.info.get("config")],
            citations=_citations(results),
            versions=_versions(results),
            written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            small_group=SMALL_GROUP,
            min_seeds=MIN_SEEDS,
            bins=BINS,
            multiclass=any(len(result.info.get("classes", ())) > 2 for result in results),
            named=WORST_CLIENTS,
            style=asset("page.css"),
            charts=charts,
            scripts=Scripts(charts.specs, asset("page.js"), data),
        )
    )


def summary_html(comparison: Comparison) -> str:
    """A comparison where a notebook shows it: the verdict and the table, without script or style sheet."""
    template = templates().get_template("summary.html.j2")
    return template.render(
        title=_title(comparison.results),
        verdict=comparison.verdict,
        data=summary_data(comparison),
        rounds=comparison.results[0].settings.rounds,
    )


@cache
def templates(package: str = "equifed.report") -> Environment:
    """Those of a package's pages."""
    environment = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {name: getattr(wording, name) for name in ("number", "size", "signed", "p_value")}
    return environment


def embedded(data: Any) -> Markup:
    """JSON that cannot end its script element: every <, > and & is written as an escape."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


@cache
def asset(name: str) -> Markup:
    """A file of this package, as it stands in a page."""
    return Markup(resources.files("equifed.report").joinpath(name).read_text(encoding="utf-8"))


def _title(results: Sequence[Result]) -> str:
    methods = list(dict.fromkeys(str(result.info["method"]) for result in results))
    data = list(dict.fromkeys(str(result.info["data"]) for result in results if result.info.get("data")))
    return wording.listing(methods) + (f" on {wording.listing(data)}" if data else "")


# -- tables that are written as text -----------------------------------------------------------------------------------


def _card(comparison: Comparison, verdict: Verdict) -> Card | None:
    """That of the method to take, or of the only one; None where none is taken."""
    taken = [variant.result for variant in comparison.variants if variant.label == verdict.chosen]
    chosen = taken or (comparison.results if len(comparison.results) == 1 else [])
    return card_of(chosen[0]) if chosen else None


def _cards(data: dict[str, Any], verdict: Verdict, variants: list[Variant]) -> list[dict[str, Any]]:
    """The chosen method's main numbers, each with its interval."""
    variant = next((variant for variant in variants if variant.label == verdict.chosen), None)
    if variant is None:
        return []
    final = data["variants"][variants.index(variant)]["final"]
    worst = [name for name in data["table"]["columns"] if name in final and not describe(name).disparity]
    names = dict.fromkeys(filter(None, (data["quality"], data["disparity"], *worst)))
    return [{"metric": name, **final[name], "absent": variant.absent(name)} for name in list(names)[:CARDS]]


def _group_tables(data: dict[str, Any], variants: list[Variant]) -> list[dict[str, Any]]:
    """The groups, and where they are intersections, their marginals."""
    tables = []
    for title, kind in (("Groups", "groups"), ("One sensitive column at a time", "marginals")):
        metrics, values = catalogue.ordered(data[kind]["metrics"]), data[kind]["values"]
        columns = [name for name in metrics if describe(name).in_groups in ("count", "rate")]
        rows = []
        for i, variant in enumerate(variants):
            groups = list(dict.fromkeys(variant.groups["name"]))
            pooled = parts(groups) if kind == "marginals" else {group: [group] for group in groups}
            for g, name in enumerate(data[kind]["names"]):
                if name not in pooled:
                    continue  # a group of other data
                cells = [
                    {what: of_variants[i][g] for what, of_variants in values[column].items()}
                    | {"absent": variant.absent(column, groups=pooled[name])}
                    for column in columns
                ]
                counts = [values[column]["mean"][i][g] for column in ("count", DISCLOSED) if column in columns]
                fewest = min((count / variant.models for count in counts if count), default=math.inf)
                constant = "degenerate" in values and bool(values["degenerate"]["mean"][i][g])
                rows.append(
                    {"variant": variant.label, "models": variant.models, "group": name, "cells": cells}
                    | {"small": fewest < SMALL_GROUP, "degenerate": constant}
                )
        if rows:
            tables.append({"title": title, "columns": columns, "rows": rows})
    return tables


def _gap_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """The chosen disparity by sensitive column and between their intersections, with the groups farthest apart."""
    if comparison.disparity is None:
        return []
    return [
        {"variant": variant.label, "gap": gap, "rate": describe(gap.pair.rate).title}
        for variant in comparison.variants
        for gap in variant.gaps(comparison.disparity)
    ]


def _worst_clients(comparison: Comparison) -> list[dict[str, Any]]:
    """The clients served worst, by their mean over seeds, with how many test rows that rests on."""
    named = []
    for variant in comparison.variants:
        frame = variant.clients
        values, rows = (
            moments_by(frame[frame["metric"] == metric], ["name"])["mean"].dropna()
            for metric in (comparison.quality, "rows")
        )
        worst = values.sort_values(ascending=describe(comparison.quality).better == "higher").head(WORST_CLIENTS)
        clients = [
            {"name": str(name), "value": float(value), "rows": float(rows.get(name, math.nan))}
            for name, value in worst.items()
        ]
        withheld = [silo.name for silo in variant.silos.members if silo.counts] if variant.silos else []
        if clients or withheld:
            named.append({"variant": variant.label, "clients": clients, "withheld": withheld})
    return named


def _silos(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Of the results that come from a real federation."""
    return [
        {"method": str(result.info["method"]), "members": silos.members, "sentences": silos.sentences()}
        | {"secure": silos.secure is not None}
        for result in results
        if (silos := Silos.of(result)) is not None
    ]


# -- provenance --------------------------------------------------------------------------------------------------------

_ELSEWHERE = ("method", "cells", "unknown_cells", "federation", "swept", "config", "hyper_parameters", "metrics")
_TOGETHER = ("local", "provenance", "rows", "run", "unknown_groups", "versions")


def _settings(results: Sequence[Result]) -> dict[str, Any]:
    """What all results have in common, and a table of the rest: a row per result."""
    flat = [_flat(result) for result in results]
    differing = differing_names(flat)
    own = [
        {
            "method": str(result.info["method"]),
            "hyper": _pairs(result.info.get("hyper_parameters", {}) | dict.fromkeys(result.swept, "swept")),
            "cells": [each.get(name, "") for name in differing],
        }
        for result, each in zip(results, flat, strict=True)
    ]
    common = [(name, value) for name, value in flat[0].items() if name not in differing]
    return {"common": common, "differing": differing, "own": own}


def _flat(result: Result) -> dict[str, str]:
    flat: dict[str, str] = {}
    first = dict.fromkeys(("clients", "groups", "classes"))
    clients = f"{len(result.info.get('clients', [])):,}"
    for key, value in {**first, **result.info, "clients": clients, **result.settings.to_dict()}.items():
        if key in _ELSEWHERE:
            continue
        if key in _TOGETHER and isinstance(value, Mapping):
            for name, inner in value.items():
                flat[f"{key}: {name}".replace("_", " ")] = _text(inner)
        else:
            flat[key.replace("_", " ")] = _text(value)
    for key, value in result.timings.items():
        flat[key.replace("_", " ")] = f"{value:.4g}" if isinstance(value, float) else _text(value)
    return {key: value for key, value in flat.items() if value != ""}


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return _pairs(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def _pairs(values: Mapping[Any, Any]) -> str:
    return "\n".join(f"{name} = {_text(value)}" for name, value in values.items())


def _citations(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The papers of the methods, each once, and of the data sets."""
    from equifed.data.sets import recorded_dataset
    from equifed.methods import citations, make_recorded
    from equifed.methods.citations import rule_citation

    papers: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(str(result.info["method"]) for result in results):
        try:
            papers_of = citations(make_recorded(name))
        except ConfigError:  # a method of the user's own, whose module is not imported for this
            continue
        for cited in papers_of:
            if cited.plain:
                entry = {"plain": cited.plain, "bibtex": cited.bibtex, "of": []}
                papers.setdefault(cited.plain, entry)["of"].append(name)
    for rule in dict.fromkeys(result.settings.robust for result in results if result.settings.robust is not None):
        cited = rule_citation(rule)
        papers.setdefault(cited.plain, {**cited._asdict(), "of": []})["of"].append(rule)
    for name in dict.fromkeys(str(result.info.get("provenance", {}).get("data", "")) for result in results):
        with suppress(ConfigError):  # files, or a data set whose module is not installed here
            papers[name] = {"plain": recorded_dataset(name).citation, "bibtex": "", "of": [f"{name} data"]}
    return list(papers.values())


def _versions(results: Sequence[Result]) -> dict[str, str]:
    """Of what writes the report; with what ran where the runs do not know it themselves."""
    names = ["equifed"]
    if not all(result.info.get("versions") for result in results):
        names += ["torch", "numpy"]
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in names}}
