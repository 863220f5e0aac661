"""Whatever parses bytes from elsewhere gives a value that can be, or an error of ours: never another exception.

By plain hypothesis, the same few examples in `make test`; `EQUIFED_FUZZ=20000 pytest tests/fuzz` tries so many new ones
of each kind.
"""

from __future__ import annotations

import gzip
import io
import json
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equifed import Columns
from equifed.codec import CODECS, pack, unpack
from equifed.config import Config, load_config
from equifed.data import Schema, Summary, agree, summarise
from equifed.errors import DataError, EquifedError
from equifed.federation.reading import read_table
from equifed.federation.tables import read_schema
from equifed.words import MOST
from fuzz.mutations import bytes_like, fuzzed

FRAME = pd.DataFrame({"age": [20.0, 31, 44, 50], "job": list("abca"), "sex": list("fmfm"), "ill": [0, 1, 1, 0]})
SCHEMA = Schema.infer(FRAME, Columns(label="ill", sensitive="sex", min_count=0, missing="category"))
OWN = Schema.infer(pd.concat([FRAME] * 5), Columns(label="ill", sensitive="sex", features=["age", "job"]))
CSV = FRAME.to_csv(index=False).encode()
TOML = b"""[run]
rounds = 3
seeds = [1, 2]
clients-per-round = 4

[data]
name = "compas"

[partition]
kind = "dirichlet"
alpha = 0.5
num-partitions = 8

[model]
kind = "mlp"
hidden = [8, 4]

[local]
learning-rate = 0.1
batch-size = 16

[method]
name = "fedprox"
mu = 0.1
"""


def written(content: bytes, name: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="equifed-fuzz-"))
    (folder / name).write_bytes(content)
    return folder / name


def removed(path: Path) -> None:
    path.unlink()
    path.parent.rmdir()


def clean_error(error: Exception, most: int = 5000) -> None:
    """Words that may be printed."""
    text = str(error)
    assert len(text) <= most
    assert "\x1b" not in text


# -- messages ----------------------------------------------------------------------------------------------------------


