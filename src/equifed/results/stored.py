"""Final states as JSON and arrays: what a run folder and a pickle hold, and what predicting is rebuilt from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch

from equifed import methods, models, modules, tree
from equifed.errors import ConfigError
from equifed.protocol import Method, Task
from equifed.results.predict import FinalState, blank_states
from equifed.settings import Local
from equifed.task import num_outputs
from equifed.tree import Tree

Arrays = Mapping[str, np.ndarray]
LISTED = 10_000
"""Clients up to which a result names them all; of more, only where each has a model of its own."""
FROZEN = "frozen."
"""What the names of arrays begin with that no run has changed."""


class StoredStates(Mapping[Any, FinalState]):
    """The final states by the keys of `Result.parameters`, rebuilt when the first of them is asked for."""

    def __init__(self, about: Mapping[str, Any], arrays: Arrays | Callable[[], Arrays]) -> None:
        """about: see `describe`. arrays: the leaves of all states [runs, ...] by name, and what is frozen in the model;
        or what reads them."""
        self.about = about
        self._arrays = arrays

    @classmethod
    def pack(cls, states: Mapping[Any, FinalState]) -> StoredStates:
        """What predicting needs of the states, as JSON and arrays: the server's fields that clients get to apply the
        model, and the clients' states where each has a model of its own."""
        if isinstance(states, StoredStates):
            return states
        parts: dict[str, list[Tree]] = {"server": [_sent(state.method, state.server) for state in states.values()]}
        if any(_keeps_clients(state) for state in states.values()):
            parts["clients"] = [state.clients for state in states.values()]
        leaves = {
            name: leaf
            for part, trees in parts.items()
            if trees
            for name, leaf in tree.to_named(tree.stack(trees), part).items()
        }
        if states:  # what is frozen is one for all runs
            module = next(iter(states.values())).task.module
            leaves |= {f"{FROZEN}{name}": value.detach() for name, value in modules.frozen_values(module).items()}
        return cls(describe(states), {name: leaf.numpy() for name, leaf in leaves.items()})

    @cached_property
    def arrays(self) -> Arrays:
        return self._arrays() if callable(self._arrays) else self._arrays

    def rebuilt(self, model: Any = None) -> dict[Any, FinalState]:
        """The states themselves; `model` in place of one that nothing leads to again."""
        if model is None and self.about["model"] is None:
            raise ConfigError(
                "This result was read from a folder or a pickle, and its model was made in Python, so it cannot be "
                "made again from what is stored. Give the model that it was trained with: model=..."
            )
        spec = models.from_description(self.about["model"]) if model is None else model
        shape, sizes = tuple(self.about["shape"]), self.about["task"]
        module = models.build(spec, shape, num_outputs(sizes["kind"], sizes["num_classes"]))
        stored_frozen = {
            name.removeprefix(FROZEN): value for name, value in self.arrays.items() if name.startswith(FROZEN)
        }
        module = modules.prepare_module(modules.with_frozen(module, stored_frozen))
        task = Task(module=module, local=Local(**self.about["local"]), **sizes)
        states = {}
        for r, run in enumerate(self.about["runs"]):
            stored = run["hyper_parameters"].items()  # from JSON, which has no infinity
            hyper = {name: float(value) if value in ("inf", "-inf") else value for name, value in stored}
            method = methods.make_recorded(self.about["method"], **hyper)
            server, client = blank_states(method, task)
            scaling = run["scaling"] and tuple(np.array(part, np.float32) for part in run["scaling"])
            states[_key(run["key"])] = FinalState(
                method=method,
                task=task,
                server=method.received(self._filled(_sent(method, server), "server", r)),
                clients=self._filled(client, "clients", r) if self.about["client_states"] else None,
                ids=tuple(self.about["clients"]),
                seed=run["seed"],
                scaling=scaling,
                shape=shape,
                model=spec,
            )
        return states

    def _filled(self, blank: Tree, prefix: str, run: int) -> Tree:
        """The run's values in the structure of `blank`."""
        values = {}
        for name, leaf in tree.to_named(blank, prefix).items():
            stored = self.arrays.get(name)
            if stored is None or stored.shape[stored.ndim - leaf.dim() :] != tuple(leaf.shape):
                got = "no such part" if stored is None else f"shape {list(stored.shape[stored.ndim - leaf.dim() :])}"
                raise ConfigError(
                    f"The model does not fit the stored states: {name} has shape {list(leaf.shape)} in it, and the "
                    f"states have {got}. Give the model that the run was trained with."
                )
            values[name] = torch.from_numpy(stored)[run]
        return tree.from_named(blank, values, prefix)

    @cached_property
    def _states(self) -> dict[Any, FinalState]:
        return self.rebuilt()

    def __getitem__(self, key: Any) -> FinalState:
        return self._states[key]

    def __iter__(self) -> Iterator[Any]:
        return iter([_key(run["key"]) for run in self.about["runs"]])

    def __len__(self) -> int:
        return len(self.about["runs"])

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredStates, (self.about, dict(self.arrays))


def describe(states: Mapping[Any, FinalState]) -> Mapping[str, Any]:
    """All but the states' values, as `files.to_json` can write them."""
    if isinstance(states, StoredStates):
        return states.about
    if not states:
        return {"runs": []}
    first = next(iter(states.values()))
    return {
        "method": _name(first.method),
        "model": models.describe(first.model),
        "task": {
            field.name: getattr(first.task, field.name)
            for field in dataclasses.fields(Task)
            if field.name not in ("module", "local", "dropout")
        },
        "local": dataclasses.asdict(first.task.local),
        "shape": list(first.shape),
        "clients": list(first.ids) if _keeps_clients(first) or len(first.ids) <= LISTED else [],
        "client_states": _keeps_clients(first),
        "runs": [
            {
                "key": key,
                "seed": state.seed,
                "hyper_parameters": state.method.hyper,
                "scaling": state.scaling,
            }
            for key, state in states.items()
        ],
    }


def _sent(method: Method, server: Any) -> dict[str, Any]:
    """The server's fields that `predict` uses."""
    return method.sent(server, method.predicts_with)


def _keeps_clients(state: FinalState) -> bool:
    """Whether predicting needs the clients' states, and they are here."""
    return state.method.personal and state.clients is not None


def _name(method: Method) -> str:
    """A name that leads to the method again, also where its class is not registered under the name it has."""
    inner = method.parts[0]
    return f"{methods.REGISTRY.name_of(type(inner))}{method.name.removeprefix(inner.name)}"


def _key(stored: Any) -> Any:
    return tuple(stored) if isinstance(stored, list) else stored
