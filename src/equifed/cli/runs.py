"""Training runs and showing them: what `run`, `compare`, `sweep`, `resume` and `show` have in common."""

from __future__ import annotations

import math
import shlex
from collections import Counter
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
from equifed.methods import REGISTRY, make
from equifed.notes import Note
from equifed.report.comparison import Comparison, check_margin
from equifed.report.page import write_page
from equifed.report.silos import NOT_AVAILABLE, Secure, other_notes
from equifed.report.verdict import Verdict, verdict_of
from equifed.report.wording import outcome
from equifed.results import Result
from equifed.results.answer import answer_if_asked
from equifed.results.merge import merged
from equifed.results.outcome import Answer
from equifed.seeking import need_validation
from equifed.settings import MARGIN, Cluster
from equifed.signals import exit_code
from equifed.simulation import Simulation
from equifed.simulator import Job
from equifed.store import Recording, RunFolder, Store, trackers
from equifed.studies import Study, blocks, data_key, opened
from equifed.target import parse_targets

PERSONAL_TESTS = 20_000_000
"""Test rows times clients beyond which `compare` leaves out methods whose clients all have models of their own."""


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
        ((_, folders, done),) = (
            _in_turn(store, [(config, job)], feds, [checks], closely)
            if config.cluster is None
            else share_out(store, config.cluster, [config], feds)
        )
        if isinstance(done, str):
            raise RunError(f"{done} {RETRY}")
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
            answer = answer_if_asked([result])
            failed = failures(checks, [result], answer)
            if output.json:
                print_json(record(folder, result) | {"status": "finished"} | _answered(answer, failed))
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
    if names is not None:
        first: dict[str, str] = {}  # a method may have two names, ditto and fedavg+ditto
        for name in methods:
            if (same := first.setdefault(make(name).name, name)) != name:
                raise ConfigError(f"--methods names one method twice, as {same} and as {name}. Leave out one of them.")
    configs = [_config(data, name, settings, methods) for name in methods]
    store.prepare()
    trackers(configs[0])
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    page = report or store.root / f"compare-{configs[0].data.title.replace(':', '-')}-{stamp}.html"
    check_page(page, "--report")
    feds = load_federations(configs[0])
    # every job is made before the first trains: what is wrong with the last method must not come after hours of others
    runs = [(config, job) for config in configs if (job := _job(config, feds, names is not None)) is not None]
    if configs[0].run.target and sum(not config.method.pooled for config, _ in runs) > 1:
        need_validation(feds)
    say_held_back(configs[0])
    records, results, failed, broken = [], [], [], []
    own_checks = checks_of_each(checks, [job for _, job in runs])
    cluster = configs[0].cluster
    carried = (
        _in_turn(store, runs, feds, own_checks)
        if cluster is None
        else share_out(store, cluster, [config for config, _ in runs], feds)
    )
    for number, folders, result in carried:
        if isinstance(result, str):  # one method's failure must not cost the others' results
            name = runs[number][0].method.name
            broken.append(name)
            say(f"{name} failed: {result}")
            continue
        records.append(_recorded(folders, result))
        results.append(documented(folders[0], result))
        failed += failures(own_checks[number], [result], None)
    if not results:
        raise RunError("No method finished.")
    compared = Comparison.of(results, margin=margin)
    said = verdict_of(compared)
    failed += failures([check for check in checks if isinstance(check, TargetCheck)], [], compared.answer)
    able = {config.method.name for config, _ in runs}
    more = {
        "report": str(page),
        "verdict": asdict(said),
        "left_out": [config.method.name for config in configs if config.method.name not in able],
        "failed_methods": broken,
        **_answered(compared.answer, failed),
    }
    _print_comparison(configs[0], feds[0], records, output, more, _asked(results, checks))
    for note in _shared_notes(results):
        say(f"Note: {note}")
    if not output.json:
        show(*_lines(said))
    write_page(compared, page)
    say(f"Report: {near(page)}")
    if broken:
        raise RunError(f"{len(broken)} of {len(runs)} methods failed: {', '.join(broken)}. {RETRY}")
    check_trained(results)
    fail(failed)


