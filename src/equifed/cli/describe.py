"""What is known about methods and data sets, for `equifed methods` and `equifed data`."""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from typing import Any

from rich.table import Table

from equifed import methods
from equifed.cli.tables import plain_table
from equifed.protocol import Method


def describe_method(name: str) -> dict[str, Any]:
    """What a method needs, exchanges and reveals, its equations and its hyper-parameters."""
    method = methods.make(name)
    cited = methods.citation(method)
    phases = [
        {"stage": stage, "phase": phase.name, "down": phase.down, "up": phase.up, "gather": phase.gather}
        for stage in ("setup", "round", "final")
        for phase in getattr(method, stage)
    ]
    needs = [
        label
        for label, wanted in (
            (f"{' or '.join(method.label_kinds)} labels", method.label_kinds != Method.label_kinds),
            ("validation set", method.needs_validation),
            ("client memory", type(method).init_client is not Method.init_client),
            ("client groups", method.needs_client_groups),
        )
        if wanted
    ]
    return {
        "name": name,
        "summary": inspect.getdoc(type(method)) or "",
        "equations": inspect.cleandoc(sys.modules[type(method).__module__].__doc__ or ""),
        "citation": cited.plain or None,
        "bibtex": cited.bibtex or None,
        "parent": method.parent or None,
        "needs": needs,
        "personal": method.personal,
        "sweepable": method.sweepable,
        "gather": "stack" if any(phase["gather"] == "stack" for phase in phases) else "sum",
        "exchanges_per_round": len(method.round),
        "phases": phases,
        "leaves_a_client": list(dict.fromkeys(field for phase in phases for field in phase["up"])),
        "hyper_parameters": _hyper_parameters(method),
    }


def _hyper_parameters(method: Method) -> list[dict[str, Any]]:
    return [
        {
            "name": option.name.replace("_", "-"),
            "type": option.type_name,
            "default": None if option.default is dataclasses.MISSING else option.default,
            "range": _range(option),
            "description": " ".join(option.description.split()),
        }
        for option in methods.options(method).values()
    ]


def _range(option: methods.Option) -> str:
    low, high = option.low, option.high
    if option.choices is not None:
        return ", ".join(map(str, option.choices)) + ("; or a list of several" if option.several else "")
    if low is not None and high is not None:
        return f"{low} to {high}"
    return f"at least {low}" if low is not None else f"at most {high}" if high is not None else ""


def methods_table(described: list[dict[str, Any]]) -> Table:
    table = plain_table(
        "method", "what it does", "needs", "server sees", "exchanges", "leaves a client", "parent", numbers=[4]
    )
    for each in described:
        table.add_row(
            each["name"],
            each["summary"].split("\n\n")[0].replace("\n", " "),
            ", ".join(each["needs"]) or "-",
            "only sums" if each["gather"] == "sum" else "each reply",
            str(each["exchanges_per_round"]),
            ", ".join(each["leaves_a_client"]) or "nothing",
            each["parent"] or "-",
        )
    return table


def hyper_table(described: dict[str, Any]) -> Table:
    table = plain_table("hyper-parameter", "type", "default", "allowed", "meaning")
    for each in described["hyper_parameters"]:
        default = "-" if each["default"] is None else json.dumps(each["default"])  # as one writes it in TOML
        table.add_row(each["name"], each["type"], default, each["range"] or "-", each["description"])
    return table


def phases_table(described: dict[str, Any]) -> Table:
    table = plain_table("when", "exchange", "to the client", "from the client", "server sees")
    when = {"setup": "once before", "round": "every round", "final": "once after"}
    for each in described["phases"]:
        table.add_row(
            when[each["stage"]],
            each["phase"],
            ", ".join(each["down"]) or "nothing",
            ", ".join(each["up"]) or "nothing",
            "only the sum" if each["gather"] == "sum" else "each reply",
        )
    return table


def presets_table(described: dict[str, Any]) -> Table:
    table = plain_table("preset", "rows", "inputs", "groups", "clients", "per round", "what", numbers=[1, 2, 4, 5])
    for name, preset in described["presets"].items():
        table.add_row(
            name,
            f"{preset['rows']:,}",
            str(preset["inputs"]),
            ", ".join(preset["groups"]),
            str(preset["clients"]),
            str(preset["clients_per_round"]),
            preset["description"],
        )
    return table
