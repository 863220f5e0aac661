"""What the columns of a table mean and which of its rows are held out: one declaration for Python, configuration files
and commands. Importing it waits for no other package, so that the commands start quickly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from equifed.errors import ConfigError, check_number, unknown_name

if TYPE_CHECKING:
    from equifed.data.dates import DatePart
    from equifed.data.schema import Sensitive

Encoding = Literal["ordinal", "onehot"]
Scaling = Literal["minmax", "standard", "none"]
TaskKind = Literal["classification", "regression"]
Missing = Literal["impute", "median", "mean", "category", "drop", "refuse"]
"""What is done about missing values. Numbers become the "median" or the "mean" of all, with an input that says where;
"impute" is "median". Categories have one for it, also with these three. "category" is for categories only, numbers are
refused. "drop" leaves rows out, "refuse" takes none."""

BESIDE_SCHEMA = ("label", "sensitive", "positive", "meaning")
"""Columns' fields that may be given beside a schema, which they have to fit. The others are settled by it."""
TEST, MAPPED_TEST = 0.2, 0.01
"""Default shares of the rows to test on: of tables in memory, and of mapped files."""


@dataclass(frozen=True)
class Columns:
    """Meaning of the columns of a table, from which its schema is made.

    Fields marked `agreed` are settled when the summaries of all silos are there; every silo must know the others to
    summarise its table. Those with a `metavar` are options of commands, whose help is the first paragraph, and keys of
    [data], too; those that are `named` also go with a named data set.
    """

    label: str | None = field(default=None, metadata={"metavar": "COLUMN"})
    """Column to be predicted."""
    sensitive: str | Sensitive | Sequence[str | Sensitive] | None = field(
        default=None, metadata={"metavar": "A,B,...", "named": True}
    )
    """Columns whose values are the groups; of several, their intersections. Default for a named data set: the preset's.

    Where one of them is empty, the group is unknown: the row takes part in training, but in nothing said of groups. An
    empty list makes all rows one group."""
    features: Sequence[str] | None = field(default=None, metadata={"metavar": "A,B,..."})
    """Input columns. Default: all that look like inputs; `equifed data describe` says which."""
    drop: Sequence[str] = field(default=(), metadata={"metavar": "A,B,..."})
    """Columns not used as inputs."""
    dates: Mapping[str, Sequence[DatePart]] | None = field(
        default=None, metadata={"metavar": "COLUMN=PARTS", "flags": ("--date",), "repeated": True}
    )
    """Columns of dates that are inputs, and the parts that become numbers: year, quarter, month, week, day, weekday,
    hour, days, ..."""
    missing: Missing | Mapping[str, Missing] | None = field(default=None, metadata={"metavar": "RULE", "agreed": True})
    """What is done about missing values: impute (the median, and a category of its own), median, mean, category, drop
    or refuse. Default: impute.

    Or a rule for each of some columns, {"age": "mean"}; the others have the default."""
    na_values: Sequence[str | int | float] | None = field(default=None, metadata={"metavar": "A,B,..."})
    """Words that mean a missing value, as an empty cell does: NA, ?, -9. Default: none, and a warning says which values
    look like it."""
    min_count: int | None = field(default=None, metadata={"metavar": "N", "low": 0})
    """Rows that a value must have in a table to be written into a schema; a rarer category becomes part of "other".
    Default: 10.

    Of mapped files it is 0: everything is written."""
    min_group: int = field(default=0, metadata={"metavar": "N", "low": 0, "agreed": True, "named": True})
    """Groups with fewer rows than this, of all clients' rows, become one, "other (merged)". Default: 0."""
    positive: str | int | float | None = field(default=None, metadata={"metavar": "VALUE", "agreed": True})
    """Label value that is class 1."""
    meaning: str = field(default="", metadata={"metavar": "TEXT", "agreed": True})
    """What that value says of a row, in a few words for the report."""
    categorical: Sequence[str] = ()
    """Columns of numbers that are codes of categories."""
    task: TaskKind = "classification"
    """What is predicted: classes, or for regression a number."""
    encoding: Encoding = field(default="onehot", metadata={"agreed": True})
    """How categories become numbers: "onehot" or "ordinal"."""
    scaling: Scaling = field(default="standard", metadata={"agreed": True})
    """How numbers are scaled: "standard" (fitted on training rows), "minmax" or "none"."""
    sensitive_as_input: bool = False
    """Whether the sensitive columns are inputs as well."""
    privileged: str | None = field(default=None, metadata={"agreed": True})
    """Group that has the last code."""
    label_range: tuple[float, float] | None = field(default=None, metadata={"agreed": True})
    """Regression: label values that become 0 and 1."""

    def __post_init__(self) -> None:
        for key in ("features", "drop", "categorical"):
            if isinstance(value := getattr(self, key), str):
                text = f"must be a list of column names, got {value!r}. Write [{value!r}]."
                raise ConfigError(text, key=key, value=value)
            if value is not None:
                object.__setattr__(self, key, tuple(value))
        for key, kind in (("task", TaskKind), ("encoding", Encoding), ("scaling", Scaling)):
            if (value := getattr(self, key)) not in get_args(kind):
                raise unknown_name(key, value, get_args(kind), key=key)
        own = self.missing if isinstance(self.missing, Mapping) else {"": self.missing or "impute"}
        for rule in own.values():
            if rule not in get_args(Missing):
                raise unknown_name("rule for missing values", rule, get_args(Missing), key="missing")
        if self.na_values is not None:
            from equifed.data.missing import check_na_values

            check_na_values(self.na_values)
            object.__setattr__(self, "na_values", tuple(self.na_values))
        check_number("min_count", self.min_count or 0, whole=True, low=0)
        check_number("min_group", self.min_group, whole=True, low=0)

    @property
    def rules(self) -> tuple[Sensitive, ...]:
        """Rules by which the values of each sensitive column become groups."""
        from equifed.data.schema import Sensitive
        from equifed.partition.base import check_column

        given = self.sensitive if self.sensitive is not None else ()
        listed = given if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
        rules = tuple(
            rule if isinstance(rule, Sensitive) else Sensitive(column=check_column("sensitive", rule))
            for rule in listed
        )
        names = [rule.column for rule in rules]
        if twice := [name for i, name in enumerate(names) if name in names[:i]]:
            raise ConfigError(f"names the column {twice[0]!r} twice.", key="sensitive", value=twice[0])
        return rules

    @property
    def parts(self) -> dict[str, tuple[DatePart, ...]]:
        """Parts of the dates of each such column."""
        from equifed.data.dates import PARTS

        found: dict[str, tuple[DatePart, ...]] = {}
        for column, wanted in (self.dates or {}).items():
            found[str(column)] = (wanted,) if isinstance(wanted, str) else tuple(wanted)  # type: ignore[assignment]
            for part in found[str(column)]:
                if part not in PARTS:
                    raise unknown_name("part of a date", part, PARTS, key="dates")
            if not found[str(column)]:
                raise ConfigError(f"names no part of {column!r}. Parts: {', '.join(PARTS)}.", key="dates")
        return found

    @property
    def given(self) -> dict[str, Any]:
        """Fields that differ from their defaults."""
        values = {each.name: (getattr(self, each.name), each.default) for each in fields(self)}
        return {name: value for name, (value, default) in values.items() if value is not default and value != default}

    @property
    def agreed(self) -> Columns:
        """The same without what the silos' summaries say."""
        agreed = {each.name for each in fields(self) if each.metadata.get("agreed")}
        return Columns(**{name: value for name, value in self.given.items() if name in agreed})

    def check_mapped(self) -> None:
        """Refuse what is not for files that are read piece by piece."""
        for key in ("min_group", "min_count"):
            if getattr(self, key):
                raise ConfigError("is not for mapped files.", key=key)


