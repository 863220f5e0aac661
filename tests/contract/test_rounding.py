"""Bounds are about real numbers, replies are computed in floating point: no honest reply is refused, no lie beyond the
room is let in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import equifed as ef
from equifed import fixed_point, methods, tree
from equifed.bounds import Bounds, Replies, bound_of, room
from equifed.channel import Channel
from equifed.federation import Federation
from equifed.methods._cells import AT_ONCE, over_rows
from equifed.methods.term import CUT, TERM
from equifed.protocol import (
    BOUNDS,
    ROWS,
    Bound,
    Data,
    Method,
    OfRows,
    Phase,
    Record,
    Stage,
    Task,
    Update,
    ignore_replies,
)
from equifed.simulator import Job, Reference, State, make_job, make_tables, rounds
from equifed.simulator.engine import ExchangeResult
from equifed.tree import Tree

from .registered import METHODS
from .test_contract import AS_SUMS, SUMMED, VARIANTS, every_method_in_full, settings, shown

HELD = 41
"""Rows of the client whose reply is looked at."""
EVERYONE = list(dict.fromkeys([*METHODS, *VARIANTS, *AS_SUMS]))


def job_of(method: Method, federation: Federation, **changes: Any) -> Job:
    options = {**settings(method), "engine": "reference", **changes}
    model, initial = options.pop("model"), options.pop("initial_parameters", None)
    return make_job(method, federation, model, ef.RunSettings(**options), initial_parameters=initial)  # type: ignore[arg-type]


# -- every limit -------------------------------------------------------------------------------------------------------


def alone(bound: Bound, task: Task | None, channel: Channel = Channel(), update: Update | None = None) -> Bounds:  # noqa: B008
    """The bounds of a phase that has one field, `value`."""
    updates = {} if update is None else {"value": update}
    bounds = {} if update is not None else {"value": bound}
    phase = Phase("p", (), ("value",), None, ignore_replies, bounds=bounds, updates=updates)  # type: ignore[arg-type]
    return Bounds([(phase, channel)], task, clients=5)  # type: ignore[arg-type]


def said_of(bounds: Bounds, *values: Tensor, rows: int = HELD) -> dict[int, str]:
    """What is said of replies of so many clients, which is the same one by one and of many at once."""
    replies: dict[int, Record] = {k: {"value": value} for k, value in enumerate(values)}
    found = bounds.find_refused({}, replies, dict.fromkeys(replies, rows))
    slots, runs = np.arange(len(values)), np.zeros(len(values), dtype=np.int64)
    stacked: Record = {"value": torch.stack(values)}
    many = Replies({}, stacked, (), runs, slots, np.full(len(values), rows))
    assert bounds.find_refused_in_runs(many, np.ones(len(values), dtype=bool)).keys() == {(k,) for k in found}
    return found


def ends_of(bound: Bound, task: Task) -> Iterator[tuple[str, float]]:
    """The finite limits of a bound, by name."""
    for name in ("low", "high", "per_row", "norm", "alike"):
        limit = getattr(bound, name)
        if isinstance(limit, OfRows):
            yield name, float(limit.most(task, np.array(HELD)))
        elif limit is not None and (number := float(limit(task) if callable(limit) else limit)) not in (
            -np.inf,
            np.inf,
        ):
            yield name, HELD if name == "high" and number == ROWS else number


def check_end(bound: Bound, task: Task, name: str, limit: float) -> None:
    """Beyond it by 5e-7 of itself a reply passes; by more than twice the room it does not. Whole numbers are exact."""
    if name == "alike" and isinstance(bound.per_row, OfRows):
        bound = dataclasses.replace(bound, per_row=1e12)  # with so few rows its own is lower
    bounds, count = alone(bound, task), HELD if bound.per_row is not None else 1
    beyond = 3 * float(room(HELD))

    def reply(share: float) -> Tensor:
        if name in ("low", "high"):
            size = HELD if bound.per_row is not None else abs(limit) + 1
            return torch.tensor(limit + share * (size if name == "high" else -size), dtype=torch.float64)
        return torch.ones(2, dtype=torch.float64) / 2**0.5 * limit * (1 + share) * count

    if name != "alike":
        if bound.whole:
            assert said_of(bounds, reply(0.0)) == {}
            one = torch.tensor(limit + (1.0 if name == "high" else -1.0), dtype=torch.float64)
            assert said_of(bounds, one).keys() == {0}
        else:
            assert said_of(bounds, reply(5e-7)) == {}
            assert said_of(bounds, reply(beyond)).keys() == {0}
        return
    short = [reply(-0.999)] * 4
    assert said_of(bounds, *short, reply(5e-7)) == {}
    assert said_of(bounds, *short, reply(beyond)).keys() == {4}


@pytest.mark.parametrize("method", EVERYONE, ids=shown)
def test_every_limit_has_room_for_rounding_and_no_more(method: Method, uneven: Federation) -> None:
    task = job_of(method, uneven).task
    for phase in (phase for stage in (method.setup, method.round, method.final) for phase in stage):
        for name in set(phase.up) & {*BOUNDS, *phase.bounds}:
            bound = bound_of(phase, Channel(), name)
            if bound.high == fixed_point.largest(1):
                continue  # more than a sum of one client's numbers holds
            for end, limit in ends_of(bound, task):
                check_end(bound, task, end, limit)


def test_an_update_has_room_for_rounding_and_no_more() -> None:
    for channel, most in ((Channel(clip=1.0), 1.0), (Channel(max_update=100.0), 100.0)):
        bounds = alone(Bound(), None, channel, Update())
        others = [torch.full((3,), most / 2 / 3**0.5)] * 4
        for share, refused in ((5e-7, set()), (1e-4, {4})):
            assert said_of(bounds, *others, torch.tensor([most * (1 + share), 0.0, 0.0])).keys() == refused


def test_an_update_of_any_length_passes_where_it_may() -> None:
    phase = Phase("p", (), ("u", "rows"), None, ignore_replies, updates={"u": Update(weight="rows")})  # type: ignore[arg-type]
    bounds = Bounds([(phase, Channel(max_update=np.inf))], None, clients=5)  # type: ignore[arg-type]
    for rows in (0, 7):
        reply: Record = {"u": torch.full((3,), 1e30) * rows, "rows": torch.tensor(float(rows))}
        assert bounds.find_problem({}, reply, rows) == ""


def test_the_room_is_at_most_a_thousandth_whatever_is_added_up() -> None:
    """2^-24 a rounding: a number alone has 2^-14, a sum 2^-24 more for every row, up to 2^-10."""
    np.testing.assert_array_equal(
        room(np.array([0, 2**10, 10**4, 10**6, 10**12])) * 2**24, [1024, 2048, 11024] + [2**14] * 2
    )
    assert room(10**12) < 1e-3


def test_whole_numbers_have_no_room_as_long_as_they_are_exact() -> None:
    rows = Bound(0, ROWS, whole=True)
    for held, said, refused in ((10**6, 10**6, False), (10**6, 10**6 + 1, True), (2**25, 2**25 + 4, False)):
        value = torch.tensor(float(said))
        assert bool(said_of(alone(rows, None), value, rows=held)) == refused
    table = alone(Bound(0, ROWS, whole=True, adds_up=True), None)
    assert said_of(table, torch.tensor([10.0**6, 1.0]), rows=10**6).keys() == {0}


# -- values that are cut at a limit ------------------------------------------------------------------------------------


@pytest.mark.parametrize("exponential", [3269017.25, 3269017.5], ids=["rounds down", "rounds up"])
def test_terms_weight_at_the_cut_on_any_processor(exponential: float) -> None:
    """exp(15) in 32 bits is one or the other; a client of 1 to 2,000 rows sends n of them, or their sum."""
    numbers = np.arange(1, 2001)
    method, task = TERM(), SimpleNamespace(kind="classification")
    bound = method.round[0].bounds["weight"]
    sums = [torch.full((n,), exponential).sum() for n in numbers.tolist()]
    products = [torch.tensor(float(n)) * exponential for n in numbers.tolist()]
    bounds = alone(bound, task)  # type: ignore[arg-type]
    short = torch.tensor(1e-6)
    for weights in (sums, products):
        stacked: Record = {"value": torch.stack([torch.stack([short, short, short, weight]) for weight in weights])}
        runs, slots = np.broadcast_arrays(np.arange(2000)[:, None], np.arange(4))
        many = Replies({}, stacked, (), runs, slots, np.broadcast_to(numbers[:, None], (2000, 4)))
        assert bounds.find_refused_in_runs(many, np.ones((2000, 4), dtype=bool)) == {}
        for n in (7, 23, 29, 87, 1999):
            assert said_of(bounds, short, short, short, weights[n - 1], rows=n) == {}
            assert said_of(bounds, short, short, short, weights[n - 1] * 1.002, rows=n).keys() == {3}


@pytest.mark.parametrize("level", ["client", "row"])
def test_terms_own_weight_at_the_cut(level: str) -> None:
    """As its clients compute it, of rows whose loss is far above c."""
    method = TERM(t=1.0, level=level)  # type: ignore[arg-type]
    bounds = alone(method.round[0].bounds["weight"], SimpleNamespace(kind="classification"))  # type: ignore[arg-type]
    lossy: Any = SimpleNamespace(row_loss=lambda theta, x, y: x[:, 0])
    down = {"theta": {"w": torch.zeros(1)}, "c": torch.tensor(1.0)}
    for n in [*range(1, 100), 503, 1999, 10**6]:
        data = Data(torch.full((n, 1), 2 * CUT), torch.zeros(n), torch.zeros(n), torch.ones(n), lossy)
        reply, _ = method.reply({"w": torch.ones(1)}, down, (), data, ())
        short = torch.tensor(1e-6)
        assert said_of(bounds, short, short, short, reply["weight"], rows=n) == {}


def test_updates_that_the_channel_has_cut_pass_beside_short_ones() -> None:
    channel, rng = Channel(clip=1.0), np.random.default_rng(0)
    phase = Phase(
        "p", (), ("value",), lambda down, state, data: (state, ()), ignore_replies, updates={"value": Update()}
    )
    send: Any = channel.apply(phase).client
    bounds = Bounds([(phase, channel)], None, clients=5)  # type: ignore[arg-type]
    drawn = rng.normal(size=(500, 30)) * rng.uniform(1, 1e6, size=(500, 1))
    short = torch.full((30,), 1e-4)
    for update in torch.from_numpy(drawn.astype(np.float32)):
        reply, _ = send({}, {"value": update}, None)
        replies: dict[int, Record] = {k: {"value": v} for k, v in enumerate((short, short, short, reply["value"]))}
        assert bounds.find_refused({}, replies, dict.fromkeys(replies, 5)) == {}


def test_the_grid_of_secure_sums_has_room() -> None:
    """Weights of TERM may be as small as exp(-15) per row, and integers have 16 binary places there."""
    channel, silos = Channel(clip=1.0, secure=True), 3
    phase = TERM(t=10.0).round[0]
    bounds = Bounds([(phase, channel)], SimpleNamespace(kind="classification"), silos)  # type: ignore[arg-type]
    direction = torch.tensor([1.0, 1.0]) / 2**0.5

    def total(length: float) -> Record:
        """Of three silos that each have 110 rows, and a model that has become far better in one round."""
        weight = torch.tensor(110 * float(np.exp(-CUT)))
        reply: Record = {"update": direction * length * weight, "weight": weight, "rows": torch.tensor(110.0)}
        assert bounds.find_problem({}, {**reply, "update": direction * weight}, 110) == ""
        sums = {}
        for name, value in reply.items():
            places = phase.places.get(name, fixed_point.PLACES)
            whole = sum(fixed_point.encode(value, silos, places) for _ in range(silos))
            sums[name] = fixed_point.decode(torch.as_tensor(whole), value.dtype, places)
        return sums

    honest = total(1.0)
    assert float(honest["update"].norm() / honest["weight"]) > 1.3  # as it comes out of the integers
    assert bounds.find_impossible({}, honest, silos, 330) == ""
    assert bounds.find_impossible({}, total(10.0), silos, 330) == "update"


# -- sums over many rows -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 10])
def test_products_over_a_million_rows_are_added_in_blocks(size: int) -> None:
    """A library's own product may be 1 % off, as terms of one size that are added one by one all round the same way."""
    value = np.float32(np.sqrt(2 / size))
    z = torch.full((10**6, size), float(value))
    exact = 10**6 * float(value) ** 2
    np.testing.assert_allclose(over_rows(z.T, z).numpy(), exact, rtol=room(0))
    np.testing.assert_allclose(over_rows(z[:, 0], z).numpy(), exact, rtol=room(0))
    few = z[:AT_ONCE]
    assert torch.equal(over_rows(few.T, few), few.T @ few)


