"""Every method through the same tests: what the protocol promises of each of them.

A new method gets a line in METHODS (registered.py); the sketches stand in for the shapes of methods that are not
written yet.
"""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import torch
from support.samples import fast, sampled_methods

import equifed as ef
from equifed import methods, tree
from equifed.bounds import bound_of, unbounded_fields
from equifed.channel import Channel
from equifed.errors import ConfigError
from equifed.federation import Federation, Rows, RowSets
from equifed.metrics.catalogue import CATALOGUE
from equifed.protocol import BOUNDS, Method
from equifed.simulation import Simulation
from equifed.simulator import check_swept, lane_data, make_job, reference, tracing

from .registered import METHODS
from .sketches import SKETCHES

VARIANTS: tuple[Method, ...] = (
    methods.FedAvgGR(scope="round"),
    methods.FedVal(fairness=("demographic_parity_ratio", "average_odds_ratio"), as_published=True),
    methods.FairFate(fairness="average_odds_ratio", lambda0=0.4, rho=0.2, as_published=True),
    ef.postprocess.EqualizedOdds(methods.FedAvg()),
    ef.postprocess.EqualizedOdds(methods.FairFate(lambda0=0.4), fit="global"),
    ef.postprocess.EqualizedOdds(methods.LocalOnly(), fit="global"),
    ef.postprocess.CalibratedEqualizedOdds(methods.LCO(epsilon=0.01, dual_step_size=2.0), cost="weighted"),
    ef.postprocess.CalibratedEqualizedOdds(methods.FedAvgGR(), fit="global"),
    ef.postprocess.Fair(methods.FedAvg(), gap=0.02),
    ef.postprocess.Fair(methods.FedProx(mu=0.3), notion="equalized_odds", gap=0.05, calibration="none"),
    ef.postprocess.Fair(methods.LocalOnly(), notion="equal_opportunity", gap=0.0),
    ef.postprocess.Fair(methods.FedAvg(), level="local", notion="equalized_odds", local_gap=0.05),
    ef.postprocess.Fair(methods.FedAvg(), level="both", gap=0.02, local_gap=0.05, exchanges=4),
    methods.FairFed(fairness="demographic_parity_difference", version="v1", debias="reweighing"),
    methods.FairFed(fairness="equalized_odds_difference", beta=0.5, debias="fairbatch", debias_step=0.1),
    methods.FairFed(debias="kernel", debias_weight=20.0),
    methods.KFFL(fairness_weight=20.0, redraw="once", condition_on="label"),
    methods.SFFL(components=2, fairness="equalized_odds_difference", fairness_step=3.0, aggregation="size"),
    methods.SFFL(fairness="demographic_parity_difference", fairness_step=3.0, weight_clip=1e9),
    methods.FCFL(fairness="equalized_odds_difference", first_stage=0.0),
    methods.FairFate(lambda0=0.4, rho=0.2, min_clients=3),
    methods.IFCA(num_groups=3, known=True),
    methods.IFCA(num_groups=2, min_clients=2),
    methods.E2FL(groups="lowest-loss", num_groups=2, min_clients=3),
    methods.E2FL(groups="sensitive"),
    methods.E2FL(groups="rank-clustering", num_groups=2),
    methods.E2FL(groups="lowest-loss", num_groups=3, use="global"),
    methods.E2FL(groups="one-shot", num_groups=3),
    methods.E2FL(groups="binary", num_groups=5),
    methods.AFL(adversary_rate=0.3, start="equal", average=True),
    methods.TERM(t=3.0, level="group"),
    methods.TERM(t=2.0, level="row"),
    methods.TERM(t=-2.0, level="row"),
    methods.PropFair(M=1.2, eps=0.4, huber=True),
    methods.FedMGDA(epsilon=1.0, start="rows"),
    methods.CVaR(rho=0.05, tail_weight=1.0),
    methods.Scaffold(weights="uniform"),
    methods.FedNova(),
    methods.Adam(methods.Scaffold()),
    methods.Adam(methods.FedAvg()),
    methods.Yogi(methods.KFFL(fairness_weight=20.0, step_size=2.0)),
    ef.postprocess.Fair(methods.Adagrad(methods.FedEM()), gap=0.05),
    methods.Momentum(methods.IFCA(num_groups=2), beta1=0.5),
    methods.FedFB(fairness="equalized_odds_difference", alpha=0.4, reference="first", normalise=True),
    methods.FedFB(fairness="client_parity", alpha=0.5),
    methods.FedFB(fairness="client_parity", alpha=0.5, average_by="row-weights"),
    methods.FedFairGrad(fairness="equal_opportunity_difference", dual_step_size=0.5, floor=None),
    methods.FedFairGrad(fairness="accuracy_difference", dual_step_size=0.5, rescale=True),
    methods.FedGFT(notion="predictive_parity", fairness_weight=5.0, penalty="id"),
    methods.FedGFT(notion="equal_opportunity", auto=True),
    methods.FedFACT(level="global", dual_step_size=1.0, shared_only=True),
    methods.FedFACT(notion="equalized_odds", level="local", dual_step_size=2.0, largest_price=0.5),
    methods.Ditto(methods.KFFL(fairness_weight=20.0, step_size=2.0), personal_epochs=1),
    methods.Ditto(personal_fairness="equalized_odds_difference", personal_fairness_weight=2.0),
    methods.Ditto(methods.Adam(methods.QFFL(q=0.7))),
    ef.postprocess.Fair(methods.Momentum(methods.Ditto(), beta1=0.5), gap=0.05),
    methods.FedPer(final_epochs=1),
    methods.FedRep(head_epochs=0, body_epochs=2),
    methods.Yogi(methods.FedRep(head_epochs=1)),
    methods.APFL(mixing=0.7, adaptive=False),
)
"""Methods whose options change their phases or their server step, and methods inside a post-processing."""

