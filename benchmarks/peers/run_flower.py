"""FedAvg in Flower's simulation engine, all clients in one worker of Ray: run_flower.py WORKLOAD"""

from __future__ import annotations

import sys

import numpy as np
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn
from workload import Clock, given, read

client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """The same steps as in the tight loop of run_torch.py."""
    work = read(message.content["config"]["workload"])
    client = context.node_config["partition-id"]
    x, y = torch.from_numpy(work.x[client]), torch.from_numpy(work.y[client])
    net = nn.Linear(work.features, 1)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=work.rate)
    for _ in range(work.epochs):
        for rows in torch.randperm(len(y)).split(work.batch):
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(net(x[rows]).squeeze(-1), y[rows]).backward()
            optimizer.step()
    reply = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(RecordDict(reply), reply_to=message)


def main() -> None:
    work, final = given(), dict[str, np.ndarray]()
    clock = Clock()

    def tick(number: int, arrays: ArrayRecord) -> None:
        if number:  # 0 is before the first round
            clock.tick()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=work.clients, min_available_nodes=work.clients)
        zero = ArrayRecord({"weight": torch.zeros(1, work.features), "bias": torch.zeros(1)})
        where = ConfigRecord({"workload": sys.argv[1]})
        result = strategy.start(grid, zero, num_rounds=work.rounds, train_config=where, evaluate_fn=tick)
        final.update({name: array.numpy() for name, array in result.arrays.items()})

    one = {"init_args": {"num_cpus": 1}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, work.clients, backend_config=one)
    clock.report(final["weight"], final["bias"].item(), "flwr", "ray", "torch")


if __name__ == "__main__":
    main()
