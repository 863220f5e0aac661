"""Reading a configuration: every problem is gathered, with its key, before anything is computed."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from equifed import methods, models, partition
from equifed.config.sections import (
    NAMED,
    SECTIONS,
    Config,
    DataSection,
    FlowerSection,
    RunSection,
    described,
    kebab,
)
from equifed.data import Holdout
from equifed.data.columns import BESIDE_SCHEMA, MAPPED_TEST
from equifed.data.sets import recorded_dataset
from equifed.errors import ConfigError, blaming, unknown_name
from equifed.federation.reading import SUFFIXES
from equifed.federation.tables import files_in
from equifed.files import read_regular
from equifed.protocol import Method
from equifed.registry import Registry, allow
from equifed.settings import SEEDS, Cluster, Local, SeekSettings
from equifed.simulator import check_swept
from equifed.target import parse_targets
from equifed.tracking import names as tracking
from equifed.verdict.seek import aimed
from equifed.words import SHORT, clean, quoted

if TYPE_CHECKING:
    from equifed.data import Preset

S = TypeVar("S", bound=BaseModel)
SOURCES = ("name", "files", "folder", "table", "mapped")
"""Keys of [data] that say where the rows are: one of them."""
NAMING = (
    *(("method", "name"), ("model", "kind"), ("partition", "kind"), ("data", "name")),
    *(("run", "metrics"), ("run", "track")),
)
"""Sections and keys that name things of the registries."""


VALIDATION = 0.1
"""The share of the rows that is held back for choosing by a target, where the data have no validation rows."""


MOST_BYTES = 2**24
"""Of a configuration, or of the schema that it names."""


def load_config(
    path: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    data: Mapping[str, Any] | None = None,
    *,
    received: bool = False,
) -> Config:
    """Read and check a TOML file; `overrides` are "section.key=value" with a TOML value (or plain text).

    data: values that take the place of those in [data]; if they say where the rows are, nothing is left of what the
    file says about that. received: see `parse_config`.
    """
    file = Path(path)
    try:
        text = read_regular(file, MOST_BYTES).decode("utf-8")
    except FileNotFoundError:
        raise ConfigError("no such file.", source=str(file)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read as a text file: {error}.", source=str(file)) from None
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax(str(file), text, error) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, a thousand brackets
        raise ConfigError(f"cannot be read as TOML: {clean(error)}.", source=str(file)) from None
    section = raw.get("data", {})
    if data and isinstance(section, dict):
        allow(*named({"data": data}))
        replaced = {*SOURCES, "preset"} if any(key in data for key in SOURCES) else set()
        raw["data"] = {key: value for key, value in section.items() if key not in replaced} | dict(data)
    return parse_config(raw, overrides, source=str(file), folder=file.parent, received=received)


def parse_config(
    raw: Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    source: str = "configuration",
    folder: Path = Path(),
    chosen_from: bool = False,
    received: bool = False,
) -> Config:
    """Check a configuration given as a dictionary, and fill in what it leaves out.

    chosen_from: the run is one of several among which its target chooses, as the settings of a sweep always are.
    received: it is the record of a run, which may be another person's, so that modules that it names are not imported
    unless they are trusted; the overrides are the user's in any case.
    """
    changes: dict[str, Any] = {}
    for override in overrides:
        _override(changes, override)
    allow(*named(changes), *([] if received else named(raw)))
    merged = {key: dict(value) if isinstance(value, Mapping) else value for key, value in raw.items()}
    for override in overrides:
        _override(merged, override)
    reader = _Reader(merged, source)
    run: RunSection | None = reader.made("run", RunSection)
    data = reader.section("data", DataSection)
    preset = reader.checked("data", partial(_data_of, data)) if data else None
    if data is not None and data.folder is not None:
        data = reader.checked("data", partial(_listed, data, folder))
    reader.stop_if_wrong()
    assert run is not None
    assert data is not None
    usual = {} if preset is None else described(preset.default_partition(), partition.REGISTRY)
    division = None
    if data.name is None:
        data = data.model_copy(update={"test": _held_out(data).test})
    if (data.files or data.mapped) and "partition" in merged:
        text = "The files already say which client holds which rows. Leave this out, or give one table."
        reader.problem(text, "partition")
    elif data.table and "partition" not in merged:
        text = (
            "One table needs a partition that deals its rows to clients, such as iid or dirichlet with their "
            "num-partitions, or natural with a column; or give one file per client."
        )
        reader.problem(ConfigError(text, allowed=sorted(partition.REGISTRY)), "partition", "kind")
    elif not data.files and not data.mapped:
        division = reader.choice("partition", "kind", partition.REGISTRY, usual)
    task = _schema_task(data, folder) if preset is None else preset.task
    usual = {"kind": "linear" if task == "regression" else "logistic"}
    if preset is not None:
        usual = {"kind": models.REGISTRY.name_of(type(preset.default_model()))}
        data = data.model_copy(update={"preset": preset.name})
    model = reader.choice("model", "kind", models.REGISTRY, usual)
    batch = {"batch-size": None} if merged.get("local", {}).get("batch-size") == "all" else {}
    local = reader.made("local", Local, {**merged.get("local", {}), **batch})
    method = reader.choice("method", "name", methods.REGISTRY, {}, methods.make_recorded)
    sweep = reader.sweep(method)
    seek = reader.seek(method, run.target) if "seek" in merged else None
    flower = reader.section("flower", FlowerSection) if "flower" in merged else None
    cluster = reader.made("cluster", Cluster) if "cluster" in merged else None
    reader.stop_if_wrong()
    if run.target and (sweep or seek or chosen_from) and not _has_validation(data, preset, division):
        data = data.model_copy(update={"validation": MAPPED_TEST if data.mapped else VALIDATION})
    filled = partial(
        dataclasses.replace,
        run,
        seeds=run.seeds or (1 if flower else SEEDS),
        clients_per_round=run.clients_per_round
        or (None if data.mapped else _sampled(preset, division, "partition" in merged)),
        local=local.for_task(task),
    )
    run = reader.checked("local", filled)  # which has to fit the rounds
    reader.stop_if_wrong()
    return Config(run, data, division, model, method, sweep, seek, flower, cluster, source, folder)


def named(raw: Mapping[str, Any]) -> list[str]:
    """Return all names of things that may be another package's in the sections of a configuration."""
    found = []
    for section, key in NAMING:
        values = raw.get(section)
        given = values.get(key) if isinstance(values, Mapping) else None
        if isinstance(given, str) and key == "metrics":
            given = given.split(",")
        for name in given if isinstance(given, list | tuple) else [given]:
            if isinstance(name, str):
                found.append(_bare(section, key, name))
    return found


