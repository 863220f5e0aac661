"""The server of a federation leaves a model package as a simulation does; what silos keep stays with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import equifed as ef
from equifed import methods, tree
from equifed.protocol import Method
from equifed.results.predict import blank_states
from flower.inprocess import federate, memory_of, nodes, setting, simulate


@pytest.mark.parametrize("method", [methods.FedAvg(), methods.FedEM(components=2)], ids=repr)
def test_server_and_silo_predict_as_the_simulator_does(method: Method, silos: Path, tmp_path: Path) -> None:
    made = setting(silos, method)
    grid = nodes(made)
    live, expected = federate(made, grid, tmp_path), simulate(made)
    model = ef.load_model(tmp_path / "run" / "model")
    assert made.schema is not None
    rows = pd.read_parquet(silos / f"{made.silos[0]}.parquet").drop(columns=made.schema.label)
    if not method.personal:
        assert model.scores(rows).tobytes() == live.predict(rows).tobytes()
        np.testing.assert_allclose(model.scores(rows), expected.predict(rows), atol=1e-6)
        return
    with pytest.raises(ef.ConfigError, match="models of their own, which stay with them"):
        model.for_client(made.silos[0]).predict(rows)
    assert not [name for name in model.state.server.__dict__ if name != "theta"]
    # at the silo: its own memory, and of the server's state what it was sent
    state = model.state
    blank = blank_states(state.method, state.task)[1]
    own = tree.from_named(blank, memory_of(grid, made.silos[0]))
    with torch.no_grad():
        found = method.predict(state.task, state.server, own, state.features(made.schema.inputs(rows)))
    np.testing.assert_allclose(found.numpy(), expected.predict(rows, client=made.silos[0]), atol=1e-6)


def test_the_card_says_what_silos_told_and_that_the_server_saw_replies(silos: Path, tmp_path: Path) -> None:
    made = setting(silos, methods.FedAvg())
    live = federate(made, nodes(made), tmp_path)
    text = (tmp_path / "run" / "model" / "MODEL_CARD.md").read_text()
    assert "No secure aggregation: the server received every silo's reply by itself." in text
    for silo, declared in live.info["federation"]["silos"].items():
        assert f"| {silo} | {declared['rows']} | {declared['test_rows']} |" in text
