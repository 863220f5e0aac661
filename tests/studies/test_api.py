"""Comparing methods, and the settings of one, from Python: what the commands say, in memory and from a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from verdict.made import BIAS, Blind, Half, Shift, evenly

import equifed as ef
from equifed.errors import ConfigError
from equifed.simulator import Job
from equifed.studies import api
from equifed.verdict import Comparison

GAP = "demographic_parity_difference"
MODEL = ef.models.Logistic()


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The methods that were trained."""
    names: list[str] = []

    def train(job: Job, callbacks: Any = ()) -> ef.Result:
        names.append(job.method.name)
        return original(job, callbacks)

    original = api.train
    monkeypatch.setattr(api, "train", train)
    return names


def test_methods_beside_each_other() -> None:
    """Half closes half of the gap of the labels and is wrong about a quarter of it; Blind closes all."""
    found = ef.compare(evenly(), [Shift(), Half(), Blind()], model=MODEL, rounds=1, seeds=3, margin=0.15)
    labels = [variant.label for variant in found.variants]
    assert labels == [method.name for method in (Shift, Half, Blind)]
    frame = found.to_frame()
    np.testing.assert_allclose(frame[GAP, "mean"], [BIAS, BIAS / 2, 0], atol=2e-3)
    np.testing.assert_allclose(frame["accuracy", "mean"], [1, 1 - BIAS / 4, 1 - BIAS / 2], atol=2e-3)
    assert found.verdict.chosen == Half.name  # which loses 0.1 of the 0.15 that may be lost
    assert f"Take {Half.name}" in repr(found)
    assert f"Take {Half.name}" in found._repr_html_()
    assert found.answer is None


def test_a_target_is_answered() -> None:
    fed = evenly()
    options: dict[str, Any] = {"model": MODEL, "rounds": 1, "seeds": 3, "confidence": "mean"}
    found = ef.compare(fed, [Shift(), Half(), Blind()], target=f"{GAP} <= {BIAS / 2 + 0.01}", **options)
    assert found.answer is not None
    assert found.answer.met
    assert found.answer.chosen is found.variants[1]
    swept = ef.sweep(fed, Shift(on=True), over={"weight": [0.0, 20.0, 100.0]}, target=f"{GAP} <= 0.1", **options)
    assert swept.answer is not None
    assert swept.answer.chosen is not None
    assert swept.answer.chosen.setting == {"weight": 100.0}
    assert [variant.setting["weight"] for variant in swept.variants] == [0, 20, 100]
    rows = (fed.rows.x[::20], fed.rows.y[::20], fed.rows.s[::20])
    bare = ef.Federation.from_arrays([rows], test=rows)
    with pytest.raises(ConfigError, match="Hold some back"):
        ef.compare(bare, [Shift(), Half()], target=f"{GAP} <= 0.1", **options)
    with pytest.raises(ConfigError, match="Hold some back"):
        ef.sweep(bare, Shift(on=True), over={"weight": [0.0, 20.0]}, target=f"{GAP} <= 0.1", **options)


def test_a_folder_keeps_what_was_trained(tmp_path: Path, trained: list[str]) -> None:
    def compare(*methods: Any, rounds: int = 1, rows: int = 400) -> Comparison:
        return ef.compare(evenly(rows), methods, model=MODEL, rounds=rounds, seeds=2, runs=tmp_path / "runs")

    first = compare("fedavg", "kffl")
    assert trained == ["fedavg", "kffl"]
    again = compare("fedavg", "fedprox", "kffl")
    assert trained == ["fedavg", "kffl", "fedprox"]
    old, new = (found.to_frame().loc["kffl"] for found in (first, again))
    assert old.equals(new)
    key = next(iter(first.results[0].parameters))
    for name, value in first.results[0].parameters[key].items():
        np.testing.assert_array_equal(again.results[0].parameters[key][name], value)
    for more in ({"rounds": 2}, {"rows": 402}):  # other settings, and other rows
        compare("fedavg", **more)
    compare(ef.methods.KFFL(fairness_weight=3.0))
    assert trained == ["fedavg", "kffl", "fedprox", "fedavg", "fedavg", "kffl"]
    # one that was not written to its end is trained again
    (half,) = {path.parent for path in (tmp_path / "runs").glob("fedprox-*/SUMS.json")}
    (half / "SUMS.json").unlink()
    compare("fedprox")
    assert trained[-1] == "fedprox"
    assert len(trained) == 7


def test_own_code_that_has_changed_is_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[str]
) -> None:
    code = "from equifed.methods import FedAvg\n\nclass Mine(FedAvg):\n    name = 'mine'\n"
    (tmp_path / "my_methods.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    import my_methods  # type: ignore[import-not-found]

    def compare() -> Comparison:
        return ef.compare(evenly(100), [my_methods.Mine()], model=MODEL, rounds=1, seeds=1, runs=tmp_path / "runs")

    compare()
    compare()
    assert len(trained) == 1
    (tmp_path / "my_methods.py").write_text(code + "    # other code\n")
    compare()
    assert len(trained) == 2
    monkeypatch.delattr(my_methods, "__file__")  # as of what is typed into a notebook
    with pytest.raises(ConfigError, match="my_methods, which is not in a file"):
        compare()


def test_without_methods_all_that_fit_are_compared(monkeypatch: pytest.MonkeyPatch, trained: list[str]) -> None:
    monkeypatch.setattr(api.REGISTRY, "usable", lambda: ["fedavg", "local", "centralized-kernel"])
    options: dict[str, Any] = {"model": MODEL, "rounds": 1, "seeds": 1}
    found = ef.compare(evenly(100), **options)
    assert [variant.method for variant in found.variants] == trained == ["fedavg", "local", "centralized-kernel"]
    monkeypatch.setattr("equifed.studies.comparing.PERSONAL_TESTS", 10)
    with pytest.warns(ef.EquifedWarning, match="local is left out: every evaluation would test 1 models on 200 rows"):
        ef.compare(evenly(100), **options)
    assert trained[3:] == ["fedavg", "centralized-kernel"]
    ef.compare(evenly(100), ["local"], **options)
    assert trained[5:] == ["local"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda fed: ef.compare(fed, "fedavg", model=MODEL), "must be a list of methods"),
        (lambda fed: ef.compare(fed, ["fedagv"], model=MODEL), "Did you mean 'fedavg'"),
        (lambda fed: ef.compare(fed, [], model=MODEL), "no method to compare"),
        (lambda fed: ef.compare(fed, ["fedavg"], model=MODEL, margin=1.5), "margin"),
        (lambda fed: ef.compare(fed, ["fedavg"], model=MODEL, rounds=1, baseline="kffl"), "baseline"),
        (lambda fed: ef.sweep(ef.methods.KFFL(), fed, model=MODEL, over={"fairness_weight": [1]}), "federation first"),
        (lambda fed: ef.sweep(fed, "kffl", model=MODEL, over={"mu": [1]}), "mu"),
    ],
)
def test_what_is_refused(call: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        call(evenly(50))
