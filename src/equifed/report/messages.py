"""What was exchanged, as the report's section and the model card tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from equifed.simulator.engine import SECURE_SUM, UNMASK
from equifed.verdict.silos import Secure
from equifed.verdict.variants import is_pooled

if TYPE_CHECKING:
    from equifed.results.result import Result

_STAGES = {
    "join": "when a silo joins",
    "setup": "once, before round 1",
    "round": "every round",
    "final": "once, after the last round",
    "evaluate": "for every evaluated round",
}
_GATHER = {
    "sum": "needs only sums",
    "stack": "sees each client's reply",
    SECURE_SUM: "gets only the sum",
    UNMASK: "takes the masks off the sum",
}


def messages_of(result: Result) -> dict[str, Any]:
    """Every exchange of a run in words."""
    seen = "federation" in result.info and Secure.of(result.info) is None
    phases = [
        {
            **row,
            "stage": _STAGES.get(row["stage"], row["stage"]).replace("once", _times(row["times"])),
            "down": list(row["sizes_down"].items()),
            "up": list(row["sizes_up"].items()),
            "gather": _GATHER.get(row["gather"], row["gather"]) if row["up"] else "gets nothing",
            "private": row["gather"] != "stack" or not row["up"],
            "seen": seen and bool(row["up"]),
        }
        for row in result.messages.to_dict("records")
    ]
    method = str(result.info["method"])
    simulated = result.settings.secure and "federation" not in result.info
    return {"method": method, "pooled": is_pooled(method), "phases": phases, "simulated": simulated}


def _times(number: int) -> str:
    return f"{number} times" if number > 1 else "once"