AS_SUMS = tuple(method.summed for method in (*METHODS, *VARIANTS) if method.summed not in (None, method))
"""Those that run otherwise where only sums are seen, as they do then."""
OTHERS = (*VARIANTS, *AS_SUMS, *SKETCHES)


def shown(method: Method) -> str:
    return repr(method).replace("Method", "")


every_method_in_full = pytest.mark.parametrize(
    "method", [*METHODS, *(pytest.param(method, marks=pytest.mark.full) for method in OTHERS)], ids=shown
)
"""For tests that take long: the registry's methods always, the others in `make test-full`."""
some_methods = pytest.mark.parametrize(
    "method",
    [*sampled_methods(METHODS, 4), *(pytest.param(method, marks=pytest.mark.full) for method in OTHERS)],
    ids=shown,
)
"""For tests of what few methods could do wrong: some always, all of them in `make test-full`."""

TRAINS_ITS_OWN_WAY = {
    "fedavg": "the mean loss",
    "fedprox": "a context",
    "fedavg-lr": "values per row",
    "fedem": "several models",
    "sffl": "several models, and a free loss",
    "local-kernel": "random features",
    "frl": "scores in place of weights",
    "kffl": "after other exchanges",
    "apfl": "numbers beside the model",
}
"""One method for each shape of local training; what engines, optimisers and kernels do is the same for the others."""
one_of_each_shape = pytest.mark.parametrize(
    "method",
    [
        *fast(METHODS, lambda method: method.name in TRAINS_ITS_OWN_WAY),
        *(pytest.param(method, marks=pytest.mark.full) for method in OTHERS),
    ],
    ids=shown,
)

SETTINGS = {
    "model": ef.models.MLP(hidden=(3,), activation="tanh"),
    "rounds": 3,
    "clients_per_round": 6,
    "dropout": 0.2,
    "local": ef.Local(epochs=2, batch_size=8, learning_rate=0.1),
    "seeds": (0, 5),
}


def settings(method: Method) -> dict[str, object]:
    if method.name in ("frl", "e2fl"):  # they rank edges, and biases are none
        return {**SETTINGS, "model": ef.models.MLP(hidden=(3,), activation="tanh", bias=False)}
    return SETTINGS


def run(method: Method, federation: Federation, **changes: object) -> ef.Result:
    return ef.simulate(method, federation, **{**settings(method), **changes})  # type: ignore[arg-type]


