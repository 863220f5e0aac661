"""The catalogue of metrics: what each is called, means and needs, which way is better, and how it is computed.

Tables, progress, report, `--fail-if`, trade-offs, the verdict and the documentation read it and nothing else, so a new
metric is one entry here. Its order is the order in which metrics are shown. A metric from outside the package is a
`Metric` too, named by `module:Name` or by an entry point of the group `equifed.metrics`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike

from equifed.errors import ConfigError
from equifed.metrics.calibration import calibration_error, calibration_gap, error_difference
from equifed.metrics.clients import client_equality, client_range, group_equity
from equifed.metrics.disparities import BY_CLASS, difference, disparities, parity
from equifed.metrics.local import SIGNED, LocalGaps, local_gaps
from equifed.metrics.rates import degenerate, divide, rates
from equifed.metrics.scored import Scored
from equifed.registry import Registry

Better = Literal["higher", "lower", "zero", "one", ""]
LabelKind = Literal["binary", "multiclass", "regression"]
Need = Literal["labels", "groups", "scores", "clients", "client groups"]
CLASS_KINDS: tuple[LabelKind, ...] = ("binary", "multiclass")
ALL_KINDS: tuple[LabelKind, ...] = (*CLASS_KINDS, "regression")
BINARY: tuple[LabelKind, ...] = ("binary",)
REGRESSION: tuple[LabelKind, ...] = ("regression",)
BETWEEN_GROUPS: tuple[Need, ...] = ("labels", "groups")
INFINITE = (0.0, np.inf)
ODDS = ("true_positive_rate", "false_positive_rate")


class Population(Protocol):
    """Whom an evaluation is about, such as a `Federation`: its labels (binary, multiclass or regression), its groups,
    its clients, their known groups and their own test rows (None where there are none)."""

    @property
    def label_kind(self) -> str: ...
    @property
    def groups(self) -> tuple[str, ...]: ...
    @property
    def ids(self) -> Sequence[str]: ...
    @property
    def client_groups(self) -> np.ndarray | None: ...
    @property
    def client_test(self) -> Any: ...


class Evaluation:
    """Counts and sums with any leading axes, and the rates that follow: each computed when a metric first needs it."""

    def __init__(self, scored: Scored, client_groups: np.ndarray | None = None, *, disclosed: bool = False) -> None:
        """Counts are nan where they are withheld. client_groups: the known group of each client [K], where the last of
        the leading axes is the clients. disclosed: what is said of all rows is said of those that are disclosed, not
        withheld with them."""
        self._disclosed = disclosed
        self.counts, self.loss, self.ks, self.mean, self.predicted, self.calibration, *unknown = scored
        self.unknown, self.unknown_loss, self.unknown_calibration = unknown
        self.client_groups = client_groups
        self._values: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        """A metric over all rows [...]."""
        if name not in self._values:
            overall = describe(name).overall
            if overall is None:
                raise ConfigError(f"The metric {name} is not defined over all rows.", value=name)
            values = overall(self)
            if "groups" in describe(name).needs:  # of groups one of which is withheld nothing can be said
                values = np.where(self.withheld(name), np.nan, values)
            self._values[name] = values
        return self._values[name]

    def withheld(self, name: str) -> np.ndarray:
        """Whether counts that the metric rests on are withheld for some group [...]."""
        part, axes = (self.counts, (-3, -2, -1)) if "labels" in describe(name).needs else (self.predicted, (-2, -1))
        hidden: np.ndarray = np.isnan(part).any(axes)
        return hidden

    def over_groups(self, values: np.ndarray, axis: int = -1) -> np.ndarray:
        """Sums over the axis of groups."""
        total: np.ndarray = (np.nansum if self._disclosed else np.sum)(values, axis)
        return total

    @cached_property
    def whole_loss(self) -> np.ndarray:
        """The summed loss of all rows [...]: without what is withheld, but undefined where a model has diverged."""
        hidden = np.isnan(self.group_rows)[..., None] & self._disclosed
        total: np.ndarray = np.where(hidden, 0.0, self.loss).sum((-2, -1)) + self.unknown_loss.sum(-1)
        return total

    @cached_property
    def chosen(self) -> np.ndarray:
        """Counts [..., G, C, C] as if all labels were 0: for what follows from predictions alone."""
        counts = np.zeros(self.counts.shape)
        counts[..., 0, :] = self.predicted
        return counts

    @cached_property
    def group_rows(self) -> np.ndarray:
        """Rows of each group with label and prediction [..., G]."""
        rows: np.ndarray = self.counts.sum((-2, -1))
        return rows

    @cached_property
    def everyone(self) -> np.ndarray:
        """All rows by label and prediction [..., C, C], those of unknown group too."""
        rows: np.ndarray = self.over_groups(self.counts, -3) + self.unknown
        return rows

    @cached_property
    def everyone_chosen(self) -> np.ndarray:
        """The same as if all labels were 0, also where labels are withheld."""
        rows = self.over_groups(self.chosen, -3)
        rows[..., 0, :] += self.unknown.sum(-2)
        return rows

    @cached_property
    def rates(self) -> dict[str, np.ndarray]:
        """Rates of each group, each [..., G]; count and selection rate also where labels are withheld."""
        by_prediction = rates(self.chosen)
        return rates(self.counts) | {
            name: by_prediction[name] for name in ("count", "selection_rate") if name in by_prediction
        }

    @cached_property
    def disparities(self) -> dict[str, np.ndarray]:
        """Gaps and ratios between groups, each [...]; demographic parity also where labels are withheld."""
        return disparities(self.counts) | parity(self.predicted)

    @cached_property
    def constant(self) -> np.ndarray:
        """Whether a group gets one constant prediction [..., G]."""
        return degenerate(self.chosen)

    @cached_property
    def client_equality(self) -> dict[str, np.ndarray]:
        """How accuracy is distributed over the clients, each [...]."""
        return client_equality(self["accuracy"])

    @cached_property
    def group_equity(self) -> dict[str, np.ndarray]:
        """How it is distributed over groups of clients."""
        return group_equity(self["accuracy"], self.client_groups)

    @cached_property
    def local_gaps(self) -> dict[str, LocalGaps]:
        """The clients' own gaps between the groups that are farthest apart over all of them, in the class in which they
        are."""
        of_all = np.broadcast_to(self.predicted.sum(-1, keepdims=True), self.predicted.shape)
        parts = {
            "demographic_parity_difference": (self.predicted, of_all),
            "equal_opportunity_difference": (np.diagonal(self.counts, axis1=-2, axis2=-1), self.counts.sum(-1)),
        }
        return {name: local_gaps(*parts[name]) for name in SIGNED}

    @cached_property
    def group_rmse(self) -> np.ndarray:
        """Root mean squared error of each group [..., G]."""
        return np.sqrt(divide(self.loss.sum(-1), self.group_rows))


Compute = Callable[[Evaluation], np.ndarray]


@dataclass(frozen=True)
class Metric:
    name: str
    help: str
    """One sentence for a reader who did not compute it."""
    _: KW_ONLY
    title: str = ""
    """In words; left out: the name with spaces."""
    short: str = ""
    """Where there is little room; left out: the title."""
    better: Better = ""
    """The direction that is better, or the value that is fair: "zero" and "one" are disparities. "": neither."""
    kinds: tuple[LabelKind, ...] = CLASS_KINDS
    needs: tuple[Need, ...] = ("labels",)
    """scores: all predictions in one place."""
    range: tuple[float, float] = (0.0, 1.0)
    shown: Literal["headline", "table", "page", ""] = ""
    """The narrowest place that shows it without being asked: the headline of a run (in `equifed list`), the comparison
    on the terminal, the comparison in the report; each shows what the ones before it do."""
    in_groups: Literal["count", "rate", "flag", ""] = ""
    """How the report's tables of groups show it: a number of rows, something to draw, a mark; "": not."""
    rests_on: Literal["count", "disclosed", "positives", "negatives", ""] = ""
    """Of a group's rate that is a share of rows: of which rows. "disclosed" are those with label and prediction."""
    compares: tuple[str, ...] = ()
    """Of a disparity: the groups' rates, by name, between which it is the widest gap."""
    clients: Literal["each", "range", ""] = ""
    """Whether it is measured for every client, and summed up by its mean, worst and best client."""
    overall: Compute | None = None
    """Over all rows: [..., G, C, C] -> [...]."""
    by_group: Compute | None = None
    """Of every group: [..., G, C, C] -> [..., G]."""
    over_clients: Compute | None = None
    """From the clients' own evaluations: [..., K, G, C, C] -> [...]."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or self.name.replace("_", " ").replace(".", ": "))
        object.__setattr__(self, "short", self.short or self.title)

    @property
    def disparity(self) -> bool:
        """Whether it says how far apart groups are."""
        return self.better in ("zero", "one")

    @property
    def heading(self) -> str:
        """The title as the first word of a sentence."""
        return self.title[:1].upper() + self.title[1:]

    @property
    def direction(self) -> Literal["higher", "lower", ""]:
        directions: dict[Better, Literal["higher", "lower", ""]] = {"zero": "lower", "lower": "lower", "": ""}
        return directions.get(self.better, "higher")

    @property
    def facts(self) -> dict[str, Any]:
        """All but how it is computed: what a result keeps of a metric from outside."""
        return {name: value for name, value in vars(self).items() if not callable(value)}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Metric:
        """A metric that can be shown but not computed; numbers may have been text in a file."""
        plain: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in facts.items()}
        return cls(**plain | {"range": tuple(map(float, facts["range"]))})

    def cost(self, values: Any) -> Any:
        """The values turned so that less is better: a gap by its size, a ratio by its distance from 1."""
        if self.better == "one":
            return np.abs(1 - np.asarray(values))
        if self.better == "zero":
            return np.abs(values)
        return np.negative(values) if self.better == "higher" else np.asarray(values)

    def applies(self, population: Population) -> bool:
        """Whether a run on these data has it."""
        missing = {"clients"} if population.client_test is None else set()
        missing |= {"client groups"} if population.client_groups is None else set()
        return population.label_kind in self.kinds and not missing & set(self.needs)


def _rate(name: str, help: str, **facts: Any) -> Metric:
    return Metric(name, help, by_group=lambda e: e.rates[name], **{"kinds": BINARY, "in_groups": "rate", **facts})


def _gap(name: str, help: str, **facts: Any) -> Metric:
    kinds = CLASS_KINDS if name in BY_CLASS else BINARY
    facts = {"kinds": kinds, "needs": BETWEEN_GROUPS, "better": "zero", **facts}
    return Metric(name, help, overall=lambda e: e.disparities[name], **facts)


_ENTRIES = (
    Metric("rows", "Test rows.", kinds=ALL_KINDS, needs=(), range=INFINITE, clients="each",
           overall=lambda e: e.everyone_chosen.sum((-2, -1))),
    Metric("count", "Test rows of the group.", title="test rows", kinds=ALL_KINDS, needs=("groups",), range=INFINITE,
           in_groups="count", by_group=lambda e: e.predicted.sum(-1)),
    Metric("disclosed", "Test rows of the group whose labels and predictions the silos disclose; positives, accuracy "
           "and error rates rest on them.", title="rows disclosed", kinds=ALL_KINDS, needs=("groups",), range=INFINITE,
           in_groups="count"),
    _rate("positives", "Test rows of the group whose label is positive.", needs=BETWEEN_GROUPS, range=INFINITE,
          in_groups="count"),
    Metric("accuracy", "Share of test rows predicted correctly.", better="higher", shown="headline", clients="range",
           in_groups="rate", rests_on="disclosed", by_group=lambda e: e.rates["accuracy"],
           overall=lambda e: divide(np.trace(e.everyone, axis1=-2, axis2=-1), e.everyone.sum((-2, -1)))),
    Metric("rmse", "Root of the mean squared error.", title="RMSE", better="lower", kinds=REGRESSION, range=INFINITE,
           shown="headline", clients="range", in_groups="rate", by_group=lambda e: e.group_rmse,
           overall=lambda e: np.sqrt(e["loss"])),
    Metric("loss", "Mean training loss, on test rows.", better="lower", kinds=ALL_KINDS, range=INFINITE, clients="each",
           by_group=lambda e: divide(e.loss.sum(-1), e.group_rows),
           overall=lambda e: divide(e.whole_loss, e.everyone.sum((-2, -1)))),
    _gap("demographic_parity_difference", "Largest gap between groups in the share predicted positive (more than two "
         "classes: predicted as any one of them); 0 is fair.",
         short="DP diff.", needs=("groups",), shown="headline", clients="range", compares=("selection_rate",)),
    _gap("demographic_parity_ratio", "Smallest ratio between groups of the share predicted positive (more than two "
         "classes: as any one of them); 1 is fair.",
         short="DP ratio", needs=("groups",), better="one", compares=("selection_rate",)),
    _gap("equal_opportunity_difference", "Largest gap between groups in the true positive rate (more than two classes: "
         "in the share of any label that is predicted right); 0 is fair.",
         short="EOpp diff.", shown="headline", clients="range", compares=("true_positive_rate",)),
    _gap("equal_opportunity_ratio", "Smallest ratio between groups of the true positive rate (more than two classes: "
         "that of any label); 1 is fair.",
         short="EOpp ratio", better="one", compares=("true_positive_rate",)),
    _gap("equalized_odds_difference", "The larger of the gaps in true and in false positive rate (more than two "
         "classes: the largest in the share of any label that is predicted as any class); 0 is fair.",
         short="EOdds diff.", shown="headline", clients="range", compares=ODDS),
    _gap("equalized_odds_ratio", "The smaller of the ratios of true and of false positive rates; 1 is fair.",
         short="EOdds ratio", better="one", compares=ODDS),
    _gap("average_odds_ratio", "Mean of the ratios of true and of false positive rates; 1 is fair.", better="one"),
    _gap("discrimination_index", "Largest gap between groups in F1; 0 is fair.", compares=("f1",)),
    _gap("accuracy_difference", "Largest gap between groups in accuracy; 0 is fair.", short="accuracy diff.",
         kinds=CLASS_KINDS, compares=("accuracy",)),
    Metric("dgeo", "Gap between groups in the loss on positive labels; 0 is fair.", title="loss gap on positives",
           better="zero", kinds=BINARY, needs=BETWEEN_GROUPS, range=INFINITE,
           overall=lambda e: difference(divide(e.loss[..., 1], e.counts[..., 1, :].sum(-1)))),
    Metric("ks_distance", "Largest gap between the groups' distributions of predictions; 0 is fair.",
           title="KS distance", better="zero", kinds=REGRESSION, needs=("groups", "scores"), shown="headline",
           clients="range", overall=lambda e: e.ks),
    Metric("mean_difference", "Largest gap between the groups' mean predictions; 0 is fair.", short="mean diff.",
           better="zero", kinds=REGRESSION, needs=BETWEEN_GROUPS, range=INFINITE, shown="headline",
           overall=lambda e: difference(e.mean), compares=("mean_prediction",)),
    Metric("rmse_difference", "Largest gap between groups in RMSE; 0 is fair.", title="RMSE difference", better="zero",
           kinds=REGRESSION, needs=BETWEEN_GROUPS, range=INFINITE, shown="page",
           overall=lambda e: difference(e.group_rmse), compares=("rmse",)),
    Metric("worst_group_accuracy", "Accuracy of the group served worst.", short="worst group", better="higher",
           needs=BETWEEN_GROUPS, shown="table", overall=lambda e: np.fmin.reduce(e.rates["accuracy"], axis=-1)),
    Metric("worst_group_rmse", "RMSE of the group served worst.", title="worst group RMSE", short="worst group",
           better="lower", kinds=REGRESSION, needs=BETWEEN_GROUPS, range=INFINITE, shown="table",
           overall=lambda e: np.fmax.reduce(e.group_rmse, axis=-1)),
    _rate("selection_rate", "Share predicted positive.", needs=(), rests_on="count",
          overall=lambda e: rates(e.everyone_chosen[..., None, :, :])["selection_rate"][..., 0]),
    _rate("true_positive_rate", "Of those with a positive label, the share predicted positive.", rests_on="positives"),
    _rate("false_positive_rate", "Of those with a negative label, the share predicted positive.", rests_on="negatives"),
    _rate("true_negative_rate", "Of those with a negative label, the share predicted negative.", rests_on="negatives",
          in_groups=""),
    _rate("false_negative_rate", "Of those with a positive label, the share predicted negative.", rests_on="positives",
          in_groups=""),
    _rate("f1", "Harmonic mean of precision and recall.", title="F1", better="higher"),
    Metric("expected_calibration_error", "How far scores are from how often they come true, on average over the rows; "
           "0 is calibrated.", short="ECE", better="lower",
           by_group=lambda e: calibration_error(e.calibration),
           overall=lambda e: calibration_error(e.over_groups(e.calibration, -3) + e.unknown_calibration)),
    Metric("calibration_difference", "Largest gap between groups in expected calibration error; 0 is fair.",
           short="ECE diff.", better="zero", needs=BETWEEN_GROUPS, overall=lambda e: error_difference(e.calibration)),
    Metric("calibration_gap", "Largest distance between two groups' reliability curves: how far apart the groups are "
           "in what comes true at equal scores, on average over scores that both have; 0 is fair.",
           better="zero", needs=BETWEEN_GROUPS, range=(0.0, 2.0), overall=lambda e: calibration_gap(e.calibration)),
    Metric("mean_prediction", "Mean of the group's predictions.", kinds=REGRESSION, range=(-np.inf, np.inf),
           in_groups="rate", by_group=lambda e: e.mean),
    Metric("degenerate", "Whether some group gets the same prediction for more than 99 % of its rows (1) or none does "
           "(0).", better="lower", needs=(), in_groups="flag", by_group=lambda e: e.constant.astype(float),
           overall=lambda e: e.constant.any(-1).astype(float)),
    Metric("worst_clients_rmse", "Mean RMSE of the tenth of the clients (at least one) that is served worst.",
           title="worst 10 % of clients", better="lower", kinds=REGRESSION, needs=("labels", "clients"), range=INFINITE,
           shown="page", over_clients=lambda e: -client_equality(-e["rmse"])["worst10"]),
)  # fmt: skip
_PARTS = {"mean": "Mean over the clients", "worst": "The client served worst", "best": "The client served best"}


def _client_range(metric: Metric, part: str) -> Metric:
    """The mean, worst or best client."""

    def compute(e: Evaluation) -> Any:
        return client_range(e[metric.name], lower_is_better=metric.direction == "lower")[part]

    return Metric(
        f"client_{metric.name}.{part}",
        f"{_PARTS[part]}, each on its own test rows: {metric.title}.",
        title=f"client {metric.title}: {part}",
        better=metric.direction,
        kinds=metric.kinds,
        needs=(*(need for need in metric.needs if need != "scores"), "clients"),  # a client has all of its own
        range=metric.range,
        over_clients=compute,
    )


def _opposite(metric: Metric) -> Metric:
    """How many clients have a gap of the opposite sign."""
    return Metric(
        f"client_{metric.name}.opposite",
        "Share of the clients where the group that is ahead over all clients' test rows is behind, of the two that are "
        f"farthest apart there: {metric.title}.",
        title=f"clients with the opposite {metric.title}",
        better="lower",
        kinds=metric.kinds,
        needs=(*metric.needs, "clients"),
        over_clients=lambda e: e.local_gaps[metric.name].opposite,
    )


def _equality(over: Literal["client_equality", "group_equity"], part: str) -> Metric:
    """The distribution of accuracy over clients, or over groups of clients."""
    what = "clients" if over == "client_equality" else "groups of clients"
    tenth = f"Mean over the tenth of the {what} (at least one) that is served"
    title, words = {
        "mean": (f"{what}: mean", f"Mean accuracy of the {what}."),
        "worst10": (f"worst 10 % of {what}", f"{tenth} worst."),
        "best10": (f"best 10 % of {what}", f"{tenth} best."),
        "variance": (f"{what}: variance", f"Variance of accuracy over the {what}."),
    }[part]
    return Metric(
        f"{over}.{part}",
        words,
        title=title,
        better="lower" if part == "variance" else "higher",
        needs=("labels", "clients") if over == "client_equality" else ("labels", "clients", "client groups"),
        shown="page" if (over, part) == ("client_equality", "worst10") else "",
        over_clients=lambda e: getattr(e, over)[part],
    )


_COSTS = {
    "bytes_up": ("bytes up", "What one client sends in one round."),
    "bytes_down": ("bytes down", "What one client receives in one round."),
    "seconds": ("seconds per run", "Wall time of the call divided by its runs; seeds and settings share a call."),
}
_ALL = (
    *_ENTRIES,
    *(_client_range(metric, part) for metric in _ENTRIES if metric.clients == "range" for part in _PARTS),
    *(_opposite(metric) for metric in _ENTRIES if metric.name in SIGNED),
    *(_equality("client_equality", part) for part in ("mean", "worst10", "best10", "variance")),
    *(_equality("group_equity", part) for part in ("mean", "worst10", "best10", "variance")),
    *(
        Metric(name, words, title=title, better="lower", kinds=ALL_KINDS, needs=(), range=INFINITE)
        for name, (title, words) in _COSTS.items()
    ),
)
CATALOGUE: dict[str, Metric] = {metric.name: metric for metric in _ALL}
METRICS: Registry[Metric] = Registry(
    "metric", "equifed.metrics", CATALOGUE, lambda thing: isinstance(thing, Metric), "an equifed.metrics.Metric"
)
_OUTSIDE: dict[str, Metric] = {}
"""Metrics from outside the package that this process has met, by their own names."""
PLACES = ("headline", "table", "page")


def from_outside(names: Iterable[str | Metric]) -> tuple[Metric, ...]:
    """The metrics with these names, `module:Name` or an entry point's, less those that every run has."""
    outside: dict[str, Metric] = {}
    for name in names:
        metric = name if isinstance(name, Metric) else METRICS[name]
        if CATALOGUE.get(metric.name) is metric:
            continue
        if metric.name in CATALOGUE or outside.get(metric.name, metric) is not metric:
            raise ConfigError(
                f"The metric {name!r} is called {metric.name!r}, as another one is. Rename it.", value=name
            )
        outside[metric.name] = metric
    # they were asked for, so that comparisons show them
    shown = tuple(dataclasses.replace(metric, shown=metric.shown or "table") for metric in outside.values())
    _OUTSIDE.update({metric.name: metric for metric in shown})
    return shown


