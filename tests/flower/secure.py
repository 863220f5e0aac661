"""A federation with secure sums in one process, whose nodes have keys, and all that its server receives."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from equifed.flower.agreement import Setting
from equifed.flower.deployment.credentials import write_key_pair
from equifed.flower.silo import SiloApp
from equifed.protocol import Method
from equifed.secure import Roster
from flower.inprocess import Fault, Nodes, setting

EVERYONE = {"clients-per-round": "all", "rounds": 2}


def secure_setting(folder: Path, method: Method | None = None, **sections: Any) -> Setting:
    return setting(folder, method, **sections | {"run": {"secure": True, **EVERYONE, **sections.get("run", {})}})


def write_keys(folder: Path, silos: Iterable[str]) -> None:
    """NAME and NAME.pub of every silo, and roster.json."""
    for silo in silos:
        write_key_pair(folder, silo)
    Roster.collect(folder / f"{silo}.pub" for silo in silos).write(folder / "roster.json")


def keyed_nodes(
    made: Setting, keys: Path | None, state: Path, roster: Iterable[str] = (), fault: Fault | None = None, **more: Any
) -> Nodes:
    """Nodes with a state folder, those of `roster` with a roster; `keys`: where `write_keys` has put theirs."""
    configs = []
    for silo in made.silos:
        config = {"client-id": silo, "data": str(made.config.folder / f"{silo}.parquet"), "state": str(state), **more}
        if keys is not None:
            config["key"] = str(keys / silo)
        if silo in roster:
            config["roster"] = str(keys / "roster.json")
        configs.append(config)
    return Nodes(SiloApp(made), configs, fault)


class Traffic:
    """All that nodes answer, in order, as the server's app gets it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, int, RecordDict]] = []
        """(silo, message type, round, content of the reply)."""

    def __call__(self, silo: str, message: Message, reply: Message) -> Message:
        number = int(message.content["about"].get("round", 0))
        self.seen.append((silo, message.metadata.message_type, number, reply.content))
        return reply

    def of(self, kind: str, number: int = 1) -> dict[str, RecordDict]:
        """What silos replied to messages of this type in a round."""
        return {silo: content for silo, found, round, content in self.seen if (found, round) == (kind, number)}


def claim(content: RecordDict, **changes: Any) -> None:
    """Change what a reply says of itself; None takes it away."""
    kept = {**content["about"], **changes}
    content["about"] = ConfigRecord({name: value for name, value in kept.items() if value is not None})
