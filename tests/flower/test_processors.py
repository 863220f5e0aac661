"""Silos on unlike processors in one federation of real programs, over TLS, plain and with secure sums.

A sample of methods in `make test-full`; with EQUIFED_EVERY_METHOD=1 every method that a federation runs, about an hour.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from arithmetic import arithmetics
from contract.registered import METHODS

from equifed.errors import ConfigError
from equifed.flower.agreement import Setting
from equifed.flower.deployment.folder import create
from equifed.flower.deployment.programs import LocalFederation
from equifed.protocol import Method
from flower.test_deploy import left_behind, log
from flower.test_deployed import carry_out, configure

pytestmark = pytest.mark.full

SILOS = ("a", "b", "c")
SHOWN = """

import torch

print("arithmetic:", torch.backends.cpu.get_cpu_capability())
"""
"""What the app does besides, so that the logs prove it."""
ZEROS, LAYERS = '[model]\nkind = "logistic"', '[model]\nkind = "mlp"\nbias = false\nhidden = [4]'
"""A model that starts at zero, where the losses of all silos are equal but for rounding; one for methods that rank its
edges, or split its layers."""
NEED_LAYERS = ("frl", "e2fl", "fedper", "fedrep")
SAMPLE = ("fedavg", "kffl", "term", "gifair", "fairfed", "sffl")
EVERY = bool(os.environ.get("EQUIFED_EVERY_METHOD"))
ROUNDS = 1 if EVERY else 2
CHOSEN = [method for method in METHODS if not method.pooled and (EVERY or method.name in SAMPLE)]


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "secure"])
def federation(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, needs
) -> Iterator[LocalFederation]:
    """Three silos that compute with the narrowest instructions, with wider ones, and with those of this processor."""
    needs("compas")
    path = tmp_path_factory.mktemp("unlike") / "fed"
    folder = create(path, silos=SILOS, method="fedval", rounds=2, secure=request.param)  # which has validation rows
    app, federation = folder.app / "app.py", folder.federation
    app.write_text(app.read_text() + SHOWN)
    federation.write_text(federation.read_text().replace("[method]", f"{ZEROS}\n\n[method]"))
    with LocalFederation(folder) as programs:
        programs.start_superlink()
        programs.register()
        kinds = [*arithmetics().values()]
        for silo, kind in zip(SILOS, (kinds[0], kinds[len(kinds) // 2], kinds[-1]), strict=True):
            with pytest.MonkeyPatch.context() as patch:
                for name, value in kind.items():
                    patch.setenv(name, value)
                programs.start_silo(silo)
        yield programs
    assert left_behind(folder.path) == []


@pytest.mark.parametrize("method", CHOSEN, ids=lambda method: method.name)
def test_no_honest_reply_is_refused(method: Method, federation: LocalFederation) -> None:
    folder = federation.folder
    secure = "secure = true" in folder.federation.read_text()
    if secure and method.summed is None:
        pytest.skip(f"{method.name} needs each reply.")
    configure(federation, method.name, rounds=str(ROUNDS))
    there, wanted = (ZEROS, LAYERS) if method.name in NEED_LAYERS else (LAYERS, ZEROS)
    text = folder.federation.read_text().replace(there, wanted)
    if method.name == "e2fl":  # the silos' own groups are known to nothing
        text = text.replace('name = "e2fl"', 'name = "e2fl"\ngroups = "lowest-loss"\nnum-groups = 2')
    folder.federation.write_text(text)
    try:
        Setting.load(folder.federation)
    except ConfigError as reason:
        pytest.skip(str(reason))
    found = carry_out(federation, f"{method.name}-{'secure' if secure else 'plain'}".replace("+", "-"))
    assert found.rejections.empty, found.rejections.to_string()
    assert found.log["replied"].tolist() == [3] * ROUNDS
    assert found.log["applied"].all()
    kinds = {log(folder, silo).rpartition("arithmetic: ")[2].split()[0] for silo in SILOS}
    assert len(kinds) == min(3, len(arithmetics()))
