"""FedFACT against plain NumPy: its costs, prices and rounds, its limits, and what it is for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import nn

import equifed as ef
from equifed.errors import ConfigError
from equifed.federation import Federation
from equifed.methods import FedAvg, FedFACT, LocalOnly
from equifed.methods._parity import NOTIONS
from equifed.methods._prices import charges, differences, row_costs
from equifed.methods.fedfact import Client, shift_weight
from equifed.protocol import Data, Task
from equifed.settings import Local, RunSettings
from equifed.simulator import make_job
from methods.plain import client, sigmoid

MODEL = ef.models.Logistic()
RATE, EPOCHS = 0.4, 2
STEPS = Local(epochs=EPOCHS, batch_size=None, learning_rate=RATE)


def task_of(classes: int, groups: int, inputs: int = 2) -> Task:
    outputs = 1 if classes == 2 else classes
    module = nn.Linear(inputs, outputs).double()
    return Task(module, "classification", classes, groups, 1, 10, Local(), binary=classes == 2)


def data_of(task: Task, x: Any, y: Any, s: Any) -> Data:
    y, s = torch.as_tensor(y), torch.as_tensor(s)
    return Data(torch.as_tensor(x, dtype=torch.double), y, s, torch.ones(len(y), dtype=torch.double), task)


# -- costs -------------------------------------------------------------------------------------------------------------


def test_costs_of_the_hand_check() -> None:
    """Half of the rows are in each group; .2 is the paper's price of (group 0, decision 1), .2 p_1 that of the pair."""
    method, counts = FedFACT(), torch.tensor([[3.0, 2.0], [4.0, 1.0]])
    prices = torch.tensor([[[0.0, 0.1], [0.0, 0.0]]])
    M = np.eye(2) - charges(method.notion, prices, counts).numpy()
    np.testing.assert_allclose(M, [[[1, -0.2], [0, 0.8]], [[1, 0.2], [0, 1.2]]], atol=1e-7)
    data = data_of(task_of(2, 2), np.zeros((4, 2)), [0, 1, 0, 1], [0, 0, 1, 1])
    cost = FedFACT(level="global").costs({"l": prices, "counts": counts}, (), data).reshape(2, 2, 2).numpy()
    assert (cost >= 0).all()
    for eta, decided in [(0.59, [0, 1]), (0.61, [1, 1]), (0.39, [0, 0]), (0.41, [0, 1])]:
        assert (np.array([1 - eta, eta]) @ cost).argmax(-1).tolist() == decided


@pytest.mark.parametrize("notion", ["demographic_parity", "equal_opportunity"])
def test_of_two_groups_they_are_the_papers(notion: str) -> None:
    """Whose constraints are on the distance of a group from all: M = I - (1/p_ak) (l D + m D_k), D of group 0 and the
    decision 1."""
    rng = np.random.default_rng(0)
    rows = rng.integers(1, 20, size=(3, 2, 2)).astype(float)  # of client, group and label
    n, k, price, own_price = rows.sum(), 1, 0.3, 0.2
    labels = [0, 1] if notion == "demographic_parity" else [1]
    base = rows[:, :, labels].sum(2)  # [K, G], what the rate is a share of
    expected = np.zeros((2, 2, 2))
    for a in (0, 1):
        # d/dC of r_0 - r over all clients, and of r_0k - r_k at this one, C the shares of the client's group
        D = rows[k, a].sum() * ((a == 0) / base[:, 0].sum() - 1 / base.sum())
        D_k = rows[k, a].sum() * ((a == 0) / base[k, 0] - 1 / base[k].sum())
        p_ak, p_k = rows[k, a].sum() / n, rows[k].sum() / n
        expected[a] = np.eye(2)
        expected[a][labels, 1] -= (price * D + p_k * own_price * D_k) / p_ak
    # r_0 - r = (share of group 1) (r_0 - r_1)
    of_pair = price * base[:, 1].sum() / base.sum(), own_price * base[k, 1] / base[k].sum()
    l, m = (torch.tensor([[[0.0, each], [0.0, 0.0]]]).double() for each in of_pair)
    method, counts = FedFACT(notion), torch.tensor(rows)
    found = np.eye(2) - charges(method.notion, l, counts.sum(0)).numpy() - charges(method.notion, m, counts[k]).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_best_scores_decide_by_the_costs(classes: int) -> None:
    """The loss has its least at p proportional to sum_y eta_y Mbar_yj, whose largest entry is that of M' eta."""
    rng = np.random.default_rng(classes)
    task = task_of(classes, 3)
    y, s = (each.ravel() for each in np.meshgrid(np.arange(classes), np.arange(3)))
    data = data_of(task, np.zeros((len(y), 2)), y, s)
    method = FedFACT("equalized_odds", level="global")
    prices, counts = rng.random((2 if classes == 2 else 9, 3, 3)), rng.integers(1, 9, (3, classes))
    down = {"l": torch.tensor(prices), "counts": torch.tensor(counts).double()}
    cost = method.costs(down, (), data)
    M = np.eye(classes) - charges(method.notion, down["l"], down["counts"]).numpy()
    assert (M < 0).any()
    outputs = 1 if classes == 2 else classes
    for a in range(3):
        eta = rng.dirichlet(np.ones(classes))

        def risk(logits: np.ndarray, a: int = a, eta: np.ndarray = eta) -> float:
            theta = {"weight": torch.zeros(outputs, 2).double(), "bias": torch.tensor(logits)}
            return float(torch.tensor(eta) @ row_costs(theta, cost, data)[s == a])

        logits = optimize.minimize(risk, np.zeros(outputs), tol=1e-12).x
        p = np.exp(np.r_[0, logits] if classes == 2 else logits)
        wanted = eta @ cost[s == a].numpy()
        np.testing.assert_allclose(p / p.sum(), wanted / wanted.sum(), atol=1e-4)
        assert wanted.argmax() == (eta @ M[a]).argmax()


