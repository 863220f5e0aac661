"""What Flower starts on every machine. An app loads what its work needs when it is asked to do it.

Flower starts a process for every message to a silo. To help take the masks off a sum needs neither rows nor torch,
whose import would take most of its time.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from equifed.flower.answers import answering
from equifed.flower.masks import SECURE, read_unmasking, secrets_of, telling
from equifed.flower.records import ABOUT, about, read_about

UNMASK = "query.unmask"


def server_app(path: str | Path) -> ServerApp:
    """The server of the federation that this configuration describes."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        from equifed.flower.server import carry_out

        carry_out(path, grid, context)

    return app


def client_app(path: str | Path) -> ClientApp:
    """The app of every silo in the federation that this configuration describes."""
    return DeferredApp(path)


class DeferredApp(ClientApp):
    """An app that answers one message itself and loads the rest of its code when another comes."""

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self._path = path

    @cached_property
    def whole(self) -> ClientApp:
        """What answers all other messages."""
        from equifed.flower.silo import load_app

        return load_app(self._path)

    def __call__(self, message: Message, context: Context) -> Message:
        if message.metadata.message_type == UNMASK:
            return unmask(message, context)
        return self.whole(message, context)


@answering
def unmask(message: Message, context: Context) -> RecordDict:
    """A silo's part in taking the masks off a sum; its state folder says what it may tell."""
    asked = read_about(message.content)
    secrets = secrets_of(context, str(asked["run"]))
    told = secrets.tell(*read_unmasking(message.content))
    said = about({"client": secrets.name, "exchange": str(asked["exchange"])})
    return RecordDict({ABOUT: said, SECURE: telling(told)})
