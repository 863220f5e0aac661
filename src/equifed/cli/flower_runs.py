"""The work of `equifed flower`: make a federation's folder; start, resume and follow its runs."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Sequence
from json import loads
from pathlib import Path
from typing import Any

import typer

from equifed.cli.console import err, near, say
from equifed.cli.options import ColumnOptions, Output
from equifed.cli.report import documented
from equifed.cli.runs import print_result
from equifed.config import Config
from equifed.data import Columns, Schema, agree
from equifed.errors import ConfigError, RunError, unknown_name
from equifed.federation.reading import SUFFIXES, read_table
from equifed.federation.tables import check_inputs, infer_schema, na_values_of, named_tables, read_schema, read_summary
from equifed.flower.agreement import Setting, reason_file
from equifed.flower.deployment.bundle import Bundle, write_bundle
from equifed.flower.deployment.folder import NAME, Folder, create, service_of
from equifed.flower.deployment.installed import require_flower
from equifed.flower.deployment.programs import LocalFederation, SubmittedRun, is_listening
from equifed.notes import Note
from equifed.signals import end_on_signals, exit_code
from equifed.simulator import Rejection
from equifed.store import RunFolder, Store

PAUSE = 0.25
"""Seconds between two checks of a run's folder."""
CLOSING = 10.0
"""Seconds to wait for Flower to close a finished run."""


def schema_of_options(
    tables: Sequence[Path] | None, summaries: Sequence[Path] | None, schema: Path | None, options: ColumnOptions
) -> Schema | None:
    """Return the schema from the options of `init`, or None."""
    sources = [
        option for option, given in (("--table", tables), ("--summary", summaries), ("--schema", schema)) if given
    ]
    if len(sources) > 1:
        raise ConfigError(f"{' and '.join(sources)} both define the columns. Give only one of them.")
    columns = Columns(**options.given)
    if tables:
        return _schema_of_tables(tables, columns)
    if summaries:
        if refused := options.flags(lambda facts: "agreed" not in facts):
            raise ConfigError(
                f"{', '.join(refused)}: the summaries define this already. Give it to `equifed data summarise` at each "
                "silo."
            )
        return agree([read_summary(path) for path in summaries], columns)
    if given := options.flags():
        raise ConfigError(f"{', '.join(given)}: needs a table. Name it with --table FILE.")
    return None if schema is None else read_schema(schema)


def suffix_of(kind: str | None, samples: Sequence[Path] | None) -> str | None:
    """Return the suffix of the silos' files: by --format, or that of a sample; None if neither is given."""
    if kind is not None:
        if f".{kind}" not in SUFFIXES:
            raise unknown_name("kind of file", kind, [suffix[1:] for suffix in SUFFIXES], key="--format")
        return f".{kind}"
    return next(suffix for suffix in SUFFIXES if samples[0].name.endswith(suffix)) if samples else None


def _schema_of_tables(tables: Sequence[Path], columns: Columns) -> Schema:
    """Return the schema that silos with these files would agree on."""
    if columns.label is None or columns.sensitive is None:
        raise ConfigError("--table needs --label COLUMN and --sensitive COLUMN.")
    # by file name only: the schema may name a file that lacks a column, but no path of this machine
    frames = {path.name: read_table(path, na_values_of(columns)) for path in (named_tables([*tables]) or {}).values()}
    schema = infer_schema(frames, columns)
    check_inputs(schema)
    return schema


def list_unused(schema: Schema) -> list[str]:
    """Return a line for each column that is not an input, with the reason."""
    return [f"{each.column}: {each.reason}" for each in schema.left_out]


def make(path: Path, *, silos: str | None = None, **options: Any) -> Folder:
    """Make a folder; options that were not given have the defaults of `create`."""
    if silos is not None:
        options["silos"] = [name.strip() for name in silos.split(",")]
    return create(path, **{name: value for name, value in options.items() if value is not None})


