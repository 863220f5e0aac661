"""The KFFL paper's tables and figures: trade-offs between accuracy and fairness, for classification and regression.

Arif et al., Group Fair Federated Learning via Stochastic Kernel Regularization, TMLR 2025. Published figures:
published.csv, from all its tables of results but Table 6, whose numbers are among Table 7's. In the text of Tables 7
and 8 one line of German's EOD stands twice; Table 6, which has that column of Table 7 as it should be, tells which.

lambda's scale depends on the kernel's width, which the paper's code chooses otherwise, so no value of lambda is
compared: every method is swept over its trade-off parameter, and compared at equal loss of accuracy against FedAvg.
Settings are chosen on validation rows; the paper splits 80/20, and here an eighth of the training rows is kept for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from equifed import partition
from equifed.data import get_dataset
from equifed.federation import Federation, load
from equifed.methods import KFFL, KFFLTD, CentralizedKernel, FairFed, FedAvg, FedMinMax, LocalKernel
from equifed.metrics import ks_distance
from equifed.models import MLP, Logistic, Model
from equifed.protocol import Method
from equifed.results import Result
from equifed.settings import Local, RunSettings
from equifed.simulation import Simulation
from equifed.simulator import make_job
from equifed_papers.experiments.base import NAN, Arm, Cell, Watch, arms_named, carry_out, choose, of_setting, published

LOCAL = Local(epochs=5, batch_size=64, learning_rate=0.01, optimizer="adam")
CLIENTS, ROUNDS, REGRESSION_ROUNDS = 4, 20, 50
"""The paper has 10 rounds; the proximal steps need more to settle, while FedAvg gains nothing from them."""
NETWORK_ROUNDS = 10
"""After which networks lose accuracy on validation rows of COMPAS and German."""
LAW_LOCAL = dataclasses.replace(LOCAL, learning_rate=0.001)
"""On Law School predictions spread by .05 only: with steps of .01 the KS distance varies by .1 from round to round."""
SPLIT = (0.7, 0.1, 0.2)
SKEWS = ("iid", "non-iid")
CLASSIFICATION_SEEDS, REGRESSION_SEEDS = 3, 5
"""Runs of the paper."""
CLASSIFICATION = ("adult", "compas", "bank_additional", "acs_income", "german")
NETWORK = MLP((100,))
MODELS: dict[int, Model] = {6: Logistic(), 7: Logistic(), 8: NETWORK}
"""Of the tables about classification."""
MEASURES = {"SPD": "demographic_parity_difference", "EOD": "equal_opportunity_difference"}
"""The paper's names; its EOD is the gap of true positive rates."""
MAX_ACCURACY_LOSS = 0.015
"""Accuracy, against FedAvg on validation rows, that a fairer setting may cost."""
MAX_RMSE_RISE = 0.02
"""Share of RMSE, against lambda = 0 on validation rows, that a fairer setting may cost."""

WEIGHTS = [0, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 30, 40, 45, 50, 55, 60, 75, 100]
STEP_SIZES = [10, 30, 100]
"""lambda (times `scale`) and alpha of KFFL, for models whose outputs are probabilities."""
NETWORK_WEIGHTS = [0, 20, 50, 100, 200, 400]
NETWORK_STEP_SIZES = [3, 10]
NETWORK_BASELINES: dict[str, dict[str, list[float]]] = {
    "FairFed/FairBatch": {"beta": [0.0, 1.0, 5.0], "debias_step": [0.005, 0.02]},
    "KHSIC-Local": {"fairness_weight": [0.0, 10.0, 30.0, 100.0, 300.0, 1000.0]},
}
"""Of networks: fewer values, since each takes minutes. With larger steps of the fairness gradient none settles."""
REGRESSION_OVER = {"step_size": [0.03, 0.1], "fairness_weight": [0.0, 1.0, 3.0, 6.0, 10.0, 20.0, 30.0, 60.0]}
"""Predictions of a linear model move without bound, so the fairness step must be far smaller, and rounds more."""
LAW_OVER = {"step_size": [0.3], "fairness_weight": [0.0, 10.0, 30.0, 60.0, 80.0, 100.0]}
"""One group is small and predictions are close together, so lambda is larger. With smaller steps the model is not yet
trained after 50 rounds; with a step of 1 it diverges from lambda = 80 on."""
LAW_TD_OVER = {"step_size": [0.1], "fairness_weight": [0.0, 10.0, 30.0, 60.0, 100.0, 150.0]}
LAW_TD_ROUNDS = 150
"""Of KFFL-TD, whose delayed gradient diverges sooner: with a step of .3 from lambda = 100 on, of .1 from 150 on."""

