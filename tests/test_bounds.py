"""Bounds: finite lies are refused by name and reason, the same in both engines, and nobody honest is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from support.samples import in_sample
from torch import Tensor

import equifed as ef
from equifed import methods, tree
from equifed.bounds import Bounds, Replies, bound_of, find_longest
from equifed.channel import Channel
from equifed.errors import ConfigError
from equifed.methods._wrapper import Wrapper
from equifed.protocol import ROWS, WRONG, Bound, Data, LocalTraining, Method, Phase, Record, Update, ignore_replies
from equifed.tree import Tree

LIAR = 0
"""silo-0, which has 41 rows."""


@dataclass(frozen=True)
class Lying(Wrapper):
    """A method one of whose clients changes a field of its replies, in all phases that have it."""

    suffix = "+lying"
    about: str = dataclasses.field(default="", metadata={"hyper": False})
    change: Callable[[Tensor], Tensor] = dataclasses.field(default=torch.clone, metadata={"hyper": False})

    def around(self, phase: Phase) -> Phase:
        if self.about not in phase.up:
            return super().around(phase)

        def lied(reply: Record, data: Data) -> Record:
            lie = tree.map(lambda leaf: torch.where(data.client == LIAR, self.change(leaf), leaf), reply[self.about])
            return {**reply, self.about: lie}

        def finish(parameters: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
            reply, state = work.finish(parameters, down, state, data, context)
            return lied(reply, data), state

        def client(down: Record, state: Tree, data: Data) -> tuple[Record, Tree]:
            reply, state = work(down, state, data)
            return lied(reply, data), state

        work: Any = phase.client
        lying = dataclasses.replace(work, finish=finish) if isinstance(work, LocalTraining) else client
        return super().around(dataclasses.replace(phase, client=lying))


def run(method: Method, federation: ef.Federation, **changes: Any) -> ef.Result:
    options = {"rounds": 2, "clients_per_round": "all", "seeds": [0], "model": ef.models.Logistic()}
    local = ef.Local(epochs=1, batch_size=8, learning_rate=0.1)
    return ef.simulate(method, federation, **{"local": local, **options, **changes})


def to(number: float) -> Callable[[Tensor], Tensor]:
    return lambda leaf: torch.zeros_like(leaf) + number


def times(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda leaf: leaf * factor


LIES: list[tuple[Method, str, Callable[[Tensor], Tensor], str]] = [
    (methods.FedAvg(), "update", to(1e30), "an update in update with a norm of "),
    (methods.FedAvg(), "update", times(1000), "the other replies are not nearly as long"),
    (methods.FedAvg(), "rows", times(0.5), "has rows that are not whole numbers"),
    (methods.FedAvg(), "rows", to(1e-30), "has rows that are not whole numbers"),
    (methods.FedAvg(), "rows", to(0), "an update in update with a norm of "),
    (methods.FedAvg(), "rows", to(1e9), "has rows outside 0 to 41, the rows that it declared: 1e+09"),
    (methods.KFFL(), "sum_s", to(1e20), "has sum_s with a norm of "),
    (methods.KFFL(), "sum_f", to(3e16), "has sum_f with a norm of "),
    (methods.KFFL(), "sum_sf", to(1e20), "has sum_sf with a norm of "),
    (methods.KFFL(), "gradient", to(1e20), "has gradient with a norm of "),
    (methods.KFFL(), "gradient", to(1e6), "the other replies are not nearly as long"),
    (methods.KFFLTD(), "gradient_rows", to(42), "has gradient_rows outside 0 to 41"),
    (methods.FedFair(), "gap", to(1e20), "has gap with a norm of 1e+20, above 10000"),
    (methods.FedFair(), "gap", to(100), "the other replies are not nearly as long"),
    (methods.FedFair(), "holders", to(0.5), "has holders that are not whole numbers"),
    (methods.FedFair(), "gap_gradient", to(1e30), "an update in gap_gradient with a norm of "),
    (methods.FedAvgGR(), "counts", to(37), "has counts that add up to 148, more than the 41 rows"),
    (methods.FedAvgGR(), "counts", lambda leaf: leaf + 0.5, "has counts that are not whole numbers"),
    (methods.FairFed(), "weight", to(1e20), "has weight outside 0 to 5: 1e+20"),
    (methods.FairFed(version="v1"), "weight_before", to(42), "has weight_before outside 0 to 41"),
    (methods.FairFed(), "gap", to(1e20), "has gap outside 0 to 2: 1e+20"),
    (methods.FairFed(), "gap", to(-1), "has gap outside 0 to 2: -1"),
    (methods.FedMinMax(), "losses", to(1e20), "has losses with a norm of "),
    (methods.FedMinMax(), "losses", to(3000.0), "has losses with a norm of "),
    (methods.FedMinMax(), "losses", to(-10), "has losses outside 0 to inf: -10"),
    (methods.QFFL(), "h", to(1e-30), "an update in delta with a norm of "),
    (methods.QFFL(), "h", to(1e12), "has h with a norm of 1e+12, above 2.51189e+09"),
    (methods.QFFL(), "h", to(1e5), "the other replies are not nearly as long"),
    (methods.QFFL(), "h", to(-1), "has h outside 0 to inf: -1"),
    (methods.AFL(), "loss", to(1e20), "has loss with a norm of 1e+20, above 10000"),
    (methods.AFL(), "loss", to(100), "the other replies are not nearly as long"),
    (methods.GIFAIR(), "update", times(1000), "the other replies are not nearly as long"),
    (methods.TERM(), "weight", to(1e20), "has weight with a norm of 2.43902e+18 per row"),
    (methods.TERM(t=0.1), "weight", to(1e5), "the other replies are not nearly as long"),
    (methods.TERM(), "weight", to(-1), "has weight outside 0 to inf: -1"),
    (methods.TERM(level="group"), "losses", to(-10), "has losses outside 0 to inf: -10"),
    (methods.CVaR(), "histogram", to(1), "has histogram that add up to "),
    (methods.FCFL(), "loss", to(1e20), "has loss with a norm of 1e+20, above 10000"),
    (methods.FCFL(), "loss", to(100), "the other replies are not nearly as long"),
    (methods.FCFL(), "loss", to(-1), "has loss outside 0 to inf: -1"),
    (methods.FCFL(), "gap", to(2), "has gap outside 0 to 1: 2"),
    (methods.FCFL(), "loss_gradient", times(1e4), "the other replies are not nearly as long"),
    (methods.LCO(), "violated", to(2), "has violated outside 0 to 1: 2"),
    (methods.LCO(), "residual", to(-1), "has residual outside 0 to "),
    (methods.LCO(), "excess", to(1e20), "has excess outside 0 to 10000"),
    (methods.AgnosticFair(steps=1), "x", to(1e20), "has x with a norm of "),
    (methods.AgnosticFair(steps=1), "x", to(1e5), "the other replies are not nearly as long"),
    (methods.AgnosticFair(steps=1), "cov", to(1e4), "the other replies are not nearly as long"),
    (methods.AgnosticFair(steps=1), "xx", to(-1), "has xx outside 0 to inf: -1"),
    (methods.AgnosticFair(steps=1), "s", to(42), "has s outside 0 to 41"),
    (methods.AgnosticFair(steps=1), "kernel", to(50), "has kernel outside 0 to 41"),
    (methods.AgnosticFair(steps=1), "cov", to(1e20), "has cov with a norm of "),
    (methods.AgnosticFair(steps=1), "gradient", to(1e30), "an update in gradient with a norm of "),
    (methods.FedVal(), "theta", to(1e30), "an update in theta with a norm of "),
    (methods.FairFate(), "theta", lambda leaf: leaf + 1e4, "the other replies are not nearly as long"),
    (methods.SFFL(), "update", to(1e30), "an update in update with a norm of "),
    (methods.IFCA(), "group", to(99), "has group outside -1 to 1: 99"),
    (methods.make("fedavg+eo", fit="global"), "decisions", to(37), "has decisions that add up to "),
    (methods.make("fedavg+ceo", fit="global"), "scores", to(1e9), "has scores with a norm of "),
    (methods.make("fedavg+fair"), "histogram", to(1), "has histogram that add up to "),
    (methods.make("fedavg+fair", level="both", exchanges=2), "confusion", to(41), "has confusion with a norm of "),
]


def lying(method: Method, name: str, change: Callable[[Tensor], Tensor]) -> Lying:
    return Lying(method, name, change)


@pytest.mark.parametrize(
    ("method", "name", "change", "reason"),
    [
        pytest.param(*lie, marks=() if in_sample(f"{lie[0].name} {lie[1]} {lie[3]}", 3) else pytest.mark.full)
        for lie in LIES
    ],
    ids=[f"{lie[0].name} {lie[1]} {i}" for i, lie in enumerate(LIES)],
)
def test_a_finite_lie_is_refused(method: Method, name: str, change: Any, reason: str, uneven: ef.Federation) -> None:
    """By name and with the reason, and the round goes on with the others."""
    result = run(lying(method, name, change), uneven, engine="reference")
    assert set(result.rejections["client"]) == {"silo-0"}
    assert all(reason in said for said in result.rejections["reason"])
    assert result.log["applied"].all()
    assert all(np.abs(value).max() < 100 for value in result.parameters[0].values())


OF_WEIGHT = next(i for i, lie in enumerate(LIES) if lie[:2] == (methods.QFFL(), "h") and "the other" in lie[3])


@pytest.mark.parametrize("number", [0, 1, 10, 15, 17, 22, OF_WEIGHT, 38, 40])
def test_lanes_refuse_what_the_reference_refuses(number: int, uneven: ef.Federation) -> None:
    method, name, change, _ = LIES[number]
    results = [
        run(lying(method, name, change), uneven, engine=engine, seeds=[0, 1]) for engine in ("lanes", "reference")
    ]
    told = [result.rejections.drop(columns="reason").to_dict("records") for result in results]
    key = lambda line: sorted(map(str, line.values()))  # noqa: E731
    assert sorted(told[0], key=key) == sorted(told[1], key=key)
    assert told[0]
    for seed, parameters in results[0].parameters.items():
        for leaf, value in parameters.items():
            np.testing.assert_allclose(value, results[1].parameters[seed][leaf], rtol=1e-4, atol=1e-5)


def test_a_refused_client_is_as_none(uneven: ef.Federation) -> None:
    """The model is the mean of the others', which plain NumPy makes of single clients' models."""
    result = run(lying(methods.FedAvg(), "update", to(1e30)), uneven, rounds=1)
    everyone = run(methods.FedAvg(), uneven, rounds=1).parameters[0]
    only = run(lying(methods.FedAvg(), "update", to(0.0)), uneven, rounds=1).parameters[0]
    rows = np.array([len(rows) for rows in uneven.train])
    for name, value in result.parameters[0].items():
        # the sum without silo-0's update, over the rows of the others; a logistic model starts at 0
        np.testing.assert_allclose(value, only[name] * rows.sum() / rows[1:].sum(), rtol=1e-5, atol=1e-7)
        assert not np.allclose(value, everyone[name], rtol=1e-3)


def test_a_gradient_of_statistics_that_there_are_not_is_not_used(uneven: ef.Federation) -> None:
    """In KFFL-TD's first round all honest gradients are 0, so there is nothing to compare a lie with."""
    lie = lying(lying(methods.KFFLTD(), "gradient", to(1e9)), "gradient_rows", to(41))
    lied, honest = (run(method, uneven, rounds=1).parameters[0] for method in (lie, methods.KFFLTD()))
    for name, value in honest.items():
        np.testing.assert_array_equal(lied[name], value)


