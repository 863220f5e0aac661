"""Training runs and showing them: what `run`, `compare`, `sweep`, `resume` and `show` have in common."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from equifed.cli.checks import AnyCheck, Check, TargetCheck, checks_of_each, failures
from equifed.cli.console import name_of, near, print_json, say, show
from equifed.cli.options import Goal, Output, Settings, split_names
from equifed.cli.progress import Board, Watch
from equifed.cli.report import check_page, documented
from equifed.cli.tables import (
    Record,
    comparison,
    footnotes,
    frame_table,
    gaps_by_attribute,
    gaps_table,
    groups_tables,
    local_table,
    metrics_table,
    pareto_of,
    pareto_table,
    record,
    robust_table,
    silos_table,
    warnings_of,
)
from equifed.config import Config, job_of, load_federations, parse_config
from equifed.errors import ConfigError, RunError
from equifed.federation import Federation
from equifed.methods import REGISTRY
from equifed.notes import Note
from equifed.results import Result
from equifed.settings import MARGIN
from equifed.signals import exit_code
from equifed.simulation import Simulation
from equifed.simulator import Job
from equifed.store import Recording, RunFolder, Store, trackers
from equifed.studies.comparing import Ended, make_fitting_jobs, run_in_turn, share_out
from equifed.target import parse_targets
from equifed.verdict.answering import answer
from equifed.verdict.comparison import Comparison, check_margin
from equifed.verdict.outcome import Answer
from equifed.verdict.seek import need_validation
from equifed.verdict.sentences import Verdict
from equifed.verdict.silos import NOT_AVAILABLE, Secure, other_notes
from equifed.verdict.wording import outcome

NO_GOAL = Goal()
AGAIN = "Give the same command again: it goes on from here, and repeats nothing that has finished."
RETRY = "The same command tries again what failed, and nothing else."


def train(recording: Recording, checks: Sequence[AnyCheck], closely: bool = False, again: str = "") -> Result:
    """All rounds with progress; a signal says how to continue. again: what to do, where that is not to resume the
    run."""
    try:
        return _train(recording, closely)
    except KeyboardInterrupt as stopped:
        _say_stopped(recording, again or f"Continue with: {_resuming(recording, checks)}")
        raise typer.Exit(exit_code(stopped)) from None


def _train(recording: Recording, closely: bool = False) -> Result:
    name = recording.config.method.name
    with recording, Watch(name, recording.simulation, recording.done, closely) as watch:
        for tracker in recording.callbacks:
            say(f"Tracked by {tracker}")
        recording.callbacks.add(watch)
        for _ in recording.rounds():
            pass
        return recording.finish()


def _resuming(recording: Recording, checks: Sequence[AnyCheck]) -> str:
    """Return the command that goes on with the run."""
    also = "".join(f" --fail-if {shlex.quote(check.text)}" for check in checks)
    return f"equifed resume {name_of(recording.folder.path)}{also}"


def _say_stopped(recording: Recording, todo: str) -> None:
    """Print how far the run is, and what to do."""
    say(f"Interrupted after round {recording.folder.rounds_done()} of {recording.config.run.rounds}. {todo}")


def new_run(
    config: Config,
    output: Output,
    checks: Sequence[AnyCheck],
    closely: bool = False,
    margin: float = MARGIN,
    report: Path | None = None,
    again: bool = False,
) -> None:
    """Train one configuration; refused before it has a folder when a check names an unknown metric. again: the same
    command goes on with a run that was interrupted."""
    from equifed.report import write_report

    check_margin(margin)
    store = Store(output.runs)
    store.prepare()
    trackers(config)  # what is wrong with them must not come after hours of loading and training
    if report is not None:
        check_page(report, "--report")
    feds = load_federations(config)
    if config.run.target and math.prod(map(len, config.sweep.values())) > 1:
        need_validation(feds)
    job = job_of(config, feds)
    checks_of_each(checks, [job])
    say_held_back(config)
    if config.cluster is None and not again:
        recording = store.start(config, Simulation(job))
        say(f"Run {recording.folder.id}")
        folders, result = [recording.folder], train(recording, checks, closely)
    else:
        ((_, folders, done, error),) = _carried(store, [(config, job)], feds, [checks], closely)
        if done is None:
            raise RunError(f"{error} {RETRY}")
        result = done
    if report is not None:
        write_report([documented(folders[0], result)], report, margin=margin)
        say(f"Report: {near(report)}")
    print_result(folders, result, output, checks, margin)


def resume_run(
    reference: str,
    output: Output,
    checks: Sequence[AnyCheck],
    closely: bool = False,
    track: Sequence[str] | None = None,
) -> None:
    store = Store(output.runs)
    folder = store.find(reference)
    if folder.is_finished():
        say(f"Run {folder.id} has already finished.")
        if output.json or checks:
            result = folder.result()
            met = answer([result]) if result.settings.target else None
            failed = failures(checks, [result], met)
            if output.json:
                print_json(record(folder, result) | {"status": "finished"} | _answered(met, failed))
            fail(failed)
        return
    recording = store.resume(reference, lambda simulation: checks_of_each(checks, [simulation.job]), track=track)
    say(f"Run {folder.id} continues after round {recording.done} of {recording.config.run.rounds}.")
    print_result([recording.folder], train(recording, checks, closely), output, checks)


# -- comparing ---------------------------------------------------------------------------------------------------------


def compare(
    data: dict[str, Any],
    names: str | None,
    settings: Settings,
    report: Path | None,
    output: Output,
    checks: Sequence[AnyCheck],
    margin: float,
) -> None:
    """Every method on the same federations, a run each; then the table, the verdict and the report."""
    check_margin(margin)
    store = Store(output.runs)
    methods = list(REGISTRY.usable()) if names is None else split_names(names, "--methods")
    configs = [_config(data, name, settings, methods) for name in methods]
    first: dict[str, str] = {}  # a method may have two names, ditto and fedavg+ditto
    for name, config in zip(methods, configs, strict=True):
        if names is not None and (same := first.setdefault(config.method.name, name)) != name:
            raise ConfigError(f"--methods names one method twice, as {same} and as {name}. Leave out one of them.")
    store.prepare()
    trackers(configs[0])
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    page = report or store.root / f"compare-{configs[0].data.title.replace(':', '-')}-{stamp}.html"
    check_page(page, "--report")
    feds = load_federations(configs[0])
    given = {i: config.method for i, config in enumerate(configs)}
    jobs = make_fitting_jobs(given, lambda i: job_of(configs[i], feds), feds, names is not None, say)
    say_held_back(configs[0])
    runs = [(configs[i], job) for i, job in jobs.items()]
    own_checks = checks_of_each(checks, [job for _, job in runs])
    ended, failed, broken = [], [], []
    for each in _carried(store, runs, feds, own_checks):
        if each.result is None:  # one method's failure must not cost the others' results
            broken.append(name := runs[each.number][0].method.name)
            say(f"{name} failed: {each.error}")
            continue
        ended.append((each.folders, documented(each.folders[0], each.result)))
        failed += failures(own_checks[each.number], [each.result], None)
    if not ended:
        raise RunError("No method finished.")
    compared = Comparison.of([result for _, result in ended], margin=margin)
    failed += failures([check for check in checks if isinstance(check, TargetCheck)], [], compared.answer)
    more = {
        "report": str(page),
        "verdict": asdict(compared.verdict),
        "left_out": [method.name for i, method in given.items() if i not in jobs],
        "failed_methods": broken,
        **_answered(compared.answer, failed),
    }
    _print_comparison(
        configs[0], feds[0], [_recorded(*each) for each in ended], output, more, _asked(compared.results, checks)
    )
    for note in _shared_notes(compared.results):
        say(f"Note: {note}")
    if not output.json:
        show(*_lines(compared.verdict))
    say(f"Report: {near(compared.report(page))}")
    if broken:
        raise RunError(f"{len(broken)} of {len(runs)} methods failed: {', '.join(broken)}. {RETRY}")
    check_trained(compared.results)
    fail(failed)


def _carried(
    store: Store,
    runs: Sequence[tuple[Config, Job]],
    feds: Sequence[Federation],
    checks: Sequence[Sequence[AnyCheck]],
    closely: bool = False,
) -> Iterator[Ended]:
    """The runs, in this process or shared out, with their progress; a signal says how to go on."""
    cluster = runs[0][0].cluster

    def train(number: int, recording: Recording) -> Result:
        try:
            return _train(recording, closely)
        except KeyboardInterrupt:
            _say_stopped(recording, f"Continue with: {_resuming(recording, checks[number])}")
            raise

    try:
        if cluster is None:
            yield from run_in_turn(store, runs, feds, train, say)
        else:
            with Board() as board:
                yield from share_out(store, cluster, [config for config, _ in runs], feds, board, say)
    except KeyboardInterrupt as stopped:
        alone = f"Interrupted. {AGAIN}" if cluster else AGAIN
        say(alone if cluster or len(runs) == 1 else f"All of them: {AGAIN[0].lower()}{AGAIN[1:]}")
        raise typer.Exit(exit_code(stopped)) from None


def _recorded(folders: Sequence[RunFolder], result: Result) -> Record:
    """A run's numbers, with all its folders where it has several."""
    return record(folders[0], result) | ({"jobs": [folder.id for folder in folders]} if len(folders) > 1 else {})


