"""Signals that end a program: SIGTERM and SIGHUP, of schedulers, containers and closed terminals, as Ctrl-C does."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType

ASKED = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""By which other programs ask this one to end; Windows has only the first."""
ENDING = (signal.SIGINT, *ASKED)
_heard: list[int] = []
"""The signal that is ending this program: what is waiting in a library may raise a KeyboardInterrupt of its own."""


class Stopped(KeyboardInterrupt):
    """A signal other than Ctrl-C's has asked this program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


def exit_code(stopped: KeyboardInterrupt) -> int:
    """Return what a shell says of a program that this signal has ended; 130 for Ctrl-C."""
    number = stopped.number if isinstance(stopped, Stopped) else next(iter(_heard), signal.SIGINT)
    return 128 + number


@contextlib.contextmanager
def ending_on_signals(numbers: Sequence[signal.Signals] = ENDING) -> Iterator[None]:
    """Let these signals end this program through its `with` statements, as Ctrl-C does, with their exit codes.

    The first signal counts: an impatient second one must not end the clean-up. What is ignored, as Ctrl-C is in the
    background and SIGHUP under nohup, stays ignored.
    """
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]

    def end(number: int, frame: FrameType | None) -> None:
        for ignored in heard:
            signal.signal(ignored, signal.SIG_IGN)
        _heard[:] = [number]
        raise KeyboardInterrupt if number == signal.SIGINT else Stopped(number)

    try:
        with handlers(dict.fromkeys(heard, end)):
            yield
    except Stopped as stopped:
        raise SystemExit(exit_code(stopped)) from None
    finally:
        _heard.clear()


@contextlib.contextmanager
def handlers(wanted: Mapping[signal.Signals, signal._HANDLER]) -> Iterator[None]:
    """Handle signals by these functions inside, and as before afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may, and only it gets signals
        return
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
