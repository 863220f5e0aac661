"""--fail-if: METRIC OP NUMBER, "target missed" or "constraint violated"; checked after a run, the spelling before
it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from equifed.errors import ConfigError, unknown_name
from equifed.metrics.seeds import moments
from equifed.protocol import CONSTRAINT_TOLERANCE
from equifed.results import Result
from equifed.simulator import Job
from equifed.target import OPERATORS, Condition
from equifed.verdict.outcome import Answer


@dataclass(frozen=True)
class Check:
    text: str
    metric: str
    sign: str
    bound: float

    @classmethod
    def parse(cls, text: str) -> Check:
        condition = Condition.read(text)
        if condition is None:
            raise ConfigError(
                f"--fail-if {text!r} is neither 'target missed' nor 'constraint violated' nor of the form 'METRIC OP "
                f"NUMBER', e.g. 'demographic_parity_difference > 0.1'; OP is one of {' '.join(sorted(OPERATORS))}."
            )
        if not math.isfinite(condition.bound):
            raise ConfigError(f"--fail-if {text!r} can never hold or fail: compare with a finite number.")
        return cls(str(condition), *condition)

    def require(self, known: Iterable[str]) -> None:
        names = list(known)
        if self.metric not in names:
            raise ConfigError(f"--fail-if: {unknown_name('metric', self.metric, names)}")

    def failures(self, result: Result) -> list[str]:
        """Where the condition holds for the mean over seeds, one line per setting.

        A metric that is undefined for any seed counts as failed: nothing was shown about that seed.
        """
        final = result.final()
        self.require(final.columns.difference(["method", "seed", *result.swept]))
        lines = []
        for key, values in final.groupby(["method", *result.swept], observed=True, sort=False)[self.metric]:
            mean, _, defined = moments(values)
            if defined < len(values):
                lost = f"{len(values) - defined} of {len(values)} seeds"
                what = f"is undefined for {lost}, so it cannot be shown not to be {self.sign} {self.bound:g}"
            elif OPERATORS[self.sign](mean, self.bound):
                what = f"is {mean:.4g}, and the run fails if {self.text}"
            else:
                continue
            lines.append(f"{_setting(result, key)}: {self.metric} {what}")
        return lines


@dataclass(frozen=True)
class ConstraintCheck:
    """Fails when a run ends without having met the constraint that its method trains under."""

    text: str = "constraint violated"

    def failures(self, result: Result) -> list[str]:
        """One line per setting with the seeds whose last round was not feasible.

        A method that logs its `excess` is held to epsilon itself, not to what its multipliers' decay leaves above it:
        an infeasible problem comes to rest there too.
        """
        if "feasible" not in result.log:
            raise _no_constraint(result.info["method"])
        last = result.log.groupby([*result.swept, "seed"], sort=False).tail(1)
        missed = last[last["excess"] > CONSTRAINT_TOLERANCE] if "excess" in last else last[last["feasible"] == 0]
        return [
            f"{_setting(result, key)}: constraint violated at the end for seed {', '.join(map(str, rows['seed']))}"
            for key, rows in missed.groupby(["method", *result.swept], sort=False)
        ]


@dataclass(frozen=True)
class TargetCheck:
    """Fails unless the target is met with the confidence asked for."""

    text: str = "target missed"

    def failures(self, answer: Answer | None) -> list[str]:
        if answer is None:
            raise ConfigError("--fail-if 'target missed': there is no target. Give one with --target, or leave it out.")
        return [] if answer.met else [f"target missed: {answer.sentences[0]}"]


AnyCheck = Check | ConstraintCheck | TargetCheck


def failures(checks: Sequence[AnyCheck], results: Sequence[Result], answer: Answer | None) -> list[str]:
    """What fails: of every result, and of the answer that they give together."""
    lines = [line for check in checks if isinstance(check, TargetCheck) for line in check.failures(answer)]
    own = [check for check in checks if not isinstance(check, TargetCheck)]
    return [line for result in results for check in own for line in check.failures(result)] + lines


def _setting(result: Result, key: tuple[Any, ...]) -> str:
    """The method and the swept values that a group of rows is about."""
    return ", ".join([key[0], *(f"{name}={value:g}" for name, value in zip(result.swept, key[1:], strict=True))])


def _no_constraint(*methods: str) -> ConfigError:
    who = f"{methods[0]} has no" if len(methods) == 1 else f"none of {', '.join(methods)} has a"
    return ConfigError(f"--fail-if 'constraint violated': {who} constraint to train under. Leave the check out.")


def parse_checks(texts: Sequence[str] | None) -> list[AnyCheck]:
    named: dict[str, AnyCheck] = {check.text: check for check in (ConstraintCheck(), TargetCheck())}
    return [named.get(" ".join(text.split())) or Check.parse(text) for text in texts or ()]


def checks_of_each(checks: Sequence[AnyCheck], jobs: Sequence[Job]) -> list[list[AnyCheck]]:
    """The checks of each job: that of a constraint is for the methods that have one, and some must. Refuses a metric
    that a run will not have."""
    plain = [check for check in checks if isinstance(check, Check)]
    constraint = [check for check in checks if isinstance(check, ConstraintCheck)]
    for check in checks:
        if isinstance(check, TargetCheck) and jobs and not jobs[0].settings.target:
            check.failures(None)
    for job in jobs:
        known = [metric.name for metric in job.metrics if metric.overall or metric.over_clients]
        for check in plain:
            check.require(known)
    if not constraint or not jobs:
        return [[*plain] for _ in jobs]
    states = [job.method.observe(job.method_of(0).init(job.task, job.initial[0])) for job in jobs]
    constrained = ["feasible" in observed for observed in states]
    if not any(constrained):
        raise _no_constraint(*(job.method.name for job in jobs))
    return [[*plain, *constraint] if has else [*plain] for has in constrained]