def say_held_back(config: Config) -> None:
    """That choosing costs training rows."""
    if config.run.target and config.data.validation:
        say(
            f"Note: {config.data.validation:.0%} of the rows are held back from training, to choose by the target on "
            "them; the test rows are the same as ever (data.validation)."
        )


def _shared_notes(results: Sequence[Result]) -> list[Note]:
    """What is true of every result, such as what was done to the groups; the rest is in the report."""
    return [note for note in results[0].notes if all(note in result.notes for result in results)]


def _config(data: dict[str, Any], method: str, settings: Settings, methods: Sequence[str]) -> Config:
    overrides = settings.overrides(method, {*methods} - {method})
    changed = any(text.startswith("method.") for text in overrides)
    source = f"compare ({method})" if changed else "compare"
    raw = {"data": data, "method": {"name": method}}
    return parse_config(raw, overrides, source=source, chosen_from=len(methods) > 1)


def _asked(results: Sequence[Result], checks: Sequence[AnyCheck]) -> set[str]:
    """The metrics that --metrics, --target and --fail-if name: they get a column."""
    named = {getattr(name, "name", name) for result in results for name in result.settings.metrics}
    targets = {target.metric for result in results for target in parse_targets(result.settings.target)}
    return named | targets | {check.metric for check in checks if isinstance(check, Check)}


