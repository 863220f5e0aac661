"""Runs that have converged stop, whatever the runs beside them do, and a resumed job stops where a whole one does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import equifed as ef
from equifed import tree
from equifed.federation import Federation
from equifed.methods.fedavg import weighted_update
from equifed.methods.hyper import hyper
from equifed.protocol import Data, LocalTraining, Method, Phase, Record, Task
from equifed.simulation import Simulation
from equifed.simulator import make_job
from equifed.tree import Tree


class Server(NamedTuple):
    theta: Tree
    t: Tensor
    rows: Tensor
    """Rows counted in the final phase, which comes once."""


@dataclass(frozen=True)
class Patient(Method):
    """Averages until so many rounds have been applied, then counts all rows."""

    name: ClassVar[str] = "patient"
    until: float = hyper(3.0, low=0)
    """The round to stop after."""

    @property
    def round(self) -> tuple[Phase, ...]:
        def step(server: Server, replies: Record, validation: Data | None) -> Server:
            mean = tree.scale(replies["update"], 1 / replies["rows"].clamp_min(1))
            return server._replace(theta=tree.add(server.theta, mean), t=server.t + 1)

        return (Phase("train", ("theta",), ("update", "rows"), LocalTraining(weighted_update), step, "sum"),)

    @property
    def final(self) -> tuple[Phase, ...]:
        def count(down: Record, state: Tree, data: Data) -> tuple[Record, Tree]:
            return {"rows": data.n}, state

        def add(server: Server, replies: Record, validation: Data | None) -> Server:
            return server._replace(rows=server.rows + replies["rows"])

        return (Phase("count", (), ("rows",), count, add, "sum"),)

    def init(self, task: Task, parameters: Tree) -> Server:
        zero = tree.leaves(parameters)[0].new_zeros(())
        return Server(parameters, zero, zero)

    def converged(self, server: Server) -> Tensor:
        return server.t >= self.until

    def observe(self, server: Server) -> dict[str, Tensor]:
        return {"rows": server.rows, "feasible": torch.ones_like(server.t)}


SETTINGS: dict[str, Any] = {
    "model": ef.models.MLP(hidden=(3,)),
    "settings": ef.RunSettings(
        rounds=9, clients_per_round=6, dropout=0.2, eval_every=4, seeds=(0, 5), device="cpu",
        local=ef.Local(epochs=1, batch_size=8, learning_rate=0.1),
    ),
}  # fmt: skip


def job(fed: Federation, until: list[float]) -> Any:
    return make_job(Patient(), fed, **SETTINGS, over={"until": until})


@pytest.mark.parametrize("engine", ["lanes", "reference"])
def test_each_run_stops_by_itself(uneven: Federation, engine: Any) -> None:
    result = ef.simulate(Patient(), uneven, over={"until": [2.0, 5.0, 50.0]}, engine=engine, **SETTINGS)
    ends = result.log.groupby(["until", "seed"]).tail(1)
    assert ends["round"].tolist() == [2, 2, 5, 5, 9, 9]
    assert ends["stopped"].tolist() == [True] * 4 + [False] * 2
    assert (ends["rows"] == uneven.train.sizes.sum()).all()  # the final phase, once, with everybody
    assert (result.log.groupby(["until", "seed"])["round"].count() == ends["round"].to_numpy()).all()
    note = result.notes[0]
    assert str(note) == "4 of 6 runs converged and stopped at rounds 2 to 5 of 9; `log` has the round of each."
    # what they have when they stop is what they have when they stop alone
    for until in (2.0, 5.0):
        alone = ef.simulate(Patient(until), uneven, engine=engine, **SETTINGS)
        assert alone.metrics["round"].max() == until
        note = alone.notes[0]
        assert str(note) == f"2 of 2 runs converged and stopped at round {until:.0f} of 9; `log` has the round of each."
        for seed, parameters in alone.parameters.items():
            for name, value in parameters.items():
                np.testing.assert_allclose(value, result.parameters[(until, seed)][name], rtol=2e-6, atol=2e-6)
        left = result.final().query("until == @until")["accuracy"].to_numpy()
        np.testing.assert_allclose(left, alone.final()["accuracy"], atol=1e-9)


@pytest.mark.parametrize("after", [1, 2, 4, 5, 8])
def test_a_resumed_job_stops_where_a_whole_one_does(uneven: Federation, after: int) -> None:
    whole = Simulation(job(uneven, [2.0, 5.0, 50.0]))
    states = {step.round: tree.map(torch.clone, step.state) for step in whole.rounds()}
    again = Simulation(job(uneven, [2.0, 5.0, 50.0]))
    rest = list(again.rounds((after, states[after])))
    assert [step.round for step in rest] == list(range(after + 1, 10))
    assert [log.run for log in rest[-1].logs] == [4, 5]
    for a, b in zip(tree.leaves(rest[-1].state), tree.leaves(states[9]), strict=True):
        assert torch.equal(a, b)


def test_nothing_is_left_to_do_when_all_have_stopped(uneven: Federation) -> None:
    steps = [(step.round, step.last, bool(step.scores)) for step in Simulation(job(uneven, [2.0, 3.0])).rounds()]
    assert steps == [(1, False, False), (2, False, False), (3, True, True)]
    *_, last = Simulation(job(uneven, [2.0, 3.0])).rounds()
    assert not list(Simulation(job(uneven, [2.0, 3.0])).rounds((last.round, last.state)))
