"""Small real runs for the report's tests, and names that try to break it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

import equifed as ef
from equifed.notes import Note

HOSTILE = [
    "<script>window.hacked=1</script>",
    "</script><script>window.hacked=1</script>",
    "<!--<script>",
    "]]><script>window.hacked=1</script>",
    "\"'><img src=x onerror=window.hacked=1>",
    "<svg/onload=window.hacked=1>",
    "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "<style>*{display:none}</style>",
    "</style></title></textarea></select><b>",
    "<base href='https://evil.example/'>",
    "<link rel=stylesheet href='https://evil.example/x.css'>",
    "<meta http-equiv=refresh content='0;url=https://evil.example'>",
    "<a href='javascript:window.hacked=1'>here</a>",
    "<a href='https://evil.example'>here</a>",
    "' onmouseover='window.hacked=1",
    '" autofocus onfocus="window.hacked=1',
    "javascript:window.hacked=1",
    "{{7*7}}{% raw %}",
    "${window.hacked=1}`",
    "'-window.hacked=1-'",
    "\\u003cscript\\u003ewindow.hacked=1",
    "__proto__",
    "constructor",
    "x" * 3000,
    "שלום \u202eevil\u202c عالم",
    "a\x07b\tc\nd\u2028e",
    "&lt;b&gt;&amp;&#60;i&#62;",
    "%{x}${y}$e^x$",
    "=cmd|'/c calc'!A1",
    "\U0001f468‍\U0001f469‍\U0001f467 \x00\x1b[31m",
]


def rows(rng: np.random.Generator, n: int, groups: list[str], task: str = "classification") -> tuple[Any, Any, Any]:
    x = rng.normal(size=(n, 3)).astype(np.float32)
    s = rng.integers(0, len(groups), n)
    y = x[:, 0] + 0.5 * s + rng.normal(size=n)
    return x, (y > 0).astype(int) if task == "classification" else y.astype(np.float32), np.array(groups)[s]


def federation(
    *,
    groups: tuple[str, ...] = ("a", "b"),
    task: Any = "classification",
    clients: bool = True,
    name: str = "toy",
    ids: list[str] | None = None,
) -> ef.Federation:
    rng = np.random.default_rng(3)
    many, kinds = len(ids) if ids else 4, list(groups)
    return ef.Federation.from_arrays(
        [rows(rng, 30, kinds, task) for _ in range(many)],
        test=rows(rng, 160, kinds, task),
        client_tests=[rows(rng, 15, kinds, task) for _ in range(many)] if clients else None,
        task=task,
        ids=ids,
        name=name,
    )


def run(method: ef.methods.FedAvg, fed: ef.Federation, **more: Any) -> ef.Result:
    model = ef.models.Linear() if fed.task == "regression" else ef.models.Logistic()
    settings: dict[str, Any] = {"rounds": 3, "local": ef.Local(batch_size=10, learning_rate=0.1), "seeds": range(3)}
    return ef.simulate(method, fed, model=model, **{**settings, **more})


def hostile_result(text: str) -> ef.Result:
    """A result in which the text stands for every name there is: method, client, group, column, field, setting."""
    fed = federation(groups=(text, text + "2"), ids=[text + "x", "1", text + "y"], name=text)
    result = run(ef.methods.FedAvg(), fed, rounds=1, seeds=[0], robust="median", liars=0.4)
    info = {**result.info, "method": text, "config": text, "extra": {text: text}, text: text}
    info |= {"hyper_parameters": {text: text}, "run": {"id": text}, "versions": {text: text}}
    frame = result.metrics.assign(method=text)
    frame.loc[frame["scope"] == f"group:{fed.groups[0]}", "value"] = 1.0
    log = result.log.assign(method=text, **{f"{text}3": 0.5})
    messages = result.messages.assign(phase=text, down=text, up=text, stage=text, gather=text)
    note = Note("did-not-evaluate", {"client": text, "round": 1, "reason": text})
    refused = pd.DataFrame([[0, 1, text, text, text, True]], columns=result.rejections.columns)
    beside = {"cuts": result.cuts.assign(method=text), "plain_mean": result.plain_mean.assign(method=text)}
    result = replace(result, **beside)
    return replace(result, metrics=frame, log=log, messages=messages, rejections=refused, info=info, notes=[note])
