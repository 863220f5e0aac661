"""Reading a configuration: every problem is gathered, with its key, before anything is computed."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from equifed import methods, models, partition
from equifed.config.sections import FILE_KEYS, SECTIONS, Config, DataSection, FlowerSection, RunSection, kebab
from equifed.data import get_dataset
from equifed.errors import ConfigError, unknown_name
from equifed.protocol import Method
from equifed.registry import Registry
from equifed.settings import Local
from equifed.simulator.job import check_swept

if TYPE_CHECKING:
    from equifed.data import Preset

S = TypeVar("S", bound=BaseModel)


def load_config(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Config:
    """Read and check a TOML file; `overrides` are "section.key=value" with a TOML value (or plain text)."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read as a text file: {error}.") from None
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_syntax(str(file), text, str(error))) from None
    return parse_config(raw, overrides, source=str(file), folder=file.parent)


def parse_config(
    raw: Mapping[str, Any], overrides: Sequence[str] = (), *, source: str = "configuration", folder: Path = Path()
) -> Config:
    """Check a configuration given as a dictionary, and fill in what it leaves out."""
    merged = {key: dict(value) if isinstance(value, Mapping) else value for key, value in raw.items()}
    for override in overrides:
        _override(merged, override)
    reader = _Reader(merged, source)
    run = reader.section("run", RunSection)
    data = reader.section("data", DataSection)
    preset = reader.checked("data", partial(_data_of, data)) if data else None
    reader.stop_if_wrong()
    assert run is not None
    assert data is not None
    held = None if data.files else reader.choice("partition", "kind", partition.REGISTRY, _partition_of(preset))
    if data.files and "partition" in merged:
        reader.problem("partition", "the files already say which client holds which rows; remove this section")
    model = reader.choice("model", "kind", models.REGISTRY, _model_of(data, preset, folder))
    local = reader.local()
    method = reader.choice("method", "name", methods.REGISTRY, None, methods.make)
    sweep = reader.sweep(method)
    flower = reader.section("flower", FlowerSection) if "flower" in merged else None
    reader.stop_if_wrong()
    if preset is not None:
        data = data.model_copy(update={"preset": preset.name})
        if run.clients_per_round is None:
            clients = getattr(held, "num_partitions", None)
            number = min(preset.clients_per_round, clients) if clients is not None else "all"
            run = run.model_copy(update={"clients_per_round": number})
    run = run.model_copy(update={"clients_per_round": run.clients_per_round or "all"})
    return Config(run, data, held, model, local, method, sweep, flower, source, folder)


# -- defaults from the data ------------------------------------------------------------------------------------------


def _data_of(data: DataSection) -> Preset | None:
    """The preset of a named data set, after checking that the section's keys go together."""
    given = [kebab(key) for key in FILE_KEYS if key in data.model_fields_set]
    if data.name is None:
        if not data.files:
            raise ConfigError("needs a name (see `equifed data list`) or files, one per client.")
        if data.preset is not None:
            raise ConfigError("preset belongs to a named data set, not to files.")
        if data.schema_ is None and (data.label is None or data.sensitive is None):
            raise ConfigError("files need a schema, or a label and a sensitive column.")
        if data.validation_file is not None and data.validation:
            raise ConfigError("has both validation-file and a share for validation; keep one of them.")
        if isinstance(data.files, list) and len({Path(file).stem for file in data.files}) < len(data.files):
            raise ConfigError('files need different names; otherwise write them as a table, client = "file".')
        return None
    if given:
        raise ConfigError(f"has both a name and {', '.join(given)}; those belong to files. Keep one of them.")
    return get_dataset(data.name).preset(data.preset)


def _partition_of(preset: Preset | None) -> dict[str, Any]:
    described = {} if preset is None else partition.describe(preset.default_partition())
    return {kebab(key): value for key, value in described.items()}


def _model_of(data: DataSection, preset: Preset | None, folder: Path) -> dict[str, Any]:
    if preset is None:
        return {"kind": "linear" if _schema_task(data, folder) == "regression" else "logistic"}
    return {"kind": models.REGISTRY.name_of(type(preset.default_model()))}


def _schema_task(data: DataSection, folder: Path) -> str:
    try:
        return str(json.loads((folder / str(data.schema_)).read_text()).get("task", ""))
    except (OSError, ValueError, AttributeError):
        return ""  # reading the files will say what is wrong with it


# -- reading with good errors ----------------------------------------------------------------------------------------


