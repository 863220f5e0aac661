"""A task: a model as a function of its parameters, the loss of a row, and the sizes that methods may need; and the rows
that a client has of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from equifed.dropout import dropping
from equifed.modules import trained
from equifed.tree import Tree

if TYPE_CHECKING:
    from equifed.settings import Local

Record = dict[str, Tree]
"""Named tensors or trees: what travels in one message."""
TaskKind = Literal["classification", "regression"]
LabelKind = Literal["binary", "multiclass", "regression"]
LEAST_PROBABILITY = 1e-7
"""How far the probabilities that a loss is computed from are kept off 0 and 1."""


def label_kind(task: TaskKind, num_classes: int) -> LabelKind:
    """What the labels of a task are, in the words of `Method.label_kinds`."""
    if task == "regression":
        return "regression"
    return "binary" if num_classes == 2 else "multiclass"


@dataclass(frozen=True, eq=False)
class Task:
    """What is learned, from how many, and for how long. Nothing in it changes during a run."""

    module: nn.Module
    """The model's architecture, and the values of what is frozen in it; those of the other parameters are not used."""
    kind: TaskKind
    """Classification or regression."""
    num_classes: int
    """Classes of the label (0 for regression)."""
    num_groups: int
    """Groups of the sensitive attribute."""
    num_clients: int
    """Clients of the federation, present or not."""
    rounds: int
    """Rounds planned (T)."""
    local: Local
    """Settings of local training."""
    sensitive_size: int = 1
    """Numbers that describe a row's sensitive attribute (`Data.sensitive`)."""
    num_client_groups: int = 0
    """Known groups of clients (0: none known)."""
    binary: bool = False
    """The model has one output, the logit of class 1, instead of one per class."""
    dropout: Tensor | None = None
    """The key [2] by which the model's dropout layers drop units, in a step of local training (`equifed.dropout`);
    None elsewhere: nothing is dropped."""

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The parameters that are trained and sent, by name; their values mean nothing."""
        return trained(self.module)

    def in_step(self, dropout: Tensor) -> Task:
        """The same in a step of local training with this key of dropout."""
        return replace(self, dropout=dropout)

    def rate(self, round: int) -> float:
        """The step size of local training in this round; before round 1, that of round 1."""
        return self.local.rate(max(round, 1), self.rounds)

    def forward(self, parameters: Tree, x: Tensor) -> Tensor:
        """The model's raw output: logits [n] (binary) or [n, classes]; predictions [n] for regression."""
        out: Tensor
        if self.dropout is None:
            out = functional_call(self.module, parameters, (x,))
        else:
            with dropping(self.dropout):
                out = functional_call(self.module, parameters, (x,))
        scalar = self.binary or self.kind == "regression"
        return out.squeeze(-1) if scalar and out.dim() == 2 else out

    def row_loss(self, parameters: Tree, x: Tensor, y: Tensor) -> Tensor:
        """The loss of each row [n]: log loss, cross entropy, or squared error."""
        return self.loss_of(self.forward(parameters, x), y)

    def loss_of(self, output: Tensor, y: Tensor) -> Tensor:
        """The loss of each row from the model's raw output."""
        if self.kind == "regression":
            return (output - y).square()
        if self.binary:
            # -log p(y) = log(1 + e^z) - y z
            return F.softplus(output) - y.to(output.dtype) * output
        picked = torch.gather(output, -1, y.unsqueeze(-1)).squeeze(-1)
        return torch.logsumexp(output, -1) - picked

    def predict(self, parameters: Tree, x: Tensor) -> Tensor:
        """Probability of class 1 [n] (binary), of every class [n, classes], or the prediction [n]."""
        out = self.forward(parameters, x)
        if self.kind == "regression":
            return out
        return torch.sigmoid(out) if self.binary else torch.softmax(out, -1)

    def loss_of_prediction(self, prediction: Tensor, y: Tensor) -> Tensor:
        """The loss of each row from what `predict` returned; probabilities are kept off 0 and 1."""
        if self.kind == "regression":
            return (prediction - y).square()
        if prediction.dim() == 1:
            picked = torch.where(y == 1, prediction, 1 - prediction)
        else:
            picked = torch.gather(prediction, -1, y.unsqueeze(-1)).squeeze(-1)
        return -picked.clamp(LEAST_PROBABILITY, 1 - LEAST_PROBABILITY).log()

    @staticmethod
    def decide(prediction: Tensor) -> Tensor:
        """The predicted class from `predict`'s probabilities: above one half, or the largest."""
        return (prediction > 0.5).long() if prediction.dim() == 1 else prediction.argmax(-1)