def npy(values: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


REAL = np.arange(6, dtype=np.float32).reshape(2, 3)


@fuzzed
@given(bytes_like(npy(REAL), npy(np.asfortranarray(REAL)), npy(REAL.astype(">f4"))))
def test_arrays_of_messages(content: bytes) -> None:
    pytest.importorskip("flwr")
    from flwr.app import Array, ArrayRecord, RecordDict

    from equifed.flower.records import BadMessage
    from equifed.flower.records import unpack as read

    message = RecordDict({"fields": ArrayRecord({"update": Array("float32", (2, 3), "numpy.ndarray", content)})})
    try:
        found = read(message, "fields", {"update": torch.zeros(2, 3)})["update"]
    except BadMessage as error:
        clean_error(error, MOST)
    else:
        assert found.shape == (2, 3)
        assert found.dtype == torch.float32
        assert found.isfinite().all()


VALUES = st.one_of(
    st.text(max_size=30), st.binary(max_size=30), st.integers(-(2**63), 2**63 - 1), st.floats(), st.booleans()
)


@fuzzed
@given(st.dictionaries(st.sampled_from(["client", "rows", "test-rows", "refused", "exchange", "run"]), VALUES))
def test_what_a_node_says_of_itself(said: dict) -> None:
    pytest.importorskip("flwr")
    from flwr.app import ConfigRecord, RecordDict

    from equifed.flower.link import MOST_ROWS, _read_member
    from equifed.flower.records import BadMessage

    try:
        member = _read_member(RecordDict({"about": ConfigRecord(said)}), scaled=2)
    except BadMessage as error:
        clean_error(error, MOST)
    else:
        assert 0 <= member.rows <= MOST_ROWS
        assert (member.rows, member.test_rows) == (said["rows"], said["test-rows"])


# -- packed fields -----------------------------------------------------------------------------------------------------


@fuzzed
@given(st.sampled_from(["ranking", "mask"]), st.data())
def test_packed_fields(name: str, data: st.DataObject) -> None:
    codec, shape = CODECS[name], (2, 5)
    orders = np.stack([np.random.default_rng(seed).permutation(5) for seed in range(2)])
    real = codec.encode(orders if name == "ranking" else orders % 2)
    content = data.draw(bytes_like(real))
    try:
        found = codec.decode(content, shape)
    except DataError as error:
        clean_error(error)
    else:
        assert found.shape == shape
        again = codec.decode(codec.encode(found), shape)
        np.testing.assert_array_equal(again, found)
        if name == "ranking":
            np.testing.assert_array_equal(np.sort(found, axis=1), [np.arange(5)] * 2)


@fuzzed
@given(st.binary(max_size=40), st.integers(-2, 40), st.integers(0, 60))
def test_packed_numbers(content: bytes, bits: int, count: int) -> None:
    try:
        found = unpack(content, bits, count)
    except DataError as error:
        clean_error(error)
    else:
        assert len(found) == count
        assert (found < 2**bits).all()
        np.testing.assert_array_equal(unpack(pack(found, bits), bits, count), found)


# -- files -------------------------------------------------------------------------------------------------------------


@fuzzed
@given(bytes_like(SCHEMA.to_json().encode(), json.dumps(json.loads(SCHEMA.to_json())).encode()))
def test_schemas(content: bytes) -> None:
    path = written(content, "schema.json")
    try:
        schema = read_schema(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            encoded = schema.encode(FRAME)
    except EquifedError as error:
        clean_error(error)
    else:
        assert np.isfinite(encoded.x).all()
        assert len(encoded.x) == len(FRAME)
    finally:
        removed(path)


def parquet() -> bytes:
    stream = io.BytesIO()
    FRAME.to_parquet(stream)
    return stream.getvalue()


def arrow(compression: str | None) -> bytes:
    import pyarrow as pa

    stream, table = io.BytesIO(), pa.Table.from_pandas(FRAME)
    with pa.ipc.new_file(stream, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return stream.getvalue()


FILES = {
    "x.csv": CSV,
    "x.csv.gz": gzip.compress(CSV, mtime=0),
    "x.parquet": parquet(),
    "x.arrow": arrow(None),
    "x.feather": arrow("zstd"),
}


@pytest.mark.parametrize("name", FILES)
@fuzzed
@given(data=st.data())
def test_tables_of_silos(name: str, data: st.DataObject) -> None:
    """200 damaged files in `make test`: a schema that refuses what it does not list, and one that never does."""
    path = written(data.draw(bytes_like(FILES[name])), name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            frame = read_table(path)
            for schema in (OWN, SCHEMA):
                encoded = schema.encode(frame)
                assert np.isfinite(encoded.x).all()
            again = Schema.infer(frame, Columns(label="ill", sensitive="sex", min_count=2))
            assert np.isfinite(again.inputs(frame)).all()
    except EquifedError as error:
        clean_error(error)
    finally:
        removed(path)


def test_summaries() -> None:
    real = summarise(FRAME, Columns(label="ill", sensitive="sex", min_count=1)).to_json().encode()

    @fuzzed
    @given(bytes_like(real))
    def parsed(content: bytes) -> None:
        try:
            assert isinstance(agree([Summary.from_json(content)]), Schema)
        except EquifedError as error:
            clean_error(error)

    parsed()


@fuzzed
@given(bytes_like(TOML))
def test_configurations(content: bytes) -> None:
    path = written(content, "x.toml")
    try:
        assert isinstance(load_config(path), Config)
    except EquifedError as error:
        clean_error(error)
    finally:
        removed(path)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """(folder, the state's structure, the configuration's checksum, the checkpoint's bytes)."""
    from equifed.simulator.engine import State
    from equifed.store.folder import Lines, RunFolder

    folder = RunFolder(tmp_path_factory.mktemp("run"))
    state = State({"theta": torch.arange(6.0).reshape(1, 2, 3)}, clients=())
    return folder, state, folder.write_checkpoint(3, state, "c" * 64, Lines(0, "0" * 64))


@fuzzed
@given(st.data())
def test_checkpoints(interrupted, data: st.DataObject) -> None:  # type: ignore[no-untyped-def]
    folder, state, real = interrupted
    content = data.draw(bytes_like(real))
    (folder.path / "checkpoint.safetensors").write_bytes(content)
    try:
        found = folder.read_checkpoint(state, "c" * 64)
    except EquifedError as error:
        clean_error(error)
    else:  # what loads is what was written
        assert found.round == 3
        assert torch.equal(found.state.server["theta"], state.server["theta"])