DEFECTIVE = ("FairFed/FairBatch", "KHSIC-Local", "MinMax")
"""Published columns that come from defective code (most are constant predictors): shown, but no targets."""


@dataclass(frozen=True, kw_only=True)
class KFFLCell(Cell):
    """The published setting was not chosen as ours, so that no two numbers need agree."""

    skew: str
    setting: str
    """The setting chosen on validation rows."""
    weight: str = ""
    """The published lambda of a regression table."""

    @property
    def place(self) -> str:
        return self.skew + (f", lambda {self.weight}; ours: {self.setting}" if self.weight else "")


def scale(feds: Sequence[Federation]) -> float:
    """By how much lambda must be larger than where the groups are as unequal as Adult's: for two groups psi is
    (p (1 - p))^2 times a distance between their predictions, p the share of one of them."""
    p = np.mean([np.bincount(fed.rows.s[fed.train.index]).min() / len(fed.train.index) for fed in feds])
    return float((0.22 / (p * (1 - p))) ** 2)


def arms(measure: str, lambda_scale: float = 1.0, centralized: bool = False, network: bool = False) -> list[Arm]:
    """All methods of the classification tables; FairFed and FairBatch work on the measure in question."""
    fairness = MEASURES[measure]
    weights = [float(f"{weight * lambda_scale:.4g}") for weight in (NETWORK_WEIGHTS if network else WEIGHTS)]
    steps = [float(step) for step in (NETWORK_STEP_SIZES if network else STEP_SIZES)]
    kffl = {"step_size": steps, "fairness_weight": weights}
    local = {"fairness_weight": [0.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0]}
    rows = [
        Arm("FedAvg", FedAvg(), {}),
        Arm("KFFL", KFFL(), kffl),
        Arm("KFFL-TD", KFFLTD(), kffl),
        Arm(
            "FairFed/FairBatch",
            FairFed(fairness, debias="fairbatch"),
            {"beta": [0.0, 0.1, 0.5, 1.0, 2.0, 5.0], "debias_step": [0.005, 0.02]},
        ),
        Arm(
            "FairFed-Kernel",
            FairFed(fairness, debias="kernel"),
            {"beta": [0.0, 1.0], "debias_weight": [3.0, 10.0, 30.0, 100.0, 300.0]},
        ),
        Arm("KHSIC-Local", LocalKernel(), local),
        Arm("MinMax", FedMinMax(), {"adversary_rate": [0.001, 0.003, 0.01, 0.03, 0.1]}),
    ]
    if measure == "EOD":
        # the paper's stated future work: the statistic on the rows with y = 1
        rows.insert(3, Arm("KFFL (y = 1)", KFFL(condition_on="label"), kffl))
    if centralized:
        rows.append(Arm("Centralized", CentralizedKernel(), local))
    if network:
        # FairFed-Kernel is not in Table 8
        rows = [arm for arm in rows if arm.label != "FairFed-Kernel"]
        rows = [dataclasses.replace(arm, over=NETWORK_BASELINES.get(arm.label, arm.over)) for arm in rows]
    return rows


def federations(dataset: str, skew: str, seeds: Sequence[int], regression: bool = False) -> list[Federation]:
    """4 clients with equal random parts (iid), or half with 90 % of one group and half with 90 % of the other."""
    name = "kffl-regression" if regression and dataset == "adult" else "kffl"
    preset = dataclasses.replace(get_dataset(dataset).presets[name], split=SPLIT)
    # too few customers of Bank are under 25 for clients that have 90 % of them
    of: Any = "group" if dataset == "bank_additional" else "client"
    dealt = partition.IID(CLIENTS) if skew == "iid" else partition.Skewed(CLIENTS, 0.9, of)
    return load(dataset, preset=preset, partition=dealt, seeds=seeds)


