"""Registries of methods, models, partitioners, metrics and data sets by name, including those of other packages.

A name is built in, an entry point of an installed package (of the group `equifed.methods`, `equifed.models`, ...), or
`module:Name`, which is imported from that module. Built-in names cannot be overridden. An entry keeps the name by which
it was looked up, so that a run can be resumed and repeated by it.

Importing a module runs its code, and files may come from others: a run's folder, a model package, a result. So a
`module:Name` is imported only if the user has typed it in this process (`allow`) or trusts its module (`trust`,
--trust); if only a file has the name, it is refused without looking for the module.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, MutableMapping
from functools import cache
from importlib import import_module, metadata
from typing import Any, Generic, TypeVar

from equifed.errors import ConfigError, EquifedWarning, UntrustedName, unknown_name
from equifed.words import quoted

T = TypeVar("T")
_allowed: set[str] = set()
"""Names `module:Name` that were typed, and trusted modules."""


def allow(*names: str) -> None:
    """Allow names that the user has typed: on the command line, in a configuration to be run, in Python. Only names
    `module:Name` need it; a name such as "mlflow" does not make a module trusted."""
    _allowed.update(name for name in names if _has_form(name))


def trust(*modules: str) -> None:
    """Allow all names of these modules and their submodules, wherever they are read, until the process ends."""
    for module in modules:
        if not _is_dotted(module.partition(":")[0]):
            raise ConfigError(f"must be the name of a module, got {quoted(module)}.", key="trust", value=module)
    _allowed.update(modules)


def allowed() -> list[str]:
    """Return everything that `allow` and `trust` have allowed, to `trust` it in another process of the same work."""
    return sorted(_allowed)


def _is_trusted(name: str) -> bool:
    module, _, _ = name.partition(":")
    parts = module.split(".")
    return not _allowed.isdisjoint([name, *(".".join(parts[:end]) for end in range(1, len(parts) + 1))])


def _is_dotted(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def _has_form(name: str) -> bool:
    module, _, path = name.partition(":")
    return _is_dotted(module) and _is_dotted(path)


class Registry(MutableMapping[str, T], Generic[T]):
    """The entries of one kind by name. Iteration gives the built-in names, then those of entry points."""

    def __init__(self, noun: str, group: str, builtin: dict[str, T], fits: Callable[[Any], bool], must_be: str) -> None:
        """noun: as in "Unknown method"; fits, must_be: the check of an entry of another package, and its demand."""
        self.noun, self.group, self.fits, self.must_be = noun, group, fits, must_be
        self._builtin = builtin
        self._imported: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        """Return the entry with this name; raise a ConfigError with the closest name, or why it is not imported."""
        if name in self._builtin:
            return self._builtin[name]
        if name not in self._imported:
            target = name
            if ":" not in name:
                targets = {entry.value for entry in _entry_points(self.group) if entry.name == name}
                if not targets:
                    raise unknown_name(self.noun, name, self)
                if len(targets) > 1:
                    raise self._refusal(
                        name,
                        f"is the name of more than one installed {self.noun}: {', '.join(sorted(targets))}. "
                        "Use one of these instead.",
                    )
                (target,) = targets
            elif _has_form(name) and not _is_trusted(name):
                raise self._untrusted_name(name)
            self._imported[name] = self._import(name, target)
        return self._imported[name]

    def __setitem__(self, name: str, thing: T) -> None:
        self._builtin[name] = thing

    def __delitem__(self, name: str) -> None:
        del self._builtin[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._builtin, *(entry.name for entry in _entry_points(self.group)))))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def usable(self) -> dict[str, T]:
        """Return all entries that can be imported, by name; warn about those of other packages that cannot."""
        things = {}
        for name in self:
            try:
                things[name] = self[name]
            except ConfigError as error:
                warnings.warn(str(error), EquifedWarning, stacklevel=2)
        return things

    def name_of(self, thing: object) -> str:
        """Return the name by which this entry can be found again, or else the name in its definition. The entry's
        module has already run, so its name is allowed."""
        for name, known in (*self._builtin.items(), *self._imported.items()):
            if known is thing:
                return name
        named: Any = thing if hasattr(thing, "__qualname__") else type(thing)
        hidden = named.__module__ == "__main__" or "<locals>" in named.__qualname__
        if hidden:
            return str(named.__name__)
        name = f"{named.__module__}:{named.__qualname__}"
        allow(name)
        return name

    def _import(self, name: str, target: str) -> T:
        module_name, _, path = target.partition(":")
        if not _has_form(target):
            raise self._refusal(name, f'must be the name of a {self.noun} or of the form "module:Name".')
        thing: Any = self._import_module(name, module_name)
        for part in path.split("."):
            if not hasattr(thing, part):
                raise self._refusal(name, f"cannot be found: the module {module_name} has no {path!r}.")
            thing = getattr(thing, part)
        if not self.fits(thing):
            raise self._refusal(name, f"is not a {self.noun}: it must be {self.must_be}, and is {thing!r}.")
        return thing

    def _import_module(self, name: str, module_name: str) -> Any:
        try:
            return import_module(module_name)
        except Exception as error:
            # the module may exist, and import another one that does not
            absent = error.name if isinstance(error, ModuleNotFoundError) else None
            if not absent or not f"{module_name}.".startswith(f"{absent}."):
                raise self._refusal(name, f"cannot be imported: {_reason(error)}") from error
            cause = error
        # An installed command does not search the current folder. The folder goes last, so that its files cannot
        # replace an installed module, and stays, because the module may import its neighbours later.
        if (folder := os.getcwd()) not in sys.path:
            sys.path.append(folder)
            return self._import_module(name, module_name)
        raise self._refusal(
            name,
            f"cannot be imported: there is no module {module_name} among the installed ones nor in {folder}. "
            "Install it, or start from the folder that contains it.",
        ) from cause

    def _untrusted_name(self, name: str) -> UntrustedName:
        module = name.partition(":")[0]
        return UntrustedName(
            f"The {self.noun} {quoted(name)} is neither built in nor part of an installed package, and a file asks for "
            f"it: it would be imported from the module {quoted(module)}, which runs that module's code. If you trust "
            f"that module, allow it; in Python: trust=({module!r},).",
            value=name,
        )

    def _refusal(self, name: str, why: str) -> ConfigError:
        return ConfigError(f"The {self.noun} {name!r} {why}", value=name)


def _reason(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = "" if isinstance(error, SyntaxError) else f" ({last.filename}, line {last.lineno})"
    return f"{type(error).__name__}: {error}{place}. Correct the module."


def _entry_points(group: str) -> list[metadata.EntryPoint]:
    return _entry_points_on(tuple(sys.path), group)


@cache
def _entry_points_on(path: tuple[str, ...], group: str) -> list[metadata.EntryPoint]:
    """Return the entry points of a group. Cached, because a search of all installed packages, in `path`, is slow."""
    return list(metadata.entry_points(group=group))
