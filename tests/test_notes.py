"""Notes are values; their words are made in one place."""

from __future__ import annotations

import inspect
import json

import pytest

from equifed.notes import WORDS, Note, ranges, when

FEW = Note("too-few-replies").to_json()
RUNS = {"runs": 2, "of": 6, "seed": 3, "hyper": {"epsilon": 0.1}, "excess": 0.25}
EXAMPLES = {
    "too-few-replies": {},
    "too-few-masked": {"masked": 3, "cohort": 5, "needed": 4},
    "too-few-unmasked": {"told": 3, "masked": 4, "cohort": 5, "needed": 4},
    "shares-unfit": {"client": "north", "shares": 5, "needed": 4},
    "sum-unfit": {"clients": ["north", "south"]},
    "server-step-failed": {"phase": "train", "error": "ValueError: no"},
    "unbounded": {"phase": "train", "fields": ["mood"]},
    "model-not-finite": {"phase": "train"},
    "compiling-failed": {"error": "OSError"},
    "no-compiler": {},
    "nothing-dropped": {"method": "fedfair"},
    "secure-simulated": {},
    "too-few-for-rule": {"rule": "krum", "needed": 7, "liars": 2},
    "impossible-sum": {"phase": "train", "field": "update"},
    "false-shares": {"client": "north", "rounds": [2]},
    "validation-shown": {"rows": 1200},
    "sum-of-few": {"method": "ifca", "rounds": 2, "of": 9, "one": 1},
    "robust": {"rule": "median", "liars": 0.2, "cut": {"north": [0.9, 0.2]}, "simulated": True},
    "kernel": {"phase": "train", "kernel": "traced", "obstacle": "loss"},
    "rows-dropped": {"rows": 1200},
    "columns-left-out": {"columns": {"patient_id": "an identifier"}},
    "groups-merged": {"group": "other (merged)", "min_group": 50, "rows": {"f & a": 12, "m & a": 1}},
    "unknown-groups": {"rows": {"train": 12, "test": 1}, "of": {"train": 1200, "test": 300}},
    "no-test-rows": {},
    "rounds-not-applied": {"obstacle": FEW, "count": 2, "of": 9, "rounds": [3, 4], "seed": 0},
    "replies-rejected": {"count": 4},
    "clipped": {"fields": {"train": ["update"]}, "norms": [{"norm": 0.5, "share": 0.25}]},
    "did-not-answer": {"client": "north", "rounds": [0, 2, 3], "reasons": ["not connected", "no reply"]},
    "stopped-early": {"runs": 4, "of": 6, "first": 2, "last": 5, "rounds": 9},
    "few-fitted": {"method": "fedavg+fair", "few": 20, "groups": {"f": 12}, "clients": 2},
    "constraint-missed": {**RUNS, "remedy": "rounds"},
    "constraint-nearly-met": {**RUNS, "remedy": "dual_decay"},
    "did-not-evaluate": {"client": "north", "round": 3, "reason": "not connected"},
    "gone-late": {"client": "north", "round": 3, "phase": "train", "reason": "no reply within 300 s"},
    "not-evaluated": {"round": 3, "obstacle": FEW},
    "withheld-totals": {"counts": ["f", "m"], "predicted": ["m"]},
    "withheld": {"client": "north", "counts": ["f", "m"], "predicted": ["m"]},
    "disclosed": {"rows": 1200, "of": 1500},
}


def test_every_kind_has_an_example_here():
    assert EXAMPLES.keys() == WORDS.keys()


@pytest.mark.parametrize("kind", WORDS)
def test_a_note_survives_json_and_says_all_that_it_holds(kind):
    note = Note(kind, EXAMPLES[kind])
    again = Note.from_json(json.loads(json.dumps(note.to_json())))
    assert again == note
    assert str(again) == str(note) != ""
    assert str(note) in repr(note)
    assert set(inspect.signature(WORDS[kind]).parameters) == set(EXAMPLES[kind])  # no field that nothing is made of


def test_words():
    said = {kind: str(Note(kind, fields)) for kind, fields in EXAMPLES.items()}
    assert said["did-not-answer"] == (
        "north did not answer before round 1 and in rounds 2 to 3 (not connected; no reply)."
    )
    assert said["too-few-masked"] == "3 of 5 masked replies came, 4 are needed"
    assert said["too-few-unmasked"] == (
        "3 of 4 clients helped to unmask the sum, 4 are needed when a client of the cohort has dropped out"
    )
    assert said["rounds-not-applied"] == (
        "2 of 9 rounds left the model as it was: too few usable replies came (first: seed 0, round 3)."
    )
    assert said["constraint-missed"] == (
        "The constraint is not met at the end of 2 of 6 runs (first: seed 3, epsilon 0.1), by 0.25 there; see `log`. "
        "More rounds may help."
    )
    own = Note("constraint-missed", {**RUNS, "remedy": "slack"})  # of somebody's own method
    assert str(own).endswith("Another slack may help.")
    assert said["groups-merged"] == (
        "Groups with fewer than 50 of all rows were merged into one group, 'other (merged)': "
        "f & a (12 rows), m & a (1 rows)."
    )
    assert "which the schema does not list" in str(Note("groups-merged", {**EXAMPLES["groups-merged"], "rows": {}}))
    assert said["unknown-groups"].startswith("The group of 12 of 1,200 training rows, 1 of 300 test rows is unknown: ")
    assert said["stopped-early"].startswith("4 of 6 runs converged and stopped at rounds 2 to 5 of 9")
    assert "1,200 of 1,500 test rows" in said["disclosed"]
    assert "all 1,500 test rows are withheld" in str(Note("disclosed", {"rows": 0, "of": 1500}))


def test_ranges_and_when():
    assert ranges([9, 3, 5, 6, 6, 7]) == "3, 5 to 7, 9"
    assert when([0]) == "before round 1"
    assert when([4]) == "in round 4"
    assert when([2, 0, 1]) == "before round 1 and in rounds 1 to 2"