def learn(metrics: Iterable[Mapping[str, Any]]) -> None:
    """Remember the facts about metrics from outside that a result has."""
    for facts in metrics:
        _OUTSIDE.setdefault(facts["name"], Metric.from_facts(facts))


def describe(name: str) -> Metric:
    """The facts about a metric; of one that nobody has met, such as what a method logs, only its name."""
    return CATALOGUE.get(name) or _OUTSIDE.get(name) or Metric(name=name, help="", needs=())


def measured(population: Population, outside: Sequence[Metric] = ()) -> list[Metric]:
    """The metrics that a run on these data has."""
    return [metric for metric in (*CATALOGUE.values(), *outside) if metric.applies(population)]


def ordered(names: Iterable[str]) -> list[str]:
    """In the catalogue's order, metrics from outside last."""
    place = {name: i for i, name in enumerate(CATALOGUE)}
    return sorted(dict.fromkeys(names), key=lambda name: place.get(name, len(place)))


def shown(names: Iterable[str], place: Literal["headline", "table", "page"]) -> list[str]:
    """Those of the measured metrics that a place shows. Where no disparity is among them, the first that was measured
    follows the quality."""
    metrics = [describe(name) for name in ordered(names)]
    chosen = [metric for metric in metrics if metric.shown and PLACES.index(metric.shown) <= PLACES.index(place)]
    if not any(metric.disparity for metric in chosen):
        chosen[1:1] = [metric for metric in metrics if metric.disparity][:1]
    return [metric.name for metric in chosen]


def main_pair(names: Iterable[str]) -> tuple[str, str]:
    """The main quality (accuracy, RMSE) and the main disparity of those measured; "" where there is none."""
    headline = [describe(name) for name in shown(names, "headline")]
    quality, disparity = (
        next((metric.name for metric in headline if metric.disparity == gap), "") for gap in (False, True)
    )
    return quality, disparity


def costs(names: Sequence[str], values: ArrayLike) -> np.ndarray:
    """Values of these metrics [..., m] as costs, of which less is better."""
    for name in names:
        if not describe(name).better:
            raise ConfigError(f"Neither more nor less of {name} is better: it cannot be in a trade-off.", value=name)
    array = np.asarray(values, dtype=np.float64)
    return np.stack([describe(name).cost(array[..., i]) for i, name in enumerate(names)], axis=-1)