def _bare(section: str, key: str, name: str) -> str:
    """Return the name of a method without wrappers, and of a tracker without what it is given."""
    if section == "method":
        with suppress(ConfigError):
            return methods.unwrap(name)[0]
    return tracking.name_of(name) if key == "track" else name


# -- defaults from the data --------------------------------------------------------------------------------------------


def _data_of(data: DataSection) -> Preset | None:
    """The preset of a named data set, after checking that the section's keys go together."""
    if data.name is None:
        _check_own(data)
        return None
    given = [kebab(key) for key in type(data).model_fields if key in data.model_fields_set.difference(NAMED)]
    if given:
        raise ConfigError(
            f"The section has both a name and {', '.join(given)}; those belong to files. Keep one of them.",
            key=given[0],
        )
    with blaming(key="name"):
        dataset = recorded_dataset(data.name)
    with blaming(key="preset"):
        return dataset.preset(data.preset)


def _check_own(data: DataSection) -> None:
    """Whether the keys go together that describe rows of one's own."""
    sources = [key for key in SOURCES if getattr(data, key)]
    if not sources:
        text = "needs a name (see `equifed data list`), or files, one per client, or a folder, a table or mapped files."
        raise ConfigError(text)
    if len(sources) > 1:
        raise ConfigError(f"The section has {' and '.join(sources)}. Keep one of them.", key=sources[1])
    for key in ("preset", "client_test", "rows"):
        if getattr(data, key) is not None:
            raise ConfigError(f"belongs to a named data set, not to {_own(data)}.", key=key)
    if data.schema_ is None and (data.label is None or data.sensitive is None):
        raise ConfigError(f"{_own(data).capitalize()} need a schema, or a label and a sensitive column.", key="schema")
    columns = data.columns
    settled = [key for key in columns.given if data.schema_ is not None and key not in BESIDE_SCHEMA]
    if settled:
        raise ConfigError("The schema, which is given too, has settled this. Keep one of them.", key=settled[0])
    if data.client_groups is not None and (data.table or data.mapped):
        what = "a table that a partition deals" if data.table else "mapped files"
        raise ConfigError(f"belongs to one file per client, not to {what}.", key="client_groups")
    for key in ("client", "cache"):
        if data.mapped is None and getattr(data, key) is not None:
            raise ConfigError("is only for mapped files.", key=key)
    if data.mapped is not None:
        columns.check_mapped()
        if data.client is None:
            raise ConfigError("Mapped files need the column that says which client holds a row.", key="client")
    _held_out(data)
    if isinstance(data.files, list):
        _checknamed(data.files, "files")


