"""Post-processing against SciPy's linear programmes, plain NumPy and simulated decisions."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

import equifed as ef
from equifed.federation import Federation
from equifed.methods._rules import equal_cost, equal_odds
from equifed.methods.postprocess import CalibratedEqualizedOdds, EqualizedOdds
from equifed.simulation import Simulation
from equifed.simulator import make_job


def counts_of(y: np.ndarray, s: np.ndarray, decision: np.ndarray, groups: int = 2) -> np.ndarray:
    counts = np.zeros((groups, 2, 2))
    np.add.at(counts, (s, y, decision), 1)
    return counts


def programme(counts: np.ndarray) -> float:
    """The least expected number of errors with equal TPR and FPR, by HiGHS."""
    G = len(counts)
    fpr, tpr = counts[:, 0, 1] / counts[:, 0].sum(1), counts[:, 1, 1] / counts[:, 1].sum(1)
    cost, base = np.zeros(2 * G), 0.0
    for g in range(G):  # false positives: p of the predicted positives and q of the others; the same for positives
        cost[2 * g : 2 * g + 2] = counts[g, 0, ::-1] - counts[g, 1, ::-1]
        base += counts[g, 1].sum()
    equal = np.zeros((2 * (G - 1), 2 * G))
    for g in range(1, G):
        equal[2 * g - 2, [0, 1, 2 * g, 2 * g + 1]] = [tpr[0], 1 - tpr[0], -tpr[g], tpr[g] - 1]
        equal[2 * g - 1, [0, 1, 2 * g, 2 * g + 1]] = [fpr[0], 1 - fpr[0], -fpr[g], fpr[g] - 1]
    found = linprog(cost, A_eq=equal, b_eq=np.zeros(2 * (G - 1)), bounds=(0, 1), method="highs")
    assert found.success
    return found.fun + base


def outcome(counts: np.ndarray, rates: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Expected FPR and TPR of each group, and the expected number of errors, after the random decisions."""
    share = counts / counts.sum(-1, keepdims=True)
    positive = share[..., 1] * rates[:, None, 0] + share[..., 0] * rates[:, None, 1]  # [G, label]
    number = counts.sum(-1)
    return (
        positive[:, 0],
        positive[:, 1],
        float((positive[:, 0] * number[:, 0] + (1 - positive[:, 1]) * number[:, 1]).sum()),
    )


@pytest.mark.parametrize("groups", [2, 3, 4])
def test_equal_odds_is_the_programmes_optimum(groups: int) -> None:
    rng = np.random.default_rng(groups)
    for _ in range(60):
        counts = rng.integers(1, 60, size=(groups, 2, 2)).astype(float) * rng.choice([1.0, 1, 1, 0], (groups, 2, 2))
        counts[counts.sum(-1) == 0] = 1  # both labels, though perhaps one decision only
        rates = equal_odds(torch.tensor(counts)).numpy()
        fpr, tpr, errors = outcome(counts, rates)
        assert ((rates >= 0) & (rates <= 1)).all()
        assert np.ptp(fpr) < 1e-9
        assert np.ptp(tpr) < 1e-9
        assert errors == pytest.approx(programme(counts), abs=1e-6)


@pytest.mark.parametrize(
    "counts",
    [
        [[[9, 1], [2, 8]], [[5, 5], [5, 5]]],  # decisions that say nothing in one group
        [[[4, 6], [4, 6]], [[7, 3], [7, 3]]],  # in both
        [[[9, 1], [9, 1]], [[1, 9], [9, 1]]],  # worse than nothing: better turned round
        [[[9, 0], [0, 9]], [[4, 0], [0, 6]]],  # perfect
        [[[9, 0], [9, 0]], [[4, 0], [6, 0]]],  # constant
    ],
)
def test_equal_odds_at_its_corners(counts: list) -> None:
    table = np.array(counts, dtype=float)
    rates = equal_odds(torch.tensor(table)).numpy()
    fpr, tpr, errors = outcome(table, rates)
    assert np.ptp(fpr) < 1e-9
    assert np.ptp(tpr) < 1e-9
    assert errors == pytest.approx(programme(table), abs=1e-9)


