"""A tracker that makes runs slow enough to be killed in their midst, and writes down who worked on them."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from equifed.tracking import Callback

SLOWLY = "studies.followed:Followed:0.2"
"""As `track` has it: seconds that it adds to every round."""
LOG, PLACE = "followed.jsonl", "FOLLOWED"
"""Written beside the runs, or into the folder that an environment variable names."""


class Attempt(NamedTuple):
    """A process that began with a run, or went on with it."""

    run: str
    pid: int
    node: str
    """Ray's name of the node; empty without Ray."""
    done: int
    """Rounds that were completed before."""


class Followed(Callback):
    def __init__(self, pause: str) -> None:
        self.pause = float(pause)

    def __str__(self) -> str:
        return "Followed"

    def run_started(self, run: Any) -> None:
        attempt = Attempt(run.folder.name, os.getpid(), _node(), run.done)
        root = Path(os.environ.get(PLACE) or run.folder.parent)
        with open(root / LOG, "a") as file:  # a line this short is written whole
            file.write(json.dumps(attempt) + "\n")

    def round_finished(self, round: Any) -> None:
        time.sleep(self.pause)


def _node() -> str:
    ray = sys.modules.get("ray")
    return ray.get_runtime_context().get_node_id() if ray is not None and ray.is_initialized() else ""


def attempts(root: Path) -> list[Attempt]:
    """In the order in which they began."""
    log = root / LOG
    return [Attempt(*json.loads(line)) for line in log.read_text().splitlines()] if log.exists() else []
