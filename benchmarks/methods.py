"""Every method on the same federations, with the same budget: the table of docs/comparison.md.

    python benchmarks/methods.py [--data adult,compas] [--methods fedavg,kffl] [--seeds 10]

A data set's rows are split once, into rows to train on, to choose on, for the server and for the test, which all seeds
share; each seed deals all of them to five clients, in Dirichlet(0.5) shares of every label and group, so that each
client has rows of all kinds. Every method is trained with twelve settings; one of them is taken by what they show on
the rows to choose on, as means over seeds, by the rule below; with it the method is trained again, now also on those
rows, and measured on the test rows, which nothing was chosen by.

The rule: among the settings whose accuracy is within two points of the best that FedAvg has, the one that is best in
what the method is for: the smallest gap, the best worst client or group, or else the accuracy. Where none is that
accurate, the most accurate. Accuracy is that of all rows together; where clients have models of their own, the mean
over clients of each on its own rows, for FedAvg too.

Results are kept in docs/comparison.csv, one line for a method and a data set, those of methods that are not run again
as they were; the page's table is written from it. An hour and a half on a core.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import subprocess
import time
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import equifed as ef
from equifed import randomness
from equifed.federation import Federation, RowSets
from equifed.metrics.seeds import mean_interval, moments
from equifed.partition import Dirichlet
from equifed.partition.base import Table
from equifed.protocol import Method
from equifed_papers.benchmark.plan import (
    EQUAL_OPPORTUNITY,
    EXTRA,
    GAP,
    ODDS,
    WORST_CLIENT,
    WORST_GROUP,
    Budget,
    aim_of,
    aimed,
    budget_of,
    own_values,
    step_sizes,
)

DOCS = Path(__file__).resolve().parents[1] / "docs"
CLIENTS, ALPHA, ROUNDS = 5, 0.5, 20
BATCH = {"adult": 128, "compas": 32}
MARGIN = 0.02
"""How much accuracy may be given up against FedAvg for what a method is for."""
LOCAL_GAP, OWN_ROWS = f"client_{GAP}.worst", "client_accuracy.mean"
SHOWN = ("accuracy", OWN_ROWS, GAP, EQUAL_OPPORTUNITY, LOCAL_GAP, WORST_CLIENT)
LOWER = {GAP, EQUAL_OPPORTUNITY, ODDS, LOCAL_GAP}

# -- federations -------------------------------------------------------------------------------------------------------


def federations(data: str, seeds: int) -> tuple[list[Federation], list[Federation]]:
    """For each seed the federation that settings are chosen on, and the one that is tested."""
    base = ef.load(data, partition=ef.partition.IID(1), seed=0)
    order = randomness.generator(0, "server").permutation(base.train[0])
    server, train = np.sort(order[: len(order) // 6]), np.sort(order[len(order) // 6 :])
    partition = Dirichlet(CLIENTS, ALPHA, min_rows=100)
    choosing, testing = [], []
    for seed in range(seeds):
        dealt = partition(Table(base.rows.y, base.rows.s), randomness.generator(seed, "partition"))

        def held(rows: np.ndarray, clients: Sequence[np.ndarray] = dealt.rows) -> RowSets:
            return RowSets.of([own[np.isin(own, rows)] for own in clients])

        def of(train: np.ndarray, test: np.ndarray, seed: int = seed, ids: tuple[str, ...] = dealt.ids) -> Federation:
            parts = {"train": held(train), "test": test, "client_test": held(test), "validation": server}
            return dataclasses.replace(base, **parts, ids=ids, seed=seed).checked()

        choosing.append(of(train, base.validation))
        testing.append(of(np.sort(np.concatenate([train, base.validation])), base.test))
    return choosing, testing


# -- settings ----------------------------------------------------------------------------------------------------------


def configured(name: str) -> tuple[Method, Budget, str, dict[str, list[float]]]:
    """The method, its budget, what it is for, and its own values."""
    method, budget = aimed(name), budget_of(name)
    return method, budget, aim_of(method, budget), own_values(name)


def rounds_of(budget: Budget) -> int:
    return ROUNDS * budget.slower


def model_of(budget: Budget) -> Any:
    kind, options = budget.model.get("kind", "logistic"), {k: v for k, v in budget.model.items() if k != "kind"}
    return ef.models.REGISTRY[kind](**options)


def trained(
    method: Method, budget: Budget, data: str, feds: Sequence[Federation], rate: float, over: Mapping[str, Any]
) -> ef.Result:
    rate_of_local, rounds = 0.1 if budget.step_size else rate, rounds_of(budget)
    method = method.with_hyper(**{budget.step_size: rate}) if budget.step_size else method
    options = {
        "model": model_of(budget), "rounds": rounds, "eval_every": rounds,
        "clients_per_round": "all",
        "local": ef.Local(epochs=1, batch_size=BATCH[data], learning_rate=rate_of_local),
    }  # fmt: skip
    return ef.simulate(method, feds, over=over, **options) if over else ef.simulate(method, feds, **options)  # type: ignore[arg-type]


def measured(result: ef.Result, metrics: Sequence[str], own: Sequence[str]) -> pd.DataFrame:
    """Final numbers on the federation's test rows, a row for each setting and seed, a column for each metric."""
    frame = result.metrics
    last = frame[(frame["split"] == "test") & (frame["scope"] == "global") & (frame["round"] == frame["round"].max())]
    last = last[last["metric"].isin(metrics)].astype({"metric": str})
    return last.pivot_table(index=[*own, "seed"], columns="metric", values="value", dropna=False).reset_index()