def simulation(arm: Arm, feds: list[Federation], model: Model, rounds: int) -> Simulation:
    settings = RunSettings(rounds, "all", eval_every=rounds, local=LAW_LOCAL if feds[0].name == "law" else LOCAL)
    return Simulation(make_job(arm.method, feds, model, settings, over=arm.over))


def sweeps(
    feds: list[Federation], rows: Sequence[Arm], model: Model, rounds: int, watch: Watch
) -> Iterator[tuple[Arm, Result]]:
    """Every method over its trade-off parameter, all values and seeds in one computation each."""
    for number, arm in enumerate(rows, 1):
        sim = simulation(arm, feds, model, rounds)
        carry_out(sim, f"{feds[0].name} {number}/{len(rows)} {arm.label}", watch)
        yield arm, sim.result()


def best_setting(result: Result, disparity: str, floor: float) -> dict[str, float]:
    """The setting with the smallest mean disparity on validation rows whose mean accuracy there is at least `floor`."""
    if not result.swept:
        return {}
    points = result.pareto("accuracy", disparity, split="validation")
    best = points.iloc[choose(points["accuracy"], points[disparity], floor)]
    return {name: float(best[name]) for name in result.swept}


def cells(
    number: int, dataset: str, skew: str, label: str, result: Result, setting: Mapping[str, float]
) -> list[KFFLCell]:
    # the numbers of Table 6 are among Table 7's
    runs, theirs = of_setting(result, setting), published_figures(max(number, 7), dataset, skew)
    metrics = ("accuracy", *MEASURES.values())
    return KFFLCell.row(
        {metric: runs[metric] for metric in metrics},
        {metric: theirs.get((label, "", metric)) for metric in metrics},
        their_runs=CLASSIFICATION_SEEDS,
        dataset=dataset,
        skew=skew,
        method=label,
        setting=_text(setting),
        degenerate=int(runs["degenerate"].sum()),
    )


def _text(setting: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in setting.items())


def chosen(rows: list[Arm], labels: Sequence[str] | None) -> list[Arm]:
    """FedAvg always, since the others are measured against it."""
    return arms_named(rows, labels and ["fedavg", *labels])


def majority(feds: Sequence[Federation]) -> float:
    """Accuracy of always predicting the more frequent class of the test rows."""
    return float(np.mean([np.bincount(fed.rows.y[fed.test]).max() / len(fed.test) for fed in feds]))


# -- regression --------------------------------------------------------------------------------------------------------


class RegressionTable(NamedTuple):
    dataset: str
    skew: str
    arm: Arm
    rounds: int = REGRESSION_ROUNDS


def _kffl(over: Mapping[str, Sequence[float]] = REGRESSION_OVER) -> Arm:
    return Arm("KFFL", KFFL(features=50), over)


def _kffl_td(over: Mapping[str, Sequence[float]] = REGRESSION_OVER) -> Arm:
    return Arm("KFFL-TD", KFFLTD(features=50), over)


REGRESSION_TABLES = {
    4: RegressionTable("communities", "iid", _kffl()),
    5: RegressionTable("law", "non-iid", _kffl(LAW_OVER)),
    9: RegressionTable("communities", "iid", _kffl_td()),
    10: RegressionTable("communities", "non-iid", _kffl()),
    11: RegressionTable("law", "iid", _kffl_td(LAW_TD_OVER), LAW_TD_ROUNDS),
    12: RegressionTable("law", "iid", _kffl(LAW_OVER)),
    13: RegressionTable("adult", "iid", _kffl_td()),
    14: RegressionTable("adult", "non-iid", _kffl()),
    15: RegressionTable("adult", "iid", _kffl()),
}
"""Over lambda with a linear model."""


