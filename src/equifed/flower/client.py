"""The client app: what a silo's node does when the server asks. The silo's rows and memory stay where they are.

It is a federation in which only this silo has rows, and the reference engine's work for one client in it. Handlers are
made from the method's phases. Node config: `client-id`; `data`, its file; `state`, a folder for what it remembers;
`min-count`, if its own is to be higher than the federation's; `key`, its node's private key, and `roster`, the other
nodes' public ones, for secure sums; `secure=true`, if it takes part in no others, which `key` and `roster` say too;
`app`, the digest of the only configuration that it takes part in.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from equifed import tree
from equifed.bounds import Bounds, is_finite
from equifed.data.encode import MAX_STANDARDISED
from equifed.errors import ConfigError, EquifedError, RowError, unknown_name
from equifed.fixed_point import OutOfRange
from equifed.flower import evaluation, joining
from equifed.flower.agreement import Scaling, Setting, action, codecs, exchanges
from equifed.flower.answers import Work, answering, without_paths
from equifed.flower.apps import unmask
from equifed.flower.joining import JOINING
from equifed.flower.masks import (
    digest,
    joined,
    put_masked,
    read_asking,
    read_signatures,
    read_states,
    secrets_of,
    state_folder,
)
from equifed.flower.memory import Memory, evaluation_number, exchange_number
from equifed.flower.records import (
    ABOUT,
    EVALUATION,
    FIELDS,
    SCALING,
    BadMessage,
    about,
    distrusting,
    pack,
    read_about,
    unpack,
)
from equifed.flower.vectors import Vector
from equifed.metrics.catalogue import measured, shown
from equifed.metrics.frame import overall
from equifed.metrics.scored import Scored
from equifed.protocol import VALIDATION, Phase, Record, Stage
from equifed.secure import Exchange, Roster, Silo, sign
from equifed.simulator import Evaluator, Job, Reference, make_tables
from equifed.simulator.engine import check_reply, sent
from equifed.store.environment import fingerprint
from equifed.words import quoted


def load_app(path: str | Path) -> ClientApp:
    """The app of every silo in the federation that this configuration describes. Where it cannot be read, say because
    the method's module is not installed at the silo, joining is refused with the reason."""
    try:
        return app_of(Setting.load(path))
    except EquifedError as error:
        failure = error

    app = ClientApp()

    @app.query("join")
    @answering
    def refuse(message: Message, context: Context) -> RecordDict:
        raise ConfigError(f"its app cannot be loaded: {without_paths(failure)}") from failure

    return app


