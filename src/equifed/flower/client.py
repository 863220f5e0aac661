"""The client app: what a silo's node does when the server asks. The silo's rows and memory stay where they are.

It is a federation in which only this silo has rows, and the reference engine's work for one client in it. Handlers are
made from the method's phases. Node config: `client-id`; `data`, its file; `state`, a folder for what it remembers;
`min-count`, if its own is to be higher than the federation's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from equifed import tree
from equifed.errors import ConfigError, DataError, EquifedError, RowError, unknown_name
from equifed.flower.agreement import Scaling, Setting, action, codecs, exchanges
from equifed.flower.evaluation import withheld
from equifed.flower.memory import Memory, exchange_number
from equifed.flower.records import (
    ABOUT,
    EVALUATION,
    FIELDS,
    SCALING,
    BadMessage,
    about,
    check_run,
    pack,
    read_about,
    unpack,
)
from equifed.protocol import Phase, Record, Stage
from equifed.simulator import Evaluator, Reference, finite, make_tables
from equifed.simulator.engine import check_reply
from equifed.store.environment import fingerprint

Work = Callable[[Message, Context], RecordDict]


def client_app(path: str | Path) -> ClientApp:
    """The app of every silo in the federation that this configuration describes. Where it cannot be read, say because
    the method's module is not installed at the silo, joining is refused with the reason."""
    try:
        return app_of(Setting.load(path))
    except EquifedError as error:
        reason = f"its app cannot be loaded: {error.text or error}"

    app = ClientApp()

    @app.query("join")
    @_answering
    def refuse(message: Message, context: Context) -> RecordDict:
        raise ConfigError(reason)

    return app


def app_of(setting: Setting) -> ClientApp:
    silos: dict[Any, OpenSilo] = {}
    app = ClientApp()

    def silo(context: Context, scaling: Scaling | None) -> OpenSilo:
        """Opened once for the messages of one process."""
        name, file = _whose(setting, context)
        key = (name, file, file.stat().st_mtime_ns if file.exists() else 0, scaling and scaling[0].tobytes())
        if key not in silos:
            silos[key] = OpenSilo.open(setting, name, file, scaling)
        return silos[key]

    @app.query("join")
    @_answering
    def join(message: Message, context: Context) -> RecordDict:
        asked = read_about(message.content)
        _same_app(setting, asked)
        opened = silo(context, None)
        return opened.introduce(opened.memory(context, asked), _min_count(context))

    @app.evaluate("counts")
    @_answering
    def evaluate(message: Message, context: Context) -> RecordDict:
        opened = silo(context, _scaling(message))
        asked = read_about(message.content)
        down = opened.received(message, opened.model_fields())
        state = opened.memory(context, asked).recall(int(asked["from"]), opened.blank)
        return RecordDict({ABOUT: opened.answer(asked), EVALUATION: opened.evaluated(down, state, _min_count(context))})

    def handler(stage: Stage, position: int, phase: Phase) -> Work:
        def work(message: Message, context: Context) -> RecordDict:
            opened = silo(context, _scaling(message))
            asked = read_about(message.content)
            expected = opened.fields(phase.down) | (opened.model_fields() if asked["evaluate"] else {})
            down = opened.received(message, expected)
            memory = opened.memory(context, asked)
            state = memory.recall(int(asked["from"]), opened.blank)
            content = RecordDict({ABOUT: opened.answer(asked)})
            if asked["evaluate"]:
                content[EVALUATION] = opened.evaluated(down, state, _min_count(context))
            number = int(asked["round"])
            through = opened.engine.job.phases(stage)[position]  # what leaves the silo has gone through the channel
            reply, state = opened.work(through, {name: down[name] for name in phase.down}, state, number)
            content[FIELDS] = pack(reply, codecs(setting.config.method))
            memory.keep(exchange_number(number, stage, position), state, {int(asked["from"]), int(asked["keep"])})
            return content

        return work

    for stage, position, phase in exchanges(setting.config.method):
        app.train(action(stage, phase))(_answering(handler(stage, position, phase)))
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

    @classmethod
    def open(cls, setting: Setting, name: str, file: Path, scaling: Scaling | None) -> OpenSilo:
        job = setting.job(setting.view(silo=name, file=file), scaling)
        tables = make_tables(job)
        engine = Reference(job, tables)
        return cls(setting, name, setting.silos.index(name), engine, Evaluator(job, tables))

    @property
    def blank(self) -> Any:
        """The state of a client that has done nothing yet."""
        job = self.engine.job
        return job.method.init_client(job.task, job.initial[0])

    def fields(self, names: tuple[str, ...]) -> Record:
        """The server's fields as they are before the first round: what their names, shapes and types must be."""
        job = self.engine.job
        return job.method.sent(job.method.init(job.task, job.initial[0]), names)

    def model_fields(self) -> Record:
        return self.fields(self.engine.job.method.predicts_with)

    def _here(self, values: Any) -> Any:
        """On this silo's own device."""
        return tree.map(lambda leaf: leaf.to(self.engine.job.device), values)

    def received(self, message: Message, expected: Record) -> Record:
        try:
            return unpack(message.content, FIELDS, expected, codecs(self.setting.config.method))
        except BadMessage as error:
            raise ConfigError(f"the server's message {error}") from error

    def memory(self, context: Context, asked: dict[str, Any]) -> Memory:
        folder = context.node_config.get("state")
        return Memory(context, Path(str(folder)) / check_run(str(asked["run"])) / self.name if folder else None)

    def answer(self, asked: dict[str, Any]) -> Any:
        return about({"client": self.name, "exchange": str(asked["exchange"])})

    def introduce(self, memory: Memory, min_count: int) -> RecordDict:
        """How many rows it has, and the sums that standardisation needs, unless they are of too few rows."""
        fed = self.engine.job.runs[0].federation
        assert fed.client_test is not None
        train, test = fed.train[self.place], fed.client_test[self.place]
        if not memory.know_again(fingerprint([fed])):
            raise BadMessage("cannot be made: its file has other rows than when the run began. Put them back")
        content = RecordDict({ABOUT: about({"client": self.name, "rows": len(train), "test-rows": len(test)})})
        scaled = self.setting.scaled
        if scaled.any() and len(train) >= max(min_count, self.setting.flower.min_count):
            x = fed.rows.x[train][:, scaled].astype(np.float64)
            content[FIELDS] = ArrayRecord({"sum": Array(x.sum(0)), "squares": Array((x * x).sum(0))})
        return content

    def work(self, phase: Phase, down: Record, state: Any, number: int) -> tuple[Record, Any]:
        with torch.no_grad():
            reply, state = self.engine.work(phase, self._here(down), self._here(state), 0, self.place, number)
        if not finite(state):
            raise BadMessage("would leave NaN or Inf in what the silo remembers")
        check_reply(self.engine.job.method, phase, reply)
        return reply, state

    def evaluated(self, down: Record, state: Any, min_count: int) -> ArrayRecord:
        """Counts on its own test rows, small ones withheld."""
        with torch.no_grad():
            scored = self.evaluator.own(
                self.engine.job.method.received(self._here(down)), self._here(state), self.place
            )
        return withheld(scored, max(min_count, self.setting.flower.min_count))