def test_kffls_sums_over_a_million_rows_are_within_bounds() -> None:
    """Of rows that all have the largest features there are, cos = 1."""
    for features in (1, 2, 10):
        method = methods.KFFL(features=features)
        draw = torch.zeros(2, features)
        task: Any = SimpleNamespace(predict=lambda theta, x: x[:, 0], num_groups=2, kind="classification")
        n = 10**6
        zeros, draws = torch.zeros(n), {"phi_s": draw, "phi_f": draw}
        data = Data(zeros[:, None], zeros, zeros, torch.ones(n), task, draws=draws)
        reply = method.sums({}, data)
        assert Bounds([(method.round[0], Channel())], task, 5).find_problem({}, reply, n) == ""
        np.testing.assert_allclose(float(reply["sum_sf"].norm()), 2 * n, rtol=room(0))


def test_a_client_with_many_batches_is_within_bounds_beside_small_ones(uneven: Federation) -> None:
    """FedNova's steps follow from the rows that a client has declared: so many and no more."""
    method = methods.FedNova()
    task = job_of(method, uneven, local=ef.Local(epochs=3, batch_size=10)).task
    bounds = alone(method.round[0].bounds["steps"], task)
    rows, batches = np.array([20, 20, 20, 10**6]), np.array([2, 2, 2, 10**5])
    for factor, refused in ((1.0, set()), (1.001, {3})):
        steps = rows * 3.0 * batches * np.array([1, 1, 1, factor])
        replies: dict[int, Record] = {k: {"value": torch.tensor(float(value))} for k, value in enumerate(steps)}
        found = bounds.find_refused({}, replies, dict(enumerate(rows.tolist())))
        assert found.keys() == refused


