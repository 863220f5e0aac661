"""What a hostile or broken node may answer: to training, to an evaluation, when it is asked who it is."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

Attack = Callable[[RecordDict], None]
"""Changes the content of a reply."""

TYPES = (
    *(">f4", ">f8", ">i8", "U5", "S5", "M8[s]", "m8[D]", "g", "V4", "?", "i1", "u8", "c8", "e", "G"),
    [("a", "f4"), ("b", "i8")],
)
"""Types that no field has; torch knows few of them."""
WORDS: dict[str, Any] = {
    "5 MB": "x" * 5_000_000,
    "terminal": "\x1b]0;owned\x07\x1b[2J\x1b[31m",
    "forged line": "lost\nRound 2 of 2: 6 of 6 replied",
    "carriage return": "lost\rEverything is fine",
    "right to left": "\u202e\u2066gnp.exe",
    "markup": "<script>alert(1)</script>[bold]{{7*7}}%s{0}",
    "bytes": b"\x00\xff\x1b[31m",
    "list": ["\x1b[31m"] * 1000,
    "number": 1e308,
    "truth": True,
    "zero": 0,
    "empty": "",
}
"""Reasons and names."""


def header(shape: object, descr: object = "<f4", order: bool = False, data: bytes = b"", version: int = 1) -> bytes:
    """A NumPy file as no honest program writes it."""
    text = f"{{'descr': {descr!r}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    length = len(text).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + data


def raw(data: bytes, stype: str = "numpy.ndarray") -> Array:
    return Array("float32", (3,), stype, data)


def saved(values: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def arrays_like(values: np.ndarray) -> dict[str, Array]:
    """Arrays that cannot stand for this one."""
    wrong: dict[str, Array] = {}
    for kind in TYPES:
        if np.dtype(kind) != values.dtype:
            wrong[f"type {kind}"] = Array(np.zeros(values.shape, kind))
    real = saved(values)
    wrong |= {
        "one axis more": Array(values[None]),
        "no axis" if values.ndim else "an axis": Array(np.zeros(() if values.ndim else (1,), values.dtype)),
        "empty": Array(np.zeros((0,), values.dtype)),
        "twice as long": Array(np.concatenate([values.reshape(-1)] * 2)),
        "many axes": Array(np.zeros((1,) * 30, values.dtype)),
        "a million": Array(np.zeros(1_000_000, values.dtype)),
        "cut": raw(real[:-1]),
        "more": raw(real + b"\0"),
        "no bytes": raw(b""),
        "random": raw(bytes(range(256)) * 9),
        "pickle": raw(pickle.dumps(values)),
        "objects": raw(header(values.shape, "|O", data=pickle.dumps(values))),
        "other program": raw(real, "torch.tensor"),
        "terabytes": raw(header((10**12,), values.dtype.str)),
        "negative": raw(header((-1,), values.dtype.str)),
        "overflow": raw(header((2**62, 4), values.dtype.str)),
        "huge shape": raw(header(f"({'9' * 5000},)", values.dtype.str)),
        "true shape": raw(header((True,), values.dtype.str, data=b"\0" * 8)),
        "no shape": raw(header("None", values.dtype.str)),
        "code": raw(header("__import__('os').abort()", values.dtype.str)),
        "deep": raw(header("(" * 3000 + ")" * 3000, values.dtype.str)),
        "long header": raw(header((1,) * 20_000, values.dtype.str)),
        "no type": raw(header(values.shape, "")),
        "second version": raw(header(values.shape, values.dtype.str, data=real, version=2)),
        "ninth version": raw(header(values.shape, values.dtype.str, version=9)),
    }
    if values.dtype.kind == "f":
        wrong |= {
            "nan": Array(np.full_like(values, np.nan)),
            "inf": Array(np.full_like(values, np.inf)),
            "-inf": Array(np.full_like(values, -np.inf)),
        }
    return wrong


# -- attacks -----------------------------------------------------------------------------------------------------------


def _put(content: RecordDict, record: str, name: str, array: Array) -> None:
    content[record][name] = array


def _claim(content: RecordDict, **changes: Any) -> None:
    kept = {key: value for key, value in content["about"].items() if changes.get(key, "") is not None}
    content["about"] = ConfigRecord({**kept, **{key: value for key, value in changes.items() if value is not None}})


def _exchange(content: RecordDict, name: str, record: Any) -> None:
    if record is None:
        del content[name]
    else:
        content[name] = record


def of_record(content: RecordDict, record: str) -> Iterator[tuple[str, Attack]]:
    """Attacks on the arrays of a reply."""
    for name, array in content[record].items():
        for what, wrong in arrays_like(array.numpy()).items():
            yield f"{record}: {name}: {what}", partial(_put, record=record, name=name, array=wrong)
    names = list(content[record])
    fine = dict(content[record])
    others = {
        "no record": None,
        "numbers": MetricRecord({"a": 1.0}),
        "configuration": ConfigRecord(dict.fromkeys(names, b"\x00" * 100)),
        "nothing in it": ArrayRecord({}),
        "one missing": ArrayRecord({name: fine[name] for name in names[1:]}),
        "one more": ArrayRecord({**fine, "more": Array(np.zeros(3))}),
        "other names": ArrayRecord({f"\x1b[31m{name}\n": array for name, array in fine.items()}),
        "a long name": ArrayRecord({**fine, "n" * 1_000_000: Array(np.zeros(1))}),
        "many names": ArrayRecord({f"{name}{i}": array for i in range(2000) for name, array in fine.items()}),
    }
    for what, replaced in others.items():
        yield f"{record}: {what}", partial(_exchange, name=record, record=replaced)


def of_numbers(content: RecordDict, record: str) -> Iterator[tuple[str, Attack]]:
    """Finite numbers of the right shape and type that no client has."""
    for name, array in content[record].items():
        values = array.numpy()
        for lie in (1e25, -1e25, 3e38):
            wrong = Array(np.full_like(values, lie))
            yield f"{record}: {name}: {lie:g}", partial(_put, record=record, name=name, array=wrong)
    for lie in (-1.0, 0.5, 1e9):
        array = Array(np.full_like(content[record]["rows"].numpy(), lie))
        yield f"{record}: rows: {lie:g}", partial(_put, record=record, name="rows", array=array)


def of_words() -> Iterator[tuple[str, Attack]]:
    """Attacks on what a reply says of itself."""
    for what, words in WORDS.items():
        yield f"refused: {what}", lambda content, words=words: _claim(content, refused=words)
        yield f"client: {what}", lambda content, words=words: _claim(content, client=words)
        yield f"exchange: {what}", lambda content, words=words: _claim(content, exchange=words)
    for name in ("client", "exchange"):
        yield f"{name}: missing", lambda content, name=name: _claim(content, **{name: None})
    for what, record in {"missing": None, "arrays": ArrayRecord({}), "numbers": MetricRecord({"rows": 1})}.items():
        yield f"about: {what}", partial(_exchange, name="about", record=record)


ROWS = (np.inf, -np.inf, np.nan, 1e308, 0.5, 37.0, -1, 2**62, 2**40 + 1, True, "37", b"37", [37], [], None)
"""Numbers of rows that no silo has."""


def of_joining(content: RecordDict) -> Iterator[tuple[str, Attack]]:
    for name in ("rows", "test-rows"):
        for value in ROWS:
            yield f"{name}: {value!r}", lambda content, name=name, value=value: _claim(content, **{name: value})
    yield from of_record(content, "fields")
    for name, value in (("sum", 1e34), ("sum", -1e20), ("squares", 1e60), ("squares", -1.0), ("sum", 1e300)):
        array = Array(np.full_like(content["fields"][name].numpy(), value))
        yield f"{name}: {value:g}", partial(_put, record="fields", name=name, array=array)
    for what, words in WORDS.items():
        yield f"refused: {what}", lambda content, words=words: _claim(content, refused=words)


def of_evaluation(content: RecordDict) -> Iterator[tuple[str, Attack]]:
    """Besides what is malformed: counts, losses and histograms that the silo's rows cannot have."""
    yield from of_record(content, "evaluation")
    huge = {"counts": 2**61, "predicted": 2**61, "unknown": 2**62, "loss": 1e308, "unknown_loss": 1e4, "ks": 2.0}
    huge |= {"mean": 1e300, "calibration": 1e300, "unknown_calibration": 1e15}
    for name, value in huge.items():
        for sign in (1, -1):
            array = content["evaluation"][name].numpy()
            lie = Array(np.full_like(array, sign * value))
            yield f"{name}: {sign * value:g}", partial(_put, record="evaluation", name=name, array=lie)


def changed(reply: Message, attack: Attack) -> Message:
    attack(reply.content)
    return reply
