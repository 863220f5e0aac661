"""Words of others are short and printable, whatever they were."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equifed.words import MOST, clean, quoted, traceback_of


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
