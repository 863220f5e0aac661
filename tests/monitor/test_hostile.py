"""Hand-ins that no honest silo makes are refused in a sentence; names in them do nothing to a terminal or a page."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equifed.errors import DataError
from equifed.files import SEAL, checksum, to_json
from equifed.monitor import History, count, read_hand_in, watch, write_hand_in
from equifed.monitor.page import render
from monitor.made import SCHEMA, decisions, hand_in, stable


def honest() -> dict[str, Any]:
    made = count(decisions(), silo="north", date="when", decision="decision", label="outcome", schema=SCHEMA).hand_in
    return made.model_dump(mode="json")


def sealed(value: Any) -> bytes:
    return to_json({**value, SEAL: checksum(to_json(value))})


def put(*keys: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    """Changes the value at these keys."""

    def change(whole: Any) -> None:
        for key in keys[:-1]:
            whole = whole[key]
        whole[keys[-1]] = value

    return change


JANUARY = ("periods", "2024-01")
CHANGES = {
    "a negative count": put(*JANUARY, "decisions", "men", 0, value=-1),
    "half a row": put(*JANUARY, "decisions", "men", 0, value=1.5),
    "a truth for a count": put(*JANUARY, "decisions", "men", 0, value=True),
    "text for a count": put(*JANUARY, "decisions", "men", 0, value="7"),
    "a huge count": put(*JANUARY, "rows", value=10**30),
    "more than all rows": put(*JANUARY, "decisions", "men", 0, value=10**9),
    "fewer than all rows": put(*JANUARY, "rows", value=10**9),
    "one class too few": put(*JANUARY, "decisions", "men", value=[4]),
    "one label too many": put(*JANUARY, "labels", "men", value=[[10, 10]] * 3),
    "more labels than decisions": put(*JANUARY, "labels", "men", value=[[10**5, 10], [10, 10]]),
    "a group that is not listed": put(*JANUARY, "decisions", "children", value=[10, 10]),
    "a column that is not listed": put(*JANUARY, "inputs", "height", value=[10]),
    "one bin too few": put(*JANUARY, "inputs", "job", value=[10]),
    "bins of more than all rows": put(*JANUARY, "inputs", "job", 0, value=10**9),
    "a period that is none": put("periods", "2024-13", value={}),
    "counts of nothing": put("periods", "2024-03", value={}),
    "rows and too few rows": put(*JANUARY, "rows", value=None),
    "an unknown field": put("name", value="somebody"),
    "another format": put("format", value="equifed-monitor-99"),
    "another period": put("period", value="second"),
    "no name": put("silo", value=" "),
    "a terminal's command": put("silo", value="\x1b]0;evil\x07"),
    "text that runs backwards": put("silo", value="north\u202e"),
    "a long name": put("silo", value="x" * 1000),
    "many groups": put("groups", value=[f"g{i}" for i in range(101)]),
    "a group twice": put("groups", value=["women", "women"]),
    "one class": put("classes", value=["refused"]),
    "revision 0": put("revision", value=0),
    "deep nesting": put("periods", value=json.loads("[" * 400 + "]" * 400)),
}


@pytest.mark.parametrize("case", CHANGES)
def test_impossible_hand_ins_are_refused(case: str, tmp_path: Path) -> None:
    value = honest()
    CHANGES[case](value)
    (tmp_path / "north.json").write_bytes(sealed(value))
    with pytest.raises(DataError, match=r"^north\.json: ") as refused:
        read_hand_in(tmp_path / "north.json")
    assert len(str(refused.value)) < 600
    assert str(refused.value).isprintable()


def test_what_is_no_hand_in_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    good = sealed(honest())
    wrong = [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"format": NaN}', b"1" * 10_000]
    wrong += [good.replace(b'"silo"', b'"silo": "a", "silo"'), good.replace(b"north", b"south"), good[:-20]]
    wrong += [good.replace(b'"rows": ', b'"rows": 1'), b" " * (2**24 + 1)]
    for content in wrong:
        path.write_bytes(content)
        with pytest.raises(DataError):
            read_hand_in(path)
    for other in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(DataError, match="cannot be read"):
            read_hand_in(other)


def test_mutated_files_never_get_through_nor_crash(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    whole = honest()
    good = sealed(whole)
    for _ in range(200):
        content = bytearray(good)
        for place in rng.integers(0, len(content), rng.integers(1, 4)):
            content[place] = rng.integers(0, 256)
        if bytes(content) == good:
            continue
        (tmp_path / "x.json").write_bytes(content)
        with suppress(DataError):
            assert read_hand_in(tmp_path / "x.json").model_dump(mode="json") == whole  # white space


def test_the_future_is_refused(tmp_path: Path) -> None:
    made = hand_in("north", stable(np.random.default_rng(0), 3))
    write_hand_in(tmp_path / "n.json", made)
    assert read_hand_in(tmp_path / "n.json", today=date(2000, 2, 29)) == made
    with pytest.raises(DataError, match="2000-03, which is in the future"):
        read_hand_in(tmp_path / "n.json", today=date(2000, 2, 27))


def test_names_are_text_in_the_page(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\"'&{{7*7}}"
    rng = np.random.default_rng(1)
    parts = [hand_in(silo, stable(rng, 12, 400, moved=(6, 0, -0.3))) for silo in (evil, "south")]
    page = render(watch(History.of(parts)), title=evil)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    assert "{{7*7}}" in page
