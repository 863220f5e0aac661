"""Results as tables for people and as records for machines."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Collection, Container, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from equifed.cli.console import out
from equifed.metrics import catalogue
from equifed.metrics.catalogue import describe
from equifed.metrics.local import SIGNED
from equifed.metrics.seeds import moments

if TYPE_CHECKING:
    from equifed.results import Result
    from equifed.store import Entry, RunFolder
    from equifed.verdict.variants import Variant

NARROW = 110
"""Below this width means and deviations go on two lines."""

HEADING = 18
"""Letters of a group's name on one line of a heading."""

Record = dict[str, Any]


def record(folder: RunFolder, result: Result) -> Record:
    """A run's numbers for machines: {metric: {mean, std, defined}} over seeds, costs, degenerate seeds, and what
    happened to the silos of a real federation.

    Mean and deviation are over the `defined` runs of `runs` in which the metric is defined; a metric of a federation
    may also be `withheld`. `few_rows`: it rests on so few test rows of a group that it is mostly noise. A disparity of
    one setting has its 95 % interval [`low`, `high`], by rows and seeds, and its `noise_floor`, what a perfectly fair
    model might show by chance.
    """
    from equifed.verdict.silos import Silos

    variants = result.variants if len(result.metrics) else []
    noisy = set[str]().union(*(variant.noisy for variant in variants))
    silos = Silos.of(result)
    final = result.final()
    metrics = [name for name in final.columns if name not in ("method", "seed", *result.swept)]
    every = result.messages["stage"] == "round"
    sent, once = result.messages[every], result.messages[~every]
    degenerate = final.get("degenerate")
    return {
        "run": folder.id,
        "folder": str(folder.path),
        "method": result.info["method"],
        "data": result.info["data"],
        "rounds": result.settings.rounds,
        "seeds": result.settings.seed_list,
        "hyper_parameters": result.info["hyper_parameters"],
        "positive": result.info.get("positive"),
        "meaning": result.info.get("meaning", ""),
        "test_rows": result.info["rows"]["test"],
        "metrics": {
            name: {
                "mean": over.mean,
                "std": over.std,
                "defined": over.n,
                "few_rows": name in noisy,
                **_evidence(variants, name),
                **({} if silos is None else {"withheld": not over.n and silos.hides(name)}),
            }
            for name, over in ((name, moments(final[name])) for name in metrics)
        },
        "bytes_up": int(sent["bytes_up"].sum()),
        "bytes_down": int(sent["bytes_down"].sum()),
        "once_bytes_up": int((once["bytes_up"] * once["times"]).sum()),
        "once_bytes_down": int((once["bytes_down"] * once["times"]).sum()),
        "seconds": result.timings["seconds"],
        "degenerate_runs": 0 if degenerate is None else int((degenerate > 0).sum()),
        "runs": len(final),
        "notes": [note.to_json() | {"text": str(note)} for note in result.notes],
        **({} if silos is None else {"federation": silos.facts()}),
    }


def _evidence(variants: Sequence[Variant], metric: str) -> dict[str, float]:
    """Of one setting: the mean over several has no meaning that an interval could be of."""
    if len(variants) != 1 or not describe(metric).disparity or math.isnan(floor := variants[0].noise_floor(metric)):
        return {}
    low, high = variants[0].interval(metric) or (math.nan, math.nan)
    return {"low": low, "high": high, "noise_floor": floor}


def plain_table(*headings: str, numbers: Container[int] = (), title: str | None = None) -> Table:
    """numbers: the columns that are set flush right."""
    table = Table(
        box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, show_edge=False, padding=(0, 1, 0, 0)
    )
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i in numbers else "left", overflow="fold", no_wrap=i in numbers)
    return table


def comparison_columns(records: Sequence[Record], asked: Collection[str] = ()) -> list[str]:
    """The metrics that the comparison shows, with those that were asked for by name."""
    measured = set().union(*(each["metrics"] for each in records))
    return catalogue.ordered([*catalogue.shown(measured, "table"), *measured.intersection(asked)])