def test_settings_of_a_sweep_have_bounds_of_their_own(uneven: ef.Federation) -> None:
    """FairFed's weights are at most 1 + 4 beta: 3 is impossible with beta = 0.1, and not with 1."""
    options = {"rounds": 1, "clients_per_round": "all", "seeds": [0], "model": ef.models.Logistic()}
    swept = ef.simulate(
        lying(methods.FairFed(), "weight_before", to(3.0)), uneven, over={"beta": [0.1, 1.0]}, **options
    )
    assert set(swept.rejections["beta"]) == {0.1}
    swept = ef.simulate(methods.FedAvg(), uneven, over={"max_update": [1e-3, 10.0]}, **options)
    assert set(swept.rejections["max_update"]) == {1e-3}
    assert "with a norm of" in swept.rejections["reason"].iloc[0]


def test_large_updates_pass_where_they_may(uneven: ef.Federation) -> None:
    lie = lying(methods.FedAvg(), "update", times(1000))
    assert not run(lie, uneven, clients_per_round=2, max_update=math.inf).rejections.shape[0]  # nobody to compare with
    with pytest.raises(ConfigError, match="max_update"):
        run(methods.FedAvg(), uneven, max_update=0)


# -- the function itself -----------------------------------------------------------------------------------------------


def bounds(bound: Bound | None = None, channel: Channel = Channel(), **phase: Any) -> Bounds:  # noqa: B008
    up = {"up": ("value",), "bounds": {"value": bound}} if bound else {}
    made = Phase(**{"name": "p", "down": (), "client": None, "server": ignore_replies, **up, **phase})
    task: Any = None
    return Bounds([(made, channel)], task, clients=500)