def _held_out(data: DataSection) -> Holdout:
    """Return which rows are held out of one's own, with the default shares."""
    return data.holdout(Path()).fill(
        "mapped files" if data.mapped else "one table" if data.table else "table per client"
    )


def _own(data: DataSection) -> str:
    return "tables" if data.table else "files"


def _checknamed(files: Sequence[str], key: str) -> None:
    """Clients are called after their files."""
    if len({Path(file).stem for file in files}) < len(files):
        raise ConfigError('need different names; otherwise write them as a table, client = "file".', key=key)


def _listed(data: DataSection, folder: Path) -> DataSection:
    """With the files in place of the folder, so that a run's own configuration says which they were."""
    place = folder / str(data.folder)
    try:
        files = [path.name for path in files_in(place)]
    except OSError as error:
        raise ConfigError(f"{quoted(str(data.folder))} cannot be read: {error.strerror}.", key="folder") from None
    if not files:
        raise ConfigError(
            f"{quoted(str(data.folder))} has no file of a client: those end in {', '.join(SUFFIXES)}.", key="folder"
        )
    _checknamed(files, "folder")
    inside = {Path(file).stem: os.path.join(str(data.folder), file) for file in files}
    return data.model_copy(update={"files": inside, "folder": None})


def _has_validation(data: DataSection, preset: Preset | None, division: Any) -> bool:
    """Whether there are rows to choose on, or the file says that there shall be none, or none can be held back."""
    if data.validation is not None or isinstance(division, partition.RotationGroups):
        return True
    return data.validation_file is not None if preset is None else preset.split[1] > 0


def _sampled(preset: Preset | None, division: Any, changed: bool) -> int | Literal["all"] | None:
    """Clients per round where the file does not say; None where only the data know how many clients there are."""
    if preset is None:
        return "all"
    clients = getattr(division, "num_partitions", None if changed else preset.num_partitions)
    return None if clients is None else min(preset.sampled, clients)


def _schema_task(data: DataSection, folder: Path) -> str:
    try:
        return str(json.loads(read_regular(folder / str(data.schema_), MOST_BYTES)).get("task", ""))
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""  # the error comes when the files are read


# -- reading with good errors ------------------------------------------------------------------------------------------


