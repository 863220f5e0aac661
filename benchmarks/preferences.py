"""One model that takes a preference as an input (PraFFL) against one sweep of a fairness weight, by hypervolume.

    python benchmarks/preferences.py [--data adult,compas] [--clients 5] [--alpha 0.5] [--seeds 4] [--settings 10]

PraFFL (Ye, Kou and Tang, KDD 2025), in plain torch, after its paper and its authors' code, with the clients' models
weighted rightly in the mean: clients average a base (two layers of 4) and keep a head to themselves, whose weights a
small network makes of a preference (p_1, p_2). A round has 30 epochs: 16 train the base on cross entropy at (1/2, 1/2),
14 the head, on 8 preferences ~ Dir(1, 1) per batch:

    mean of  log( exp(loss / p_1) + exp(unfair / p_2) )
    unfair = sum over logits z of the mean of ((s - mean s)(z - mean z))^2

Its 101 preferences are scored in the round that is best on validation rows. A sweep has as many epochs, in all settings
together, and is scored in its last round. A model is a point (error, max_s |r_s - r|), r the rate of positive
decisions; the hypervolume is the share of the unit square that is worse than a point in both. Measured twice:

    common rows      every client's model decides all test rows; mean over clients
    own rows         every client's model decides rows like its own: test rows, weighed by label and group as those are

Ten minutes on a core.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor

import equifed as ef
from equifed.federation import Federation
from equifed.methods import KFFL, FedFACT, FedGFT, Method

WIDTH, HYPER = 4, 4
ROUNDS, BASE_EPOCHS, HEAD_EPOCHS = 10, 16, 14
BATCH, RATE, DECAY = 128, 0.005, 1e-4
PREFERENCES = 8
SCORED = torch.stack([torch.linspace(0, 1, 101), torch.linspace(1, 0, 101)], 1)
SWEEP_ROUNDS = 30
SWEEPS: tuple[tuple[Method, str, float, float], ...] = (
    (KFFL(), "fairness_weight", 1.0, 1000.0),
    (FedGFT(), "fairness_weight", 0.1, 50.0),
    (FedFACT(level="global", shared_only=True), "gap", 0.3, 0.001),
    (FedFACT(level="global"), "gap", 0.3, 0.001),
)
"""The method, what is swept, and its ends; besides, what asks for nothing."""


class Rows(NamedTuple):
    x: Tensor
    y: Tensor
    s: Tensor


def rows_of(fed: Federation, index: np.ndarray) -> Rows:
    x, y, s = (part[index] for part in fed.rows[:3])
    if fed.scaling is not None:
        x = (x - fed.scaling[0]) * fed.scaling[1]
    return Rows(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y), torch.from_numpy(s))


# -- PraFFL ------------------------------------------------------------------------------------------------------------


def shapes(inputs: int) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Of the base, and of the network that makes the heads: weight and bias of every layer."""
    base = [(WIDTH, inputs), (WIDTH, WIDTH)]
    head = [(HYPER, 2), (HYPER, HYPER), (WIDTH * WIDTH + WIDTH, HYPER), (2 * WIDTH + 2, HYPER)]
    both = ([shape for out, into in part for shape in ((out, into), (out,))] for part in (base, head))
    return next(both), next(both)


def initial(parts: Sequence[tuple[int, ...]], rng: np.random.Generator) -> Tensor:
    """All parameters in one vector, drawn as torch.nn.Linear draws them."""
    values, into = [], 1
    for shape in parts:
        into = shape[1] if len(shape) == 2 else into
        values.append(rng.uniform(-1, 1, shape).ravel() / math.sqrt(into))
    return torch.from_numpy(np.concatenate(values).astype(np.float32))


def taken(flat: Tensor, parts: Sequence[tuple[int, ...]]) -> list[Tensor]:
    pieces = flat.split([math.prod(shape) for shape in parts])
    return [piece.reshape(shape) for piece, shape in zip(pieces, parts, strict=True)]


def features(base: Sequence[Tensor], x: Tensor) -> Tensor:
    """[n, 4]."""
    first = F.relu(F.linear(x, base[0], base[1]))
    return F.relu(F.linear(first, base[2], base[3]))


def logits(head: Sequence[Tensor], h: Tensor, preference: Tensor) -> Tensor:
    """[P, n, 2] for preferences [P, 2]."""
    made = F.linear(F.relu(F.linear(preference, head[0], head[1])), head[2], head[3])
    inner, outer = F.linear(made, head[4], head[5]), F.linear(made, head[6], head[7])
    squared = WIDTH * WIDTH
    first = torch.baddbmm(
        inner[:, None, squared:],
        h.expand(len(preference), -1, -1),
        inner[:, :squared].reshape(-1, WIDTH, WIDTH),
    )
    return torch.baddbmm(outer[:, None, 2 * WIDTH :], F.relu(first), outer[:, : 2 * WIDTH].reshape(-1, WIDTH, 2))


