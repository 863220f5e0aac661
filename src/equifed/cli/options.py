"""Options that several commands share, each written once: a field of a dataclass, with its help below it."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import Field, dataclass, field, fields, is_dataclass, make_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from equifed.cli.console import guarded
from equifed.data.columns import Columns, Holdout
from equifed.errors import ConfigError, EquifedError, unknown_name
from equifed.options import Option, options_of
from equifed.registry import allow
from equifed.settings import MARGIN, Cluster, Local, RunSettings
from equifed.words import quoted


@dataclass(frozen=True)
class Which:
    """Which of a run's models."""

    seed: int | None = field(default=None, metadata={"metavar": "N"})
    """Of which seed. (default: the first)"""
    setting: list[str] | None = field(default=None, metadata={"metavar": "NAME=VALUE", "repeated": True})
    """Of a sweep, with which value; repeat it for several hyperparameters. (default: the one that meets the run's
    target on validation rows)"""
    client: str | None = field(default=None, metadata={"metavar": "NAME"})
    """Whose, where clients have models of their own."""


@dataclass(frozen=True)
class Output:
    """Where runs are kept and how to print."""

    runs: Path | None = field(default=None, metadata={"metavar": "DIR"})
    """Folder of the runs. (default: $EQUIFED_RUNS, else runs)"""
    json: bool = False
    """Print JSON on stdout, and nothing else there."""


@dataclass(frozen=True)
class Goal:
    """What a model is to reach."""

    target: list[str] | None = field(default=None, metadata={"metavar": "'METRIC OP NUMBER'", "repeated": True})
    """What the model is to reach, e.g. 'demographic_parity_difference <= 0.05', in place of what the run says. May be
    repeated."""
    confidence: str | None = field(default=None, metadata={"metavar": "X"})
    """How sure it must be that the target is met: between 0.5 and 1, or mean. (default: what the run says)"""

    @property
    def overrides(self) -> list[str]:
        """For a configuration."""
        given = {"run.target": self.target, "run.confidence": self.confidence}
        return [_override(key, value) for key, value in given.items() if value]

    @property
    def level(self) -> Any:
        """The confidence as a number, where it is one."""
        try:
            return None if self.confidence is None else float(self.confidence)
        except ValueError:
            return self.confidence


@dataclass(frozen=True)
class ReportOptions:
    """What `report` writes about runs."""

    page: Path | None = field(default=None, metadata={"metavar": "FILE", "flags": ("--output", "-o")})
    """The page. (default: equifed-report.html; none with --table, --csv or --json)"""
    title: str | None = None
    """The page's title. (default: methods and data)"""
    disparity: str | None = field(default=None, metadata={"metavar": "METRIC"})
    """What the verdict judges fairness by, e.g. equal_opportunity_difference."""
    baseline: str | None = field(default=None, metadata={"metavar": "METHOD"})
    """What the others are compared with. (default: fedavg, else the first)"""
    margin: float = field(default=MARGIN, metadata={"metavar": "X"})
    """How much accuracy the verdict may give up for fairness: 0.01 is one point (of an RMSE, 1 %)."""
    figures: Path | None = field(default=None, metadata={"metavar": "DIR"})
    """Also write the charts as files for a paper (needs the extra `figures`)."""
    formats: str = field(default="svg,png", metadata={"metavar": "A,B,..."})
    """Formats of the figures: svg, png, pdf."""
    table: str | None = field(default=None, metadata={"metavar": "FORMAT"})
    """Print the comparison as a table for a paper or a README on stdout, and nothing else there: latex or markdown."""
    columns: list[str] | None = None
    """Metrics of that table. (default: those that `compare` prints)"""
    csv: bool = False
    """Print all numbers as CSV on stdout, and nothing else there."""

    @property
    def for_programs(self) -> list[str]:
        """Options that want stdout for themselves."""
        return [option for option, given in (("--table", self.table), ("--csv", self.csv)) if given]


