"""Simulated secure sums: who is gone when, by an independent table of outcomes, and sums by plain integers."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

import equifed as ef
from equifed import methods, randomness, tree
from equifed.errors import ConfigError, RunError
from equifed.federation import Federation
from equifed.methods._wrapper import Wrapper
from equifed.protocol import LocalTraining, Method, Phase
from equifed.simulation import Simulation
from equifed.simulator import Reference, make_job, make_tables, reference

OPTIONS: dict[str, Any] = {
    "rounds": 6,
    "clients_per_round": 7,
    "seeds": (0, 1, 4),
    "eval_every": 100,
    "local": ef.Local(epochs=1, batch_size=16, learning_rate=0.1),
    "secure": True,
}
MODEL = ef.models.Logistic()


def run(method: Method, federation: Any, **changes: Any) -> ef.Result:
    return ef.simulate(method, federation, model=MODEL, **{**OPTIONS, **changes})


def outcome(n: int, before: int, late: int) -> str:
    """The table of outcomes, as it is written for people: n were asked, so many were gone before masking, so many of
    the rest before unmasking."""
    threshold = math.floor(2 * n / 3) + 1
    there = n - before
    if there < 3 or there < threshold:
        return "too-few-masked"
    if before == 0:
        return "" if n - late >= threshold else "too-few-unmasked"
    return "" if late == 0 else "too-few-unmasked"


def gone(seed: int, purpose: str, *numbers: int, chance: float) -> bool:
    return bool(randomness.generator(seed, purpose, *numbers).random() < chance)


@pytest.mark.parametrize("engine", ["lanes", "reference"])
@pytest.mark.parametrize(("dropout", "late"), [(0.15, 0.0), (0.0, 0.2), (0.05, 0.08)])
@pytest.mark.sample(2)
def test_who_is_gone_decides_whether_a_round_is_applied(
    engine: Any, dropout: float, late: float, uneven: Federation
) -> None:
    """KFFL has three sums in a round: each has its own coins for who is gone before unmasking."""
    result = run(methods.KFFL(), uneven, engine=engine, dropout=dropout, dropout_late=late)
    order = np.argsort(uneven.ids)
    seen = set()
    for line in result.log.to_dict("records"):
        seed, number = line["seed"], line["round"]
        drawn = randomness.generator(seed, "cohort", number).choice(10, size=7, replace=False)
        keys = [randomness.key(uneven.ids[k]) for k in order[np.sort(drawn)]]
        stay = [key for key in keys if not gone(seed, "dropout", number, key, chance=dropout)]
        found, counted = "", 0
        for step in range(3):
            lost = sum(gone(seed, "dropout-late", number, step, key, chance=late) for key in stay)
            counted += lost
            found = outcome(7, 7 - len(stay), lost)
            if found:
                break
        seen.add(found)
        assert line["applied"] == (not found)
        assert (line["sampled"], line["replied"], line["dropped"], line["rejected"]) == (7, len(stay), 7 - len(stay), 0)
        assert line["late"] == counted
    wanted = {(0.15, 0.0): {"", "too-few-masked"}, (0.0, 0.2): {"", "too-few-unmasked"}}
    assert seen == wanted.get((dropout, late), {"", "too-few-unmasked"})
    notes = [note for note in result.notes if note.kind == "rounds-not-applied"]
    assert {note.fields["obstacle"]["kind"] for note in notes} == seen - {""}
    assert sum(note.fields["count"] for note in notes) == (~result.log["applied"]).sum()
    assert len(notes) == 1  # whatever the number of clients was


@pytest.mark.parametrize("engine", ["lanes", "reference"])
@pytest.mark.parametrize("method", [methods.KFFL(), methods.FedEM()], ids=lambda method: method.name)
def test_a_round_without_its_sum_leaves_nothing_behind(engine: Any, method: Method, uneven: Federation) -> None:
    """Neither at the server nor at the clients, in the runs it happens in; the others go on."""
    options = {**OPTIONS, "engine": engine, "dropout": 0.15, "dropout_late": 0.1, "rounds": 5}
    simulation = Simulation(make_job(method, uneven, MODEL, ef.RunSettings(**options)))
    before, applied = simulation.engine.start(), []
    for step in simulation.rounds():
        state = tree.map(torch.clone, step.state)
        for log in step.logs:
            pairs = zip(tree.leaves(before), tree.leaves(state), strict=True)
            same = [torch.equal(old[log.run], new[log.run]) for old, new in pairs]
            assert all(same) == (not log.applied)
            applied.append(log.applied)
        before = state
    assert {*applied} == {True, False}


def test_runs_together_equal_each_alone(uneven: Federation) -> None:
    options = {"dropout": 0.1, "dropout_late": 0.05}
    together = run(methods.KFFL(), uneven, **options)
    for seed in OPTIONS["seeds"]:
        alone = run(methods.KFFL(), uneven, **options, seeds=[seed])
        part = together.log[together.log["seed"] == seed].reset_index(drop=True)
        same = ["round", "replied", "dropped", "applied", "late"]
        assert part[same].equals(alone.log[same])
        for name, value in alone.parameters[seed].items():
            np.testing.assert_allclose(value, together.parameters[seed][name], rtol=2e-6, atol=2e-6)
    swept = ef.simulate(
        methods.KFFL(), uneven, over={"fairness_weight": [1.0, 50.0]}, model=MODEL, **{**OPTIONS, **options}
    )
    for weight in (1.0, 50.0):
        alone = run(methods.KFFL(fairness_weight=weight), uneven, **options)
        for seed in OPTIONS["seeds"]:
            for name, value in alone.parameters[seed].items():
                np.testing.assert_allclose(value, swept.parameters[weight, seed][name], rtol=2e-6, atol=2e-6)


def test_a_resumed_run_tosses_the_same_coins(uneven: Federation) -> None:
    settings = ef.RunSettings(**{**OPTIONS, "dropout": 0.1, "dropout_late": 0.05})

    def training() -> Simulation:
        return Simulation(make_job(methods.FedEM(), uneven, MODEL, settings))

    whole = [(step.logs, tree.map(torch.clone, step.state)) for step in training().rounds()]
    assert {log.applied for logs, _ in whole for log in logs} == {True, False}
    for (logs, state), step in zip(whole[3:], training().rounds((3, tree.map(torch.clone, whole[2][1]))), strict=True):
        assert logs == step.logs
        assert all(map(torch.equal, tree.leaves(state), tree.leaves(step.state)))


@pytest.mark.parametrize(
    "how", [{"kernel": "clients", "threads": 2}, {"kernel": "traced"}, {"kernel": "fused"}], ids=str
)
def test_whatever_way_clients_train(how: dict[str, Any], uneven: Federation) -> None:
    found = run(methods.FedAvg(), [uneven, dataclasses.replace(uneven, seed=1)], rounds=2, seeds=(0, 1), **how)
    expected = run(methods.FedAvg(), uneven, rounds=2, seeds=(0, 1), engine="reference")
    for seed, parameters in expected.parameters.items():
        for name, value in parameters.items():
            np.testing.assert_allclose(found.parameters[seed][name], value, rtol=2e-6, atol=2e-6)


def test_those_who_are_gone_late_are_in_the_sum(uneven: Federation) -> None:
    late = run(methods.FedAvg(), uneven, clients_per_round="all", dropout_late=0.1, rounds=3, engine="reference")
    assert late.log["late"].sum() > 0
    assert late.log["applied"].all()
    whole = run(methods.FedAvg(), uneven, clients_per_round="all", rounds=3, engine="reference")
    for seed, parameters in whole.parameters.items():
        for name, value in parameters.items():
            assert value.tobytes() == late.parameters[seed][name].tobytes()


@pytest.mark.parametrize("places", [{}, {"update": 12}])
def test_sums_by_plain_integers(places: dict[str, int], uneven: Federation) -> None:
    """Of FedAvg's first round, from the replies of each client by itself."""
    settings = ef.RunSettings(**{**OPTIONS, "clients_per_round": "all", "seeds": [0]})
    job = make_job(methods.FedAvg(), uneven, MODEL, settings)
    engine = Reference(job, make_tables(job))
    phase = dataclasses.replace(job.phases("round")[0], places=places)
    down = job.method.sent(tree.take(engine.start().server, 0), phase.down)
    with torch.no_grad():
        replies = [engine.work(phase, down, (), 0, k, 1)[0] for k in range(10)]
    gathered = reference.gather(job, "round", phase, down, replies, np.arange(10)).gathered.replies
    one = 2 ** places.get("update", 30)
    for name, value in gathered["update"].items():
        each = [np.asarray(reply["update"][name], dtype=np.float64).ravel() for reply in replies]
        sums = [sum(round(float(update[i]) * one) for update in each) / one for i in range(value.numel())]
        assert value.numpy().tobytes() == np.array(sums, dtype=np.float32).tobytes()
        assert np.abs(np.sum(each, axis=0) - sums).max() <= 10 / one / 2
    assert float(gathered["rows"]) == sum(map(len, uneven.train))
    assert float(gathered["present"]) == 10