def chebyshev(z: Tensor, y: Tensor, s: Tensor, preference: Tensor) -> Tensor:
    """The smooth largest of loss / p_1 and unfair / p_2, mean over preferences."""
    loss = F.cross_entropy(z.transpose(1, 2), y.expand(len(z), -1), reduction="none").mean(1)
    unfair = ((s - s.mean())[:, None] * (z - z.mean(1, keepdim=True))).square().mean(1).sum(1)
    return torch.logsumexp(torch.stack([loss, unfair], 1) / preference.clamp_min(1e-6), 1).mean()


class Adam:
    """Adam with weight decay for one vector; torch's own takes longer to begin than these steps take."""

    def __init__(self, like: Tensor) -> None:
        self.m, self.v, self.t = torch.zeros_like(like), torch.zeros_like(like), 0

    def step(self, value: Tensor, gradient: Tensor) -> Tensor:
        gradient = gradient + DECAY * value
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * gradient
        self.v = 0.999 * self.v + 0.001 * gradient * gradient
        scale = (self.v / (1 - 0.999**self.t)).sqrt() + 1e-8
        return value - RATE / (1 - 0.9**self.t) * self.m / scale


def batches(rows: Rows, epochs: int, rng: np.random.Generator) -> Iterator[Rows]:
    for _ in range(epochs):
        order = torch.from_numpy(rng.permutation(len(rows.y)))
        yield from (Rows(*(part[chosen] for part in rows)) for chosen in order.split(BATCH))


def trained(fed: Federation, seed: int) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """The base and the clients' heads after every round."""
    rng = np.random.default_rng(seed)
    base_parts, head_parts = shapes(fed.rows.x.shape[1])
    base, head = initial(base_parts, rng), initial(head_parts, rng)
    clients = [rows_of(fed, fed.train[k]) for k in range(fed.num_clients)]
    heads, sizes, middle = [head] * len(clients), torch.tensor(fed.train.sizes).float(), torch.full((1, 2), 0.5)
    for _ in range(ROUNDS):
        bases = []
        for k, rows in enumerate(clients):
            own, fixed, adam = base, taken(heads[k], head_parts), Adam(base)
            for x, y, _ in batches(rows, BASE_EPOCHS, rng):
                own = own.clone().requires_grad_()
                loss = F.cross_entropy(logits(fixed, features(taken(own, base_parts), x), middle)[0], y)
                (slope,) = torch.autograd.grad(loss, own)
                own = adam.step(own.detach(), slope)
            bases.append(own)
            with torch.no_grad():
                rows = rows._replace(x=features(taken(own, base_parts), rows.x))
            own, adam = heads[k], Adam(head)
            for h, y, s in batches(rows, HEAD_EPOCHS, rng):
                preference = torch.from_numpy(rng.dirichlet((1, 1), PREFERENCES).astype(np.float32))
                own = own.clone().requires_grad_()
                loss = chebyshev(logits(taken(own, head_parts), h, preference), y, s.float(), preference)
                (slope,) = torch.autograd.grad(loss, own)
                own = adam.step(own.detach(), slope)
            heads[k] = own
        base = (torch.stack(bases) * (sizes / sizes.sum())[:, None]).sum(0)
        yield base, heads


# -- scores ------------------------------------------------------------------------------------------------------------


