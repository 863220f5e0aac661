"""FedAvg in pfl: its simulated backend with a PyTorch model, weighted by data points. Run as run_pfl.py WORKLOAD"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from workload import Clock, given


class Logistic(nn.Linear):
    def __init__(self, features: int) -> None:
        super().__init__(features, 1)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(self(x).squeeze(-1), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y))}


class Ticking(TrainingProcessCallback):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, Metrics]:
        self.clock.tick()
        return False, Metrics()


def main() -> None:
    work = given()
    clock = Clock()
    x, y = torch.from_numpy(work.x), torch.from_numpy(work.y)
    # kept between rounds, with the batches that pfl cuts once and does not shuffle
    make_client = functools.cache(lambda k: PyTorchTensorDataset((x[k], y[k])))
    clients = FederatedDataset(make_client, MinimizeReuseUserSampler(range(work.clients)))
    net = Logistic(work.features)
    FederatedAveraging().run(
        # pfl always evaluates in the first round; here in no other one
        NNAlgorithmParams(
            work.rounds, evaluation_frequency=work.rounds, train_cohort_size=work.clients, val_cohort_size=0
        ),
        SimulatedBackend(clients, clients, postprocessors=[WeightByDatapoints()]),
        PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0)),
        NNTrainHyperParams(work.batch, local_num_epochs=work.epochs, local_learning_rate=work.rate),
        callbacks=[Ticking(clock)],
        send_metrics_to_platform=False,
    )
    clock.report(net.weight.detach().numpy(), net.bias.item(), "pfl", "torch")


if __name__ == "__main__":
    main()
