"""The catalogue of metrics: what each is called, means and needs, which way is better, and how it is computed.

Functions of rows, tables, progress, report, `--fail-if`, trade-offs, the verdict and the documentation read it and
nothing else, so a new metric is one entry here: a rate as two counts of rows (`Metric.rate`), a gap as the comparison
of a rate between groups (`Metric.gap`), anything else as a function of an `Evaluation`. Its order is the order in which
metrics are shown. A metric from outside the package is a `Metric` too, named by `module:Name` or by an entry point of
the group `equifed.metrics`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike

from equifed.errors import ConfigError, unknown_name
from equifed.metrics.calibration import calibration_error, calibration_gap, error_difference
from equifed.metrics.clients import client_equality, client_range, group_equity
from equifed.metrics.disparities import OVER_CLASSES, Comparison, compare, compare_over_classes, difference
from equifed.metrics.local import SIGNED, LocalGaps, local_gaps
from equifed.metrics.rates import Share, cells, degenerate, divide
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
        self._by_group: dict[Metric, np.ndarray] = {}

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

    def of_groups(self, metric: Metric) -> np.ndarray:
        """Return a metric of every group [..., G]."""
        if metric not in self._by_group:
            if metric.by_group is None:
                raise ConfigError(f"The metric {metric.name} is not defined for groups.", value=metric.name)
            self._by_group[metric] = metric.by_group(self)
        return self._by_group[metric]

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
    def cells(self) -> dict[str, np.ndarray]:
        """Rows of each group by what `Share` calls them, each [..., G]."""
        return cells(self.counts)

    @cached_property
    def cells_chosen(self) -> dict[str, np.ndarray]:
        """The same as if all labels were 0, also where labels are withheld."""
        return cells(self.chosen)

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
    share: Share | None = None
    """Of a rate: the two counts of rows that it is made of."""
    compares: tuple[str, ...] = ()
    """Of a gap: the groups' metrics, by name, that are compared."""
    how: Comparison = "difference"
    """How they are compared."""
    compared: tuple[Metric, ...] = field(default=(), repr=False)
    """The same metrics themselves."""
    less_often: str = ""
    """Of a group's rate: how the verdict says that it is lower, with {low}, {positive}, {negative} and {often}; left
    out: "the TITLE of LOW is 0.1 below that of HIGH"."""
    clients: Literal["each", "range", ""] = ""
    """Whether it is measured for every client, and summed up by its mean, worst and best client."""
    overall: Compute | None = None
    """Over all rows: [..., G, C, C] -> [...]."""
    by_group: Compute | None = None
    """Of every group: [..., G, C, C] -> [..., G]."""
    over_clients: Compute | None = None
    """From the clients' own evaluations: [..., K, G, C, C] -> [...]."""

    @classmethod
    def rate(cls, name: str, help: str, numerator: str, denominator: str, **facts: Any) -> Metric:
        """A rate: of the rows that the denominator counts, the share that the numerator does.

        Both are sums of TP, FN, FP, TN or, for any number of classes, right and wrong: "TP" and "TP + FP". What the
        rate needs, the rows that it rests on, its interval and its pooled values follow from them.
        """
        share = Share(numerator, denominator)
        labels = share.needs_labels

        def overall(e: Evaluation) -> np.ndarray:
            everyone = e.everyone if labels else e.everyone_chosen
            return share.of(cells(everyone[..., None, :, :]))[..., 0]

        follows: dict[str, Any] = {
            "kinds": CLASS_KINDS if share.is_of_any_classes else BINARY,
            "needs": ("labels",) if labels else (),
            "in_groups": "rate",
        }
        return cls(
            name,
            help,
            share=share,
            overall=overall,
            by_group=lambda e: share.of(e.cells if labels else e.cells_chosen),
            **follows | facts,
        )

    @classmethod
    def gap(cls, name: str, help: str, how: Comparison, *rates: str | Metric, **facts: Any) -> Metric:
        """How far apart the groups are in a rate, or another metric of groups: its largest "difference", its smallest
        "ratio" (of several rates the widest; their "mean ratio"), or the value of the group served "worst".

        rates: names of the catalogue, or the metrics themselves.
        """
        metrics = tuple(_of_groups(rate) if isinstance(rate, str) else rate for rate in rates)
        names = tuple(metric.name for metric in metrics)
        labels = any("labels" in metric.needs for metric in metrics)
        kinds = tuple(kind for kind in ALL_KINDS if all(kind in metric.kinds for metric in metrics))
        over_classes = how in OVER_CLASSES.get(names, ())
        (low, high), better = metrics[0].range, metrics[0].better
        if how == "worst" and better not in ("higher", "lower"):
            raise ConfigError(f"The metric {name} cannot be the worst {names[0]}: say of that what is better.")

        def overall(e: Evaluation) -> np.ndarray:
            if over_classes and e.counts.shape[-1] > 2:
                return compare_over_classes(how, names, e.counts if labels else e.chosen)
            values = [e.of_groups(metric) for metric in metrics]
            if how == "worst":
                return np.asarray((np.fmax if better == "lower" else np.fmin).reduce(values[0], axis=-1))
            return compare(how, values)

        follows: dict[str, Any] = {
            "kinds": CLASS_KINDS if over_classes else kinds,
            "needs": BETWEEN_GROUPS if labels else ("groups",),
            "better": {"difference": "zero", "worst": better}.get(how, "one"),
            "range": {"difference": (0.0, high - low), "worst": (low, high)}.get(how, (0.0, 1.0)),
        }
        return cls(name, help, how=how, compares=names, compared=metrics, overall=overall, **follows | facts)

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or self.name.replace("_", " ").replace(".", ": "))
        object.__setattr__(self, "short", self.short or self.title)

    @property
    def disparity(self) -> bool:
        """Whether it says how far apart groups are."""
        return self.better in ("zero", "one")

    @property
    def between(self) -> tuple[str, ...]:
        """Of a disparity: the rates of which it is the widest gap, so that two groups are behind it."""
        return self.compares if self.disparity and self.how in ("difference", "ratio") else ()

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
        return {name: value for name, value in vars(self).items() if not callable(value) and name != "compared"}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Metric:
        """A metric that can be shown but not computed; numbers may have been text in a file."""
        known = {each.name for each in dataclasses.fields(cls)}
        plain: dict[str, Any] = {
            name: tuple(each) if isinstance(each, list) else each for name, each in facts.items() if name in known
        }
        share = plain.get("share") and Share(*plain["share"])
        return cls(**plain | {"range": tuple(map(float, facts["range"])), "share": share})

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


