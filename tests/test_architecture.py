"""The layers: the picture in the docs is the contract that import-linter checks, and private things stay private."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "equifed"
PAPERS = ROOT / "papers" / "src" / "equifed_papers"


def contract() -> list[set[str]]:
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    (layers,) = [table["layers"] for table in tables if table.get("containers") == ["equifed"]]
    return [set(line.replace("|", " ").replace(":", " ").split()) for line in layers]


def test_the_picture_is_the_contract() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    picture = page[page.index("```text\n") :].split("```")[1].splitlines()[1:]
    modules = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    modules -= {"__init__", "__main__"}
    drawn = [[word for word in line.split() if word in modules] for line in picture]
    # an explanation may name a package too ("errors with fields"): only what stands in the picture's columns counts
    assert [set(words) & layer for words, layer in zip(drawn, contract(), strict=True)] == contract()
    assert set().union(*contract()) == modules


def test_the_contract_knows_every_module() -> None:
    names = [name for layer in contract() for name in layer]
    assert len(names) == len(set(names))


def test_private_things_stay_inside_their_package() -> None:
    wrong = []
    for path in (*PACKAGE.rglob("*.py"), *PAPERS.rglob("*.py")):
        home = ".".join(path.relative_to(PAPERS.parent if PAPERS in path.parents else PACKAGE.parent).parts[:-1])
        for target in imported(path):
            parts = target.split(".")
            private = [i for i, part in enumerate(parts) if part.startswith("_") and not part.startswith("__")]
            if private and not f"{home}.".startswith(".".join(parts[: private[0]]) + "."):
                wrong.append(f"{path.relative_to(ROOT)}: {target}")
    assert not wrong


def imported(path: Path) -> Iterator[str]:
    """The modules and names of equifed and equifed_papers that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("equifed"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("equifed"))


def test_the_library_and_its_tests_do_without_the_papers() -> None:
    files = [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py"), ROOT / "conftest.py"]
    assert [path for path in files if any(name.startswith("equifed_papers") for name in imported(path))] == []