def describe(folder: Folder) -> dict[str, Any]:
    """Return a description of the folder for other programs: its files, and the next commands."""
    path, silos = shlex.quote(str(folder.path)), folder.silos()
    schema = Setting.load(folder.federation).schema
    return {
        "folder": folder.path,
        "readme": folder.readme,
        "files": sorted(str(file.relative_to(folder.path)) for file in folder.path.rglob("*") if file.is_file()),
        "silos": {
            silo: {
                "bundle": f"equifed flower bundle {path} {silo}",
                "public_key": folder.public_key(silo),
                "rows": folder.data(silo),
                "service": folder.for_silo(silo) / service_of(silo),
            }
            for silo in silos
        },
        "inputs": list(schema.input_names),
        "left_out": {each.column: each.reason for each in schema.left_out},
        "commands": {
            "superlink": f"sh {shlex.quote(str(folder.superlink_script))}",
            "register": [
                f"FLWR_HOME={shlex.quote(str(folder.home))} flwr supernode register "
                f"{shlex.quote(str(folder.public_key(silo)))} {NAME}"
                for silo in silos
            ],
            "run": f"equifed flower run {path}",
            "run_local": f"equifed flower run {path} --local",
            "resume": f"equifed flower resume {path}",
        },
    }


def pack(path: Path, silo: str, out: Path | None, key: bool) -> Bundle:
    """Write the silo's bundle; by default named after the silo, in the current folder."""
    return write_bundle(Folder.of(path), silo, out or Path(f"{silo}.tar.gz"), key=key)


def describe_threshold(silos: int) -> str:
    """Return a sentence on how many silos must answer with secure sums."""
    from equifed.secure import threshold

    least = threshold(silos)
    who = "every silo" if least == silos else f"at least {least} of the {silos} silos"
    return f"Secure sums: {who} must answer, or the round is not applied."


def write_roster(output: Path, keys: Sequence[Path]) -> list[tuple[str, str]]:
    """Write the roster; return the silos' names and the fingerprints of their public keys."""
    require_flower()
    from equifed.secure import Roster

    if output.exists():
        raise ConfigError(f"{output} exists and is not overwritten. Name a new file, or remove this one.")
    collected = Roster.collect(keys)
    collected.write(output)
    return [(name, collected.fingerprint(name)) for name in collected.keys]


def demonstrate(path: Path, method: str | None, rounds: int | None, secure: bool = False, json: bool = False) -> None:
    require_flower()
    folder = _demo_folder(path, method, rounds, secure)
    _carry_out(_programs(folder, local=True), _new_run(folder), json)


def run(path: Path, local: bool = False, json: bool = False) -> None:
    folder = Folder.of(path)
    _carry_out(_programs(folder, local), _new_run(folder), json)


def resume(path: Path, reference: str | None, local: bool, json: bool = False) -> None:
    folder = Folder.of(path)
    unfinished = _find_unfinished(folder, reference)
    if unfinished is not None:
        _carry_out(_programs(folder, local), unfinished.id, json)


def _programs(folder: Folder, local: bool) -> SubmittedRun:
    """Return the programs of a run: all on this machine if `local`, which needs the silos' files here, or a client of
    the folder's SuperLink."""
    if not local:
        return SubmittedRun(folder)
    lacking = folder.list_missing()
    if lacking:
        files = "; ".join(f"{near(file)} ({what})" for file, what in lacking.items())
        raise ConfigError(
            f"Running everything on this machine needs every silo's rows and key; {near(folder.path)} lacks: {files}. "
            "Put them there, or start each silo on its own machine, as described in its README.md."
        )
    return LocalFederation(folder)


# -- which run ---------------------------------------------------------------------------------------------------------