# -- refusals ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Huge(Wrapper):
    """silo-0 and silo-1, or only the first, send an update that no sum holds."""

    suffix = "+huge"
    liars: int = dataclasses.field(default=1, metadata={"hyper": False})

    def around(self, phase: Phase) -> Phase:
        work: Any = phase.client
        assert isinstance(work, LocalTraining)

        def finish(parameters: Any, down: Any, state: Any, data: Any, context: Any) -> Any:
            reply, state = work.finish(parameters, down, state, data, context)
            huge = tree.map(lambda leaf: torch.where(data.client < self.liars, 1e9, leaf), reply["update"])
            return {**reply, "update": huge}, state

        return super().around(dataclasses.replace(phase, client=dataclasses.replace(work, finish=finish)))


@pytest.mark.parametrize("engine", ["lanes", "reference"])
def test_a_reply_that_no_sum_holds_is_refused(engine: Any, uneven: Federation) -> None:
    options = {"engine": engine, "rounds": 2, "max_update": math.inf, "clients_per_round": "all"}
    result = run(Huge(methods.FedAvg()), uneven, **options)
    assert set(result.rejections["client"]) == {"silo-0"}
    assert set(result.rejections["reason"]) == {
        "has update beyond 4.3e+08, the most that a secure sum of 10 clients holds"
    }
    assert result.log["applied"].all()
    assert (result.log["rejected"] == 1).all()
    # with so many gone that the others cannot unmask their sum, the round is not applied
    result = run(Huge(methods.FedAvg(), liars=4), uneven, **options)
    assert not result.log["applied"].any()
    assert "6 of 10 masked replies came, 7 are needed" in str(result.notes[0])