@dataclass(frozen=True)
class Tracking:
    """Who else is told how a run goes."""

    track: list[str] | None = field(default=None, metadata={"key": "run.track", "metavar": "TRACKER", "repeated": True})
    """Also tell a tracker how the run goes: mlflow[:URI], tensorboard:FOLDER, wandb[:PROJECT], module:Name, or none.
    May be repeated. (default: what the file says, else $EQUIFED_TRACK)"""


SHARING = "Sharing the work"
"""A panel of the help."""


def _sharing() -> Iterator[tuple[str, Any, Any]]:
    """A field for each setting of [cluster]."""
    for option in options_of(Cluster):
        flags = {"flags": ["--ray-address"]} if option.key == "address" else {}
        default = f" (default: {option.default:g})" if option.default is not None else ""
        facts = {
            **flags,
            "key": f"cluster.{option.key.replace('_', '-')}",
            "metavar": {int: "N", float: "X"}.get(type(option.default), "ADDRESS" if flags else "N"),
            "help": option.description + default,
            "panel": SHARING,
        }
        yield option.key, option.type | None, field(default=None, metadata=facts)


@dataclass(frozen=True)
class Sharing(make_dataclass("GeneratedSharing", _sharing(), frozen=True)):  # type: ignore[misc]
    """How the jobs of a study are shared out."""

    def cluster(self) -> Cluster:
        """For commands that have no configuration."""
        given = {each.name: getattr(self, each.name) for each in fields(Sharing)}
        return Cluster(**{name: value for name, value in given.items() if value is not None})


OWN = "Your own files, in place of a data set"
DATA = "Data"
TRAINING = "Training"
"""Panels of the help."""
_KINDS = {"A,B,...": list[str], "COLUMN=PARTS": list[str], "N": int, "X": float}
"""Types of options by their metavars; the others are texts."""


def _of(kind: type, fits: Callable[[Mapping[str, Any]], bool] = bool, panels: bool = False) -> Iterator[Any]:
    """Fields for those of `Columns` or `Holdout` that are options of commands, and whose metadata fit."""
    for option in options_of(kind):
        facts = option.field.metadata
        if "metavar" not in facts or not fits(facts):
            continue
        repeated = " E.g. admitted=year,month. May be repeated." if "repeated" in facts else ""
        text = option.description.partition("\n\n")[0]
        own = {"key": f"data.{option.key.replace('_', '-')}", "help": text + repeated}
        panel = {"panel": DATA if "named" in facts else OWN} if panels else {}
        hint = _KINDS.get(facts["metavar"], str)
        yield option.name, hint | None, field(default=None, metadata={**facts, **own, **panel})


class _Data:
    """Options of [data]."""

    def section(self, base: Path = Path()) -> dict[str, Any]:
        """What was given, as [data] of a configuration; the files are found from `base`."""
        found: dict[str, Any] = {}
        for name, value in self.given.items():
            if name == "data":
                found |= _sources(value, base)
            else:
                found[name.replace("_", "-")] = str(base / value) if name == "schema" else value
        return found

    @property
    def given(self) -> dict[str, Any]:
        """The options that were given, by the names of the fields."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]
        given = {name: value for name, value in values.items() if value is not None}
        return given | ({"dates": dates_of(given["dates"])} if "dates" in given else {})

    def flags(self, fits: Callable[[Mapping[str, Any]], bool] = bool) -> list[str]:
        """The options that were given and whose metadata fit, as one types them."""
        every = fields(self)  # type: ignore[arg-type]
        return sorted(_flag_of(each) for each in every if each.name in self.given and fits(each.metadata))


@dataclass(frozen=True)
class SummaryOptions(
    make_dataclass("GeneratedSummary", _of(Columns, lambda facts: "agreed" not in facts), frozen=True),  # type: ignore[misc]
    _Data,
):
    """What every silo must know to summarise its table."""


@dataclass(frozen=True)
class AgreementOptions(
    make_dataclass("GeneratedAgreement", _of(Columns, lambda facts: "agreed" in facts), frozen=True),  # type: ignore[misc]
    _Data,
):
    """What is settled when the summaries are there."""


@dataclass(frozen=True)
class ColumnOptions(make_dataclass("GeneratedColumns", _of(Columns), frozen=True), _Data):  # type: ignore[misc]
    """What the columns of one's own tables mean: all of that."""


