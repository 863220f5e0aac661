"""A silo's answers, also where its work fails: its own log gets all of it, the server no value of a row and no path."""

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
    """A message's answer, also when the work fails: the silo's own log gets all of it, the server no value of a row."""

    def handle(message: Message, context: Context) -> Message:
        try:
            content = work(message, context)
        except Exception as error:
            logging.getLogger("flwr").error("equifed could not answer.\n%s", traceback_of(error))
            name = str(context.node_config.get("client-id", ""))
            content = RecordDict({ABOUT: about({"client": clean(name), "refused": clean(_disclosed(error))})})
        return Message(content, reply_to=message)

    return handle


def _disclosed(error: Exception) -> str:
    """What the server may learn of an error."""
    if isinstance(error, RowError):
        return f"its file does not fit the schema: {error.place} (its own log says why)"
    if isinstance(error, DataError):
        return "its file cannot be used (its own log says why)"
    if isinstance(error, ConfigError):
        return without_paths(error)
    if isinstance(error, BadMessage | Refused):
        return f"its reply {error}"
    return f"its work failed with {type(error).__name__} (its own log says why)"


def without_paths(error: EquifedError) -> str:
    """An error as the server may read it: where files lie at a silo is nobody else's business."""
    text = error.text
    if isinstance(error.__cause__, ModuleNotFoundError):
        text = f"{error.value!r} needs the module {error.__cause__.name}, which is not installed there"
    elif "/" in text or "\\" in text:
        text = "cannot be used there (its own log says why)"
    return ": ".join(filter(None, (error.where, text)))