def test_a_client_cannot_claim_any_number_of_steps_by_claiming_rows(uneven: Federation) -> None:
    """The server multiplies the mean update by them, and a client says itself how many rows it has."""
    method = methods.FedNova()
    bounds = alone(method.round[0].bounds["steps"], job_of(method, uneven, local=ef.Local(batch_size=10)).task)
    rows = [100, 100, 100, 100, 10**9]
    replies: dict[int, Record] = {k: {"value": torch.tensor(n * np.ceil(n / 10))} for k, n in enumerate(rows)}
    assert bounds.find_refused({}, replies, dict(enumerate(rows))).keys() == {4}


# -- honest clients ----------------------------------------------------------------------------------------------------


def doubled(value: Tree) -> Tree:
    return tree.map(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, value)


class Watched(Reference):
    """The reference engine in 32 or 64 bits, which looks at its replies as engines of many runs do, too."""

    wide = False

    def start(self) -> State:
        state = super().start()
        return State(doubled(state.server), doubled(state.clients)) if self.wide else state

    def work(self, phase: Phase, down: Record, state: Tree, run: int, client: int, round: int) -> tuple[Record, Tree]:
        reply, new = super().work(phase, down, state, run, client, round)
        self.seen.append((down, reply, new, client))
        return reply, new

    def _data(self, phase: Phase, run: int, client: int, round: int) -> Data:
        data = super()._data(phase, run, client, round)
        if not self.wide:
            return data
        fields = {name: doubled(getattr(data, name)) for name in ("x", "y", "mask", "draws", "initial", "uniforms")}
        attribute = None if data.attribute is None else data.attribute.double()
        return data.replace(**fields, attribute=attribute)

    def exchange(self, state: State, stage: Stage, position: int, *rest: Any) -> ExchangeResult:
        self.seen: list[tuple[Record, Record, Tree, int]] = []
        done = super().exchange(state, stage, position, *rest)
        assert done.rejections == []
        if self.seen:
            downs, replies, kept, clients = zip(*self.seen, strict=True)
            who = np.array(clients)
            held = np.array([int(self.tables.count_rows(0, k)) for k in clients])
            stacked = Replies(*map(tree.stack, (downs, replies, kept)), np.zeros_like(who), np.arange(len(who)), held)
            assert self.bounds(stage, position).find_refused_in_runs(stacked, np.ones(len(who), dtype=bool)) == {}
        return done


