"""Carrying out runs: what `run`, `compare`, `sweep` and `resume` have in common."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from equifed.cli.checks import AnyCheck, checks_of_each, require_known
from equifed.cli.console import name_of, near, out, print_json, say, show, traceback_if_wanted
from equifed.cli.options import Output, Settings, split_names
from equifed.cli.progress import Watch
from equifed.cli.report import check_page, documented
from equifed.cli.tables import Record, comparison, footnotes, pareto_table, record, silos_table
from equifed.config import Config, build, job_of, load_federations, parse_config
from equifed.errors import ConfigError, RunError
from equifed.federation import Federation
from equifed.methods import REGISTRY, make
from equifed.metrics import catalogue
from equifed.report.silos import other_notes
from equifed.simulator import Result
from equifed.store import Recording, RunFolder, Store

PERSONAL_TESTS = 20_000_000
"""Test rows times clients beyond which `compare` leaves out methods whose clients all have models of their own."""


def begin(
    store: Store, config: Config, checks: Sequence[AnyCheck], feds: Sequence[Federation] | None = None
) -> Recording:
    """A new run, refused before it has a folder when a check names an unknown metric."""
    simulation = build(config, feds)
    require_known(checks, simulation.job)
    return store.start(config, simulation)


def carry_out(recording: Recording, checks: Sequence[AnyCheck], closely: bool = False) -> Result:
    """All rounds with progress; Ctrl-C says how to go on."""
    name = recording.config.method.name
    try:
        with recording, Watch(name, recording.simulation, recording.done, closely) as watch:
            for step in recording.rounds():
                watch.step(step)
            return recording.finish()
    except KeyboardInterrupt:
        done, run = recording.folder.rounds_done(), name_of(recording.folder.path)
        again = "".join(f" --fail-if {shlex.quote(check.text)}" for check in checks)
        rounds = recording.config.run.rounds
        say(f"Interrupted after round {done} of {rounds}. Continue with: equifed resume {run}{again}")
        raise typer.Exit(130) from None


def new_run(config: Config, output: Output, checks: Sequence[AnyCheck], closely: bool = False) -> None:
    store = Store(output.runs)
    store.prepare()
    recording = begin(store, config, checks)
    say(f"Run {recording.folder.id}")
    tell(recording.folder, carry_out(recording, checks, closely), output, checks)


def resumed(reference: str, output: Output, checks: Sequence[AnyCheck], closely: bool = False) -> None:
    store = Store(output.runs)
    folder = store.find(reference)
    if folder.status()["status"] == "finished":
        say(f"Run {folder.id} has already finished.")
        if not output.json and not checks:
            return
        result = folder.result()
        failed = [line for check in checks for line in check.failures(result)]
        if output.json:
            print_json(record(folder, result) | {"status": "finished", "failed_checks": failed})
        fail(failed)
        return
    recording = store.resume(reference, lambda simulation: require_known(checks, simulation.job))
    say(f"Run {folder.id} goes on after round {recording.done} of {recording.config.run.rounds}.")
    tell(recording.folder, carry_out(recording, checks, closely), output, checks)


def tell(folder: RunFolder, result: Result, output: Output, checks: Sequence[AnyCheck]) -> None:
    """Print one run's result, or the trade-off of a sweep, and fail if a check says so."""
    about = record(folder, result) | {"status": "finished"}
    failed = [line for check in checks for line in check.failures(result)]
    for note in result.notes if output.json else other_notes(result):
        say(f"Note: {note}")
    if output.json:
        more = {"pareto": pareto_of(result).to_dict("records")} if result.swept else {}
        print_json(about | more | {"failed_checks": failed})
    else:
        if result.swept:
            show(pareto_table(pareto_of(result)))
        else:
            show(comparison([about], out().width), footnotes([about]), *silos_table(result))
        say(f"Saved in {near(folder.path)}; look at it with: equifed show {name_of(folder.path)}")
    fail(failed)


def pareto_of(result: Result) -> Any:
    """The mean trade-off of each swept setting, by the task's main metrics."""
    return result.pareto(*catalogue.main_pair(result.final().columns))


def fail(lines: Sequence[str]) -> None:
    for line in lines:
        say(f"Check failed: {line}")
    if lines:
        raise typer.Exit(1)


