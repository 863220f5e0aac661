"""The benchmark's page in a real browser: what the filters show is what the rows say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report.browser import Browser, browser, chromium

from equifed_papers.benchmark.page import write_page
from equifed_papers.benchmark.records import table_of

pytestmark = pytest.mark.skipif(
    chromium() is None, reason="no Chromium here to look at the page with (Debian: apt install chromium)"
)

DP = "demographic_parity_difference"
ACCURACY = {  # by method, data set and partition
    "fedavg": {("adult", "iid"): 0.84, ("adult", "dirichlet"): 0.80, ("law", "iid"): 0.90, ("german", "iid"): 0.70},
    "kffl": {("adult", "iid"): 0.82, ("adult", "dirichlet"): 0.81, ("law", "iid"): 0.91, ("german", "iid"): 0.72},
    "local": {("adult", "iid"): 0.79, ("adult", "dirichlet"): 0.83, ("law", "iid"): 0.89, ("german", "iid"): 0.71},
}
FAMILY = {"fedavg": "accuracy", "kffl": "group fairness", "local": "personal models", "ditto": "personal models"}
GAP = {"fedavg": 0.15, "kffl": 0.02, "local": 0.04, "ditto": 0.03}


def row(method: str, data: str, partition: str, accuracy: float, seed: int) -> dict[str, Any]:
    measured = {}
    for split in ("validation", "test"):
        measured |= {f"{split}_accuracy": accuracy, f"{split}_{DP}": GAP[method]}
        measured |= {f"{split}_client_accuracy.worst": accuracy - 0.1, f"{split}_client_accuracy.mean": accuracy}
    facts = {"tier": "quick", "family": FAMILY[method], "setting": "learning-rate=0.1", "majority": 0.6}
    return facts | measured | {
        "method": method, "data": data, "partition": partition, "seed": seed, "left_out": "", "bytes": 10,
        "seconds": 1.0, "commit": "", "date": "2026-01-01", "device": "cpu",
    }  # fmt: skip


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    path: Path = tmp_path_factory.mktemp("page") / "benchmark.html"
    rows = [
        row(method, *place, accuracy, seed)
        for method, places in ACCURACY.items()
        for place, accuracy in places.items()
        for seed in range(3)
    ]
    write_page(table_of(rows), path, "quick")
    with browser(chromium() or "") as opened:
        opened.open(path)
        yield opened
        assert opened.problems == []
        assert opened.requests == [path.resolve().as_uri()]


@pytest.mark.full
def test_a_method_that_lacks_a_federation_has_no_mean(tmp_path: Path, window: Browser) -> None:
    places = {**ACCURACY, "ditto": {("adult", "iid"): 0.99, ("law", "iid"): 0.99, ("german", "iid"): 0.99}}
    rows = [row(m, *place, value, 0) for m, of in places.items() for place, value in of.items()]
    rows += [row(m, "communities", "iid", 0.5, 0) for m in ("fedavg", "kffl")]  # where not every method can run
    write_page(table_of(rows), tmp_path / "page.html", "quick")
    before = window.requests[0]
    window.open(tmp_path / "page.html")
    pick(window)
    lines = {line[0]: line for line in table(window)[1:]}
    assert lines["ditto"][2] == "0.990 (1 of 2)"
    assert lines["ditto"][-1] == ""
    assert list(lines)[-1] == "ditto"
    assert float(lines["fedavg"][-1]) == pytest.approx((0.82 + 0.70 + 0.90) / 3, abs=6e-4)
    window.open(Path(before.removeprefix("file://")))


def pick(window: Browser, **chosen: str) -> None:
    for name in ("score", "data-set", "partition", "family"):
        value = chosen.get(name.replace("-", "_"), "own" if name == "score" else "")
        window.do(f"(() => {{ const e = document.getElementById('{name}'); e.value = '{value}'; "
                  "e.dispatchEvent(new Event('change')); })()")  # fmt: skip


def table(window: Browser) -> list[list[str]]:
    return list(window.do("[...document.getElementById('scores').rows].map(r => [...r.cells].map(c => c.innerText))"))


def test_a_data_set_is_the_mean_of_its_partitions(window: Browser) -> None:
    pick(window)
    head, *lines = table(window)
    assert head == ["method", "kind", "adult", "german", "law", "mean"]
    for method, _, adult, german, law, mean in lines:
        own = ACCURACY[method]
        expected = (own["adult", "iid"] + own["adult", "dirichlet"]) / 2
        assert float(adult) == pytest.approx(expected, abs=6e-4)
        assert (float(german), float(law)) == (own["german", "iid"], own["law", "iid"])
        assert float(mean) == pytest.approx((expected + float(german) + float(law)) / 3, abs=6e-4)
    assert [line[0] for line in lines] == ["kffl", "fedavg", "local"]  # .815 + .72 + .91, then .82 + ..., .81 + ...


def test_filters(window: Browser) -> None:
    pick(window, data_set="adult")
    head, *lines = table(window)
    assert head == ["method", "kind", "dirichlet", "iid", "mean"]
    assert {line[0]: line[2:4] for line in lines} == {
        method: [f"{own['adult', part]:.3f}" for part in ("dirichlet", "iid")] for method, own in ACCURACY.items()
    }
    pick(window, data_set="adult", partition="iid")
    head, *lines = table(window)
    assert head == ["method", "kind", "iid", "gap", "setting"]
    assert [line[0] for line in lines] == ["fedavg", "kffl", "local"]
    assert lines[0][2].startswith("0.840")
    assert lines[0][4] == "learning-rate=0.1"
    pick(window, family="group fairness")
    assert [line[0] for line in table(window)[1:]] == ["kffl"]


def test_a_score_has_its_own_marks_and_ranks(window: Browser) -> None:
    pick(window, score="parity", data_set="adult", partition="iid")
    lines = {line[0]: line for line in table(window)[1:]}
    assert "▲" in lines["fedavg"][2]  # its gap of .15 costs .10
    assert lines["fedavg"][2].startswith("0.740")
    assert lines["fedavg"][3] == "0.150"
    assert "▲" not in lines["kffl"][2]
    shown = "[...document.querySelectorAll('.picture')].filter(e => !e.hidden).map(e => e.dataset.score)"
    assert window.do(shown) == ["parity"]
    pick(window, score="hypervolume")
    assert window.do(shown) == ["hypervolume"]


def test_a_click_sorts_by_a_column(window: Browser) -> None:
    pick(window)
    window.do("[...document.querySelectorAll('#scores th button')].find(e => e.innerText === 'german').click()")
    assert [line[0] for line in table(window)[1:]] == ["kffl", "local", "fedavg"]
    pick(window, score="bytes")  # another score forgets it
    assert [line[5] for line in table(window)[1:]] == ["10.000"] * 3