@dataclass(frozen=True)
class Holdout:
    """Rows that are held out of training: to test on, and for the server to choose settings on."""

    test: float | None = field(default=None, metadata={"metavar": "X", "low": 0, "below": 1})
    """Share of the rows to test on; of a file per client, of each client's rows. Default: 0.2.

    Of mapped files, default: 0.01."""
    validation: float = field(default=0.0, metadata={"metavar": "X", "low": 0, "below": 1, "named": True})
    """Share of the rows that the server takes from the training rows, to choose settings on; the test rows stay the
    same. Default: 0; of a named data set, the preset's; 0.1 where a target chooses among settings and there would be
    none.

    In Python, default: 0."""
    client_test: float = 0.0
    """Share of each client's training rows for a test of its own, where one table is dealt to clients. Of a table per
    client, each client's test rows are its own anyway."""
    test_file: str | Path | None = None
    """File with the test rows, in place of a share of mapped files."""
    validation_file: str | Path | None = None
    """File with the server's validation rows, in place of a share of mapped files or of the clients' tables."""

    def __post_init__(self) -> None:
        test = TEST if self.test is None else self.test
        for key, share in (("test", test), ("validation", self.validation), ("client_test", self.client_test)):
            check_number(key, share, low=0, high=1)
        for part in ("test", "validation"):
            if getattr(self, f"{part}_file") is not None and getattr(self, part):
                text = f"Give the {part} rows as a file or as a share of the rows, not both; keep one of them."
                raise ConfigError(text, key=f"{part}_file")

    def fill(self, tables: Literal["one table", "table per client", "mapped files"]) -> Holdout:
        """Return this with the default share of such tables filled in; refuse what is not for them."""
        for key, fits, text in (
            ("client_test", ("one table",), "is only for one table that a partition deals to clients."),
            (
                "validation_file",
                ("table per client", "mapped files"),
                "belongs to one file per client or to mapped files, not to a table that a partition deals.",
            ),
            ("test_file", ("mapped files",), "is only for mapped files."),
        ):
            if getattr(self, key) and tables not in fits:
                raise ConfigError(text, key=key, value=getattr(self, key))
        share = TEST if tables != "mapped files" else MAPPED_TEST if self.test_file is None else 0.0
        return self if self.test is not None else replace(self, test=share)

    @property
    def split(self) -> tuple[float, float, float]:
        """Shares for training, validation and test."""
        assert self.test is not None  # by `fill`
        return (1 - self.validation - self.test, self.validation, self.test)
