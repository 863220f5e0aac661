"""The configuration of a run: one TOML file in kebab-case, checked before anything is computed.

Sections [partition], [model], [local] and [method] are the dataclasses of the same name in Python, so their keys,
defaults and descriptions are written once. What a file leaves out comes from the data set's preset; `resolved` spells
everything out, and running the resolved file repeats the run exactly.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_type_hints

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from equifed import methods, models, partition
from equifed.data import get_dataset
from equifed.errors import ConfigError, DataError, unknown_name
from equifed.protocol import Method
from equifed.simulator import Simulation, make_job
from equifed.training import Local

if TYPE_CHECKING:
    from equifed.data import Preset
    from equifed.federation import Federation
    from equifed.simulator.job import Job

__all__ = ["Config", "DataSection", "RunSection", "build", "job_of", "load_config", "load_federations", "parse_config"]

SECTIONS = ("run", "data", "partition", "model", "local", "method", "sweep", "flower")

S = TypeVar("S", bound=BaseModel)


def kebab(name: str) -> str:
    return name.strip("_").replace("_", "-")


class _Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, alias_generator=kebab, use_attribute_docstrings=True
    )


class RunSection(_Section):
    """[run]: how long, how often, and on what machine."""

    name: str = ""
    """A name of your own; `equifed show` finds the run by it."""
    rounds: int = Field(40, ge=1)
    """Rounds of training."""
    clients_per_round: Annotated[int, Field(ge=1)] | Literal["all"] | None = None
    """Clients sampled in every round, or "all". Left out: the preset's number."""
    seeds: Annotated[int, Field(ge=1)] | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] = [0]
    """A list of seeds, or how many (0, 1, ...). Each has its own split, partition and initial model."""
    eval_every: int = Field(1, ge=1)
    """Evaluate every so many rounds; the last round always is."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Chance that a sampled client does not answer."""
    engine: Literal["lanes", "reference"] = "lanes"
    """"lanes" (fast) or "reference" (one client at a time, to check against)."""
    device: str = "auto"
    """"auto", "cpu", "cuda" or "cuda:N"."""
    compile: bool | Literal["auto"] = "auto"
    """Compile the training step; "auto" decides by the length of the run."""
    checkpoint_every: int = Field(1, ge=1)
    """Write a checkpoint every so many rounds; a resumed run repeats the rounds after the last one."""

    @property
    def seed_list(self) -> list[int]:
        return list(range(self.seeds)) if isinstance(self.seeds, int) else list(self.seeds)


class DataSection(_Section):
    """[data]: a data set by name, or one file per client."""

    name: str | None = None
    """A data set of `equifed data list`."""
    preset: str | None = None
    """One of its presets; left out: its first."""
    files: list[str] | dict[str, str] | None = None
    """One CSV or Parquet file per client: a list, or a table client = "file". Relative to this config file."""
    schema_: str | None = None
    """The schema file that all clients share (JSON)."""
    label: str | None = None
    """The label's column, when there is no schema."""
    sensitive: str | list[str] | None = None
    """The sensitive column or columns, when there is no schema."""
    positive: str | int | float | None = None
    """The label value that is class 1, when there is no schema."""
    test: float = Field(0.2, ge=0, lt=1)
    """Share of each file's rows that goes to the test set."""
    validation: float = Field(0.0, ge=0, lt=1)
    """Share that goes to the server's validation set."""
    validation_file: str | None = None
    """The server's own validation rows, a file like the clients'. Relative to this config file."""
    client_groups: dict[str, str] | None = None
    """The known group of every client, a table client = "group", for methods that need it."""

    @property
    def title(self) -> str:
        return self.name or "files"


class FlowerSection(_Section):
    """[flower]: how patient and how careful a real federation is; a simulation has no use for it."""

    min_replies: Annotated[int, Field(ge=1)] | None = None
    """A round with fewer usable replies is not applied. Left out: 2, so that no silo's reply is a sum of its own."""
    deadline: float = Field(300.0, gt=0)
    """Seconds that the clients have to answer in a phase."""
    join_deadline: float = Field(300.0, gt=0)
    """Seconds that the server waits for the clients before the first round."""
    min_count: int = Field(10, ge=0)
    """Clients withhold counts of their test rows below this number; a silo's own setting may be higher. 0: nothing."""


