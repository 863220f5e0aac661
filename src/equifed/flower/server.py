"""The server app: the round loop of the simulator over silos that answer through Flower.

Run config: `run`, the id of the run, which is resumed if it is there already; `runs`, the folder of the runs' folders,
and `validation`, the server's own validation file, where they lie elsewhere than in the federation's folder. Silos see
the run config, so that folder is named by the environment of the SuperLink: $EQUIFED_FEDERATION.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid

from equifed.errors import ConfigError, EquifedError, RunError
from equifed.federation.split import shift_and_factor
from equifed.files import make_private_folder, private_umask, read_sealed, write_sealed
from equifed.flower.agreement import Scaling, Setting, reason_file
from equifed.flower.deployment.folder import HOME, Folder
from equifed.flower.engine import FlowerEngine, FlowerEvaluator
from equifed.flower.joining import add_up, introduction
from equifed.flower.journal import Journal
from equifed.flower.link import Link, Member, Totals, registered
from equifed.flower.memory import evaluation_number
from equifed.flower.records import EVALUATION, BadMessage, check_run
from equifed.flower.secure_engine import SecureEngine, SecureEvaluator
from equifed.notes import Note
from equifed.results import Result
from equifed.secure import FEWEST, threshold
from equifed.simulation import Training
from equifed.simulator import Job, Message, State, Step, make_tables
from equifed.simulator.engine import record_message
from equifed.store import RunFolder, Store, trackers
from equifed.store.folder import FEDERATION, JOURNAL
from equifed.words import encodable


def _say(line: str) -> None:
    """Print a line for the operator. A silo's words must not end the run where its terminal lacks their letters."""
    print(encodable(line, sys.stdout.encoding), flush=True)


def carry_out(path: str | Path, grid: Grid, context: Context) -> None:
    """The work of the server app: a run of the federation that this configuration describes."""
    options = {key: str(context.run_config.get(key, "")) for key in ("runs", "run", "validation")}
    home = os.environ.get(HOME)
    folder = Folder(Path(home)) if home else None
    if folder is not None:
        options["runs"] = options["runs"] or str(folder.runs)
    try:
        if folder is not None:
            options["validation"] = options["validation"] or str(folder.validation() or "")
        setting = Setting.load(path)
        keys = {} if folder is None else registered(folder.public_key, setting.silos)
        serve(setting, grid, **options, keys=keys)
    except EquifedError as error:
        if options["runs"] and options["run"]:
            file = reason_file(options["runs"], options["run"])
            with contextlib.suppress(OSError):  # that may have been the reason
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(str(error), encoding="utf-8")
        raise


@private_umask()  # what is recorded follows from single silos' replies
def serve(
    setting: Setting,
    grid: Grid,
    *,
    runs: str = "",
    run: str = "",
    validation: str = "",
    keys: Mapping[str, bytes] | None = None,
) -> Result:
    """Carry out a run, or go on with it. Every round is saved, and printed in a line. keys: see `Link`."""
    store = Store(runs or None)
    store.prepare()
    told = trackers(setting.config)
    folder = _folder_of(store, run or store.new_id(setting.config))
    before = _left(folder, setting)
    link = Link(grid, setting.silos, setting.digest, folder.name, int(setting.scaled.sum()), keys or {}, setting.secure)
    if before is not None:
        link.members.update(before.members)
        link.summed, link.closed = before.totals, setting.secure
    journal = Journal(folder / JOURNAL)
    for tracker in told:
        _say(f"Tracked by {tracker}")
    begun = before if before is not None and (before.totals is not None or not setting.secure) else None
    _gather(setting, link, begun is not None)
    scaling = _agreed_scaling(setting, link, journal, folder) if begun is None else begun.scaling
    named = setting.config.data.validation_file
    file = Path(validation) if validation else None if named is None else setting.config.folder / named
    training = Federated(setting, link, scaling, file, journal)
    for note in training.engine.notes:
        _say(str(note))
    if RunFolder.is_one(folder):
        recording = store.resume(str(folder), make=lambda config: training, callbacks=told)
        _say(f"Going on after round {recording.done} of {setting.config.run.rounds}")
    else:
        recording = store.start(setting.config, training, folder.name, told)
    with recording:
        _write_roster(folder, setting, link, scaling)
        for step in recording.rounds():
            _say(_line(training.job, step))
            _write_roster(folder, setting, link, scaling)  # a silo may have joined late
            _greet(link)
        result = recording.finish()
    for note in result.notes:
        _say(str(note))
    _say(f"Finished: {folder}")
    return result


