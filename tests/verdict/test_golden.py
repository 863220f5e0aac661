"""What is said, word for word: the sentences of verdicts and answers, on the page, in a notebook, in the terminal.

`EQUIFED_GOLDEN=write pytest tests/verdict/test_golden.py` writes the files anew; read what changed in them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import equifed as ef
from equifed.files import plain
from equifed.metrics import evidence
from equifed.report import verdict, write_report
from verdict.situations import BY_MARGIN, BY_TARGET, Situation, complete

GOLDEN = Path(__file__).parent / "golden"
SITUATIONS = {f"margin-{name}": one for name, one in BY_MARGIN.items()}
SITUATIONS |= {f"target-{name}": one for name, one in BY_TARGET.items()}
SHOWN = {
    *("margin-adult-methods", "margin-alone-with-counts", "margin-chosen-on-validation", "margin-clear-winner"),
    *("margin-degenerate-on-test", "margin-one-seed", "margin-regression", "margin-sweep-with-counts"),
    *("target-asked-by-the-run", "target-left-out", "target-met", "target-no-validation-rows", "target-not-met"),
}
"""Those whose page is read, too."""


@pytest.fixture(autouse=True)
def _tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "TABLES", 400)


def check(name: str, found: str) -> None:
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("EQUIFED_GOLDEN") == "write":
        file.write_text(found, encoding="utf-8")
    assert found == file.read_text(encoding="utf-8")


class _Words(HTMLParser):
    """The words of a page's verdict and of its comparison table."""

    def __init__(self) -> None:
        super().__init__()
        self.section, self.words = "", dict[str, list[str]]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "section":
            self.section = dict(attrs).get("id") or ""
        if tag in ("p", "li", "tr", "h2", "h3", "div", "table", "td", "th", "dt", "dd"):
            self.words.setdefault(self.section, []).append("\n" if tag in ("p", "li", "tr", "div") else " ")

    def handle_endtag(self, tag: str) -> None:
        if tag == "section":
            self.section = ""

    def handle_data(self, data: str) -> None:
        self.words.setdefault(self.section, []).append(data)


def words_of(html: str, *sections: str) -> list[str]:
    reader = _Words()
    reader.feed(html)
    lines = [line for each in sections for line in "".join(reader.words.get(each, [])).split("\n")]
    return [text for line in lines if (text := re.sub(r"[ \n\t]+", " ", line).strip())]


def rounded(value: Any) -> Any:
    """Six digits, so that another machine's last bits do not matter."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def said(situation: Situation, page: Path | None) -> str:
    results = [complete(result) for result in situation.results()]
    asked = dict(situation.asked)
    found = verdict(results, **asked)
    parts = ["# verdict", f"chosen: {found.chosen}", *found.sentences, f"rule: {found.rule}", *found.caveats]
    target = asked.get("target")
    if target or any(result.settings.target for result in results):
        answer = ef.answer(results, target, asked.get("confidence"))
        shown = {name: value for name, value in answer.to_dict().items() if name not in ("sentences", "rule")}
        text = json.dumps(rounded(json.loads(json.dumps(shown, default=plain))), indent=1)
        parts += ["", "# answer", str(answer), text]
    if page is not None:
        html = write_report(results, page, **asked).read_text(encoding="utf-8")
        parts += ["", "# page", *words_of(html, "verdict", "card")]
        parts += ["", "# notebook", *words_of(results[0]._repr_html_() or "", "")]
    return "\n".join(parts) + "\n"


@pytest.mark.parametrize("name", SITUATIONS)
@pytest.mark.sample(20)
def test_what_is_said_and_shown(name: str, tmp_path: Path) -> None:
    check(name, said(SITUATIONS[name], tmp_path / "page.html" if name in SHOWN else None))


def test_every_file_has_its_situation() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == {*SITUATIONS, *TERMINAL}


# -- the terminal ------------------------------------------------------------------------------------------------------

SHIFT, HALF, NONE = "verdict.made:Shift", "verdict.made:Half", "verdict.made:Blind"
SWEEP = f"sweep even --rounds 1 --seeds 3 --method {SHIFT} --set method.on=true"
COMPARE = f"compare even --rounds 1 --seeds 3 --methods {SHIFT},{HALF},{NONE}"
TERMINAL = {
    "compare": [COMPARE],
    "compare-one": [f"compare even --rounds 1 --seeds 3 --methods {HALF}"],
    "compare-target": [f"{COMPARE} --target 'demographic_parity_difference <= 0.3' --fail-if 'target missed'"],
    "sweep": [f"{SWEEP} --over weight=0,20,100"],
    "sweep-met": [
        f"{SWEEP} --over weight=0,20,100 --target 'demographic_parity_difference <= 0.25'",
        "show latest",
        "show latest --target 'demographic_parity_difference <= 0.01'",
        "report latest --output page.html",
    ],
    "sweep-not-met": [
        f"{SWEEP} --over weight=0,5 --target 'demographic_parity_difference <= 0.05' --fail-if 'target missed'"
    ],
    "json": [f"{COMPARE} --json", f"{SWEEP} --over weight=0,20 --json"],
    "sweep-one-value": [f"{SWEEP} --over weight=20", f"{SWEEP} --over weight=20 --seeds 1"],
    "seek": [
        f"{SWEEP} --target 'demographic_parity_difference <= 0.2' --confidence mean --at-once 3 --steps 2",
        f"{SWEEP} --target 'demographic_parity_difference <= 0.2' --confidence mean --at-once 3 --steps 2",
    ],
    "seek-not-met": [
        f"{SWEEP} --set method.floor=0.2 --target 'demographic_parity_difference <= 0.1' --confidence mean --steps 2"
    ],
}
"""Commands whose numbers have a closed form."""


def without_what_changes(text: str) -> str:
    """Names of runs, times, the version: what differs from one day to the next."""
    text = re.sub(r"\d{8}-\d{6}(-[a-z0-9-]+-[0-9a-f]{4})?", lambda f: "WHEN" if not f[1] else "RUN", text)
    text = re.sub(r'"seconds": [\d.]+', '"seconds": S', text)
    text = re.sub(r"(in |\s)\d+\.\d( s)?(?= *$)", lambda f: f"{f[1]}S", text, flags=re.M)
    return re.sub(r" +$", "", text, flags=re.M)


@pytest.mark.parametrize("name", TERMINAL)
@pytest.mark.sample(3)
def test_what_the_terminal_says(name: str, invoke: Callable[..., Any]) -> None:
    shown = []
    for command in TERMINAL[name]:
        outcome = invoke(*shlex.split(command))
        printed = outcome.stdout
        if "--json" in command:
            printed = json.dumps(rounded({**json.loads(printed), "settings": "as asked for"}), indent=1)
        shown += [f"$ equifed {command}", f"[{outcome.exit_code}]", printed, "# stderr"]
        shown.append("\n".join(line for line in outcome.stderr.splitlines() if "%|" not in line))
    check(name, without_what_changes("\n".join(shown)) + "\n")
