"""KFFL, KFFL-TD and the kernel baselines against finite differences, exact kernels and plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import equifed as ef
from equifed import randomness, tree
from equifed.federation import Federation
from equifed.methods import KFFL, KFFLTD, CentralizedKernel, FedProx, LocalKernel
from equifed.methods._kernels import dependence, exact_dependence, frequencies, outputs
from equifed.protocol import Data, Task
from equifed.settings import Local
from methods.plain import sigmoid

D = 3
"""Inputs of the model."""


def make_task(groups: int = 2, sensitive: int = 1, kind: str = "classification") -> Task:
    classes = 2 if kind == "classification" else 0
    binary = kind == "classification"
    return Task(nn.Linear(D, 1), kind, classes, groups, 4, 10, Local(), sensitive, binary=binary)  # type: ignore[arg-type]


def clients(sizes: tuple[int, ...], task: Task, attribute: int = 0, seed: int = 0) -> list[Data]:
    """Clients of these sizes in double precision, whose labels and inputs depend on the group."""
    rng = np.random.default_rng(seed)
    draws = {
        "phi_s": torch.tensor(frequencies(rng, task.sensitive_size, 10)).double(),
        "phi_f": torch.tensor(frequencies(rng, 1, 10)).double(),
    }
    made = []
    for k, n in enumerate(sizes):
        s = rng.choice(task.num_groups, size=n, p=shares(task.num_groups, k))
        x = rng.normal(size=(n, D)) + 0.7 * s[:, None]
        y = (x[:, 0] + rng.normal(size=n) > 0.4).astype(np.int64)
        given = torch.tensor(rng.normal(size=(n, attribute)) + s[:, None]) if attribute else None
        made.append(
            Data(torch.tensor(x), torch.tensor(y), torch.tensor(s), torch.ones(n, dtype=torch.double), task,
                 draws=draws, attribute=given)
        )  # fmt: skip
    return made


def shares(groups: int, k: int) -> np.ndarray:
    """Clients differ in their groups: what a measure centred per client would miss."""
    p = np.full(groups, 0.2 / max(groups - 1, 1))
    p[k % groups] = 0.8
    return p / p.sum()


def theta_of(w: np.ndarray) -> dict[str, torch.Tensor]:
    return {"weight": torch.tensor(w[None, 1:]), "bias": torch.tensor(w[:1])}


def vector(theta: dict[str, torch.Tensor]) -> np.ndarray:
    return np.concatenate([theta["bias"].numpy().ravel(), theta["weight"].numpy().ravel()])


def features(values: np.ndarray, draw: np.ndarray, width: float) -> np.ndarray:
    """phi in NumPy."""
    return np.sqrt(2 / draw.shape[1]) * np.cos(values @ draw[:-1] / width + draw[-1])


def numbers(data: Data) -> np.ndarray:
    if data.attribute is not None:
        return data.attribute.numpy()
    s, groups = data.s.numpy(), data.task.num_groups
    return s[:, None].astype(float) if groups == 2 else np.eye(groups)[s]


def pooled_psi(w: np.ndarray, parts: list[Data], method: KFFL) -> tuple[float, np.ndarray]:
    """(psi, G) over the rows of all clients together."""
    x = np.concatenate([part.x.numpy() for part in parts])
    y = np.concatenate([part.y.numpy() for part in parts])
    s = np.concatenate([numbers(part) for part in parts])
    keep = y == 1 if method.condition_on else np.ones(len(y), bool)
    z = x @ w[1:] + w[0]
    f = z if parts[0].task.kind == "regression" else sigmoid(z)
    draws = {name: value.numpy() for name, value in parts[0].draws.items()}
    zs = features(s[keep], draws["phi_s"], method.kernel_width)
    zf = features(f[keep, None], draws["phi_f"], method.kernel_width)
    n = keep.sum()
    G = zs.T @ zf - n * np.outer(zs.mean(0), zf.mean(0))
    return (G**2).sum() / (n - 1) ** 2, G


def summed(replies: list[dict]) -> dict:  # type: ignore[type-arg]
    return tree.map(lambda *values: sum(values), *replies)


SIZES = {"one client": (57,), "three": (40, 9, 23), "ten": (3, 17, 1, 30, 8, 12, 25, 5, 2, 41)}
KINDS = {
    "two groups": {},
    "three groups": {"groups": 3, "sensitive": 3},
    "continuous": {"sensitive": 2, "attribute": 2},
    "regression": {"kind": "regression"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    "method", [KFFL(3.0, step_size=0.5), KFFL(3.0, kernel_width=0.4, condition_on="label")], ids=repr
)
def test_fairness_step_is_the_gradient_of_psi_over_all_rows(sizes: str, kind: str, method: KFFL) -> None:
    options = dict(KINDS[kind])
    attribute = int(options.pop("attribute", 0))  # type: ignore[call-overload]
    task = make_task(**options)  # type: ignore[arg-type]
    parts = clients(SIZES[sizes], task, attribute)
    w = np.array([0.2, 0.8, -0.5, 0.3])
    server = method.init(task, theta_of(w))
    replies, states = zip(*(method.statistics({"theta": server.theta}, (), part) for part in parts), strict=True)
    server = method.combine(server, summed(replies), None)
    psi, G = pooled_psi(w, parts, method)
    np.testing.assert_allclose(server.G.numpy(), G, rtol=1e-10, atol=1e-10)
    assert method.observe(server)["dependence"].item() == pytest.approx(psi)

    down = {"G": server.G, "mu_s": server.mu_s}
    slopes = [method.gradient(down, state, part)[0] for state, part in zip(states, parts, strict=True)]
    server = method.fairness_step(server, summed(slopes), None)
    taken = (w - vector(server.half)) / (method.step_size * method.fairness_weight)
    for i in range(len(w)):
        h = 1e-5 * np.eye(len(w))[i]
        expected = (pooled_psi(w + h, parts, method)[0] - pooled_psi(w - h, parts, method)[0]) / 2e-5
        assert taken[i] == pytest.approx(expected, rel=1e-5, abs=1e-10)


def test_holding_the_mean_prediction_fixed_as_printed_would_be_wrong() -> None:
    """Eq. 18 and Lemma 2 hold mu_f constant. That drops a term: why h has no mu_f but centres Z_s."""
    task = make_task()
    parts = clients((60,), task)
    method = KFFL()
    w = np.array([0.2, 0.8, -0.5, 0.3])
    server = method.init(task, theta_of(w))
    reply, state = method.statistics({"theta": server.theta}, (), parts[0])
    server = method.combine(server, reply, None)
    right = method.gradient({"G": server.G, "mu_s": server.mu_s}, state, parts[0])[0]["gradient"]
    printed = method.gradient({"G": server.G, "mu_s": torch.zeros_like(server.mu_s)}, state, parts[0])[0]["gradient"]
    error = np.linalg.norm(vector(printed) - vector(right)) / np.linalg.norm(vector(right))
    assert error > 0.2


def exact(s: np.ndarray, f: np.ndarray, width: float) -> float:
    """HSIC by its definition, tr(K H L H) / (n-1)^2."""
    n = len(s)

    def kernel(a: np.ndarray) -> np.ndarray:
        return np.exp(-((a[:, None] - a[None]) ** 2).sum(-1) / (2 * width**2))

    H = np.eye(n) - 1 / n
    return float(np.trace(kernel(s) @ H @ kernel(f) @ H)) / (n - 1) ** 2


@pytest.mark.full
@pytest.mark.parametrize("inputs", [1, 3])
def test_psi_approaches_the_exact_kernel_statistic(inputs: int) -> None:
    """Unbiased for every D, and closer for larger D: deviation falls like 1/sqrt(D)."""
    rng = np.random.default_rng(0)
    s = rng.normal(size=(50, inputs))
    f = np.tanh(s[:, :1] + 0.3 * rng.normal(size=(50, 1)))
    data = Data(torch.zeros(50, 1), torch.zeros(50), torch.zeros(50), torch.ones(50), make_task())
    truth = exact(s, f, 0.8)
    spread = {}
    for count in (6, 24, 96):
        values = []
        for _ in range(600):
            draws = {
                "phi_s": torch.tensor(frequencies(rng, inputs, count)),
                "phi_f": torch.tensor(frequencies(rng, 1, count)),
            }
            values.append(dependence(torch.tensor(s).float(), torch.tensor(f).float(), data, draws, 0.8).item())
        spread[count] = np.std(values)
        assert np.mean(values) == pytest.approx(truth, abs=4 * spread[count] / np.sqrt(600))
    assert spread[96] < 0.7 * spread[24] < 0.5 * spread[6]


def test_orthogonal_features_are_orthogonal_gaussian_and_better() -> None:
    rng = np.random.default_rng(0)
    W = frequencies(rng, 4, 10)[:-1]
    block = W[:, :4]
    gram = block.T @ block
    np.testing.assert_allclose(gram - np.diag(np.diag(gram)), 0, atol=1e-5)
    lengths = np.concatenate([(frequencies(rng, 4, 4)[:-1] ** 2).sum(0) for _ in range(500)])
    assert lengths.mean() == pytest.approx(4, rel=0.1)  # chi-square with 4 degrees of freedom
    assert lengths.var() == pytest.approx(8, rel=0.2)
    many = np.concatenate([frequencies(rng, 4, 4)[:-1].ravel() for _ in range(500)])
    assert many.mean() == pytest.approx(0, abs=0.05)
    assert many.std() == pytest.approx(1, rel=0.05)

    a, b = rng.normal(size=(2, 1, 4)) * 0.7
    plain, orthogonal = [], []
    for _ in range(3000):
        draw = frequencies(rng, 4, 8)
        orthogonal.append((features(a, draw, 1) @ features(b, draw, 1).T).item())
        draw = np.concatenate([rng.normal(size=(4, 8)), draw[-1:]])
        plain.append((features(a, draw, 1) @ features(b, draw, 1).T).item())
    kernel = np.exp(-((a - b) ** 2).sum() / 2)
    assert np.mean(orthogonal) == pytest.approx(kernel, abs=0.02)
    assert np.var(orthogonal) < np.var(plain)


def test_dependence_of_a_batch_with_padding() -> None:
    rng = np.random.default_rng(2)
    s, f = rng.normal(size=(20, 2)), rng.random((20, 1))
    draws = {"phi_s": torch.tensor(frequencies(rng, 2, 10)), "phi_f": torch.tensor(frequencies(rng, 1, 10))}
    padded_s, padded_f = (torch.tensor(np.concatenate([v, np.full((5, v.shape[1]), np.inf)])).float() for v in (s, f))
    mask = torch.tensor([1.0] * 20 + [0.0] * 5)
    data = Data(torch.zeros(25, 1), torch.zeros(25), torch.zeros(25), mask, make_task())
    zs, zf = (features(v, draws[n].numpy(), 1.0) for v, n in ((s, "phi_s"), (f, "phi_f")))
    G = zs.T @ zf - 20 * np.outer(zs.mean(0), zf.mean(0))
    assert dependence(padded_s, padded_f, data, draws, 1.0).item() == pytest.approx((G**2).sum() / 19**2, rel=1e-4)
    assert exact_dependence(padded_s, padded_f, data, 0.8).item() == pytest.approx(exact(s, f, 0.8), rel=1e-4)


@pytest.mark.parametrize("size", [0, 1])
def test_too_few_rows_have_no_dependence(size: int) -> None:
    task = make_task()
    data = clients((size,), task)[0] if size else clients((3,), task)[0].where(torch.zeros(3))
    f = outputs(theta_of(np.array([0.2, 0.8, -0.5, 0.3])), data)
    assert dependence(data.sensitive.double(), f, data, data.draws, 1.0).item() == pytest.approx(0, abs=1e-12)
    assert exact_dependence(data.sensitive.double(), f, data, 1.0).item() == pytest.approx(0, abs=1e-12)


# -- whole rounds ------------------------------------------------------------------------------------------------------

ONE_STEP = Local(epochs=1, batch_size=None, learning_rate=0.3)


def loss_gradient(w: np.ndarray, fed: Federation, k: int) -> np.ndarray:
    rows = fed.train[k]
    x, y = fed.rows.x[rows].astype(float), fed.rows.y[rows]
    error = (sigmoid(x @ w[1:] + w[0]) - y) / max(len(y), 1)
    return np.concatenate([[error.sum()], x.T @ error])


def slope_of_psi(w: np.ndarray, at: np.ndarray, fed: Federation, seed: int, round: int) -> np.ndarray:
    """Gradient of psi at `at`, by central differences, with the features of this round."""
    rows = np.concatenate([fed.train[k] for k in range(fed.num_clients)])
    x, s = fed.rows.x[rows].astype(float), fed.rows.s[rows][:, None].astype(float)
    task = Task(nn.Linear(4, 1), "classification", 2, 2, fed.num_clients, 1, Local(), binary=True)
    draws = randomness.make_draws(seed, round, KFFL().round[0].draws, task)

    def psi(w: np.ndarray) -> float:
        zs = features(s, draws["phi_s"].astype(float), 1)
        zf = features(sigmoid(x @ w[1:] + w[0])[:, None], draws["phi_f"].astype(float), 1)
        G = zs.T @ zf - len(x) * np.outer(zs.mean(0), zf.mean(0))
        return float((G**2).sum()) / (len(x) - 1) ** 2

    return np.array([(psi(at + h) - psi(at - h)) / 2e-5 for h in 1e-5 * np.eye(len(at))])


@pytest.mark.parametrize("delayed", [False, True])
def test_rounds_against_numpy(delayed: bool, uneven: Federation) -> None:
    """KFFL steps down the gradient at theta_t; KFFL-TD down the one at theta_{t-1}, with the features of that round,
    and takes no fairness step in its first round."""
    alpha, weight, seed, rounds = 2.0, 40.0, 3, 4
    kind = KFFLTD if delayed else KFFL
    result = ef.simulate(
        kind(weight, step_size=alpha), uneven, model=ef.models.Logistic(), rounds=rounds, local=ONE_STEP, seeds=[seed]
    )
    sizes = uneven.train.sizes
    w, before = np.zeros(5), None
    for t in range(1, rounds + 1):
        if not delayed:
            half = w - alpha * weight * slope_of_psi(w, w, uneven, seed, t)
        elif before is None:
            half = w
        else:
            half = w - alpha * weight * slope_of_psi(w, before, uneven, seed, t - 1)
        before = w
        # one full-batch step from theta_half, where the proximal term has no slope yet
        own = [half - 0.3 * loss_gradient(half, uneven, k) if sizes[k] else half for k in range(uneven.num_clients)]
        w = np.average(own, axis=0, weights=sizes)
    got = result.parameters[seed]
    np.testing.assert_allclose(np.r_[got["0.bias"].ravel(), got["0.weight"].ravel()], w, rtol=2e-4, atol=2e-5)


def test_the_proximal_term_pulls_towards_the_half_step(uneven: Federation) -> None:
    """Two full-batch steps: the second feels (theta - theta_half) / alpha."""
    alpha, local = 0.5, Local(epochs=2, batch_size=None, learning_rate=0.3)
    result = ef.simulate(
        KFFL(0.0, step_size=alpha), uneven, model=ef.models.Logistic(), rounds=1, local=local, seeds=[0]
    )
    models = []
    for k in range(uneven.num_clients):
        w = np.zeros(5)
        for _ in range(2):
            w = w - 0.3 * (loss_gradient(w, uneven, k) + w / alpha)
        models.append(w)
    expected = np.average(models, axis=0, weights=uneven.train.sizes)
    got = result.parameters[0]
    np.testing.assert_allclose(np.r_[got["0.bias"].ravel(), got["0.weight"].ravel()], expected, rtol=1e-4, atol=1e-6)


def test_without_weight_it_is_the_same_training_without_the_fairness_exchange(uneven: Federation) -> None:
    settings = {"model": ef.models.Logistic(), "rounds": 5, "local": Local(epochs=2, batch_size=8, learning_rate=0.1)}
    for method in (KFFL(0.0, step_size=4.0), KFFLTD(0.0, step_size=4.0)):
        a = ef.simulate(method, uneven, **settings, seeds=[1])  # type: ignore[arg-type]
        b = ef.simulate(FedProx(mu=1 / 4), uneven, **settings, seeds=[1])  # type: ignore[arg-type]
        for name, value in a.parameters[1].items():
            np.testing.assert_allclose(value, b.parameters[1][name], atol=1e-6)


def test_delayed_clients_who_were_away_add_nothing(uneven: Federation) -> None:
    """Partial participation: only clients of the last round know its theta; their sum stands for all."""
    task, method = make_task(), KFFLTD(3.0, step_size=0.5)
    parts = clients((40, 9, 23), task)
    w = np.array([0.2, 0.8, -0.5, 0.3])
    server = method.init(task, theta_of(w))
    states = [tree.map(lambda leaf: leaf.double(), method.init_client(task, theta_of(w))) for _ in parts]
    down = {"theta": server.theta, "G": server.G, "mu_s": server.mu_s, "t": server.t}
    first = [method.statistics(down, states[k], parts[k]) for k in (0, 1)]  # client 2 is away
    server = method.delayed_step(server, summed([reply for reply, _ in first]), None)
    np.testing.assert_allclose(vector(server.half), w)
    down = {"theta": server.theta, "G": server.G, "mu_s": server.mu_s, "t": server.t}
    second = [method.statistics(down, first[0][1], parts[0]), method.statistics(down, states[2], parts[2])]
    assert second[1][0]["gradient_rows"] == 0
    assert all((leaf == 0).all() for leaf in tree.leaves(second[1][0]["gradient"]))
    after = method.delayed_step(server, summed([reply for reply, _ in second]), None)
    own = method.slope(theta_of(w), server.G, server.mu_s, parts[0])
    n = 40 + 9
    expected = w - 0.5 * 3.0 * 2 / (n - 1) ** 2 * vector(own) * n / 40
    np.testing.assert_allclose(vector(after.half), expected, rtol=1e-9)


def test_messages_are_sums_and_theta_travels_twice(uneven: Federation) -> None:
    settings = {"model": ef.models.Logistic(), "rounds": 1, "seeds": [0]}
    theta, D2 = 5 * 4, 10 * 10 * 4
    for method, names in ((KFFL(), ["fair1", "fair2", "train"]), (KFFLTD(), ["fair", "train"])):
        messages = ef.simulate(method, uneven, **settings).messages  # type: ignore[arg-type]
        assert messages["phase"].tolist() == names
        assert set(messages["gather"]) == {"sum"}
        # the paper's Table 3: two models and the D x D statistics, up and down
        assert messages["bytes_down"].sum() == pytest.approx(2 * theta + D2, abs=60)
        assert messages["bytes_up"].sum() == pytest.approx(2 * theta + D2, abs=110)


# -- baselines ---------------------------------------------------------------------------------------------------------


def test_local_kernel_loss_against_numpy() -> None:
    task = make_task()
    data = clients((30,), task)[0]
    batch = data.replace(per_row={"sensitive": data.sensitive.double()})
    w, method = np.array([0.2, 0.8, -0.5, 0.3]), LocalKernel(7.0, kernel_width=0.6)
    psi, _ = pooled_psi(w, [data], KFFL(kernel_width=0.6))
    z = data.x.numpy() @ w[1:] + w[0]
    bce = np.mean(np.log1p(np.exp(z)) - data.y.numpy() * z)
    assert method.loss(theta_of(w), (), batch).item() == pytest.approx(bce + 7 * psi)
    central = CentralizedKernel(7.0, kernel_width=0.6).loss(theta_of(w), (), batch).item()
    assert central == pytest.approx(bce + 7 * exact(data.s.numpy()[:, None], sigmoid(z)[:, None], 0.6))


def test_centralized_trains_on_all_rows_in_one_place(uneven: Federation) -> None:
    """Its clients are one: equal to plain training on the pooled rows, whoever holds them."""
    local = Local(epochs=3, batch_size=None, learning_rate=0.3)
    result = ef.simulate(
        CentralizedKernel(0.0), uneven, model=ef.models.Logistic(), rounds=1, local=local, seeds=[0],
        clients_per_round=2, dropout=0.5,
    )  # fmt: skip
    rows = np.concatenate([uneven.train[k] for k in range(uneven.num_clients)])
    x, y, w = uneven.rows.x[rows].astype(float), uneven.rows.y[rows], np.zeros(5)
    for _ in range(3):
        error = (sigmoid(x @ w[1:] + w[0]) - y) / len(y)
        w = w - 0.3 * np.r_[error.sum(), x.T @ error]
    got = result.parameters[0]
    np.testing.assert_allclose(np.r_[got["0.bias"].ravel(), got["0.weight"].ravel()], w, rtol=1e-4, atol=1e-6)
    assert {f"client:{name}" for name in uneven.ids} <= set(result.metrics["scope"])


# -- settings ----------------------------------------------------------------------------------------------------------


def test_condition_on_label_needs_two_classes() -> None:
    rng = np.random.default_rng(0)
    x, s = rng.normal(size=(60, 2)), rng.integers(0, 2, 60)
    numbers = ef.Federation.from_arrays([(x, x[:, 0] + s, s)], test=(x, x[:, 0] + s, s), task="regression")
    with pytest.raises(ef.ConfigError, match="condition_on is 'label', which needs two classes"):
        ef.simulate(KFFL(condition_on="label"), numbers, model=ef.models.Linear(), rounds=1)


def test_a_large_step_is_warned_of_in_regression() -> None:
    rng = np.random.default_rng(0)
    x, s = rng.normal(size=(60, 2)), rng.integers(0, 2, 60)
    fed = ef.Federation.from_arrays([(x, x[:, 0] + s, s)], test=(x, x[:, 0] + s, s), task="regression")
    with pytest.warns(ef.EquifedWarning, match=r"0\.03 to 0\.1 with more rounds"):
        ef.simulate(KFFL(), fed, model=ef.models.Linear(), rounds=1)
    ef.simulate(KFFL(step_size=0.1), fed, model=ef.models.Linear(), rounds=1)


def test_numpy_values_can_be_swept(uneven: Federation) -> None:
    over = {"beta": np.linspace(0.01, 0.2, 2)}
    result = ef.simulate(
        ef.methods.FairFed(debias="fairbatch"), uneven, over=over, model=ef.models.Logistic(), rounds=2
    )
    assert result.final()["beta"].tolist() == [0.01, 0.2]


def test_pooled_references_show_the_clients_as_they_are(uneven: Federation) -> None:
    settings = {"model": ef.models.Logistic(), "rounds": 1, "seeds": [0]}
    pooled = ef.simulate(CentralizedKernel(), uneven, **settings)  # type: ignore[arg-type]
    assert pooled.info["cells"] == ef.simulate(ef.methods.FedAvg(), uneven, **settings).info["cells"]  # type: ignore[arg-type]


def test_sizes_are_whole_and_not_swept(uneven: Federation) -> None:
    with pytest.raises(ef.ConfigError, match="features must be a whole number of at least 1"):
        ef.simulate(KFFL(features=2.5), uneven, model=ef.models.Logistic(), rounds=1)  # type: ignore[arg-type]
    with pytest.raises(ef.ConfigError, match="features is a size"):
        ef.simulate(KFFL(), uneven, over={"features": [5, 10]}, model=ef.models.Logistic(), rounds=1)


@pytest.mark.parametrize("classes", [2, 3])
def test_any_labels_and_many_groups(classes: int) -> None:
    """Multiclass outputs and several sensitive columns: dependence falls as the weight grows."""
    rng = np.random.default_rng(1)

    def rows(n: int) -> tuple[np.ndarray, ...]:
        s = rng.integers(0, 3, size=(n, 2))
        x = rng.normal(size=(n, 3)) + s[:, :1]
        return x, np.clip((x[:, 0] + rng.normal(size=n)).astype(int), 0, classes - 1), s

    fed = ef.Federation.from_arrays([rows(n) for n in (60, 90, 50)], test=rows(200))
    assert fed.sensitive_size == 6
    over = {"fairness_weight": [0.0, 10.0]}
    result = ef.simulate(
        KFFL(step_size=3.0), fed, over=over, model=ef.models.Logistic(), rounds=20, seeds=[0, 1],
        local=Local(epochs=2, batch_size=32, learning_rate=0.1),
    )  # fmt: skip
    last = result.log[result.log["round"] > 10].groupby("fairness_weight")["dependence"].mean()
    assert last[10.0] < 0.5 * last[0.0]