def comparison(records: Sequence[Record], asked: Collection[str] = ()) -> Table:
    """A row per method: mean ± sample standard deviation over seeds of the final test metrics."""
    from equifed.verdict.wording import size

    columns = comparison_columns(records, asked)
    headings = ["method", *(describe(name).short for name in columns), "up + down", "seconds"]
    narrow = out().width < NARROW
    if narrow:
        headings = [heading.replace(" ", "\n", 1) for heading in headings]
    table = plain_table(*headings, numbers=range(1, len(headings)))
    for each in records:
        cells = (
            each["method"] + ("*" if each["degenerate_runs"] else ""),
            *(spread(each["metrics"].get(name), each["runs"]) for name in columns),
            f"{size(each['bytes_up'])} + {size(each['bytes_down'])}",
            f"{each['seconds']:.1f}",
        )
        table.add_row(*(re.sub(r"(?=±)| (?=[(+])", "\n", cell) if narrow else cell for cell in cells))
    return table


def footnotes(records: Sequence[Record], asked: Collection[str] = ()) -> str:
    from equifed.verdict.wording import size

    lines = ["Mean ± standard deviation over seeds on the test set; bytes per client and round."]
    once = [
        f"{run['method']} {size(run['once_bytes_up'])} + {size(run['once_bytes_down'])}"
        for run in records
        if run["once_bytes_up"] or run["once_bytes_down"]
    ]
    if once:
        lines.append(f"Besides, before the first round or after the last, bytes per client: {', '.join(once)}.")
    columns = map(describe, comparison_columns(records, asked))
    shortened = [f"{column.short}: {column.title}" for column in columns if column.short != column.title]
    if shortened:
        lines.append(f"{'; '.join(shortened)}.")
    lines.append(warnings_of(records))
    return "\n".join(filter(None, lines))


def warnings_of(records: Sequence[Record]) -> str:
    """Why a run's numbers may mean less than they seem to."""
    lines = []
    flagged = [run for run in records if run["degenerate_runs"]]
    if flagged:
        who = ", ".join(f"{run['method']} ({run['degenerate_runs']} of {run['runs']} runs)" for run in flagged)
        lines.append(
            f"* Degenerate: for some group (almost) everybody gets the same prediction, so small disparities "
            f"mean nothing: {who}."
        )
    if any(0 < value["defined"] < run["runs"] for run in records for value in run["metrics"].values()):
        lines.append("(k of n): the mean is over k runs; in the others a group lacks the rows that the metric needs.")
    if any(not run["test_rows"] for run in records):
        lines.append("There are no test rows, so nothing was measured. Keep some: data.test above 0.")
    # a federation refuses what is not finite, by silo and reason: there, no loss means that none was disclosed
    simulated = [run for run in records if "federation" not in run]
    diverged = [run["method"] for run in simulated if run["test_rows"] and _diverged(run)]
    if diverged:
        lines.append(f"Diverged (infinite or undefined loss): {', '.join(diverged)}. Lower the learning rate.")
    return "\n".join(lines)


def _diverged(run: Record) -> bool:
    """Whether the loss of some run is not a finite number."""
    loss = run["metrics"].get("loss")
    return loss is not None and (not math.isfinite(loss["mean"]) or loss["defined"] < run["runs"])


def spread(value: dict[str, float] | None, runs: int) -> str:
    """mean±std, and over how many of the runs where the metric is not defined in all."""
    if value is None or not value["defined"]:
        return "withheld" if value and value.get("withheld") else "undefined"
    mean = f"{value['mean']:.3f}"
    text = mean if value["std"] != value["std"] else f"{mean}±{value['std']:.3f}"
    return text if value["defined"] == runs else f"{text} ({value['defined']} of {runs})"


def frame_table(frame: Any, title: str | None = None) -> Table:
    """A data frame as it is, numbers rounded."""
    numbers = [i for i, kind in enumerate(frame.dtypes) if kind.kind in "fiu"]
    table = plain_table(*map(str, frame.columns), numbers=numbers, title=title)
    written = {float: "{:.4g}".format, bool: {True: "yes", False: "no"}.__getitem__}
    for row in frame.itertuples(index=False):
        table.add_row(*(written.get(type(value), str)(value) for value in row))
    return table


def metrics_table(each: Record) -> Table:
    from equifed.verdict.groups import SMALL_GROUP

    told = any("noise_floor" in value for value in each["metrics"].values())
    headings = ["95 % interval", "noise floor"] if told else []
    title = f"Final test metrics over {each['runs']} runs"
    table = plain_table("metric", "mean ± std", *headings, "", numbers=[1, 2, 3] if told else [1], title=title)
    for name, value in each["metrics"].items():
        bounds = [f"{value['low']:.3f} to {value['high']:.3f}", f"{value['noise_floor']:.3f}"] if "low" in value else []
        evidence = bounds or [""] * len(headings)
        table.add_row(name, spread(value, each["runs"]), *evidence, "few rows" if value["few_rows"] else "")
    said = []
    if told:
        said.append("noise floor: what a perfectly fair model might show by chance on so many test rows (95 %)")
    if any(value["few_rows"] for value in each["metrics"].values()):
        said.append(f"few rows: it rests on fewer than {SMALL_GROUP} test rows of a group, so it is mostly noise")
    if said:
        table.caption, table.caption_justify = "\n".join(said), "left"
    return table