def _folder_of(store: Store, run: str) -> Path:
    try:
        return store.root / check_run(run)
    except BadMessage as error:
        raise ConfigError(f"The run config's run {error}.") from None


def _left(folder: Path, setting: Setting) -> Before | None:
    """Return what an earlier process of this run has left; None where the run is new."""
    if (folder / FEDERATION).is_file():
        return _read_roster(folder, setting)
    if RunFolder(folder).rounds_done():
        raise RunError(
            f"{folder / FEDERATION} is missing, so the run cannot go on. Put back a copy, or start a new run."
        )
    return None


def _gather(setting: Setting, link: Link, begun: bool) -> None:
    """Wait for the silos. begun: it is settled how inputs are standardised."""
    _say(f"Run {link.run}: waiting for {', '.join(setting.silos)}")
    # one silo's means and deviations are not a federation's, and no silo helps to sum fewer than the threshold
    fewest = threshold(len(setting.silos)) if setting.secure and not begun else min(2, len(setting.silos))
    link.gather(setting.flower.join_deadline, max(setting.min_replies, fewest))
    _say(f"{len(link.here)} of {len(setting.silos)} silos are here: {', '.join(link.here)}")
    for silo in setting.silos:
        if silo not in link.here:
            _say(f"{silo} is not here: {link.why_not(silo)}")
    _greet(link)


def _agreed_scaling(setting: Setting, link: Link, journal: Journal, folder: Path) -> Scaling | None:
    """Settle how inputs are standardised, from the sums of the silos that are here."""
    if not setting.secure:
        return standardisation(setting, link.members)
    if not link.closed:
        link.close(link.here)
        make_private_folder(folder)
        _write_roster(folder, setting, link, None)  # who mask together, whatever happens before they are summed
    scaling = _summed_up(setting, link, journal)
    _write_roster(folder, setting, link, scaling)
    return scaling