class _Reader:
    """Reads sections one by one, gathering every problem instead of stopping at the first."""

    def __init__(self, raw: Mapping[str, Any], source: str) -> None:
        self.raw, self.source = raw, source
        self._problems: list[str] = []
        for key, value in raw.items():
            if key not in SECTIONS:
                self.problem(key, _first(unknown_name("section", key, SECTIONS)))
            elif not isinstance(value, Mapping):
                self.problem(key, f"must be a section, [{key}], not {value!r}")
        self.stop_if_wrong()

    def problem(self, path: str, what: str) -> None:
        self._problems.append(f"{path}: {what}" if path else what)

    def stop_if_wrong(self) -> None:
        if not self._problems:
            return
        if len(self._problems) == 1:
            raise ConfigError(f"{self.source}: {self._problems[0]}{'' if self._problems[0].endswith('.') else '.'}")
        lines = "".join(f"\n  {problem}" for problem in self._problems)
        raise ConfigError(f"{self.source} has {len(self._problems)} problems:{lines}")

    def section(self, name: str, kind: type[S], given: Mapping[str, Any] | None = None) -> S | None:
        values = self.raw.get(name, {}) if given is None else given
        try:
            return kind.model_validate(values)
        except ValidationError as error:
            for path, what in _readable(error, values, kind):
                self.problem(".".join([name, *path]), what)
            return None

    def checked(self, name: str, make: Callable[[], Any], keys: Mapping[str, str] | None = None) -> Any:
        """What `make` returns; its ConfigError becomes a problem of the field it speaks of, or of the section."""
        try:
            return make()
        except ConfigError as error:
            text = str(error)
            key = [(keys or {})[field] for field in _spoken(keys or {}, text)[:1]]
            self.problem(".".join([name, *key]), text)
            return None

    def choice(
        self,
        name: str,
        selector: str,
        registry: Registry[Any],
        default: dict[str, Any] | None,
        find: Callable[[str], Any] | None = None,
    ) -> Any:
        """A section whose `kind` (or `name`) chooses a dataclass and whose other keys are its fields.

        The defaults' options go with the defaults' kind: another kind starts from its own. `find` replaces the lookup.
        """
        find = find or registry.__getitem__
        given = dict(self.raw.get(name, {}))
        kind = given.pop(selector, (default or {}).get(selector))
        if kind is None:
            self.problem(f"{name}.{selector}", f"is required. Known: {', '.join(sorted(registry))}")
            return None
        if not isinstance(kind, str):
            self.problem(f"{name}.{selector} = {_shown(kind)}", f"must be {_MUST_BE['string_type']}")
            return None
        chosen = self.checked(f"{name}.{selector}", partial(find, kind))
        if chosen is None:
            return None
        has_options = isinstance(chosen, Method) or (isinstance(chosen, type) and dataclasses.is_dataclass(chosen))
        if not has_options:  # a function or a model ready to use
            for key in given:
                self.problem(f"{name}.{key}", f"there is nothing to set: {kind} has no options")
            return chosen
        known = {kebab(option) for option in methods.options(chosen)}
        options = {key: value for key, value in (default or {}).items() if key in known and key not in given}
        if default and kind != default.get(selector):
            options = {key: value for key, value in options.items() if key == "num-partitions"}
        return self._made(name, chosen, options | given)

    def local(self) -> Local:
        given = dict(self.raw.get("local", {}))
        if given.get("batch-size") == "all":
            given["batch-size"] = None
        made: Local = self._made("local", Local, given, renamed={"epochs": "local-epochs"})
        return made

    def _made(
        self, name: str, kind: type | Method, given: Mapping[str, Any], renamed: Mapping[str, str] | None = None
    ) -> Any:
        checked = self.section(name, _options_model(kind, tuple((renamed or {}).items())), given)
        if checked is None:
            return None
        values = {key: getattr(checked, key) for key in checked.model_fields_set}
        keys = {field: info.alias or field for field, info in type(checked).model_fields.items()}
        if isinstance(kind, Method):
            return self.checked(name, lambda: methods.make(kind.name, **values), keys)
        return self.checked(name, lambda: kind(**values), keys)

    def sweep(self, method: Method | None) -> dict[str, list[float]]:
        if method is None:
            return {}
        over: dict[str, list[float]] = {}
        for key, values in self.raw.get("sweep", {}).items():
            name = key.replace("-", "_")
            numbers = isinstance(values, list) and all(
                type(value) in (int, float) and math.isfinite(value) for value in values
            )
            if not numbers or not values:
                self.problem(f"sweep.{key}", f"must be a list of numbers, not {_shown(values)}")
                continue
            if len(set(values)) < len(values):
                self.problem(f"sweep.{key} = {_shown(values)}", "names a value twice")
                continue
            if name in over:
                self.problem(f"sweep.{key}", "is there twice, with a dash and with an underscore")
                continue
            over[name] = [float(value) for value in values]
            self.checked(f"sweep.{key}", partial(check_swept, method, name, values))
        return over


