"""The client app: a silo's answer to each of the server's messages.

A phase of the method is answered in four steps: check the request, work on the silo's rows, make the answer, plain or
masked, and store the silo's state.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from equifed.errors import ConfigError, EquifedError, RowError, unknown_name
from equifed.flower.agreement import Setting, action, exchanges
from equifed.flower.answers import answering, without_paths
from equifed.flower.apps import unmask
from equifed.flower.masks import state_folder
from equifed.flower.memory import Memory
from equifed.flower.records import ABOUT, about, read_about
from equifed.flower.silo import checks, masked, plain
from equifed.flower.silo.checks import Request
from equifed.flower.silo.rows import OpenSilo, read_scaling
from equifed.protocol import Stage
from equifed.words import quoted


def load_app(path: str | Path) -> ClientApp:
    """Return the app of every silo in the federation described by a configuration file. If the file cannot be read, for
    example because the method's module is not installed at the silo, the app refuses to join with the reason."""
    try:
        return SiloApp(Setting.load(path))
    except EquifedError as error:
        failure = error

    app = ClientApp()

    @app.query("join")
    @answering
    def refuse(message: Message, context: Context) -> RecordDict:
        raise ConfigError(f"its app cannot be loaded: {without_paths(failure)}") from failure

    return app


class SiloApp(ClientApp):
    """The app of every silo in a federation of this setting."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.setting = setting
        self._silos: dict[Any, OpenSilo] = {}
        self.query("join")(answering(self._join))
        self.query("introduce")(answering(self._introduce))
        self.query("unmask")(unmask)
        for stage, position, phase in exchanges(setting.method):
            self.train(action(stage, phase))(answering(partial(self._work, stage=stage, position=position)))
        self.evaluate("counts")(answering(self._work))

    # -- the answers ---------------------------------------------------------------------------------------------------

    def _join(self, message: Message, context: Context) -> RecordDict:
        """Answer with the silo's name, sizes and sums, or with secure sums only with its name and key."""
        checks.check_same_app(self.setting, message)
        request = self._read(message, context)
        checks.check_same_rows(request)
        return masked.show_key(request) if self.setting.secure else plain.introduce(request.silo)

    def _introduce(self, message: Message, context: Context) -> RecordDict:
        """Answer with the silo's number of rows and their sums, masked."""
        request = self._read(message, context)
        return masked.introduce(request, checks.check_joining(request))

    def _work(
        self, message: Message, context: Context, stage: Stage = "final", position: int | None = None
    ) -> RecordDict:
        """Carry out a phase, evaluate, or both, as requested; without a position, only evaluate."""
        request = self._read(message, context, stage, position)
        silo, phase = request.silo, request.phase
        masking = checks.check_exchange(request) if self.setting.secure else None
        content = RecordDict({ABOUT: about({"client": silo.name, "exchange": str(request.number)})})
        predicts_with = silo.job.method.predicts_with if request.evaluates else ()
        down = silo.received(message, (*(phase.down if phase else ()), *predicts_with))
        state = request.memory.recall(request.origin, silo.before_first)
        scored = silo.evaluated(down, state) if request.evaluates else None
        reply = None
        if position is not None:
            reply, state = silo.work(stage, position, down, state, request.round, hidden=masking is not None)
        if masking is None:
            plain.put_reply(content, silo, reply, scored)
        else:
            masked.put_reply(content, request, masking, reply, scored)
        if phase is not None:
            request.memory.keep(request.number, state, {request.origin, request.kept})
        return content

    # -- requests ------------------------------------------------------------------------------------------------------

    def _read(self, message: Message, context: Context, stage: Stage = "final", position: int | None = None) -> Request:
        checks.check_agreed(self.setting, context)
        asked = read_about(message.content)
        silo = self._open(message, context)
        memory = Memory(context, state_folder(context, str(asked["run"])))
        return Request(message, context, asked, silo, memory, stage, position)

    def _open(self, message: Message, context: Context) -> OpenSilo:
        """Return the silo with its rows, which are read once for all messages of a process."""
        setting = self.setting
        name, file = _name_and_file(setting, context)
        scaling = read_scaling(message, len(setting.scaled))
        min_count = max(_min_count(context), setting.flower.min_count)
        changed = file.stat().st_mtime_ns if file.exists() else 0
        key = (name, file, changed, scaling and scaling[0].tobytes(), min_count)
        if key not in self._silos:
            for other in [other for other in self._silos if other[0] == name]:
                del self._silos[other]  # keep only one copy of the rows in memory
            try:
                self._silos[key] = OpenSilo.open(setting, name, file, scaling, min_count)
            except RowError as error:
                if not setting.secure:
                    raise
                raise RowError(error.text, column=error.column) from error  # a row's number would disclose their number
        return self._silos[key]


def _name_and_file(setting: Setting, context: Context) -> tuple[str, Path]:
    """Return the silo that the node stands for, and its file."""
    name = context.node_config.get("client-id")
    if name is None:
        raise ConfigError('the node has no client-id: start it with --node-config \'client-id="..." data="..."\'.')
    if name not in setting.silos:
        raise unknown_name("client-id", name, setting.silos, key="client-id")
    file = context.node_config.get("data")
    return str(name), Path(str(file)) if file else setting.config.paths()[str(name)]


def _min_count(context: Context) -> int:
    """Return the number of rows below which the silo itself withholds counts; default: 0."""
    value = context.node_config.get("min-count", 0)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"the node's min-count must be a whole number, got {quoted(value)}.")
    return value
