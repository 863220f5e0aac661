"""Files that no silo should have: refused with the place, in few words, and before they fill the memory."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from equifed import Columns
from equifed.data import Schema
from equifed.errors import ConfigError, DataError, EquifedError
from equifed.federation import reading
from equifed.federation.reading import read_table
from equifed.federation.tables import encode_file, read_schema
from equifed.words import MOST


def frame(rows: int = 6) -> pd.DataFrame:
    return pd.DataFrame({"age": np.arange(rows) + 20.0, "sex": ["f", "m"] * (rows // 2), "ill": [0, 1] * (rows // 2)})


@pytest.fixture
def schema() -> Schema:
    return Schema.infer(frame(), Columns(label="ill", sensitive="sex", min_count=0))


@pytest.mark.parametrize("suffix", ["csv", "csv.gz"])
def test_a_column_that_is_there_twice_is_refused_by_name(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"x.{suffix}"
    text = b'age,"ill",sex,ill\n20,0,f,1\n21,1,m,0\n'
    file.write_bytes(gzip.compress(text) if suffix == "csv.gz" else text)
    with pytest.raises(DataError, match="Column 'ill': the column appears 2 times in the file"):
        read_table(file)


def test_columns_without_a_name_are_no_duplicates(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(",age,,ill.1,ill\n0,1,2,3,4\n")
    assert read_table(tmp_path / "x.csv")["ill"].tolist() == [4]


def test_a_name_that_no_file_can_have_is_that_of_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There is no such file") as error:
        read_table(tmp_path / ("x" * 5000 + ".csv"))
    assert len(str(error.value)) < 2 * MOST


@pytest.mark.parametrize("cell", [[1, 2], {"a": 1}, np.array([1.0])], ids=["list", "table", "array"])
@pytest.mark.parametrize("column", ["age", "sex", "ill"])
def test_a_column_of_lists_names_column_and_row(column: str, cell: object, schema: Schema) -> None:
    odd = frame()
    odd[column] = [cell if row == 3 else value for row, value in enumerate(odd[column])]
    with pytest.raises(DataError, match=f"Column '{column}', row 3: the cell holds several values"):
        schema.encode(odd)
    with pytest.raises(DataError, match=f"Column '{column}', row 3: the cell holds several values"):
        Schema.infer(odd, Columns(label="ill", sensitive="sex"))


@pytest.mark.parametrize("column", ["age", "sex", "ill"])
def test_a_huge_cell_is_cut_in_the_error(column: str, schema: Schema) -> None:
    odd = frame().astype({column: object})
    odd.loc[3, column] = "\x1b[31m" + "x" * 50_000_000
    with pytest.raises(DataError) as error:
        schema.encode(odd)
    assert len(str(error.value)) < 2 * MOST
    assert str(error.value).isprintable()


@pytest.mark.parametrize("content", [b"\0", b"1,", b'"', b"1\n"], ids=["zeros", "columns", "quote", "rows"])
def test_a_compression_bomb_is_refused_before_it_is_unpacked(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SMALL", 2**20)
    file = tmp_path / "x.csv.gz"
    file.write_bytes(gzip.compress(b"age\n1\n" + content * (2**24 // len(content))))
    assert file.stat().st_size < 2**16
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"suspiciously well packed|A line has more than 131,072 columns"):
            read_table(file)
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("head", [b"a" + b",b" * 2**20, b"a,b\n1,2\n" + b"," * 2**21], ids=["names", "cells"])
def test_a_line_of_too_many_cells_is_refused(head: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(head)
    with pytest.raises(DataError, match="A line has more than 131,072 columns"):
        read_table(tmp_path / "x.csv")


def test_what_is_packed_as_data_are_is_read(tmp_path: Path) -> None:
    frame(1000).to_csv(tmp_path / "x.csv.gz", index=False)
    pd.testing.assert_frame_equal(read_table(tmp_path / "x.csv.gz"), frame(1000))


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
@pytest.mark.parametrize("suffix", ["arrow", "feather"])
def test_arrow_files_and_streams(suffix: str, compression: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{suffix}"
    frame(1000).astype({"sex": "category"}).to_feather(path, compression=compression)
    pd.testing.assert_frame_equal(read_table(path).astype({"sex": "str"}), frame(1000))
    whole = pa.Table.from_pandas(frame(1000))
    options = pa.ipc.IpcWriteOptions(compression=None if compression == "uncompressed" else compression)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, whole.schema, options=options) as writer:
        writer.write_table(whole, max_chunksize=300)
    pd.testing.assert_frame_equal(read_table(path), frame(1000))
    path.write_bytes(b"FEA1" + bytes(60))
    with pytest.raises(DataError, match="Feather file of version 1"):
        read_table(path)


def test_a_parquet_file_of_too_many_cells_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pd.DataFrame({"a": np.zeros(200_000)}).to_parquet(tmp_path / "x.parquet")
    assert len(read_table(tmp_path / "x.parquet")) == 200_000
    monkeypatch.setattr(reading, "MOST_BYTES", 2**20)
    monkeypatch.setattr(pd, "read_parquet", lambda *_: pytest.fail("it was read"))
    with pytest.raises(DataError, match="too large"):
        read_table(tmp_path / "x.parquet")


def repeated(rows: int, characters: int) -> pa.Table:
    """One long text, repeated by a dictionary."""
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["x" * characters]))
    return pa.table({"a": texts})


def packed_zeros(path: Path, batches: int, rows: int) -> None:
    schema = pa.schema([("a", pa.float64())])
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema, options=options) as writer:
        for _ in range(batches):
            writer.write_batch(pa.record_batch({"a": np.zeros(rows)}))


def bombs(folder: Path, size: int) -> list[Path]:
    """Small files that are tables of at least so many bytes."""
    for name, unit in (("rows", b"1\n"), ("cells", b",\n"), ("quote", b'"x'), ("zeros", b"\0")):
        with gzip.open(folder / f"{name}.csv.gz", "wb") as file:
            file.write(b"a,b\n" if name == "cells" else b"a\n")
            for _ in range(size // 2**20):
                file.write(unit * (2**20 // len(unit)))
    parquet.write_table(repeated(size // 10_000, 10_000), folder / "texts.parquet")
    plain = repeated(size // 10_000, 10_000).cast(pa.schema([("a", pa.string())])) if size < 2**27 else None
    if plain is not None:
        parquet.write_table(plain, folder / "plain.parquet")
    parquet.write_table(pa.table({f"c{i}": np.zeros(size // 64) for i in range(8)}), folder / "zeros.parquet")
    texts = repeated(size // 10_000, 10_000)
    with pa.OSFile(str(folder / "texts.arrow"), "wb") as file, pa.ipc.new_file(file, texts.schema) as writer:
        writer.write_table(texts)
    packed_zeros(folder / "zeros.arrow", 1, size // 8)
    return sorted(folder.iterdir())


def test_bombs_of_every_kind_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SMALL", 2**22)
    monkeypatch.setattr(reading, "MOST_RATIO", 2)
    monkeypatch.setattr(pd, "read_parquet", lambda *_: pytest.fail("it was read"))
    for file in bombs(tmp_path, 2**24):
        with pytest.raises(DataError, match="suspiciously well packed"):
            read_table(file)


READ = """
import re, sys
from pathlib import Path
from equifed.errors import DataError
from equifed.federation.reading import read_table
try:
    read_table(Path(sys.argv[1]))
