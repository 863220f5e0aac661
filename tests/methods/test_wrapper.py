"""Methods around methods: a server step of another size around whatever the method inside does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import equifed as ef
from equifed import tree
from equifed.federation import Federation
from equifed.methods._wrapper import Around, Wrapper
from equifed.methods.hyper import hyper
from equifed.protocol import Data, Phase, Record, Task


@dataclass(frozen=True)
class ServerRate(Wrapper):
    """The server goes only a part of the way, and counts its steps."""

    suffix: ClassVar[str] = "@rate"

    rate: float = hyper(0.5, low=0)
    """The part of the way."""

    def own_server(self, task: Task, parameters: tree.Tree) -> Record:
        return {"steps": tree.zeros(parameters)}

    def around(self, phase: Phase) -> Phase:
        inside = super().around(phase)

        def step(server: Around, replies: Record, validation: Data | None) -> Around:
            moved = inside.server(server, replies, validation)
            theta = tree.map(lambda old, new: old + self.rate * (new - old), server.inner.theta, moved.inner.theta)
            return Around(moved.inner._replace(theta=theta), {"steps": server.own["steps"] + 1})

        return replace(inside, server=step)

    def observe(self, server: Around) -> dict[str, Tensor]:
        return {**super().observe(server), "steps": server.own["steps"]}


SETTINGS: dict[str, Any] = {
    "model": ef.models.Logistic(), "rounds": 2, "local": ef.Local(epochs=1, batch_size=8, learning_rate=0.2),
    "seeds": [3],
}  # fmt: skip


@pytest.mark.parametrize("engine", ["lanes", "reference"])
def test_half_of_every_step_is_half_of_the_way_in_one_round(uneven: Federation, engine: str) -> None:
    settings = {**SETTINGS, "rounds": 1, "engine": engine}
    whole = ef.simulate(ef.methods.FedAvg(), uneven, **settings).parameters[3]
    result = ef.simulate(ServerRate(ef.methods.FedAvg(), rate=0.5), uneven, **settings)
    assert result.info["method"] == "fedavg@rate"
    assert result.info["hyper_parameters"] == {"rate": 0.5}
    for name, value in result.parameters[3].items():  # the model starts at 0
        np.testing.assert_allclose(value, whole[name] / 2, rtol=1e-6)


def test_a_sweep_over_hyper_parameters_inside_and_outside(uneven: Federation) -> None:
    method = ef.postprocess.EqualizedOdds(ServerRate(ef.methods.FedProx()))
    assert method.name == "fedprox@rate+eo"
    swept = ef.simulate(method, uneven, over={"mu": [0.0, 1.0], "rate": [0.5, 1.0]}, **SETTINGS)
    for mu, rate in ((0.0, 0.5), (1.0, 0.5), (1.0, 1.0)):
        alone = ef.simulate(method.with_hyper(mu=mu, rate=rate), uneven, **SETTINGS)
        assert (alone.log["steps"] == [1, 2]).all()
        for name, value in alone.parameters[3].items():
            np.testing.assert_allclose(value, swept.parameters[mu, rate, 3][name], rtol=2e-6, atol=2e-6)
    plain = ef.simulate(ef.methods.FedProx(mu=1.0), uneven, **SETTINGS)
    for name, value in plain.parameters[3].items():
        np.testing.assert_allclose(value, swept.parameters[1.0, 1.0, 3][name], rtol=2e-6, atol=2e-6)


def test_what_a_wrapper_does_not_change_is_that_of_the_method_inside(uneven: Federation) -> None:
    for kind in ef.methods.REGISTRY.values():
        inside, outside = kind(), ServerRate(kind())
        for name in ("label_kinds", "needs_validation", "personal", "predicts_with", "adjusts", "pooled", "sweepable"):
            assert getattr(outside, name) == getattr(inside, name), name
        assert [outside.remedy(converged) for converged in (False, True)] == [
            inside.remedy(converged) for converged in (False, True)
        ]
        assert outside.num_models == inside.num_models
        assert [phase.up for phase in outside.round] == [phase.up for phase in inside.round]
    mixture = ef.postprocess.EqualizedOdds(ef.methods.FedEM(components=2), fit="global")
    x, y = uneven.rows.x[:20], uneven.rows.y[:20]
    adapted = [ef.simulate(m, uneven, **SETTINGS).adapt((x, y)).predict(x)[3] for m in (mixture.inner, mixture)]
    np.testing.assert_array_equal(*adapted)
    with pytest.raises(ef.ConfigError, match="wraps a method such as"):
        ServerRate(ef.methods.FedAvg)  # type: ignore[arg-type]


def test_what_a_client_receives_is_enough_to_predict() -> None:
    method = ef.postprocess.EqualizedOdds(ServerRate(ef.methods.FedAvg()), fit="global")
    task = Task(torch.nn.Linear(3, 1), "classification", 2, 2, 1, 1, ef.Local(), binary=True)
    server = method.init(task, {"weight": torch.ones(1, 3), "bias": torch.zeros(1)})
    fields = method.sent(server, method.predicts_with)
    assert fields.keys() == {"theta", "rates"}
    client, x = method.init_client(task, server.inner.inner.theta), torch.randn(5, 3)
    known = method.received(fields)
    score = method.predict(task, known, client, x)
    torch.testing.assert_close(score, torch.sigmoid(x.sum(1)))
    s, u = torch.zeros(5).long(), torch.full((5,), 0.5)
    torch.testing.assert_close(method.adjust(task, known, client, score, s, u), (score > 0.5).float())