def trivial_rmse(feds: Sequence[Federation]) -> float:
    """RMSE on test rows of predicting the mean of the training rows."""
    errors = [fed.rows.y[fed.test] - fed.rows.y[fed.train.index].mean() for fed in feds]
    return float(np.mean([np.sqrt(np.mean(error**2)) for error in errors]))


def least_squares(feds: Sequence[Federation]) -> tuple[float, float]:
    """RMSE and KS distance on test rows of the linear model with the smallest squared error on all training rows: what
    lambda = 0 should come to."""
    figures = []
    for fed in feds:
        shift, factor = fed.scaling or (0.0, 1.0)
        x = np.c_[(fed.rows.x - shift) * factor, np.ones(len(fed.rows.x))]
        weights = np.linalg.lstsq(x[fed.train.index], fed.rows.y[fed.train.index], rcond=None)[0]
        predicted, s = x[fed.test] @ weights, fed.rows.s[fed.test]
        rmse = np.sqrt(np.mean((predicted - fed.rows.y[fed.test]) ** 2))
        figures.append((rmse, ks_distance(predicted, sensitive_features=s)))
    rmse, ks = np.mean(figures, axis=0)
    return float(rmse), float(ks)


class AtEqualRmse(NamedTuple):
    """How far the KS distance falls at an RMSE at most 2 % above that of lambda = 0, and what halving it costs."""

    weight: float
    rmse: float
    ks: float
    rmse_at_0: float
    ks_at_0: float
    rmse_at_half: float
    """The smallest RMSE with at most half the KS distance of lambda = 0; nan where none has."""
    weight_at_half: float
    """lambda there."""


def unregularised(points: pd.DataFrame) -> pd.Series:
    """The point without a fairness weight; with several step sizes, that of the smallest RMSE."""
    weights = points["fairness_weight"]
    return points.loc[points["rmse"][weights == weights.min()].idxmin()]


def fairest(points: pd.DataFrame, rise: float = MAX_RMSE_RISE) -> pd.Series:
    """The point with the smallest KS distance whose RMSE is above the unregularised one's by at most this share."""
    affordable = points["rmse"] <= (1 + rise) * unregularised(points)["rmse"]
    return points.loc[points["ks_distance"][affordable].idxmin()]


def at_equal_rmse(points: pd.DataFrame, tested: Callable[[pd.Series], pd.Series] = lambda point: point) -> AtEqualRmse:
    """Settings are chosen by these points; `tested`: the figures of such a point on test rows."""
    rmse, ks = points["rmse"], points["ks_distance"]
    start, best = unregularised(points), fairest(points)
    halved = rmse[ks <= start["ks_distance"] / 2]

    def figures(point: pd.Series) -> tuple[float, float]:
        return float(tested(point)["rmse"]), float(tested(point)["ks_distance"])

    half = NAN, NAN
    if len(halved):
        point = points.loc[halved.idxmin()]
        half = figures(point)[0], float(point["fairness_weight"])
    return AtEqualRmse(float(best["fairness_weight"]), *figures(best), *figures(start), *half)


def ours_at_equal_rmse(result: Result) -> AtEqualRmse:
    """Test means of the settings chosen on validation rows."""

    def tested(point: pd.Series) -> pd.Series:
        return of_setting(result, {name: point[name] for name in result.swept})[["rmse", "ks_distance"]].mean()

    return at_equal_rmse(result.pareto("rmse", "ks_distance", split="validation"), tested)


def published_at_equal_rmse(number: int) -> AtEqualRmse:
    """The same from the published means (there chosen on them)."""
    rows = [
        {"fairness_weight": float(weight), "rmse": rmse[0], "ks_distance": ks[0]}
        for weight, (rmse, ks) in published_regression(number).items()
    ]
    return at_equal_rmse(pd.DataFrame(rows))


