"""--fail-if: METRIC OP NUMBER, or "constraint violated"; checked after a run, the spelling before it."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from equifed.errors import ConfigError, unknown_name
from equifed.metrics.seeds import moments
from equifed.protocol import CONSTRAINT_TOLERANCE
from equifed.results import Result
from equifed.simulator import Job

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
            check = cls(" ".join(form.groups()), form[1], form[2], float(form[3]))
        except ValueError:
            raise ConfigError(
                f"--fail-if {text!r} is neither 'constraint violated' nor of the form 'METRIC OP NUMBER', e.g. "
                "'demographic_parity_difference > 0.1'; OP is one of < <= > >= == !=."
            ) from None
        if not math.isfinite(check.bound):
            raise ConfigError(f"--fail-if {text!r} can never hold or fail: compare with a finite number.")
        return check

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
            undefined = len(values) - defined
            if undefined:
                what = f"is undefined for {undefined} of {len(values)} seeds, so it cannot be shown not to be"
                what = f"{what} {self.sign} {self.bound:g}"
            elif OPERATORS[self.sign](mean, self.bound):
                what = f"is {mean:.4g}, and the run fails if {self.text}"
            else:
                continue
            names = key if isinstance(key, tuple) else (key,)
            where = ", ".join(
                f"{name}={part}" if name != "method" else str(part)
                for name, part in zip(["method", *result.swept], names, strict=True)
            )
            lines.append(f"{where}: {self.metric} {what}")
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
            raise ConfigError(_no_constraint(result.info["method"]))
        last = result.log.groupby([*result.swept, "seed"], sort=False).tail(1)
        missed = last[last["excess"] > CONSTRAINT_TOLERANCE] if "excess" in last else last[last["feasible"] == 0]
        lines = []
        for key, rows in missed.groupby(["method", *result.swept], sort=False):
            setting = [f"{name}={value:g}" for name, value in zip(result.swept, key[1:], strict=True)]
            seeds = ", ".join(map(str, rows["seed"]))
            lines.append(f"{', '.join([str(key[0]), *setting])}: constraint violated at the end for seed {seeds}")
        return lines


AnyCheck = Check | ConstraintCheck


def _no_constraint(*methods: str) -> str:
    who = f"{methods[0]} has no" if len(methods) == 1 else f"none of {', '.join(methods)} has a"
    return f"--fail-if 'constraint violated': {who} constraint to train under. Leave the check out."


def parse_checks(texts: Sequence[str] | None) -> list[AnyCheck]:
    plain = ConstraintCheck()
    return [plain if " ".join(text.split()) == plain.text else Check.parse(text) for text in texts or ()]


def require_known(checks: Sequence[AnyCheck], job: Job) -> None:
    """Refuse checks of metrics, or of a constraint, that this run will not have."""
    known = [metric.name for metric in job.metrics if metric.overall or metric.over_clients]
    for check in checks:
        if isinstance(check, Check):
            check.require(known)
        elif not has_constraint(job):
            raise ConfigError(_no_constraint(job.method.name))


def has_constraint(job: Job) -> bool:
    return "feasible" in job.method.observe(job.method_of(0).init(job.task, job.initial[0]))


def checks_of_each(checks: Sequence[AnyCheck], jobs: Sequence[Job]) -> list[list[AnyCheck]]:
    """The checks of each of several methods; that of a constraint is for those that have one, and one must have it."""
    of_constraint = any(isinstance(check, ConstraintCheck) for check in checks)
    constrained = [of_constraint and has_constraint(job) for job in jobs]
    if jobs and of_constraint and not any(constrained):
        raise ConfigError(_no_constraint(*(job.method.name for job in jobs)))
    by_job = [[check for check in checks if has or not isinstance(check, ConstraintCheck)] for has in constrained]
    for job, job_checks in zip(jobs, by_job, strict=True):
        require_known(job_checks, job)
    return by_job