except DataError as error:
    # not `ru_maxrss`, which a process has from the one that started it
    print(int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024, error)
"""


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the most memory of a process is read from /proc")
def test_bombs_take_less_than_a_gigabyte(tmp_path: Path) -> None:
    """With everything that a process of equifed holds anyway, measured by the system."""
    for file in bombs(tmp_path, 2**31):
        assert file.stat().st_size < 2**24
        found = subprocess.run([sys.executable, "-c", READ, file], capture_output=True, text=True, timeout=600)
        megabytes, _, words = found.stdout.partition(" ")
        assert "suspiciously well packed" in words, (file.name, found.stderr)
        assert int(megabytes) < 1000, file.name


@pytest.mark.parametrize(("separator", "word"), [(";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
def test_a_wrong_separator_is_said(separator: str, word: str, tmp_path: Path, schema: Schema) -> None:
    frame().to_csv(tmp_path / "x.csv", index=False, sep=separator)
    with pytest.raises(DataError, match=f"x.csv: The columns .* are missing. .* separated by {word}, not by commas"):
        encode_file(schema, tmp_path / "x.csv")


def test_a_schema_is_an_ordinary_file_of_some_size(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no ordinary file"):
        read_schema("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="no ordinary file"):
        read_schema(tmp_path / "pipe")
    with open(tmp_path / "large.json", "wb") as file:
        file.truncate(2**24 + 1)
    with pytest.raises(DataError, match="Larger than 16 MiB"):
        read_schema(tmp_path / "large.json")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(EquifedError):
        read_schema(tmp_path / "deep.json")


def test_a_value_whose_square_is_too_large_is_refused(tmp_path: Path, schema: Schema) -> None:
    odd = frame()
    odd.loc[2, "age"] = 1e16
    odd.to_csv(tmp_path / "x.csv", index=False)
    with pytest.raises(DataError, match="Column 'age', row 2: the value is too large"):
        encode_file(schema, tmp_path / "x.csv")


def test_numbers_that_training_cannot_compute_with_are_refused() -> None:
    from equifed.settings import Local

    for name in ("learning_rate", "learning_rate_decay", "weight_decay"):
        with pytest.raises(ConfigError, match=r"at most 3\.40282e\+38, got 1e\+308"):
            Local(**{name: 1e308})
    assert Local(learning_rate=1.0, learning_rate_decay=10.0).rate(1000, 1000) == pytest.approx(3.4e38, rel=1e-2)
