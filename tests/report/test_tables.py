"""Tables for a paper and a README: the numbers of the runs, the marks of the page, and names that stay names."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest

import equifed as ef
from equifed.errors import ConfigError
from equifed.report import table
from report.runs import HOSTILE, federation, run

COLUMNS = ["accuracy", "demographic_parity_difference", "worst_group_accuracy"]


@pytest.fixture(scope="module")
def results() -> list[ef.Result]:
    fed = federation()
    return [run(method, fed) for method in (ef.methods.FedAvg(), ef.methods.FedProx(mu=5.0), ef.methods.FedMom())]


def lines(text: str) -> list[list[str]]:
    """The cells of a table: headings, then a line per method."""
    if text.startswith("|"):
        rows = [line for line in text.splitlines() if line.startswith("|")]
        assert re.fullmatch(r"\| :--- (\| ---: )+\|", rows.pop(1))
        return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]
    rows = [line.strip().removesuffix(r" \\") for line in text.splitlines() if line.endswith(r"\\")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)&", row)] for row in rows]


def measured(result: ef.Result, metric: str) -> np.ndarray:
    frame = result.metrics
    keep = (frame["scope"] == "global") & (frame["metric"] == metric) & (frame["split"] == "test")
    frame = frame[keep]
    return frame.loc[frame["round"] == frame["round"].max(), "value"].to_numpy()


@pytest.mark.parametrize("format", ["latex", "markdown"])
def test_numbers_and_marks_are_those_of_the_runs(results, format):
    headings, *rows = lines(table(results, format, metrics=COLUMNS))
    up, down = (r"$\uparrow$", r"$\downarrow$") if format == "latex" else ("↑", "↓")
    assert headings == ["method", f"accuracy {up}", f"DP diff. {down}", f"worst group {up}"]
    assert [re.match("[a-z]+", row[0])[0] for row in rows] == ["fedavg", "fedprox", "fedmom"]
    bold = r"\mathbf" if format == "latex" else "**"
    for k, metric in enumerate(COLUMNS, 1):
        values = [measured(result, metric) for result in results]
        for row, each in zip(rows, values, strict=True):
            assert re.findall(r"\d\.\d{3}", row[k]) == [f"{each.mean():.3f}", f"{each.std(ddof=1):.3f}"]
        means = np.array([each.mean() for each in values]) * (-1 if metric in COLUMNS[1:2] else 1)
        assert [bold in row[k] for row in rows] == list(means == means.max())


def test_the_caption_says_what_was_run(results):
    caption = re.search(r"\\caption\{(.*)\}\n", table(results))[1]
    assert caption.startswith(
        r"toy: mean $\pm$ sample standard deviation over 3 seeds, on the test rows, after 3 rounds."
    )
    assert "DP diff.: demographic parity difference" in caption
    assert r"5 \%)" in caption
    quality, gap = (np.array([measured(result, name).mean() for result in results]) for name in COLUMNS[:2])
    beaten = [
        bool(np.any((quality >= quality[i]) & (gap <= gap[i]) & ((quality > quality[i]) | (gap < gap[i]))))
        for i in range(3)
    ]
    assert [r"$^{\circ}$" in row[0] for row in lines(table(results))[1:]] == beaten
    assert (r"$^{\circ}$ dominated" in caption) == any(beaten)
    assert [" °" in row[0] for row in lines(table(results, "markdown"))[1:]] == beaten
    assert results[0].to_latex() == table(results[:1])
    assert results[0].to_markdown(["loss"]) == table(results[:1], "markdown", metrics=["loss"])


def test_what_is_no_number_and_what_is_constant_is_said(results):
    first = results[0]
    frame = first.metrics.copy()
    frame.loc[frame["metric"] == "worst_group_accuracy", "value"] = np.nan
    some = (frame["metric"] == "accuracy") & (frame["seed"] == 0)
    frame.loc[some, "value"] = np.nan
    frame.loc[frame["metric"] == "degenerate", "value"] = 1.0
    text = table([replace(first, metrics=frame), results[1]], metrics=COLUMNS)
    row = lines(text)[1]
    assert row[0].startswith(r"fedavg$^{\dagger}$")
    assert row[1].endswith("$ (2 of 3)")
    assert row[3] == "undefined"
    assert r"$^{\dagger}$ degenerate" in text
    frame.loc[frame["metric"] == "loss", "value"] = 0.00002
    frame.loc[(frame["metric"] == "loss") & (frame["seed"] == 0), "value"] = 12345.6
    small = lines(table([replace(first, metrics=frame)], metrics=["loss"]))[1][1]
    assert small == r"$4{,}115 \pm 7{,}128$"
    frame.loc[frame["metric"] == "loss", "value"] = 0.00002
    assert lines(table([replace(first, metrics=frame)], metrics=["loss"]))[1][1] == r"$2 \times 10^{-5} \pm 0.000$"
    with pytest.raises(ConfigError, match="Did you mean 'latex'"):
        table(results, "lalex")


def named(result: ef.Result, text: str) -> ef.Result:
    """The result as if its method and data were called so."""
    frames = {name: getattr(result, name).assign(method=text) for name in ("metrics", "log")}
    return replace(result, info={**result.info, "method": text, "data": text}, **frames)


def test_hostile_names_are_only_names(results):
    """Whatever things are called: every line has its cells, braces are balanced, and nothing is a command."""
    for text in HOSTILE:
        result = named(results[0], text)
        latex = table([result])
        assert {len(row) for row in lines(latex)} == {6}
        bare = re.sub(r"\\[{}]", "", latex)
        depth = np.cumsum([(c == "{") - (c == "}") for c in bare])
        assert depth.min() == 0
        assert depth[-1] == 0
        assert not re.search(r"(?<!\\)[#%]|(?<!\\)(\\\\)*\\[a-z]+\{?window", bare)
        assert len(re.findall(r"(?<!\\)\$", latex)) % 2 == 0
        markdown = table([result], "markdown")
        assert {len(row) for row in lines(markdown)} == {6}
        assert len(markdown.splitlines()) == 5
        assert not re.search(r"(?<!\\)[<>`\[\]]", markdown)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX here to compile the table with")
def test_latex_compiles(results, tmp_path):
    names = [text for text in HOSTILE if len(text) < 100 and text.isascii()]
    (tmp_path / "paper.tex").write_text(
        "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n"
        + table(results)
        + table([named(results[0], name) for name in names])
        + "\\end{document}\n"
    )
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"], cwd=tmp_path, capture_output=True
    )
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
