"""Which local training to take by default: FedAvg and KFFL on the named data sets, judged on validation rows only.

    python benchmarks/defaults.py [--data compas,german] [--methods fedavg] [--rates 0.03,0.1] [--seeds 3]

Every data set is partitioned as it is by default. For every setting
the table has the mean validation accuracy (RMSE for regression) after the default number of rounds, and the mean over
data sets of how much it lacks to the best setting of each. Test rows are never looked at. About ten minutes on a core.
"""

from __future__ import annotations

import argparse
import itertools
import time

import pandas as pd

import equifed as ef
from equifed.data import get_dataset

DATA = ("compas", "german", "drug", "law", "communities", "adult", "bank", "dutch")
RATES = (0.01, 0.03, 0.1, 0.3)
STEPS = ((1, 32), (2, 32), (2, 64), (2, 128))
"""Epochs and batch size."""


def measured(data: str, method: str, settings: list[tuple[int, int, float]], seeds: int) -> pd.DataFrame:
    """Final accuracy or RMSE, loss, and the largest step of the last four evaluations, a row per setting."""
    preset = get_dataset(data).preset(None)
    feds = ef.load(data, seeds=range(seeds))
    regression = preset.task == "regression"
    quality = "rmse" if regression else "accuracy"
    rows = []
    for epochs, batch, rate in settings:
        started = time.perf_counter()
        result = ef.simulate(
            ef.methods.make(method), feds, model=ef.models.Linear() if regression else ef.models.Logistic(),
            eval_every=5, local=ef.Local(epochs=epochs, batch_size=batch, learning_rate=rate),
        )  # fmt: skip
        frame = result.metrics
        frame = frame[(frame["split"] == "validation") & (frame["scope"] == "global")]
        curves = frame[frame["metric"].isin([quality, "loss"])].groupby(["metric", "round"], observed=True)["value"]
        means = curves.mean().reset_index().pivot_table(index="metric", columns="round", values="value", observed=True)
        rows.append(
            {
                "data": data, "method": method, "epochs": epochs, "batch": batch, "rate": rate,
                "quality": means.loc[quality].iloc[-1], "loss": means.loc["loss"].iloc[-1],
                "swing": means.loc[quality].iloc[-4:].diff().abs().max(),
                "seconds": time.perf_counter() - started,
            }
        )  # fmt: skip
        print(
            " ".join(f"{value:.4f}" if isinstance(value, float) else str(value) for value in rows[-1].values()),
            flush=True,
        )
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=",".join(DATA))
    parser.add_argument("--methods", default="fedavg,kffl")
    parser.add_argument("--rates", default=",".join(map(str, RATES)))
    parser.add_argument("--steps", default=",".join(f"{epochs}x{batch}" for epochs, batch in STEPS))
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    steps = [tuple(map(int, each.split("x"))) for each in given.steps.split(",")]
    settings = [(*step, float(rate)) for step, rate in itertools.product(steps, given.rates.split(","))]
    table = pd.concat(
        measured(data, method, settings, given.seeds)
        for method in given.methods.split(",")
        for data in given.data.split(",")
    )
    better = table.assign(score=table["quality"].where(table["data"] != "communities", -table["quality"]))
    better["lacks"] = better.groupby(["data", "method"])["score"].transform("max") - better["score"]
    keys = ["epochs", "batch", "rate"]
    wide = table.pivot_table(index=keys, columns=["method", "data"], values="quality")
    lacks = better.groupby(keys)["lacks"].agg(["mean", "max"]).add_prefix("lacks, ")
    wide.columns = [" ".join(name) for name in wide.columns]
    seconds = table.groupby(keys)["seconds"].sum().round()
    print(wide.join(lacks).join(seconds).round(3).sort_values("lacks, mean").to_string())


if __name__ == "__main__":
    main()
