"""Results beside each other: the page, the verdict and the command line share them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from equifed.errors import ConfigError, check_number, unknown_name
from equifed.metrics import catalogue
from equifed.metrics.catalogue import describe
from equifed.metrics.fronts import dominated
from equifed.settings import MARGIN
from equifed.verdict.answering import aim_of, answer_of
from equifed.verdict.variants import Variant, variants_of

if TYPE_CHECKING:
    from equifed.results.result import Result
    from equifed.target import Confidence
    from equifed.verdict.outcome import Answer
    from equifed.verdict.sentences import Verdict


@dataclass(frozen=True, eq=False)
class Comparison:
    """What a report is about: results taken apart once, and what the reader asked for."""

    results: Sequence[Result]
    variants: list[Variant]
    measured: list[str]
    """Names of the global metrics, in order of appearance."""
    disparity: str | None
    """The one that the verdict is about."""
    baseline: Variant
    """What the others are tested against."""
    margin: float = MARGIN
    """How much of the quality may be given up for fairness: a share of its range, or of the best mean where it has
    none."""
    answer: Answer | None = None
    """To the target, where there is one."""

    @classmethod
    def of(
        cls,
        results: Sequence[Result],
        disparity: str | None = None,
        baseline: str | None = None,
        margin: float = MARGIN,
        target: Any = None,
        confidence: Confidence | None = None,
    ) -> Comparison:
        """disparity: by default the first that a target is about, or else the main one of those measured. baseline: a
        label or a method; by default FedAvg, or else the first. margin: see `verdict`. target, confidence: by default
        those that the results were made with."""
        check_margin(margin)
        variants = _variants_of(results)
        measured = list(dict.fromkeys(str(name) for variant in variants for name in variant.final.columns))
        if disparity is not None and disparity not in measured:
            raise unknown_name("metric", disparity, measured)
        asked = target or any(result.settings.target for result in results)
        answer = answer_of(results, variants, aim_of(results, target or None, confidence)) if asked else None
        wanted = [] if answer is None else [each.metric for each in answer.targets]
        gaps = [metric for metric in (*wanted, *_main(variants, measured)) if describe(metric).disparity]
        disparity = disparity or next(iter(gaps), None)
        named = [variant for variant in variants if baseline in (variant.label, variant.method)]
        if baseline is not None and not named:
            raise unknown_name("baseline", baseline, [variant.label for variant in variants])
        default = [variant for variant in variants if variant.method == "fedavg"] or variants
        return cls(results, variants, measured, disparity, (named or default)[0], margin, answer)

    @cached_property
    def quality(self) -> str:
        return catalogue.main_pair(self.measured)[0]

    @property
    def judged(self) -> list[str]:
        """What the verdict is about: the quality and, where there is one, the disparity."""
        return [self.quality, *([self.disparity] if self.disparity else [])]

    @cached_property
    def for_choosing(self) -> Comparison:
        """The same on validation rows, where settings of a sweep are to be chosen and all results have such rows that
        no method trains on; otherwise itself."""
        measured = [set(result.metrics["split"].astype(str)) for result in self.results]
        clean = not any(variant.needs_validation for variant in self.variants)
        both = all({"test", "validation"} <= splits for splits in measured)
        if not (clean and both and any(result.swept for result in self.results)):
            return self
        variants = [variant.on("validation") for variant in self.variants]
        return replace(self, variants=variants, baseline=self.baseline.on("validation"))

    @cached_property
    def verdict(self) -> Verdict:
        """Which to take, and how sure that is: see `equifed.report.verdict`."""
        from equifed.verdict.sentences import verdict_of

        return verdict_of(self)

    def to_frame(self) -> pd.DataFrame:
        """Method and setting x (column, mean | std | n): last round, over seeds; n counts the seeds where it is
        defined.

        After the metrics come `bytes_up` and `bytes_down` (per client and round) and `seconds` (per run), with a mean
        only, the number of `seeds`, and in how many of them the predictor is `degenerate`.
        """
        rows = []
        for variant in self.variants:
            result = variant.result
            row: dict[tuple[str, str], float] = {}
            for name in self.metrics:
                row[name, "mean"], row[name, "std"], row[name, "n"] = variant.over_seeds(name)
            each_round = result.messages[result.messages["stage"] == "round"]
            row["bytes_up", "mean"] = float(each_round["bytes_up"].sum())
            row["bytes_down", "mean"] = float(each_round["bytes_down"].sum())
            runs = sum(other.seeds for other in result.variants)
            row["seconds", "mean"] = float(result.timings.get("seconds", np.nan)) / max(runs, 1)
            row["seeds", "n"] = variant.seeds
            row["degenerate", "n"] = int(variant.degenerate.sum())
            rows.append(row)
        frame = pd.DataFrame(rows, index=pd.Index([variant.label for variant in self.variants], name="method"))
        frame.columns = pd.MultiIndex.from_tuples([*rows[0]], names=["column", "over seeds"])
        return frame.astype({column: int for column in frame.columns if column[1] == "n"})

    def report(self, path: str | Path, title: str | None = None) -> Path:
        """Write the report, one self-contained HTML page."""
        from equifed.report.page import write_page

        return write_page(self, path, title)

    def __repr__(self) -> str:
        frame, said = self.to_frame(), self.verdict
        means = pd.DataFrame({column: frame[column, "mean"] for column in (*self.metrics, "bytes_up", "seconds")})
        return "\n".join(
            [means.to_string(float_format="{:.3f}".format), "", *said.sentences, *filter(None, [said.rule])]
        )

    def _repr_html_(self) -> str:
        """How a notebook shows it."""
        from equifed.report.page import summary_html

        return summary_html(self)

    def dominated(self, disparity: str) -> list[bool]:
        """Whether another variant is at least as good in the means of quality and disparity and better in one; who is
        not eligible beats nobody."""
        costs = [[variant.cost(name) for name in (self.quality, disparity)] for variant in self.variants]
        return list(dominated(costs, by=[variant.eligible for variant in self.variants]).tolist())

    @cached_property
    def metrics(self) -> list[str]:
        """The columns of the comparison table that were measured: the main ones, and the chosen disparity."""
        names = _main(self.variants, self.measured)
        if self.disparity is not None and self.disparity not in names:
            names.insert(1, self.disparity)
        return names


def _variants_of(results: Sequence[Result]) -> list[Variant]:
    """Those that are compared; refused where there is nothing to compare."""
    if not results:
        raise ConfigError("A report needs at least one result, got none.")
    tasks = list(dict.fromkeys(str(result.info.get("task", "classification")) for result in results))
    if len(tasks) > 1:
        raise ConfigError(
            f"One report cannot compare {' and '.join(tasks)} results: they share no metric. Write one report for each."
        )
    for result in results:
        if result.metrics.empty:
            raise ConfigError(
                f"The result of {result.info['method']} has no measurements, so there is nothing to report. "
                "Give the federation test rows."
            )
    return variants_of(results)


def check_margin(margin: object) -> None:
    check_number("margin", margin, low=0)
    if margin >= 1:  # type: ignore[operator]
        text = f"must be a share below 1, got {margin!r}: 0.01 is one point of accuracy, or 1 % of an RMSE."
        raise ConfigError(text, key="margin", value=margin)


def _main(variants: list[Variant], measured: list[str]) -> list[str]:
    """The main metrics that were measured. What needs all predictions in one place cannot be known where every variant
    was a real federation."""
    federated = all(variant.silos is not None for variant in variants)
    known = [name for name in measured if not (federated and "scores" in describe(name).needs)]
    return catalogue.shown(known, "page")


def summary_table(results: Sequence[Result], *, disparity: str | None = None) -> pd.DataFrame:
    """The comparison table: see `Comparison.to_frame`."""
    return Comparison.of(results, disparity).to_frame()