def regression_cells(number: int, result: Result) -> list[KFFLCell]:
    """Every row of a regression table beside ours at equal loss, chosen on validation rows: lambda = 0 beside
    lambda = 0, every other beside the fairest that costs at most MAX_RMSE_RISE, or what the published one does
    where that is more."""
    dataset, skew, arm, _ = REGRESSION_TABLES[number]
    points = result.pareto("rmse", "ks_distance", split="validation").reset_index(drop=True)
    theirs, cells = published_regression(number), []
    for weight, (rmse, ks) in theirs.items():
        rise = max(MAX_RMSE_RISE, rmse[0] / theirs["0"][0][0] - 1)
        best = unregularised(points) if float(weight) == 0 else fairest(points, rise)
        setting = {name: float(best[name]) for name in result.swept}
        runs = of_setting(result, setting)
        cells += KFFLCell.row(
            {"rmse": runs["rmse"], "ks_distance": runs["ks_distance"]},
            {"rmse": rmse, "ks_distance": ks},
            their_runs=REGRESSION_SEEDS,
            dataset=dataset,
            skew=skew,
            method=arm.label,
            setting=_text(setting),
            weight=weight,
        )
    return cells


# -- communication -----------------------------------------------------------------------------------------------------


COMMUNICATING: dict[str, Method] = {
    "KFFL": KFFL(), "KFFL-TD": KFFLTD(), "FairFed": FairFed(), "FedAvg": FedAvg(),
}  # fmt: skip
COMMUNICATION_MODELS: dict[str, Model] = {"network": NETWORK, "logistic regression": Logistic()}
"""The paper's two, the larger first."""


@dataclass(frozen=True, kw_only=True)
class CommunicationCell(Cell):
    model: str

    @property
    def place(self) -> str:
        return self.model


class Sent(NamedTuple):
    """What passes between the server and one client in a round."""

    exchanges: int
    uplink: int
    """Bytes."""
    downlink: int


def sent(method: Method, fed: Federation, model: Model) -> Sent:
    """From the messages of one round."""
    short = dataclasses.replace(LOCAL, epochs=1)
    sim = Simulation(make_job(method, fed, model, RunSettings(1, "all", local=short)))
    for _ in sim.rounds():
        pass
    messages = sim.result().messages
    messages = messages[messages["stage"] == "round"]
    assert (messages["times"] == 1).all()
    return Sent(len(messages), int(messages["bytes_up"].sum()), int(messages["bytes_down"].sum()))


def parameters(fed: Federation, model: Model) -> int:
    """|omega|, for two classes."""
    return sum(parameter.numel() for parameter in model.build(fed.shape, 1).parameters())


def communication_cells(
    number: int, fed: Federation, model: str, label: str, ours: Sent, fedavg: Sent
) -> list[CommunicationCell]:
    """Table 2: exchanges; Table 3: bytes as a multiple of FedAvg's, published as a + b epsilon."""
    values: dict[str, float] = {"exchanges": ours.exchanges}
    if number == 3:
        values = {"uplink": ours.uplink / fedavg.uplink, "downlink": ours.downlink / fedavg.downlink}
    key = ("method", "metric")
    theirs, epsilons = (published("kffl", key, (column,), table=str(number)) for column in ("mean", "epsilons"))
    epsilon = KFFL().features ** 2 / parameters(fed, COMMUNICATION_MODELS[model])
    return [
        CommunicationCell.counted(
            metric,
            value,
            theirs[label, metric][0] + epsilon * epsilons.get((label, metric), (0,))[0],
            digits=2,
            dataset=fed.name,
            model=model,
            method=label,
        )
        for metric, value in values.items()
    ]


# -- published figures -------------------------------------------------------------------------------------------------


def published_figures(table: int, dataset: str, skew: str) -> dict[tuple[str, ...], tuple[float, ...]]:
    """{(method, lambda or "", metric): (mean, std)} of one table."""
    key = ("method", "weight", "metric")
    return published("kffl", key, ("mean", "std"), table=str(table), dataset=dataset, skew=skew)


def published_regression(number: int) -> dict[str, list[tuple[float, ...]]]:
    """{lambda: [(mean, std) of the RMSE, and of the KS distance]} of a regression table."""
    dataset, skew, arm, _ = REGRESSION_TABLES[number]
    theirs = published_figures(number, dataset, skew)
    weights = sorted({weight for _, weight, _ in theirs}, key=float)
    return {weight: [theirs[arm.label, weight, metric] for metric in ("rmse", "ks_distance")] for weight in weights}
