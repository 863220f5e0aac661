"""A trained model as a program of its own, for torch: what `torch.export` makes of it."""

from __future__ import annotations

import copy
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from equifed.errors import ConfigError, RunError
from equifed.models import SharedLinear
from equifed.protocol import adjust_predictions
from equifed.results.model import probabilities

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from equifed.results.model import Model

TOLERANCE = 1e-6
"""How far a program may be from the model that it was made of."""
SAMPLE = 64
"""Rows on which they are compared."""


class Program(nn.Module):
    """A model as a function of its inputs x [n, ...] before scaling and, where it decides by groups, their codes s [n],
    -1 where unknown: probabilities of every class [n, C], or values [n] in the label's unit."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        state = model.state
        module = copy.deepcopy(state.task.module)
        for part in module.modules():
            if isinstance(part, SharedLinear):  # torch.export knows torch's own layer, which computes the same
                part.__class__ = nn.Linear  # type: ignore[assignment]
        self.method, self.server, self.client = state.method, state.server, state.client_state(model.client)
        self.task = replace(state.task, module=module)
        self.label_range = None if model.schema is None else model.schema.label_range
        self.scaling = None if state.scaling is None else tuple(torch.from_numpy(part) for part in state.scaling)

    def forward(self, x: Tensor, s: Tensor | None = None) -> Tensor:
        if self.scaling is not None:
            x = (x - self.scaling[0]) * self.scaling[1]
        found = self.method.predict(self.task, self.server, self.client, x)
        if s is not None:
            u = torch.full((x.shape[0],), 0.5, dtype=torch.float64)  # any: nothing is drawn
            found = adjust_predictions(self.method, self.task, self.server, self.client, found, s, u)
        if self.task.kind == "regression":
            if self.label_range is None:
                return found
            low, high = self.label_range
            return low + found.double() * (high - low)
        return torch.stack([1 - found, found], 1) if found.dim() == 1 else found


def exported(model: Model) -> ExportedProgram:
    """The model as a program of torch's own operators, for any number of rows."""
    if model.draws:
        raise ConfigError(
            f"{model.method} draws its decisions by chance, so that no fixed program makes them. Score rows with "
            "`equifed predict` or Model.predict, which draw them by the seed; or train without the post-processing."
        )
    program, rows = Program(model), torch.export.Dim("rows")
    x = torch.zeros(3, *model.state.shape)
    inputs: tuple[Tensor, ...] = (x, torch.zeros(3, dtype=torch.int64)) if model.needs_groups else (x,)
    with torch.no_grad(), quiet():
        return torch.export.export(program, inputs, dynamic_shapes=tuple({0: rows} for _ in inputs))


def to_torch(model: Model) -> bytes:
    """What `torch.export.load` reads: a program that takes encoded inputs (`Schema.inputs`) before scaling, float32,
    and where the model decides by groups their codes (`Schema.group_codes`). Compared with the model before it is
    handed out."""
    program = exported(model)
    rng = np.random.default_rng(0)
    x = sample_inputs(model, rng)
    s = rng.integers(-1, len(model.groups), len(x)) if model.needs_groups else None
    inputs = [torch.from_numpy(x), *([torch.from_numpy(s)] if s is not None else [])]
    with torch.no_grad():
        found = program.module()(*inputs).numpy()
    check_same("torch program", found, expected_of(model, model.scores_of_inputs(x, groups=s)))
    content = io.BytesIO()
    with quiet():
        torch.export.save(program, content)
    return content.getvalue()


def sample_inputs(model: Model, rng: np.random.Generator) -> np.ndarray:
    """Encoded rows that lie where the training rows did, as far as the scaling tells."""
    x = rng.normal(size=(SAMPLE, *model.state.shape))
    if model.state.scaling is not None:
        shift, factor = (part.astype(np.float64) for part in model.state.scaling)
        x = shift + x / np.where(factor == 0, 1, factor)
    return x.astype(np.float32)


def expected_of(model: Model, scores: np.ndarray) -> np.ndarray:
    """What the model itself says of rows with these scores, as a program's output has it."""
    return probabilities(scores) if model.is_classifier else model.in_label_unit(scores)


def check_same(what: str, found: np.ndarray, expected: np.ndarray) -> None:
    """Refuse a program that says anything else than its model."""
    scale = np.maximum(1.0, np.abs(expected))
    wrong = found.shape != expected.shape or not (np.abs(found - expected) <= TOLERANCE * scale).all()
    if wrong:
        far = "another shape" if found.shape != expected.shape else f"{np.abs(found - expected).max():.2g}"
        raise RunError(
            f"The {what} does not say what the model says (by {far} on sample rows), so it is not written. Please "
            "report this with the model."
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Without the exporters' remarks about packages that are not needed here."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