def _in_turn(
    store: Store,
    runs: Sequence[tuple[Config, Job]],
    feds: Sequence[Federation],
    checks: Sequence[Sequence[AnyCheck]],
    closely: bool = False,
) -> Iterator[tuple[int, list[RunFolder], Result | str]]:
    """Every run in this process, with its own progress: its number, its folder, and its result or what went wrong. A
    study of them, so that the same command goes on where it was interrupted and repeats nothing that has finished."""
    study = Study([config for config, _ in runs], store, Cluster(), {data_key(runs[0][0]): feds})
    if study.before:
        say(study.going_on("runs"))
    numbers = {id(config): number for number, (config, _) in enumerate(runs)}
    results: dict[int, Result] = {}

    def work(federations: Sequence[Federation], config: Config, root: Path, run: str) -> None:
        number = numbers[id(config)]
        recording = opened(store, config, run, lambda config: Simulation(runs[number][1]))
        if recording is None:
            return
        begun = f" continues after round {recording.done} of {config.run.rounds}." if recording.done else ""
        if begun or len(runs) == 1:
            say(f"Run {run}{begun}")
        try:
            results[number] = _train(recording, closely)
        except KeyboardInterrupt:
            _say_stopped(recording, f"Continue with: {_resuming(recording, checks[number])}")
            raise

    try:
        for number, folder, error in study.carry_out(train=work):
            own = RunFolder(store.root / folder.id)
            yield number, [own], error or (results.pop(number) if number in results else own.result())
    except KeyboardInterrupt as stopped:
        say(AGAIN if len(runs) == 1 else f"All of them: {AGAIN[0].lower()}{AGAIN[1:]}")
        raise typer.Exit(exit_code(stopped)) from None


def share_out(
    store: Store, cluster: Cluster, configs: Sequence[Config], feds: Sequence[Federation]
) -> Iterator[tuple[int, list[RunFolder], Result | str]]:
    """Configurations on the same federations, cut into jobs that workers share: in their order, the number of each, the
    folders of its jobs, and its result, which is that of all of them, or what went wrong."""
    pieces = [(number, block) for number, config in enumerate(configs) for block in blocks(config)]
    study = Study([block for _, block in pieces], store, cluster, {data_key(configs[0]): feds})
    folders: list[dict[int, RunFolder]] = [{} for _ in configs]
    errors: dict[int, str] = {}
    todo = Counter(number for number, _ in pieces)
    if cluster.workers > len(pieces):
        say(
            f"Note: {len(pieces)} jobs for {cluster.workers} workers. Smaller blocks (--seeds-per-job, "
            "--settings-per-job) make more of them."
        )
    if study.before:
        say(study.going_on())
    following = 0
    try:
        with Board() as board:
            for position, folder, error in study.carry_out(board):
                number = pieces[position][0]
                folders[number][position] = folder
                if error:
                    errors.setdefault(number, error)
                todo[number] -= 1
                while following < len(configs) and not todo[following]:
                    parts = [folders[following][key] for key in sorted(folders[following])]
                    found = errors.get(following) or merged([part.result() for part in parts], feds)
                    yield following, parts, found
                    following += 1
    except KeyboardInterrupt as stopped:
        say(f"Interrupted. {AGAIN}")
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


def _job(config: Config, feds: Sequence[Federation], named: bool) -> Job | None:
    """The method's job; None for a method that nobody asked for by name and that does not fit the data."""
    name, clients, rows = config.method.name, feds[0].num_clients, len(feds[0].test)
    if not named and config.method.personal and clients * rows > PERSONAL_TESTS:
        say(
            f"{name} is left out: every evaluation would test {clients:,} models on {rows:,} rows each. "
            "Name it with --methods to include it."
        )
        return None
    try:
        return job_of(config, feds)
    except ConfigError as error:
        own = error.section == "method" or error.key in ("clip", "robust")
        if named or not own:  # the settings are no method's fault
            raise
        say(f"{name} is left out: {error.text}")
        return None


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
        more |= {"verdict": asdict(verdict_of(compared))} if compared else {}
        print_json(summary | more | _answered(answer, failed))
    else:
        if result.swept and compared:
            show(pareto_table(result))
        else:
            asked = _asked([result], checks)
            show(comparison([summary], asked), footnotes([summary], asked), *silos_table(result), *robust_table(result))
        if compared:
            show(*_lines(verdict_of(compared)))
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
        show(*_lines(verdict_of(compared)))
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