_PLAIN: dict[str, ef.Result] = {}


def plain(method: Method, federation: Federation, **changes: object) -> ef.Result:
    """The same, once for all tests that compare with it: they must not change it."""
    key = repr((method, changes))
    if key not in _PLAIN:
        _PLAIN[key] = run(method, federation, **changes)
    return _PLAIN[key]


def assert_same(a: ef.Result, b: ef.Result, tolerance: float = 2e-6) -> None:
    assert a.parameters.keys() == b.parameters.keys()
    for seed, parameters in a.parameters.items():
        for name, value in parameters.items():
            np.testing.assert_allclose(value, b.parameters[seed][name], rtol=tolerance, atol=tolerance)
    columns = ["seed", "round", "split", "scope", "metric"]
    left, right = (
        result.metrics.astype({"split": str, "scope": str, "metric": str}).sort_values(columns) for result in (a, b)
    )
    assert left[columns].to_numpy().tolist() == right[columns].to_numpy().tolist()
    np.testing.assert_allclose(left["value"], right["value"], rtol=1e-4, atol=1e-5)


def test_the_table_is_the_registry() -> None:
    assert [type(method) for method in METHODS] == list(methods.REGISTRY.values())
    assert [method.name for method in METHODS] == list(methods.REGISTRY)


@pytest.fixture(scope="module")
def partly_unknown(uneven: Federation) -> Federation:
    """A third of the rows are of unknown group, of one client all, of another all but one."""
    s = np.where(np.random.default_rng(3).random(len(uneven.rows.s)) < 1 / 3, -1, uneven.rows.s)
    s[uneven.train[1]] = -1
    s[uneven.train[5][1:]] = -1
    return dataclasses.replace(uneven, rows=uneven.rows._replace(s=s))


@one_of_each_shape
def test_rows_of_unknown_group_take_part(method: Method, partly_unknown: Federation) -> None:
    """Both engines agree on them, everything stays finite, and they are counted."""
    few = {"rounds": 2, "clients_per_round": 8, "dropout": 0.0, "seeds": (0,)}
    result = run(method, partly_unknown, **few)
    assert_same(result, run(method, partly_unknown, **few, engine="reference"))
    assert all(np.isfinite(value).all() for model in result.parameters.values() for value in model.values())
    assert result.rejections.empty
    unknown = partly_unknown.unknown_groups
    assert result.info["unknown_groups"] == unknown
    assert unknown["test"] == int((partly_unknown.rows.s[partly_unknown.test] == -1).sum()) > 0
    last = result.metrics[(result.metrics["round"] == 2) & (result.metrics["split"] == "test")]
    values = last.set_index(["scope", "metric"])["value"]
    models = round(values["global", "rows"] / 120)  # as many as clients where each has its own
    assert values["global", "rows"] == 120 * models
    assert values["group:0", "count"] + values["group:1", "count"] == (120 - unknown["test"]) * models


@every_method_in_full
def test_lanes_equal_reference(method: Method, uneven: Federation) -> None:
    lanes, reference = plain(method, uneven), plain(method, uneven, engine="reference")
    assert_same(lanes, reference)
    assert lanes.rejections.empty  # an honest client is within its bounds
    assert reference.rejections.empty


SUMMED = [method for method in (*METHODS, *VARIANTS, *SKETCHES) if method.summed is not None and not method.pooled]