def compare(
    data: str, names: str | None, settings: Settings, report: Path | None, output: Output, checks: Sequence[AnyCheck]
) -> None:
    """Every method on the same federations, a run each; then the table and the report."""
    store = Store(output.runs)
    wanted = list(REGISTRY) if names is None else _names(names)
    configs = [_config(data, name, settings, wanted) for name in wanted]
    store.prepare()
    page = _page(report, store, data)
    feds = load_federations(configs[0])
    job_of(configs[0], feds)  # what is wrong with the settings is no method's fault
    able = [config for config in configs if names is not None or _can_run(config, feds)]
    # what is wrong with the last method is said before the first has trained
    checks_of = checks_of_each(checks, [job_of(config, feds) for config in able])
    records, results, failed, broken = [], [], [], []
    for config, own in zip(able, checks_of, strict=True):
        recording = begin(store, config, own, feds)
        try:
            result = carry_out(recording, own)
        except typer.Exit:
            raise
        except Exception as error:  # one method's failure must not cost the others' results
            traceback_if_wanted()
            broken.append(config.method.name)
            say(f"{config.method.name} failed: {type(error).__name__}: {error}")
            continue
        records.append(record(recording.folder, result))
        results.append(documented(recording.folder, result))
        failed += [line for check in own for line in check.failures(result)]
    if not results:
        raise RunError("No method finished.")
    if output.json:
        left_out = [config.method.name for config in configs if config not in able]
        whole = _whole(configs[0], records, page)
        print_json(whole | {"left_out": left_out, "failed_methods": broken, "failed_checks": failed})
    else:
        _print_comparison(configs[0], feds[0], records)
    _write_report(results, page)
    if broken:
        raise RunError(f"{len(broken)} of {len(able)} methods failed: {', '.join(broken)}.")
    fail(failed)


def _config(data: str, method: str, settings: Settings, wanted: Sequence[str]) -> Config:
    overrides = settings.overrides(method, {*wanted} - {method})
    own = any(text.startswith("method.") for text in overrides)
    return parse_config(settings.config(data, method), overrides, source=f"compare ({method})" if own else "compare")


def _names(text: str) -> list[str]:
    """The methods that --methods names."""
    names = split_names(text, "--methods")
    for name in names:
        make(name)
    return names


def _can_run(config: Config, feds: Sequence[Federation]) -> bool:
    """Whether the data has what the method needs, and its test takes no ages.

    Only methods that nobody asked for by name are left out.
    """
    method, fed = config.method, feds[0]
    lacks = [
        what
        for what, lacking in (
            (f"{' or '.join(method.tasks)} labels", fed.label_kind not in method.tasks),
            ("a validation set", method.needs_validation and not len(fed.validation)),
            ("client groups", method.needs_client_groups and fed.client_groups is None),
        )
        if lacking
    ]
    if lacks:
        say(f"{config.method.name} is left out: it needs {' and '.join(lacks)}, which this data does not have.")
        return False
    try:
        job_of(config, feds)
    except ConfigError as error:  # what only the method can refuse, such as a third group
        say(f"{config.method.name} is left out: {error.text}")
        return False
    if config.method.personal and fed.num_clients * len(fed.test) > PERSONAL_TESTS:
        say(
            f"{config.method.name} is left out: every evaluation would test {fed.num_clients:,} models on "
            f"{len(fed.test):,} rows each. Name it with --methods to have it all the same."
        )
        return False
    return True


def _whole(config: Config, records: list[Record], page: Path) -> dict[str, Any]:
    settings = config.resolved()
    return {
        "data": config.data.name,
        "preset": config.data.preset,
        "rounds": config.run.rounds,
        "seeds": config.run.seed_list,
        "settings": {key: settings[key] for key in ("run", "partition", "model", "local") if key in settings},
        "methods": records,
        "report": str(page),
    }


def _print_comparison(config: Config, fed: Federation, records: list[Record]) -> None:
    settings = config.resolved()
    clients = settings["run"]["clients-per-round"]
    show(
        f"{fed.name} ({config.data.preset}): {fed.num_clients} clients, {clients} per round, "
        f"{config.run.rounds} rounds, {len(config.run.seed_list)} seeds, {settings['model']['kind']}, "
        f"partition {settings['partition']['kind']}\n",
        comparison(records, out().width),
        footnotes(records),
    )


def _page(wanted: Path | None, store: Store, data: str) -> Path:
    """Where the report will lie; refused when it could not be written there."""
    if wanted is None:
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        return store.root / f"compare-{data}-{stamp}.html"
    return check_page(wanted, "--report")


def _write_report(results: list[Result], page: Path) -> None:
    from equifed.report import write_report

    write_report(results, page)
    say(f"Report: {near(page)}")
