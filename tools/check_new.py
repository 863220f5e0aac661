"""List in one go what a new method, metric or partitioner still lacks, and run all tests that are about it:
make check-new NAME=fedprox. CONTRIBUTING.md has the recipes."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "papers" / "src"), str(ROOT / "tests")]

import pytest  # noqa: E402
from contract.registered import METHODS  # noqa: E402

from equifed import methods, partition  # noqa: E402
from equifed.methods import citation, options  # noqa: E402
from equifed.metrics.catalogue import CATALOGUE  # noqa: E402
from equifed.options import options_of  # noqa: E402
from equifed.protocol import Method  # noqa: E402
from equifed_papers.benchmark.plan import BUDGETS, own_values  # noqa: E402

CONTRACT = ("tests/contract/test_contract.py", "tests/flower/test_inprocess.py", "tests/test_channel.py")
"""The tests that every method goes through."""
OF_ALL = ("test_the_table", "test_every_method_has_its_page", "test_generated_tables", "test_which_methods_declare")
"""Tests of all methods together."""


@cache
def text(path: str | Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def tests_naming(word: str, folder: str) -> list[str]:
    """Return the test files in a folder that use a word."""
    use = re.compile(rf"\b{re.escape(word)}\b")
    return [str(path.relative_to(ROOT)) for path in sorted((ROOT / folder).rglob("*.py")) if use.search(text(path))]


def class_of(name: str) -> type[Method] | None:
    """Return the method with this name, registered or not."""
    if name in methods.REGISTRY:
        return methods.REGISTRY[name]
    for path in sorted((ROOT / "src" / "equifed" / "methods").glob("*.py")):
        if re.search(rf'name: ClassVar\[str\] = "{re.escape(name)}"', path.read_text(encoding="utf-8")):
            module = import_module(f"equifed.methods.{path.stem}")
            return next(kind for kind in vars(module).values() if getattr(kind, "name", None) == name)
    return None


def missing_of_method(name: str, kind: type[Method]) -> Iterator[str]:
    cls, known = kind.__name__, {*methods.REGISTRY, name}
    if name not in methods.REGISTRY:
        yield f"src/equifed/methods/__init__.py: import {cls}, and enter it in _BUILT_IN"
    if name not in (method.name for method in METHODS):
        yield f"tests/contract/registered.py: a row methods.{cls}(...) in METHODS, in the order of _BUILT_IN"
    if f'"{name}":' not in text("tests/methods/test_losses.py"):
        yield "tests/methods/test_losses.py: its loss in DECLARED or SEVERAL, or in FREE or WITHOUT why it has none"
    if not set(tests_naming(cls, "tests/methods")) - {"tests/methods/test_losses.py"}:
        yield f"tests/methods/: tests of {cls} against the paper"
    paper = citation(kind())
    if paper.plain and not paper.bibtex:
        yield f"src/equifed/methods/references.bib: the entry of its paper, with {name} in its line `methods`"
    for option in options(kind).values():
        if not option.description:
            yield f"its file: a docstring under the field {option.name}"
    numbers = [key for key, value in kind().hyper.items() if isinstance(value, float)]
    if numbers and name not in BUDGETS and not (kind.knob or (name in methods.REGISTRY and own_values(name))):
        yield (
            f"papers/src/equifed_papers/benchmark/plan.py: in BUDGETS the values of {' or '.join(numbers)} that the "
            "benchmark tries, or Budget() if it is to choose the learning rate alone"
        )
    if not (ROOT / "docs" / "methods" / f"{name}.md").exists():
        yield f"docs/methods/{name}.md: its page, with the differences from the paper"
    if f"[`{name}`](methods/{name}.md)" not in text("docs/methods.md"):
        yield "docs/methods.md: its row, in the order of _BUILT_IN"
    if not kind().pooled and f"[{name}](methods/{name}.md)" not in text("docs/federation.md"):
        yield "docs/federation.md, docs/privacy.md: python docs/generate.py"
    if f"\n{len(known)} methods. " not in text("README.md"):
        yield f"README.md: there are {len(known)} methods"


def missing_of_metric(name: str) -> Iterator[str]:
    metric = CATALOGUE[name]
    if not re.fullmatch(r"[A-Z0-9].*\.", metric.help, re.DOTALL):
        yield f"src/equifed/metrics/catalogue.py: {name} is described in a sentence"
    if f"| `{name}` |" not in text("docs/metrics.md") and not name.startswith("client_"):
        yield "docs/metrics.md: python docs/generate.py"
    if not tests_naming(name, "tests"):
        yield f"tests/metrics/: a test that compares {name} with NumPy, scikit-learn or fairlearn"


def missing_of_partitioner(name: str) -> Iterator[str]:
    kind: Any = partition.REGISTRY[name]
    cls = kind.__name__
    if getattr(partition, cls, None) is not kind:
        yield f"src/equifed/partition/__init__.py: import {cls}"
    if not kind.__doc__ or kind.__doc__.startswith(f"{cls}("):
        yield f"src/equifed/partition/partitioners.py: a docstring of {cls}, whose first paragraph docs/data.md shows"
    for option in options_of(kind):
        if not option.description:
            yield f"src/equifed/partition/partitioners.py: a docstring under the field {option.name} of {cls}"
    if f"| `{name}` |" not in text("docs/data.md"):
        yield "docs/data.md: python docs/generate.py"
    if not tests_naming(cls, "tests/partition"):
        yield f"tests/partition/: a test of who gets which rows from {cls}"


class Only:
    """A pytest plugin: only the tests of one method, and those of all methods together."""

    def __init__(self, name: str) -> None:
        self.name = name

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        kept = [item for item in items if self._is_about(item)]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept

    def _is_about(self, item: Any) -> bool:
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        return item.name.startswith(OF_ALL) or any(getattr(value, "name", None) == self.name for value in values)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="of a method, a metric or a partitioner, as the command line calls it")
    parser.add_argument("--list", action="store_true", help="run no tests")
    given = parser.parse_args()
    name, run, plugins, kind = given.name, [], [], class_of(given.name)
    if kind is not None:
        noun, missing = "method", list(missing_of_method(name, kind))
        own = set(tests_naming(kind.__name__, "tests/methods"))
        run, plugins = (
            [*CONTRACT, "tests/test_readme.py", "tests/test_docs.py", "tests/methods/test_losses.py"],
            [Only(name)],
        )
        of_it = sorted(own - {"tests/methods/test_losses.py"})
    elif name in CATALOGUE:
        noun, missing, of_it = (
            "metric",
            list(missing_of_metric(name)),
            ["tests/metrics", "tests/recipes/test_metric.py"],
        )
    elif name in partition.REGISTRY:
        noun, missing, of_it = "partitioner", list(missing_of_partitioner(name)), ["tests/partition"]
    else:
        begin = "Begin with its file or its entry, as CONTRIBUTING.md says."
        print(f"There is no method, metric or partitioner {name!r}. {begin}", file=sys.stderr)
        return 2
    for place in missing:
        print(f"missing  {place}")
    print(
        f"The {noun} {name} lacks {len(missing)} things." if missing else f"The {noun} {name} is everywhere it belongs."
    )
    failed = bool(missing)
    if not given.list:
        everything = ["-q", "-m", "full or not full", "--rootdir", str(ROOT)]
        for files, more in ((run, plugins), (of_it, [])):
            if files:
                failed |= pytest.main([*everything, *(str(ROOT / file) for file in files)], plugins=more) != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
