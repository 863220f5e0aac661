"""FedAvg in FedJAX, with its jit backend and its own batches: run_fedjax.py WORKLOAD fed_avg|for_each_client

fed_avg: the algorithm that comes with it; for_each_client: the same from its parts, without what this workload does not
need (optimiser state, a random key in every step, norms of updates), as fast as its simulation goes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import fedjax
import jax
import jax.numpy as jnp
from fedjax import ClientDataset, ShuffleRepeatBatchHParams, tree_util
from fedjax.algorithms.fed_avg import federated_averaging
from workload import Clock, given

Theta = dict[str, jnp.ndarray]
Clients = list[ClientDataset]


def losses(theta: Theta, batch: Theta) -> jnp.ndarray:
    margin = batch["x"] @ theta["weights"] + theta["bias"]
    return jnp.logaddexp(0, margin) - batch["y"] * margin


def by_algorithm(theta: Theta, clients: Clients, batches: ShuffleRepeatBatchHParams, rate: float) -> Iterator[Theta]:
    gradient = fedjax.grad(lambda theta, batch, _: losses(theta, batch))
    algorithm = federated_averaging(gradient, fedjax.optimizers.sgd(rate), fedjax.optimizers.sgd(1.0), batches)
    state, key = algorithm.init(theta), jax.random.PRNGKey(0)
    while True:
        key, *keys = jax.random.split(key, 1 + len(clients))
        state, _ = algorithm.apply(state, list(zip(range(len(clients)), clients, keys, strict=True)))
        yield state.params


def by_parts(theta: Theta, clients: Clients, batches: ShuffleRepeatBatchHParams, rate: float) -> Iterator[Theta]:
    def step(theta: Theta, batch: Theta) -> Theta:
        slopes = jax.grad(lambda theta: losses(theta, batch).mean())(theta)
        return jax.tree_util.tree_map(lambda value, slope: value - rate * slope, theta, slopes)

    train = fedjax.for_each_client(lambda theta, _: theta, step)
    while True:
        rows = [(k, client.shuffle_repeat_batch(batches), ()) for k, client in enumerate(clients)]
        theta = tree_util.tree_mean((trained, float(len(clients[k]))) for k, trained in train(theta, rows))
        yield theta


def main(method: Callable[[Theta, Clients, ShuffleRepeatBatchHParams, float], Iterator[Theta]]) -> None:
    work = given()
    clock = Clock()
    fedjax.set_for_each_client_backend("jit")
    clients = [ClientDataset({"x": xk, "y": yk}) for xk, yk in zip(work.x, work.y, strict=True)]
    zero = {"weights": jnp.zeros(work.features), "bias": jnp.zeros(())}
    models = method(zero, clients, ShuffleRepeatBatchHParams(work.batch, num_epochs=work.epochs), work.rate)
    for _ in range(work.rounds):
        theta = jax.block_until_ready(next(models))
        clock.tick()
    clock.report(theta["weights"], theta["bias"], "fedjax", "jax")


if __name__ == "__main__":
    main({"fed_avg": by_algorithm, "for_each_client": by_parts}[sys.argv[2]])