def pareto_of(result: Result) -> Any:
    """The mean trade-off of each swept setting, by the task's main metrics."""
    return result.pareto(*catalogue.main_pair(result.final().columns))


def pareto_table(result: Result) -> Table:
    """The trade-off; in how many runs both metrics are defined is shown where it is not in all."""
    points = pareto_of(result)
    shown = points.drop(columns=["defined", "runs"])
    for name in [str(column).removesuffix("_low") for column in shown if str(column).endswith("_low")]:
        # mean [interval], where there is one
        ends = zip(shown[name], shown.pop(f"{name}_low"), shown.pop(f"{name}_high"), strict=True)
        shown[name] = [
            f"{mean:.4f}" + ("" if math.isnan(low) else f" [{low:.4f}, {high:.4f}]") for mean, low, high in ends
        ]
    if not (points["defined"] == points["runs"]).all():
        shown["defined"] = points["defined"].astype(str) + " of " + points["runs"].astype(str)
    table = frame_table(shown)
    bounded = any(points[name].notna().any() for name in points if str(name).endswith("_low"))
    brackets = " [95 % interval of a bootstrap over the seeds alone, not the rows]" if bounded else ""
    table.caption, table.caption_justify = f"Means over seeds on test rows{brackets}.", "left"
    return table


def groups_tables(result: Result) -> list[Table | str]:
    """Per-group means over seeds of the last round: a table, or several where there are many groups."""
    from equifed.verdict.silos import Silos, as_disclosed

    silos = Silos.of(result)
    frame = result.metrics
    frame = frame[(frame["split"] == "test") & (frame["round"] == frame["round"].max())]
    frame = frame[frame["scope"].astype(str).str.startswith("group:")]
    frame = as_disclosed(frame.assign(name=frame["scope"].astype(str).str.removeprefix("group:")), silos)
    names, metrics = (list(dict.fromkeys(frame[column].astype(str))) for column in ("name", "metric"))
    cells = dict(iter(frame.groupby(["metric", "name"], observed=True)["value"]))

    def cell(metric: str, name: str) -> str:
        values = cells.get((metric, name), ())
        mean, _, defined = moments(values)
        if not defined:
            return "withheld" if silos is not None and silos.hides(metric, groups=[name]) else "undefined"
        return f"{mean:.4g}" + ("" if defined == len(values) else f" ({defined} of {len(values)})")

    lines = {metric: [cell(metric, name) for name in names] for metric in metrics}
    headings = ["\n".join(textwrap.wrap(name, HEADING, break_on_hyphens=False)) for name in names]
    widths = [
        max(map(len, [*heading.split("\n"), *(line[i] for line in lines.values())])) + 2
        for i, heading in enumerate(headings)
    ]
    room = out().width - max(map(len, metrics), default=0) - 1
    tables: list[Table | str] = []
    start = 0
    while start < len(names):
        # as many groups as there is room for, so that the names of metrics and groups are never cut
        fit = sum(total <= room for total in accumulate(widths[start:]))
        end = start + max(fit, 1)
        title = "By group, means over seeds" + (" (continued)" if start else "")
        table = plain_table("metric", *headings[start:end], numbers=range(1, end - start + 1), title=title)
        for metric, line in lines.items():
            table.add_row(metric, *line[start:end])
        tables += ["", table] if start else [table]
        start = end
    return tables


def gaps_by_attribute(result: Result) -> list[Record]:
    """The main disparities by sensitive column and crossed, with the groups farthest apart, for other programs."""
    if result.metrics.empty:
        return []
    return [
        {"method": variant.label, "metric": metric, **gap.facts()}
        for variant in result.variants
        for metric in catalogue.shown(map(str, variant.final.columns), "headline")
        for gap in variant.gaps(metric)
    ]