def app_of(setting: Setting) -> ClientApp:
    silos: dict[Any, OpenSilo] = {}
    app = ClientApp()

    def opened(message: Message, context: Context) -> tuple[OpenSilo, Memory, dict[str, Any]]:
        """The silo, opened once for the messages of one process; what it remembers, and what it is asked."""
        _check_agreed(setting, context)
        asked = read_about(message.content)
        name, file = _whose(setting, context)
        scaling, min_count = _scaling(message, len(setting.scaled)), max(_min_count(context), setting.flower.min_count)
        changed = file.stat().st_mtime_ns if file.exists() else 0
        key = (name, file, changed, scaling and scaling[0].tobytes(), min_count)
        if key not in silos:
            for other in [other for other in silos if other[0] == name]:
                del silos[other]  # the rows are read once more, not kept once more
            try:
                silos[key] = OpenSilo.open(setting, name, file, scaling, min_count)
            except RowError as error:
                if not setting.secure:
                    raise
                raise RowError(error.text, column=error.column) from error  # a row's number says how many there are
        return silos[key], Memory(context, state_folder(context, str(asked["run"]))), asked

    @app.query("join")
    @answering
    def join(message: Message, context: Context) -> RecordDict:
        if read_about(message.content)["app"] != setting.digest:
            raise ConfigError(
                "its app has another configuration, schema, version of equifed or frozen part of the model than the "
                "server's: install the same everywhere."
            )
        silo, memory, asked = opened(message, context)
        fed = silo.engine.job.runs[0].federation
        if not memory.know_again(fingerprint([fed])):
            raise BadMessage("cannot be made: its file has other rows than when the run began. Put them back")
        if setting.secure:
            return silo.show_key(secrets_of(context, str(asked["run"])), context)
        return silo.introduce()

    def introduce(message: Message, context: Context) -> RecordDict:
        """What the silo has, masked."""
        silo, _, asked = opened(message, context)
        if not setting.secure or int(asked["exchange"]) != JOINING:
            raise BadMessage("cannot be made: nothing of the kind is summed in this run")
        secrets = secrets_of(context, str(asked["run"]))
        exchange = read_asking(message.content, secrets.run, JOINING, len(setting.silos))
        _check_cohort(exchange, setting.silos)
        secrets.check(exchange)
        roster, signatures = _roster(context), read_signatures(message.content)
        if roster is not None:
            for name, key in zip(exchange.names, exchange.keys, strict=True):
                roster.check(name, secrets.run, setting.digest, key, signatures.get(name, b""))
        content = RecordDict({ABOUT: about({"client": silo.name, "exchange": str(JOINING)})})
        with _in_range("its rows"):
            numbers = joining.integers(*silo.sizes, silo.sums(), len(exchange.names))
        layout = joining.layout_of(int(setting.scaled.sum()))
        secrets.record_vouched(roster is not None)
        put_masked(content, secrets.mask(exchange, layout, digest(message.content), numbers))
        return content

    def handler(stage: Stage = "final", position: int | None = None) -> Work:
        """The work of a phase; without one, an evaluation and no more."""

        def work(message: Message, context: Context) -> RecordDict:
            silo, memory, asked = opened(message, context)
            job, number = silo.engine.job, int(asked["exchange"])
            # the job's phases: what leaves the silo has gone through the channel
            phase = None if position is None else job.phases(stage)[position]
            # whether replies are masked follows from the configuration that the silos agreed on, never from a message
            hidden = setting.secure and (phase is None or job.channel.is_hidden(phase))
            if setting.secure:
                everyone = phase is None or job.asked(stage) == job.task.num_clients
                if asked["evaluate"] and not (hidden and everyone):
                    raise BadMessage("would tell what only a sum over all silos may")
                _check_step(job, stage, position, int(asked["round"]), number, bool(asked["evaluate"]))
                secrets = secrets_of(context, str(asked["run"]))
            if hidden:
                members = job.everyone() if everyone else job.cohorts(int(asked["round"]))
                exchange = read_asking(message.content, secrets.run, number, len(members[0]))
                _check_known(secrets, exchange)
                _check_cohort(exchange, [job.federation.ids[k] for k in members[0]])
                secrets.check(exchange)
                states = read_states(message.content)
                if states.get(silo.name) != int(asked["from"]):
                    raise BadMessage("cannot be made: the others are told that this silo goes on from another exchange")
                secrets.check_states(int(asked["from"]), states.values())
            if setting.secure:
                secrets.record_message(number, digest(message.content))
                if phase is not None and asked["evaluate"]:  # so that the round before is not measured by itself, too
                    secrets.record_message(evaluation_number(int(asked["round"]) - 1), str(number).encode())
            trained_with = () if phase is None else phase.down
            down = silo.received(message, (*trained_with, *(job.method.predicts_with if asked["evaluate"] else ())))
            state = memory.recall(int(asked["from"]), job.method.init_client(job.task, job.initial[0]))
            content = RecordDict({ABOUT: about({"client": silo.name, "exchange": str(number)})})
            layouts, vectors = [], []
            scored = silo.evaluated(down, state) if asked["evaluate"] else None
            if phase is not None and position is not None:
                bounds, asked_with = silo.engine.bounds(stage, position), {name: down[name] for name in phase.down}
                reply, state = silo.work(phase, bounds, asked_with, state, int(asked["round"]), hidden)
                if hidden:
                    vector = Vector(message.metadata.message_type, reply, phase.places)
                    layouts.append(vector.layout)
                    vectors.append(vector.encode(job.asked(stage)))
                else:
                    content[FIELDS] = pack(reply, codecs(job.method))
            if scored is not None and hidden:
                silo.log(scored)
                layouts.append(evaluation.layout_of(job.task))
                with _in_range("its evaluation"):
                    vectors.append(evaluation.integers(scored, job.task, job.task.num_clients))
            elif scored is not None:
                content[EVALUATION] = evaluation.withheld(scored, silo.min_count)
            if hidden:
                numbers = np.concatenate(vectors)
                put_masked(content, secrets.mask(exchange, joined(layouts), digest(message.content), numbers))
            if phase is not None:
                memory.keep(number, state, {int(asked["from"]), int(asked["keep"])})
            return content

        return work

    app.query("introduce")(answering(introduce))
    app.query("unmask")(unmask)
    app.evaluate("counts")(answering(handler()))
    for stage, position, phase in exchanges(setting.method):
        app.train(action(stage, phase))(answering(handler(stage, position)))
    return app


