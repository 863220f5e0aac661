"""Named tensors as Flower records, and back. What comes from elsewhere is checked before it is used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from equifed import tree
from equifed.codec import CODECS
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
    """Content that is not what it should be, in words that may follow "its reply"."""


def check_run(run: str) -> str:
    """A run's id, which folders are called by: refused when it could name another place."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", run):
        raise BadMessage(f"is for a run called {run[:100]!r}, which is no name for a folder")
    return run


def about(values: Mapping[str, str | int]) -> ConfigRecord:
    return ConfigRecord(dict(values))


def read_about(content: RecordDict) -> dict[str, Any]:
    record = content.get(ABOUT)
    if not isinstance(record, ConfigRecord):
        raise BadMessage("does not say what it is about")
    return dict(record)


def pack(values: Record, codecs: Mapping[str, str] | None = None) -> ArrayRecord:
    """One array per tensor, by its path; fields with a codec in the bytes that the codec writes."""
    arrays = {}
    for field, value in values.items():
        codec = (codecs or {}).get(field)
        for name, leaf in tree.named({field: value}).items():
            array = leaf.detach().cpu().numpy()
            arrays[name] = Array(np.frombuffer(CODECS[codec].encode(array), np.uint8) if codec else array)
    return ArrayRecord(arrays)


def unpack(content: RecordDict, record: str, like: Record, codecs: Mapping[str, str] | None = None) -> Record:
    """The inverse of `pack`, refused unless names, shapes and types are those of `like` and every number is finite."""
    arrays = content.get(record)
    if not isinstance(arrays, ArrayRecord):
        raise BadMessage(f"has no record {record!r}")
    values = {}
    expected = {field: tree.named({field: value}) for field, value in like.items()}
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
    try:
        values = array.numpy()
        if codec:
            values = CODECS[codec].decode(values.astype(np.uint8, casting="no").tobytes(), like.shape)
    except Exception as error:  # whatever the bytes make numpy say
        raise BadMessage(f"has a field {name} that cannot be read ({type(error).__name__})") from error
    if values.shape != tuple(like.shape):
        raise BadMessage(f"has {name} of shape {list(values.shape)} where {list(like.shape)} belongs")
    tensor = torch.from_numpy(values)
    if codec:
        return tensor.to(like.dtype)
    if tensor.dtype != like.dtype:
        raise BadMessage(f"has {name} of type {values.dtype} where {str(like.dtype).removeprefix('torch.')} belongs")
    if not tensor.isfinite().all():
        raise BadMessage(f"has NaN or Inf in {name}")
    return tensor


def _shortened(names: set[str]) -> str:
    shown = sorted(names)
    return (", ".join(shown[:6]) or "(none)") + (", ..." if len(shown) > 6 else "")
