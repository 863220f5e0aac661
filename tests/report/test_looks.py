"""Who sees no colours, or few, reads the page all the same: contrasts, symbols, dashes."""

from __future__ import annotations

import itertools
import json
import re
from importlib import resources

import pytest

from equifed.charts import look

TEXT, MARK = 4.5, 3.0
"""Contrasts that WCAG 2.1 (level AA) asks of text and of what must be seen to understand a graphic."""
CSS = resources.files("equifed.report").joinpath("page.css").read_text(encoding="utf-8")


def luminance(colour: str) -> float:
    """WCAG's, of #rgb or #rrggbb."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def theme(name: str) -> dict[str, str]:
    """The custom properties of a theme: those of :root, in its media query or outside of all."""
    query = {"dark": r"@media \(prefers-color-scheme: dark\) \{\s*", "print": r"@media print \{\s*"}.get(name, r"^")
    (block,) = re.findall(query + r":root \{(.*?)\}", CSS, flags=re.S)
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{3,6});", block))


def test_the_contrast_is_wcags():
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)  # the well-known grey that just fails
    assert contrast("#b3bac5", "#ffffff") == pytest.approx(1.95, abs=0.005)  # what dominated points once had


@pytest.mark.parametrize("name", ["light", "dark", "print"])
def test_text_and_marks_stand_out(name):
    """Ink, soft text and links stand on every background; the other colours on their own or on paper."""
    colours = theme(name)
    assert len(colours) == 13
    for back in ("paper", "back", "accent-back"):
        for text in ("ink", "soft", "accent"):
            assert contrast(colours[text], colours[back]) >= TEXT, (text, back)
    for text in ("flag", "good", "bad"):
        for back in (f"{text}-back", "paper"):
            assert contrast(colours[text], colours[back]) >= TEXT, (text, back)
    for mark in look.COLOURS:
        assert contrast(mark, colours["paper"]) >= MARK, mark


def test_no_two_methods_look_alike():
    lists: tuple[tuple[object, ...], ...] = (look.COLOURS, look.SHAPES, look.DASHES, look.STRIPES)
    assert [len(set(each)) for each in lists] == [len(each) for each in lists] == [10, 9, 8, 8]
    for own in (look.shape, look.dash):  # in a trade-off; over rounds
        seen = [(look.colour(i), str(own(i))) for i in range(40)]
        assert len(set(seen)) == 40
    assert all(len(set(run)) == 8 for run in ([look.shape(i + k) for k in range(8)] for i in (0, 1)))
    assert len({str(look.fill(0, i)) for i in range(8)}) == 8
    assert all(length > 0 for length in itertools.chain(*look.DASHES[1:]))
    assert look.DASHES[0] == (1, 0)  # a whole line


def test_stripes_are_light_and_where_they_are_said_to_be():
    for i, stripes in enumerate(look.STRIPES):
        if not stripes:
            assert look.fill(0, i) == look.COLOURS[0]
            continue
        gradient = json.loads(look.fill(0, i)["expr"])
        stops = [(stop["offset"], stop["color"]) for stop in gradient["stops"]]
        light = [at for at, colour in stops if colour != look.COLOURS[0]]
        assert light == [end for stripe in stripes for end in stripe]
        assert {contrast(colour, look.COLOURS[0]) >= MARK for _, colour in stops if colour != look.COLOURS[0]} == {True}
        assert (gradient["x2"], gradient["y2"]) == (0, 1)  # stripes along a bar that lies


def test_roles_of_charts_are_colours_of_the_page():
    """On a screen a chart takes the style sheet's colours by these names; on paper they stand out as well."""
    for name in ("light", "dark", "print"):
        assert {role.removeprefix("--") for role in look.PAPER} <= set(theme(name))
    for role, colour in look.PAPER.items():
        assert role == "--line" or contrast(colour, "#ffffff") >= TEXT
    assert not re.search(r'"--', json.dumps(look.on_paper()))
    assert re.search(r'"--ink"', json.dumps(look.config()))
