"""A real federation, in one process, in which everything goes wrong that a report has to tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from flower.inprocess import federate, nodes, setting, table
from flower.secure import keyed_nodes, write_keys
from flwr.app import Array, Message

import equifed as ef
from equifed import methods
from equifed.data import Schema
from equifed.flower.agreement import Setting
from equifed.flower.memory import MOST_EXCHANGES
from equifed.protocol import STAGES

SIZES = {"north": 1500, "south": 900, "west": 120, "east": 600, "rim": 50}
PLAIN: dict[str, Any] = {"validation-file": None, "client-groups": None}


def small(folder: Path, sizes: dict[str, int], **sections: Any) -> Setting:
    """A federation of silos with so many rows, that everyone takes part in."""
    rng = np.random.default_rng(5)
    frames = {silo: table(rng, n) for silo, n in sizes.items()}
    for silo, frame in frames.items():
        wrong = rng.random(len(frame)) < 0.2  # or hardly any prediction would be wrong
        frame["bought"] = frame["bought"].mask(wrong, np.where(frame["bought"] == "yes", "no", "yes"))
        frame.to_parquet(folder / f"{silo}.parquet")
    schema = Schema.infer(pd.concat(frames.values()), ef.Columns(label="bought", sensitive="sex", positive="yes"))
    (folder / "schema.json").write_text(schema.to_json())
    sections["data"] = {"files": {silo: f"{silo}.parquet" for silo in sizes}, **PLAIN} | sections.get("data", {})
    sections["run"] = {"clients-per-round": "all"} | sections.get("run", {})
    return setting(folder, **sections)


def troubled(folder: Path, runs: Path) -> ef.Result:
    """Seven rounds. rim never joins; west is away in rounds 3 and 4; south is silent and north sends NaN in round 5,
    so that it is not applied; east does not evaluate the last model; west's counts are too small to be disclosed."""
    made = small(
        folder,
        SIZES,
        method=methods.FedAvgGR(),
        run={"rounds": 7},
        local={"batch-size": 64, "learning-rate": 0.5},
        flower={"min-replies": 3, "min-count": 5, "deadline": 0.05, "join-deadline": 0.05},
    )
    grid = nodes(made)
    grid.gone = {"rim"}

    def fault(silo: str, message: Message, reply: Message) -> Message | None:
        number = message.content.config_records["about"].get("round")
        kind = message.metadata.message_type
        if kind == "train.train" and number in (2, 4):
            grid.gone = {"rim", "west"} if number == 2 else {"rim"}
        if (silo, number) == ("north", 5) and kind == "train.train":
            bias = reply.content["fields"]["update.0.bias"].numpy()
            reply.content["fields"]["update.0.bias"] = Array(bias * np.nan)
        lost = (silo, number) == ("south", 5) or (silo, kind) == ("east", "evaluate.counts")
        return None if lost else reply

    grid.fault = fault
    return federate(made, grid, runs, "troubled")


def untroubled(folder: Path, runs: Path, **sections: Any) -> ef.Result:
    """Nothing goes wrong and nothing is withheld."""
    made = small(folder, {"north": 300, "south": 200, "west": 150}, **sections)
    return federate(made, nodes(made), runs, "untroubled")


def secured(folder: Path, runs: Path, keys: Path, **sections: Any) -> ef.Result:
    """Five rounds with secure sums, of which five silos are enough for four. south is silent in round 2, west does not
    help to unmask round 3; in round 4 both, so that it is not applied. north and east have a roster."""
    sizes = {"north": 300, "south": 200, "west": 150, "east": 120, "rim": 80}
    limits = {"deadline": 0.05, "join-deadline": 0.05, **sections.pop("flower", {})}
    made = small(folder, sizes, run={"rounds": 5, "secure": True}, flower=limits, **sections)
    write_keys(keys, sizes)

    def fault(silo: str, message: Message, reply: Message) -> Message | None:
        kind, said = message.metadata.message_type, message.content.config_records["about"]
        number = int(said.get("round", 0)) or int(said.get("exchange", 0)) // (len(STAGES) * MOST_EXCHANGES)
        silent = silo == "south" and kind == "train.train" and number in (2, 4)
        late = silo == "west" and kind == "query.unmask" and number in (3, 4)
        return None if silent or late else reply

    grid = keyed_nodes(made, keys, runs / "state", roster=("north", "east"), fault=fault)
    return federate(made, grid, runs, "secured")