@pytest.mark.parametrize(
    ("bound", "fine", "wrong"),
    [
        (Bound(0, ROWS), [0, 3.5, 5], [-0.1]),
        (Bound(0, ROWS), [5.0], [5.1]),
        (Bound(0, ROWS, whole=True), [0, 5], [2.5]),
        (Bound(0, ROWS, adds_up=True), [2, 3], [2, 4]),
        (Bound(per_row=2.0), [6, 8], [6, 8.1]),
        (Bound(norm=1.0), [0.6, 0.8], [0.7, 0.8]),
        (Bound(-1, 1), [-1, 1], [1.1]),
        (Bound(), [3e38, -3e38], [math.inf]),
        (Bound(), [1], [math.nan]),
    ],
)
def test_every_part_of_a_bound(bound: Bound, fine: list[float], wrong: list[float]) -> None:
    """Of a client with 5 rows: alone, and among many at once."""
    for values, expected in ((fine, True), (wrong, False)):
        reply: Record = {"value": torch.tensor(values, dtype=torch.float32)}
        assert (bounds(bound).find_problem({}, reply, 5) == "") == expected
        many = tree.map(lambda leaf: torch.stack([leaf, leaf]), reply)
        runs, slots, rows = np.zeros(2, dtype=np.int64), np.arange(2), np.array([5, 5])
        found = bounds(bound).find_refused_in_runs(Replies({}, many, (), runs, slots, rows), np.array([True, False]))
        assert set(found) == (set() if expected else {(0,)})


