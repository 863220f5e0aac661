"""FedAvg as a loop in torch: run_torch.py WORKLOAD dataloader|tight

dataloader: as it is usually written, with a DataLoader for each client; tight: rows are taken by index."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from workload import Clock, given

Batches = Callable[[], Iterable[tuple[Tensor, Tensor]]]


def by_loader(x: Tensor, y: Tensor, batch: int) -> Batches:
    loader = DataLoader(TensorDataset(x, y), batch_size=batch, shuffle=True)
    return lambda: loader


def by_index(x: Tensor, y: Tensor, batch: int) -> Batches:
    return lambda: ((x[rows], y[rows]) for rows in torch.randperm(len(y)).split(batch))


def main(batches: Callable[[Tensor, Tensor, int], Batches]) -> None:
    work = given()
    clock = Clock()
    x, y = torch.from_numpy(work.x), torch.from_numpy(work.y)
    clients = [batches(xk, yk, work.batch) for xk, yk in zip(x, y, strict=True)]
    shares = torch.tensor([len(yk) / y.numel() for yk in y])
    net = nn.Linear(work.features, 1)
    theta = {name: torch.zeros_like(value) for name, value in net.state_dict().items()}
    for _ in range(work.rounds):
        trained = []
        for epoch in clients:
            net.load_state_dict(theta)
            optimizer = torch.optim.SGD(net.parameters(), lr=work.rate)
            for _ in range(work.epochs):
                for xb, yb in epoch():
                    optimizer.zero_grad()
                    F.binary_cross_entropy_with_logits(net(xb).squeeze(-1), yb).backward()
                    optimizer.step()
            trained.append({name: value.clone() for name, value in net.state_dict().items()})
        theta = {name: torch.tensordot(shares, torch.stack([each[name] for each in trained]), 1) for name in theta}
        clock.tick()
    clock.report(theta["weight"].numpy(), theta["bias"].item(), "torch")


if __name__ == "__main__":
    main({"dataloader": by_loader, "tight": by_index}[sys.argv[2]])
