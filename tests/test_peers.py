"""The benchmark beside other simulators: its table, its check of losses, what it does when a peer fails, and that the
scripts which need no other environment do the work that they are timed for."""

from __future__ import annotations

import importlib.util
import json
import math
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "benchmarks" / "peers"


@pytest.fixture
def peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, with a folder of its own to build in."""
    spec = importlib.util.spec_from_file_location("bench_peers", ROOT / "benchmarks" / "peers.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_peers", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "BUILD", tmp_path)
    return module


def results(peers: ModuleType, losses: float = 0.3) -> dict:
    """The n-th peer takes n times as long as the first."""
    return {
        peer: peers.Measured(whole=n, process=n + 1, step=10.0 * n, losses=[losses], versions={"torch": "2"})
        for n, peer in enumerate(peers.PEERS, start=1)
    }


def test_the_table_has_every_peer_with_its_ratio(peers: ModuleType) -> None:
    found = results(peers)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in peers.ratios(found).splitlines()[2:]]
    assert [line[0] for line in lines] == [peer.name for peer in peers.PEERS]
    own = 1 + peers.PEERS.index(peers.ONE)
    assert [float(line[4]) for line in lines] == pytest.approx([n / own for n in range(1, len(lines) + 1)], abs=0.005)
    assert lines[0][1:] == ["1.00", "2.00", "10.0", f"{1 / own:.2f}", "0.30000"]


def test_targets_are_ratios_of_the_rows_that_they_name(peers: ModuleType) -> None:
    found = results(peers)
    found[peers.FEDJAX] = replace(found[peers.FEDJAX], step=60.0, whole=2.0)
    found[peers.ONE] = replace(found[peers.ONE], step=8.0, whole=1.0)
    found[peers.ONE_2] = replace(found[peers.ONE_2], step=4.0)
    text = peers.targets(found)
    assert f"equifed, 1 seed: client steps in the time of one of {peers.FEDJAX.name} | 7.5 | at least 6 |" in text
    assert f"equifed, 1 seed: the first call over the whole run of {peers.FEDJAX.name} | 0.50 | below 1 |" in text
    assert (
        "equifed, 1 seed, 2 threads: client steps in the time of one of equifed, 1 seed | 2.0 | at least 1.6 |" in text
    )


def test_figures_are_per_seed_and_per_client_step(peers: ModuleType) -> None:
    assert 30 * 20 * 2 * math.ceil(2400 / 128) == peers.STEPS
    line = {"whole": 10.0, "steady": 5.0, "further": 20.0, "losses": [0.3] * 5, "versions": {}}
    measured = peers.Measured.of(peers.FIVE, line, process=40.0)
    assert (measured.whole, measured.process) == (2.0, 4.0)
    assert measured.step == pytest.approx(1e6 / 22_800)
    other = replace(measured, whole=1.0, process=5.0, losses=[0.4])
    best = measured.best(other)
    assert (best.whole, best.process, best.losses) == (1.0, 4.0, [0.3] * 5 + [0.4])


@pytest.mark.parametrize("loss", [0.3002, 0.2998, math.nan, math.inf])
def test_a_peer_with_another_loss_is_named(peers: ModuleType, loss: float) -> None:
    found = results(peers)
    assert peers.outliers(found) == {}
    found[peers.PFL] = replace(found[peers.PFL], losses=[0.30008, loss])
    assert list(peers.outliers(found)) == [peers.PFL]
    assert "instead of 0.3000" in peers.outliers(found)[peers.PFL]


def test_failures_are_reported_and_the_others_run(peers: ModuleType, tmp_path: Path) -> None:
    line = json.dumps({"whole": 1, "steady": 1, "further": 0, "losses": [0.3], "versions": {}})
    programs = {
        "good": f"print('starting'); print({line!r})",
        "bad": "import no_such_package_at_all",
        "mute": "print('done')",
    }
    made = {}
    for name, program in programs.items():
        (tmp_path / f"{name}.py").write_text(program)
        made[name] = peers.Peer(name, str(tmp_path / f"{name}.py"))
    homeless = peers.Peer("homeless", "run_pfl.py", environment="pfl")
    everybody = [made["bad"], homeless, made["mute"], made["good"]]
    found, failures = peers.measure_all(everybody, str(tmp_path / "no-python"), tmp_path / "workload.npz", 2)
    assert list(found) == [made["good"]]
    assert found[made["good"]].losses == [0.3, 0.3]  # of both turns
    assert failures.keys() == {made["bad"], homeless, made["mute"]}
    assert failures[made["bad"]] == "ModuleNotFoundError: No module named 'no_such_package_at_all'"
    assert failures[homeless].startswith("no environment: ")
    assert failures[made["mute"]] == "printed no result"


def test_the_page_is_written_between_its_marks(peers: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(peers.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    before, after = (
        page.read_text(encoding="utf-8").split("<!-- written by make bench-peers -->")[0],
        page.read_text(encoding="utf-8").split("<!-- end -->")[1],
    )
    for text in ("| a \\1 |\n", "| b |\n"):
        peers.write_page(text, page)
        assert (
            page.read_text(encoding="utf-8")
            == f"{before}<!-- written by make bench-peers -->\n\n{text}\n<!-- end -->{after}"
        )
    page.write_text("nothing")
    with pytest.raises(SystemExit, match="no place"):
        peers.write_page("", page)


@pytest.mark.parametrize(
    "command", ["run_torch.py tight", "run_torch.py dataloader", "run_equifed.py 2 1", "run_equifed.py 1 2"]
)
def test_scripts_do_the_work(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With batches of all rows there is no randomness: the loss is that of FedAvg in NumPy."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(3, 1000, 4)).astype(np.float32)
    y = (x.sum(-1) + rng.normal(size=(3, 1000)) > 0).astype(np.float32)
    np.savez(tmp_path / "workload.npz", x=x, y=y, rounds=3, epochs=2, batch=1000, rate=0.5)
    monkeypatch.syspath_prepend(str(SCRIPTS))
    script, *arguments = command.split()
    monkeypatch.setattr(sys, "argv", [script, str(tmp_path / "workload.npz"), *arguments])
    runpy.run_path(str(SCRIPTS / script), run_name="__main__")
    said = json.loads(capsys.readouterr().out.splitlines()[-1])

    one = np.concatenate([x, np.ones((3, 1000, 1))], -1)
    theta = np.zeros(5)
    for _ in range(3):
        local = np.tile(theta, (3, 1))
        for _ in range(2):
            error = 1 / (1 + np.exp(-np.einsum("krd,kd->kr", one, local))) - y
            local -= 0.5 * np.einsum("krd,kr->kd", one, error) / 1000
        theta = local.mean(0)
    probability = 1 / (1 + np.exp(-one @ theta))
    loss = -np.mean(np.log(np.where(y == 1, probability, 1 - probability)))
    assert said["losses"] == pytest.approx([loss] * len(said["losses"]), rel=1e-6)
    assert len(said["losses"]) == (2 if arguments[0] == "2" else 1)
    assert said["steady"] > 0
    assert said["versions"]["torch"]
