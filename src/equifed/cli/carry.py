"""Carrying out runs: what `run`, `compare`, `sweep` and `resume` have in common."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from equifed.cli.checks import Check, known_metrics
from equifed.cli.options import Output, Settings
from equifed.cli.progress import Watch
from equifed.cli.tables import Record, comparison, footnotes, frame_table, record
from equifed.cli.talk import name_of, near, out, print_json, say, show, traceback_if_wanted
from equifed.config import Config, build, load_federations, parse_config
from equifed.errors import ConfigError, RunError, unknown_name
from equifed.federation import Federation
from equifed.methods import REGISTRY
from equifed.simulator import Result
from equifed.store import Recording, Store


def begin(store: Store, config: Config, checks: Sequence[Check], feds: Sequence[Federation] | None = None) -> Recording:
    """A new run, refused before it has a folder when a check names an unknown metric."""
    simulation = build(config, feds)
    known = known_metrics(simulation) if checks else []
    for check in checks:
        check.require(known)
    return store.start(config, simulation)


def carry_out(recording: Recording) -> Result:
    """All rounds with progress; Ctrl-C says how to go on."""
    try:
        with recording, Watch(recording.config.method.name, recording.simulation, recording.done) as watch:
            for step in recording.rounds():
                watch.step(step)
            return recording.finish()
    except KeyboardInterrupt:
        done, run = recording.folder.rounds_done(), name_of(recording.folder.path)
        say(f"Interrupted after round {done} of {recording.config.run.rounds}. Continue with: equifed resume {run}")
        raise typer.Exit(130) from None


def new_run(config: Config, output: Output, checks: Sequence[Check]) -> None:
    recording = begin(Store(output.runs), config, checks)
    say(f"Run {recording.folder.id}")
    tell(recording, carry_out(recording), output, checks)


def resumed(reference: str, output: Output) -> None:
    store = Store(output.runs)
    folder = store.find(reference)
    if folder.status()["status"] == "finished":
        say(f"Run {folder.id} has already finished.")
        if output.json:
            print_json(record(folder, folder.result()) | {"status": "finished"})
        return
    recording = store.resume(reference)
    say(f"Run {folder.id} goes on after round {recording.done} of {recording.config.run.rounds}.")
    tell(recording, carry_out(recording), output, ())


def tell(recording: Recording, result: Result, output: Output, checks: Sequence[Check]) -> None:
    """Print one run's result, or the trade-off of a sweep, and fail if a check says so."""
    about = record(recording.folder, result) | {"status": "finished"}
    failed = [line for check in checks for line in check.failures(result)]
    for note in result.notes:
        say(f"Note: {note}")
    if output.json:
        more = {"pareto": pareto_of(result).to_dict("records")} if result.swept else {}
        print_json(about | more | {"failed_checks": failed})
    else:
        if result.swept:
            show(frame_table(pareto_of(result)))
        else:
            show(comparison([about], out().width), footnotes([about]))
        path = recording.folder.path
        say(f"Saved in {near(path)}; look at it with: equifed show {name_of(path)}")
    fail(failed)


def pareto_of(result: Result, quality: str | None = None, disparity: str | None = None) -> Any:
    """The mean trade-off of each swept setting, by the task's main metrics unless others are named."""
    names = set(result.final().columns)
    quality = quality or ("rmse" if "rmse" in names else "accuracy")
    candidates = ("demographic_parity_difference", "ks_distance", "accuracy_difference")
    return result.pareto(quality, disparity or next(name for name in candidates if name in names))


def fail(lines: Sequence[str]) -> None:
    for line in lines:
        say(f"Check failed: {line}")
    if lines:
        raise typer.Exit(1)


def compare(
    data: str, names: str | None, settings: Settings, report: Path | None, output: Output, checks: Sequence[Check]
) -> None:
    """Every method on the same federations, a run each; then the table and the report."""
    store = Store(output.runs)
    wanted = [name.strip() for name in names.split(",") if name.strip()] if names else list(REGISTRY)
    for name in wanted:
        if name not in REGISTRY:
            raise ConfigError(unknown_name("method", name, REGISTRY))
    configs = [
        parse_config(settings.config(data, name), settings.set or (), source="compare")
        for name in dict.fromkeys(wanted)
    ]
    feds = load_federations(configs[0])
    able = [config for config in configs if names or _can_run(config, feds)]
    records, results, failed, broken = [], [], [], []
    for config in able:
        recording = begin(store, config, checks, feds)
        try:
            result = carry_out(recording)
        except typer.Exit:
            raise
        except Exception as error:  # one method's failure must not cost the others' results
            traceback_if_wanted()
            broken.append(config.method.name)
            say(f"{config.method.name} failed: {type(error).__name__}: {error}")
            continue
        records.append(record(recording.folder, result))
        results.append(result)
        failed += [line for check in checks for line in check.failures(result)]
    if not results:
        raise RunError("No method finished.")
    page = _report(results, report, store, data)
    if output.json:
        left_out = [config.method.name for config in configs if config not in able]
        whole = _whole(configs[0], records, page)
        print_json(whole | {"left_out": left_out, "failed_methods": broken, "failed_checks": failed})
    else:
        _print_comparison(configs[0], feds[0], records)
    say(f"Report: {near(page)}")
    if broken:
        raise RunError(f"{len(broken)} of {len(able)} methods failed: {', '.join(broken)}.")
    fail(failed)


def _can_run(config: Config, feds: Sequence[Federation]) -> bool:
    """Whether the data has what the method needs; only methods that nobody asked for by name are left out."""
    kind, fed = type(config.method), feds[0]
    lacks = [
        what
        for what, lacking in (
            ("a validation set", kind.needs_validation and not len(fed.validation)),
            ("client groups", kind.needs_client_groups and fed.client_groups is None),
        )
        if lacking
    ]
    if lacks:
        say(f"{config.method.name} is left out: it needs {' and '.join(lacks)}, which this data does not have.")
    return not lacks


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


def _report(results: list[Result], wanted: Path | None, store: Store, data: str) -> Path:
    from equifed.report import write_report

    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return Path(write_report(results, wanted or store.root / f"compare-{data}-{stamp}.html"))
