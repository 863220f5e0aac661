"""The apps that Flower starts on every machine. They import what a message needs only when it arrives.

Flower starts a process for every message to a silo. Unmasking a sum needs neither rows nor torch, and importing torch
would take most of the time.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from equifed.flower.answers import answering
from equifed.flower.masks import SECURE, pack_answer, read_unmasking, secrets_of
from equifed.flower.records import ABOUT, about, read_about

UNMASK = "query.unmask"


def server_app(path: str | Path) -> ServerApp:
    """Return the server app of the federation described by a configuration file."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        from equifed.flower.server import carry_out

        carry_out(path, grid, context)

    return app


def client_app(path: str | Path) -> ClientApp:
    """Return the app of every silo in the federation described by a configuration file."""
    return DeferredApp(path)


class DeferredApp(ClientApp):
    """An app that answers unmasking requests itself and imports the full app for all other messages."""

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self._path = path

    @cached_property
    def whole(self) -> ClientApp:
        """The full app, which answers all other messages."""
        from equifed.flower.silo import load_app

        return load_app(self._path)

    def __call__(self, message: Message, context: Context) -> Message:
        if message.metadata.message_type == UNMASK:
            return unmask(message, context)
        return self.whole(message, context)


@answering
def unmask(message: Message, context: Context) -> RecordDict:
    """Answer with this silo's part in unmasking a sum; the records in its state folder decide what it may disclose."""
    asked = read_about(message.content)
    secrets = secrets_of(context, str(asked["run"]))
    answer = secrets.unmask(*read_unmasking(message.content))
    head = about({"client": secrets.name, "exchange": str(asked["exchange"])})
    return RecordDict({ABOUT: head, SECURE: pack_answer(answer)})