def _demo_folder(path: Path, method: str | None, rounds: int | None, secure: bool) -> Folder:
    """Make the demo's folder, or return an earlier demo's if it has the wanted options."""
    if not Folder(path).federation.is_file():
        folder = make(path, method=method, rounds=rounds, secure=secure)
        say(f"Made {near(folder.path)}: an app, certificates, keys and data of three silos.")
        return folder
    folder = Folder.of(path)
    config = _config(folder)
    given = (
        ("--method", method, config.method.name),
        ("--rounds", rounds, config.run.rounds),
        ("--secure", secure or None, config.run.secure),
    )
    for option, value, present in given:
        if value is not None and value != present:
            what = f"{option} {value}" if value is not True else option
            with_what = f", with {present}" if value is not True else " without"
            raise ConfigError(
                f"{what}: {near(folder.path)} is already a federation{with_what}. Name another folder with --folder."
            )
    return folder


def _find_unfinished(folder: Folder, reference: str | None) -> RunFolder | None:
    """Return the run to resume; None, with a message, if there is none to resume."""
    store = Store(folder.runs)
    if reference is None:
        folders = store.folders()
        if not folders:
            raise ConfigError(
                f"{near(folder.runs)} has no run yet. Start one with: equifed flower run {_quote(folder.path)}"
            )
        reference = next((run.id for run in folders if run.status()["status"] != "finished"), None)
        if reference is None:
            say(f"All runs in {near(folder.runs)} have finished.")
            return None
    chosen = store.find(reference)
    if chosen.path.resolve().parent != folder.runs:
        raise ConfigError(f"{near(chosen.path)} is not a run of this federation. Its runs are in {near(folder.runs)}.")
    status = chosen.status()["status"]
    if status == "running":
        raise RunError(f"Run {chosen.id} is still running. See it with: equifed show {_quote(chosen.path)}")
    if chosen.is_finished():
        say(f"Run {chosen.id} has already finished.")
        return None
    return chosen


def _config(folder: Folder) -> Config:
    return Setting.load(folder.federation).config


def _new_run(folder: Folder) -> str:
    run = Store(folder.runs).new_id(_config(folder))
    say(f"Run {run}")
    return run


# -- carrying it out ---------------------------------------------------------------------------------------------------


def _carry_out(programs: SubmittedRun, run: str, json: bool) -> None:
    """Follow the run to its report: with server and silos as child programs, which end with this process, or on the
    folder's SuperLink, which continues without it."""
    folder, local = programs.folder, programs if isinstance(programs, LocalFederation) else None
    with end_on_signals():
        try:
            with programs:
                if local is None:
                    _require_superlink(folder, run)
                else:
                    say(f"Starting the server and {len(local.silos)} silos; their logs are in {near(folder.logs)}.")
                    local.start_all()
                _follow(programs, run)
        except KeyboardInterrupt as stopped:
            _say_stopped(folder, run, local is not None)
            raise typer.Exit(exit_code(stopped)) from None
    _report(folder, run, json)


def _say_stopped(folder: Folder, run: str, local: bool) -> None:
    """Print what a signal has ended, and how to continue."""
    if not local:
        say(
            f"No longer following; the run continues. See it with: equifed show {_quote(folder.runs / run)}, and end "
            f"it with `flwr stop` (FLWR_HOME={_quote(folder.home)})."
        )
        return
    done, total = RunFolder(folder.runs / run).rounds_done(), _config(folder).run.rounds
    say(
        f"Interrupted after round {done} of {total}; all programs are stopped. "
        f"Continue with: equifed flower {_local_command(folder, run)}"
    )


def _require_superlink(folder: Folder, run: str) -> None:
    host, port = folder.superlink()
    if not is_listening(host, port):
        text = f"No SuperLink answers at {host}:{port}. Start it here, as described in {near(folder.readme)}"
        if not folder.list_missing():
            text += f", or run everything on this machine: equifed flower {_local_command(folder, run)}"
        raise RunError(text)


def _local_command(folder: Folder, run: str) -> str:
    """Return the command that continues the run on this machine, or starts another if it has not begun."""
    begun = (folder.runs / run / "status.json").exists()  # secure sums have a folder before that
    return f"resume {_quote(folder.path)} --local" if begun else f"run {_quote(folder.path)} --local"


# -- following ---------------------------------------------------------------------------------------------------------