class Federated(Training):
    """A job whose clients are elsewhere."""

    engine: FlowerEngine

    def __init__(
        self, setting: Setting, link: Link, scaling: Scaling | None, validation: Path | None, journal: Journal
    ) -> None:
        federation = setting.view(validation=validation)
        job = setting.job(federation, scaling)
        if job.method.needs_validation and not len(federation.validation):
            raise ConfigError(
                f"{job.method.name} measures fairness on rows that the server holds, and this server has none. Name a "
                "file of them: validation-file in [data], or the run config's validation."
            )
        tables = make_tables(job)
        common = job, tables, link, scaling, setting.flower.deadline, setting.min_replies
        engine = SecureEngine(*common, journal) if setting.secure else FlowerEngine(*common)
        engine.messages["join", 0] = _join_message(job, link)
        self._scores = (SecureEvaluator if setting.secure else FlowerEvaluator)(job, tables, engine)
        self._setting, self._link, self._journal = setting, link, journal
        super().__init__(job, engine, self._scores)

    def rounds(self, resume: tuple[int, State] | None = None) -> Iterator[Step]:
        if resume is not None:
            self.engine.committed = resume[1].last_reply[0]
            # the next round asks for the scores of the model that the checkpoint has, and may have had their sum
            self._journal.forget(before=evaluation_number(resume[0]))
        for step in super().rounds(resume):
            yield step
            # the caller has saved this round when it asks for the next
            if step.round % self._setting.config.run.checkpoint_every == 0 or step.last:
                self.engine.committed = step.state.last_reply[0]
                self._journal.forget()
        self._journal.forget()  # also of a run that was killed after its last round was saved

    def result(self) -> Result:
        assert self._state is not None, "no round has finished"
        if self._scores.disclosed is None:  # the run was killed after its last round: what is withheld was not kept
            _, _, scores = self.collector.scores[-1]
            self._scores.recall(self.job.rounds, self._state, scores)
        result = super().result()
        members, totals = self._link.members, self._link.totals
        result.info["cells"] = None  # unknown: only their sums are disclosed
        result.info["rows"] |= {"train": totals.rows, "test": totals.test_rows}
        result.info["unknown_groups"] |= {"train": None, "test": self._scores.unknown}
        result.info["federation"] = {
            "silos": _declared(members),
            "min_replies": self._setting.min_replies,
            "min_count": max(self._setting.flower.min_count, *(member.min_count for member in members.values())),
            "unmeasured": self.engine.unmeasured,
            "disclosed": self._scores.disclosed,
            "withheld": self._scores.withheld,
            "secure": self._secure(result.notes) if isinstance(self._scores, SecureEvaluator) else None,
        }
        result.final_states = {  # what clients keep is not here
            key: dataclasses.replace(state, clients=None) for key, state in result.final_states.items()
        }
        return result

    def _secure(self, notes: Sequence[Note]) -> dict[str, Any]:
        """How replies were summed: see `equifed.verdict.silos.Secure`."""
        assert isinstance(self._scores, SecureEvaluator)
        return {
            "least": max(threshold(self.job.asked("round")), FEWEST),
            "roster": [silo for silo, member in self._link.members.items() if member.roster],
            "before": sum(not lost.answered for _, lost in self.collector.rejections),
            "late": sum(note.kind == "gone-late" and note.fields["phase"] != EVALUATION for note in notes),
            **self._scores.hidden,
        }


def _summed_up(setting: Setting, link: Link, journal: Journal) -> Scaling | None:
    """Have the silos' rows summed up: how many there are, and how inputs are standardised."""
    joined = add_up(link, journal, setting.flower.deadline)
    rows, limit = joined.totals.rows, max(member.min_count for member in link.members.values())
    _say(f"Together {', '.join(link.members)} have {rows:,} training and {joined.totals.test_rows:,} test rows")
    for silo in setting.silos:
        if silo not in link.members:
            _say(f"{silo} takes no part: {link.why_not(silo)}")
    if setting.scaled.any() and rows < limit:
        raise RunError(
            f"Inputs are standardised by sums over all training rows, which are {rows:,} and should be at least "
            f"{limit:,} (min-count). Lower min-count, or set scaling = 'none' in the schema."
        )
    return _scaling(setting, rows, *joined.sums)


def standardisation(setting: Setting, members: Mapping[str, Member]) -> Scaling | None:
    """Mean and deviation of the silos' training rows together, from their sums; None where the schema wants none."""
    if not setting.scaled.any():
        return None
    disclosed = [(member.rows, member.sums) for member in members.values() if member.sums is not None]
    if len(disclosed) < min(2, len(setting.silos)):
        raise RunError(
            f"Inputs are standardised by sums of at least two silos, but {len(disclosed)} disclosed theirs: silos with "
            "fewer training rows than min-count keep them back. Lower min-count, or set scaling = 'none' in the schema."
        )
    rows = sum(number or 0 for number, _ in disclosed)
    return _scaling(setting, rows, *np.sum([sums for _, sums in disclosed], axis=0))


def _scaling(setting: Setting, rows: int, total: np.ndarray, squares: np.ndarray) -> Scaling | None:
    """From the number of rows, and the sums and sums of squares of the inputs to be standardised."""
    if not setting.scaled.any():
        return None
    mean = total / max(rows, 1)
    deviation = np.sqrt(np.maximum(squares / max(rows, 1) - mean**2, 0))
    return shift_and_factor(mean, deviation, setting.scaled)