@pytest.mark.parametrize(
    ("bound", "fine", "wrong"),
    [
        (Bound(0, ROWS), [0, 15], [15.1]),
        (Bound(0, ROWS, whole=True), [7], [7.5]),
        (Bound(0, ROWS, adds_up=True), [7, 8], [7, 9]),
        (Bound(per_row=2.0), [18, 24], [18, 24.2]),
        (Bound(norm=1.0), [1.8, 2.4], [1.9, 2.4]),
        (Bound(-1, 1), [-3, 3], [3.1]),
        (Bound(-1, 1), [-3, 3], [-3.1]),
    ],
)
def test_what_the_replies_of_three_can_add_up_to(bound: Bound, fine: list[float], wrong: list[float]) -> None:
    """Of three clients, who together have 15 rows. The field is named, and nobody else."""
    for values, expected in ((fine, ""), (wrong, "value")):
        total: Record = {"value": torch.tensor(values, dtype=torch.float32)}
        assert bounds(bound).find_impossible({}, total, clients=3, rows=15) == expected


def test_how_far_three_updates_can_lead_together() -> None:
    channel = Channel(max_update=2.0)
    weighted = bounds(channel=channel, up=("update", "rows"), updates={"update": Update(weight="rows")})
    models = bounds(channel=channel, up=("theta",), down=("theta",), updates={"theta": Update(around="theta")})
    for size, expected in ((1.99, ""), (2.01, "update")):
        total = {"update": torch.tensor([0.6, 0.8]) * size * 15, "rows": torch.tensor(15.0)}
        assert weighted.find_impossible({}, total, clients=3, rows=15) == expected
    for size, expected in ((5.99, ""), (6.01, "theta")):
        down = {"theta": torch.tensor([10.0, -20.0])}
        total = {"theta": 3 * down["theta"] + torch.tensor([0.6, 0.8]) * size}
        assert models.find_impossible(down, total, clients=3, rows=15) == expected


def test_large_finite_numbers_are_not_refused() -> None:
    """Their norm overflows in 32 bits; only NaN and Inf make a client's state unusable."""
    large, small = torch.full((3, 8), 3e38), torch.ones(3, 2)
    runs, slots, rows = np.zeros(3, dtype=np.int64), np.arange(3), np.ones(3, dtype=np.int64)

    def refused() -> set[int]:
        replies = Replies({}, {"value": small}, {"a": large, "n": torch.arange(3)}, runs, slots, rows)
        return {place[0] for place in bounds(Bound()).find_refused_in_runs(replies, np.ones(3, dtype=bool))}

    assert refused() == set()
    small[1, 0], large[2, 5] = math.nan, -math.inf
    assert refused() == {1, 2}


