"""Somebody's own tables: what they hold, whether they fit a schema, and how silos agree on one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from equifed.cli.console import near, print_json, say, show
from equifed.cli.options import files_of
from equifed.cli.tables import plain_table
from equifed.data import Columns, agree, summarise
from equifed.data.describe import ColumnFacts, TableFacts, describe_tables
from equifed.data.fit import Misfit, misfits
from equifed.errors import ConfigError, DataError, blaming
from equifed.federation.reading import read_table
from equifed.federation.tables import check_inputs, infer_schema, na_values_of, read_schema, read_summary, titles
from equifed.files import write_atomic
from equifed.words import clean, quoted


def describe(given: Sequence[str], columns: Columns, json: bool) -> None:
    """Columns, kinds, missing shares, labels and groups of files, which are the reader's own."""
    paths = files_of(given)
    names, words = titles(paths), na_values_of(columns)
    frames = {names[silo]: read_table(path, words) for silo, path in paths.items()}
    label, sensitive = columns.label, [rule.column for rule in columns.rules]
    known = {str(name) for frame in frames.values() for name in frame.columns}
    for option, name in [("--label", label), *(("--sensitive", each) for each in sensitive)]:
        if name is not None and name not in known:
            raise ConfigError(f"{option}: none of the files has a column {quoted(name)}. They have: {_list(known)}.")
    schema, problem = None, "Give --label and --sensitive to see what would be made of the files."
    if label is not None and sensitive:
        try:
            schema = infer_schema(frames, columns)
            check_inputs(schema)
            problem = ""
        except DataError as error:
            problem = f"They cannot be used as they are: {error}"
    tables, facts = describe_tables(frames, columns, schema)
    if json:
        print_json(
            {
                "files": [asdict(each) for each in tables],
                "columns": [asdict(each) for each in facts],
                "inputs": None if schema is None else list(schema.input_names),
                "problem": problem or None,
            }
        )
        return
    show(_files_table(tables, label, sensitive), "", _columns_table(facts, len(tables)))
    if schema is not None:
        count = len(schema.input_names)
        show("", f"{count} {'input' if count == 1 else 'inputs'}: {_list(schema.input_names)}.")
    if problem:
        say(problem)


def _list(names: Any) -> str:
    shown = [clean(name, 60) for name in list(names)[:30]]
    return ", ".join(shown) + (f" and {len(names) - 30} more" if len(names) > 30 else "")


def _files_table(tables: Sequence[TableFacts], label: str | None, sensitive: Sequence[str]) -> Table:
    asked = [*([label] if label else []), *sensitive]
    table = plain_table("file", "rows", *asked, "lacks", numbers=[1])
    for each in tables:
        counts = (
            [each.labels, *(each.groups.get(name, {}) for name in sensitive)] if label else list(each.groups.values())
        )
        cells = (", ".join(f"{value} {count:,}" for value, count in found.items()) or "-" for found in counts)
        table.add_row(each.name, f"{each.rows:,}", *cells, ", ".join(each.lacks) or "-")
    return table


def _columns_table(facts: Sequence[ColumnFacts], files: int) -> Table:
    table = plain_table("column", "holds", "missing", "values", "use", numbers=[2, 3])
    for each in facts:
        missing = f"{each.missing / each.rows:.1%}" if each.rows else "-"
        use = f"{each.use}: {each.why}" if each.why else each.use
        there = "" if each.tables == files else f" (in {each.tables} of {files} files)"
        table.add_row(each.name, each.kind, missing, f"{each.distinct:,}", use + there)
    return table


# -- fitting a schema --------------------------------------------------------------------------------------------------


def check(given: Sequence[str], file: Path, json: bool) -> None:
    """What each file lacks to be used with the schema; an error at the end if one cannot be."""
    schema, paths = read_schema(file), files_of(given)
    names = titles(paths)
    found: dict[str, list[Misfit]] = {}
    rows: dict[str, int | None] = {}
    for silo, path in paths.items():
        try:
            frame = read_table(path, schema.na_values)
        except DataError as error:
            found[names[silo]], rows[names[silo]] = [Misfit("", error.text)], None
            continue
        found[names[silo]], rows[names[silo]] = misfits(schema, frame), len(frame)
    refused = [name for name, problems in found.items() if any(each.refused for each in problems)]
    if json:
        files = [
            {
                "file": name,
                "rows": rows[name],
                "fits": name not in refused,
                "problems": [each._asdict() for each in all_],
            }
            for name, all_ in found.items()
        ]
        print_json({"schema": str(file), "fits": not refused, "files": files})
    else:
        for name, problems in found.items():
            count = "" if rows[name] is None else f" ({rows[name]:,} rows)"
            show(f"{name}{count}: {'does not fit' if name in refused else 'fits'}")
            for each in sorted(problems, key=lambda problem: not problem.refused):
                column = f"{each.column}: " if each.column else ""
                show(f"  {'-' if each.refused else 'note:'} {column}{each.text}")
    if refused:
        raise DataError(f"{len(refused)} of {len(found)} files cannot be used with {near(file)}: {', '.join(refused)}.")


# -- agreeing on one ---------------------------------------------------------------------------------------------------


def summarise_file(file: Path, columns: Columns, out: Path | None) -> None:
    """What a silo may tell of its file, so that a schema can be agreed on."""
    if columns.label is None:
        raise ConfigError("Which column is to be predicted? Give --label COLUMN.")
    with blaming(file=file.name):
        summary = summarise(read_table(file, na_values_of(columns)), columns, name=file.stem)
    _written(summary.to_json(), out)
    limit = (
        f"Nothing in it is about fewer than {summary.min_count} rows." if summary.min_count else "It tells everything."
    )
    say(f"{limit} Read it before you hand it over.")


def agree_on(files: Sequence[Path], columns: Columns, out: Path | None) -> None:
    """The schema that the summaries make."""
    schema = agree([read_summary(file) for file in files], columns)
    check_inputs(schema)
    _written(schema.to_json(), out)
    for each in schema.left_out:
        say(f"{each.column} is left out: {each.reason}.")


def _written(text: str, out: Path | None) -> None:
    if out is None:
        print(text, end="")
        return
    write_atomic(out, text.encode())
    say(f"Written: {near(out)}")