def test_groups_without_both_labels_stay_as_they_are() -> None:
    usable = [[8.0, 4], [3, 9]]
    one_label = [[0.0, 0], [3, 9]]
    rates = equal_odds(torch.tensor([usable, one_label], dtype=torch.float64))
    assert rates.tolist() == [[1, 0], [1, 0]]  # one group left: nothing to equalise
    rates = equal_odds(torch.tensor([usable, one_label, [[5.0, 5], [2, 7]]], dtype=torch.float64))
    assert rates[1].tolist() == [1, 0]
    pair = equal_odds(torch.tensor([usable, [[5.0, 5], [2, 7]]], dtype=torch.float64))
    torch.testing.assert_close(rates[[0, 2]], pair)
    assert equal_odds(torch.zeros(2, 2, 2, dtype=torch.float64)).tolist() == [[1, 0], [1, 0]]


def calibrated_rows(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores on a grid that are exactly calibrated within each group, (score, y, s)."""
    score = np.repeat([0.1, 0.3, 0.6, 0.9, 0.35, 0.75], n)
    s = np.repeat([0, 0, 0, 0, 1, 1], n)
    y = np.concatenate([np.arange(n) < round(p * n) for p in (0.1, 0.3, 0.6, 0.9, 0.35, 0.75)]).astype(int)
    return score, y, s


@pytest.mark.parametrize("cost", ["fnr", "fpr", "weighted"])
def test_equal_cost_equals_the_costs_and_keeps_calibration(cost: str) -> None:
    score, y, s = calibrated_rows(100)
    sums = np.zeros((2, 2, 2))
    np.add.at(sums, (s, y), np.stack([np.ones_like(score), score], 1))
    m, base = equal_cost(torch.tensor(sums), cost).numpy().T
    costs, expected = [], []
    for g in (0, 1):
        own, label = score[s == g], y[s == g]
        mixed = (1 - m[g]) * own + m[g] * base[g]  # the expected score of each row
        fn, fp = 1 - mixed[label == 1].mean(), mixed[label == 0].mean()
        rate = label.mean()
        costs.append({"fnr": fn, "fpr": fp, "weighted": rate * fn + (1 - rate) * fp}[cost])
        expected.append(rate)
        # calibrated, over all random numbers: what has a score comes true as often as it says
        method = CalibratedEqualizedOdds(ef.methods.FedAvg(), cost=cost)
        rates = torch.tensor([[m[g], base[g]]]).expand(len(own), 2)
        draws = (np.arange(50) + 0.5) / 50
        new = np.stack([method.adjust_scores(rates, torch.tensor(own), u).numpy() for u in torch.tensor(draws)])
        assert len(np.unique(new)) == len(np.unique(own)) + (m[g] > 0)
        for value in np.unique(new):
            assert np.broadcast_to(label, new.shape)[new == value].mean() == pytest.approx(value)
    assert base.tolist() == pytest.approx(expected)
    assert 0 < m.max() < 1
    assert m.min() == 0
    assert costs[0] == pytest.approx(costs[1], abs=1e-9)


def test_costs_that_cannot_be_equalised() -> None:
    # group 0 is always wrong, which group 1's base rate is not: the nearest is to give it all of its base rate
    sums = torch.tensor([[[10.0, 9.0], [10, 1.0]], [[10, 2.0], [10, 8.0]]], dtype=torch.float64)
    assert equal_cost(sums, "fnr").tolist() == [[0, 0.5], [1, 0.5]]
    one_label = torch.tensor([[[0.0, 0.0], [10, 1.0]], [[10, 2.0], [10, 8.0]]], dtype=torch.float64)
    assert equal_cost(one_label, "fnr")[:, 0].tolist() == [0, 0]
    # a base rate that is no dearer than the scores cannot raise a cost
    helpless = torch.tensor([[[10.0, 5.0], [10, 1.0]], [[10, 7.0], [10, 3.0]]], dtype=torch.float64)
    assert equal_cost(helpless, "fnr")[1, 0] == 0


# -- in a run ----------------------------------------------------------------------------------------------------------

SETTINGS = {
    "model": ef.models.Logistic(), "rounds": 3, "local": ef.Local(epochs=2, batch_size=8, learning_rate=0.2),
    "seeds": [4],
}  # fmt: skip


def last_state(method: ef.methods.Method, fed: Federation):  # type: ignore[no-untyped-def]
    settings = {name: value for name, value in SETTINGS.items() if name != "model"}
    job = make_job(method, fed, SETTINGS["model"], ef.RunSettings(**settings))  # type: ignore[arg-type]
    *_, step = Simulation(job).rounds()
    return job, step


def decisions(parameters: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    return (x @ parameters["0.weight"].ravel() + parameters["0.bias"].ravel()[0] > 0).astype(int)


@pytest.mark.parametrize("fit", ["client", "global"])
def test_rates_are_fitted_on_the_final_models_decisions(uneven: Federation, fit: str) -> None:
    plain = ef.simulate(ef.methods.FedAvg(), uneven, **SETTINGS)  # type: ignore[arg-type]
    method = EqualizedOdds(ef.methods.FedAvg(), fit=fit)
    processed = ef.simulate(method, uneven, **SETTINGS)  # type: ignore[arg-type]
    for name, value in plain.parameters[4].items():
        np.testing.assert_array_equal(value, processed.parameters[4][name])
    _, step = last_state(method, uneven)
    x, y, s = uneven.rows.x, uneven.rows.y, uneven.rows.s
    own = []
    for k in range(uneven.num_clients):
        part = uneven.train[k]
        own.append(counts_of(y[part], s[part], decisions(plain.parameters[4], x[part])))
    if fit == "global":
        expected = equal_odds(torch.tensor(np.sum(own, axis=0)))
        torch.testing.assert_close(step.state.server.own["rates"][0], expected)
    else:
        expected = torch.stack([equal_odds(torch.tensor(counts)) for counts in own])
        torch.testing.assert_close(step.state.clients.own["rates"][0], expected)
    messages = processed.messages.set_index("phase")
    assert messages.loc["fit", "up"] == ("decisions" if fit == "global" else "")
    assert messages.loc["fit", "down"] == "theta"
    assert set(messages["gather"]) == {"sum"}


def test_random_decisions_have_the_fitted_rates() -> None:
    """On many test rows the measured rates are equal for both groups, and the same seed decides the same."""
    rng = np.random.default_rng(0)

    def rows(n: int) -> tuple[np.ndarray, ...]:
        x, s = rng.normal(size=(n, 2)).astype(np.float32), rng.integers(0, 2, n)
        return x, (x[:, 0] + (0.6 * s - 0.2) + 0.7 * rng.normal(size=n) > 0).astype(int), s

    shared = rows(20_000)
    fed = ef.Federation.from_arrays([rows(3000), rows(3000)], test=shared)
    settings = {**SETTINGS, "local": ef.Local(epochs=2, batch_size=64, learning_rate=0.2)}
    plain = ef.simulate(ef.methods.FedAvg(), fed, **settings).final()  # type: ignore[arg-type]
    method = EqualizedOdds(ef.methods.FedAvg(), fit="global")
    result = ef.simulate(method, fed, **settings)  # type: ignore[arg-type]
    again = ef.simulate(method, fed, **settings)  # type: ignore[arg-type]
    assert plain["equalized_odds_difference"].item() > 0.1
    assert result.final()["equalized_odds_difference"].item() < 0.04  # the fit's and the draw's sampling error
    assert result.final()["accuracy"].item() > 0.6
    assert result.metrics["value"].to_numpy().tobytes() == again.metrics["value"].to_numpy().tobytes()


def test_predict_and_adjust_can_be_used_afterwards(uneven: Federation) -> None:
    method = CalibratedEqualizedOdds(ef.methods.FedAvg(), fit="global")
    job, step = last_state(method, uneven)
    server, client = (ef_take(part) for part in (step.state.server, step.state.clients))
    x, s = torch.tensor(uneven.rows.x[:50]), torch.tensor(uneven.rows.s[:50])
    score = method.predict(job.task, server, client, x)
    never = method.adjust(job.task, server, client, score, s, torch.ones(50))
    torch.testing.assert_close(never, score)
    always = method.adjust(job.task, server, client, score, s, torch.zeros(50) - 1)
    torch.testing.assert_close(always, server.own["rates"][s, 1].to(score.dtype))


def ef_take(part):  # type: ignore[no-untyped-def]
    from equifed import tree

    return tree.take(part, 0)


def test_names_options_and_errors(uneven: Federation) -> None:
    method = ef.methods.make("fedfair+eo", epsilon=0.3, fit="global")
    assert method == EqualizedOdds(ef.methods.FedFair(epsilon=0.3), fit="global")
    assert method.with_hyper(epsilon=0.1, fit="client") == EqualizedOdds(ef.methods.FedFair(epsilon=0.1))
    assert (method.name, method.hyper["epsilon"], method.hyper["fit"]) == ("fedfair+eo", 0.3, "global")
    known = ef.methods.options(method)
    assert known.keys() == method.hyper.keys()
    assert known["epsilon"].description
    assert known["fit"].description
    with pytest.raises(ef.ConfigError, match=r"Unknown wrapper '\+oe'.*Known: \+ceo, \+ditto, \+eo"):
        ef.methods.make("fedavg+oe")
    with pytest.raises(ef.ConfigError, match="Unknown method 'fedavgg'"):
        ef.methods.make("fedavgg+eo")
    with pytest.raises(ef.ConfigError, match="is already post-processed"):
        EqualizedOdds(CalibratedEqualizedOdds(ef.methods.FedAvg()))
    with pytest.raises(ef.ConfigError, match=r"^fit must be one of 'client', 'global'"):
        ef.methods.make("fedavg+eo", fit="both")
    with pytest.raises(ef.ConfigError, match=r"fit must be one of 'client', 'global', got 'both'"):
        ef.simulate(EqualizedOdds(ef.methods.FedAvg(), fit="both"), uneven, **SETTINGS)  # type: ignore[arg-type]
    with pytest.raises(ef.ConfigError, match="wraps a method"):
        EqualizedOdds("fedavg")  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    numbers = [(rng.normal(size=(9, 2)), rng.normal(size=9), rng.integers(0, 2, 9)) for _ in range(2)]
    fed = ef.Federation.from_arrays(numbers, task="regression")
    with pytest.raises(ef.ConfigError, match=r"fedavg\+eo is for binary labels"):
        ef.simulate(EqualizedOdds(ef.methods.FedAvg()), fed, model=ef.models.Linear(), rounds=1)


def test_a_sweep_over_the_inner_methods_hyper_parameter(uneven: Federation) -> None:
    swept = ef.simulate(EqualizedOdds(ef.methods.FedProx()), uneven, over={"mu": [0.0, 1.0]}, **SETTINGS)  # type: ignore[arg-type]
    alone = ef.simulate(EqualizedOdds(ef.methods.FedProx(1.0)), uneven, **SETTINGS)  # type: ignore[arg-type]
    for name, value in alone.parameters[4].items():
        np.testing.assert_allclose(value, swept.parameters[(1.0, 4)][name], rtol=2e-6, atol=2e-6)


BINARY = [name for name, kind in ef.methods.REGISTRY.items() if "binary" in kind.label_kinds]
WAYS = [("eo", "client"), ("ceo", "global"), ("eo", "global"), ("ceo", "client")]
_PLAIN: dict[str, ef.Result] = {}


@pytest.mark.parametrize(
    ("name", "rule", "fit"),
    [
        pytest.param(name, *way, marks=() if place % 8 == 2 * way_place else pytest.mark.full)
        for place, name in enumerate(BINARY)
        for way_place, way in enumerate(WAYS)
    ],
)
@pytest.mark.sample(8)
def test_every_method_can_be_post_processed(uneven: Federation, name: str, rule: str, fit: str) -> None:
    """One way for each method, the others in `make test-full`."""
    settings: dict[str, Any] = {**SETTINGS, "rounds": 1}
    if name in ("frl", "e2fl", "fedper", "fedrep"):  # they rank edges, and biases are none, or have a head
        settings["model"] = ef.models.MLP(hidden=(4,), bias=False)
    if name not in _PLAIN:
        _PLAIN[name] = ef.simulate(ef.methods.make(name), uneven, **settings)
    plain = _PLAIN[name]
    result = ef.simulate(ef.methods.make(f"{name}+{rule}", fit=fit), uneven, **settings)
    assert np.isfinite(result.final()["accuracy"].item())
    assert result.parameters[4].keys() == plain.parameters[4].keys()
    for field, value in plain.parameters[4].items():
        np.testing.assert_array_equal(value, result.parameters[4][field])


def test_a_hyper_parameter_that_both_have_is_refused() -> None:
    @dataclasses.dataclass(frozen=True)
    class Clashing(ef.methods.FedAvg):
        fit: str = "well"

    with pytest.raises(ef.ConfigError, match=r"fedavg\+eo: fedavg and EqualizedOdds both have a hyperparameter fit"):
        EqualizedOdds(Clashing())


@pytest.mark.parametrize("fit", ["client", "global"])
def test_a_result_predicts_with_the_fitted_rates(uneven: Federation, fit: str) -> None:
    settings = {**SETTINGS, "seeds": [4, 5]}
    result = ef.simulate(EqualizedOdds(ef.methods.FedAvg(), fit=fit), uneven, **settings)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    x, s = np.repeat(rng.normal(size=(2, 4)), 5000, axis=0).astype(np.float32), np.tile([0, 1], 5000)
    more = {"client": "silo-2"} if fit == "client" else {}
    decided = result.predict(x, s=s, run=4, **more)
    final = result.final_states[4]
    rates = (final.clients.own["rates"][2] if fit == "client" else final.server.own["rates"]).numpy()
    positive = decisions(result.parameters[4], x)
    for g in (0, 1):
        for part in (0, 1):
            own = (s == g) & (positive == part)
            if own.any():
                assert decided[own].mean() == pytest.approx(rates[g, 1 - part], abs=0.04)
    np.testing.assert_array_equal(decided, result.predict(x, s=np.array(uneven.groups)[s], run=4, **more))
    assert (rates % 1).max() > 0
    assert (decided != result.predict(x, s=s, run=4, draw=1, **more)).any()
    with pytest.raises(ef.ConfigError, match="run must be one of the keys of `parameters`"):
        result.predict(x, s=s, **more)
    with pytest.raises(ef.ConfigError, match=r"fedavg\+eo decides by a row's group"):
        result.predict(x, run=5, **more)
    with pytest.raises(ef.ConfigError, match="s holds the group code 7; the codes are 0 to 1"):
        result.predict(x, s=s + 7, run=5, **more)
    with pytest.raises(ef.DataError, match="x must be rows of the federation's features"):
        result.predict(x[:, 1:], s=s, run=5, **more)
    if fit == "client":
        with pytest.raises(ef.ConfigError, match="clients have models of their own: name one of them"):
            result.predict(x, s=s, run=5)


@pytest.mark.parametrize("name", ["local", "separate-training"])
def test_models_of_clients_inside_post_processing_are_reachable(uneven: Federation, name: str) -> None:
    plain = ef.simulate(ef.methods.make(name), uneven, **SETTINGS)  # type: ignore[arg-type]
    processed = ef.simulate(ef.methods.make(f"{name}+eo"), uneven, **SETTINGS)  # type: ignore[arg-type]
    assert plain.parameters[4].keys() == processed.parameters[4].keys() != set()
    x = uneven.rows.x[:30]
    score = plain.predict(x, client="silo-0")
    own = {field: value[0] for field, value in plain.parameters[4].items()}
    np.testing.assert_array_equal(score > 0.5, decisions(own, x))