def test_a_row_of_unknown_group_costs_what_its_label_does() -> None:
    data = data_of(task_of(3, 2), np.zeros((3, 2)), [2, 0, 1], [-1, 0, -1])
    down = {"l": torch.rand(3, 2, 2).double(), "counts": torch.ones(2, 3).double()}
    cost = FedFACT().costs(down, torch.rand(3, 2, 2).double(), data)
    np.testing.assert_array_equal(cost[[0, 2]], [[0, 0, 1], [0, 1, 0]])
    theta = {"weight": torch.randn(3, 2).double(), "bias": torch.randn(3).double()}
    plain = data.task.row_loss(theta, data.x, data.y)
    np.testing.assert_allclose(row_costs(theta, cost, data)[[0, 2]], plain[[0, 2]], rtol=1e-12)


# -- prices ------------------------------------------------------------------------------------------------------------


def rates(decisions: np.ndarray, notion: str) -> list[list[float]]:
    """Every compared rate in every group, nan where there is none, from rows by group, label and decision."""
    G, C, _ = decisions.shape
    found = []
    for y in [None] if notion == "demographic_parity" else range(C):
        for j in range(C):
            if (C == 2 and j == 0) or (notion == "equal_opportunity" and y != j):
                continue
            part = decisions if y is None else decisions[:, [y]]
            found.append([part[a, :, j].sum() / part[a].sum() if part[a].sum() else np.nan for a in range(G)])
    return found


def stepped(prices: np.ndarray, decisions: np.ndarray, method: FedFACT, gap: float) -> np.ndarray:
    moved = prices.copy()
    for q, rate in enumerate(rates(decisions, method.notion)):
        for a in range(len(rate)):
            for b in range(len(rate)):
                if not np.isnan(rate[a] - rate[b]):
                    moved[q, a, b] += method.dual_step_size * (rate[a] - rate[b] - gap)
    within = np.maximum(moved, 0)
    if within.sum() <= method.largest_price:
        return within
    # the shift that leaves the sum at its limit
    shift = optimize.brentq(lambda by: np.maximum(moved - by, 0).sum() - method.largest_price, 0, moved.max())
    return np.maximum(moved - shift, 0)


@pytest.mark.parametrize("notion", NOTIONS)
@pytest.mark.parametrize(("classes", "groups"), [(2, 2), (2, 3), (3, 2), (3, 4)])
@pytest.mark.parametrize("limit", [0.1, 50.0])
def test_prices_follow_the_gaps(notion: str, classes: int, groups: int, limit: float) -> None:
    rng = np.random.default_rng(1)
    method = FedFACT(notion, dual_step_size=0.7, largest_price=limit)
    prices = method.init(task_of(classes, groups), {"w": torch.zeros(1).double()}).l
    expected = prices.numpy()
    sums = []
    assert len(expected) == len(rates(np.ones((groups, classes, classes)), notion))
    for turn in range(4):
        decisions = rng.integers(0, 30, (groups, classes, classes)).astype(float)
        if turn == 2:
            decisions[1] = 0  # nobody of group 1: its prices stay
        prices = method.move_prices(prices, torch.tensor(decisions), 0.05)
        expected = stepped(expected, decisions, method, 0.05)
        np.testing.assert_allclose(prices, expected, atol=1e-9)
        sums.append(float(prices.sum()))
    assert (max(sums) == pytest.approx(limit)) == (limit < 1)


