"""Commands of other packages: `equifed NAME` for every entry point of `equifed.commands` of an installed package."""

from __future__ import annotations

import inspect
from typing import Any, Never

import click
import typer
from typer.core import TyperCommand, TyperGroup

from equifed.cli.console import guarded
from equifed.cli.options import command
from equifed.errors import ConfigError
from equifed.registry import Registry

COMMANDS: Registry[Any] = Registry(
    "command",
    "equifed.commands",
    {},
    lambda thing: inspect.isfunction(thing) or isinstance(thing, typer.Typer),
    "a function with the parameters of a command, or a typer.Typer with commands",
)
SEPARATE = dict.fromkeys(("reproduce", "benchmark"), "equifed-papers")
"""Commands of equifed's own packages that are installed separately, which are named where they are not."""


class Commands(TyperGroup):
    """The built-in commands; those of other packages are imported only where one of them, or all, are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        self._add_others()
        return super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands:
            self._add_others()
        return super().get_command(ctx, cmd_name)

    def _add_others(self) -> None:
        """Built-in names cannot be taken over."""
        for name in COMMANDS:
            if name not in self.commands:
                self.commands[name] = _command_of(name)
        for name, package in SEPARATE.items():
            if name not in self.commands:
                error = ConfigError(
                    f"`equifed {name}` comes with {package}, which is not installed here. Install {package}: "
                    "pip install ./papers, in a checkout of equifed."
                )
                self.commands[name] = _refusing(name, error, hidden=True)


def _command_of(name: str) -> click.Command:
    """Import a command; one that cannot be used says so when it is called, and leaves all others as they are."""
    group = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    try:
        thing = COMMANDS[name]
        if isinstance(thing, typer.Typer):
            group.add_typer(thing, name=name)
        else:
            command(group, name)(thing)
        return typer.main.get_group(group).commands[name]
    except ConfigError as error:
        return _refusing(name, error)
    except (Exception, SystemExit) as error:  # the package's own, or typer's about a parameter
        why = f"The command {name!r} cannot be used: {type(error).__name__}: {error}. Correct or remove its package."
        return _refusing(name, ConfigError(why))


def _refusing(name: str, error: ConfigError, hidden: bool = False) -> click.Command:
    """Return a command that says why there is none, whatever is asked of it."""

    def refuse() -> Never:
        raise error

    return TyperCommand(
        name,
        callback=guarded(refuse),
        help=f"Cannot be used: `equifed {name}` says why.",
        hidden=hidden,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        rich_markup_mode="markdown",
    )
