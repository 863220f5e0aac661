"""The command line. Modules that need torch are imported inside the commands, so that help is quick."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """The entry point `equifed`."""
    import io
    import sys

    from equifed.signals import ASKED, end_on_signals, exit_code

    if isinstance(sys.stdout, io.TextIOWrapper):  # letters that the terminal lacks are shown as escapes, as on stderr
        sys.stdout.reconfigure(errors="backslashreplace")
    with end_on_signals(ASKED):
        try:
            from equifed.cli.app import app

            app(prog_name="equifed")
        except KeyboardInterrupt as stopped:  # outside of any command: while importing or reading the arguments
            sys.exit(exit_code(stopped))