def _spoken(keys: Iterable[str], text: str) -> list[str]:
    """The keys that a message speaks of, the longest first."""
    found = [key for key in keys if re.search(rf"\b{key.replace('_', '[ _-]')}\b", text)]
    return sorted(found, key=len, reverse=True)


@cache
def _options_model(kind: type | Method, renamed: tuple[tuple[str, str], ...]) -> type[BaseModel]:
    """A pydantic model of a dataclass, with its defaults and the docstrings under its fields as descriptions."""
    fields: dict[str, Any] = {}
    for name, option in methods.options(kind).items():
        default: Any = ... if option.default is dataclasses.MISSING else option.default
        bounds: dict[str, Any] = {"ge": option.low, "le": option.high}
        fields[name] = (
            Annotated[option.type, BeforeValidator(_tuples)],
            Field(
                default,
                alias=dict(renamed).get(name, kebab(name)),
                description=option.description,
                **{key: value for key, value in bounds.items() if value is not None},
            ),
        )
    settings = ConfigDict(extra="forbid", strict=True, frozen=True, validate_default=False, protected_namespaces=())
    return create_model(kind.name if isinstance(kind, Method) else kind.__name__, __config__=settings, **fields)


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


_MUST_BE = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text in quotes",
    "list_type": "a list",
    "too_short": "a list of at least {min_length}",
    "tuple_type": "a list",
    "dict_type": "a table",
    "finite_number": "a finite number",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
}


def _readable(error: ValidationError, values: Any, kind: type[BaseModel]) -> list[tuple[list[str], str]]:
    """(key path, what is wrong) per key; the alternatives of a union are joined with "or"."""
    known = [info.alias or name for name, info in kind.model_fields.items()]
    unknown: list[tuple[list[str], str]] = []
    wrong: dict[tuple[str, ...], tuple[Any, list[str]]] = {}
    for each in error.errors(include_url=False, include_context=True):
        path, value = _walk(each["loc"], values)
        if each["type"] == "extra_forbidden":
            what = _first(unknown_name("key", path[-1], known)) if known else "there is nothing to set here"
            unknown.append((path, what))
        elif each["type"] == "missing":
            unknown.append(([str(each["loc"][0])], "is required"))
        else:
            template = _MUST_BE.get(each["type"])
            must = template.format(**each.get("ctx", {})) if template else each["msg"]
            _, list_of = wrong.setdefault(tuple(path), (value, []))
            if must not in list_of:
                list_of.append(must)
    return unknown + [
        ([*path[:-1], f"{path[-1]} = {_shown(value)}"], f"must be {' or '.join(must)}")
        for path, (value, must) in wrong.items()
    ]


def _walk(location: Sequence[int | str], values: Any) -> tuple[list[str], Any]:
    """The part of a pydantic location that exists in the input, and the value there; union tags are left out."""
    path: list[str] = []
    for part in location:
        if isinstance(values, Mapping) and part in values:
            values = values[part]
            path.append(str(part))
        elif isinstance(values, list | tuple) and isinstance(part, int) and part < len(values):
            values = values[part]
            path[-1] += f"[{part}]"
    return path or [str(location[0])], values


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _first(error: ConfigError) -> str:
    """`unknown_name`'s message as the end of a sentence that has begun with the key."""
    return error.text[0].lower() + error.text[1:]


def _override(raw: dict[str, Any], text: str) -> None:
    path, sign, written = text.partition("=")
    section, dot, key = path.strip().partition(".")
    if not sign or not dot or not key:
        raise ConfigError(f"--set {text!r} is not of the form section.key=value, e.g. --set run.rounds=20.")
    try:
        value = tomllib.loads(f"value = {written}")["value"]
    except tomllib.TOMLDecodeError:
        value = written.strip()
    inside = raw.setdefault(section, {})
    if isinstance(inside, dict):
        inside[key] = value


def _syntax(source: str, text: str, message: str) -> str:
    at = re.search(r"line (\d+)", message)
    number = int(at.group(1)) if at else len(text.splitlines())
    lines = text.splitlines()
    line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
    return f"{source}, line {number}, is not valid TOML: {message}" + (f"\n  {line}" if line else "")
