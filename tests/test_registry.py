"""Names of things: built in, from entry points, and module:Name."""

from __future__ import annotations

import pickle
import sys

import pytest

from equifed import registry
from equifed.errors import (
    ConfigError,
    DataError,
    EquifedWarning,
    RowError,
    RunError,
    UnknownName,
    check_number,
    unknown_name,
)
from equifed.registry import Registry

MODULES = ("plenty_numbers", "neighbour_numbers", "raises", "misspelt", "needs_more", "nowhere", "json")
"""Those that the tests trust."""


@pytest.fixture
def numbers(tmp_path, monkeypatch):
    """A registry of whole numbers, with a package that brings some and modules in the current folder."""
    info = tmp_path / "site" / "plenty-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plenty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[test.numbers]\nsix = plenty_numbers:SIX\none = plenty_numbers:SIX\nbroken = plenty_numbers:NONE\n"
        "twice = plenty_numbers:SIX\ntwice = plenty_numbers:SEVEN\n"
    )
    (tmp_path / "site" / "plenty_numbers.py").write_text("SIX = 6\nSEVEN = 7\n")
    here = tmp_path / "here"
    here.mkdir()
    (here / "neighbour_numbers.py").write_text("EIGHT = 8\nTEXT = 'eight'\nclass Inside:\n    NINE = 9\n")
    (here / "json.py").write_text("dumps = 13\n")
    (here / "raises.py").write_text("\nX = 1 / 0\n")
    (here / "misspelt.py").write_text("def f(:\n")
    (here / "needs_more.py").write_text("import no_such_module_at_all\n")
    monkeypatch.setattr("equifed.registry._allowed", {*MODULES})
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(here)
    yield Registry("number", "test.numbers", {"one": 1, "two": 2}, lambda thing: type(thing) is int, "a whole number")
    for name in ("plenty_numbers", "neighbour_numbers", "raises", "misspelt", "needs_more"):
        sys.modules.pop(name, None)


def test_names_of_every_kind_are_found(numbers):
    assert list(numbers) == ["one", "two", "six", "broken", "twice"]
    assert [numbers[name] for name in ("one", "two", "six", "plenty_numbers:SEVEN")] == [1, 2, 6, 7]
    assert numbers["neighbour_numbers:EIGHT"] == 8
    assert numbers["neighbour_numbers:Inside.NINE"] == 9
    assert "six" in numbers
    assert "seven" not in numbers
    assert numbers.get("seven", 0) == 0


def test_what_another_package_breaks_is_left_out_with_a_warning(numbers):
    with pytest.warns(EquifedWarning) as warned:
        assert numbers.usable() == {"one": 1, "two": 2, "six": 6}
    assert ["'broken'" in str(warned[0].message), "'twice'" in str(warned[1].message)] == [True, True]


def test_what_was_found_leads_back_by_its_name(numbers):
    for name in ("one", "six", "neighbour_numbers:EIGHT"):
        assert numbers.name_of(numbers[name]) == name


def test_the_current_folder_comes_last(numbers):
    """A file in the folder where a command is started replaces no installed module."""
    import json

    assert numbers["neighbour_numbers:EIGHT"] == 8
    with pytest.raises(ConfigError, match="is not a number"):
        numbers["json:dumps"]
    assert json.dumps(3) == "3"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sx", r"Unknown number 'sx'. Did you mean 'six'\? Known: broken, one, six, twice, two."),
        ("nowhere:X", "no module nowhere among the installed ones nor in .*here"),
        ("nowhere.inside:X", "no module nowhere.inside"),
        ("neighbour_numbers:NINE", "the module neighbour_numbers has no 'NINE'"),
        ("neighbour_numbers:TEXT", "is not a number: it must be a whole number, and is 'eight'"),
        ("broken", "'broken' cannot be found: the module plenty_numbers has no 'NONE'"),
        ("twice", "more than one installed number: plenty_numbers:SEVEN, plenty_numbers:SIX"),
        ("raises:X", r"ZeroDivisionError: division by zero \(.*raises.py, line 2\)"),
        ("misspelt:X", "SyntaxError: .*line 1"),
        ("needs_more:X", "ModuleNotFoundError: No module named 'no_such_module_at_all' .*needs_more.py, line 1"),
        ("neighbour_numbers:", "must be the name of a number or of the form"),
        (":EIGHT", "must be the name of a number or of the form"),
    ],
)
def test_what_cannot_be_found_is_explained(numbers, name, text):
    with pytest.raises(ConfigError, match=text) as caught:
        numbers[name]
    assert caught.value.value == name


def test_errors_have_fields_and_survive_pickling():
    with pytest.raises(ConfigError) as caught:
        check_number("rounds", 0, whole=True, low=1)
    unknown = unknown_name("colour", "gren", ["green", "red"], key="colour")
    row = RowError("the value is missing.", column="age", row=7, file="north.csv")
    config = ConfigError("must be below 1, got 2.", source="a.toml", section="run", key="dropout", value=2)
    for error, text in (
        (caught.value, "rounds must be a whole number of at least 1, got 0."),
        (unknown, "Unknown colour 'gren'. Did you mean 'green'? Known: green, red."),
        (row, "north.csv: Column 'age', row 7: the value is missing."),
        (config, "a.toml: run.dropout: must be below 1, got 2."),
        (DataError("No rows."), "No rows."),
        (RunError("Stopped."), "Stopped."),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(error), str(again)) == (type(error), text, text)
        assert vars(again) == vars(error)
    assert isinstance(unknown, UnknownName)
    assert (unknown.key, unknown.value, unknown.allowed) == ("colour", "gren", ("green", "red"))
    assert (caught.value.key, caught.value.value) == ("rounds", 0)
    assert row.place == "Column 'age', row 7"


def test_what_was_asked_for_in_a_wrong_form_is_trusted_nowhere(numbers, monkeypatch):
    """All that is trusted goes to other processes, which check it."""
    monkeypatch.setattr(registry, "_allowed", set())
    for wrong in ("my-mod:Thing", ":Thing", "mod:", "mod:a b"):
        registry.allow(wrong)
        with pytest.raises(ConfigError, match="must be the name of a number or of the form"):
            numbers[wrong]
    registry.allow("mod.inner:Thing.part")
    registry.trust(*registry.allowed())
    assert registry.allowed() == ["mod.inner:Thing.part"]