class _Reader:
    """Reads sections one by one, gathering every problem instead of stopping at the first."""

    def __init__(self, raw: Mapping[str, Any], source: str) -> None:
        self.raw, self.source = raw, source
        self._problems: list[ConfigError] = []
        for key, value in raw.items():
            if key not in SECTIONS:
                self.problem(unknown_name("section", key, SECTIONS), key)
            elif not isinstance(value, Mapping):
                self.problem(f"must be a section, [{clean(key, SHORT)}], not {_shown(value)}.", key)
        self.stop_if_wrong()

    def problem(self, what: str | ConfigError, section: str, key: str = "") -> None:
        error = what if isinstance(what, ConfigError) else ConfigError(what)
        error.source, error.section, error.key = self.source, section, key
        self._problems.append(error)

    def stop_if_wrong(self) -> None:
        if len(self._problems) == 1:
            raise self._problems[0]
        if self._problems:
            lines = "".join(f"\n  {problem.where}: {problem.text}" for problem in self._problems)
            raise ConfigError(
                f"{self.source} has {len(self._problems)} problems:{lines}", problems=tuple(self._problems)
            )

    def section(self, name: str, kind: type[S], given: Mapping[str, Any] | None = None, of: str = "") -> S | None:
        values = self.raw.get(name, {}) if given is None else given
        try:
            return kind.model_validate(values)
        except ValidationError as error:
            for key, problem in _readable(error, values, kind, of):
                self.problem(problem, name, key)
            return None

    def checked(
        self, section: str, make: Callable[[], Any], keys: Mapping[str, str] | None = None, key: str = ""
    ) -> Any:
        """What `make` returns; its ConfigError becomes a problem of `key`, or else of the key that `keys` has for the
        argument at fault."""
        try:
            return make()
        except ConfigError as error:
            self.problem(error, section, key or (keys or {}).get(error.key, kebab(error.key)))
            return None

    def choice(
        self,
        name: str,
        selector: str,
        registry: Registry[Any],
        default: dict[str, Any],
        find: Callable[[str], Any] | None = None,
    ) -> Any:
        """A section whose `kind` (or `name`) chooses a dataclass and whose other keys are its fields.

        The defaults' options go with the defaults' kind: another kind starts from its own. `find` replaces the lookup.
        """
        find = find or registry.__getitem__
        given = dict(self.raw.get(name, {}))
        kind = given.pop(selector, default.get(selector))
        if kind is None:
            names = sorted(registry)
            self.problem(ConfigError(f"is required. Known: {', '.join(names)}.", allowed=names), name, selector)
            return None
        if not isinstance(kind, str):
            self.problem(_wrong(kind, [_MUST_BE["string_type"]]), name, selector)
            return None
        chosen = self.checked(name, partial(find, kind), key=selector)
        if chosen is None:
            return None
        has_options = isinstance(chosen, Method) or (isinstance(chosen, type) and dataclasses.is_dataclass(chosen))
        if not has_options:  # a function or a model ready to use
            for key in given:
                self.problem(f"There is nothing to set: {kind} has no options.", name, key)
            return chosen
        known = {kebab(option) for option in methods.options(chosen)}
        kept = known if kind == default.get(selector) else known & {"num-partitions"}
        given = {key: value for key, value in default.items() if key in kept} | given
        return self.made(name, chosen, given, f"the {registry.noun} {kind}")

    def made(self, name: str, kind: type | Method, given: Mapping[str, Any] | None = None, of: str = "") -> Any:
        """The dataclass or method whose fields a section gives. of: what errors call it."""
        checked = self.section(name, _options_model(kind), given, of)
        if checked is None:
            return None
        values = {key: getattr(checked, key) for key in checked.model_fields_set}
        keys = {option: kebab(facts.key) for option, facts in methods.options(kind).items()}
        make = partial(methods.make_recorded, kind.name) if isinstance(kind, Method) else kind
        return self.checked(name, lambda: make(**values), keys)

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
                self.problem(_wrong(values, ["a list of numbers"]), "sweep", key)
            elif len(set(values)) < len(values):
                self.problem(f"names a value twice: {_shown(values)}.", "sweep", key)
            elif name in over:
                self.problem("is given twice, with a dash and with an underscore.", "sweep", key)
            else:
                over[name] = [float(value) for value in values]
                self.checked("sweep", partial(check_swept, method, name, values), key=key)
        return over

    def seek(self, method: Method | None, target: Any) -> SeekSettings | None:
        if "sweep" in self.raw:
            text = "There is a section [sweep] too. Remove it to seek, or this section to choose from its values."
            self.problem(text, "seek")
        if method is not None:
            try:
                aimed(method, parse_targets(target))
            except ConfigError as error:
                self.problem(error, *(("run", "target") if error.key else ("method", "name")))
        made: SeekSettings | None = self.made("seek", SeekSettings)
        return made


