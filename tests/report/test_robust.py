"""What a report says about a robust rule: whom it cut, and accuracy and gaps with and without it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flower.inprocess import federate, nodes, write_files
from flower.inprocess import setting as federated

import equifed as ef
from equifed.report.robust import Robustness, robustness
from report.test_report import page_of


def minority(rng: np.random.Generator, n: int, group: str) -> tuple[Any, Any, Any]:
    """Of group b, the label follows from the second feature; of group a from the first."""
    x = rng.normal(size=(n, 2)).astype(np.float32)
    own = x[:, 0] if group == "a" else x[:, 1]
    return x, (own + 0.3 * rng.normal(size=n) > 0).astype(int), np.full(n, group)


@pytest.fixture(scope="module")
def result() -> ef.Result:
    """Nobody lies; two of ten clients hold group b, and most of its rows are there."""
    rng = np.random.default_rng(1)
    clients = [minority(rng, 90, "b" if k < 2 else "a") for k in range(10)]
    test = tuple(np.concatenate(parts) for parts in zip(*(minority(rng, 400, group) for group in "ab"), strict=True))
    fed = ef.Federation.from_arrays(clients, test=test, ids=[f"site {k}" for k in range(10)])
    return ef.simulate(
        ef.methods.FedAvg(), fed, model=ef.models.Logistic(), rounds=15, seeds=[0, 1], robust="multi-krum", liars=0.2
    )


def test_who_was_cut_and_what_it_did(result: ef.Result) -> None:
    (found,) = robustness(result)
    assert {client.name for client in found.clients[:2]} == {"site 0", "site 1"}
    assert [client.singled_out for client in found.clients] == [True] * 2 + [False] * 8
    for client in found.clients:
        own = result.cuts[result.cuts["client"] == client.name]
        assert (client.cut, client.everyone) == pytest.approx((own["cut"].mean(), 0.2))
        assert client.updates == 15
    cut = {group.name: group.cut for group in found.groups}
    shares = result.cuts[result.cuts["seed"] == 0].set_index("client")["cut"]
    assert cut["b"] == pytest.approx(shares[["site 0", "site 1"]].mean())
    assert cut["a"] == pytest.approx(shares.drop(["site 0", "site 1"]).mean())
    values = {name: (with_rule, plain) for name, with_rule, plain in found.overall}
    final = result.final()["accuracy"].mean()
    plain = result.plain_mean
    plain = plain[(plain["scope"] == "global") & (plain["split"] == "test") & (plain["metric"] == "accuracy")]
    assert values["accuracy"] == pytest.approx((final, plain["value"].mean()))
    b = next(group for group in found.groups if group.name == "b").rates[found.rates.index("accuracy")]
    assert b[0] < b[1] - 0.05  # the rule took the minority's clients for liars


def test_a_report_shows_it(result: ef.Result, tmp_path: Path) -> None:
    page = page_of([result], tmp_path)
    text = re.sub(r"\s+", " ", page.text)
    (found,) = robustness(result)
    assert ("section", {"id": "robust"}) in page.tags
    for sentence in found.sentences:
        assert sentence in text
    assert re.search(r"more of some clients' updates than of all: site \d \(\d+%\) and site \d \(\d+%\)\.", text)
    assert "Of the updates of clients that hold rows of group b it cut" in text
    accuracy = next(values for name, *values in found.overall if name == "accuracy")
    assert f"Accuracy is {accuracy[0]:.3f}, and {accuracy[1]:.3f} with the plain mean" in text
    assert "site 0 cut more" in text
    assert "Blanchard et al., Machine Learning with Adversaries" in text
    assert "@inproceedings{blanchard2017machine" in text
    assert "It may cut honest clients that are unlike the others" in text  # a caveat of the verdict
    plain = ef.simulate(ef.methods.FedAvg(), _two(), model=ef.models.Logistic(), rounds=1, seeds=[0])
    assert ("section", {"id": "robust"}) not in page_of([plain], tmp_path).tags


def _two() -> ef.Federation:
    rng = np.random.default_rng(2)
    return ef.Federation.from_arrays([minority(rng, 40, group) for group in "ab"], test=minority(rng, 40, "a"))


def test_a_sweep_has_a_part_for_each_setting(result: ef.Result) -> None:
    rng = np.random.default_rng(3)
    fed = ef.Federation.from_arrays([minority(rng, 30, "a") for _ in range(5)], test=minority(rng, 40, "a"))
    swept = ef.simulate(
        ef.methods.FedAvg(), fed, model=ef.models.Logistic(), rounds=1, seeds=[0], robust="trimmed-mean",
        over={"liars": [0.2, 0.4]},
    )  # fmt: skip
    found = robustness(swept)
    assert [each.liars for each in found] == [0.2, 0.4]
    assert [each.label for each in found] == ["fedavg (liars=0.2)", "fedavg (liars=0.4)"]
    assert all(isinstance(each, Robustness) and each.overall for each in found)


def test_a_real_federation_says_what_to_do(tmp_path: Path) -> None:
    write_files(tmp_path)
    made = federated(tmp_path, run={"robust": "median", "clients-per-round": "all", "rounds": 2})
    real = federate(made, nodes(made), tmp_path / "runs")
    (found,) = robustness(real)
    assert not found.overall
    assert "run it again without the rule, or simulate both on rows like these" in found.sentences[-1]
    (tmp_path / "page").mkdir()
    page = page_of([real], tmp_path / "page")
    assert "run it again without the rule" in re.sub(r"\s+", " ", page.text)
