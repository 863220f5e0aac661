"""A silo's answers, also if its work fails: its log has the full error; the server gets no row value and no path."""

from __future__ import annotations

import logging
from collections.abc import Callable

from flwr.app import Context, Message, RecordDict

from equifed.errors import ConfigError, DataError, EquifedError, RowError
from equifed.flower.records import ABOUT, BadMessage, about
from equifed.secure import Refused
from equifed.words import clean, traceback_of

Work = Callable[[Message, Context], RecordDict]


def answering(work: Work) -> Callable[[Message, Context], Message]:
    """Wrap `work` so that an error is logged in full at the silo and answered without row values or paths."""

    def handle(message: Message, context: Context) -> Message:
        try:
            content = work(message, context)
        except Exception as error:
            logging.getLogger("flwr").error("equifed could not answer.\n%s", traceback_of(error))
            name = str(context.node_config.get("client-id", ""))
            content = RecordDict({ABOUT: about({"client": clean(name), "refused": clean(_describe_for_server(error))})})
        return Message(content, reply_to=message)

    return handle


def _describe_for_server(error: Exception) -> str:
    """Return what may be disclosed of an error to the server."""
    if isinstance(error, RowError):
        return f"its file does not fit the schema: {error.place} (see the silo's log)"
    if isinstance(error, DataError):
        return "its file cannot be used (see the silo's log)"
    if isinstance(error, ConfigError):
        return without_paths(error)
    if isinstance(error, BadMessage | Refused):
        return f"its reply {error}"
    return f"its work failed with {type(error).__name__} (see the silo's log)"


def without_paths(error: EquifedError) -> str:
    """Return an error's text for the server, without the silo's file paths."""
    text = error.text
    if isinstance(error.__cause__, ModuleNotFoundError):
        text = f"{error.value!r} needs the module {error.__cause__.name}, which is not installed at the silo"
    elif "/" in text or "\\" in text:
        text = "cannot be used at the silo (see the silo's log)"
    return ": ".join(filter(None, (error.where, text)))
