"""Validation rows held back from training: the share that was asked for, and not a test row among them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_data import federation_of
from store.silos import write_silos

import equifed as ef
from equifed.config import load_federations, parse_config
from equifed.data import get_dataset
from equifed.federation.split import deal
from equifed.partition import IID

GAP = "demographic_parity_difference <= 0.05"


def rows_of(fed: ef.Federation) -> np.ndarray:
    return np.sort(np.concatenate([*fed.train, fed.validation]))


@pytest.mark.parametrize(
    ("name", "preset"), [("compas", "fair-fate"), ("compas", "fedfair"), ("adult", "kffl"), ("german", None)]
)
def test_held_back_from_the_clients_of_a_named_data_set(
    name: str, preset: str | None, needs: Callable[[str], Path]
) -> None:
    """Splits by shares and by numbers of rows, with and without validation rows of their own."""
    needs(name)
    usual = ef.load(name, preset=preset, seed=3)
    fed = ef.load(name, preset=preset, seed=3, validation=0.1)
    rows = len(fed.rows.y)
    assert len(fed.validation) == round(0.1 * rows)
    np.testing.assert_array_equal(fed.test, usual.test)
    np.testing.assert_array_equal(rows_of(fed), rows_of(usual))  # nobody has a row twice, none is lost
    assert fed.ids == usual.ids
    if not len(usual.validation):  # the same clients, each without what was taken
        for mine, before in zip(fed.train, usual.train, strict=True):
            np.testing.assert_array_equal(mine, np.setdiff1d(before, fed.validation))
    assert fed.provenance["validation"] == 0.1
    assert not len(ef.load(name, preset=preset, seed=3, validation=0).validation)


def encoded() -> Any:
    return get_dataset("compas").encode().encoded


def test_the_clients_own_test_rows_stay(needs: Callable[[str], Path]) -> None:
    needs("compas")
    rows = encoded()
    options: dict[str, Any] = {"encoded": rows, "partition": IID(5), "seeds": [0], "split": (1.0, 0.0, 0.0)}
    (usual,) = deal(**options, client_test=0.4)
    (held,) = deal(**options, client_test=0.4, validation=0.2)
    assert usual.client_test is not None
    assert held.client_test is not None
    for mine, before in zip(held.client_test, usual.client_test, strict=True):
        np.testing.assert_array_equal(mine, before)
    assert len(held.validation) == round(0.2 * len(rows.y))
    assert not np.isin(held.validation, np.concatenate(usual.client_test)).any()
    everything = [*held.train, *held.client_test, held.validation]
    np.testing.assert_array_equal(np.sort(np.concatenate(everything)), np.arange(len(rows.y)))


def test_what_cannot_be_held_back(needs: Callable[[str], Path]) -> None:
    needs("compas")
    with pytest.raises(ef.ConfigError, match="validation would take"):
        ef.load("compas", preset="fair-fate", validation=0.9)
    for share in (-0.1, 1.5, "some"):
        with pytest.raises(ef.ConfigError, match="validation must be a number"):
            ef.load("compas", validation=share)  # type: ignore[call-overload]


def test_of_own_files_the_test_rows_stay_too(tmp_path: Path) -> None:
    write_silos(tmp_path)
    files = [tmp_path / f"silo-{k}.csv" for k in range(4)]
    options: dict[str, Any] = {"label": "label", "sensitive": "sex", "seed": 1}
    usual = federation_of(files, **options)
    held = federation_of(files, **options, validation=0.1)
    np.testing.assert_array_equal(held.test, usual.test)
    np.testing.assert_array_equal(rows_of(held), rows_of(usual))


def config(*overrides: str, preset: str = "fedfair", chosen_from: bool = False, **sections: Any) -> Any:
    raw = {"data": {"name": "compas", "preset": preset}, "method": {"name": "kffl"}, **sections}
    return parse_config(raw, overrides, chosen_from=chosen_from)


def test_a_target_that_chooses_holds_rows_back(needs: Callable[[str], Path]) -> None:
    """Where there are several to choose from and the preset has no validation rows; what the file says wins."""
    needs("compas")
    over = {"fairness-weight": [0.0, 1.0]}
    assert config(run={"target": GAP}).data.validation is None
    assert config(sweep=over).data.validation is None
    swept = config(run={"target": GAP}, sweep=over)
    assert swept.data.validation == 0.1
    assert swept.resolved()["data"] == {"name": "compas", "preset": "fedfair", "validation": 0.1}
    assert parse_config(swept.resolved()).data.validation == 0.1
    assert config(run={"target": GAP}, chosen_from=True).data.validation == 0.1
    assert config("data.validation=0.3", run={"target": GAP}, sweep=over).data.validation == 0.3
    assert config("data.validation=0", run={"target": GAP}, sweep=over).data.validation == 0
    assert config(preset="fair-fate", run={"target": GAP}, sweep=over).data.validation is None
    (fed,) = load_federations(config("run.seeds=[3]", run={"target": GAP}, sweep=over))
    np.testing.assert_array_equal(fed.test, ef.load("compas", preset="fedfair", seed=3).test)
    assert len(fed.validation) == round(0.1 * len(fed.rows.y))
