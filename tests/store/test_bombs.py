"""Files of a run's folder or a package that would fill the memory, or are not what their name says: they
are refused with the file's name, before their rows are read."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from equifed.config import load_config
from equifed.errors import RunError
from equifed.files import MOST_JSON, checksum
from equifed.store import Store, load_model, load_result
from equifed.store.results import FRAMES
from equifed.store.sums import Sums
from store.silos import write_config, write_silos

ROWS = 30_000_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("made")
    write_silos(place)
    config = load_config(write_config(place, run={"rounds": 2, "seeds": [0]}))
    with Store(place / "runs").start(config, id="run") as recording:
        for _ in recording.rounds():
            pass
        recording.finish()
    return place / "runs" / "run"


@pytest.fixture
def received(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def put(folder: Path, name: str, content: bytes) -> None:
    """In place of a file, with all checksums made to fit."""
    (folder / name).write_bytes(content)
    sums = Sums.load(folder, "")
    sums[name] = checksum(content)
    sums.save()


def packed(columns: dict[str, Any], rows: int) -> bytes:
    """Equal rows, which hardly take room on a disk."""
    chunk = 1_000_000
    table = pa.table({name: pa.array([value] * chunk).dictionary_encode() for name, value in columns.items()})
    file = pa.BufferOutputStream()
    with pq.ParquetWriter(file, table.schema, compression="zstd") as writer:
        for _ in range(rows // chunk):
            writer.write_table(table)
    return bytes(file.getvalue())


def parquet(frame: pd.DataFrame) -> bytes:
    return bytes(frame.to_parquet(index=False))


MEASURED = {"method": "m", "seed": 0, "round": 1, "split": "test", "scope": "global", "metric": "loss", "value": 0.5}


@pytest.mark.parametrize("columns", [{"x": 0.0}, MEASURED], ids=["another table", "with its columns"])
@pytest.mark.sample(1)
def test_a_bomb_is_refused_before_its_rows_are_read(columns: dict[str, Any], received: Path) -> None:
    """In a process that may take no more memory than a small result needs, besides that of the libraries."""
    content = packed(columns, ROWS)
    assert len(content) < 5_000_000
    put(received, "metrics.parquet", content)
    program = f"""
import pathlib, re, resource
import pandas, pyarrow.parquet, torch
from equifed import load_result
status = pathlib.Path("/proc/self/status")
taken = int(re.search(r"VmData:\\s*(\\d+)", status.read_text())[1]) * 1024 if status.exists() else 0
resource.setrlimit(resource.RLIMIT_DATA, (taken + 2**29, taken + 2**29))
try:
    load_result({str(received)!r})
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.startswith("RunError"), done.stdout + done.stderr
    assert "metrics.parquet" in done.stdout
    assert ("no such column" if "x" in columns else "suspiciously well packed") in done.stdout


@pytest.mark.parametrize("name", FRAMES)
def test_a_table_without_its_columns_or_with_other_values_is_refused_by_name(name: str, received: Path) -> None:
    wrong: list[tuple[bytes, str]] = [
        (parquet(pd.DataFrame({"x": [1.0]})), "Column 'method': the table has no such column"),
        (b"PAR1 and no more", "cannot be read as Parquet"),
        (b"", "cannot be read as Parquet"),
    ]
    frame = pd.DataFrame({column: [0.0 if kind == "number" else "a"] for column, kind in FRAMES[name].items()})
    for column, kind in FRAMES[name].items():
        other: Any = [["a"]] if kind != "number" else ["a"]
        wrong.append((parquet(frame.assign(**{column: other})), f"Column '{column}': it holds"))
        wrong.append((parquet(frame.drop(columns=column)), f"Column '{column}'"))
    for content, said in wrong:
        put(received, f"{name}.parquet", content)
        with pytest.raises(RunError, match=rf"{name}\.parquet cannot be") as caught:
            load_result(received)
        assert said in str(caught.value)
        assert "equifed run" in str(caught.value)  # what can be done


@pytest.mark.parametrize(
    ("name", "read"),
    [
        *((name, load_result) for name in ("result.json", "messages.json", "rejections.json", "timings.json")),
        ("model.json", lambda folder: load_model(folder / "model")),
    ],
)
@pytest.mark.sample(1)
def test_json_that_is_too_large_too_deep_or_none_is_refused_by_name(
    name: str, read: Callable[[Path], Any], received: Path
) -> None:
    inside = received / "model" if name == "model.json" else received
    for content in (b"[" * 200_000, b"\xff", b"{", b"", b"1" * 5000):
        put(inside, name, content)
        with pytest.raises(RunError, match=rf"{name} cannot be read as JSON"):
            read(received)
    with open(inside / name, "wb") as file:  # which takes no room on the disk
        file.truncate(MOST_JSON + 1)
    with pytest.raises(RunError, match=name):
        read(received)


def test_what_says_how_a_run_stands_is_read_up_to_a_size(received: Path) -> None:
    with open(received / "status.json", "wb") as file:
        file.truncate(MOST_JSON + 1)
    with pytest.raises(RunError, match=r"status\.json cannot be read: .*Larger than 256 MiB"):
        Store(received.parent).find(str(received)).status()


def test_a_whole_result_is_read_as_before(received: Path) -> None:
    result = load_result(received)
    assert json.loads((received / "result.json").read_bytes())["info"]["method"] == result.info["method"] == "fedavg"
