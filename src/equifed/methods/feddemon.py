"""FedDemon: Fernandes et al., Decay Momentum for Improving Federated Learning, ESANN 2021.

FedMom with a momentum that decays to 0 over the T rounds:

    beta_t = beta0 (1 - t/T) / ((1 - beta0) + beta0 (1 - t/T))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from equifed.methods.fedmom import Server, ServerMomentum
from equifed.methods.hyper import hyper


def decay_momentum(beta0: Tensor | float, t: Tensor, T: Tensor) -> Tensor:
    """Return beta_t = beta0 (1 - t/T) / ((1 - beta0) + beta0 (1 - t/T)): beta0 at the start, 0 in the last round."""
    left = 1 - t / T
    return beta0 * left / ((1 - beta0) + beta0 * left)


@dataclass(frozen=True)
class FedDemon(ServerMomentum):
    """FedAvg with a momentum at the server that decays over the rounds."""

    name: ClassVar[str] = "feddemon"

    beta0: float = hyper(0.9, low=0, high=0.999, vanishes=True)
    """Momentum of the first rounds; 0 gives FedAvg."""

    def momentum(self, t: Tensor, T: Tensor) -> Tensor:
        return decay_momentum(self.beta0, t, T)

    def observe(self, server: Server) -> dict[str, Tensor]:
        return {"beta": self.momentum(server.t, server.T)}