@dataclass(frozen=True)
class _Files:
    data: list[str] | None = field(
        default=None, metadata={"key": "data.data", "metavar": "FILE,...", "repeated": True, "panel": OWN}
    )
    """One CSV, Parquet or Arrow file per client, called after it or NAME=FILE; or a folder of such files; or one table
    that --partition deals to clients. May be repeated."""
    schema: Path | None = field(default=None, metadata={"key": "data.schema", "metavar": "FILE", "panel": OWN})
    """The schema that they fit. (default: read off them, by the options below)"""


_TABLE = (*_of(Columns, panels=True), *_of(Holdout, panels=True))


@dataclass(frozen=True)
class TableOptions(make_dataclass("GeneratedTables", _TABLE, bases=(_Files,), frozen=True), _Data):  # type: ignore[misc]
    """One's own tables, and which rows of them or of a data set are held out."""

    def of(self, name: str | None) -> dict[str, Any]:
        """[data] for a data set of this name, or for the tables."""
        from equifed.data import DATASETS

        if name is None and not self.data:
            raise ConfigError(
                "Which data? Name a data set of `equifed data list`, or give your own files: "
                "--data north.csv,south.csv --label COLUMN --sensitive COLUMN."
            )
        if name is not None and self.data:
            raise ConfigError(f"The data set {quoted(name)} and --data are both given. Keep one of them.")
        if name is not None:
            allow(name)
        if name is not None and name not in DATASETS and Path(name).exists():
            raise ConfigError(f"{quoted(name)} is no data set but a file or a folder. Give it as --data {name}.")
        return ({} if name is None else {"name": name}) | self.section()


def _sources(given: Sequence[str], base: Path) -> dict[str, Any]:
    """What --data says: a folder, a table, or one file per client."""
    texts = [text for entry in given for text in ([entry] if Path(entry).exists() else split_names(entry, "--data"))]
    if len(texts) == 1 and Path(texts[0]).is_dir():
        return {"folder": str(base / texts[0])}
    if len(texts) == 1 and ("=" not in texts[0] or Path(texts[0]).exists()):
        return {"table": str(base / texts[0])}
    files: dict[str, str] = {}
    for text in texts:
        name, sign, file = text.partition("=")
        if not sign or Path(text).exists():
            name, file = Path(text).stem, text
        if Path(file).is_dir():
            raise ConfigError(f"{quoted(file)} is a folder. Give one folder, or files.", key="--data")
        if name in files:
            text = f"Two files are called {quoted(name)}. Name the clients: --data north=FILE,south=FILE."
            raise ConfigError(text, key="--data")
        files[name] = str(base / file)
    return {"files": files}


def files_of(given: Sequence[str]) -> dict[str, Path]:
    """Files that a command is given, or all tables of a folder, by the silos' names."""
    from equifed.federation.tables import named_tables

    found = _sources(given, Path())
    return named_tables(found.get("folder") or found.get("files") or [found["table"]]) or {}


def dates_of(given: Sequence[str]) -> dict[str, list[str]]:
    """What --date says: columns and the parts of their dates."""
    found: dict[str, list[str]] = {}
    for text in given:
        column, sign, parts = text.rpartition("=")
        if not sign or not column.strip() or not parts.strip():
            raise ConfigError(
                f"--date {quoted(text)} is not of the form COLUMN=PARTS, e.g. --date admitted=year,month."
            )
        found[column.strip()] = split_names(parts, "--date")
    return found


