"""Signals that end a program as Ctrl-C does: SIGTERM and SIGHUP, from schedulers, containers and closed terminals."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType

ASKED = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals by which other programs end this one; Windows has only SIGTERM."""
ENDING = (signal.SIGINT, *ASKED)
"""All signals that end this program."""
_received: list[int] = []
"""The signal that is ending this program. A waiting library call may raise a plain KeyboardInterrupt instead."""


class Stopped(KeyboardInterrupt):
    """A signal other than that of Ctrl-C, which ends this program."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


def exit_code(stopped: KeyboardInterrupt) -> int:
    """Return the exit code of a program ended by this signal; 130 for Ctrl-C."""
    number = stopped.number if isinstance(stopped, Stopped) else next(iter(_received), signal.SIGINT)
    return 128 + number


@contextlib.contextmanager
def end_on_signals(numbers: Sequence[signal.Signals] = ENDING) -> Iterator[None]:
    """Let these signals end this program through its `with` statements, as Ctrl-C does, with their exit codes.

    Only the first signal counts: an impatient second one must not interrupt the clean-up. Ignored signals, such as
    Ctrl-C in the background and SIGHUP under nohup, stay ignored.
    """
    handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]

    def end(number: int, frame: FrameType | None) -> None:
        for ignored in handled:
            signal.signal(ignored, signal.SIG_IGN)
        _received[:] = [number]
        raise KeyboardInterrupt if number == signal.SIGINT else Stopped(number)

    try:
        with set_handlers(dict.fromkeys(handled, end)):
            yield
    except Stopped as stopped:
        raise SystemExit(exit_code(stopped)) from None
    finally:
        _received.clear()


@contextlib.contextmanager
def set_handlers(wanted: Mapping[signal.Signals, signal._HANDLER]) -> Iterator[None]:
    """Handle signals with these functions inside, and restore the previous handlers afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can set handlers, and only it gets signals
        return
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
