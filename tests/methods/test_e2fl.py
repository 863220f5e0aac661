"""FRL and E2FL: edge-popup, votes, inference and clustering, by hand and in NumPy."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import grad, vmap

import equifed as ef
from equifed import edge_popup, tree
from equifed.federation import Federation
from equifed.methods import E2FL, FRL
from equifed.methods import _supermask as supermask
from equifed.methods.e2fl import by_entropy, by_halving, by_loss, entropy_slope, rank_clusters
from equifed.protocol import Data, Task
from equifed.simulation import Simulation
from equifed.simulator import make_job

from .test_ifca import only

MLP = ef.models.MLP(hidden=(3,), activation="tanh", bias=False)
LOCAL = ef.Local(epochs=2, batch_size=8, learning_rate=0.1, momentum=0.9, weight_decay=1e-4)


def order(*edges: int) -> torch.Tensor:
    return torch.tensor(edges, dtype=torch.int32)


def vote_by_hand(rankings: list[list[int]]) -> list[int]:
    reputation = [sum(ranking.index(edge) for ranking in rankings) for edge in range(len(rankings[0]))]
    return sorted(range(len(reputation)), key=lambda edge: (reputation[edge], edge))


def task(module: nn.Module, outputs: int, groups: int = 2) -> Task:
    return Task(module, "classification", max(outputs, 2), groups, 1, 1, LOCAL, binary=outputs == 1)


def rows(x: Any, y: Any, of: Task, s: Any = None) -> Data:
    x, y = torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y)
    return Data(x, y, torch.zeros_like(y) if s is None else torch.as_tensor(s), torch.ones(len(y)), of)


# -- rankings ----------------------------------------------------------------------------------------------------------


def test_the_round_of_the_papers_figure() -> None:
    """Six edges: R_g = [2, 3, 0, 5, 1, 4] gives edge 4 the highest score (1.2) and edge 2 the lowest (0.2); a client
    with the ranking [4, 0, 2, 3, 5, 1] keeps the edges 3, 5 and 1."""
    initial = {"w": torch.tensor([[0.6, -0.2, 1.2, 0.4, -0.9, 0.8]])}
    scores = supermask.scores({"w": order(2, 3, 0, 5, 1, 4)}, initial)["w"]
    assert scores.tolist() == [pytest.approx([0.6, 0.9, 0.2, 0.4, 1.2, 0.8])]
    assert supermask.ranking({"w": scores})["w"].tolist() == [2, 3, 0, 5, 1, 4]
    assert supermask.positions(order(4, 0, 2, 3, 5, 1)).tolist() == [1, 5, 2, 3, 0, 4]
    mask = supermask.masks({"w": order(4, 0, 2, 3, 5, 1)}, initial, 0.5)["w"]
    assert mask.tolist() == [[False, True, False, True, False, True]]


def test_vote_by_hand() -> None:
    """Positions of the edges 0..3 in [0 1 2 3], [1 0 3 2], [3 0 1 2]: sums 0+1+1, 1+0+2, 2+3+3, 3+2+0."""
    rankings = torch.stack([order(0, 1, 2, 3), order(1, 0, 3, 2), order(3, 0, 1, 2)])
    weight = torch.tensor([[1.0, 1.0, 1.0], [0.0, 1.0, 0.0]])
    everyone, second = supermask.vote({"l": rankings}, weight)["l"].tolist()
    assert everyone == [0, 1, 3, 2] == vote_by_hand(rankings.tolist())
    assert second == [1, 0, 3, 2]


def test_equal_reputations_go_by_number() -> None:
    both = torch.stack([order(0, 1, 2), order(2, 1, 0)])
    assert supermask.vote({"l": both}, torch.ones(1, 2))["l"].tolist() == [[0, 1, 2]]


def test_the_footrule_by_hand() -> None:
    places = {"a": torch.stack([order(0, 1, 2), order(2, 1, 0)]), "b": torch.stack([order(1, 0), order(0, 1)])}
    centre = {"a": order(0, 1, 2), "b": order(0, 1)}
    assert supermask.footrule(places, centre).tolist() == [2, 4]


@pytest.mark.parametrize(("keep", "n", "expected"), [(0.5, 6, 3), (0.5, 7, 4), (0.1, 30, 3), (0.0, 9, 1), (1.0, 9, 9)])
def test_how_many_edges_remain(keep: float, n: int, expected: int) -> None:
    assert edge_popup.num_kept(keep, n) == expected
    swept = edge_popup.num_kept(torch.tensor(keep), n)
    assert int(swept) == expected
    values = torch.randperm(n).float()
    for share in (keep, torch.tensor(keep)):
        assert int((values >= edge_popup.threshold(values, share)).sum()) == expected


# -- edge-popup --------------------------------------------------------------------------------------------------------


def test_the_gradient_goes_straight_through_the_mask() -> None:
    """Network y = sum_i w_i m_i x_i with the two best of four edges; d loss / d s_i = w_i d loss / d (w_i m_i), also
    for the edges that are not in it."""
    w, s = torch.tensor([[1.0, -1.0, 1.0, -1.0]]), torch.tensor([[0.4, 0.1, 0.9, 0.2]])
    x, target = torch.tensor([1.0, 2.0, 3.0, 4.0]), 5.0

    def loss(scores: torch.Tensor) -> torch.Tensor:
        return (edge_popup.subnetwork({"l": w}, {"l": scores}, 0.5)["l"][0] @ x - target).square()

    output = 1 * 1.0 + 1 * 3.0  # edges 0 and 2
    assert float(loss(s)) == pytest.approx((output - target) ** 2)
    by_hand = [[2 * (output - target) * float(a * b) for a, b in zip(w[0], x, strict=True)]]
    assert grad(loss)(s).tolist() == by_hand
    assert vmap(grad(loss))(s[None])[0].tolist() == by_hand


def test_training_against_a_plain_loop(uneven: Federation) -> None:
    """One client, full batches: scores by SGD with momentum and decay, the mask cut again at every step."""
    one = ef.Federation.from_arrays(
        [tuple(part[uneven.train[0]] for part in uneven.rows[:3])], test=tuple(p[:5] for p in uneven.rows[:3])
    )
    local = dataclasses.replace(LOCAL, batch_size=None, epochs=5, learning_rate=0.5)
    bare = nn.Linear(4, 1, bias=False)
    initial = MLP.initialise(bare, np.random.default_rng(0))
    result = ef.simulate(
        FRL(), one, model=bare, rounds=1, local=local, seeds=[0],
        initial_parameters={"weight": initial["weight"].numpy()},
    )  # fmt: skip
    x, y, _ = (part.astype(float) for part in (one.rows.x, one.rows.y, one.rows.s))
    x, y = x[one.train[0]], y[one.train[0]]
    p = initial["weight"].numpy().ravel().astype(float)
    w, s, speed = np.where(p < 0, -1, 1) * np.sqrt(2 / 4), np.abs(p), np.zeros(4)
    for _ in range(5):
        mask = np.zeros(4)
        mask[np.argsort(s)[2:]] = 1
        slope = x.T @ (1 / (1 + np.exp(-x @ (w * mask))) - y) / len(y)
        speed = 0.9 * speed + w * slope + 1e-4 * s
        s = s - 0.5 * speed
    mask = np.zeros(4)
    mask[np.argsort(s)[2:]] = 1
    np.testing.assert_allclose(result.parameters[0]["weight"].ravel(), w * mask, rtol=1e-6)


def test_the_network_is_rebuilt_from_the_seed_and_never_changes(uneven: Federation) -> None:
    job = make_job(E2FL(), uneven, MLP, ef.RunSettings(rounds=3, clients_per_round=4, local=LOCAL, seeds=[0, 5]))
    simulation = Simulation(job)
    begin = tree.map(torch.clone, simulation.engine.start().server.w)
    for step in simulation.rounds():
        for name, value in step.state.server.w.items():
            assert torch.equal(value, begin[name])
    # what a client makes from the seed is what the server holds, and seeds differ
    for r in range(2):
        for name, value in supermask.weights(job.initial[r]).items():
            assert torch.equal(value, begin[name][r])
    assert not torch.equal(begin["0.weight"][0], begin["0.weight"][1])
    sizes = {name: value.abs().unique() for name, value in begin.items()}
    np.testing.assert_allclose(sizes["0.weight"], [np.sqrt(2 / 4)], rtol=1e-6)
    np.testing.assert_allclose(sizes["2.weight"], [np.sqrt(2 / 3)], rtol=1e-6)


def test_signs_and_scores_are_independent() -> None:
    p = MLP.initialise(MLP.build((4000,), 1), np.random.default_rng(1))["0.weight"]
    assert abs(float(torch.corrcoef(torch.stack([p.sign().ravel(), p.abs().ravel()]))[0, 1])) < 0.03
    assert abs(float((p < 0).float().mean()) - 0.5) < 0.02


# -- the two votes -----------------------------------------------------------------------------------------------------


def replies(rankings: list[list[int]], groups: list[int], present: list[float]) -> dict[str, Any]:
    return {
        "ranking": {"l": torch.tensor(rankings, dtype=torch.int32)},
        "group": torch.tensor(groups, dtype=torch.int16),
        "present": torch.tensor(present),
    }


def begin(groups: int, edges: int) -> tuple[E2FL, Any]:
    method = E2FL()
    module = nn.Linear(edges, 1, bias=False)
    of = dataclasses.replace(task(module, 1), num_client_groups=groups)
    return method, method.init(of, {"l": torch.linspace(-1, 1, edges + 1)[:-1][None]})


def test_every_group_has_one_vote() -> None:
    """Five clients of group 0 against one of group 1 and one of group 2, who agree with each other."""
    method, server = begin(3, 4)
    many, few = [0, 1, 2, 3], [3, 2, 1, 0]
    server = method.count_votes(server, replies([many] * 5 + [few] * 2, [0] * 5 + [1, 2], [1.0] * 7), None)
    assert server.R_q["l"].tolist() == [many, few, few]
    assert server.R["l"].tolist() == few == vote_by_hand([many, few, few])
    # the mask of the global ranking is the global model; weights have size sqrt(2 / 4)
    assert (server.theta["l"] != 0).tolist() == [[True, True, False, False]]
    assert server.M_q["l"][0].tolist() == [[False, False, True, True]]


def test_an_absent_group_keeps_its_ranking_and_its_vote() -> None:
    method, server = begin(2, 4)
    up, down = [0, 1, 2, 3], [3, 2, 1, 0]
    server = method.count_votes(server, replies([up, down], [0, 1], [1.0, 1.0]), None)
    # the one of group 1 drops out; a client without rows says group -1 and has no vote
    swap = [1, 0, 2, 3]
    server = method.count_votes(server, replies([swap, up, up], [0, 1, -1], [1.0, 0.0, 1.0]), None)
    assert server.R_q["l"].tolist() == [swap, down]
    assert server.R["l"].tolist() == vote_by_hand([swap, down])


def test_frl_is_e2fl_with_one_group(uneven: Federation) -> None:
    alone = dataclasses.replace(uneven, client_groups=np.zeros(uneven.num_clients, np.int64))
    some = {"model": MLP, "rounds": 4, "local": LOCAL, "seeds": [1]}
    filled = np.flatnonzero(uneven.train.sizes > 0)
    # clients without rows vote in FRL (for what they got), so compare where all have some
    fed = only(alone, filled)
    a, b = ef.simulate(FRL(), fed, **some), ef.simulate(E2FL(), fed, **some)  # type: ignore[arg-type]
    for name, value in a.parameters[1].items():
        np.testing.assert_array_equal(value, b.parameters[1][name])


def test_a_client_with_rows_of_several_groups_sends_a_ranking_for_each() -> None:
    """Its ranking of group g is that of a client with the rows of group g alone, in full batches."""
    rng = np.random.default_rng(3)
    x, s = rng.normal(size=(30, 4)).astype(np.float32), np.repeat([0, 1, 2], 10)
    y = (x[:, 0] > 0).astype(int)
    y[s == 1] = 1 - y[s == 1]
    local = dataclasses.replace(LOCAL, batch_size=None, epochs=4, learning_rate=1.0)
    whole = ef.Federation.from_arrays([(x, y, s), (x[s < 2], y[s < 2], s[s < 2])], test=(x, y, s))
    cut = ef.Federation.from_arrays(
        [(x[s == g], y[s == g], s[s == g]) for g in range(3)], test=(x, y, s), client_groups=[0, 1, 2]
    )
    states = []
    for method, fed in ((E2FL(groups="sensitive"), whole), (E2FL(), cut)):
        job = make_job(method, fed, MLP, ef.RunSettings(rounds=1, local=local, seeds=[4]))
        states.append(next(iter(Simulation(job).rounds())).state.server)
    # both clients' rankings of groups 0 and 1 are the same, and the second has none of group 2
    for a, b in zip(tree.leaves(states[0].R_q), tree.leaves(states[1].R_q), strict=True):
        assert torch.equal(a, b)
    assert any(len({tuple(row) for row in leaf[0].tolist()}) > 1 for leaf in states[0].R_q.values())


# -- groups that nobody knows ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three_masks() -> tuple[Any, Any, Data]:
    module = nn.Linear(6, 3, bias=False)
    rng = torch.Generator().manual_seed(0)
    w = {"weight": torch.where(torch.rand(3, 6, generator=rng) < 0.5, -1.0, 1.0)}
    M_q = {"weight": torch.rand(5, 3, 6, generator=rng) < 0.5}
    x = torch.randn(12, 6, generator=rng)
    return M_q, w, rows(x, torch.randint(3, (12,), generator=rng), task(module, 3))


def entropy(alpha: np.ndarray, M: np.ndarray, w: np.ndarray, x: np.ndarray) -> float:
    z = x @ (np.tensordot(alpha, M, 1) * w).T
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return float(-(p * np.log(p)).sum(1).mean())


def slopes(active: np.ndarray, M: np.ndarray, w: np.ndarray, x: np.ndarray) -> np.ndarray:
    alpha, step = active / active.sum(), 1e-6
    each = np.eye(len(alpha)) * step
    return np.array([(entropy(alpha + e, M, w, x) - entropy(alpha - e, M, w, x)) / (2 * step) for e in each])


def test_inference_against_numpy(three_masks: tuple[Any, Any, Data]) -> None:
    M_q, w, data = three_masks
    M, W, x = (value.numpy().astype(float) for value in (M_q["weight"], w["weight"], data.x))
    losses = []
    for mask in M:
        z = x @ (mask * W).T
        losses.append(np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(12), data.y.numpy()]))
    assert int(by_loss(M_q, w, data)) == int(np.argmin(losses))
    ones = np.ones(5)
    np.testing.assert_allclose(entropy_slope(torch.ones(5), M_q, w, data), slopes(ones, M, W, x), atol=1e-4)
    assert int(by_entropy(M_q, w, data)) == int(np.argmin(slopes(ones, M, W, x)))
    left = list(range(5))
    while len(left) > 1:
        active = np.isin(np.arange(5), left).astype(float)
        slope = slopes(active, M, W, x)
        left = sorted(left, key=lambda q: slope[q])[: -(-len(left) // 2)]
    assert int(by_halving(M_q, w, data)) == left[0]


def test_clusters_of_rankings() -> None:
    """Three kinds of rankings, each a few swaps from its centre, of unequal number."""
    rng = np.random.default_rng(5)
    centres = [rng.permutation(40) for _ in range(3)]
    truth = np.repeat([0, 1, 2], [12, 5, 2])
    rankings = []
    for kind in truth:
        ranking = centres[kind].copy()
        for i in rng.integers(0, 39, 6):
            ranking[[i, i + 1]] = ranking[[i + 1, i]]
        rankings.append(ranking)
    R = {"l": torch.from_numpy(np.stack(rankings).astype(np.int32))}
    found = rank_clusters(R, torch.ones(19, dtype=torch.bool), 3).numpy()
    assert len({(a, b) for a, b in zip(truth, found, strict=True)}) == 3
    # and without some of them
    there = torch.ones(19, dtype=torch.bool)
    there[[0, 3, 13]] = False
    part = rank_clusters(R, there, 3).numpy()
    assert part[[0, 3, 13]].tolist() == [-1, -1, -1]
    assert len({(a, b) for a, b in zip(truth[there], part[there.numpy()], strict=True)}) == 3


def test_clusters_of_too_few_or_equal_rankings() -> None:
    two = {"l": torch.stack([order(0, 1, 2), order(2, 1, 0)])}
    found = rank_clusters(two, torch.ones(2, dtype=torch.bool), 4).tolist()
    assert sorted(found) == [0, 1]
    same = {"l": order(1, 0, 2).repeat(5, 1)}
    assert rank_clusters(same, torch.ones(5, dtype=torch.bool), 3).tolist() == [0] * 5
    nobody = rank_clusters(same, torch.zeros(5, dtype=torch.bool), 3)
    assert nobody.tolist() == [-1] * 5


def test_an_empty_cluster_starts_anew() -> None:
    """Two centres start so close that the vote of all takes one cluster's members away; no cluster stays empty."""
    rng = np.random.default_rng(0)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        R = {"l": torch.from_numpy(np.stack([rng.permutation(5) for _ in range(9)]).astype(np.int32))}
        found = rank_clusters(R, torch.ones(9, dtype=torch.bool), 4).tolist()
        assert len(set(found)) == min(4, len({tuple(r) for r in R["l"].tolist()}))