@pytest.mark.parametrize(
    "method",
    fast(SUMMED, lambda m: m in METHODS and (m.name in TRAINS_ITS_OWN_WAY or m.summed != m)),
    ids=shown,
)
@pytest.mark.sample(5)
def test_secure_sums(method: Method, uneven: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both engines agree; the model is that of plain sums; and no bit of it depends on the order of replies."""
    made = {"rounds": 2, "dropout": 0.0, "seeds": (0,)}
    reference_run = run(method, uneven, **made, secure=True, engine="reference")
    assert_same(run(method, uneven, **made, secure=True), reference_run)
    assert_same(reference_run, plain(method, uneven, **made), 1e-5)
    assert reference_run.rejections.empty
    gather = reference.gather

    def backwards(job, stage, phase, down, replies, clients, run=0):  # type: ignore[no-untyped-def]
        if phase.gather == "sum":
            replies, clients = replies[::-1], clients[::-1].copy()
        return gather(job, stage, phase, down, replies, clients, run)

    monkeypatch.setattr(reference, "gather", backwards)
    again = run(method, uneven, **made, secure=True, engine="reference")
    for seed, parameters in reference_run.parameters.items():
        for name, value in parameters.items():
            assert value.tobytes() == again.parameters[seed][name].tobytes()


@pytest.mark.parametrize("method", [m for m in (*METHODS, *OTHERS) if m.summed is None], ids=shown)
def test_a_method_that_needs_each_reply_is_refused_where_only_sums_are_seen(method: Method, uneven: Federation) -> None:
    with pytest.raises(
        ConfigError, match=f"secure hides each client's reply, which {re.escape(method.name)} needs"
    ) as error:
        run(method, uneven, secure=True)
    named = str(error.value).rpartition("Methods that work with secure sums: ")[2].rstrip(".").split(", ")
    assert named == [each.name for each in METHODS if each in SUMMED]


@pytest.mark.parametrize("method", [*METHODS, *OTHERS], ids=shown)
def test_a_method_as_it_is_summed(method: Method) -> None:
    """It keeps its name and its hyperparameters, and shows the server no single reply."""
    summed = method.summed
    if summed is None:
        return
    assert (summed.name, summed.hyper) == (method.name, method.hyper)
    assert summed.summed == summed
    assert summed.reveals or method in SKETCHES or method.pooled, "say what its sums still tell: `reveals`"
    for phase in (*summed.setup, *summed.round, *summed.final):
        assert phase.gather == "sum" or not phase.up


@pytest.mark.full
@pytest.mark.parametrize("method", [m for m in SUMMED if m not in SKETCHES], ids=shown)
def test_no_sum_has_a_place_for_each_client(method: Method, uneven: Federation) -> None:
    """In which a reply could be read from the sum: what is sent does not grow with the number of clients."""
    count = 7
    fewer = dataclasses.replace(
        uneven,
        ids=uneven.ids[:count],
        train=RowSets.of([uneven.train[k] for k in range(count)]),
        client_test=None,
        client_groups=None if uneven.client_groups is None else uneven.client_groups[:count],
    )
    summed = method.summed
    assert summed is not None
    few = {"rounds": 1, "clients_per_round": 4, "dropout": 0.0, "seeds": (0,)}
    sent = [run(summed, fed, **few).messages["sizes_up"].tolist() for fed in (uneven, fewer)]
    assert sent[0] == sent[1]


def test_a_secure_sum_is_of_three_or_more(uneven: Federation) -> None:
    with pytest.raises(ConfigError, match="clients_per_round must be at least 3 for secure sums, got 2"):
        run(methods.FedAvg(), uneven, secure=True, clients_per_round=2)
    two = dataclasses.replace(
        uneven,
        ids=uneven.ids[:2],
        train=RowSets.of([uneven.train[k] for k in range(2)]),
        client_test=None,
        client_groups=None,
    )
    options = {"clients_per_round": "all", "dropout": 0.0, "secure": True}
    with pytest.raises(ConfigError, match="secure needs at least 3 clients, and this federation has 2"):
        run(methods.FedAvg(), two, **options)
    run(methods.LocalOnly(), two, **options)  # nothing leaves its clients


@pytest.mark.parametrize("method", [*METHODS, *VARIANTS, *AS_SUMS], ids=shown)
def test_every_field_of_every_reply_is_bounded(method: Method) -> None:
    """By a bound, as an update, whose norm is, or by its codec; those that the channel adds too."""
    stages = (method.setup, method.round, method.final)
    for phase in (Channel(clip=1.0).apply(phase) for stage in stages for phase in stage):
        assert not unbounded_fields(phase), f"{method.name}, phase {phase.name}: declare `bounds`"
        for name in set(phase.up) & {*BOUNDS, *phase.bounds}:
            bound = bound_of(phase, Channel(), name)
            ends = [end for end in (bound.low, bound.high) if callable(end) or abs(end) < np.inf]
            assert len(ends) == 2 or bound.per_row is not None or bound.norm is not None, f"{name} can be anything"


def _needs_plain_steps(method: Method, local: ef.Local) -> bool:
    """Whether it is about the distance that steps of SGD go, and these are others."""
    adam, momentum = local.optimizer == "adam", local.momentum > 0
    if method.name == "fednova":
        return adam or (momentum and method.hyper["mu"] > 0)
    return method.name.startswith("scaffold") and (adam or momentum)


FULL_BATCH = ef.Local(epochs=1, batch_size=None, learning_rate=0.2)


@one_of_each_shape
@pytest.mark.parametrize(
    "local",
    [
        pytest.param(FULL_BATCH, id="full batch"),
        pytest.param(
            ef.Local(epochs=2, batch_size=7, learning_rate=0.05, momentum=0.9, weight_decay=0.01),
            id="momentum",
            marks=pytest.mark.full,
        ),
        pytest.param(
            ef.Local(epochs=2, batch_size=64, learning_rate=0.02, optimizer="adam", learning_rate_decay=0.5), id="adam"
        ),
    ],
)
@pytest.mark.sample(6)
def test_lanes_equal_reference_for_every_optimiser(method: Method, uneven: Federation, local: ef.Local) -> None:
    if _needs_plain_steps(method, local):
        with pytest.raises(ConfigError, match="momentum"):
            run(method, uneven, local=local)
        return
    # Adam divides by the root of tiny gradients, so rounding differences grow
    tolerance = 2e-5 if local.optimizer == "adam" else 2e-6
    lanes = plain(method, uneven, local=local, rounds=2)
    assert_same(lanes, run(method, uneven, local=local, rounds=2, engine="reference"), tolerance)


def _shape(method: Method) -> bool:
    """Whether it stands for a shape of local training: values per row, several models, rows chosen for each epoch."""
    return method.name in ("fedavg-lr", "fedem") or method.hyper.get("debias") == "fairbatch"


@pytest.mark.parametrize(
    "method",
    [pytest.param(m, marks=() if _shape(m) else pytest.mark.full) for m in (*METHODS, *OTHERS)],
    ids=shown,
)
def test_one_client_after_another_equals_reference(method: Method, uneven: Federation) -> None:
    """Whole batches are traced here; the last ones, each of its own size, are too few for that."""
    clients = run(method, uneven, kernel="clients", threads=2)
    assert_same(clients, plain(method, uneven, engine="reference"))


@pytest.mark.parametrize(
    "method",
    fast((*METHODS, *OTHERS), lambda method: method in METHODS and method.name in ("fedprox", "fedavg-lr", "fedem")),
    ids=shown,
)  # each takes seconds to trace
def test_fused_and_traced_steps_equal_eager_ones(
    method: Method, uneven: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tracing.TRACE_FROM == 100  # steps, more than these runs have
    # few shapes of a step: each takes a quarter of a second to trace
    few = {"rounds": 2, "local": ef.Local(epochs=2, batch_size=25, learning_rate=0.1)}
    eager = run(method, uneven, **few, kernel="traced")
    monkeypatch.setattr(tracing, "TRACE_FROM", 1)
    assert_same(eager, run(method, uneven, **few, kernel="traced"))
    assert_same(eager, run(method, uneven, **few))


@one_of_each_shape
def test_same_seed_twice_is_identical(method: Method, uneven: Federation) -> None:
    first, second = plain(method, uneven), run(method, uneven)
    for seed, parameters in first.parameters.items():
        for name, value in parameters.items():
            assert value.tobytes() == second.parameters[seed][name].tobytes()
    assert first.metrics["value"].to_numpy().tobytes() == second.metrics["value"].to_numpy().tobytes()


@one_of_each_shape
def test_seeds_together_equal_each_alone(method: Method, uneven: Federation) -> None:
    together = plain(method, uneven)
    for seed in SETTINGS["seeds"]:  # type: ignore[attr-defined]
        alone = run(method, uneven, seeds=[seed])
        for name, value in alone.parameters[seed].items():
            np.testing.assert_allclose(value, together.parameters[seed][name], rtol=2e-6, atol=2e-6)


@some_methods
def test_order_of_clients_does_not_matter(method: Method, uneven: Federation) -> None:
    order = np.random.default_rng(0).permutation(uneven.num_clients)
    assert uneven.client_test is not None
    assert uneven.client_groups is not None
    shuffled = dataclasses.replace(
        uneven,
        train=RowSets.of([uneven.train[k] for k in order]),
        client_test=RowSets.of([uneven.client_test[k] for k in order]),
        ids=tuple(uneven.ids[k] for k in order),
        client_groups=uneven.client_groups[order],
    )
    a, b = plain(method, uneven), run(method, shuffled)
    if method.name in (
        "local",
        "local+eo",
        "local+fair",
        "separate-training",
    ):  # the parameters are the clients' own, in the clients' order
        b.parameters = {s: {n: v[np.argsort(order)] for n, v in p.items()} for s, p in b.parameters.items()}
    assert_same(a, b)


@one_of_each_shape
def test_padding_changes_nothing(method: Method, uneven: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """More padding, and a stranger's extreme row standing in the padded places."""
    x, y, s, _ = uneven.rows
    far = np.full((200, *x.shape[1:]), 50, dtype=np.float32)
    stranger = len(y) + np.arange(200)
    pieces = [np.r_[uneven.train[k], stranger] for k in range(uneven.num_clients)]  # after each client's rows
    spread = RowSets.of(pieces)
    poisoned = dataclasses.replace(
        uneven,
        rows=Rows(np.concatenate([x, far]), np.r_[y, np.ones(200, y.dtype)], np.r_[s, np.zeros(200, s.dtype)]),
        train=dataclasses.replace(spread, stop=spread.stop - 200),
    )
    monkeypatch.setattr(lane_data, "grid_up", lambda n: n + 37)
    assert_same(plain(method, uneven, local=FULL_BATCH, rounds=2), run(method, poisoned, local=FULL_BATCH, rounds=2))


@one_of_each_shape
@pytest.mark.sample(4)
def test_absent_clients_change_nothing(method: Method, uneven: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stacked reply that never came is zeros with `present` 0, and must weigh nothing."""
    whole = plain(method, uneven, engine="reference")
    gather, count = reference.gather, uneven.num_clients

    def with_absent(job, stage, phase, down, replies, clients, run=0):  # type: ignore[no-untyped-def]
        seen = gather(job, stage, phase, down, replies, clients, run)
        # the absent client's position is that of one who never takes part in this table of replies
        missing = next(k for k in range(count + 1) if k not in clients)
        if phase.gather == "sum" or missing == count:
            return seen
        padded = tree.map(lambda leaf: torch.cat([leaf, torch.zeros_like(leaf[:1])]), seen.gathered.replies)
        padded["client"][-1] = missing
        return seen._replace(gathered=seen.gathered._replace(replies=padded))

    monkeypatch.setattr(reference, "gather", with_absent)
    assert_same(whole, run(method, uneven, engine="reference"))


@some_methods
def test_degenerate_clients_keep_everything_finite(method: Method, uneven: Federation) -> None:
    """The federation has clients with one row, none, one group, no positives; all take part here."""
    result = run(method, uneven, clients_per_round="all", dropout=0.0)
    assert all(np.isfinite(v).all() for parameters in result.parameters.values() for v in parameters.values())
    assert not len(result.rejections)
    assert (result.log["replied"] == uneven.num_clients).all()


@every_method_in_full
def test_state_survives_names(method: Method, uneven: Federation) -> None:
    """Server and client state flattened to names and back, as checkpoints and messages do."""
    made = dict(settings(method))
    model = made.pop("model")
    simulation = Simulation(make_job(method, uneven, model, ef.RunSettings(**made)))  # type: ignore[arg-type]
    state = next(iter(simulation.rounds())).state
    back = tree.from_named(simulation.engine.start(), tree.to_named(state))
    assert type(back.server) is type(state.server)
    for a, b in zip(tree.leaves(state), tree.leaves(back), strict=True):
        assert torch.equal(a, b)


def numbers_of(method: Method) -> list[str]:
    return [name for name, value in method.hyper.items() if isinstance(value, float)]


@pytest.mark.parametrize(
    "method",
    fast([m for m in (*METHODS, *SKETCHES) if numbers_of(m)], lambda method: method.name in TRAINS_ITS_OWN_WAY),
    ids=lambda m: m.name,
)
@pytest.mark.sample(3)
def test_sweep_equals_separate_runs(method: Method, uneven: Federation) -> None:
    numbers = numbers_of(method)
    values = [method.hyper[numbers[0]], 2.0 if method.name == "propfair" else 0.25]  # its losses must be below it
    swept = ef.simulate(method, uneven, over={numbers[0]: values}, **settings(method))  # type: ignore[arg-type]
    for value in values:
        alone = plain(method.with_hyper(**{numbers[0]: value}), uneven)
        for seed in SETTINGS["seeds"]:  # type: ignore[attr-defined]
            for name, parameter in alone.parameters[seed].items():
                np.testing.assert_allclose(parameter, swept.parameters[(value, seed)][name], rtol=2e-6, atol=2e-6)


PARENTS = {"kffl": {"mu": 1 / 2}, "kffl-td": {"mu": 1 / 2}}
"""Hyperparameters of the parent, where its defaults are not the ones."""


@pytest.mark.parametrize("method", [m for m in (*METHODS, *SKETCHES) if m.parent], ids=lambda m: m.name)
def test_without_its_weight_it_is_its_parent(method: Method, uneven: Federation) -> None:
    weights = [option.name for option in methods.options(method).values() if option.vanishes]
    assert weights, "a method with a parent marks the weight that vanishes: hyper(..., vanishes=True)"
    without = method.with_hyper(**{name: type(method.hyper[name])(0) for name in weights})
    parent = plain(methods.make(method.parent, **PARENTS.get(method.name, {})), uneven)
    for seed, parameters in run(without, uneven).parameters.items():
        for name, value in parameters.items():
            np.testing.assert_allclose(value, parent.parameters[seed][name], rtol=2e-6, atol=2e-6)


TURNED = [m for m in (*METHODS, *VARIANTS) if m.knob]


@pytest.mark.parametrize("method", TURNED, ids=shown)
def test_the_knob_is_a_number_of_the_method(method: Method) -> None:
    knob = method.knob
    assert knob is not None
    assert knob.aims
    assert knob.low < knob.high
    assert knob.low > 0 or knob.scale == "linear"
    ends = [knob.low, knob.high, *([] if knob.neutral is None else [knob.neutral])]
    check_swept(method, knob.name, ends)
    for metric, settings in knob.aims.items():
        assert metric in CATALOGUE
        for name, value in settings.items():
            methods.check_value(method, name, value)


@pytest.mark.parametrize("method", [m for m in METHODS if m.knob and m.parent], ids=lambda m: m.name)
def test_a_neutral_knob_is_the_parent(method: Method, uneven: Federation) -> None:
    """It is the weight that vanishes, as in the test above, or the method is its parent there too."""
    knob = method.knob
    assert knob is not None
    weights = [option.name for option in methods.options(method).values() if option.vanishes]
    if (weights, knob.neutral) == ([knob.name], 0.0):
        return
    parent = plain(methods.make(method.parent, **PARENTS.get(method.name, {})), uneven)
    for seed, parameters in run(method.with_hyper(**{knob.name: knob.neutral}), uneven).parameters.items():
        for name, value in parameters.items():
            np.testing.assert_allclose(value, parent.parameters[seed][name], rtol=2e-6, atol=2e-6)


def test_a_wrapper_has_the_knob_of_the_method_inside() -> None:
    assert methods.make("kffl+eo").knob is methods.KFFL.knob
    assert methods.make("fedavg+eo").knob is None
    assert methods.make("kffl+fair").knob is methods.make("fedavg+fair").knob is not None  # its own wins
    assert methods.make("fedavg+fair", level="local").knob is None


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_documentation_of_every_hyper_parameter(method: Method) -> None:
    assert type(method).__doc__
    for name, option in methods.options(method).items():
        assert option.description, f"{method.name}: the field {name} has no docstring under it"
