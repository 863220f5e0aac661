"""The page in a real browser: readable in light, dark and print, on wide and narrow screens, and alone in the world."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from report.browser import Browser, browser, chromium

from equifed.monitor import History, watch
from equifed.monitor.page import write_monitor
from monitor.made import hand_in, stable

pytestmark = pytest.mark.skipif(
    chromium() is None, reason="no Chromium here to look at the page with (Debian: apt install chromium)"
)
READABLE = (Path(__file__).parents[1] / "report" / "contrast.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser(chromium() or "") as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """An alarm, a period with few rows, one that a silo withholds, and a silo that is late."""
    rng = np.random.default_rng(0)
    tables = [stable(rng, 14, 300) for _ in range(3)]
    tables[1] = stable(rng, 14, 300, moved=(8, 0, -0.25))
    tables[2][11, 0] = np.nan
    for table in tables:
        table[4] = np.floor(table[4] / 20)
    parts = [hand_in(silo, table) for silo, table in zip(("north", "south", "west"), tables, strict=True)]
    late = dict(list(parts[0].periods.items())[:-1])
    seen = watch(History.of([parts[0].model_copy(update={"periods": late}), *parts[1:]]))
    assert seen.state == "alarm"
    path = tmp_path_factory.mktemp("page") / "monitor.html"
    write_monitor(seen, path, "Loans")
    return path


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.sample(1)
def test_the_page_can_be_read(window, page, width, dark) -> None:
    window.open(page, width=width, dark=dark)
    assert window.problems == []
    assert window.requests == [page.resolve().as_uri()]
    assert window.do("document.documentElement.scrollWidth") == width
    assert window.do("document.querySelectorAll('.chart[role=img][aria-label] svg').length") == 3
    shown = " ".join(window.do("[...document.querySelectorAll('.chart svg text')].map((e) => e.textContent)"))
    for words in ("reference", "▲ alarm", "?", "alarm above +", "alarm below −", "women minus men"):
        assert words in shown
    for kind in ("", "print"):
        window.media(dark=dark, kind=kind)
        if kind == "print":
            window.do("window.dispatchEvent(new Event('beforeprint'))")
            window.drawn()
        found = window.do(READABLE)
        assert found["texts"] > 100
        assert found["marks"] > 20
        assert found["weak"] == []
    window.media()
