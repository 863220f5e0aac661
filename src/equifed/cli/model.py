"""`equifed predict` and `equifed export`: a run's model on new rows, and as a program for elsewhere."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equifed.cli.console import near, print_json, say
from equifed.cli.options import Output, Which
from equifed.errors import ConfigError, blaming, unknown_name
from equifed.files import check_writable, write_atomic
from equifed.words import clean, csv_of, quoted

if TYPE_CHECKING:
    import pandas as pd

    from equifed.results.model import Model

DECISION, VALUE, ROW = "decision", "value", "row"
"""Columns of scored rows; those of probabilities are named after the classes."""
PROBABILITY = "probability of {}"


def load(reference: str, which: Which, output: Output) -> Model:
    from equifed.store import load_model

    wanted = {"seed": which.seed, "setting": _setting(which.setting), "client": which.client}
    return load_model(reference, runs=output.runs, **wanted)  # type: ignore[arg-type]


def _setting(texts: Sequence[str] | None) -> dict[str, float] | None:
    found = {}
    for text in texts or ():
        name, _, value = text.partition("=")
        try:
            found[name.strip().replace("-", "_")] = float(value)
        except ValueError:
            raise ConfigError(
                f"--setting {quoted(text)} is not of the form NAME=VALUE with a number, e.g. mu=0.1."
            ) from None
    return found or None


def predict(
    reference: str,
    file: Path,
    out: Path | None,
    id: str | None,
    keep: str | None,
    draw: int,
    which: Which,
    output: Output,
) -> None:
    from equifed.cli.options import split_names
    from equifed.data.fit import count_unlisted
    from equifed.federation.tables import read_table

    if output.json and out is None:
        raise ConfigError("The scored rows and --json both want stdout. Name a file for the rows: --out FILE.")
    if out is not None:
        if not out.name.endswith((".csv", ".parquet")):
            raise ConfigError(f"--out {out} must end in .csv or .parquet.")
        check_writable(out.parent, "Name another file with --out.")
    model = load(reference, which, output)
    if model.schema is None:
        raise ConfigError(
            f"{model!r} was trained on arrays, and nothing says which columns of a table they are. Predict in Python: "
            "equifed.load_model(...).predict(x)."
        )
    kept = split_names(keep, "--keep") if keep is not None else []
    frame = read_table(file, model.schema.na_values)
    with blaming(file=file.name):
        scored = score(model, frame, id, kept, draw)
    if out is None:
        sys.stdout.write(csv_of(scored))
    elif out.suffix == ".parquet":
        write_atomic(out, scored.to_parquet(index=False))
    else:
        write_atomic(out, csv_of(scored).encode())
    unknown = count_unlisted(model.schema, frame)
    decided = dict(Counter(map(str, scored[DECISION]))) if model.is_classifier else {}
    if output.json:
        about = {"method": model.method, "seed": model.seed, "setting": model.setting, "client": model.client}
        facts = {"decisions": decided, "drawn": model.draws, "unknown_categories": unknown}
        print_json({"rows": len(scored), "out": str(out), "model": about, **facts})
        return
    counted = f": {', '.join(f'{number:,} {name}' for name, number in decided.items())}" if decided else ""
    say(f"{len(scored):,} rows scored by {model!r}{counted}")
    if model.draws:
        say("Some decisions are drawn by chance: the same file gives the same, another order of rows or --draw others.")
    if out is not None:
        say(f"Written: {near(out)}")
    if unknown:
        rows = ", ".join(f"{clean(name)} in {count:,} of {len(scored):,} rows" for name, count in unknown.items())
        say(f"Categories that the model does not know: {rows}.")


def score(model: Model, frame: pd.DataFrame, id: str | None, keep: Sequence[str], draw: int = 0) -> pd.DataFrame:
    """The rows' numbers or ids, the columns to keep, and what the model says of each."""
    import pandas as pd

    from equifed.results.model import probabilities

    found = model.scores(frame, draw=draw)
    made: dict[str, Any] = {}
    if model.is_classifier:
        shares = probabilities(found)
        made |= {PROBABILITY.format(name): shares[:, k] for k, name in enumerate(model.labels)}
        made[DECISION] = model.classes_[model.codes(found)]
    else:
        made[VALUE] = model.in_label_unit(found)
    columns = [*([id] if id is not None else []), *(name for name in keep if name != id)]
    for name in columns:
        if name not in frame.columns:
            raise unknown_name("column", name, map(str, frame.columns))
        if name in made:
            raise ConfigError(f"The column {name!r} has the name of one that is written. Rename it in the file.")
    first = {} if id is not None else {ROW: frame.index}
    return pd.DataFrame({**first, **{name: frame[name] for name in columns}, **made})


def export(reference: str, onnx: Path | None, torch: Path | None, which: Which, output: Output) -> None:
    from equifed.results.export import to_torch
    from equifed.results.onnx import to_onnx

    wanted = [(path, make) for path, make in ((onnx, to_onnx), (torch, to_torch)) if path is not None]
    if not wanted:
        raise ConfigError("What is to be written? Give --onnx FILE.onnx, --torch FILE.pt2, or both.")
    for path, _ in wanted:
        if path.is_dir():
            raise ConfigError(f"{path} is a folder. Name a file in it.")
        check_writable(path.parent, "Name another file.")
    model = load(reference, which, output)
    written = [(path, make(model)) for path, make in wanted]  # all of them before the first is written
    for path, content in written:
        write_atomic(path, content)
    if output.json:
        print_json({"written": [str(path) for path, _ in written], "columns": model.columns, "classes": model.labels})
        return
    for path, content in written:
        say(f"Written: {near(path)} ({len(content):,} bytes), which says of sample rows what the model says")
