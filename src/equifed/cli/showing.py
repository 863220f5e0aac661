"""`equifed show`: one run in full."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from equifed.cli.checks import AnyCheck
from equifed.cli.console import name_of, near, print_json, say, show
from equifed.cli.options import Output
from equifed.cli.tables import frame_table, groups_table, metrics_table, pareto_table, record, silos_table, warnings_of
from equifed.errors import RunError
from equifed.report.silos import other_notes
from equifed.store import RunFolder


def show_folder(folder: RunFolder, output: Output, checks: Sequence[AnyCheck]) -> list[str]:
    """Print it; the failed checks."""
    status = folder.status()
    config = folder.settings()
    about: dict[str, Any] = {
        "run": folder.id,
        "folder": str(folder.path),
        **status,
        "rounds_done": folder.rounds_done(),
    }
    if status["status"] != "finished":
        return _unfinished(folder, about, config, output, checks)
    result = folder.result()
    about |= record(folder, result)
    failed = [line for check in checks for line in check.failures(result)]
    if output.json:
        more = {
            "messages": result.messages.to_dict("records"),
            "config": config,
            "environment": json.loads((folder.path / "environment.json").read_text()),
            "data_record": json.loads((folder.path / "data.json").read_text()),
            "failed_checks": failed,
        }
        print_json(about | more)
        return failed
    show(f"{_line(folder, config)}, finished in {about['seconds']:.1f} s\n")
    if result.swept:
        from equifed.cli.runs import pareto_of

        show(pareto_table(pareto_of(result)))
    else:
        show(metrics_table(about), "", groups_table(result), *silos_table(result), "", warnings_of([about]))
    show("", frame_table(result.messages.drop(columns=["sizes_down", "sizes_up"]), "Messages, bytes per client"))
    if "federation" in result.info:
        show("No secure aggregation: the server receives every silo's reply by itself, also where the sum is gathered.")
    for note in other_notes(result):
        show(f"Note: {note}")
    say(f"Folder: {near(folder.path)}")
    return failed


def _unfinished(
    folder: RunFolder, about: dict[str, Any], config: dict[str, Any], output: Output, checks: Sequence[AnyCheck]
) -> list[str]:
    if checks:
        raise RunError(f"Run {folder.id} has not finished ({about['status']}), so nothing can be checked.")
    if output.json:
        print_json(about | {"config": config})
        return []
    done = f"{about['rounds_done']} of {config['run']['rounds']} rounds done"
    reason = f" ({about['reason']})" if about["reason"] else ""
    show(f"{_line(folder, config)}: {about['status']}{reason}, {done}")
    if about["status"] != "running":
        say(f"Continue it with: {folder.resuming(name_of(folder.path))}")
    return []


def _line(folder: RunFolder, config: dict[str, Any]) -> str:
    data = config["data"]
    where = f"{data['name']} ({data['preset']})" if "name" in data else f"{len(data['files'])} files"
    run = config["run"]
    name = f" {run['name']!r}" if run["name"] else ""
    return (
        f"{folder.id}{name}: {config['method']['name']} on {where}, {run['rounds']} rounds, "
        f"{len(run['seeds'])} seeds, {config['model']['kind']}"
    )