_OTHER_SECTIONS = {
    "preset": (
        DATA,
        "data.preset",
        "NAME",
        "How to read a data set: a preset of `equifed data describe`. (default: its first)",
    ),
    "partition": (
        DATA,
        "partition.kind",
        "KIND",
        "Who holds which rows of a data set or of one table, such as dirichlet or natural: docs/data.md has all. "
        "(default: the preset's own clients, or dirichlet)",
    ),
    "num_partitions": (DATA, "partition.num-partitions", "N", "Clients. (default: the preset's)"),
    "alpha": (DATA, "partition.alpha", "X", "Dirichlet concentration; small is heterogeneous. (default: 0.5)"),
    "by": (DATA, "partition.column", "COLUMN", "Of --partition natural: the column that says whose row it is."),
    "model": (TRAINING, "model.kind", "KIND", "logistic, linear, mlp or lenet. (default: by the data)"),
}
"""Options of other sections than [run] and [local]: the panel of the help, the key, the metavar and the help."""


def _generated() -> Iterator[tuple[str, Any, Any]]:
    """A field for each key of a configuration that is an option of `compare` and `sweep`, as text."""
    for name, (panel, key, metavar, text) in _OTHER_SECTIONS.items():
        facts = {"key": key, "metavar": metavar, "help": text, "panel": panel}
        yield name, str | None, field(default=None, metadata=facts)
    for section, kind in (("run", RunSettings), ("local", Local)):
        for option in options_of(kind):
            yield option.key, *_option(section, option)


def _option(section: str, option: Option) -> tuple[Any, Any]:
    """The type and the field of a setting as an option of the command line."""
    own = option.field.metadata
    key = f"{section}.{option.key.replace('_', '-')}"
    if type(option.default) is bool:
        facts = {"key": key, "help": option.description, "panel": TRAINING}
        return bool | None, field(default=None, metadata=facts)
    metavar = own.get("metavar") or {int: "N", float: "X", str: "NAME"}.get(type(option.default), "VALUE")
    default = "" if option.default in (None, ()) else f" (default: {str(option.default).lower()})"
    more = " May be repeated." if "repeated" in own else ""
    facts = {
        **{name: own[name] for name in ("repeated",) if name in own},
        "key": key,
        "metavar": metavar,
        "help": option.description + default + more,
        "panel": TRAINING,
    }
    return (list[str] if "repeated" in own else str) | None, field(default=None, metadata=facts)


@dataclass(frozen=True)
class Settings(Tracking, Sharing, make_dataclass("Generated", _generated(), frozen=True)):  # type: ignore[misc]
    """The settings of `compare` and `sweep`: a configuration without a file."""

    set: list[str] | None = field(default=None, metadata={"metavar": "KEY=VALUE", "repeated": True, "panel": TRAINING})
    """Any other setting, e.g. --set model.hidden=[10], or a hyperparameter of a method: --set fedprox.mu=0.1. May be
    repeated."""

    def overrides(self, method: str, others: Collection[str] = ()) -> list[str]:
        """All settings as "section.key=value"; from --set, METHOD.NAME=VALUE is for that method alone."""
        from equifed.config import SECTIONS
        from equifed.methods import REGISTRY

        kept = keyed(self)
        for text in self.set or ():
            path, _, value = text.partition("=")
            # a module's name may have dots, a key has none
            head, _, rest = path.strip().rpartition(".") if ":" in path else path.strip().partition(".")
            if head in SECTIONS or not rest:  # a section wins over a method of the same name, which is only "local"
                if head == "method" and others:
                    raise ConfigError(f"--set {text}: say which method, e.g. --set fedprox.mu=0.1.")
                kept.append(text)
            elif not _is_method(head):
                raise ConfigError(f"--set {text}: {unknown_name('section or method', head, {*SECTIONS, *REGISTRY})}")
            elif head == method:
                kept.append(f"method.{rest}={value}")
            elif head not in others:
                raise ConfigError(f"--set {text}: {head} is not among the methods of this command.")
        return kept


def _is_method(name: str) -> bool:
    from equifed.methods import REGISTRY, unwrap

    base, _ = unwrap(name)
    allow(base)
    return base in REGISTRY