def test_the_share_of_the_global_model() -> None:
    w, behind = 0.3, 0.8
    got = shift_weight(torch.tensor(w, dtype=torch.double), torch.tensor(behind, dtype=torch.double))
    assert float(got) == pytest.approx(w / (w + (1 - w) * np.exp(-behind)), rel=1e-12)
    for far in (-1e4, 1e4):  # it neither overflows nor sticks
        there = shift_weight(torch.tensor(0.5), torch.tensor(far))
        assert 0 < float(shift_weight(there, torch.tensor(-far / 1e3))) < 1


# -- rounds ------------------------------------------------------------------------------------------------------------


class Plain:
    """The rounds of a method in NumPy, for logistic regression with the bias first and full batches."""

    def __init__(self, method: FedFACT, fed: Federation) -> None:
        self.method, self.fed, K = method, fed, fed.num_clients
        self.queues = 2 if method.notion == "equalized_odds" else 1
        none = np.zeros((self.queues, 2, 2))
        self.theta, self.l = np.zeros(5), none
        self.phi, self.w, self.m = np.zeros((K, 5)), np.full(K, 0.5), np.stack([none] * K)
        self.counts = sum((self.cells(k) for k in range(K)), np.zeros((2, 2)))
        self.gap, self.violated, self.holders, self.late = np.inf, 0, 0, np.ones(K, bool)

    def cells(self, k: int) -> np.ndarray:
        _, y, s = client(self.fed, k)
        counts = np.zeros((2, 2))
        np.add.at(counts, (s, y), 1)
        return counts

    def scores(self, k: int, x: np.ndarray) -> np.ndarray:
        shared, own = (sigmoid(x @ w[1:] + w[0]) for w in (self.theta, self.phi[k]))
        return shared if self.method.shared_only or self.late[k] else self.w[k] * shared + (1 - self.w[k]) * own

    def decisions(self, k: int) -> np.ndarray:
        x, y, s = client(self.fed, k)
        found = np.zeros((2, 2, 2))
        np.add.at(found, (s, y, (self.scores(k, x) > 0.5).astype(int)), 1)
        return found

    def worth(self, prices: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """What prices take from deciding a row of a group and label as 0 or 1."""
        taken, method = np.zeros((2, 2, 2)), self.method
        labels = {"demographic_parity": [[0, 1]], "equal_opportunity": [[1]], "equalized_odds": [[0], [1]]}
        for q, of in enumerate(labels[method.notion]):
            for a in (0, 1):
                rows, net = counts[a, of].sum(), prices[q, a].sum() - prices[q, :, a].sum()
                if rows:
                    taken[a, of, 1] += net * counts.sum() / rows
        return taken

    def costs(self, k: int) -> np.ndarray:
        M = np.stack([np.eye(2)] * 2) - self.worth(self.l, self.counts) - self.worth(self.m[k], self.cells(k))
        for a in (0, 1):
            for y in (0, 1):
                M[a, y] += max(0, -M[a, y].min())
        _, labels, s = client(self.fed, k)
        return M[s, labels]

    @staticmethod
    def loss(w: np.ndarray, x: np.ndarray, cost: np.ndarray) -> float:
        p = sigmoid(x @ w[1:] + w[0])
        return float(-(cost[:, 0] * np.log(1 - p) + cost[:, 1] * np.log(p)).mean()) if len(x) else 0.0

    @staticmethod
    def trained(w: np.ndarray, x: np.ndarray, cost: np.ndarray) -> np.ndarray:
        for _ in range(EPOCHS if len(x) else 0):
            slope = (cost.sum(1) * sigmoid(x @ w[1:] + w[0]) - cost[:, 1]) / len(x)
            w = w - RATE * np.r_[slope.sum(), x.T @ slope]
        return w

    def look(self, cohort: np.ndarray) -> list[np.ndarray]:
        decided, method = [self.decisions(k) for k in cohort], self.method
        gaps = np.array([np.ptp(rates(each, method.notion), axis=1) for each in decided])
        self.holders = (~np.isnan(gaps)).any(1).sum()
        self.violated = (gaps > method.local_gap + 1e-3).any(1).sum()
        self.gap = np.ptp(rates(sum(decided), method.notion), axis=1).max()
        return decided

    def round(self, cohort: np.ndarray) -> None:
        method, models, sizes = self.method, [], []
        decided = self.look(cohort)
        for k, own in zip(cohort, decided, strict=True):
            x, y, _ = client(self.fed, k)
            if method.level != "global":
                self.m[k] = stepped(self.m[k], own, method, method.local_gap)
            cost = self.costs(k)
            behind = self.loss(self.phi[k], x, cost) - self.loss(self.theta, x, cost)
            self.w[k] /= self.w[k] + (1 - self.w[k]) * np.exp(-method.weight_step_size * behind)
            models.append(self.trained(self.theta, x, cost))
            self.phi[k], self.late[k] = self.trained(self.phi[k], x, cost), len(y) == 0
            sizes.append(len(y))
        if method.level != "local":
            self.l = stepped(self.l, sum(decided), method, method.gap)
        self.theta = np.average(models, axis=0, weights=sizes)


@pytest.mark.parametrize(
    ("method", "cohort"),
    [
        (FedFACT(gap=0.0, local_gap=0.1, dual_step_size=0.3), 10),
        (FedFACT("equalized_odds", dual_step_size=0.5, largest_price=0.2, gap=0.0), 5),
        (FedFACT("equal_opportunity", level="local", dual_step_size=1.0, weight_step_size=2.0), 5),
        (FedFACT(level="global", shared_only=True, dual_step_size=1.0), 10),
    ],
    ids=["both", "odds, at the limit, half of the clients", "local", "one model"],
)
def test_rounds_against_numpy(method: FedFACT, cohort: int, uneven: Federation) -> None:
    rounds = 4
    options: dict[str, Any] = {"rounds": rounds, "local": STEPS, "seeds": [3]}
    if cohort < 10:
        options["clients_per_round"] = cohort
    result = ef.simulate(method, uneven, model=MODEL, **options)
    job = make_job(method, uneven, MODEL, RunSettings(**options))
    plain = Plain(method, uneven)
    for number in range(1, rounds + 1):
        plain.round(job.cohorts(number)[0])
    state = result.final_states[3]
    theta = state.server.theta
    np.testing.assert_allclose(np.r_[theta["0.bias"].ravel(), theta["0.weight"].ravel()], plain.theta, atol=2e-6)
    np.testing.assert_allclose(state.server.l, plain.l, atol=2e-6)
    if method.level != "global":
        assert plain.m.max() > 0
        np.testing.assert_allclose(state.clients.m, plain.m, atol=2e-6)
    if method.level != "local":
        assert plain.l.max() > 0
    if not method.shared_only:
        own = np.concatenate([state.clients.phi["0.bias"].reshape(10, 1), state.clients.phi["0.weight"][:, 0]], 1)
        np.testing.assert_allclose(own, plain.phi, atol=2e-6)
        np.testing.assert_allclose(state.clients.w, plain.w, atol=2e-6)
        assert np.ptp(plain.w) > 0.01
    x = uneven.rows.x[uneven.test]
    for k in (0, 4, 9):
        found = result.predict(x, client=uneven.ids[k])
        np.testing.assert_allclose(found, plain.scores(k, x.astype(float)), atol=2e-6)
    # after the last round everybody is asked
    plain.look(np.arange(10))
    last = result.log.iloc[-1]
    if method.level != "local":
        assert last["training_gap"] == pytest.approx(plain.gap, abs=1e-6)
        assert last["excess"] >= plain.gap - method.gap - 1e-6
    if method.level != "global":
        assert last["violated"] == plain.violated
        assert last["constraints"] == plain.holders
    assert last["feasible"] == 0
    assert set(result.messages["gather"]) == {"sum"}


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asks_nothing", [{"dual_step_size": 0.0}, {"gap": 1.0, "local_gap": 1.0}], ids=str)
@pytest.mark.parametrize("shared_only", [True, False])
def test_without_prices_it_is_fedavg_beside_local_training(
    asks_nothing: dict[str, float], shared_only: bool, uneven: Federation
) -> None:
    options: dict[str, Any] = {
        "model": ef.models.MLP(hidden=(3,)), "rounds": 3, "clients_per_round": 6, "seeds": [0], "engine": "reference",
        "local": Local(epochs=2, batch_size=8, learning_rate=0.1, momentum=0.5),
    }  # fmt: skip
    method = FedFACT(shared_only=shared_only, **asks_nothing)
    result, average = (ef.simulate(each, uneven, **options) for each in (method, FedAvg()))
    for name, value in average.parameters[0].items():
        np.testing.assert_array_equal(result.parameters[0][name], value)
    if shared_only:
        x = uneven.rows.x[uneven.test]
        np.testing.assert_array_equal(result.predict(x), average.predict(x))
    else:
        alone = ef.simulate(LocalOnly(), uneven, **options).parameters[0]
        for name, value in result.final_states[0].clients.phi.items():
            np.testing.assert_array_equal(value, alone[name])


def test_one_model_and_a_global_gap_need_no_memory() -> None:
    method = FedFACT(level="global", shared_only=True)
    assert method.init_client(task_of(2, 2), {"w": torch.zeros(1)}) == Client((), (), (), ())
    assert not method.personal
    assert FedFACT().personal
    assert FedFACT(level="local").knob is None
    assert FedFACT().knob is not None
    assert "decision" not in FedFACT(level="local").reveals
    assert "silos" not in method.reveals


# -- edges -------------------------------------------------------------------------------------------------------------


def test_a_client_without_a_group_has_no_prices_and_no_gap_of_its_own() -> None:
    task, rng = task_of(2, 2), np.random.default_rng(2)
    theta = {"weight": torch.tensor([[1.0, -1.0]]).double(), "bias": torch.zeros(1).double()}
    method = FedFACT()
    server = method.init(task, theta)._replace(counts=torch.tensor([[5.0, 5.0], [5.0, 5.0]]).double())
    state = method.init_client(task, theta)
    (phase,) = method.round
    x, y = rng.normal(size=(20, 2)), rng.integers(0, 2, 20)
    for s in (np.ones(20, int), np.full(20, -1), None):
        data = data_of(task, x, y, s) if s is not None else data_of(task, x[:0], y[:0], np.zeros(0, int))
        reply, after = phase.client(method.sent(server, phase.down), state, data)
        assert not after.m.any()
        assert [float(reply[name]) for name in ("constraints", "violated", "excess")] == [0, 0, 0]
        assert reply["decisions"].sum() == (20 if s is not None and s[0] == 1 else 0)
        if s is None:
            assert float(after.w) == 0.5
            # without a model of its own that was trained, it predicts as the global model does
            new = torch.from_numpy(x)
            trained = server._replace(theta={"weight": theta["weight"] * 3, "bias": theta["bias"] + 1})
            assert torch.equal(method.predict(task, trained, after, new), task.predict(trained.theta, new))


def test_a_round_without_a_group_leaves_its_prices() -> None:
    method = FedFACT(gap=0.0)
    decisions = torch.tensor([[[5.0, 5.0], [0.0, 10.0]], [[0.0, 0.0], [0.0, 0.0]]])
    prices = torch.tensor([[[0.0, 0.3], [0.1, 0.0]]])
    np.testing.assert_array_equal(method.move_prices(prices, decisions, 0.0), prices)
    assert float(differences(method.notion, decisions)[0].amax()) == 0


def test_regression_is_refused(uneven: Federation) -> None:
    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=(9, 2)), rng.normal(size=9), rng.integers(0, 2, 9)) for _ in range(3)]
    fed = ef.Federation.from_arrays(rows, test=rows[0], task="regression")
    with pytest.raises(ConfigError, match="fedfact"):
        ef.simulate(FedFACT(), fed, model=MODEL, rounds=1, seeds=[0])