def _of_groups(name: str) -> Metric:
    """Return the metric of groups with this name."""
    known = {metric.name: metric for metric in (*_QUALITY, *_RATES, *_OUTSIDE.values()) if metric.by_group}
    if name not in known:
        raise unknown_name("rate of groups", name, known)
    return known[name]


_OUTSIDE: dict[str, Metric] = {}
"""Metrics from outside the package that this process has met, by their own names."""
_QUALITY = (
    Metric("rows", "Test rows.", kinds=ALL_KINDS, needs=(), range=INFINITE, clients="each",
           overall=lambda e: e.everyone_chosen.sum((-2, -1))),
    Metric("count", "Test rows of the group.", title="test rows", kinds=ALL_KINDS, needs=("groups",), range=INFINITE,
           in_groups="count", by_group=lambda e: e.predicted.sum(-1)),
    Metric("disclosed", "Test rows of the group whose labels and predictions the silos disclose; positives, accuracy "
           "and error rates rest on them.", title="rows disclosed", kinds=ALL_KINDS, needs=("groups",), range=INFINITE,
           in_groups="count"),
    Metric("positives", "Test rows of the group whose label is positive.", kinds=BINARY, needs=BETWEEN_GROUPS,
           range=INFINITE, in_groups="count", by_group=lambda e: e.cells["TP"] + e.cells["FN"]),
    Metric.rate("accuracy", "Share of test rows predicted correctly.", "right", "right + wrong", better="higher",
                shown="headline", clients="range", less_often="{low} is predicted correctly {often}"),
    Metric("rmse", "Root of the mean squared error.", title="RMSE", better="lower", kinds=REGRESSION, range=INFINITE,
           shown="headline", clients="range", in_groups="rate", by_group=lambda e: e.group_rmse,
           overall=lambda e: np.sqrt(e["loss"])),
    Metric("loss", "Mean training loss, on test rows.", better="lower", kinds=ALL_KINDS, range=INFINITE, clients="each",
           by_group=lambda e: divide(e.loss.sum(-1), e.group_rows),
           overall=lambda e: divide(e.whole_loss, e.everyone.sum((-2, -1)))),
)  # fmt: skip
_RATES = (
    Metric.rate("selection_rate", "Share predicted positive.", "TP + FP", "TP + FP + FN + TN",
                less_often="{low} is predicted {positive} {often}"),
    Metric.rate("true_positive_rate", "Of those with a positive label, the share predicted positive.", "TP", "TP + FN",
                less_often="of those labelled {positive}, {low} is predicted so {often}"),
    Metric.rate("false_positive_rate", "Of those with a negative label, the share predicted positive.", "FP", "FP + TN",
                less_often="of those labelled {negative}, {low} is predicted {positive} {often}"),
    Metric.rate("true_negative_rate", "Of those with a negative label, the share predicted negative.", "TN", "FP + TN",
                in_groups=""),
    Metric.rate("false_negative_rate", "Of those with a positive label, the share predicted negative.", "FN", "TP + FN",
                in_groups=""),
    Metric.rate("f1", "Harmonic mean of precision and recall.", "2 TP", "2 TP + FP + FN", title="F1", better="higher"),
    Metric("mean_prediction", "Mean of the group's predictions.", kinds=REGRESSION, range=(-np.inf, np.inf),
           in_groups="rate", by_group=lambda e: e.mean),
)  # fmt: skip
_GAPS = (
    Metric.gap("demographic_parity_difference", "Largest gap between groups in the share predicted positive (more than "
               "two classes: predicted as any one of them); 0 is fair.", "difference", "selection_rate",
               short="DP diff.", shown="headline", clients="range"),
    Metric.gap("demographic_parity_ratio", "Smallest ratio between groups of the share predicted positive (more than "
               "two classes: as any one of them); 1 is fair.", "ratio", "selection_rate", short="DP ratio"),
    Metric.gap("equal_opportunity_difference", "Largest gap between groups in the true positive rate (more than two "
               "classes: in the share of any label that is predicted right); 0 is fair.", "difference",
               "true_positive_rate", short="EOpp diff.", shown="headline", clients="range"),
    Metric.gap("equal_opportunity_ratio", "Smallest ratio between groups of the true positive rate (more than two "
               "classes: that of any label); 1 is fair.", "ratio", "true_positive_rate", short="EOpp ratio"),
    Metric.gap("equalized_odds_difference", "The larger of the gaps in true and in false positive rate (more than two "
               "classes: the largest in the share of any label that is predicted as any class); 0 is fair.",
               "difference", "true_positive_rate", "false_positive_rate", short="EOdds diff.", shown="headline",
               clients="range"),
    Metric.gap("equalized_odds_ratio", "The smaller of the ratios of true and of false positive rates; 1 is fair.",
               "ratio", "true_positive_rate", "false_positive_rate", short="EOdds ratio"),
    Metric.gap("average_odds_ratio", "Mean of the ratios of true and of false positive rates; 1 is fair.", "mean ratio",
               "true_positive_rate", "false_positive_rate"),
    Metric.gap("discrimination_index", "Largest gap between groups in F1; 0 is fair.", "difference", "f1"),
    Metric.gap("accuracy_difference", "Largest gap between groups in accuracy; 0 is fair.", "difference", "accuracy",
               short="accuracy diff."),
    Metric("dgeo", "Gap between groups in the loss on positive labels; 0 is fair.", title="loss gap on positives",
           better="zero", kinds=BINARY, needs=BETWEEN_GROUPS, range=INFINITE,
           overall=lambda e: difference(divide(e.loss[..., 1], e.counts[..., 1, :].sum(-1)))),
    Metric("ks_distance", "Largest gap between the groups' distributions of predictions; 0 is fair.",
           title="KS distance", better="zero", kinds=REGRESSION, needs=("groups", "scores"), shown="headline",
           clients="range", overall=lambda e: e.ks),
    Metric.gap("mean_difference", "Largest gap between the groups' mean predictions; 0 is fair.", "difference",
               "mean_prediction", short="mean diff.", shown="headline"),
    Metric.gap("rmse_difference", "Largest gap between groups in RMSE; 0 is fair.", "difference", "rmse",
               title="RMSE difference", shown="page"),
    Metric.gap("worst_group_accuracy", "Accuracy of the group served worst.", "worst", "accuracy", short="worst group",
               shown="table"),
    Metric.gap("worst_group_rmse", "RMSE of the group served worst.", "worst", "rmse", title="worst group RMSE",
               short="worst group", shown="table"),
)  # fmt: skip
_OTHERS = (
    Metric("expected_calibration_error", "How far scores are from how often they come true, on average over the rows; "
           "0 is calibrated.", short="ECE", better="lower",
           by_group=lambda e: calibration_error(e.calibration),
           overall=lambda e: calibration_error(e.over_groups(e.calibration, -3) + e.unknown_calibration)),
    Metric("calibration_difference", "Largest gap between groups in expected calibration error; 0 is fair.",
           short="ECE diff.", better="zero", needs=BETWEEN_GROUPS, overall=lambda e: error_difference(e.calibration)),
    Metric("calibration_gap", "Largest distance between two groups' reliability curves: how far apart the groups are "
           "in what comes true at equal scores, on average over scores that both have; 0 is fair.",
           better="zero", needs=BETWEEN_GROUPS, range=(0.0, 2.0), overall=lambda e: calibration_gap(e.calibration)),
    Metric("degenerate", "Whether some group gets the same prediction for more than 99 % of its rows (1) or none does "
           "(0).", better="lower", needs=(), in_groups="flag", by_group=lambda e: e.constant.astype(float),
           overall=lambda e: e.constant.any(-1).astype(float)),
    Metric("worst_clients_rmse", "Mean RMSE of the tenth of the clients (at least one) that is served worst.",
           title="worst 10 % of clients", better="lower", kinds=REGRESSION, needs=("labels", "clients"), range=INFINITE,
           shown="page", over_clients=lambda e: -client_equality(-e["rmse"])["worst10"]),
)  # fmt: skip
_ENTRIES = (*_QUALITY, *_GAPS, *_RATES, *_OTHERS)
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
PLACES = ("headline", "table", "page")


def from_outside(names: Iterable[str | Metric]) -> tuple[Metric, ...]:
    """The metrics with these names, `module:Name` or an entry point's, less those that every run has; a gap brings the
    rates that it compares."""
    outside: dict[str, Metric] = {}
    asked = [name if isinstance(name, Metric) else METRICS[name] for name in names]
    for metric in [each for gap in asked for each in (*gap.compared, gap)]:
        name = metric.name
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
    """The facts about a metric; of an unknown one, such as what a method logs, only its name."""
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