def _greet(link: Link) -> None:
    """Say once who was sent away."""
    while link.strangers:
        _say(f"Sent away: {link.strangers.pop(0)}")


def _join_message(job: Job, link: Link) -> Message:
    """What a silo says of its rows, as a line of the table of messages."""
    if link.secure:
        return record_message(job, "join", *introduction(link.scaled))
    sums = next((member.sums for member in link.members.values() if member.sums is not None), None)
    sizes = {"rows": 8, "test-rows": 8}
    if sums is not None:
        sizes |= {"sum": sums[0].nbytes, "squares": sums[1].nbytes}
    return Message("join", "join", (), tuple(sizes), "stack", 0, sum(sizes.values()), {}, sizes)


def _declared(members: Mapping[str, Member]) -> dict[str, dict[str, int]]:
    """The rows that each silo has said it has; with secure sums, none."""
    rows = {silo: {"rows": member.rows, "test_rows": member.test_rows} for silo, member in members.items()}
    return {silo: {name: number for name, number in said.items() if number is not None} for silo, said in rows.items()}


class Before(NamedTuple):
    """Who takes part in a run that goes on, and how inputs are standardised."""

    members: dict[str, Member]
    totals: Totals | None
    scaling: Scaling | None


def _write_roster(folder: Path, setting: Setting, link: Link, scaling: Scaling | None) -> None:
    write_sealed(
        folder / FEDERATION,
        {
            "app": setting.digest,
            "silos": {silo: _kept(member) for silo, member in link.members.items()},
            "totals": link.summed and link.summed._asdict(),
            "scaling": None if scaling is None else [part.tolist() for part in scaling],
        },
    )


def _read_roster(folder: Path, setting: Setting) -> Before:
    try:
        roster = read_sealed(folder / FEDERATION)
    except (OSError, ValueError) as error:
        raise RunError(
            f"{folder / FEDERATION} is damaged ({error}), so the run cannot go on. Put back a copy, or start a new run."
        ) from None
    if roster["app"] != setting.digest:
        raise RunError(
            f"Run {folder.name} was started with another configuration, schema or version of equifed than this app's. "
            "Put them back to go on, or start a new run."
        )
    members = {silo: _known(kept) for silo, kept in roster["silos"].items()}
    totals, scaling = roster["totals"], roster["scaling"]
    return Before(
        members,
        None if totals is None else Totals(**totals),
        None if scaling is None else (np.array(scaling[0], np.float32), np.array(scaling[1], np.float32)),
    )


_SECURE = ("public", "signature", "roster", "min_count")
"""What is kept of a silo besides, where sums are secure."""


def _kept(member: Member) -> dict[str, Any]:
    """A silo as federation.json has it; the sums are not needed any more."""
    fields = {name: value for name, value in vars(member).items() if name != "sums" and value is not None}
    if not member.public:
        fields = {name: value for name, value in fields.items() if name not in _SECURE}
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in fields.items()}


def _known(kept: Mapping[str, Any]) -> Member:
    keys = {name: bytes.fromhex(kept[name]) for name in ("public", "signature") if name in kept}
    return Member(**{"rows": None, "test_rows": None, "sums": None, **kept, **keys})


def _line(job: Job, step: Step) -> str:
    """A finished round in a line."""
    (log,) = step.logs
    line = f"Round {step.round} of {job.rounds}: {log.replied} of {log.sampled} replied"
    if log.obstacle is not None:
        line += f"; the round was not applied: {log.obstacle}"
    missing = [f"{lost.client} in {lost.phase} ({lost.reason})" for _, lost in step.rejections]
    return line + (f"; without {'; '.join(missing)}" if missing else "") + f"; {step.seconds:.0f} s"