def _print_comparison(
    config: Config, fed: Federation, records: list[Record], output: Output, more: Record, asked: Collection[str]
) -> None:
    settings, data, run = config.resolved(), config.data, config.run
    if output.json:
        kept = {key: settings[key] for key in ("run", "data", "partition", "model", "local") if key in settings}
        facts = {"data": data.title, "preset": data.preset, "rounds": run.rounds, "seeds": run.seed_list}
        print_json(facts | {"settings": kept, "methods": records} | more)
        return
    show(
        f"{fed.name}{f' ({data.preset})' if data.preset else ''}: {fed.num_clients} clients, "
        f"{run.clients_per_round or fed.sampled} per round, {run.rounds} rounds, {len(run.seed_list)} seeds, "
        f"{settings['model']['kind']}"
        + (f", partition {settings['partition']['kind']}" if "partition" in settings else "")
        + (f", updates gathered by {run.robust} against a share of {run.liars:g} liars" if run.robust else "")
        + (f", groups by {', '.join(fed.provenance['sensitive'])}\n" if "sensitive" in fed.provenance else "\n"),
        comparison(records, asked),
        footnotes(records, asked),
    )


# -- showing -----------------------------------------------------------------------------------------------------------


def print_result(
    folders: Sequence[RunFolder], result: Result, output: Output, checks: Sequence[AnyCheck], margin: float = MARGIN
) -> None:
    """Print one run's result, or the trade-off of a sweep and the verdict on it, and the answer to a target; fail if a
    check does."""
    summary = _recorded(folders, result) | {"status": "finished"}
    compared = _judged(result, margin=margin)
    answer = compared.answer if compared else None
    failed = failures(checks, [result], answer)
    for note in result.notes if output.json else other_notes(result):
        say(f"Note: {note}")
    if output.json:
        more = {"pareto": pareto_of(result).to_dict("records")} if result.swept and compared else {}
        more |= {"verdict": asdict(compared.verdict)} if compared else {}
        print_json(summary | more | _answered(answer, failed))
    else:
        if result.swept and compared:
            show(pareto_table(result))
        else:
            asked = _asked([result], checks)
            show(comparison([summary], asked), footnotes([summary], asked), *silos_table(result), *robust_table(result))
        if compared:
            show(*_lines(compared.verdict))
        if len(folders) == 1:
            (path,) = (folder.path for folder in folders)
            say(f"Saved in {near(path)}; look at it with: equifed show {name_of(path)}")
        else:
            say(f"Saved as {len(folders)} runs: {' '.join(name_of(folder.path) for folder in folders)}")
    check_trained([result])
    fail(failed)


def _judged(result: Result, goal: Goal = NO_GOAL, margin: float = MARGIN) -> Comparison | None:
    """What there is to say about a sweep, or about a target; None for a plain run, and where nothing was measured."""
    if result.metrics.empty or not (result.swept or goal.target or result.settings.target):
        return None
    return Comparison.of([result], margin=margin, target=goal.target, confidence=goal.level)