def test_phases_with_everyone_must_have_their_sum(uneven: Federation) -> None:
    @dataclasses.dataclass(frozen=True)
    class Starting(Huge):
        @property
        def setup(self) -> tuple[Phase, ...]:
            return tuple(self.around(dataclasses.replace(phase, name="first")) for phase in self.inner.round)

    with pytest.raises(RunError, match=r"setup phases could not be finished.*6 of 10 masked replies came, 7 are"):
        run(Starting(methods.FedAvg(), liars=4), uneven, max_update=math.inf)


def test_what_cannot_be_swept(uneven: Federation) -> None:
    for name in ("secure", "dropout_late"):
        with pytest.raises(ConfigError, match=name):
            ef.simulate(methods.FedAvg(), uneven, over={name: [0.0, 0.1]}, model=MODEL, **OPTIONS)


# -- messages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["lanes", "reference"])
def test_the_table_of_messages_counts_masked_replies(engine: Any, uneven: Federation) -> None:
    result = run(methods.FedAvgLR(), uneven, engine=engine, rounds=1, clip=1.0)
    plain = run(methods.FedAvgLR(), uneven, engine=engine, rounds=1, clip=1.0, secure=False)
    values = sum(value.size for value in result.parameters[0].values()) + 2  # rows, clipped
    line, unmask = result.messages.to_dict("records")
    (before,) = plain.messages.to_dict("records")
    assert (before["gather"], before["bytes_up"]) == ("sum", 4 * values)
    assert (line["gather"], line["phase"], line["up"]) == ("secure sum", "train", before["up"])
    # 64 bits for each value; a commitment of 32 bytes, and for each of 6 others a share of 17 in 12 + 16 of AES-GCM
    assert line["bytes_up"] == 8 * values + 32 + 6 * (17 + 12 + 16) == sum(line["sizes_up"].values())
    assert line["bytes_down"] == before["bytes_down"] + 7 * 32  # the keys of all
    assert (unmask["phase"], unmask["gather"], unmask["times"]) == ("unmask train", "unmask", 1)
    assert (unmask["bytes_down"], unmask["bytes_up"]) == (32 + 6 * 45, 7 * 17)
    counted = run(methods.FedAvgGR(), uneven, engine=engine, rounds=1).messages
    assert counted["phase"].tolist() == ["count", "unmask count", "train", "unmask train"]
    assert counted["bytes_down"].iloc[1] == 32 + 9 * 45  # before round 1 everyone is asked
    alone = run(methods.LocalOnly(), uneven, engine=engine, rounds=1).messages
    assert alone["gather"].tolist() == ["sum"]  # nothing is sent, so nothing is masked