def tried(name: str, data: str, feds: Sequence[Federation]) -> pd.DataFrame:
    """Means over seeds of all settings."""
    method, budget, aim, own = configured(name)
    found = []
    for rate in step_sizes(name):
        rows = measured(trained(method, budget, data, feds, rate, own), (*SHOWN, aim), list(own))
        means = rows.groupby(list(own)).mean().reset_index() if own else rows.mean().to_frame().T
        found.append(means.assign(rate=rate))
    return pd.concat(found, ignore_index=True)


def quality(method: Method) -> str:
    """The accuracy that settings of a method are held to."""
    return OWN_ROWS if method.personal else "accuracy"


def chosen(table: pd.DataFrame, aim: str, quality: str, best: float) -> pd.Series:
    """The setting that the rule takes; `best` is FedAvg's."""
    table = table[table[quality].notna()]
    near = table[table[quality] >= best - MARGIN]
    if near.empty:
        return table.loc[table[quality].idxmax()]
    values = near[quality if aim == "accuracy" else aim].fillna(math.inf if aim in LOWER else -math.inf)
    return near.loc[values.idxmin() if aim in LOWER else values.idxmax()]


# -- the table ---------------------------------------------------------------------------------------------------------


def line(name: str, data: str, best: pd.Series, feds: tuple[list[Federation], list[Federation]]) -> dict[str, Any]:
    """One method on one data set; best: what FedAvg has of each metric."""
    method, budget, aim, own = configured(name)
    table = tried(name, data, feds[0])
    by = quality(method)
    setting = chosen(table, aim, by, float(best[by]))
    values = {key: float(setting[key]) for key in own}
    began = time.process_time()
    result = trained(method.with_hyper(**values), budget, data, feds[1], float(setting["rate"]), {})
    seconds = (time.process_time() - began) / len(feds[1])
    rows = measured(result, SHOWN, [])
    messages = result.messages
    times = messages["times"] * messages["stage"].map({"round": rounds_of(budget), "setup": 1, "final": 1})
    numbers = {}
    for metric in SHOWN:
        values_of = rows[metric].to_numpy() if metric in rows else np.full(len(rows), np.nan)
        ends = mean_interval(values_of) or (math.nan, math.nan)
        numbers |= {metric: moments(values_of).mean, f"{metric}.half": (ends[1] - ends[0]) / 2}
    step = budget.step_size.replace("_", "-") or "learning-rate"
    shown = {step: setting["rate"], **{key.replace("_", "-"): value for key, value in values.items()}}
    return {
        "data": data, "method": name, "aim": aim, "setting": ", ".join(f"{k} {v:g}" for k, v in shown.items()),
        "within": bool(setting[by] >= best[by] - MARGIN), "rounds": rounds_of(budget), **numbers,
        "bytes": int(((messages["bytes_up"] + messages["bytes_down"]) * times).sum()),
        "seconds": seconds, "personal": method.personal, "seeds": len(feds[1]),
        "commit": commit(), "date": str(date.today()),
    }  # fmt: skip


