"""Named tensors as Flower records, and back. What comes from elsewhere is checked before it is used.

Torch is imported where tensors are made: a silo that only takes a mask off a sum has no use for it.
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
"""The record with what a message is about: which run, which exchange, who answers."""
FIELDS = "fields"
"""The record with what a method sends."""
EVALUATION = "evaluation"
"""The record with what a client counted on its test rows."""
SCALING = "scaling"
"""The record with the shift and factor of the inputs."""


class BadMessage(Exception):
    """Content that is not what it should be, in words that may follow "its reply". Some of them are the sender's."""

    def __init__(self, text: object) -> None:
        super().__init__(clean(text))


@contextmanager
def distrusting() -> Iterator[None]:
    """Whatever goes wrong inside, where content from elsewhere is read, is the fault of that content."""
    try:
        yield
    except BadMessage:
        raise
    except Exception as error:
        raise BadMessage(f"cannot be used ({type(error).__name__}: {error})") from error


def check_run(run: str) -> str:
    """A run's id, which folders are called by: refused when it could name another place."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", run):
        raise BadMessage(f"is for a run called {quoted(run)}, which is no name for a folder")
    return run


def about(values: Mapping[str, str | int | bytes]) -> ConfigRecord:
    return ConfigRecord(dict(values))


def read_about(content: RecordDict) -> dict[str, Any]:
    record = content.get(ABOUT)
    if not isinstance(record, ConfigRecord):
        raise BadMessage("does not say what it is about")
    return dict(record)


def pack(values: Record, codecs: Mapping[str, str] | None = None) -> ArrayRecord:
    """One array per tensor, by its path; fields with a codec in the bytes that the codec writes."""
    from equifed import tree

    arrays = {}
    for field, value in values.items():
        codec = (codecs or {}).get(field)
        for name, leaf in tree.to_named({field: value}).items():
            array = leaf.detach().cpu().numpy()
            arrays[name] = Array(np.frombuffer(CODECS[codec].encode(array), np.uint8) if codec else array)
    return ArrayRecord(arrays)


def unpack(content: RecordDict, record: str, like: Record, codecs: Mapping[str, str] | None = None) -> Record:
    """The inverse of `pack`, refused unless names, shapes and types are those of `like` and every number is finite."""
    from equifed import tree

    arrays = content.get(record)
    if not isinstance(arrays, ArrayRecord):
        raise BadMessage(f"has no record {record!r}")
    values = {}
    expected = {field: tree.to_named({field: value}) for field, value in like.items()}
    names = {name for leaves in expected.values() for name in leaves}
    if set(arrays) != names:
        raise BadMessage(f"has the fields {_shortened(set(arrays))}; {_shortened(names)} were asked for")
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
    """An array of this type and shape, both of which are compared before memory is taken for a single number."""
    stream = io.BytesIO(array.data)
    try:
        if array.stype != "numpy.ndarray" or np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError("another format")
        found_shape, by_column, found_type = np.lib.format.read_array_header_1_0(stream)
    except Exception as error:  # whatever the bytes make numpy say
        raise BadMessage(f"has a field {name} that cannot be read ({type(error).__name__})") from error
    if found_shape != shape:
        raise BadMessage(f"has {name} of shape {list(found_shape)} where {list(shape)} belongs")
    if found_type != dtype:
        raise BadMessage(f"has {name} of type {found_type} where {dtype} belongs")
    size = len(array.data) - stream.tell()
    if size != math.prod(shape) * dtype.itemsize:
        raise BadMessage(f"has {name} in {size} bytes where {math.prod(shape) * dtype.itemsize} belong")
    values = np.frombuffer(array.data, dtype, offset=stream.tell())
    return values.reshape(shape, order="F" if by_column else "C").copy()


def _numpy_type(dtype: torch.dtype) -> np.dtype[Any]:
    import torch

    return torch.empty((), dtype=dtype).numpy().dtype


def _shortened(names: set[str]) -> str:
    shown = sorted(names)
    return (", ".join(shown[:6]) or "(none)") + (", ..." if len(shown) > 6 else "")