@dataclass(eq=False)
class OpenSilo:
    """One silo's rows, ready to work on."""

    setting: Setting
    name: str
    place: int
    """Its position among the silos."""
    engine: Reference
    evaluator: Evaluator
    min_count: int
    """Counts of fewer rows are withheld."""

    @classmethod
    def open(cls, setting: Setting, name: str, file: Path, scaling: Scaling | None, min_count: int) -> OpenSilo:
        job = setting.job(setting.view(silo=name, file=file), scaling)
        tables = make_tables(job)
        return cls(setting, name, setting.silos.index(name), Reference(job, tables), Evaluator(job, tables), min_count)

    def _on_device(self, values: Any) -> Any:
        return tree.map(lambda leaf: leaf.to(self.engine.job.device), values)

    def received(self, message: Message, names: tuple[str, ...]) -> Record:
        """The server's fields of these names, with shapes and types as they are before the first round."""
        job = self.engine.job
        server = job.method.init(job.task, job.initial[0])
        try:
            expected = sent(job.method, server, self._like_validation(message), names)
            return unpack(message.content, FIELDS, expected, codecs(job.method))
        except BadMessage as error:
            raise ConfigError(f"the server's message {error}") from error

    def _like_validation(self, message: Message) -> Any:
        """Shapes and types of the server's validation rows, however many a message has of them; see `Data.of`."""
        arrays, tables = message.content.get(FIELDS), self.engine.tables
        found = arrays.get(f"{VALIDATION}.0") if isinstance(arrays, ArrayRecord) else None
        with distrusting():
            rows = 0 if found is None else int(found.shape[0])
            x = tables.features(torch.zeros(0, dtype=torch.int64, device=tables.x.device), 0)
            kinds = (x, tables.y, tables.s, torch.ones(0))
            return tuple(values.new_zeros(()).cpu().expand(rows, *values.shape[1:]) for values in kinds)

    @property
    def sizes(self) -> tuple[int, int]:
        """How many training and test rows it has."""
        fed = self.engine.job.runs[0].federation
        assert fed.client_test is not None
        return len(fed.train[self.place]), len(fed.client_test[self.place])

    def sums(self) -> np.ndarray:
        """Sums and sums of squares of its training rows, of the inputs that are standardised [2, d]."""
        fed = self.engine.job.runs[0].federation
        x = fed.rows.x[fed.train[self.place]][:, self.setting.scaled].astype(np.float64)
        return np.stack([x.sum(0), (x * x).sum(0)])

    def introduce(self) -> RecordDict:
        """How many rows it has, and the sums that standardisation needs, unless they are of too few rows."""
        rows, tests = self.sizes
        content = RecordDict({ABOUT: about({"client": self.name, "rows": rows, "test-rows": tests})})
        if self.setting.scaled.any() and rows >= self.min_count:
            total, squares = self.sums()
            content[FIELDS] = ArrayRecord({"sum": Array(total), "squares": Array(squares)})
        return content

    def show_key(self, secrets: Silo, context: Context) -> RecordDict:
        """Its key of this run and who vouches for it, and nothing of its rows."""
        file, public = context.node_config.get("key"), secrets.public
        said: dict[str, str | int | bytes] = {
            "client": self.name,
            "public": public,
            "signature": sign(Path(str(file)), secrets.run, self.setting.digest, public) if file else b"",
            # one that was added later has vouched for nobody
            "roster": int(_roster(context) is not None if secrets.vouched is None else secrets.vouched),
            "min-count": self.min_count,
        }
        return RecordDict({ABOUT: about(said)})

    def work(
        self, phase: Phase, bounds: Bounds, down: Record, state: Any, number: int, hidden: bool
    ) -> tuple[Record, Any]:
        """Its reply, and what it keeps. hidden: nobody may see the reply, nor a number of it that is out of bounds."""
        down = self._on_device(down)
        with torch.no_grad():
            reply, state = self.engine.work(phase, down, self._on_device(state), 0, self.place, number)
        check_reply(self.engine.job.method, phase, reply)
        if not is_finite(state):
            raise BadMessage("would leave NaN or Inf in what the silo remembers")
        _check_finite(reply)
        rows = int(self.engine.tables.sizes[0, self.place])
        wrong = bounds.find_problem(down, reply, rows)
        if wrong and hidden:
            field = bounds.find_impossible(down, reply, 1, rows)
            raise BadMessage(f"has {field} out of bounds (its own log says how far)") from BadMessage(wrong)
        if wrong:
            raise BadMessage(wrong)
        return reply, state

    def evaluated(self, down: Record, state: Any) -> Scored:
        """Counts on its own test rows."""
        server = self.engine.job.method.received(self._on_device(down))
        with torch.no_grad():
            scored = self.evaluator.own(server, self._on_device(state), self.place)
        if not (np.isfinite(scored.loss).all() and np.isfinite(scored.unknown_loss).all()):
            raise BadMessage("would have NaN or Inf in its evaluation: the model's predictions are no numbers")
        return scored

    def log(self, scored: Scored) -> None:
        """Its own figures, in its own log: where they are summed securely, nobody else has them."""
        metrics = [metric.name for metric in measured(self.engine.job.federation) if metric.overall]
        values = overall([{"test": scored}], shown(metrics, "table"))
        said = ", ".join(f"{name} {float(value[0]):.3f}" for name, value in values.items() if np.isfinite(value[0]))
        logging.getLogger("flwr").info("equifed: this silo's own test rows: %s", said or "none")