def commit() -> str:
    ran = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=DOCS)
    return ran.stdout.strip()


TITLES = {
    "accuracy": "accuracy %", OWN_ROWS: "clients on own rows %", GAP: "DP gap", EQUAL_OPPORTUNITY: "EO gap",
    LOCAL_GAP: "largest local DP gap", WORST_CLIENT: "worst client %",
}  # fmt: skip
AIMS = {
    GAP: "DP gap", EQUAL_OPPORTUNITY: "EO gap", ODDS: "odds gap", WORST_CLIENT: "worst client",
    WORST_GROUP: "worst group", "accuracy": "accuracy",
}  # fmt: skip


def cell(row: pd.Series, metric: str) -> str:
    mean, half = row[metric], row[f"{metric}.half"]
    if math.isnan(mean):
        return "undefined"
    if metric in LOWER:
        return f"{mean:.3f} ± {half:.3f}"
    return f"{100 * mean:.1f} ± {100 * half:.1f}"


def table_of(data: str, lines: pd.DataFrame) -> str:
    head = ["method", "chosen by", "setting", *TITLES.values(), "kB per client", "CPU s"]
    rows = [head, ["---"] * len(head)]
    for _, row in lines[lines["data"] == data].iterrows():
        name = row["method"] if any(sign in row["method"].rstrip("+") for sign in "@+") else (
            f"[{row['method']}](methods/{row['method']}.md)"
        )  # fmt: skip
        aim = AIMS.get(row["aim"], row["aim"]) if row["within"] else "accuracy, never within the margin"
        numbers = [cell(row, metric) for metric in SHOWN]
        rows.append([name, aim, row["setting"], *numbers, f"{row['bytes'] / 1000:,.0f}", f"{row['seconds']:.2f}"])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def write_page(lines: pd.DataFrame) -> None:
    page = DOCS / "comparison.md"
    text = page.read_text(encoding="utf-8")
    for data in lines["data"].unique():
        begin, end = f"<!-- {data}: written by benchmarks/methods.py -->\n\n", "\n\n<!-- end -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}{table_of(data, lines)}{end}{after}"
    page.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=",".join(BATCH))
    parser.add_argument("--methods", help="names, A,B,...; all that are registered, and wrappers around FedAvg")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--page", action="store_true", help="only write the page from the results that are there")
    given = parser.parse_args()
    known = (*ef.methods.REGISTRY, *EXTRA)
    path = DOCS / "comparison.csv"
    lines = pd.read_csv(path) if path.exists() else pd.DataFrame({"data": [], "method": []})
    names = [] if given.page else given.methods.split(",") if given.methods else list(known)
    for data in given.data.split(",") if names else ():
        feds = federations(data, given.seeds)
        # everybody is compared with what FedAvg can do on the rows that settings are chosen on
        best = tried("fedavg", data, feds[0]).max()
        for name in names:
            began = time.perf_counter()
            found = line(name, data, best, feds)
            kept = lines[(lines["data"] != data) | (lines["method"] != name)]
            lines = pd.concat([kept, pd.DataFrame([found])], ignore_index=True)
            order = lines.assign(a=lines["data"].map(list(BATCH).index), b=lines["method"].map(known.index))
            lines = order.sort_values(["a", "b"]).drop(columns=["a", "b"])
            lines.to_csv(path, index=False, float_format="%.6g")
            print(
                f"{data} {name} ({time.perf_counter() - began:.0f} s): {found['setting']}; accuracy "
                f"{found['accuracy']:.4f}, gap {found[GAP]:.4f}, worst client {found[WORST_CLIENT]:.4f}",
                flush=True,
            )
    write_page(pd.read_csv(path))


if __name__ == "__main__":
    main()
