"""The client app: what a silo's node does when the server asks. The silo's rows and memory stay where they are.

It is a federation in which only this silo has rows, and the reference engine's work for one client in it. Handlers are
made from the method's phases. Node config: `client-id`; `data`, its file; `state`, a folder for what it remembers;
`min-count`, if its own is to be higher than the federation's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from equifed import tree
from equifed.bounds import Bounds, finite
from equifed.data.encode import MAX_STANDARDISED
from equifed.errors import ConfigError, EquifedError, unknown_name
from equifed.flower.agreement import Scaling, Setting, action, codecs, exchanges
from equifed.flower.answers import Work, answering, without_paths
from equifed.flower.apps import unmask
from equifed.flower.evaluation import withheld
from equifed.flower.masks import digest, put_masked, read_asking, secrets_of, state_folder
from equifed.flower.memory import Memory, exchange_number
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
from equifed.protocol import VALIDATION, Phase, Record, Stage
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
        asked = read_about(message.content)
        name, file = _whose(setting, context)
        scaling, min_count = _scaling(message, len(setting.scaled)), max(_min_count(context), setting.flower.min_count)
        changed = file.stat().st_mtime_ns if file.exists() else 0
        key = (name, file, changed, scaling and scaling[0].tobytes(), min_count)
        if key not in silos:
            for other in [other for other in silos if other[0] == name]:
                del silos[other]  # the rows are read once more, not kept once more
            silos[key] = OpenSilo.open(setting, name, file, scaling, min_count)
        return silos[key], Memory(context, state_folder(context, str(asked["run"]))), asked

    @app.query("join")
    @answering
    def join(message: Message, context: Context) -> RecordDict:
        if read_about(message.content)["app"] != setting.digest:
            raise ConfigError(
                "its app has another configuration, schema or version of equifed than the server's: install the same "
                "version everywhere."
            )
        silo, memory, asked = opened(message, context)
        secrets = secrets_of(context, str(asked["run"])) if setting.secure else None
        return silo.introduce(memory, {} if secrets is None else {"public": secrets.public})

    def handler(stage: Stage = "final", position: int | None = None) -> Work:
        """The work of a phase; without one, an evaluation and no more."""

        def work(message: Message, context: Context) -> RecordDict:
            silo, memory, asked = opened(message, context)
            job, number = silo.engine.job, int(asked["exchange"])
            # the job's phases: what leaves the silo has gone through the channel
            phase = None if position is None else job.phases(stage)[position]
            hidden = phase is not None and job.channel.hides(phase)
            # whether replies are masked follows from the configuration that the silos agreed on, never from a message
            if setting.secure and asked["evaluate"]:
                raise BadMessage("would tell what only a sum may")
            if hidden:
                _check_step(job, stage, position, int(asked["round"]), number)
                secrets = secrets_of(context, str(asked["run"]))
                exchange = read_asking(message.content, secrets.run, number)
                secrets.check(exchange)
            trained_with = () if phase is None else phase.down
            down = silo.received(message, (*trained_with, *(job.method.predicts_with if asked["evaluate"] else ())))
            state = memory.recall(int(asked["from"]), job.method.init_client(job.task, job.initial[0]))
            content = RecordDict({ABOUT: about({"client": silo.name, "exchange": str(number)})})
            if asked["evaluate"]:
                content[EVALUATION] = silo.evaluated(down, state)
            if phase is not None and position is not None:
                bounds, asked_with = silo.engine.bounds(stage, position), {name: down[name] for name in phase.down}
                reply, state = silo.work(phase, bounds, asked_with, state, int(asked["round"]))
                if hidden:
                    vector = Vector(message.metadata.message_type, reply, phase.places)
                    integers = vector.encode(job.asked(stage))
                    put_masked(content, secrets.mask(exchange, vector.layout, digest(message.content), integers))
                else:
                    content[FIELDS] = pack(reply, codecs(job.method))
                memory.keep(number, state, {int(asked["from"]), int(asked["keep"])})
            return content

        return work

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

    def introduce(self, memory: Memory, more: Mapping[str, bytes]) -> RecordDict:
        """How many rows it has, and the sums that standardisation needs, unless they are of too few rows; and `more`
        that it says of itself."""
        fed = self.engine.job.runs[0].federation
        assert fed.client_test is not None
        train, test = fed.train[self.place], fed.client_test[self.place]
        if not memory.know_again(fingerprint([fed])):
            raise BadMessage("cannot be made: its file has other rows than when the run began. Put them back")
        content = RecordDict({ABOUT: about({"client": self.name, "rows": len(train), "test-rows": len(test), **more})})
        scaled = self.setting.scaled
        if scaled.any() and len(train) >= self.min_count:
            x = fed.rows.x[train][:, scaled].astype(np.float64)
            content[FIELDS] = ArrayRecord({"sum": Array(x.sum(0)), "squares": Array((x * x).sum(0))})
        return content

    def work(self, phase: Phase, bounds: Bounds, down: Record, state: Any, number: int) -> tuple[Record, Any]:
        down = self._on_device(down)
        with torch.no_grad():
            reply, state = self.engine.work(phase, down, self._on_device(state), 0, self.place, number)
        check_reply(self.engine.job.method, phase, reply)
        if not finite(state):
            raise BadMessage("would leave NaN or Inf in what the silo remembers")
        _check_finite(reply)
        wrong = bounds.problem(down, reply, int(self.engine.tables.sizes[0, self.place]))
        if wrong:
            raise BadMessage(wrong)
        return reply, state

    def evaluated(self, down: Record, state: Any) -> ArrayRecord:
        """Counts on its own test rows, small ones withheld."""
        server = self.engine.job.method.received(self._on_device(down))
        with torch.no_grad():
            scored = self.evaluator.own(server, self._on_device(state), self.place)
        if not (np.isfinite(scored.loss).all() and np.isfinite(scored.unknown_loss).all()):
            raise BadMessage("would have NaN or Inf in its evaluation: the model's predictions are no numbers")
        return withheld(scored, self.min_count)


def _whose(setting: Setting, context: Context) -> tuple[str, Path]:
    """The silo that a node stands for, and its file."""
    name = context.node_config.get("client-id")
    if name is None:
        raise ConfigError('the node has no client-id: start it with --node-config \'client-id="..." data="..."\'.')
    if name not in setting.silos:
        raise unknown_name("client-id", name, setting.silos, key="client-id")
    file = context.node_config.get("data")
    return str(name), Path(str(file)) if file else setting.config.paths()[str(name)]


def _check_step(job: Job, stage: Stage, position: int | None, round: int, number: int) -> None:
    """An exchange's number stands for one phase of one round: a silo masks each of them for one sum only."""
    positions = [p for p, phase in enumerate(job.phases(stage)) for _ in range(phase.repeat(job.task))]
    step = number - exchange_number(round, stage, 0)
    if not 0 <= step < len(positions) or positions[step] != position:
        raise BadMessage("cannot be made: the exchange has a number that belongs to another")


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
    for name, leaf in tree.named(reply).items():
        if not leaf.isfinite().all():
            raise BadMessage(f"would have NaN or Inf in {name}: training has run away (try a smaller learning rate)")
