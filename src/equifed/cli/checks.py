"""--fail-if: a metric, a comparison and a number, checked after a run; its spelling is checked before."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from equifed.errors import ConfigError, unknown_name
from equifed.simulator import Result, Simulation
from equifed.simulator.evaluate import Scored
from equifed.simulator.result import metrics_frame

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_FORM = re.compile(r"\s*([\w.]+)\s*(<=|>=|==|!=|<|>)\s*(\S+)\s*")


@dataclass(frozen=True)
class Check:
    text: str
    metric: str
    sign: str
    bound: float

    @classmethod
    def parse(cls, text: str) -> Check:
        form = _FORM.fullmatch(text)
        try:
            if form is None:
                raise ValueError
            return cls(" ".join(form.groups()), form[1], form[2], float(form[3]))
        except ValueError:
            raise ConfigError(
                f"--fail-if {text!r} is not of the form 'METRIC OP NUMBER', e.g. "
                "'demographic_parity_difference > 0.1'; OP is one of < <= > >= == !=."
            ) from None

    def require(self, known: Iterable[str]) -> None:
        names = list(known)
        if self.metric not in names:
            raise ConfigError(f"--fail-if: {unknown_name('metric', self.metric, names)}")

    def failures(self, result: Result) -> list[str]:
        """Where the condition holds, one line per setting. An undefined metric counts as failed: nothing was shown."""
        final = result.final()
        self.require(final.columns.difference(["method", "seed", *result.swept]))
        means = final.groupby(["method", *result.swept], observed=True, sort=False)[self.metric].mean()
        lines = []
        for key, value in means.items():
            if np.isnan(value) or OPERATORS[self.sign](value, self.bound):
                names = key if isinstance(key, tuple) else (key,)
                where = ", ".join(
                    f"{name}={part}" if name != "method" else str(part)
                    for name, part in zip(["method", *result.swept], names, strict=True)
                )
                lines.append(f"{where}: {self.metric} is {value:.4g}, and the run fails if {self.text}")
        return lines


def parse_checks(texts: Sequence[str] | None) -> list[Check]:
    return [Check.parse(text) for text in texts or ()]


def known_metrics(simulation: Simulation) -> list[str]:
    """The global test metrics that this run will have, found by scoring made-up counts."""
    job = simulation.job
    fed = job.runs[0].federation
    groups, classes = len(fed.groups), max(len(fed.classes), 1)

    def ones(sets: int) -> Scored:
        shapes = ((sets, groups, classes, classes), (sets, groups, classes), (sets,), (sets, groups))
        return Scored(*(np.ones(shape) for shape in shapes))

    scores = {"test": ones(1)}
    if fed.client_test is not None:
        scores["clients"] = ones(fed.num_clients)
    frame = metrics_frame(job, [(1, 0, scores)])
    return sorted(frame.loc[frame["scope"] == "global", "metric"].astype(str).unique())