def gaps_table(result: Result) -> list[Table | str]:
    """The same as a table; nothing for two groups."""
    from equifed.verdict.groups import SMALL_GROUP
    from equifed.verdict.wording import rows

    headings = ("disparity", "attribute", "mean", "95 % interval", "lowest", "highest")
    table = plain_table(*headings, numbers=[2, 3], title="Gap by attribute, and the groups farthest apart (test rows)")
    for gap in gaps_by_attribute(result):
        pair, undefined = gap["pair"], gap["low"] != gap["low"]
        interval = "" if undefined else f"{gap['low']:.3f} to {gap['high']:.3f}"
        ends = (
            f"{pair[end]}: {pair[f'{end}_rate']:.3f} ({rows(pair[f'{end}_rows'], SMALL_GROUP)})"
            for end in ("low", "high")
        )
        table.add_row(gap["metric"], gap["attribute"], f"{gap['mean']:.3f}", interval, *ends)
    return ["", table] if table.row_count else []


def local_table(result: Result) -> list[Table | str]:
    """How the clients' own gaps compare with those over all of them; nothing where no client has one."""
    from equifed.verdict.local import Local
    from equifed.verdict.wording import listing

    found = [local for metric in SIGNED if (local := Local.of(result.local_gaps, metric))]
    if not found:
        return []
    headings = ("gap", "over all clients", "clients", "from", "to", "opposite", "beyond chance")
    table = plain_table(*headings, numbers=range(1, 7), title="Clients' own gaps, means over seeds")
    lines = []
    for local in found:
        gaps = (local.overall, local.clients[0].gap, local.clients[-1].gap)
        overall, low, high = (f"{gap:+.3f}" for gap in gaps)
        counts = (len(local.opposite), len(local.reversed))
        table.add_row(local.metric, overall, str(len(local.clients)), low, high, *map(str, counts))
        named = [
            f"{client.name} {client.gap:+.3f} [{client.low:+.3f}, {client.high:+.3f}]" + " (few rows)" * client.few
            for client in local.reversed
        ]
        if named:
            who = f"{local.pair[1]} ahead of {local.pair[0]}" if local.pair else "the reverse"
            lines.append(f"{describe(local.metric).short}, beyond chance {who}: {listing(named)}.")
    return ["", table, *lines]


def silos_table(result: Result) -> list[Table | str]:
    """Of a real federation: each silo, and what holds for all; nothing for a simulation."""
    from equifed.verdict.silos import Silos

    silos = Silos.of(result)
    if silos is None:
        return []
    headings = ("silo", "training rows", "test rows", "did not answer", "replies refused", "withheld")
    table = plain_table(*headings, numbers=[1, 2], title="Silos")
    for silo in silos.members:
        table.add_row(
            silo.name, *silo.counted, *(text or "-" for text in (silo.absence, silo.refusals, silo.withholds))
        )
    return ["", table, *silos.sentences()]


def robust_table(result: Result) -> list[Table | str]:
    """What a robust rule did: to accuracy and gaps, and to each client; nothing without one."""
    from equifed.report.robust import robustness

    shown: list[Table | str] = []
    for of in robustness(result):
        if of.overall:
            headings = ("metric", f"with {of.rule}", "with the plain mean", "difference")
            beside = plain_table(*headings, numbers=[1, 2, 3], title=f"Robust aggregation: {of.label}")
            for metric, found, plain in of.overall:
                beside.add_row(metric, f"{found:.3f}", f"{plain:.3f}", f"{found - plain:+.3f}")
            shown += ["", beside]
        cut = plain_table("client", "updates", "cut", "all clients", numbers=[1, 2, 3], title="What was cut")
        for client in of.clients:
            cut.add_row(client.name, f"{client.updates:,.0f}", f"{client.cut:.0%}", f"{client.everyone:.0%}")
        shown += ["", cut]
    return shown


def runs_table(entries: Sequence[Entry]) -> Table:
    table = plain_table("run", "status", "method", "data", "rounds", "seeds", "result", "name", numbers=[4, 5])
    table.columns[0].no_wrap = True  # to be copied
    for entry in entries:
        undefined = entry.metrics.get("undefined", {})
        headline = []
        for name in filter(None, catalogue.main_pair(entry.metrics)):
            lost = f" ({undefined[name]} undefined)" if undefined.get(name) else ""
            mean = float(entry.metrics[name])
            headline.append(f"{describe(name).short} " + ("undefined" if math.isnan(mean) else f"{mean:.3f}{lost}"))
        facts = (entry.id, entry.status, entry.method, entry.data, entry.rounds, entry.seeds)
        table.add_row(*map(str, facts), ", ".join(headline), entry.name)
    return table
