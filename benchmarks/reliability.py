"""What the suites of docs/reliability.md come to, written to docs/reliability.json.

    python benchmarks/reliability.py [SUITE ...]

Without names all suites are carried out, one after another, each in a process of its own. Afterwards
`python docs/generate.py` makes the page's table from the record. Exit code 1: something went wrong in a suite.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs" / "reliability.json"
HOSTILE = "tests/flower/test_hostile.py"
Figures = dict[str, Any]

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]  # the suites' programs, and speed.py


def faults(name: str) -> Figures:
    """A suite of tests/store/faults.py, in a folder of its own."""
    from store import faults

    with tempfile.TemporaryDirectory() as place:
        found: Figures = getattr(faults, name)(Path(place), np.random.default_rng(0))
    return found


def lies() -> Figures:
    """Count the finite lies that tests/test_bounds.py tries, and the methods whose replies they are in."""
    import test_bounds

    return {"lies": len(test_bounds.LIES), "methods": len({method.name for method, *_ in test_bounds.LIES})}


def checks() -> Figures:
    """Return the share of a job's CPU time, in percent, that the checks of replies take, and more of speed.py."""
    import speed

    names = ("fedavg", "kffl", "fedfair", "fedavg_short_rounds")
    return {name: round(share, 2) for name, share in zip(names, speed.checks(False).values(), strict=True)}


def hostile() -> Figures:
    """Carry out the full tests of hostile answers, and read what they record of themselves."""
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.xml"
        to_report = [f"--junitxml={report}", "-o", "junit_family=xunit1"]  # the newer form has no properties
        command = [sys.executable, "-m", "pytest", "-q", HOSTILE, "-k", "all", "-m", "full", *to_report]
        subprocess.run(command, check=True, cwd=ROOT)
        found: Figures = {}
        for case in ElementTree.parse(report).iter("testcase"):
            name = case.attrib["name"].partition("[")[0].removeprefix("test_")
            found[name] = {each.attrib["name"]: int(each.attrib["value"]) for each in case.iter("property")}
    return found


def soak() -> Figures:
    from flower.soak import measure

    return measure()


def usage() -> Figures:
    from fuzz.usage import count_outcomes

    return count_outcomes()


SUITES: dict[str, Callable[[], Figures]] = {
    "lies": lies,
    "deaths": lambda: faults("count_deaths"),
    "kills": lambda: faults("count_kills"),
    "corruptions": lambda: faults("count_corruptions"),
    "cost": lambda: faults("measure_cost"),
    "checks": checks,
    "hostile": hostile,
    "soak": soak,
    "usage": usage,
}


def wrong(suite: str, found: Figures) -> int:
    """Return how many trials of a suite did not end as promised."""
    if suite in ("deaths", "kills"):
        return int(found["runs"] - found["right"])
    if suite == "corruptions":
        return int(found["silent"] + found["unclean"])
    if suite == "soak":
        return sum(each["unlike_rounds"] + (each["model_difference"] > 0) for each in found.values())
    if suite == "usage":
        return sum(each["wrong"] for each in found.values())
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], help="all if none is named", metavar="SUITE")
    names = parser.parse_args().suites or list(SUITES)
    if len(names) > 1:  # a suite may limit the memory of its process, or leave threads behind
        sys.exit(max(subprocess.run([sys.executable, __file__, name], check=False).returncode for name in names))
    (name,) = names
    begun = time.monotonic()
    found = SUITES[name]()
    print(f"{name} ({time.monotonic() - begun:.0f} s): {json.dumps(found)}", flush=True)
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    record[name] = found
    ordered = {suite: record[suite] for suite in SUITES if suite in record}
    RECORD.write_text(json.dumps(ordered, indent=2) + "\n", encoding="utf-8")
    sys.exit(int(wrong(name, found) > 0))


if __name__ == "__main__":
    main()
