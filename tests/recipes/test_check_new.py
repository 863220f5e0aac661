"""`make check-new NAME=...`, and CONTRIBUTING's recipes followed in a copy of the tree."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from equifed.methods import REGISTRY
from equifed.metrics.catalogue import CATALOGUE
from equifed.partition import REGISTRY as PARTITIONERS

pytest.importorskip("equifed_papers")  # the check is about the whole repository

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("README.md", "docs", "src", "tools", "papers/src", "tests/contract", "tests/methods", "tests/partition")


@pytest.fixture(scope="module")
def check_new() -> Iterator[ModuleType]:
    path = [*sys.path]
    spec = importlib.util.spec_from_file_location("check_new", ROOT / "tools" / "check_new.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = path


def test_nothing_that_is_here_lacks_anything(check_new: ModuleType) -> None:
    for name, kind in REGISTRY.items():
        assert not list(check_new.missing_of_method(name, kind)), name
    for name in CATALOGUE:
        if not re.search(r"\.|^bytes_|^seconds$|^disclosed$", name):
            assert not list(check_new.missing_of_metric(name)), name
    for name in PARTITIONERS:
        assert not list(check_new.missing_of_partitioner(name)), name


class Tree:
    """A copy of the sources, of which a recipe changes some."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in COPIED:
            source, to = ROOT / name, root / name
            if source.is_dir():
                shutil.copytree(source, to, ignore=shutil.ignore_patterns("__pycache__", "*.parquet"))
            else:
                shutil.copy(source, to)

    def change(self, name: str, old: str, new: str) -> None:
        file = self.root / name
        text = file.read_text(encoding="utf-8")
        assert text.count(old) == 1, (name, old, text.count(old))
        file.write_text(text.replace(old, new), encoding="utf-8")

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        paths = os.pathsep.join(str(self.root / part) for part in ("src", "papers/src", "tests"))
        environment = os.environ | {"PYTHONPATH": paths, "COLUMNS": "200", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
        return subprocess.run([sys.executable, *words], cwd=self.root, env=environment, capture_output=True, text=True)

    def missing(self, name: str) -> list[str]:
        """Return the places that `make check-new` lists."""
        done = self.run("tools/check_new.py", name, "--list")
        found = re.findall(r"^missing  ([^:,\s]+)", done.stdout, re.MULTILINE)
        assert done.returncode == (1 if found else 0), done.stderr
        return found


METHOD = '''"""FedHalf: Doe, Averages of Half Steps, Journal of Examples 2020.

theta <- theta + (share / sum_k n_k) sum_k n_k (theta_k - theta)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from equifed import tree
from equifed.methods.fedavg import FedAvg
from equifed.methods.hyper import hyper


@dataclass(frozen=True)
class FedHalf(FedAvg):
    """FedAvg that goes a part of the way."""

    name: ClassVar[str] = "fedhalf"

    share: float = hyper(0.5, low=0)
    """The part of the mean update that is applied."""

    @property
    def round(self):
        (phase,) = super().round
        return (replace(phase, server=self.move),)

    def move(self, server, replies, validation):
        mean = tree.scale(replies["update"], self.share / replies["rows"].clamp_min(1))
        return server._replace(theta=tree.add(server.theta, mean))
'''


@pytest.mark.full  # four processes
def test_the_recipe_of_a_method(tmp_path: Path) -> None:
    """Everything that is open stands in one list, and after the recipe's steps nothing does."""
    tree = Tree(tmp_path)
    assert tree.run("tools/check_new.py", "fedhalf").returncode == 2
    (tmp_path / "src/equifed/methods/fedhalf.py").write_text(METHOD)
    assert tree.missing("fedhalf") == [
        "src/equifed/methods/__init__.py",
        "tests/contract/registered.py",
        "tests/methods/test_losses.py",
        "tests/methods/",
        "src/equifed/methods/references.bib",
        "papers/src/equifed_papers/benchmark/plan.py",
        "docs/methods/fedhalf.md",
        "docs/methods.md",
        "docs/federation.md",
        "README.md",
    ]
    imported = "from equifed.methods.fedmgda import FedMGDA as FedMGDA\n"
    registry = "src/equifed/methods/__init__.py"
    tree.change(registry, imported, "from equifed.methods.fedhalf import FedHalf as FedHalf\n" + imported)
    tree.change(registry, "FedRep, APFL,\n", "FedRep, APFL, FedHalf,\n")
    tree.change(
        "tests/contract/registered.py",
        "    methods.APFL(mixing=0.4),\n",
        "    methods.APFL(mixing=0.4),\n    methods.FedHalf(),\n",
    )
    tree.change("tests/methods/test_losses.py", '    "fedper": MEAN,\n', '    "fedper": MEAN,\n    "fedhalf": MEAN,\n')
    (tmp_path / "tests/methods/test_fedhalf.py").write_text("from equifed.methods import FedHalf\n")
    with (tmp_path / "src/equifed/methods/references.bib").open("a") as file:
        file.write(
            "\n@article{doe2020averages,\n  methods   = {fedhalf},\n  author    = {Doe},\n  title     = {Averages},\n"
            "  year      = {2020}\n}\n"
        )
    tree.change(
        "papers/src/equifed_papers/benchmark/plan.py",
        '    "scaffold": Budget(),\n',
        '    "scaffold": Budget(),\n    "fedhalf": Budget({"share": [0.3, 0.5, 0.7, 0.9]}),\n',
    )
    (tmp_path / "docs/methods/fedhalf.md").write_text("# FedHalf\n")
    row = "| [`apfl`](methods/apfl.md) |"
    tree.change(
        "docs/methods.md",
        row,
        "| [`fedhalf`](methods/fedhalf.md) | half | nothing | sums only | update, rows |\n" + row,
    )
    count = len(REGISTRY)
    tree.change("README.md", f"\n{count} methods. ", f"\n{count + 1} methods. ")
    made = tree.run("docs/generate.py")
    assert made.returncode == 0, made.stderr
    assert tree.missing("fedhalf") == []
    assert "fedhalf" in tree.run("-m", "equifed", "methods").stdout


ENTRY = """
    Metric.rate("precision_on_negatives", "Of those predicted negative, the share with a negative label.", "TN",
                "TN + FN"),
"""
ITS_GAP = """
    Metric.gap("gap_on_negatives", "Largest gap between groups in it; 0 is fair.", "difference",
               "precision_on_negatives"),
"""


@pytest.mark.full  # four processes
def test_the_recipe_of_a_metric(tmp_path: Path) -> None:
    """Two entries in the catalogue itself; what else they bring is in test_metric.py."""
    tree = Tree(tmp_path)
    catalogue = "src/equifed/metrics/catalogue.py"
    tree.change(catalogue, "\n_RATES = (\n", f"\n_RATES = ({ENTRY}")
    tree.change(catalogue, "\n_GAPS = (\n", f"\n_GAPS = ({ITS_GAP}")
    assert tree.missing("gap_on_negatives") == ["docs/metrics.md", "tests/metrics/"]
    (tmp_path / "tests/methods/test_it.py").write_text("# precision_on_negatives, gap_on_negatives\n")
    assert tree.run("docs/generate.py").returncode == 0
    assert tree.missing("gap_on_negatives") == tree.missing("precision_on_negatives") == []
    used = "import equifed.metrics as m; print(m.gap_on_negatives([1, 0, 0], [0, 0, 0], sensitive_features=[1, 1, 2]))"
    assert tree.run("-c", used).stdout == "0.5\n"


PARTITIONER = '''

@dataclass(frozen=True)
class Alternating(Partitioner):
    """Rows in turn: the first to the first client, the second to the second, and so on."""

    num_partitions: int
    """Number of clients."""
    stride: int = 1
    """Rows that a client gets at a time."""

    def __call__(self, table: Table, rng: np.random.Generator) -> Partition:
        n = row_count(table, self.num_partitions)
        owner = np.arange(n) // self.stride % self.num_partitions
        return Partition.from_owner(owner, numbered(self.num_partitions))
'''


@pytest.mark.full  # six processes
def test_the_recipe_of_a_partitioner(tmp_path: Path) -> None:
    """A class, its import and the generated table: then it is in Python, in TOML and on the command line."""
    tree = Tree(tmp_path)
    with (tmp_path / "src/equifed/partition/partitioners.py").open("a") as file:
        file.write(PARTITIONER)
    assert tree.missing("alternating") == ["src/equifed/partition/__init__.py", "docs/data.md", "tests/partition/"]
    tree.change(
        "src/equifed/partition/__init__.py", "partitioners import IID, ", "partitioners import IID, Alternating, "
    )
    (tmp_path / "tests/partition/test_alternating.py").write_text("from equifed.partition import Alternating\n")
    assert tree.run("docs/generate.py").returncode == 0
    assert tree.missing("alternating") == []
    assert "| `alternating` | `Alternating` | Rows in turn" in (tmp_path / "docs/data.md").read_text()
    rows = ["age,sex,ill", *["31,f,yes", "52,m,no", "47,f,no", "28,m,yes"] * 20]
    (tmp_path / "people.csv").write_text("\n".join(rows))
    quick = ("--methods", "fedavg", "--rounds", "1", "--seeds", "1", "--label", "ill", "--sensitive", "sex", "--json")
    asked = ("--partition", "alternating", "--num-partitions", "4", "--set", "partition.stride=3")
    done = tree.run("-m", "equifed", "compare", "--data", "people.csv", *asked, *quick)
    assert done.returncode == 0, done.stderr
    assert '"stride": 3' in done.stdout
    wrong = tree.run("-m", "equifed", "compare", "--data", "people.csv", *asked[:-1], "partition.strides=3", *quick)
    assert "Unknown key 'strides' of the partition alternating. Did you mean 'stride'?" in wrong.stderr


MODEL = '''

@dataclass(frozen=True)
class Narrow(_Initialised):
    """A hidden layer of its own width."""

    width: int = 3
    """Its width."""
    init: Init = "torch"
    """As of an MLP."""

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        layers, size = _flat(shape)
        return nn.Sequential(*layers, SharedLinear(size, self.width), nn.Tanh(), SharedLinear(self.width, outputs))


REGISTRY: Registry[Any] ='''
DATA_SET = """
[people]
title = "People"
description = "Eighty people, of whom some are ill."
citation = "Made up."
license = "CC0"
features = "age sex"

[[people.files]]
name = "people.csv"
sha256 = "{digest}"
url = "https://example.org/people.csv"

[people.presets.default]
description = "Age alone."
rows = 80
inputs = 1
groups = ["f", "m"]
label = "ill"
positive = "yes"
meaning = "the person is ill"
without = "sex"
sensitive = [{{ column = "sex" }}]
"""


@pytest.mark.full  # three processes
def test_the_recipes_of_an_option_a_model_and_a_data_set(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A field of `Local`, a class in models.py with its entry, and an entry in sets.toml are used by one command."""
    tree, home = Tree(tmp_path), tmp_path_factory.mktemp("home")
    field = "    warm_up: int = 0\n"
    tree.change("src/equifed/settings.py", field, f'    patience: int = 3\n    """Rounds to wait."""\n{field}')
    tree.change("src/equifed/models.py", "\n\nREGISTRY: Registry[Any] =", MODEL)
    tree.change("src/equifed/models.py", '"mlp": MLP,', '"mlp": MLP, "narrow": Narrow,')
    rows = ("age,sex,ill\n" + "31,f,yes\n52,m,no\n47,f,no\n28,m,yes\n" * 20).encode()
    (home / "people").mkdir()
    (home / "people" / "people.csv").write_bytes(rows)
    with (tmp_path / "src/equifed/data/sets/sets.toml").open("a") as file:
        file.write(DATA_SET.format(digest=hashlib.sha256(rows).hexdigest()))
    assert re.search(r"--patience .*Rounds to wait\.", tree.run("-m", "equifed", "compare", "--help").stdout)
    monkeypatch.setenv("EQUIFED_DATA", str(home))
    assert "people" in tree.run("-m", "equifed", "data", "list").stdout
    quick = ("--methods", "fedavg", "--rounds", "1", "--seeds", "1", "--num-partitions", "3", "--json")
    asked = ("people", "--model", "narrow", "--set", "model.width=5", "--patience", "7")
    done = tree.run("-m", "equifed", "compare", *asked, *quick)
    assert done.returncode == 0, done.stderr
    used = json.loads(done.stdout)["settings"]
    assert (used["model"]["kind"], used["model"]["width"], used["local"]["patience"]) == ("narrow", 5, 7)
