"""Seeking a target: every step is a run of its own, kept and resumed as any other; then the answer over all of them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from equifed.cli.checks import AnyCheck, checks_of_each, failures
from equifed.cli.console import name_of, near, print_json, say, show
from equifed.cli.options import Output
from equifed.cli.report import check_page, documented
from equifed.cli.runs import AGAIN, fail, say_held_back, train
from equifed.cli.tables import frame_table
from equifed.config import Config, RunSection, job_of, load_federations
from equifed.errors import ConfigError
from equifed.metrics.catalogue import describe
from equifed.results import Result
from equifed.results.counts import having
from equifed.simulation import Simulation
from equifed.simulator import Job
from equifed.store import RunFolder, Store
from equifed.verdict.seek import Seeking, Sought

if TYPE_CHECKING:
    import pandas as pd


def seek(
    config: Config, output: Output, checks: Sequence[AnyCheck], report: Path | None = None, closely: bool = False
) -> None:
    """Turn the knob of the configuration's method until its targets are met, and say what that gives."""
    assert config.seek is not None
    if config.cluster is not None:
        raise ConfigError(
            "Searching for a target is not shared out: every step waits for the one before. Leave out --workers and "
            "the rest of [cluster], or name the values with --over, which workers can share."
        )
    store = Store(output.runs)
    store.prepare()
    if report is not None:
        check_page(report, "--report")
    feds = load_federations(config)
    seeking = Seeking(config.method, feds, config.run, config.seek)
    say_held_back(config)
    for name, value in seeking.aims.items():
        say(f"{seeking.method.name} aims at it: {name.replace('_', '-')} = {value}.")
    folders: list[RunFolder] = []
    while over := seeking.over():
        step = replace(config, method=seeking.method, sweep=over, seek=None, run=_named(config, len(folders) + 1))
        job = job_of(step, feds)
        checks_of_each(checks, [job])
        values = ", ".join(f"{value:g}" for value in over[seeking.knob.name])
        say(f"Step {len(folders) + 1} of at most {config.seek.steps}: {seeking.knob.name.replace('_', '-')} = {values}")
        folder, result = _trained(store, step, job, checks, closely)
        folders.append(folder)
        seeking.add(result)
    sought = seeking.sought()
    page = _report(sought, folders, report)
    lines = _failures(sought, checks)
    if output.json:
        facts = {
            "answer": sought.answer.to_dict(),
            "knob": seeking.knob.name,
            "aims": seeking.aims,
            "tried": sought.tried.to_dict("records"),
            "ended": sought.ended,
            "grid": sought.grid,
            "runs": [folder.id for folder in folders],
            "report": None if report is None else str(report),
            "failed_checks": lines,
        }
        print_json(facts)
    else:
        shown = frame_table(_shown(sought), "On validation rows, means over seeds")
        show(shown, "", str(sought.answer), sought.effort)
        say(page)
    fail(lines)


def _report(sought: Sought, folders: Sequence[RunFolder], page: Path | None) -> str:
    """Where the report of all steps is, or how to make it."""
    from equifed.report import write_report

    if page is None:
        runs = " ".join(shlex.quote(name_of(folder.path)) for folder in folders)
        return f"For a page with all of them: equifed report {runs}"
    write_report([documented(*each) for each in zip(folders, sought.results, strict=True)], page)
    return f"Report: {near(page)}"


def _failures(sought: Sought, checks: Sequence[AnyCheck]) -> list[str]:
    """The checks are about the setting that is chosen."""
    chosen = sought.answer.chosen
    if chosen is None:
        return [f"nothing could be chosen, so nothing is known of {check.text}" for check in checks]
    result = chosen.result
    one = replace(result, metrics=having(result.metrics, chosen.setting), log=having(result.log, chosen.setting))
    return failures(checks, [one], sought.answer)


def _shown(sought: Sought) -> pd.DataFrame:
    """For people: short names, and without the columns that say nothing here."""
    tried = sought.tried
    empty = ["degenerate"] if not tried["degenerate"].any() else []
    names: dict[str, str] = {}
    for target in sought.answer.targets:
        short = describe(target.metric).short
        names |= {target.metric: short, f"{target.metric}_end": f"{short}, {'at most' if target.upper else 'at least'}"}
    kept = tried.drop(columns=[*empty, *(name for name in tried if str(name).startswith("test_"))])
    return kept.rename(columns=names)


def _named(config: Config, step: int) -> RunSection:
    """A step's own name, where the runs are to have one."""
    return replace(config.run, name=f"{config.run.name} {step}") if config.run.name else config.run


def _trained(
    store: Store, config: Config, job: Job, checks: Sequence[AnyCheck], closely: bool
) -> tuple[RunFolder, Result]:
    """A step's run: the one that a command before this has left, or a new one."""
    before = store.same(config, job)
    if before is None:
        recording = store.start(config, Simulation(job))
        say(f"Run {recording.folder.id}")
    elif before.status()["status"] == "finished":
        say(f"Run {before.id} has done this.")
        return before, before.result()
    else:
        recording = store.resume(str(before.path), track=config.run.track)
        say(f"Run {before.id} continues after round {recording.done} of {config.run.rounds}.")
    return recording.folder, train(recording, checks, closely, AGAIN)
