"""Descriptions of methods and data sets, for `equifed methods` and `equifed data`."""

from __future__ import annotations

import inspect
import json
import sys
from typing import Any

from rich.table import Table

from equifed import methods
from equifed.cli.console import out
from equifed.cli.tables import NARROW, plain_table
from equifed.protocol import Knob, Method


def describe_method(name: str) -> dict[str, Any]:
    """What a method needs, exchanges and reveals, its equations and its hyperparameters."""
    method = methods.make(name)
    kind, citation = type(method), methods.citation(method)
    phases = [
        {"stage": stage, "phase": phase.name, "down": phase.down, "up": phase.up, "gather": phase.gather}
        for stage in ("setup", "round", "final")
        for phase in getattr(method, stage)
    ]
    needs = {
        f"{' or '.join(method.label_kinds)} labels": method.label_kinds != Method.label_kinds,
        "validation set": method.needs_validation,
        "client memory": method.remembers,
        "client groups": method.needs_client_groups,
    }
    return {
        "name": name,
        "summary": inspect.getdoc(kind) or "",
        "equations": inspect.cleandoc(sys.modules[kind.__module__].__doc__ or ""),
        "citation": citation.plain or None,
        "bibtex": citation.bibtex or None,
        "parent": method.parent or None,
        "vanishes": [option.name.replace("_", "-") for option in methods.options(method).values() if option.vanishes],
        "knob": _knob(method.knob) if method.knob else None,
        "needs": [need for need, needed in needs.items() if needed],
        "personal": method.personal,
        "sweepable": method.sweepable,
        "gather": "stack" if any(phase["gather"] == "stack" for phase in phases) else "sum",
        "secure": _secure(method),
        "exchanges_per_round": len(method.round),
        "phases": phases,
        "leaves_a_client": list(dict.fromkeys(field for phase in phases for field in phase["up"])),
        "hyper_parameters": [_hyper_parameter(option) for option in methods.options(method).values()],
    }


def _knob(knob: Knob) -> dict[str, Any]:
    return {
        "name": knob.name.replace("_", "-"),
        "range": [knob.low, knob.high],
        "scale": knob.scale,
        "fairer": knob.fairer,
        "neutral": knob.neutral,
        "aims": {
            metric: {name.replace("_", "-"): value for name, value in settings.items()}
            for metric, settings in knob.aims.items()
        },
    }


def knob_text(knob: dict[str, Any]) -> str:
    """The knob in words: what `equifed sweep --method NAME --target ...` turns, how far, and for which metrics."""
    low, high = knob["range"]
    neutral = "" if knob["neutral"] is None else f"; {knob['neutral']:g} asks for nothing"
    lines = [
        f"Knob: {knob['name']} trades accuracy for fairness, {knob['fairer']} is fairer{neutral}. A --target is sought "
        f"from {low:g} to {high:g} ({knob['scale']} scale), for"
    ]
    for settings, metrics in _by_settings(knob["aims"]).items():
        lines.append(f"  {', '.join(metrics)}{f': {settings}' if settings else ''}")
    return "\n".join(lines)


def _by_settings(aims: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """The metrics that the same hyperparameters aim at, by these."""
    found: dict[str, list[str]] = {}
    for metric, settings in aims.items():
        text = ", ".join(f"{name} = {json.dumps(value)}" for name, value in settings.items())
        found.setdefault(text.replace("= null", "left out"), []).append(metric)
    return found


def _hyper_parameter(option: methods.Option) -> dict[str, Any]:
    return {
        "name": option.name.replace("_", "-"),
        "type": option.type_name,
        "default": None if option.required else option.default,
        "range": _range(option),
        "description": " ".join(option.description.split()),
    }


def _range(option: methods.Option) -> str:
    low, high = option.low, option.high
    if option.choices is not None:
        return ", ".join(map(str, option.choices)) + ("; or a list of several" if option.several else "")
    if low is not None and high is not None:
        return f"{low} to {high}"
    return f"at least {low}" if low is not None else f"at most {high}" if high is not None else ""


def _secure(method: Method) -> str:
    """Whether it works where the server sees no single reply."""
    if method.pooled or method.summed is None:
        return "no"
    return "yes" if method.summed == method else "as a variant"


def methods_table(described: list[dict[str, Any]]) -> Table:
    """A column for each fact; on a narrow terminal, where those would be a word wide, lines below each other."""
    headings = ("what it does", "needs", "server sees", "secure sums", "exchanges", "leaves a client", "parent")
    narrow = out().width < NARROW
    table = plain_table("method", *(["what it does"] if narrow else headings), numbers=() if narrow else [5])
    for method in described:
        facts = (
            method["summary"].split("\n\n")[0].replace("\n", " "),
            ", ".join(method["needs"]) or "-",
            "only sums" if method["gather"] == "sum" else "each reply",
            method["secure"],
            str(method["exchanges_per_round"]),
            ", ".join(method["leaves_a_client"]) or "nothing",
            method["parent"] or "-",
        )
        told = [f"{heading}: {fact}" for heading, fact in zip(headings[1:], facts[1:], strict=True) if fact != "-"]
        table.add_row(method["name"], *([f"{facts[0]}\n{'; '.join(told)}\n"] if narrow else facts))
    return table


def hyper_table(method: dict[str, Any]) -> Table:
    table = plain_table("hyperparameter", "type", "default", "allowed", "meaning")
    for hyper in method["hyper_parameters"]:
        default = "-" if hyper["default"] is None else json.dumps(hyper["default"])  # as one writes it in TOML
        table.add_row(hyper["name"], hyper["type"], default, hyper["range"] or "-", hyper["description"])
    return table


def phases_table(method: dict[str, Any]) -> Table:
    table = plain_table("when", "exchange", "to the client", "from the client", "server sees")
    when = {"setup": "once before", "round": "every round", "final": "once after"}
    for phase in method["phases"]:
        table.add_row(
            when[phase["stage"]],
            phase["phase"],
            ", ".join(phase["down"]) or "nothing",
            ", ".join(phase["up"]) or "nothing",
            "only the sum" if phase["gather"] == "sum" else "each reply",
        )
    return table


def outcomes(dataset: dict[str, Any]) -> list[str]:
    """What the presets predict, after an empty line: each answer once, with whose it is where there are several."""
    from equifed.verdict.wording import outcome

    said: dict[str, list[str]] = {}
    for name, preset in dataset["presets"].items():
        said.setdefault(outcome(preset), []).append(name)
    said.pop("", None)
    return ["", *(f"{', '.join(whose)}: {text}" if len(said) > 1 else text for text, whose in said.items())]


def presets_table(dataset: dict[str, Any]) -> Table:
    table = plain_table("preset", "rows", "inputs", "groups", "clients", "per round", "what", numbers=[1, 2, 4, 5])
    for name, preset in dataset["presets"].items():
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