def _answering(work: Work) -> Callable[[Message, Context], Message]:
    """A message's answer, also when the work fails: the silo's own log gets all of it, the server no value of a row."""

    def handle(message: Message, context: Context) -> Message:
        try:
            content = work(message, context)
        except Exception as error:
            logging.getLogger("flwr").error("equifed could not answer.", exc_info=error)
            name = str(context.node_config.get("client-id", ""))
            content = RecordDict({ABOUT: about({"client": name, "refused": _disclosed(error)})})
        return Message(content, reply_to=message)

    return handle


def _disclosed(error: Exception) -> str:
    """What the server may learn of an error."""
    if isinstance(error, RowError):
        return f"its file does not fit the schema: {error.place} (its own log says why)"
    if isinstance(error, DataError):
        return "its file cannot be used (its own log says why)"
    if isinstance(error, ConfigError):
        return str(error)
    if isinstance(error, BadMessage):
        return f"its reply {error}"
    return f"its work failed with {type(error).__name__} (its own log says why)"


def _whose(setting: Setting, context: Context) -> tuple[str, Path]:
    """The silo that a node stands for, and its file."""
    name = context.node_config.get("client-id")
    if name is None:
        raise ConfigError('the node has no client-id: start it with --node-config \'client-id="..." data="..."\'.')
    if name not in setting.silos:
        raise unknown_name("client-id", name, setting.silos, key="client-id")
    file = context.node_config.get("data")
    return str(name), Path(str(file)) if file else setting.config.paths()[str(name)]


def _min_count(context: Context) -> int:
    value = context.node_config.get("min-count", 0)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"the node's min-count must be a whole number, got {value!r}.")
    return value


def _same_app(setting: Setting, asked: dict[str, Any]) -> None:
    if asked["app"] != setting.digest:
        raise ConfigError(
            "its app has another configuration, schema or version of equifed than the server's: install the same "
            "version everywhere."
        )


def _scaling(message: Message) -> Scaling | None:
    record = message.content.get(SCALING)
    if not isinstance(record, ArrayRecord):
        return None
    return record["shift"].numpy(), record["factor"].numpy()