def test_a_norm_is_compared_with_the_median_of_three_at_least() -> None:
    sizes = np.array([[2.0, 3.0, 900.0, 0.0], [2.0, 900.0, 0.0, np.nan], [1e-3, 2e-3, 0.9, np.nan]])
    np.testing.assert_allclose(find_longest(sizes), [300, np.inf, 0.2])


def test_a_client_may_be_far_worse_off_than_others() -> None:
    """Where the model fits the others all but perfectly, one whose rows it gets all wrong is whom fairness is about."""
    made = bounds(Bound(low=0, norm=1e4, alike=WRONG))
    losses = {k: {"value": torch.tensor(loss)} for k, loss in enumerate((0.001, 0.002, 0.001, 12.0))}
    rows = dict.fromkeys(losses, 5)
    assert made.find_refused({}, losses, rows) == {}
    losses[3]["value"] += 5
    assert set(made.find_refused({}, losses, rows)) == {3}
    many: Record = {"value": torch.stack([reply["value"] for reply in losses.values()])}
    runs, slots = np.zeros(4, dtype=np.int64), np.arange(4)
    found = made.find_refused_in_runs(Replies({}, many, (), runs, slots, np.full(4, 5)), np.ones(4, dtype=bool))
    assert set(found) == {(3,)}


def test_an_update_that_is_weighted_is_divided_by_its_weight() -> None:
    """Rows differ by a thousand, updates do not."""
    made = bounds(up=("update", "rows"), updates={"update": Update(weight="rows")}, channel=Channel(max_update=10.0))
    replies = {
        k: {"update": torch.tensor([3.0, 4.0]) * n, "rows": torch.tensor(n)} for k, n in enumerate((1.0, 10, 1e3))
    }
    rows = {0: 1, 1: 10, 2: 1000}
    assert made.find_refused({}, replies, rows) == {}
    replies[1]["update"] *= 2.1  # 10.5
    assert made.find_refused({}, replies, rows) == {1: "has an update in update with a norm of 10.5, above 10"}


def test_a_clipped_update_has_the_norm_that_it_is_clipped_to() -> None:
    phase = Phase("p", (), ("update",), None, ignore_replies, updates={"update": Update()})  # type: ignore[arg-type]
    assert bound_of(phase, Channel(clip=0.5), "update").norm == 0.5
    assert bound_of(phase, Channel(clip=math.inf), "update").norm == 1e6
    assert bound_of(phase, Channel(), "elsewhere") == Bound()


def test_what_a_secure_sum_does_not_hold_is_refused() -> None:
    """Beyond 2^32 / 500; in places of its own where a field has them. Nothing is compared with other replies."""
    secure = {"up": ("update", "counts"), "updates": {"update": Update()}, "gather": "sum"}
    channel = Channel(max_update=math.inf, secure=True)
    made = bounds(channel=channel, **secure)
    fine = {"update": torch.tensor([8.5e6, -8.5e6]), "counts": torch.tensor([3])}
    assert made.find_problem({}, fine, 5) == ""
    wrong = {**fine, "update": torch.tensor([1.0, -8.6e6])}
    assert (
        made.find_problem({}, wrong, 5) == "has update beyond 8.6e+06, the most that a secure sum of 500 clients holds"
    )
    assert bounds(channel=channel, **secure, places={"update": 20}).find_problem({}, wrong, 5) == ""
    assert bounds(channel=Channel(max_update=math.inf), **secure).find_problem({}, wrong, 5) == ""  # not secure
    assert (
        bounds(channel=channel, **{**secure, "gather": "stack"}).find_problem({}, wrong, 5) == ""
    )  # nothing is summed
    sizes = dict(enumerate([1.0, 1.0, 1.0, 1000.0]))
    replies = {k: {**fine, "update": torch.tensor([size])} for k, size in sizes.items()}
    assert made.find_refused({}, replies, dict.fromkeys(replies, 5)) == {}
    assert [*bounds(**secure).find_refused({}, replies, dict.fromkeys(replies, 5))] == [3]