def keyed(options: Any) -> list[str]:
    """The options that were given and are keys of a configuration, as overrides of it."""
    typed = {each.metadata["key"]: getattr(options, each.name) for each in fields(options) if "key" in each.metadata}
    return [_override(key, value) for key, value in typed.items() if value is not None]


def _override(key: str, value: str | bool | list[str]) -> str:
    """An option as "section.key=value"; a list's texts are quoted as TOML does."""
    return f"{key}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"


_ALSO = {"data.files": "--data", "data.folder": "--data", "data.table": "--data", "partition": "--partition"}
"""Options that have another name than their key."""


@contextmanager
def naming_options() -> Iterator[None]:
    """Errors about a setting name the option that gives it, --rounds, not the key of a configuration file."""
    try:
        yield
    except EquifedError as error:
        known = (*fields(TableOptions), *fields(Settings))
        flags = {each.metadata["key"]: _flag_of(each) for each in known if "key" in each.metadata} | _ALSO
        if error.where in flags:
            error.section, error.key = "", flags[error.where]
        raise


Trust = Annotated[
    list[str] | None,
    typer.Option(
        "--trust",
        metavar="MODULE",
        help="Allow names of this module, module:Name, that only a file asks for: importing it runs its code. May be "
        "repeated.",
    ),
]
FailIf = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if",
        metavar="'METRIC OP NUMBER'",
        help="Exit with 1 if this holds for the mean over seeds of the final test metric, or if that is undefined for "
        "a seed, e.g. --fail-if 'accuracy < 0.6'; also 'target missed', if the target is not met with the confidence "
        "asked for, and 'constraint violated'. May be repeated.",
    ),
]


Margin = Annotated[
    float,
    typer.Option(
        metavar="X",
        help="How much accuracy the verdict may give up for fairness: 0.01 is one point (of an RMSE, 1 %).",
    ),
]


def split_names(text: str, option: str) -> list[str]:
    """The names in "A,B,..."; none, or only commas, is a mistake."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ConfigError(f"{option} {text!r} names nothing; write {option} A,B,...")
    return names


def command(app: typer.Typer, name: str | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command: the fields of its dataclass parameters are options, its errors exit codes."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        app.command(name)(guarded(_expanded(function)))
        return function

    return add


def _expanded(function: Callable[..., None]) -> Callable[..., None]:
    """Let typer see every field of a dataclass parameter as an option of its own; a list is written A,B,..."""
    parameters: list[inspect.Parameter] = []
    bundles: dict[str, Any] = {}
    lists: dict[str, str] = {}
    for name, given in inspect.signature(function, eval_str=True).parameters.items():
        parameter = given.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        if not is_dataclass(given.annotation):
            parameters.append(parameter)
            continue
        bundles[name] = given.annotation
        for each, option in zip(fields(bundles[name]), options_of(bundles[name]), strict=True):
            facts, hint, flag = each.metadata, option.type, _flag_of(each)
            metavar = facts.get("metavar") or {int | None: "N", list[str] | None: "A,B,..."}.get(hint)
            if hint == list[str] | None and not facts.get("repeated"):
                lists[each.name], hint = flag, str | None
            text = " ".join((facts.get("help") or option.description).split())
            info = typer.Option(
                *facts.get("flags", [flag]),
                metavar=metavar,
                help=text,
                min=option.low,
                rich_help_panel=facts.get("panel"),
            )
            parameters.append(parameter.replace(name=each.name, default=each.default, annotation=Annotated[hint, info]))

    @functools.wraps(function)
    def call(**values: Any) -> None:
        for name, flag in lists.items():
            values[name] = split_names(values[name], flag) if values[name] is not None else None
        made = {
            name: kind(**{each.name: values.pop(each.name) for each in fields(kind)}) for name, kind in bundles.items()
        }
        function(**values, **made)

    del call.__wrapped__
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _flag_of(option: Field[Any]) -> str:
    flags: Sequence[str] = option.metadata.get("flags") or (f"--{option.name.replace('_', '-')}",)
    return flags[0]
