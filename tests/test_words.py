"""Words of others are short and printable, whatever they were."""

from __future__ import annotations

import csv
import io
import re

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equifed.words import FORMULA, MOST, clean, csv_cell, csv_of, quoted, traceback_of


@given(st.text(st.characters(exclude_categories=()), max_size=2000), st.integers(40, 400))
def test_any_text_is_short_printable_and_can_be_written(text: str, most: int) -> None:
    shown = clean(text, most)
    assert len(shown) <= most
    assert shown.isprintable()
    shown.encode("utf-8")
    if text.isprintable() and len(text) <= most:
        assert shown == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no such file", "no such file"),
        ("Größe ≥ 3, 女", "Größe ≥ 3, 女"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("lost\nRound 2 of 2: 6 of 6 replied", r"lost\nRound 2 of 2: 6 of 6 replied"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\udcff", r"\udcff"),
        (b"\x00bytes", r"b'\x00bytes'"),
    ],
)
def test_what_a_terminal_would_obey_is_shown(text: object, shown: str) -> None:
    assert clean(text) == shown


def test_a_long_text_says_how_long_it_is() -> None:
    assert clean("x" * 5_000_000) == "x" * (MOST - 26) + "... (5,000,000 characters)"
    assert len(quoted("y" * 50_000_000)) <= 100
    assert quoted("y" * 50_000_000).endswith("y... (50,000,000 characters)")
    assert quoted("a\nb") == r"'a\nb'"


def test_a_traceback_has_no_line_of_somebody_else() -> None:
    try:
        try:
            raise ValueError("first\n  File forged")
        except ValueError as cause:
            raise KeyError("z" * 10_000) from cause
    except KeyError as error:
        lines = traceback_of(error).splitlines()
    assert max(map(len, lines)) <= MOST
    assert not any(line.startswith("  File forged") for line in lines)
    assert r"ValueError: first\n  File forged" in lines


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=20))
def test_no_text_in_a_csv_file_is_a_formula_or_begins_a_row(text: str) -> None:
    frame = pd.DataFrame({"text": [text, "x"], "kind": pd.Categorical([text, "y"]), "number": [-1.5, 2.0]})
    header, first, second = csv.reader(io.StringIO(csv_of(frame), newline=""))
    plain = re.sub("\r\n?", "\n", text)
    try:
        float(plain)
        harmless = True
    except ValueError:
        harmless = plain in ("+", "-") or not plain.startswith(FORMULA)
    assert first == [plain if harmless else f"'{plain}"] * 2 + ["-1.5"]
    assert (header, second) == (["text", "kind", "number"], ["x", "y", "2.0"])
    assert csv_cell(text) == first[0]


def test_a_sign_alone_stays_so_that_what_is_written_is_read_as_the_same_class() -> None:
    made = csv_of(pd.DataFrame({"decision": ["+", "-", "+1a", "-x"]}))
    assert made == "decision\n+\n-\n'+1a\n'-x\n"


def test_what_is_no_text_stays_in_a_csv_file() -> None:
    frame = pd.DataFrame({"=n": [-1, 2], "mixed": [None, -2.5], "when": pd.to_datetime(["2026-01-02", None])})
    frame["mixed"] = frame["mixed"].astype(object)
    assert csv_of(frame) == "'=n,mixed,when\n-1,,2026-01-02\n2,-2.5,\n"
    assert frame.columns[0] == "=n"
