"""The benchmark as one HTML page that needs nothing else, and as the tables of the documentation."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from equifed.errors import ConfigError
from equifed.files import write_atomic
from equifed.report.page import asset, embedded, templates
from equifed.words import csv_of
from equifed_papers.benchmark.picture import rank_picture
from equifed_papers.benchmark.plan import KINDS
from equifed_papers.benchmark.ranks import Ranking, by_dataset, ranking
from equifed_papers.benchmark.records import ROWS, write
from equifed_papers.benchmark.scores import BOUND, SCORES, left_out, scored

HEADLINE = "parity"
"""The score whose ranks are the README's picture."""


def rankings(scores: pd.DataFrame) -> dict[str, Ranking]:
    return {name: found for name in SCORES if (found := ranking(scores, name)) is not None}


def families_of(scores: pd.DataFrame) -> dict[str, str]:
    return dict(zip(scores["method"], scores["family"], strict=True))


def write_page(rows: pd.DataFrame, path: Path, tier: str) -> None:
    """The page of one tier."""
    rows = rows[rows["tier"] == tier]
    scores = scored(rows)
    found, families = rankings(scores), families_of(scores)
    shown = [name for name in SCORES if (scores["score"] == name).any()]
    data = {
        "scores": {name: {"title": SCORES[name].title, "higher": SCORES[name].higher} for name in shown},
        "rows": [[_plain(value) for value in row] for row in scores[_SHOWN].itertuples(index=False, name=None)],
        "bound": BOUND,
        "ranked": [name for name, kind in KINDS.items() if kind == "binary"],
    }
    text = (
        templates("equifed_papers.benchmark")
        .get_template("benchmark.html.j2")
        .render(
            tier=tier,
            facts=facts(rows),
            shown=[SCORES[name] for name in shown],
            pictures={name: Markup(rank_picture(each, families)) for name, each in found.items()},
            rankings=found,
            datasets=sorted(scores["data"].unique()),
            partitions=sorted(scores["partition"].unique()),
            families=sorted(scores["family"].unique()),
            left_out=left_out(rows).drop_duplicates(["data", "method"]).to_dict("records"),
            written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            json=embedded(data),
            style=asset("page.css"),
            script=Markup(
                resources.files("equifed_papers.benchmark").joinpath("benchmark.js").read_text(encoding="utf-8")
            ),
        )
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.encode("utf-8"))


_SHOWN = ["data", "partition", "method", "family", "score", "value", "half", "gap", "met", "setting"]


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return None if not math.isfinite(value) else float(f"{value:.6g}")
    return bool(value) if hasattr(value, "dtype") else value


def facts(rows: pd.DataFrame) -> dict[str, Any]:
    """How much was run, and by what."""
    ran = rows[rows["left_out"] == ""]
    per_job = ran.groupby(["data", "partition", "method", "setting"])["seed"].nunique()
    return {
        "methods": ran["method"].nunique(),
        "datasets": ran["data"].nunique(),
        "federations": len(ran[["data", "partition"]].drop_duplicates()),
        "seeds": int(per_job.max()) if len(per_job) else 0,
        "runs": len(ran),
        "hours": float(ran["seconds"].sum()) / 3600,
        "commits": sorted({commit[:7] for commit in ran["commit"] if commit}),
        "dates": sorted(set(ran["date"])),
        "devices": sorted(set(ran["device"])),
    }


# -- documentation -----------------------------------------------------------------------------------------------------

PART = re.compile(r"(?<=<!-- written by equifed benchmark --publish -->\n\n).*?(?=\n<!-- end -->)", re.DOTALL)


def publish(rows: pd.DataFrame, folder: Path, tier: str) -> list[Path]:
    """The results part of `benchmark.md`, the picture, the scores and the raw rows, in this folder."""
    page = folder / "benchmark.md"
    if not page.is_file() or not PART.search(text := page.read_text(encoding="utf-8")):
        raise ConfigError(
            f"{page} is not there, or has no part for results. --publish is for papers/results of a checkout."
        )
    rows = rows[rows["tier"] == tier]
    scores = scored(rows)
    found = rankings(scores)
    write_atomic(page, PART.sub(lambda _: results_text(rows, scores, found), text).encode("utf-8"))
    written = [page]
    if HEADLINE in found:
        picture = folder / "benchmark.svg"
        write_atomic(picture, rank_picture(found[HEADLINE], families_of(scores)).encode("utf-8"))
        written.append(picture)
    table = folder / "benchmark.csv"
    write_atomic(table, csv_of(scores, float_format="%.5g").encode("utf-8"))
    raw = folder / ROWS
    write(raw, rows)
    return [*written, table, raw]


def results_text(rows: pd.DataFrame, scores: pd.DataFrame, found: dict[str, Ranking]) -> str:
    """Markdown: what was run, the ranks, and the tables of what has none."""
    about = facts(rows)
    lines = [
        f"{about['methods']} methods, {about['datasets']} data sets in {about['federations']} federations, "
        f"{about['seeds']} seeds, {about['runs']:,} runs in {about['hours']:.1f} hours of computing; "
        f"commits {', '.join(about['commits']) or 'unknown'}; {', '.join(about['dates'])}.",
        "",
    ]
    done = rows[rows["left_out"] == ""][["data", "partition"]].drop_duplicates()
    parts = done.groupby("data")["partition"].agg(lambda names: ", ".join(sorted(names)))
    lines += ["Run: " + "; ".join(f"{data} ({names})" for data, names in parts.items()) + ".", ""]
    for name, each in found.items():
        if name in ("bytes", "seconds"):
            continue
        means = by_dataset(scores[scores["data"].isin(each.datasets)], name).mean()
        lines += [
            f"### {SCORES[name].title.capitalize()}",
            "",
            f"{SCORES[name].help} {len(each.datasets)} data sets; Friedman χ² = {each.statistic:.1f}, "
            f"p = {each.p:.2g}; critical difference {each.critical:.1f} ranks.",
            "",
            *_table(
                ["method", "mean", "average rank", "P(worse)", "P(same)", "P(better than FedAvg)"],
                [
                    [str(method), _number(float(means.loc[str(method)])), f"{row['rank']:.1f}"]
                    + [_number(row[key], 2) for key in ("worse", "same", "better")]
                    for method, row in each.table.iterrows()
                ],
            ),
            "",
        ]
    for data in ("communities", "mnist"):
        of = scores[scores["data"] == data]
        if of.empty:
            continue
        names = [name for name in SCORES if (of["score"] == name).any()]
        wide = of.pivot_table(index="method", columns="score", values="value")
        lines += [f"### {data.capitalize()}", "", "Means over partitions.", ""]
        cells = [[str(method), *(_number(wide.loc[method, name]) for name in names)] for method in wide.index]
        lines += [*_table(["method", *(SCORES[name].title for name in names)], cells), ""]
    return "\n".join(lines)


def _table(head: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *cells]]


def _number(value: float, digits: int = 3) -> str:
    return "" if math.isnan(value) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}f}"