@cache
def _options_model(kind: type | Method) -> type[BaseModel]:
    """A pydantic model of a dataclass, with its defaults and limits."""
    fields: dict[str, Any] = {}
    for name, option in methods.options(kind).items():
        default: Any = ... if option.default is dataclasses.MISSING else option.default
        tuples = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
        limits = Field(default, alias=kebab(option.key), ge=option.low, le=option.high)
        fields[name] = (Annotated[option.type, tuples], limits)
    settings = ConfigDict(extra="forbid", strict=True, frozen=True, validate_default=False, protected_namespaces=())
    return create_model(kind.name if isinstance(kind, Method) else kind.__name__, __config__=settings, **fields)


_MUST_BE = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text in quotes",
    "list_type": "a list",
    "sequence_str": "a list",
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


def _readable(
    error: ValidationError, values: Any, kind: type[BaseModel], of: str = ""
) -> list[tuple[str, ConfigError]]:
    """(key, what is wrong) per key; the alternatives of a union are joined with "or"."""
    known = [info.alias or name for name, info in kind.model_fields.items()]
    problems: list[tuple[str, ConfigError]] = []
    wrong: dict[str, tuple[Any, list[str]]] = {}
    for detail in error.errors(include_url=False, include_context=True):
        path, value = _walk(detail["loc"], values)
        key = ".".join(path)
        if detail["type"] == "extra_forbidden":
            nothing = ConfigError("There is nothing to set here.")
            problems.append((key, unknown_name("key", path[-1], known, of=of) if known else nothing))
        elif detail["type"] == "missing":
            problems.append((str(detail["loc"][0]), ConfigError("is required.")))
        else:
            template = _MUST_BE.get(detail["type"])
            must = template.format(**detail.get("ctx", {})) if template else detail["msg"]
            _, alternatives = wrong.setdefault(key, (value, []))
            if must not in alternatives:
                alternatives.append(must)
    return problems + [(key, _wrong(value, alternatives)) for key, (value, alternatives) in wrong.items()]


def _wrong(value: Any, alternatives: Sequence[str]) -> ConfigError:
    return ConfigError(f"must be {' or '.join(alternatives)}, got {_shown(value)}.", value=value)


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


def _override(raw: dict[str, Any], text: str) -> None:
    path, sign, written = text.partition("=")
    section, dot, key = path.strip().partition(".")
    if not sign or not dot or not key:
        raise ConfigError(f"--set {quoted(text)} is not of the form section.key=value, e.g. --set run.rounds=20.")
    try:
        value = tomllib.loads(f"value = {written}")["value"]
    except (ValueError, RecursionError):
        value = written.strip()
    inside = raw.setdefault(section, {})
    if isinstance(inside, dict):
        inside[key] = value


def _syntax(source: str, text: str, error: tomllib.TOMLDecodeError) -> ConfigError:
    lines = text.splitlines()
    at = re.search(r"at line (\d+)", str(error))  # the error has the line as an attribute from Python 3.14 on only
    number = int(at[1]) if at else len(lines)
    line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
    shown = f"\n  {clean(line)}" if line else ""
    return ConfigError(f"line {number} is not valid TOML: {clean(error)}.{shown}", source=source)