# -- what it is for ----------------------------------------------------------------------------------------------------


def biased(rng: np.random.Generator, n: int, tilt: float, classes: int = 2) -> tuple[np.ndarray, ...]:
    """Features that tell the group apart, and labels that favour one, by tilt."""
    s = rng.integers(0, 2, n)
    x = rng.normal(size=(n, 3))
    x[:, 2] += 2 * s - 1
    score = x[:, 0] + tilt * (2 * s - 1) + rng.normal(size=n)
    y = (score > 0).astype(int) if classes == 2 else np.digitize(score, [-0.7, 0.7])
    return x.astype(np.float32), y, s


LEARN = Local(epochs=2, batch_size=50, learning_rate=0.2)


@pytest.mark.parametrize(
    "notion",
    ["demographic_parity", *(pytest.param(name, marks=pytest.mark.full) for name in NOTIONS[1:])],
)
def test_one_model_keeps_the_global_gap(notion: str) -> None:
    rng = np.random.default_rng(4)
    fed = ef.Federation.from_arrays([biased(rng, 300, 1.2) for _ in range(4)], test=biased(rng, 4000, 1.2))
    method = FedFACT(notion, level="global", shared_only=True)
    swept = ef.simulate(method, fed, model=MODEL, over={"gap": [0.02, 1.0]}, rounds=40, local=LEARN, seeds=[0])
    gap = swept.final().set_index("gap")[f"{notion}_difference"]
    assert gap[1.0] > 0.2
    assert gap[0.02] < 0.1


