"""A federation in one process: Flower's apps are called directly, its messages are real.

Everything that depends on the insides of flwr is here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

import equifed as ef
from equifed.config import parse_config
from equifed.data import Schema
from equifed.flower.agreement import Setting
from equifed.flower.server import serve
from equifed.flower.silo import SiloApp
from equifed.protocol import Method

SERVER = 1
Fault = Callable[[str, Message, Message], Message | None]
"""(silo, what it was asked, its reply) -> the reply that arrives, or None for none."""


class Nodes(Grid):
    """Nodes of one process, each with its own context."""

    def __init__(
        self,
        app: ClientApp,
        configs: Iterable[Mapping[str, Any]],
        fault: Fault | None = None,
        apps: Mapping[str, ClientApp] | None = None,
    ) -> None:
        """apps: of silos that have another than the rest."""
        self.app, self.fault, self.apps = app, fault, apps or {}
        self.contexts = {100 + i: context(100 + i, config) for i, config in enumerate(configs)}
        self.gone: set[str] = set()
        """Silos that are not connected."""
        self.sent: list[tuple[str, str]] = []
        """(silo, message type) of everything that was sent."""
        self.keys: dict[int, bytes] = {}
        """Public keys of nodes that have another than their silo."""
        self._replies: dict[str, Message] = {}

    def silo(self, node: int) -> str:
        return str(self.contexts[node].node_config.get("client-id"))

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, public_key=self.key(node)) for node in self.get_node_ids()]

    def key(self, node: int) -> bytes:
        """A node's public key: that of the silo whose configuration it has, unless it is given another."""
        return self.keys.get(node, f"key of {self.silo(node)}".encode())

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.contexts if self.silo(node) not in self.gone]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            number = str(len(self.sent))
            message.metadata.__dict__["_message_id"] = number
            self.sent.append((self.silo(node), message.metadata.message_type))
            app = self.apps.get(self.silo(node), self.app)
            reply: Message | None = answer(app, message, self.contexts[node])
            if self.fault is not None:
                reply = self.fault(self.silo(node), message, reply)
            if reply is not None:
                self._replies[number] = reply
            ids.append(number)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(number) for number in list(message_ids) if number in self._replies]

    # what the abstract class wants besides, and we never use
    run = property(lambda self: None)  # type: ignore[assignment]

    def set_run(self, run: Any) -> None: ...

    def create_message(self, *args: Any, **kwargs: Any) -> Any: ...

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any: ...


def context(node: int, config: Mapping[str, Any]) -> Context:
    return Context(run_id=1, node_id=node, node_config=dict(config), state=RecordDict(), run_config={})


def answer(app: ClientApp, message: Message, own: Context) -> Message:
    TaskIdentity.node_id = own.node_id
    try:
        return app(message, own)
    except Exception as error:
        return Message(Error(2, repr(error)), reply_to=message)
    finally:
        TaskIdentity.node_id = SERVER


def be_the_server() -> None:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, SERVER


# -- a small federation of files --------------------------------------------------------------------------------------

SIZES = {"a": 46, "b": 22, "c": 70, "d": 1, "e": 0, "f": 38}
GROUPS = {"a": "north", "b": "south", "c": "north", "d": "west", "e": "south", "f": "west"}


def table(rng: np.random.Generator, n: int) -> pd.DataFrame:
    x = rng.normal(size=(n, 4)) * [1, 3, 0.2, 10] + [0, 5, 0, -30]
    group = rng.integers(0, 2, n)
    noise = rng.normal(size=n)
    y = (x[:, 0] + x[:, 1] - 5 + 0.8 * group + 0.5 * noise > 0.4).astype(int)
    frame = pd.DataFrame(x, columns=["w", "x", "y", "z"])
    return frame.assign(sex=np.array(["m", "f"])[group], bought=np.array(["no", "yes"])[y])


def write_files(folder: Path) -> None:
    rng = np.random.default_rng(11)
    tables = {silo: table(rng, n) for silo, n in SIZES.items()}
    for silo, frame in tables.items():
        frame.to_parquet(folder / f"{silo}.parquet")
    table(rng, 60).to_parquet(folder / "validation.parquet")
    everyone = pd.concat(tables.values())
    said = "the customer has bought"
    schema = Schema.infer(everyone, ef.Columns(label="bought", sensitive="sex", positive="yes", meaning=said))
    (folder / "schema.json").write_text(schema.to_json())


def setting(folder: Path, method: Method | None = None, **sections: Any) -> Setting:
    """The federation in this folder, with a method that need not be in the registry."""
    raw: dict[str, Any] = {
        "run": {"rounds": 3, "clients-per-round": 4, "seeds": [3]},
        "data": {
            "files": {silo: f"{silo}.parquet" for silo in SIZES},
            "schema": "schema.json",
            "validation-file": "validation.parquet",
            "client-groups": GROUPS,
        },
        "model": {"kind": "mlp", "hidden": [3], "activation": "tanh"},
        "local": {"local-epochs": 2, "batch-size": 8, "learning-rate": 0.1},
        "method": {"name": "fedavg"},
        "flower": {"min-replies": 1, "min-count": 0, "deadline": 5.0, "join-deadline": 5.0},
    }
    for name, values in sections.items():
        raw[name] = {key: value for key, value in (raw.get(name, {}) | values).items() if value is not None}
    config = parse_config(raw, folder=folder)
    if method is not None:
        config = dataclasses.replace(config, method=method)
    return Setting(config, Schema.from_json((folder / "schema.json").read_text()))


def nodes(made: Setting, fault: Fault | None = None, **more: Any) -> Nodes:
    folder = made.config.folder
    configs = [{"client-id": silo, "data": str(folder / f"{silo}.parquet"), **more} for silo in made.silos]
    return Nodes(SiloApp(made), configs, fault)


def federate(made: Setting, grid: Nodes, runs: Path, run: str = "run") -> ef.Result:
    be_the_server()
    return serve(made, grid, runs=str(runs), run=run)


def simulate(made: Setting, engine: str = "lanes") -> ef.Result:
    """The same configuration in the simulator."""
    from equifed.config import build, load_federations

    config = dataclasses.replace(made.config, run=dataclasses.replace(made.config.run, engine=engine))
    simulation = build(config, load_federations(config))
    for _ in simulation.rounds():
        pass
    return simulation.result()


def memory_of(grid: Nodes, silo: str) -> dict[str, torch.Tensor]:
    """What a silo remembers of its last reply, by name; nothing before its first."""
    own = next(context for node, context in grid.contexts.items() if grid.silo(node) == silo)
    last = max(own.state, key=lambda name: int(name.removeprefix("after-")), default=None)
    return {} if last is None else {name: torch.from_numpy(array.numpy()) for name, array in own.state[last].items()}