def counted(decided: np.ndarray, y: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Rows by group, label and decision [..., 2, 2, 2] of decisions [..., n]."""
    cells = [[(s == g) & (y == c) for c in (0, 1)] for g in (0, 1)]
    ones = np.stack([np.stack([decided[..., cell].sum(-1) for cell in line], -1) for line in cells], -2)
    number = np.array([[cell.sum() for cell in line] for line in cells])
    return np.stack([number - ones, ones], -1).astype(float)


def points(counts: np.ndarray) -> np.ndarray:
    """(error, max_s |r_s - r|) [..., 2] of counts [..., 2, 2, 2]."""
    error = (counts[..., 0, 1] + counts[..., 1, 0]).sum(-1) / counts.sum((-1, -2, -3))
    by_group = counts.sum(-2)  # [..., group, decision]
    rate = by_group[..., 1] / by_group.sum(-1)
    overall = by_group[..., 1].sum(-1) / by_group.sum((-1, -2))
    return np.stack([error, np.abs(rate - overall[..., None]).max(-1)], -1)


def hypervolumes(counts: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """On common and on own rows, of counts [models, clients, 2, 2, 2] and the clients' rows by group and label."""
    share = counts / counts.sum(-1, keepdims=True).clip(1)
    common, own = points(counts).mean(1), points((share * cells[..., None]).sum(1))
    return np.array([hypervolume(common), hypervolume(own)])


def hypervolume(found: np.ndarray) -> float:
    """The area of the unit square that is worse than a point in both."""
    area, best = 0.0, 1.0
    for error, gap in sorted(found.tolist()):
        if gap < best:
            area, best = area + (1 - error) * (best - gap), gap
    return area


def cells_of(fed: Federation) -> np.ndarray:
    """The clients' training rows by group and label [K, 2, 2]."""
    held = [fed.train[k] for k in range(fed.num_clients)]
    return np.stack([counted(np.zeros(len(rows)), fed.rows.y[rows], fed.rows.s[rows])[..., 0] for rows in held])


class Score(NamedTuple):
    found: np.ndarray
    """Hypervolumes on common and on own rows, by seed [seeds, 2]."""
    seconds: float
    """CPU time of training, all seeds together."""
    sent: float
    """Bytes to and from a client, in a run."""


def preferences(feds: Sequence[Federation]) -> Score:
    scored, seconds = [], 0.0
    for seed, fed in enumerate(feds):
        base_parts, head_parts = shapes(fed.rows.x.shape[1])
        best, chosen = np.zeros(2), np.zeros(2)
        rounds, start = trained(fed, seed), time.process_time()
        for base, heads in rounds:
            seconds += time.process_time() - start
            measured = []
            for split in (fed.validation, fed.test):
                rows = rows_of(fed, split)
                h = features(taken(base, base_parts), rows.x)
                outputs = [logits(taken(head, head_parts), h, SCORED) for head in heads]
                decided = np.stack([(z[..., 1] > z[..., 0]).numpy() for z in outputs], 1)
                measured.append(hypervolumes(counted(decided, rows.y.numpy(), rows.s.numpy()), cells_of(fed)))
            valid, test = measured
            best, chosen = np.maximum(best, valid), np.where(valid > best, test, chosen)
            start = time.process_time()
        scored.append(chosen)
    sent = ROUNDS * 4 * (2 * sum(map(math.prod, base_parts)) + 1)
    return Score(np.array(scored), seconds, sent)


def sweep(feds: Sequence[Federation], method: Method, name: str, first: float, last: float, settings: int) -> Score:
    assert method.knob is not None
    assert method.knob.neutral is not None
    values = [method.knob.neutral, *np.geomspace(first, last, settings - 1).tolist()]
    epochs = ROUNDS * (BASE_EPOCHS + HEAD_EPOCHS) // (settings * SWEEP_ROUNDS)
    local = ef.Local(epochs=epochs, batch_size=BATCH, optimizer="adam", learning_rate=RATE, weight_decay=DECAY)
    start = time.process_time()
    result = ef.simulate(
        method, list(feds), model=ef.models.MLP(hidden=(WIDTH, WIDTH)), over={name: values}, rounds=SWEEP_ROUNDS,
        local=local, seeds=range(len(feds)), eval_every=SWEEP_ROUNDS,
    )  # fmt: skip
    seconds, scored = time.process_time() - start, []
    for seed, fed in enumerate(feds):
        x, y, s = (part[fed.test] for part in fed.rows[:3])
        who = fed.ids if method.personal else (None,) * fed.num_clients
        decided = [[result.predict(x, client=client, run=(value, seed)) > 0.5 for client in who] for value in values]
        scored.append(hypervolumes(counted(np.array(decided), y, s), cells_of(fed)))
    table = result.messages
    times = np.where(table["stage"] == "round", SWEEP_ROUNDS, 1) * table["times"]
    sent = settings * float((times * (table["bytes_down"] + table["bytes_up"])).sum())
    return Score(np.array(scored), seconds, sent)


def interval(values: np.ndarray) -> float:
    return float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)))


def line(what: str, score: Score, reference: Score) -> None:
    """Means over seeds, and how far they lie above the reference, seed by seed, with a 95 % interval."""
    cells = [what]
    for found, other in zip(score.found.T, reference.found.T, strict=True):
        beside = "" if score is reference else f" ({np.mean(found - other):+.3f} ± {interval(found - other):.3f})"
        cells.append(f"{found.mean():.3f}{beside}")
    print(f"| {' | '.join(cells)} | {score.seconds:.0f} | {score.sent / 1e3:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="adult,compas")
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--alpha", type=float, default=0.5)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--settings", type=int, default=10)
    options = parser.parse_args()
    for data in options.data.split(","):
        partition = ef.partition.Dirichlet(options.clients, options.alpha, min_rows=50)
        feds = ef.load(data, sensitive="sex", partition=partition, seeds=range(options.seeds))
        print(f"\n| {data} | common rows | own rows | CPU seconds | kB per client |\n|---|---|---|---|---|")
        line("PraFFL, 101 preferences", praffl := preferences(feds), praffl)
        for method, name, *ends in SWEEPS:
            kind = {"fedfact": ", personal" if method.personal else ", one model"}.get(method.name, "")
            what = f"`{method.name}`{kind}, {options.settings} values of `{name}`"
            line(what, sweep(feds, method, name, *ends, options.settings), praffl)


if __name__ == "__main__":
    main()