def test_personal_models_keep_the_clients_gaps() -> None:
    """Clients that favour different groups: the global gap is small from the start, theirs are not."""
    rng = np.random.default_rng(5)
    tilts = [1.2, -1.2, 1.2, -1.2]
    fed = ef.Federation.from_arrays(
        [biased(rng, 400, tilt) for tilt in tilts],
        test=biased(rng, 100, 0.0),
        client_tests=[biased(rng, 2000, tilt) for tilt in tilts],
    )
    assert fed.client_test is not None
    worst, right = {}, {}
    for level in ("global", "both"):
        result = ef.simulate(FedFACT(level=level), fed, model=MODEL, rounds=25, local=LEARN, seeds=[0])
        gaps, hits = [], []
        for k, name in enumerate(fed.ids):
            x, y, s, *_ = (each[fed.client_test[k]] for each in fed.rows if each is not None)
            decided = result.predict(x, client=name) > 0.5
            gaps.append(abs(decided[s == 0].mean() - decided[s == 1].mean()))
            hits.append((decided == y).mean())
        worst[level], right[level] = max(gaps), np.mean(hits)
    assert worst["global"] > 0.4
    assert worst["both"] < 0.15
    assert right["both"] > 0.65


@pytest.mark.full
def test_three_classes() -> None:
    rng = np.random.default_rng(6)
    fed = ef.Federation.from_arrays([biased(rng, 400, 1.2, 3) for _ in range(3)], test=biased(rng, 4000, 1.2, 3))
    gaps = []
    for gap in (1.0, 0.02):
        method = FedFACT(level="global", shared_only=True, gap=gap)
        result = ef.simulate(method, fed, model=MODEL, rounds=40, local=LEARN, seeds=[0])
        decided = result.predict(fed.rows.x[fed.test]).argmax(1)
        s = fed.rows.s[fed.test]
        gaps.append(max(abs((decided[s == 0] == j).mean() - (decided[s == 1] == j).mean()) for j in range(3)))
    assert gaps[0] > 0.3
    assert gaps[1] < 0.1


