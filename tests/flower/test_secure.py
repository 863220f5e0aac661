"""Secure sums on Flower, in one process with the real apps and messages: the same integers as in the simulator, and
nothing else, whatever silos, server and disk do."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from contract.test_contract import METHODS, VARIANTS

import equifed as ef
from equifed import tree
from equifed.config import job_of, load_federations
from equifed.flower.agreement import Setting
from equifed.protocol import Method
from equifed.simulation import Simulation
from equifed.store import RunFolder
from equifed.store.folder import FEDERATION
from flower.inprocess import federate, memory_of, nodes, setting

SUMMING = [
    *(method for method in METHODS if not method.pooled and method.summed is not None),
    *(method for method in VARIANTS if "+" in method.name and method.summed is not None),
]


def made(folder: Path, method: Method | None = None, **sections: Any) -> Setting:
    run = {"secure": True, "clients-per-round": 5, **sections.pop("run", {})}
    return setting(folder, method, run=run, **sections)


def simulate(setting: Setting, runs: Path, run: str = "run") -> ef.Result:
    """The reference engine on the same configuration, standardised as the federation's server did."""
    scaling = np.array(RunFolder(runs / run).record(FEDERATION)["scaling"], dtype=np.float32)
    config = dataclasses.replace(setting.config, run=dataclasses.replace(setting.config.run, engine="reference"))
    federations = [dataclasses.replace(fed, scaling=tuple(scaling)) for fed in load_federations(config)]
    simulation = Simulation(job_of(config, federations))
    for _ in simulation.rounds():
        pass
    return simulation.result()


@pytest.mark.parametrize("method", SUMMING, ids=repr)
def test_a_secure_federation_equals_the_reference_engine_bit_for_bit(
    method: Method, silos: Path, tmp_path: Path
) -> None:
    secure = made(silos, method, model={"bias": method.name not in ("frl", "e2fl")})
    grid = nodes(secure, state=str(tmp_path / "state"))
    found = federate(secure, grid, tmp_path / "runs")
    assert not len(found.rejections), found.rejections.to_string()
    assert found.log["applied"].all()
    expected = simulate(secure, tmp_path / "runs")
    assert_same_bits(found, expected)
    for k, silo in enumerate(secure.silos):
        there = tree.named(tree.take(expected.final_states[3].clients, k))
        for name, value in memory_of(grid, silo).items():
            assert torch.equal(value, there[name]), (silo, name)


def assert_same_bits(found: ef.Result, expected: ef.Result) -> None:
    states = [tree.named(result.final_states[3].server) for result in (found, expected)]
    assert states[0].keys() == states[1].keys()
    for name, value in states[1].items():
        assert states[0][name].numpy().tobytes() == value.numpy().tobytes(), name


def test_to_help_unmask_a_sum_needs_no_torch() -> None:
    """Flower starts a process for every message, in which torch would take most of the time."""
    code = "import sys; from equifed.flower import client_app, server_app; client_app('x'), server_app('x'); "
    code += "from equifed.flower.apps import unmask; import equifed.secure.silo; "
    code += "sys.exit(', '.join(sys.modules.keys() & {'torch', 'pandas', 'scipy'}) or 0)"
    subprocess.run([sys.executable, "-c", code], check=True)
