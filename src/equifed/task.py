"""The task: a model as a function of its parameters, the loss of a row, and the sizes that methods need."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from equifed.dropout import use_dropout
from equifed.modules import trained_parameters
from equifed.tree import Tree

if TYPE_CHECKING:
    from equifed.settings import Local

TaskKind = Literal["classification", "regression"]
LabelKind = Literal["binary", "multiclass", "regression"]
LEAST_PROBABILITY = 1e-7
"""Smallest distance from 0 and 1 of a probability in a loss."""


def label_kind(task: TaskKind, num_classes: int) -> LabelKind:
    """Return the kind of a task's labels, one of `Method.label_kinds`."""
    if task == "regression":
        return "regression"
    return "binary" if num_classes == 2 else "multiclass"


@dataclass(frozen=True, eq=False)
class Task:
    """The learning task: model, labels, numbers of groups and clients, and training settings. Constant during a run."""

    module: nn.Module
    """The model's architecture and frozen values; its other parameters' values are not used."""
    kind: TaskKind
    """Classification or regression."""
    num_classes: int
    """Classes of the label (0 for regression)."""
    num_groups: int
    """Number of groups of the sensitive attribute."""
    num_clients: int
    """Number of clients in the federation, present or not."""
    rounds: int
    """Number of planned rounds (T)."""
    local: Local
    """Settings of local training."""
    sensitive_size: int = 1
    """Number of values that describe a row's sensitive attribute (`Data.sensitive`)."""
    num_client_groups: int = 0
    """Number of known groups of clients (0: unknown)."""
    binary: bool = False
    """True if the model has one output, the logit of class 1, instead of one per class."""
    dropout: Tensor | None = None
    """Key [2] of the model's dropout in a step of local training (`equifed.dropout`). None elsewhere: no dropout."""

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The parameters that are trained and sent, by name; their values are not used."""
        return trained_parameters(self.module)

    def in_step(self, dropout: Tensor) -> Task:
        """Return the task for a step of local training with this dropout key."""
        return replace(self, dropout=dropout)

    def rate(self, round: int) -> float:
        """Return the step size of local training in this round; before round 1, that of round 1."""
        return self.local.rate(max(round, 1), self.rounds)

    def forward(self, parameters: Tree, x: Tensor) -> Tensor:
        """Return the model's raw output: logits [n] (binary) or [n, classes]; predictions [n] for regression."""
        out: Tensor
        if self.dropout is None:
            out = functional_call(self.module, parameters, (x,))
        else:
            with use_dropout(self.dropout):
                out = functional_call(self.module, parameters, (x,))
        scalar = self.binary or self.kind == "regression"
        return out.squeeze(-1) if scalar and out.dim() == 2 else out

    def row_loss(self, parameters: Tree, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each row [n]: log loss, cross entropy, or squared error."""
        return self.loss_of(self.forward(parameters, x), y)

    def loss_of(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each row from the model's raw output."""
        if self.kind == "regression":
            return (output - y).square()
        if self.binary:
            # -log p(y) = log(1 + e^z) - y z
            return F.softplus(output) - y.to(output.dtype) * output
        picked = torch.gather(output, -1, y.unsqueeze(-1)).squeeze(-1)
        return torch.logsumexp(output, -1) - picked

    def predict(self, parameters: Tree, x: Tensor) -> Tensor:
        """Return the probability of class 1 [n] (binary), of each class [n, classes], or the prediction [n]."""
        out = self.forward(parameters, x)
        if self.kind == "regression":
            return out
        return torch.sigmoid(out) if self.binary else torch.softmax(out, -1)

    def loss_of_prediction(self, prediction: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each row from the result of `predict`; probabilities are clamped away from 0 and 1."""
        if self.kind == "regression":
            return (prediction - y).square()
        if prediction.dim() == 1:
            picked = torch.where(y == 1, prediction, 1 - prediction)
        else:
            picked = torch.gather(prediction, -1, y.unsqueeze(-1)).squeeze(-1)
        return -picked.clamp(LEAST_PROBABILITY, 1 - LEAST_PROBABILITY).log()

    @staticmethod
    def decide(prediction: Tensor) -> Tensor:
        """Return the predicted class from `predict`'s probabilities: 1 if above one half, or the most probable one."""
        return (prediction > 0.5).long() if prediction.dim() == 1 else prediction.argmax(-1)


def num_outputs(kind: TaskKind, num_classes: int) -> int:
    """Return the number of outputs of a model built for the task: one for two classes (a logit) and for regression."""
    return 1 if kind == "regression" or num_classes == 2 else num_classes