def _check_agreed(setting: Setting, context: Context) -> None:
    """The configuration comes with the app, from the server. The silo's operator says by its node what it must be."""
    hides = [key for key in ("secure", "key", "roster") if context.node_config.get(key)]
    if hides and not setting.secure:
        raise ConfigError(
            f"the node takes part in secure sums only ({hides[0]} in its --node-config), and the app's configuration "
            "has none: secure = true is missing in its section [run]."
        )
    agreed = context.node_config.get("app")
    if agreed is not None and agreed != setting.digest:
        raise ConfigError(
            "the app's configuration is not the one that the silo has agreed to (app in its --node-config). Compare "
            "federation.toml and schema.json; `equifed flower digest` prints what app must be."
        )


def _whose(setting: Setting, context: Context) -> tuple[str, Path]:
    """The silo that a node stands for, and its file."""
    name = context.node_config.get("client-id")
    if name is None:
        raise ConfigError('the node has no client-id: start it with --node-config \'client-id="..." data="..."\'.')
    if name not in setting.silos:
        raise unknown_name("client-id", name, setting.silos, key="client-id")
    file = context.node_config.get("data")
    return str(name), Path(str(file)) if file else setting.config.paths()[str(name)]


def _check_step(job: Job, stage: Stage, position: int | None, round: int, number: int, evaluate: bool) -> None:
    """An exchange's number stands for one phase of one round, or for one round's evaluation, as the run has them: a
    silo masks each of them for one sum only. Asked in other rounds, with others gone, it would tell one silo's part."""
    if not 0 <= round <= job.rounds:
        raise BadMessage("cannot be made: the run has no such round")
    ends = round > 0 and (round == job.rounds or job.method.may_converge)
    measured = round > 0 and round % job.settings.eval_every == 0
    # where everyone is in a round's first exchange, the model of the round before is measured with it
    along = job.asked("round") == job.task.num_clients and job.channel.is_hidden(job.phases("round")[0])
    if position is None:
        if number != evaluation_number(round) or not (ends or (measured and not along)):
            raise BadMessage("cannot be made: nothing is measured then")
        return
    positions = [p for p, phase in enumerate(job.phases(stage)) for _ in range(phase.repeat(job.task))]
    step = number - exchange_number(round, stage, 0)
    if not 0 <= step < len(positions) or positions[step] != position:
        raise BadMessage("cannot be made: the exchange has a number that belongs to another")
    if (round == 0) != (stage == "setup") or (stage == "final" and not ends):
        raise BadMessage("cannot be made: that round has no such exchange")
    before = round > 1 and (round - 1) % job.settings.eval_every == 0
    if evaluate and not (along and before and stage == "round" and step == 0):
        raise BadMessage("cannot be made: nothing is measured then")