_FILE_KEYS = (
    "files",
    "schema_",
    "label",
    "sensitive",
    "positive",
    "test",
    "validation",
    "validation_file",
    "client_groups",
)


@dataclass(frozen=True)
class Config:
    """A checked configuration with every default filled in."""

    run: RunSection
    data: DataSection
    partition: partition.Partitioner | None
    """None where every file is a client."""
    model: models.Model
    local: Local
    method: Method
    sweep: Mapping[str, Sequence[float]]
    """Hyper-parameter -> values; one run for each combination, all in one computation."""
    flower: FlowerSection | None = None
    """None where the file has no such section."""
    source: str = "configuration"
    """Where it came from, for messages."""
    folder: Path = Path()
    """What relative paths in it are relative to."""

    def resolved(self, folder: Path | None = None) -> dict[str, Any]:
        """All sections with all values, ready for TOML; paths relative to `folder`, where the file will lie."""
        run = _spelt(self.run.model_dump())
        data = _spelt(self.data.model_dump())
        if self.data.name is not None:
            data = {key: data[key] for key in ("name", "preset")}
        elif folder is not None:
            data |= self._moved(folder)
        sections: dict[str, Any] = {"run": run | {"seeds": self.run.seed_list}, "data": data}
        if self.partition is not None:
            sections["partition"] = _described(self.partition, partition.REGISTRY)
        sections["model"] = _described(self.model, models.REGISTRY)
        local = {("local_epochs" if key == "epochs" else key): value for key, value in _fields(self.local).items()}
        sections["local"] = _spelt({**local, "batch_size": self.local.batch_size or "all"})
        sections["method"] = {"name": self.method.name} | _spelt(_fields(self.method))
        if self.sweep:
            sections["sweep"] = {kebab(name): list(values) for name, values in self.sweep.items()}
        if self.flower is not None:
            sections["flower"] = _spelt(self.flower.model_dump())
        return sections

    def fingerprint(self, folder: Path | None = None) -> str:
        """A hash of `resolved`: equal exactly when the runs are the same."""
        text = json.dumps(self.resolved(folder), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def paths(self) -> dict[str, Path]:
        """The clients' files by client name."""
        files = self.data.files or {}
        named = files if isinstance(files, dict) else {Path(file).stem: file for file in files}
        return {name: self.folder / file for name, file in named.items()}

    def _moved(self, folder: Path) -> dict[str, Any]:
        moved: dict[str, Any] = {
            "files": {name: os.path.relpath(path.resolve(), folder.resolve()) for name, path in self.paths().items()}
        }
        for key, file in (("schema", self.data.schema_), ("validation-file", self.data.validation_file)):
            if file is not None:
                moved[key] = os.path.relpath((self.folder / file).resolve(), folder.resolve())
        return moved


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
    held = None if data.files else reader.choice("partition", "kind", partition.REGISTRY, _partition_of(data, preset))
    if data.files and "partition" in merged:
        reader.problem("partition", "the files already say which client holds which rows; remove this section")
    model = reader.choice("model", "kind", models.REGISTRY, _model_of(data, preset, folder))
    local = reader.local()
    method = reader.choice("method", "name", reader.methods(), None)
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


def load_federations(config: Config) -> list[Federation]:
    """One federation per seed: its own split and partition, the rows held once."""
    try:
        return _load_federations(config)
    except UnicodeDecodeError:  # files with rows are read elsewhere
        raise DataError(f"{config.source}: data.schema: {config.data.schema_} is not a text file in UTF-8.") from None
    except (ConfigError, DataError) as error:
        raise type(error)(f"{config.source}: {_place_of(config, error)}: {error}") from error


def _load_federations(config: Config) -> list[Federation]:
    import equifed

    data, seeds = config.data, config.run.seed_list
    if data.name is not None:
        feds: list[Federation] = equifed.load(data.name, preset=data.preset, partition=config.partition, seeds=seeds)
        return feds
    options = {
        "schema": None if data.schema_ is None else config.folder / data.schema_,
        "label": data.label,
        "sensitive": data.sensitive,
        "positive": data.positive,
        "name": data.title,
        "test": data.test,
        "validation": data.validation,
        "validation_file": None if data.validation_file is None else config.folder / data.validation_file,
        "client_groups": data.client_groups,
    }
    made = [equifed.Federation.from_files(config.paths(), seed=seed, **options) for seed in seeds]
    first = made[0]
    same = all(np.array_equal(fed.rows.x, first.rows.x) for fed in made)
    return [dataclasses.replace(fed, rows=first.rows) for fed in made] if same else made


def _place_of(config: Config, error: Exception) -> str:
    """The section, and where it can be told the key, that an error of loading speaks of."""
    text = str(error)
    if isinstance(error, DataError) or config.partition is None:
        given = {kebab(key): value for key, value in config.data.model_dump().items() if value is not None}
        named = [key for key, value in given.items() if any(_quoted(each, text) for each in _parts(value))]
        return ".".join(["data", *named[:1]])
    options = _fields(config.partition)
    named = [key for key in options if f"{key}=" in text]
    named += [key for key, value in options.items() if any(_quoted(each, text) for each in _parts(value))]
    named += _spoken(options, text)
    numbers = {key: value for key, value in options.items() if type(value) is int}
    named += [key for key, value in numbers.items() if re.search(rf"\b{value}\b", text)]
    return ".".join(["partition", *map(kebab, named[:1])])


def _parts(value: Any) -> list[Any]:
    return [*value.values()] if isinstance(value, dict) else [*value] if isinstance(value, list | tuple) else [value]


def _quoted(value: Any, text: str) -> bool:
    return (
        isinstance(value, str) and bool(value) and (repr(value) in text or ("." in value and Path(value).name in text))
    )


def _spoken(keys: Iterable[str], text: str) -> list[str]:
    """The keys that a message speaks of, the longest first."""
    found = [key for key in keys if re.search(rf"\b{key.replace('_', '[ _-]')}\b", text)]
    return sorted(found, key=len, reverse=True)


def build(config: Config, federations: Sequence[Federation] | None = None) -> Simulation:
    """The simulation that a configuration describes; `federations` where they are loaded already."""
    feds = load_federations(config) if federations is None else federations
    return Simulation(job_of(config, feds), config.run.engine)


_FOR_THE_DATA = ("clients_per_round", "eval_every", "dropout", "device")
"""Keys of [run] that only the data, or the machine, can refuse."""


def job_of(config: Config, federations: Sequence[Federation], one_place: bool = False) -> Job:
    """What `build` will compute, checked, without the work of setting it up. one_place: see `make_job`."""
    run = config.run
    try:
        return make_job(
            config.method,
            list(federations),
            model=config.model,
            rounds=run.rounds,
            clients_per_round=run.clients_per_round if isinstance(run.clients_per_round, int) else None,
            local=config.local,
            seeds=run.seed_list,
            initial_parameters=None,
            dropout=run.dropout,
            eval_every=run.eval_every,
            device=run.device,
            compile=run.compile if isinstance(run.compile, bool) else None,
            over=config.sweep or None,
            one_place=one_place,
        )
    except ConfigError as error:
        key = [f"run.{kebab(name)}: " for name in _spoken(_FOR_THE_DATA, str(error))[:1]]
        raise ConfigError(f"{config.source}: {''.join(key)}{error}") from error


# -- defaults from the data ------------------------------------------------------------------------------------------


def _data_of(data: DataSection) -> Preset | None:
    """The preset of a named data set, after checking that the section's keys go together."""
    given = [kebab(key) for key in _FILE_KEYS if key in data.model_fields_set]
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


def _partition_of(data: DataSection, preset: Preset | None) -> dict[str, Any]:
    if preset is None:
        return {}
    if preset.image and preset.name == "e2fl":
        return {"kind": "rotation-groups"}
    if preset.natural:
        return {"kind": "natural", "column": preset.natural}
    return {"kind": "dirichlet", "num-partitions": preset.num_partitions, "alpha": 0.5}


def _model_of(data: DataSection, preset: Preset | None, folder: Path) -> dict[str, Any]:
    if preset is None:
        return {"kind": "linear" if _schema_task(data, folder) == "regression" else "logistic"}
    if preset.image:
        return {"kind": "lenet"}
    if preset.task == "regression":
        return {"kind": "linear"}
    return {"kind": "logistic"}


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

    def choice(self, name: str, selector: str, registry: Mapping[str, type], default: dict[str, Any] | None) -> Any:
        """A section whose `kind` (or `name`) chooses a dataclass and whose other keys are its fields.

        The defaults' options go with the defaults' kind: another kind starts from its own.
        """
        given = dict(self.raw.get(name, {}))
        kind = given.pop(selector, (default or {}).get(selector))
        if kind is None:
            self.problem(f"{name}.{selector}", f"is required. Known: {', '.join(sorted(registry))}")
            return None
        if not isinstance(kind, str):
            self.problem(f"{name}.{selector} = {_shown(kind)}", f"must be {_MUST_BE['string_type']}")
            return None
        if kind not in registry:
            self.problem(f"{name}.{selector}", _first(unknown_name(name, kind, registry)))
            return None
        known = {kebab(field.name) for field in dataclasses.fields(registry[kind])}
        options = {key: value for key, value in (default or {}).items() if key in known and key not in given}
        if default and kind != default.get(selector):
            options = {key: value for key, value in options.items() if key == "num-partitions"}
        return self._made(name, registry[kind], options | given)

    def methods(self) -> Mapping[str, type[Method]]:
        """The registry, with the post-processed method that the file names, if it does."""
        name = self.raw.get("method", {}).get("name")
        if not isinstance(name, str) or "+" not in name:
            return methods.REGISTRY
        kind = self.checked("method.name", partial(methods.kind_of, name))
        self.stop_if_wrong()
        return {**methods.REGISTRY, name: kind}

    def local(self) -> Local:
        given = dict(self.raw.get("local", {}))
        if given.get("batch-size") == "all":
            given["batch-size"] = None
        made: Local = self._made("local", Local, given, renamed={"epochs": "local-epochs"})
        return made

    def _made(self, name: str, kind: type, given: Mapping[str, Any], renamed: Mapping[str, str] | None = None) -> Any:
        checked = self.section(name, _options_model(kind, tuple((renamed or {}).items())), given)
        if checked is None:
            return None
        values = {key: getattr(checked, key) for key in checked.model_fields_set}
        keys = {field: info.alias or field for field, info in type(checked).model_fields.items()}
        if issubclass(kind, Method):
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
            self.checked(f"sweep.{key}", partial(_check_swept, method, name, values))
        return over


def _check_swept(method: Method, name: str, values: Sequence[float]) -> None:
    for value in values:
        methods.check_value(type(method), name, value)
    if isinstance(getattr(method, name), bool):
        raise ConfigError("is true or false, and only numbers can be swept; make a run for each.")


@cache
def _options_model(kind: type, renamed: tuple[tuple[str, str], ...]) -> type[BaseModel]:
    """A pydantic model of a dataclass, with its defaults and the docstrings under its fields as descriptions."""
    docs, hints = methods.documentation(kind), get_type_hints(kind)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        default = ... if field.default is dataclasses.MISSING else field.default
        alias = dict(renamed).get(field.name, kebab(field.name))
        bounds = {"ge": field.metadata.get("low"), "le": field.metadata.get("high")}
        fields[field.name] = (
            Annotated[hints[field.name], BeforeValidator(_tuples)],
            Field(
                default,
                alias=alias,
                description=docs.get(field.name),
                **{key: value for key, value in bounds.items() if value is not None},
            ),
        )
    settings = ConfigDict(extra="forbid", strict=True, frozen=True, validate_default=False, protected_namespaces=())
    return create_model(kind.__name__, __config__=settings, **fields)


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


def _first(message: str) -> str:
    """`unknown_name`'s message as the end of a sentence that has begun with the key."""
    return message[0].lower() + message[1:]


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


# -- writing ---------------------------------------------------------------------------------------------------------


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _spelt(values: Mapping[str, Any]) -> dict[str, Any]:
    """Keys in kebab-case; TOML has no null, so None is left out."""
    return {
        kebab(key): list(value) if isinstance(value, tuple) else value
        for key, value in values.items()
        if value is not None
    }


def _described(value: Any, registry: Mapping[str, type]) -> dict[str, Any]:
    kind = next(name for name, known in registry.items() if known is type(value))
    return {"kind": kind} | _spelt(_fields(value))