@contextmanager
def bits(wide: bool) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if wide else torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def train(job: Job, wide: bool = False) -> None:
    """Carry the job out; whatever is refused fails."""
    engine = Watched(job, make_tables(job))
    engine.wide = wide
    if wide and job.method.needs_validation:
        engine.__dict__["validation"] = doubled(engine.validation)
    nothing: Any = SimpleNamespace(measure=lambda *_: None)
    with bits(wide):
        assert [step.round for step in rounds(job, engine, nothing)][-1] >= 1


def edges(size: float = 1.0, many: int = 0, features: int = 4) -> Federation:
    """Clients whose rows are all equal, of one class, of one group, one row, none, of features that are huge or tiny;
    and plain ones beside them, by whom lies could be told."""
    rng = np.random.default_rng(3)

    def rows(n: int, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x = rng.normal(size=(n, features)).astype(np.float32)
        s = rng.integers(0, 2, n)
        return x * np.float32(scale * size), (x[:, 0] + 0.5 * s > 0.2).astype(int), s

    def equal(n: int, label: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return np.full((n, features), size, np.float32), np.full(n, label), np.full(n, label)

    plain, one_class, one_group = rows(33), rows(20), rows(20)
    clients = [
        plain,
        rows(many) if many else rows(50),
        equal(many // 2 or 40, 1),
        equal(7, 0),
        (one_class[0], np.zeros(20, int), one_class[2]),
        (one_group[0], one_group[1], np.ones(20, int)),
        rows(1),
        rows(0),
        rows(12, 5.0),
        rows(12, 1e-30),
        rows(41),
    ]
    groups = [k % 3 for k in range(len(clients))]
    return Federation.from_arrays(clients, validation=rows(40), test=rows(10), client_groups=groups)


CONFIDENT = {"0.weight": np.array([[4.0, 0.0, 0.0, 0.0]], np.float32), "0.bias": np.array([-1.0], np.float32)}
"""A logistic model that is sure of itself, and wrong about some rows."""
PLANS: dict[str, tuple[Callable[[], Federation], dict[str, Any]]] = {
    "from zeros": (edges, {}),
    "confident": (edges, {"initial_parameters": CONFIDENT}),
    "huge": (lambda: edges(1e4), {"local": ef.Local(epochs=1, batch_size=8, learning_rate=1e-9)}),
    "tiny": (lambda: edges(1e-30), {}),
}


STEPPING = {"fedfair", "lco", "separate-training", "agnostic-fair", "fcfl"}


def edge_job(method: Method, plan: str, **changes: Any) -> Job:
    federation, options = PLANS[plan]
    made = {
        "model": ef.models.Logistic(),
        "rounds": 2,
        "clients_per_round": "all",
        "dropout": 0.0,
        "seeds": (0,),
        "local": ef.Local(epochs=1, batch_size=8, learning_rate=0.1),
        **options,
        **changes,
    }
    names = {part.name.partition("+")[0] for part in method.parts}
    ranking = bool(names & {"frl", "e2fl"})
    if ranking or names & {"fedper", "fedrep"} or (method.num_models and "initial_parameters" in made):
        made.pop("initial_parameters", None)
        made["model"] = ef.models.MLP(hidden=(3,), activation="tanh", bias=not ranking)
    if plan == "huge" and names & STEPPING:  # by a step of their own, which has to be as short
        method = method.with_hyper(step_size=1e-9)
    return job_of(method, federation(), **made)


QUICK_PLANS = [("confident", False), ("from zeros", False)]


@pytest.mark.parametrize(
    ("plan", "wide"),
    [
        pytest.param(plan, wide, marks=() if (plan, wide) in QUICK_PLANS else pytest.mark.full)
        for plan in PLANS
        for wide in (False, True)
    ],
    ids=lambda value: value if isinstance(value, str) else "64 bits" if value else "32 bits",
)
@every_method_in_full
@pytest.mark.sample(40)
def test_no_honest_reply_is_refused(method: Method, plan: str, wide: bool) -> None:
    train(edge_job(method, plan), wide)


@pytest.mark.parametrize(
    "method",
    [pytest.param(m, marks=() if m in METHODS else pytest.mark.full) for m in SUMMED if m in EVERYONE],
    ids=shown,
)
@pytest.mark.sample(12)
def test_no_honest_reply_is_out_of_a_secure_sums_range(method: Method) -> None:
    train(edge_job(method, "confident", secure=True))


# A pooled reference has no client that replies; one with an exact kernel would take a million times a million numbers.
QUICK = {"term", "kffl", "fednova", "fedminmax", "agnostic-fair", "fedfair", "q-ffl", "afl"}
"""What they add up differs: weights, products, batches, losses by group, kernels, gaps, powers, single losses."""


@pytest.mark.parametrize(
    "method",
    [pytest.param(m, marks=() if m.name in QUICK else pytest.mark.full) for m in METHODS if not m.pooled],
    ids=shown,
)
@pytest.mark.sample(2)
def test_no_honest_reply_over_a_million_rows_is_refused(method: Method) -> None:
    federation = edges(many=10**6, features=2)
    local = ef.Local(epochs=1, batch_size=None, learning_rate=0.1)
    model: Any = ef.models.Logistic()
    if method.name in ("frl", "e2fl", "fedper", "fedrep"):
        model = ef.models.MLP(hidden=(2,), activation="tanh", bias=method.name in ("fedper", "fedrep"))
    options = {"model": model, "rounds": 1, "clients_per_round": "all", "dropout": 0.0, "seeds": (0,), "local": local}
    train(job_of(method, federation, **options))


def test_fairfeds_weight_does_not_grow_beyond_its_bound() -> None:
    """Of a client that is fairer than the others and takes part in every other round, so that its weight is never
    normalised."""
    method = methods.FairFed(beta=1.0)
    phase = method.round[-1]
    task: Any = SimpleNamespace(local=ef.Local())
    bounds = Bounds([(phase, Channel())], task, 5)
    data = Data(torch.zeros(5, 1), torch.zeros(5), torch.zeros(5), torch.ones(5), task)
    counts = torch.tensor([[[5.0, 0.0], [0.0, 5.0]], [[5.0, 0.0], [0.0, 5.0]]])
    state: Any = method.init_client(SimpleNamespace(num_groups=2), {"w": torch.zeros(1)})._replace(counts=counts)  # type: ignore[arg-type]
    facts = {"gap": torch.tensor(0.3), "n": torch.tensor(50.0), "ratio": torch.tensor(1.0)}
    for number in range(0, 60, 2):
        down = {"counts": counts, "t": torch.tensor(float(number)), **facts}
        reply, state = method.reply({"w": torch.full((1,), 0.1)}, down, state, data, ())
        assert bounds.find_problem(down, reply, 5) == ""
    assert float(reply["weight"]) == 5.0


def test_a_loss_just_below_0_has_powers() -> None:
    """softplus(z) - z of a row that fits may round to less than 0, which has no power of 0.1."""
    method = methods.QFFL(q=0.1)
    task: Any = SimpleNamespace(row_loss=lambda theta, x, y: torch.full((3,), -1e-6))
    data = Data(torch.zeros(3, 1), torch.zeros(3), torch.zeros(3), torch.ones(3), task, learning_rate=0.1)
    theta = {"w": torch.zeros(1)}
    reply, _ = method.reply(theta, {"theta": theta}, (), data, ())
    assert np.isfinite(float(reply["h"]))
    assert float(reply["h"]) == pytest.approx(10 * 1e-10**0.1)
    begun, _ = methods.QFFL(q=0.1).summed.begin({"theta": theta}, (), data)  # type: ignore[attr-defined]
    assert float(begun["loss"]) == 0


def test_sffls_sums_hold_clients_that_move_far() -> None:
    """exp(d) of a distance of 100 is infinite in 32 bits."""
    summed = methods.SFFL(components=2).summed
    phase = summed.round[0]  # type: ignore[union-attr]
    from equifed.methods.sffl import SummedClient, measure

    zeros = torch.zeros(2)
    state = SummedClient(zeros + 0.5, zeros, zeros + 5, zeros, {"w": torch.zeros(2, 3)})
    n = 10**6
    data: Any = SimpleNamespace(n=torch.tensor(float(n)))
    far = {"w": torch.tensor([[60.0, 60.0, 60.0], [0.1, 0.0, 0.0]])}
    down = {"theta": {"w": torch.zeros(2, 3)}, "level": zeros}
    reply, _ = measure(far, down, state, data, (zeros, zeros))  # type: ignore[arg-type]
    bounds = Bounds([(dataclasses.replace(phase, updates={}), Channel(secure=True))], None, 100)  # type: ignore[arg-type]
    assert bool(reply["moved"].isfinite().all())
    assert bounds.find_problem(down, reply, n) == ""
