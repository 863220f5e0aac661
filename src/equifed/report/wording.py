"""What the metrics are called, what they mean and which way is better, for readers who did not compute them."""

from __future__ import annotations

import math
import unicodedata
from typing import Literal

Better = Literal["high", "low", ""]

TITLES = {
    "rmse": "RMSE",
    "ks_distance": "KS distance",
    "rmse_difference": "RMSE difference",
    "worst_group_rmse": "worst group RMSE",
    "dgeo": "loss gap on positives",
    "f1": "F1",
    "client_equality.mean": "clients: mean",
    "client_equality.worst10": "worst 10 % of clients",
    "client_equality.best10": "best 10 % of clients",
    "client_equality.variance": "clients: variance",
    "worst_clients_rmse": "worst 10 % of clients",
    "told": "rows told",
    "kib_up": "bytes up",
    "kib_down": "bytes down",
    "seconds": "seconds per run",
}

HELP = {
    "accuracy": "Share of test rows predicted correctly.",
    "rmse": "Root of the mean squared error.",
    "loss": "Mean training loss, on test rows.",
    "rows": "Test rows.",
    "count": "Test rows of the group.",
    "positives": "Test rows of the group whose label is positive.",
    "told": "Test rows of the group whose labels and predictions are told; positives, accuracy and error rates rest on "
    "them.",
    "selection_rate": "Share predicted positive.",
    "true_positive_rate": "Of those with a positive label, the share predicted positive.",
    "false_positive_rate": "Of those with a negative label, the share predicted positive.",
    "demographic_parity_difference": "Largest gap between groups in the share predicted positive; 0 is fair.",
    "demographic_parity_ratio": "Smallest ratio between groups of the share predicted positive; 1 is fair.",
    "equal_opportunity_difference": "Largest gap between groups in the true positive rate; 0 is fair.",
    "equal_opportunity_ratio": "Smallest ratio between groups of the true positive rate; 1 is fair.",
    "equalized_odds_difference": "The larger of the gaps in true and in false positive rate; 0 is fair.",
    "equalized_odds_ratio": "The smaller of the ratios of true and of false positive rates; 1 is fair.",
    "average_odds_ratio": "Mean of the ratios of true and of false positive rates; 1 is fair.",
    "discrimination_index": "Largest gap between groups in F1; 0 is fair.",
    "accuracy_difference": "Largest gap between groups in accuracy; 0 is fair.",
    "dgeo": "Gap between groups in the loss on positive labels; 0 is fair.",
    "ks_distance": "Largest gap between the groups' distributions of predictions; 0 is fair.",
    "mean_difference": "Largest gap between the groups' mean predictions; 0 is fair.",
    "rmse_difference": "Largest gap between groups in RMSE; 0 is fair.",
    "worst_group_accuracy": "Accuracy of the group served worst.",
    "worst_group_rmse": "RMSE of the group served worst.",
    "degenerate": "1 if some group gets the same prediction for more than 99 % of its rows.",
    "client_equality.worst10": "Mean over the tenth of the clients (at least one) that is served worst.",
    "worst_clients_rmse": "Mean RMSE of the tenth of the clients (at least one) that is served worst.",
    "kib_up": "What one client sends in one round.",
    "kib_down": "What one client receives in one round.",
    "seconds": "Wall time of the call divided by its runs (seeds x settings share one computation).",
}

_HIGH = ("accuracy", "worst_group_accuracy", "f1", "precision")
_LOW = ("loss", "rmse", "worst_group_rmse", "worst_clients_rmse", "kib_up", "kib_down", "seconds", "degenerate")
_DISPARITIES = ("dgeo", "discrimination_index", "ks_distance")


def title(metric: str) -> str:
    """The metric's name in words."""
    return TITLES.get(metric, metric.replace("_", " ").replace(".", ": "))


def heading(metric: str) -> str:
    """The title, as the first word of a sentence."""
    return title(metric)[:1].upper() + title(metric)[1:]


def a(name: str) -> str:
    """The name with its article."""
    return f"{'an' if name[:1].lower() in 'aeio' or name[:4] == 'RMSE' else 'a'} {name}"


def is_disparity(metric: str) -> bool:
    """Whether it says how far apart groups are."""
    return metric in _DISPARITIES or metric.endswith(("_difference", "_ratio"))


def better(metric: str, task: str = "classification") -> Better:
    """Which direction is better; "" where neither is (a selection rate, a row count)."""
    if metric in _HIGH or metric.endswith("_ratio"):
        return "high"
    if metric in _LOW or is_disparity(metric) or metric.endswith(".variance"):
        return "low"
    if metric.startswith(("client_equality.", "group_equity.")):
        return "low" if task == "regression" else "high"
    if metric.startswith("client_") and metric.endswith((".mean", ".worst", ".best")):
        return better(metric.removeprefix("client_").rpartition(".")[0], task)
    return ""


def badness(metric: str, value: float, task: str = "classification") -> float:
    """The value turned so that smaller is better; a ratio counts by its distance from 1, a gap by its size."""
    if metric.endswith("_ratio"):
        return abs(1 - value)
    if is_disparity(metric):
        return abs(value)
    return -value if better(metric, task) == "high" else value


def number(value: float | None) -> str:
    """Three decimals, or three digits where those say nothing; "undefined" for nan."""
    if value is None or math.isnan(value):
        return "undefined"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0 or 0.001 <= abs(value) < 1000:
        return f"{value:.3f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2g}"


def spread(mean: float, std: float, n: int, seeds: int) -> str:
    """`mean ± std`, and over how many seeds where the metric was undefined in some of them."""
    if math.isnan(mean):
        return "undefined"
    text = number(mean) if math.isnan(std) else f"{number(mean)} ± {number(std)}"
    return text if n == seeds else f"{text} ({n} of {seeds} seeds)"


def plain(name: str, longest: int = 80) -> str:
    """A user's name fit for a sentence: one line, cut when very long, kept from turning the text's direction."""
    name = " ".join(name.split())
    if len(name) > longest:
        name = name[: longest - 1] + "…"
    if any(unicodedata.bidirectional(c) in ("R", "AL", "RLE", "RLO", "RLI", "LRO", "FSI") for c in name):
        return f"\u2068{name}\u2069"
    return name


def listing(names: list[str], most: int = 5, longest: int = 80) -> str:
    """`a, b and c`, or the first few and how many more."""
    shown = [plain(name, longest) for name in names]
    if len(shown) > most:
        shown = [*shown[: most - 1], f"{len(names) - most + 1} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def signed(value: float) -> str:
    """A difference, with its sign; small ones, which are common, with a fourth decimal."""
    text = f"{value:.4f}" if 0.00005 <= abs(value) < 0.001 else number(value)
    return f"+{text}" if value > 0 else text.replace("-", "−")


def p_value(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def size(kib: float) -> str:
    """A number of bytes, given in KiB, in the unit that suits it."""
    for unit, factor in (("GiB", 1 / 1024**2), ("MiB", 1 / 1024), ("KiB", 1)):
        if kib * factor >= 1:
            return f"{kib * factor:.1f} {unit}"
    return f"{kib * 1024:.0f} B"