def test_a_new_client_trains_a_model_of_its_own() -> None:
    rng = np.random.default_rng(7)
    fed = ef.Federation.from_arrays([biased(rng, 300, 0.5) for _ in range(3)], test=biased(rng, 100, 0.5))
    options: dict[str, Any] = {"model": MODEL, "rounds": 5, "local": replace(LEARN, schedule="cosine"), "seeds": [0]}
    result = ef.simulate(FedFACT(), fed, **options)
    x, y, _ = biased(rng, 500, 0.5)
    adapted = result.adapt((x, 1 - y), steps=50)  # all labels the other way round
    (state,) = adapted.states.values()
    # w after 50 steps, and phi, by the formulas
    weight, bias = (result.parameters[0][f"0.{name}"] for name in ("weight", "bias"))
    theta = np.r_[bias.ravel(), weight.ravel()].astype(float)
    phi, w, target = theta, 0.5, np.eye(2)[1 - y]
    for _ in range(50):
        slope = (sigmoid(x @ phi[1:] + phi[0]) - (1 - y)) / len(y)
        phi = phi - 0.2 * np.r_[slope.sum(), x.T @ slope]
        w /= w + (1 - w) * np.exp(-0.3 * (Plain.loss(phi, x, target) - Plain.loss(theta, x, target)))
    assert float(state.w) == pytest.approx(w, abs=1e-4)
    np.testing.assert_allclose(np.r_[state.phi["0.bias"].ravel(), state.phi["0.weight"].ravel()], phi, atol=1e-4)
    p = w * sigmoid(x @ theta[1:] + theta[0]) + (1 - w) * sigmoid(x @ phi[1:] + phi[0])
    np.testing.assert_allclose(adapted.predict(x)[0], p, atol=1e-4)
    with pytest.raises(ConfigError, match="one model serves all clients"):
        ef.simulate(FedFACT(shared_only=True), fed, **options).adapt((x, y))