def _check_cohort(exchange: Exchange, members: Sequence[str]) -> None:
    """Who takes part follows from the configuration, but for those who did not join: a server that could choose would
    put a silo among others that are in its pay. members: those who are to take part."""
    strangers = {*exchange.names} - {*members}
    if strangers:
        raise BadMessage(f"cannot be made: {quoted(min(strangers))} does not belong to the cohort")


def _check_known(secrets: Silo, exchange: Exchange) -> None:
    """Who takes part was there when the silos' rows were summed: their keys, and signatures, were looked at then."""
    strangers = {*exchange.names} - {secrets.name} - secrets.peers
    if strangers:
        raise BadMessage(f"cannot be made: {quoted(min(strangers))} was not there when the silos' rows were summed")


def _roster(context: Context) -> Roster | None:
    """Whose node has which key, as the silos have told each other; None where the server is taken at its word."""
    file = context.node_config.get("roster")
    return Roster.read(Path(str(file))) if file else None


@contextmanager
def _in_range(what: str) -> Iterator[None]:
    try:
        yield
    except OutOfRange as error:
        raise BadMessage(f"has {what} {error}") from error


def _min_count(context: Context) -> int:
    value = context.node_config.get("min-count", 0)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"the node's min-count must be a whole number, got {quoted(value)}.")
    return value


def _scaling(message: Message, inputs: int) -> Scaling | None:
    """What the server says that the inputs [d] are standardised by."""
    if SCALING not in message.content:
        return None
    like = {name: torch.zeros(inputs) for name in ("shift", "factor")}
    try:
        read = unpack(message.content, SCALING, like)
    except BadMessage as error:
        raise ConfigError(f"the server's message {error}") from error
    shift, factor = (read[name].numpy() for name in like)
    if not ((factor > 0) & (factor <= MAX_STANDARDISED) & (np.abs(shift) <= MAX_STANDARDISED)).all():
        raise ConfigError("the server's message standardises inputs by numbers that no rows have")
    return shift, factor


def _check_finite(reply: Record) -> None:
    """A silo sends no NaN, whatever the server's numbers made of its own."""
    for name, leaf in tree.to_named(reply).items():
        if not leaf.isfinite().all():
            raise BadMessage(f"would have NaN or Inf in {name}: training has run away (try a smaller learning rate)")
