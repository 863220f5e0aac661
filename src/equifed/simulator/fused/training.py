"""Convert a phase's local training to the kernels' problem, and its result back."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equifed import tree
from equifed.edge_popup import EdgePopup, num_kept
from equifed.modules import frozen_values
from equifed.protocol import EmpiricalRisk
from equifed.simulator.fused.problem import Network, Problem, network_of
from equifed.simulator.job import Job
from equifed.simulator.lane_steps import LaneTraining
from equifed.simulator.tables import Tables
from equifed.tree import Tree

if TYPE_CHECKING:
    from equifed.simulator.fused.edges import Edges


class Fused:
    """Local training by the fused kernels."""

    def __init__(self, job: Job, tables: Tables) -> None:
        self.job, self.tables = job, tables

    @cached_property
    def network(self) -> Network | None:
        return network_of(self.job.task)

    @cached_property
    def _kernels(self) -> Any:
        """The kernels' module for this job's device, imported on first use."""
        name = "equifed.simulator.fused." + self.job.device.type
        return importlib.import_module(name)

    def _columns(self) -> tuple[Tensor, Tensor]:
        """Return features [rows, inputs] and labels [rows] of all rows, as kernels read them."""
        x, y = self._whole
        window = self.tables.window
        if window is not None:  # its rows change every round
            new = slice(window.begin, window.begin + window.filled)
            y[new] = self.tables.y[new]
            if x.data_ptr() != self._flat.data_ptr():
                x[new, : self._flat.shape[1]] = self._flat[new]
        return x, y

    @cached_property
    def _whole(self) -> tuple[Tensor, Tensor]:
        return self._kernels.features(self._flat), self.tables.y.to(torch.float32)

    @property
    def _flat(self) -> Tensor:
        return self.tables.x.reshape(len(self.tables.x), -1)

    @cached_property
    def _model_obstacle(self) -> str:
        if self.job.device.type not in ("cpu", "cuda"):
            return "device"
        if self.job.has_dropout:
            return "dropout"
        if frozen_values(self.job.task.module):
            return "frozen"
        return "model" if self.network is None else self._kernels.obstacle(self.network)

    def obstacle(self, work: LaneTraining, parameters: Tree) -> str:
        """Return why this training cannot be fused, as a word that the note "kernel" explains; empty if it can."""
        loss = work.steps.work.loss
        if type(loss) not in (EmpiricalRisk, EdgePopup):
            return "loss"
        if work.steps.work.after_step is not None:
            return "after_step"
        if type(loss) is EdgePopup and work.resample is not None:  # its kernel does not support resampling
            return "loss"
        if type(loss) is EdgePopup and self.job.device.type != "cpu":
            return "device"
        if self._model_obstacle:
            return self._model_obstacle
        assert self.network is not None
        same = isinstance(parameters, dict) and set(parameters) == set(self.network.names)
        return "" if same else "parameters"

    def _pack(self, parameters: Tree, lanes: int) -> Tensor:
        """Pack parameters by name [L, ..., shape] into one vector for each model of each lane [L, U, size]."""
        assert self.network is not None
        shapes = self._shapes
        parts = [parameters[name].reshape(lanes, -1, shapes[name].numel()) for name in self.network.names]
        return torch.cat(parts, -1)

    def _unpack(self, theta: Tensor, like: Tree) -> Tree:
        """Invert `_pack`, with the shapes and the order of `like`."""
        assert self.network is not None
        sizes = [self._shapes[name].numel() for name in self.network.names]
        parts = dict(zip(self.network.names, theta.split(sizes, -1), strict=True))
        return {name: parts[name].reshape(leaf.shape) for name, leaf in like.items()}

    @cached_property
    def _shapes(self) -> dict[str, torch.Size]:
        return {name: parameter.shape for name, parameter in self.job.task.parameters.items()}

    def train(self, work: LaneTraining, parameters: Tree) -> tuple[Tree, Tree]:
        """Train all lanes for all epochs; return the trained parameters and the last epoch's context."""
        loss, local, count = work.steps.work.loss, self.job.task.local, len(work.lanes)
        assert self.network is not None
        assert isinstance(loss, EmpiricalRisk | EdgePopup)
        theta = self._pack(parameters, count)
        moments = 2 if local.optimizer == "adam" else int(local.momentum > 0)
        state = theta.new_zeros(*theta.shape[:2], moments, theta.shape[2])
        taken = torch.zeros(count, dtype=torch.int64, device=theta.device)
        problem = Problem(
            *(self.network, local, *self._columns(), self.tables.index),
            *(work.inputs.start, work.inputs.n, work.keys, work.rate),
            scaling=tree.map(lambda leaf: leaf.reshape(count, -1), work.inputs.scaling),
            threads=self.job.threads,
        )
        if isinstance(loss, EdgePopup):
            from equifed.simulator.fused import edges

            edges.train(problem, self._make_edges(loss, work, theta), theta, state, taken, range(work.epochs))
            return self._unpack(theta, parameters), work.context
        mu = None if loss.mu is None else self._expand(work.steps.number("mu", work.inputs.hyper).to(theta), theta)
        problem = replace(problem, weights=_pack_row_weights(loss, work.per_row, count), mu=mu)
        for epochs in work.stretches():
            if work.resample is not None:
                work = work.with_resampled_rows(self._unpack(theta, parameters), epochs.start)
            centre, linear = (
                None if name is None else self._pack(work.context[name], count)
                for name in (None if loss.mu is None else loss.centre, loss.linear)
            )
            problem = replace(problem, centre=centre, linear=linear, chosen=work.chosen)
            self._kernels.train(problem, theta, state, taken, epochs)
        return self._unpack(theta, parameters), work.context

    def _expand(self, number: Tensor, theta: Tensor) -> Tensor:
        """Expand a number of the loss to each model of each lane [L, U]."""
        lanes, models = theta.shape[:2]
        if number.dim() < 2:
            return number.reshape(-1, 1).expand(lanes, models).contiguous()
        return number.repeat_interleave(models // number.shape[1], 1).contiguous()

    def _make_edges(self, loss: EdgePopup, work: LaneTraining, theta: Tensor) -> Edges:
        from equifed.simulator.fused.edges import Edges

        assert self.network is not None
        keep = self._expand(work.steps.number("keep", work.inputs.hyper), theta)
        numbers = [torch.as_tensor(num_kept(keep, self._shapes[name].numel())) for name in self.network.names]
        # settings that share a lane share its seed, and so the weights
        weights = self._pack(work.context, len(theta))[:, 0].contiguous()
        groups = self.job.task.num_groups if loss.by_group else 0
        return Edges(weights, torch.stack(numbers, -1).contiguous(), self.tables.s.long(), groups)


def _pack_row_weights(loss: EmpiricalRisk, per_row: dict[str, Tensor], lanes: int) -> Tensor | None:
    """Return w of each lane's rows for each model [L, U, n]; None without row weights."""
    if loss.weights is None:
        return None
    values = per_row[loss.weights]
    if loss.models:
        values = values.movedim(-1, -2)
    return values.reshape(lanes, -1, values.shape[-1]).to(torch.float32).contiguous()
