"""Convert named tensors to Flower records and back. Received content is checked before use.

Torch is imported only where tensors are made, because a silo that unmasks a sum does not need it.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from equifed.codec import CODECS
from equifed.errors import DataError
from equifed.words import clean, quoted

if TYPE_CHECKING:
    import torch

    from equifed.protocol import Record

ABOUT = "about"
"""Name of the record that identifies a message: its run, its exchange, the answering client."""
FIELDS = "fields"
"""Name of the record with a method's fields."""
EVALUATION = "evaluation"
"""Name of the record with a client's counts on its test rows."""
SCALING = "scaling"
"""Name of the record with the shift and factor of the inputs."""


class BadMessage(Exception):
    """Raised for invalid content, with a text that continues "its reply ..." and may quote the sender."""

    def __init__(self, text: object) -> None:
        super().__init__(clean(text))


@contextmanager
def distrusting() -> Iterator[None]:
    """Turn every error raised while received content is read into a `BadMessage`."""
    try:
        yield
    except BadMessage:
        raise
    except Exception as error:
        raise BadMessage(f"cannot be used ({type(error).__name__}: {error})") from error


def check_run(run: str) -> str:
    """Return a run's id, which names a folder; raise `BadMessage` if it is not a safe folder name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", run):
        raise BadMessage(f"is for a run called {quoted(run)}, which is not a safe folder name")
    return run


def about(values: Mapping[str, str | int | bytes]) -> ConfigRecord:
    return ConfigRecord(dict(values))


def read_about(content: RecordDict) -> dict[str, Any]:
    record = content.get(ABOUT)
    if not isinstance(record, ConfigRecord):
        raise BadMessage(f"has no record {ABOUT!r}")
    return dict(record)


def pack(values: Record, codecs: Mapping[str, str] | None = None) -> ArrayRecord:
    """Return one array per tensor, by its path; a field with a codec is stored as the codec's bytes."""
    from equifed import tree

    arrays = {}
    for field, value in values.items():
        codec = (codecs or {}).get(field)
        for name, leaf in tree.to_named({field: value}).items():
            array = leaf.detach().cpu().numpy()
            arrays[name] = Array(np.frombuffer(CODECS[codec].encode(array), np.uint8) if codec else array)
    return ArrayRecord(arrays)


def unpack(content: RecordDict, record: str, like: Record, codecs: Mapping[str, str] | None = None) -> Record:
    """Invert `pack`; raise `BadMessage` unless names, shapes and types are those of `like` and all numbers finite."""
    from equifed import tree

    arrays = content.get(record)
    if not isinstance(arrays, ArrayRecord):
        raise BadMessage(f"has no record {record!r}")
    values = {}
    expected = {field: tree.to_named({field: value}) for field, value in like.items()}
    names = {name for leaves in expected.values() for name in leaves}
    if set(arrays) != names:
        raise BadMessage(f"has the fields {_shorten(set(arrays))}; expected {_shorten(names)}")
    for field, leaves in expected.items():
        codec = (codecs or {}).get(field)
        for name, leaf in leaves.items():
            values[name] = _tensor(name, arrays[name], leaf, codec)
    unpacked: Record = tree.from_named(like, values)
    return unpacked


def _tensor(name: str, array: Array, like: torch.Tensor, codec: str | None) -> torch.Tensor:
    import torch

    shape = (CODECS[codec].size(like.shape),) if codec else tuple(like.shape)
    values = read_array(name, array, np.dtype(np.uint8) if codec else _numpy_type(like.dtype), shape)
    if codec:
        try:
            return torch.from_numpy(CODECS[codec].decode(values.tobytes(), like.shape)).to(like.dtype)
        except DataError as error:
            raise BadMessage(f"has a field {name} that cannot be read: {error}") from error
    tensor = torch.from_numpy(values)
    if not tensor.isfinite().all():
        raise BadMessage(f"has NaN or Inf in {name}")
    return tensor


def read_array(name: str, array: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Read an array; compare its type and shape with the expected ones before allocating memory."""
    stream = io.BytesIO(array.data)
    try:
        if array.stype != "numpy.ndarray" or np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError("another format")
        found_shape, by_column, found_type = np.lib.format.read_array_header_1_0(stream)
    except Exception as error:  # malformed bytes make numpy raise many types
        raise BadMessage(f"has a field {name} that cannot be read ({type(error).__name__})") from error
    if found_shape != shape:
        raise BadMessage(f"has {name} of shape {list(found_shape)}; expected {list(shape)}")
    if found_type != dtype:
        raise BadMessage(f"has {name} of type {found_type}; expected {dtype}")
    size = len(array.data) - stream.tell()
    if size != math.prod(shape) * dtype.itemsize:
        raise BadMessage(f"has {name} in {size} bytes; expected {math.prod(shape) * dtype.itemsize}")
    values = np.frombuffer(array.data, dtype, offset=stream.tell())
    return values.reshape(shape, order="F" if by_column else "C").copy()


def _numpy_type(dtype: torch.dtype) -> np.dtype[Any]:
    import torch

    return torch.empty((), dtype=dtype).numpy().dtype


def _shorten(names: set[str]) -> str:
    shown = sorted(names)
    return (", ".join(shown[:6]) or "(none)") + (", ..." if len(shown) > 6 else "")
