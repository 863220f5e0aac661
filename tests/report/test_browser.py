"""The page in a real browser: it draws, answers, asks the network for nothing, and no name in it is executed."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import equifed as ef
from equifed.charts import look
from equifed.report import write_report
from report.browser import Browser, browser, chromium
from report.federated import troubled, untroubled
from report.pdf import texts
from report.runs import HOSTILE, federation, hostile_result, run

pytestmark = pytest.mark.skipif(
    chromium() is None, reason="no Chromium here to look at the page with (Debian: apt install chromium)"
)


MIDDLE = "(e) => (({x, y, width, height}) => [x + width / 2, y + height / 2])(e.getBoundingClientRect())"
CELLS = "[...document.querySelectorAll('#baseline-table tbody td')]"


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser(chromium() or "") as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """Three methods that lie apart; groups that are intersections."""
    fed = federation(groups=("f & old", "f & young", "m & old", "m & young"))
    methods = (ef.methods.FedAvg(), ef.methods.FedProx(mu=5.0), ef.methods.FedMom())
    return write_report([run(method, fed) for method in methods], tmp_path_factory.mktemp("page") / "report.html")


def quiet(window: Browser, page: Path) -> None:
    """Nothing on the console, nothing from elsewhere, nothing executed."""
    assert window.problems == []
    assert window.requests == [page.resolve().as_uri()]
    assert window.dialogs == []
    assert window.do("window.hacked") is None


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.sample(2)
def test_every_chart_is_drawn_and_nothing_sticks_out(window, page, width, dark):
    window.open(page, width=width, dark=dark)
    quiet(window, page)
    assert window.do("document.documentElement.dataset.charts") == "drawn"
    for name in ("pareto", "rounds", "groups", "calibration", "clients", "local", "partition"):
        assert window.do(f"document.querySelectorAll('[id^={name}-chart] svg.marks').length") > 0, name
    assert window.do("document.documentElement.scrollWidth") == width
    colours = "getComputedStyle(document.body).backgroundColor + getComputedStyle(document.body).color"
    back, ink = (sum(map(int, part.split(","))) for part in re.findall(r"\(([\d, ]+)\)", window.do(colours)))
    assert (back < ink) == dark
    assert window.do("document.querySelector('#rounds-chart .role-axis-title text').textContent") == "round"
    if width == 1280:
        stands_out(window)
        if not dark:
            window.media(kind="print")
            window.do("window.dispatchEvent(new Event('beforeprint'))")
            window.drawn()
            stands_out(window)
            window.media()


READABLE = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")


def stands_out(window: Browser) -> None:
    """All that is shown."""
    found = window.do(READABLE)
    assert found["texts"] > 200
    assert found["marks"] > 30
    assert found["weak"] == []


def numbers(window: Browser) -> dict[str, Any]:
    packed = window.do("document.querySelector('script.numbers').textContent")
    return dict(json.loads(gzip.decompress(base64.b64decode(packed))))


def spec(window: Browser, chart: str) -> dict[str, Any]:
    return dict(window.do(f"document.getElementById('{chart}-chart').shown.spec"))


def ranges(spec: dict[str, Any], channel: str) -> list[Any]:
    """The values of a channel, of the first layer that has it."""
    found = (layer["encoding"][channel] for layer in spec["layer"] if channel in layer["encoding"])
    return list(next(found)["scale"]["range"])


def attributes(of: str, name: str) -> str:
    return f"[...document.querySelectorAll('{of}')].map((e) => e.getAttribute('{name}'))"


def shown(window: Browser, chart: str, kind: str) -> list[str]:
    return list(window.do(f"[...document.querySelectorAll('#{chart}-chart .{kind}')].map((e) => e.textContent)"))


def test_no_chart_needs_colour_or_eyes(window, page):
    window.open(page)
    data = numbers(window)
    for chart in ("pareto", "rounds", "groups", "clients"):
        symbols = ranges(spec(window, chart), "shape")[: 4 if chart == "groups" else 3]
        assert len(set(symbols)) == len(symbols) >= 3, chart
        assert chart == "groups" or symbols == list(look.SHAPES[:3])  # a method has the same everywhere
    dashes = ranges(spec(window, "rounds"), "strokeDash")[:3]
    assert len({tuple(each) for each in dashes}) == 3
    beaten = data["pareto"][data["disparity"]]
    fills = window.do(attributes("#pareto-chart .mark-symbol.role-mark path", "fill"))
    assert [fill == "transparent" for fill in fills] == beaten
    assert True in beaten
    assert False in beaten
    lines = window.do(attributes("#rounds-chart .mark-line path", "stroke-dasharray"))
    assert len(set(lines)) == 3
    labels = window.do(
        "[...document.querySelectorAll('.chart')].map((each) => [each.getAttribute('role'), each.ariaLabel])"
    )
    assert {role for role, _ in labels} == {"img"}
    said = " ".join(label for _, label in labels)
    assert "Trade-off: across demographic parity difference (lower is better), upwards accuracy" in said
    assert said.count("3 methods") == len(labels) == 7


def test_the_metric_of_a_chart_is_chosen_in_the_page(window, page):
    window.open(page)
    data = numbers(window)
    for chart, metric in (
        ("pareto", "equalized_odds_difference"),
        ("rounds", "log:momentum_norm"),
        ("groups", "true_positive_rate"),
        ("clients", "demographic_parity_difference"),
    ):
        choose(window, f"{chart}-metric", metric)
        assert data["metrics"][metric]["title"] in " ".join(shown(window, chart, "role-axis-title text"))
        assert window.do(f"document.getElementById('{chart}-help').textContent") == data["metrics"][metric]["help"]
    rows = spec(window, "groups")["data"]["values"]
    means = data["groups"]["values"]["true_positive_rate"]["mean"]
    assert [row["value"] for row in rows] == [value for of_method in means for value in of_method]
    choose(window, "groups-kind", "marginals")
    assert len(shown(window, "groups", "role-legend-label text")) == 4
    points = spec(window, "pareto")["data"]["values"]
    assert [point["y"] for point in points] == [variant["final"]["accuracy"]["mean"] for variant in data["variants"]]
    choose(window, "rounds-metric", "accuracy")
    opacity = attributes("#rounds-chart .mark-area path", "fill-opacity")
    assert window.do(opacity) == ["0.15"] * 3
    window.do("document.getElementById('rounds-bands').click()")
    window.drawn()
    assert window.do(opacity) == ["0"] * 3
    quiet(window, page)


def choose(window: Browser, select: str, value: str) -> None:
    window.do(
        f"(() => {{ const s = document.getElementById({select!r}); s.value = {value!r};"
        " s.dispatchEvent(new Event('change')); })()"
    )
    window.drawn()


def test_a_click_on_a_name_shows_it_alone(window, page):
    window.open(page)
    window.do("document.getElementById('rounds-chart').scrollIntoView({ block: 'center' })")
    opacities = f"{attributes('#rounds-chart .mark-line path', 'opacity')}.map(Number)"
    assert window.do(opacities) == [1, 1, 1]
    box = window.do(f"({MIDDLE})(document.querySelectorAll('#rounds-chart .role-legend-label text')[1])")
    window.click(*box)
    window.until(f"{opacities}.some((each) => each < 1)")
    alone = [1.0 if i == 1 else pytest.approx(0.06) for i in range(3)]
    assert window.do(opacities) == alone
    window.click(*box)
    window.until(f"{opacities}.every((each) => each === 1)")
    quiet(window, page)


def test_hovering_shows_the_hyper_parameters(window, page):
    window.open(page)
    window.do("document.getElementById('pareto-chart').scrollIntoView({ block: 'center' })")
    points = "[...document.querySelectorAll('#pareto-chart .mark-symbol.role-mark path')]"
    spots = window.do(f"{points}.map({MIDDLE})")
    assert len(spots) == 3
    label = "document.querySelector('.tip')"
    said = []
    for x, y in spots:
        window.move(5, 5)
        window.until(f"{label}.hidden")
        window.move(x, y)
        window.until(f"!{label}.hidden")
        said.append(window.do(f"{label}.textContent"))
    assert said[1].startswith("fedprox")
    assert "mu = 5.0" in said[1]
    assert "3 seeds" in said[1]
    quiet(window, page)


def test_a_script_that_found_a_way_into_the_page_is_not_executed(window, page):
    window.open(page)
    window.do(
        """document.querySelector('main').insertAdjacentHTML('beforeend', '<a onclick="window.hacked=1">x</a>')"""
    )
    window.do("document.querySelector('main > a:last-child').click()")
    window.do(
        "document.body.append(Object.assign(document.createElement('script'), { textContent: 'window.hacked=1' }))"
    )
    assert window.do("window.hacked") is None
    assert sum("Content Security Policy" in problem for problem in window.problems) == 2


def test_without_scripts_the_tables_are_there(window, page):
    window.call("Emulation.setScriptExecutionDisabled", value=True)
    window.call("Page.navigate", url=page.resolve().as_uri())
    window.until("document.readyState === 'complete'")
    for section in ("comparison", "baseline", "groups", "calibration", "clients"):
        cells = (
            f"[...document.querySelectorAll('#{section} tbody td')].filter((e) => e.checkVisibility() && e.innerText)"
        )
        assert window.do(f"{cells}.length") > 10, section
    assert "The charts need JavaScript" in window.do("document.body.innerText")
    assert window.do("document.querySelectorAll('.chart svg').length") == 0
    window.call("Emulation.setScriptExecutionDisabled", value=False)


def test_tables_are_sorted_by_a_click(window, page):
    window.open(page)
    column = "[...document.querySelectorAll('#comparison tbody tr')].map((row) => Number(row.cells[1].dataset.v))"
    head = "document.querySelectorAll('#comparison thead button')[1]"
    for way in ("ascending", "descending"):
        window.do(f"{head}.scrollIntoView({{ block: 'center' }})")
        box = window.do(f"({MIDDLE})({head})")
        window.click(*box)
        values = window.do(column)
        assert values == sorted(values, reverse=way == "descending")
        assert window.do(f"{head}.parentElement.getAttribute('aria-sort')") == way
    quiet(window, page)


def test_the_baseline_is_chosen_in_the_page(window, page):
    window.open(page)
    data = numbers(window)
    text = f"{CELLS}.map((cell) => cell.textContent.trim().replace(/\\s+/g, ' '))"
    at_first = window.do(text)
    choose(window, "baseline-variant", "2")
    assert window.do("document.querySelector('#baseline-table tr.base').dataset.variant") == "2"
    found = window.do(f"{CELLS}.map((cell) => cell.dataset.v)")
    expected = [cell for row in data["tests"]["cells"]["2"] for cell in row]
    assert [float(each) if each else None for each in found] == [each and each["difference"] for each in expected]
    choose(window, "baseline-variant", "0")
    assert window.do(text) == at_first  # what the script writes is what the page was written with
    quiet(window, page)


@pytest.mark.full
def test_hostile_names_are_only_names(window, tmp_path):
    """All of them at once, as methods, clients, groups, columns, fields, runs, settings and titles; some alone."""
    results = [hostile_result(text) for text in HOSTILE]
    pages = [write_report(results, tmp_path / "all.html", title=HOSTILE[0])]
    for i in (1, 5, HOSTILE.index("__proto__"), len(HOSTILE) - 1):
        pages.append(write_report(results[i : i + 1], tmp_path / f"{i}.html", title=HOSTILE[i]))
    for made in pages:
        window.open(made)
        assert window.do("document.documentElement.dataset.charts") == "drawn"
        for select in ("pareto-metric", "rounds-metric", "groups-metric", "clients-metric", "baseline-variant"):
            options = window.do(f"[...(document.getElementById('{select}')?.options ?? [])].map((o) => o.value)")
            if options:
                choose(window, select, options[-1])
        assert (
            window.do("document.querySelectorAll('main script, main iframe, main img, main base, main meta').length")
            == 0
        )
        assert window.do("document.documentElement.scrollWidth") == 1280
        quiet(window, made)
    labels = [variant["label"] for variant in numbers(window)["variants"]]
    assert labels == [HOSTILE[-1]]


@pytest.fixture(scope="module")
def federated(tmp_path_factory) -> list[Path]:
    """Pages on a federation in which all goes wrong, and on one in which nothing is disclosed."""
    pages = []
    for make, more in ((troubled, {}), (untroubled, {"flower": {"min-count": 100}})):
        folder = tmp_path_factory.mktemp("federated")
        pages.append(write_report([make(folder, folder / "runs", **more)], folder / "report.html"))
    return pages


FIRST_IS_ACCURACY = "document.getElementById('rounds-metric').value === 'accuracy'"
SOMETHING_IS_DRAWN = "document.getElementById('rounds-chart').shown.spec.data.values.some((row) => row.mean !== null)"
"""Not the accuracy, where nothing is known of it."""


@pytest.mark.parametrize("width", [1280, pytest.param(390, marks=pytest.mark.full)])
@pytest.mark.full
def test_a_federation(window, federated, width):
    for page, rows, drawn in zip(federated, (5, 3), (FIRST_IS_ACCURACY, SOMETHING_IS_DRAWN), strict=True):
        window.open(page, width=width)
        quiet(window, page)
        assert window.do("document.documentElement.dataset.charts") == "drawn"
        assert window.do("document.documentElement.scrollWidth") == width
        assert window.do("document.querySelectorAll('#silos tbody tr').length") == rows
        broken = "[...document.querySelectorAll('#silos thead th')].filter((head) => head.offsetWidth < 40).length"
        assert window.do(broken) == 0  # no heading is broken into letters
        assert window.do(drawn)


MANY = """(section) => {
  const body = document.querySelector(`#${section} tbody`), first = body.rows[0];
  body.replaceChildren(...Array.from({ length: 60 }, (_, i) => {
    const row = first.cloneNode(true);
    row.cells[0].textContent = `row${String(i).padStart(2, 0)}begins`;
    row.lastElementChild.append(`row${String(i).padStart(2, 0)}ends`);
    return row;
  }));
  document.querySelectorAll("section").forEach((each) => each.hidden = each.id !== section);
  document.querySelectorAll(".chart").forEach((each) => each.remove());
}"""
"""Makes a section's table a long one, and leaves nothing else on the page."""


@pytest.mark.full
def test_on_paper_heads_are_repeated_and_rows_are_whole(window, page):
    window.open(page, dark=True)
    whole = "".join(texts(window.pdf()))
    quiet(window, page)
    assert "Howtocite" in whole
    for said in ("Clickaheading", "Clickaname", "Saveasafile"):  # nobody clicks on paper
        assert said not in whole
    for section, head in (("comparison", "accuracy↑"), ("baseline", "accuracy"), ("groups", "selectionrate")):
        window.do(f"({MANY})({section!r})")
        pages = [text for text in texts(window.pdf()) if "begins" in text]
        assert len(pages) > 1
        assert all(head in text for text in pages), section
        for text in pages:
            assert set(re.findall(r"row\d\d(?=begins)", text)) == set(re.findall(r"row\d\d(?=ends)", text))


@pytest.mark.full  # a stress test of the page; every chart is drawn in the other tests
def test_thousands_of_numbers_load(window, tmp_path):
    fed = federation(clients=False)
    result = run(ef.methods.FedAvg(), fed, rounds=60)
    many = [replace(result, info={**result.info, "method": f"m{i}"}) for i in range(10)]
    page = write_report(many, tmp_path / "many.html")
    window.open(page)
    quiet(window, page)