def show_run(reference: str, goal: Goal, output: Output, checks: Sequence[AnyCheck]) -> None:
    """Print everything about a run."""
    folder = Store(output.runs).find(reference)
    status, config = folder.status(), folder.settings()
    summary: Record = {"run": folder.id, "folder": str(folder.path), **status, "rounds_done": folder.rounds_done()}
    if status["status"] != "finished":
        _show_unfinished(folder, summary, config, output, checks)
        return
    result = folder.result()
    summary |= record(folder, result)
    compared = _judged(result, goal)
    answer = compared.answer if compared else None
    failed = failures(checks, [result], answer)
    if output.json:
        more = {
            "gaps_by_attribute": gaps_by_attribute(result),
            "messages": result.messages.to_dict("records"),
            "config": config,
            "environment": folder.record("environment.json"),
            "data_record": folder.record("data.json"),
            **_answered(answer, failed),
        }
        print_json(summary | more)
    else:
        _show_finished(folder, summary, config, result, compared)
    fail(failed)


def _show_finished(
    folder: RunFolder, summary: Record, config: dict[str, Any], result: Result, compared: Comparison | None
) -> None:
    show(f"{_heading(folder, config)}, finished in {summary['seconds']:.1f} s", outcome(result.info), "")
    if result.swept:
        show(pareto_table(result))
    else:
        parts = (*groups_tables(result), *gaps_table(result), *local_table(result), *silos_table(result))
        show(metrics_table(summary), "", *parts, *robust_table(result), "", warnings_of([summary]))
    if compared:
        show(*_lines(compared.verdict))
    show("", frame_table(result.messages.drop(columns=["sizes_down", "sizes_up"]), "Messages, bytes per client"))
    if Secure.of(result.info):
        show(NOT_AVAILABLE)
    elif "federation" in result.info:
        show("No secure aggregation: the server receives every silo's reply by itself, also where the sum is gathered.")
    for note in other_notes(result):
        show(f"Note: {note}")
    say(f"Folder: {near(folder.path)}")


def _show_unfinished(
    folder: RunFolder, summary: dict[str, Any], config: dict[str, Any], output: Output, checks: Sequence[AnyCheck]
) -> None:
    if checks:
        raise RunError(f"Run {folder.id} has not finished ({summary['status']}), so nothing can be checked.")
    if output.json:
        print_json(summary | {"config": config})
        return
    done = f"{summary['rounds_done']} of {config['run']['rounds']} rounds done"
    reason = f" ({summary['reason']})" if summary["reason"] else ""
    show(f"{_heading(folder, config)}: {summary['status']}{reason}, {done}")
    if summary["status"] != "running":
        say(f"Continue it with: {folder.resuming(name_of(folder.path))}")


def _lines(said: Verdict) -> list[str]:
    """What the verdict says, after an empty line: the report has its caveats too."""
    return ["", *said.sentences, *([said.rule] if said.rule else [])]


def _heading(folder: RunFolder, config: dict[str, Any]) -> str:
    data, run = config["data"], config["run"]
    where = f"{data['name']} ({data['preset']})" if "name" in data else f"{len(data['files'])} files"
    name = f" {run['name']!r}" if run["name"] else ""
    return (
        f"{folder.id}{name}: {config['method']['name']} on {where}, {run['rounds']} rounds, "
        f"{len(run['seeds'])} seeds, {config['model']['kind']}"
    )


def _answered(answer: Answer | None, failed: list[str]) -> Record:
    """The end of a JSON record."""
    return {"answer": None if answer is None else answer.to_dict(), "failed_checks": failed}


def check_trained(results: Sequence[Result]) -> None:
    """Refuse to call it a success where nothing was trained."""
    for result in results:
        if not result.trained:
            lost = result.rejections
            first = "" if lost.empty else f", the first because of {lost['reason'].iloc[0]}"
            refused = f" {len(lost)} replies were refused or never came{first}." if len(lost) else ""
            raise RunError(
                f"{result.info['method']} was not trained: not one of its rounds was applied, so its model is the one "
                f"that it began with.{refused} Look at the notes and at `rejections`, and change what they name, such "
                "as the learning rate."
            )


def fail(lines: Sequence[str]) -> None:
    """Exit with 1 where a check failed."""
    for line in lines:
        say(f"Check failed: {line}")
    if lines:
        raise typer.Exit(1)