# -- bytes, errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["lanes", "reference"])
def test_recorded_bytes_are_packed_bytes(engine: str, uneven: Federation) -> None:
    """Layers of 12 and 3 edges: rankings 12 x 4 bits and 3 x 2 bits, masks of 3 groups 36 and 9 bits."""
    ranking, masks = 6 + 1, 5 + 2
    some: Any = {"model": MLP, "rounds": 1, "local": LOCAL, "seeds": [0, 1], "engine": engine}
    frl = ef.simulate(FRL(), uneven, **some).messages.iloc[0]
    assert (frl["bytes_down"], frl["bytes_up"]) == (ranking, ranking)
    lowest = ef.simulate(E2FL(groups="lowest-loss", num_groups=3), uneven, **some).messages.set_index("phase")
    assert lowest.loc["train", ["bytes_down", "bytes_up"]].tolist() == [ranking + masks, ranking + 2]
    assert lowest.loc["choose", ["bytes_down", "bytes_up"]].tolist() == [masks, 0]


@pytest.mark.parametrize(
    ("method", "model", "words"),
    [
        (FRL(), ef.models.MLP(hidden=(3,)), "biases|without biases"),
        (E2FL(groups="lowest-loss"), MLP, "must be the number of groups"),
        (E2FL(num_groups=3), MLP, "come from the data"),
        (E2FL(groups="binary", num_groups=0), MLP, "num_groups"),
        (FRL(), ef.models.MLP(hidden=(3,), init="zeros", bias=False), "all initial values"),
    ],
)
def test_settings_that_cannot_be(method: Any, model: Any, words: str, uneven: Federation) -> None:
    with pytest.raises(ef.ConfigError, match=words):
        ef.simulate(method, uneven, model=model, rounds=1)


def test_known_groups_have_to_be_known(uneven: Federation) -> None:
    without = dataclasses.replace(uneven, client_groups=None)
    with pytest.raises(ef.ConfigError, match="no client groups"):
        ef.simulate(E2FL(), without, model=MLP, rounds=1)
