"""The comparison as a table for a paper (LaTeX) or a README (Markdown), with the numbers and marks of the page."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from equifed.errors import unknown_name
from equifed.metrics import catalogue
from equifed.metrics.catalogue import describe
from equifed.report.numbers import marks_of
from equifed.verdict import wording
from equifed.verdict.comparison import Comparison
from equifed.verdict.variants import Variant

if TYPE_CHECKING:
    from equifed.results.result import Result


def table(
    results: Sequence[Result],
    format: str = "latex",
    *,
    metrics: Sequence[str] | None = None,
    disparity: str | None = None,
) -> str:
    """Mean ± sample standard deviation over seeds in the last round, a line per method or setting.

    The best mean of a column is bold; what cannot be told apart from it is marked. The caption says this, and over how
    many seeds, after how many rounds and on which data. LaTeX needs the package booktabs.

    format: latex or markdown.
    metrics: the columns; by default those of the comparison on the terminal.
    disparity: by which, beside the accuracy, a method is called dominated; by default the main one.
    """
    return table_of(Comparison.of(results, disparity), format, metrics)


def table_of(comparison: Comparison, format: str, metrics: Sequence[str] | None = None) -> str:
    check_format(format)
    for name in metrics or ():
        if name not in comparison.measured:
            raise unknown_name("metric", name, comparison.measured)
    columns = list(metrics or catalogue.shown(comparison.metrics, "table"))
    if not metrics and comparison.disparity and comparison.disparity not in columns:
        columns.insert(1, comparison.disparity)
    write = _FORMATS[format]
    marks = {name: marks_of(comparison, name) for name in columns}
    states = _states(comparison)
    lines = [["method", *(write.text(_heading(name)) for name in columns)]]
    for i, variant in enumerate(comparison.variants):
        signs = "".join(write.signs[state] for state in states[i])
        cells = (_cell(variant, name, marks[name][i]) for name in columns)
        lines.append([write.text(variant.label) + signs, *map(write.cell, cells)])
    caption = [write.text(_about(comparison))]
    caption += [
        write.text(meaning) for mark, meaning in write.marks.items() if any(mark in of for of in marks.values())
    ]
    caption += map(write.text, _short_names(columns))
    for state, sign in write.signs.items():
        if any(state in of for of in states):
            caption.append(f"{sign.strip()} {write.text(_meaning(state, comparison))}")
    return write.whole(lines, " ".join(caption), comparison)


def check_format(format: str) -> None:
    if format not in _FORMATS:
        raise unknown_name("table format", format, _FORMATS)


# -- what it says ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cell:
    """One number of the table, as text."""

    mean: str
    std: str = ""
    of: str = ""
    """Over how many seeds, where the metric is not defined in all."""
    mark: str = ""
    """best, near or nothing, as in the page."""


def _cell(variant: Variant, metric: str, mark: str) -> _Cell:
    mean, std, n = variant.over_seeds(metric)
    if not n:
        return _Cell(variant.absent(metric))
    spread = "" if std != std else wording.number(std)
    return _Cell(wording.number(mean), spread, f"({n} of {variant.seeds})" if n < variant.seeds else "", mark)


def _heading(metric: str) -> str:
    about = describe(metric)
    return f"{about.short} {({'higher': '↑', 'lower': '↓'}).get(about.direction, '')}".strip()


def _states(comparison: Comparison) -> list[list[str]]:
    """Of every variant, what keeps it from being taken."""
    variants, disparity = comparison.variants, comparison.disparity
    holds = {
        "degenerate": [bool(variant.degenerate.any()) for variant in variants],
        "reference": [variant.pooled for variant in variants],
        "dominated": comparison.dominated(disparity) if disparity else [False] * len(variants),
    }
    return [[state for state, of in holds.items() if of[i]] for i in range(len(variants))]


def _meaning(state: str, comparison: Comparison) -> str:
    both = wording.listing([describe(name).title for name in comparison.judged])
    return {
        "degenerate": "degenerate: in some seed, more than 99 % of a group's rows get the same prediction.",
        "reference": "reference: trained on all clients' rows in one place.",
        "dominated": f"dominated: another is at least as good in {both}, and better in one of them.",
    }[state]


def _about(comparison: Comparison) -> str:
    """What was run: data, seeds, rows, rounds."""
    variants = comparison.variants
    data = [name for result in comparison.results if (name := str(result.info.get("data") or ""))]
    seeds, rounds = (sorted({getattr(variant, what) for variant in variants}) for what in ("seeds", "last"))
    over = "one seed" if seeds == [1] else f"mean ± sample standard deviation over {_either(seeds)} seeds"
    rows = "test" if all(variant.split == "test" for variant in variants) else "validation"
    named = f"{', '.join(dict.fromkeys(data))}: " if data else ""
    return f"{named}{over}, on the {rows} rows, after {_either(rounds)} round{'s' * (rounds != [1])}."


def _either(numbers: Sequence[int]) -> str:
    return " or ".join(map(str, numbers))


def _short_names(columns: Sequence[str]) -> list[str]:
    known = [describe(name) for name in columns]
    said = [f"{about.short}: {about.title}" for about in known if about.short != about.title]
    return [f"{'; '.join(said)}."] if said else []


# -- how it is written -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Format:
    text: Callable[[str], str]
    """Text with nothing in it a command."""
    cell: Callable[[_Cell], str]
    signs: dict[str, str]
    """After the names of methods that are not to be taken, by why."""
    marks: dict[str, str]
    """What the marks of cells mean."""
    whole: Callable[[list[list[str]], str, Comparison], str]
    """Lines of cells, the headings first, and the caption put together."""


_BEST = "best mean of the column."
_NEAR = "cannot be told apart from the best (paired t-test over seeds, Holm-corrected over the column, 5 %)."


def _line(text: str) -> str:
    """On one line, and without control characters."""
    return "".join(character for character in " ".join(text.split()) if character.isprintable())


_TEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in _line(text))


def _tex_number(text: str) -> str:
    """For math mode."""
    text = text.replace(",", "{,}").replace("∞", r"\infty").replace("−", "-")
    return re.sub(r"e([+-])0*(\d+)", lambda found: rf" \times 10^{{{found[1].strip('+')}{found[2]}}}", text)


def _tex_cell(cell: _Cell) -> str:
    if not re.search(r"\d|∞", cell.mean):
        return _tex(cell.mean)
    mean = {"best": r"\mathbf{%s}", "near": r"\underline{%s}"}.get(cell.mark, "%s") % _tex_number(cell.mean)
    spread = rf" \pm {_tex_number(cell.std)}" if cell.std else ""
    return f"${mean}{spread}$ {cell.of}".strip()


def _latex(lines: list[list[str]], caption: str, comparison: Comparison) -> str:
    label = re.sub(r"[^a-z0-9]+", "-", str(comparison.results[0].info.get("data") or "").lower()).strip("-")
    headings, *rows = (f"    {' & '.join(line)} \\\\" for line in lines)
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering\footnotesize\setlength{\tabcolsep}{4pt}",
            rf"  \caption{{{caption}}}",
            rf"  \label{{tab:{label or 'results'}}}",
            rf"  \begin{{tabular}}{{l{'r' * (len(lines[0]) - 1)}}}",
            r"    \toprule",
            headings,
            r"    \midrule",
            *rows,
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _markdown_text(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>#|~&$])", r"\\\1", _line(text))


def _markdown_cell(cell: _Cell) -> str:
    mean = {"best": "**{}**", "near": "≈ {}"}.get(cell.mark, "{}").format(cell.mean)
    return " ".join(filter(None, (mean, f"± {cell.std}" if cell.std else "", cell.of)))


def _markdown(lines: list[list[str]], caption: str, comparison: Comparison) -> str:
    ruled = [lines[0], [":---", *["---:"] * (len(lines[0]) - 1)], *lines[1:]]
    return "\n".join([*(f"| {' | '.join(line)} |" for line in ruled), "", caption, ""])


_FORMATS = {
    "latex": _Format(
        _tex,
        _tex_cell,
        {"degenerate": r"$^{\dagger}$", "reference": r"$^{\ast}$", "dominated": r"$^{\circ}$"},
        {"best": f"Bold: {_BEST}", "near": f"Underlined: {_NEAR}"},
        _latex,
    ),
    "markdown": _Format(
        _markdown_text,
        _markdown_cell,
        {"degenerate": " †", "reference": " ‡", "dominated": " °"},
        {"best": f"Bold: {_BEST}", "near": f"≈: {_NEAR}"},
        _markdown,
    ),
}
