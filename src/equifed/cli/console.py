"""How the command line speaks: data to stdout, everything else to stderr, mistakes without a traceback."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import shlex
import sys
import traceback
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import typer
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from equifed.errors import EquifedError, EquifedWarning, UntrustedName
from equifed.signals import exit_code
from equifed.words import clean

T = TypeVar("T")
WIDE = 160
"""Width of tables that go to a file or a pipe, where no terminal says how wide it is."""
NO_MEMORY = "There is not enough memory for this. Try fewer seeds, clients or settings at once, or a smaller model."


class _Console(Console):
    """Prints text as it is: names come from files and data, and may look like markup or hold control characters."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would end the process; who prints decides what it means

    def render_str(self, text: str, **more: Any) -> Text:
        return super().render_str("".join(map(_visible, text)), **more)


def _visible(character: str) -> str:
    control = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character not in "\n\t"
    return repr(character)[1:-1] if control else character


def out(stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else WIDE
    return _Console(stderr=stderr, width=width, highlight=False, soft_wrap=False, markup=False, emoji=False)


_refreshed: list[Console] = []
"""Whose last lines are written again and again: words have to go above them."""


def err() -> Console:
    return _refreshed[-1] if _refreshed else out(stderr=True)


@contextlib.contextmanager
def refreshing(display: Live) -> Iterator[None]:
    """While it is shown, words to stderr go above it."""
    _refreshed.append(display.console)
    try:
        with display:
            yield
    finally:
        _refreshed.remove(display.console)


def show(*parts: RenderableType) -> None:
    """Print for people, to stdout."""
    console = out()
    for part in parts:
        console.print(part)


def say(text: str) -> None:
    """Print beside the data, to stderr; a reader that has gone away, or a terminal that was closed, must not end a
    run."""
    with contextlib.suppress(OSError):
        err().print(text, soft_wrap=True)


def print_json(value: Any) -> None:
    """The only thing on stdout with --json. NaN and infinities, which JSON lacks, become null."""
    from equifed.files import plain

    strict = json.loads(json.dumps(value, default=plain), parse_constant=lambda name: None)
    sys.stdout.write(json.dumps(strict, indent=2) + "\n")


def near(path: Path) -> str:
    """The path as one would type it from here."""
    try:
        relative = os.path.relpath(path)
    except ValueError:
        return str(path)
    return relative if not relative.startswith("..") else str(path)


def name_of(run: Path) -> str:
    """What to call a run's folder in a command: its id where that is enough."""
    from equifed.store import Store

    return run.name if run.parent.resolve() == Store().root.resolve() else near(run)


def guarded(function: Callable[..., None]) -> Callable[..., None]:
    """Turn a command's exceptions into a line on stderr and an exit code."""

    @functools.wraps(function)
    def call(*args: Any, **values: Any) -> None:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning
                function(*args, **values)
            sys.stdout.flush()
        except typer.Exit:
            raise
        except BrokenPipeError:  # the reader has seen enough (`| head`)
            # what is still buffered is discarded, instead of failing when Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except EquifedError as error:
            traceback_if_wanted()
            say(f"Error: {error}")
            if "trust" in inspect.signature(function).parameters and (again := _trusting(error)):
                say(f"To trust: {again}")
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt as stopped:
            say("Interrupted.")
            raise typer.Exit(exit_code(stopped)) from None
        except OSError as error:
            traceback_if_wanted()
            say(f"Error: {clean(': '.join(str(part) for part in (error.filename, error.strerror or error) if part))}")
            raise typer.Exit(4) from None
        except Exception as error:
            traceback_if_wanted()
            if _out_of_memory(error):
                say(f"Error: {NO_MEMORY}")
            else:
                say(f"Error: {type(error).__name__}: {clean(error)} (run with EQUIFED_DEBUG=1 for the traceback)")
            raise typer.Exit(4) from None

    return call


def _trusting(error: EquifedError) -> str:
    """The same command with every module trusted that a file has asked for; empty where none has."""
    asked = [each for each in (error, *error.problems) if isinstance(each, UntrustedName)]
    modules = dict.fromkeys(str(each.value).partition(":")[0] for each in asked)
    given = sys.argv[1:]
    end = given.index("--") if "--" in given else len(given)  # what follows it is no option
    options = [f"--trust={module}" for module in modules]
    return shlex.join(["equifed", *given[:end], *options, *given[end:]]) if modules else ""


def _out_of_memory(error: Exception) -> bool:
    """As Python, NumPy and torch say it."""
    said = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in said or "allocate memory" in said


def traceback_if_wanted() -> None:
    if os.environ.get("EQUIFED_DEBUG"):
        traceback.print_exc()


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    if issubclass(category, EquifedWarning) or os.environ.get("EQUIFED_DEBUG"):
        say(f"Warning: {message}")