def _follow(programs: SubmittedRun, run: str) -> None:
    """Start or continue the run and show its rounds until it has finished."""
    run_folder = RunFolder(programs.folder.runs / run)
    before = _text(run_folder.path / "status.json")
    rounds = _Rounds(run_folder, _config(programs.folder).run.rounds)
    if before:
        say(f"Run {run} continues after round {run_folder.rounds_done()} of {rounds.total}.")
    reason = reason_file(programs.folder.runs, run)
    reason.unlink(missing_ok=True)
    programs.run(run)
    with rounds.waiting:
        while True:
            over = programs.ended(run) is not None
            # until the server has written, the files are an earlier attempt's, and its lock must not be touched
            begun = _text(run_folder.path / "status.json") != before
            status = run_folder.status() if begun else {"status": "not begun", "reason": ""}
            rounds.show(begun)  # after reading the status, so that the last line is not missed
            if status["status"] in ("finished", "failed", "interrupted") or (over and not begun):
                break
            time.sleep(PAUSE)
    if status["status"] == "finished":
        with contextlib.suppress(RunError):  # Flower may close it later
            programs.wait(run, CLOSING)
    elif status["reason"]:
        local = " --local" if isinstance(programs, LocalFederation) else ""
        raise RunError(
            f"Run {run} {status['status']}: {status['reason']} (log: {near(programs.log(run))}). "
            f"Continue with: equifed flower resume {_quote(programs.folder.path)}{local}"
        )
    else:
        text = _text(reason)
        why = f": {text} (log: {near(programs.log(run))})" if text else f".\n{programs.tail(run)}"
        raise RunError(f"Run {run} did not start{why}")


class _Rounds:
    """A display of one line per finished round, and on a terminal of the time that the next one has taken so far."""

    def __init__(self, folder: RunFolder, total: int) -> None:
        self.folder, self.total = folder, total
        self._shown = folder.rounds_done()
        self._since = time.monotonic()
        self._console = err()  # shared by lines and status, which would overwrite each other otherwise
        self.waiting = self._console.status("")
        """Status line, shown on a terminal while it is entered."""

    def show(self, begun: bool) -> None:
        text = _text(self.folder.path / "rounds.jsonl") if begun else ""
        for line in map(loads, text.split("\n")[:-1]):  # the last one may be incomplete
            if line["round"] > self._shown:
                self._shown, self._since = line["round"], time.monotonic()
                with contextlib.suppress(BrokenPipeError):
                    self._console.print(
                        f"Round {line['round']} of {self.total}: {_describe_round(line)}", soft_wrap=True
                    )
        waited = f"{time.monotonic() - self._since:.0f} s"
        if not (self.folder.path / "status.json").exists():
            self.waiting.update(f"Waiting for the silos: {waited}")
        else:
            self.waiting.update(f"Round {min(self._shown + 1, self.total)} of {self.total}: {waited}")


def _describe_round(line: dict[str, Any]) -> str:
    """Describe a round: its duration, and the silos that replied and that did not."""
    log = line["logs"][0]
    text = f"{line['seconds']:.1f} s, {log['replied']} of {log['sampled']} silos replied"
    lost = {missing.client: missing.reason for missing in (Rejection(*rest) for _, *rest in line["rejections"])}
    if lost:
        text += "; without " + ", ".join(f"{client} ({reason})" for client, reason in lost.items())
    return text if log["applied"] else f"{text}; the round was not applied: {Note.from_json(log['obstacle'])}"


def _quote(path: Path) -> str:
    """Return the path as typed in a command."""
    return shlex.quote(near(path))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _report(folder: Folder, run: str, json: bool) -> None:
    """Print the summary and write the report of a finished run."""
    from equifed.report import write_report

    run_folder = RunFolder(folder.runs / run)
    result = run_folder.result()
    page = run_folder.path / "report.html"
    write_report([documented(run_folder, result)], page)
    say(f"Report: {near(page)}")
    print_result([run_folder], result, Output(folder.runs, json), ())