@dataclass(frozen=True, eq=False)
class Data:
    """The rows that one client (or the server's validation set, or one batch) holds, and what belongs to them."""

    x: Tensor
    """Features [n, ...]."""
    y: Tensor
    """Labels [n]: class codes, or values for regression."""
    s: Tensor
    """Group codes of the sensitive attribute [n]; -1 where the group is unknown. Such a row takes part in training, but
    in no statistic of groups: see `known`."""
    mask: Tensor
    """1.0 for a row, 0.0 for padding [n]."""
    task: Task
    """The model and the sizes."""
    per_row: Mapping[str, Tensor] = field(default_factory=dict)
    """Values that `prepare` computed for each row, [n, ...] each."""
    draws: Mapping[str, Tensor] = field(default_factory=dict)
    """The phase's random numbers by name."""
    client_group: Tensor | None = None
    """The client's known group, where the federation has them."""
    batches: tuple[Tensor, ...] = ()
    """Row positions of each step of local training, in order."""
    uniforms: tuple[Tensor, ...] = ()
    """Random numbers in [0, 1) for each row [n], for each epoch of local training that resamples."""
    dropout: tuple[Tensor, ...] = ()
    """Where the model has dropout, the key of each step of local training; see `Task.dropout`."""
    learning_rate: float | Tensor = 0.0
    """The step size of this round."""
    attribute: Tensor | None = None
    """The sensitive attribute as numbers [n, d], where it says more than the group; see `sensitive`. A batch has none:
    hand its rows' numbers on as `per_row`."""
    client: Tensor | None = None
    """The client's position in the federation, as in the server's `replies["client"]`. A batch has none."""
    initial: Tree = ()
    """The model's initial parameters, which everyone makes from the shared seed, so that nothing is sent; in phases
    that ask for them. A batch has none: hand them on as context."""

    @classmethod
    def of(cls, validation: Tree, task: Task) -> Data:
        """Validation rows as they travel: (x, y, s, mask)."""
        x, y, s, mask = validation
        return cls(x, y, s, mask, task)

    @property
    def sensitive(self) -> Tensor:
        """The sensitive attribute as numbers [n, d]: a continuous one or several columns where the federation has them,
        else the group, as 0 or 1 where there are two and one-hot where there are more. It means nothing for a row of
        unknown group: look at those of `known`."""
        if self.attribute is not None:
            return self.attribute
        if self.task.num_groups <= 2:
            return self.s[:, None].to(self.mask.dtype)
        groups = torch.arange(self.task.num_groups, device=self.s.device)
        return (self.s[:, None] == groups).to(self.mask.dtype)

    @property
    def n(self) -> Tensor:
        """How many rows there are, as a tensor."""
        return self.mask.sum()

    def masked(self, values: Tensor) -> Tensor:
        """Values of the rows [n, ...], with zeros in place of padding whatever stands there."""
        mask = self.mask.reshape(self.mask.shape + (1,) * (values.dim() - 1))
        return torch.where(mask > 0, values, torch.zeros_like(values))

    def sum(self, values: Tensor) -> Tensor:
        """Sum over the rows [n, ...] -> [...], padding excluded."""
        return self.masked(values).sum(0)

    def mean(self, values: Tensor) -> Tensor:
        """Mean over the rows; 0 for a client without any, whose weight is 0 too."""
        return self.sum(values) / self.n.clamp_min(1)

    def where(self, keep: Tensor) -> Data:
        """The same rows with those outside `keep` treated as padding: `data.where((data.s == 1) & (data.y == 1))`."""
        return self.replace(mask=self.mask * keep.to(self.mask.dtype))

    @property
    def known(self) -> Data:
        """The same rows with those of unknown group treated as padding: what a statistic of groups is about."""
        return self.where(self.s >= 0)

    def of_groups(self, values: Tensor, unknown: float) -> Tensor:
        """What each row's group has [G, ...] -> [n, ...]; `unknown` where the group is."""
        known = (self.s >= 0).reshape(-1, *(1,) * (values.dim() - 1))
        return torch.where(known, values[self.s.clamp_min(0)], unknown)

    def batch(self, rows: Tensor, per_row: Mapping[str, Tensor]) -> Data:
        """The rows at these positions, with their entries of `per_row`."""
        return self.replace(
            x=self.x[rows],
            y=self.y[rows],
            s=self.s[rows],
            mask=self.mask[rows],
            per_row={name: values[rows] for name, values in per_row.items()},
            attribute=None,
            client=None,
            initial=(),
        )

    def replace(self, **changes: Any) -> Data:
        """The same with some fields changed."""
        names = (field.name for field in fields(Data))
        return Data(**{name: changes[name] if name in changes else getattr(self, name) for name in names})


def num_outputs(kind: TaskKind, num_classes: int) -> int:
    """Outputs of a model that is made for the task: one logit for two classes, one value for regression."""
    return 1 if kind == "regression" or num_classes == 2 else num_classes
