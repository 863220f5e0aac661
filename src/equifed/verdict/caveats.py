"""What is not certain about a comparison, and what went wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from equifed.metrics.catalogue import describe
from equifed.metrics.local import SIGNED
from equifed.metrics.seeds import MIN_SEEDS
from equifed.verdict import wording
from equifed.verdict.choose import ranked, unclear
from equifed.verdict.comparison import Comparison
from equifed.verdict.groups import SMALL_GROUP
from equifed.verdict.local import Local
from equifed.verdict.silos import Silos, other_notes

AT_LEAST = "Run at least 3, better 10."
"""What is said of a few seeds."""


def _degenerate(comparison: Comparison) -> Iterator[str]:
    """On the rows that choose, and on test rows where these only confirm."""
    on = comparison if comparison.answer is not None else comparison.for_choosing
    for rows in dict.fromkeys([on, comparison]):
        flat = []
        for variant in rows.variants:
            if seeds := int(variant.degenerate.sum()):
                flagged = variant.groups[(variant.groups["metric"] == "degenerate") & (variant.groups["value"] > 0)]
                groups = list(dict.fromkeys(flagged["name"]))
                where = f"group {wording.listing(groups)}, " if groups else ""
                flat.append(f"{wording.plain(variant.label)} ({where}{seeds} of {variant.seeds} seeds)")
        if flat:
            left_out = " Left out of the verdict." if rows is on else " It is not taken, whatever validation rows say."
            if len(comparison.variants) == 1:
                left_out = ""
            where = "" if on is comparison else f" on {rows.variants[0].split} rows"
            yield (
                f"Degenerate{where}: {wording.listing(flat, most=8, longest=200)}. There more than 99\u00a0% of a "
                f"group's rows get the same prediction; such a predictor can look fair and be useless.{left_out}"
            )


def _references(comparison: Comparison) -> Iterator[str]:
    if pooled := [variant.label for variant in comparison.variants if variant.pooled]:
        left_out = "" if len(comparison.variants) == 1 else ", and is left out of the verdict"
        yield (
            f"Reference: {wording.listing(pooled)} trains on all clients' rows in one place. It shows what pooling the "
            f"data would give{left_out}."
        )


def _certainty(comparison: Comparison) -> Iterator[str]:
    variants = comparison.variants
    fewest = min(variant.seeds for variant in variants)
    if fewest == 1:
        more = "" if all(variant.silos for variant in variants) or len(variants) > 1 else f" {AT_LEAST}"
        yield f"One seed only: nothing here says how much another seed would change.{more}"
    elif fewest < MIN_SEEDS:
        yield f"Only {fewest} seeds: too few for an interval, so differences are differences of means only."
    if len(variants) == 1:
        return
    where = " on test rows" if comparison.answer is None and comparison.for_choosing is not comparison else ""
    for metric in comparison.judged:
        order = ranked(variants, metric)
        if close := unclear(order, metric):
            yield (
                f"{describe(metric).heading}: {wording.plain(order[0].label)} has the best mean{where}, but cannot be "
                f"told apart from {wording.listing([variant.label for variant in close])} "
                "(paired t-test over seeds, Holm-corrected, 5\u00a0%)."
            )
    if fewest >= MIN_SEEDS:
        yield (
            "Tests, and the intervals of a loss or a change, are paired over seeds: they cover how runs differ from "
            "seed to seed on these data. The intervals of a metric that follows from counts also cover the noise of so "
            "many test rows. Other data may say otherwise."
        )


def _noise(comparison: Comparison) -> Iterator[str]:
    """Whose disparity is within what a fair model would show."""
    disparity = comparison.disparity
    if disparity is None:
        return
    within = [variant for variant in comparison.variants if variant.eligible and variant.within_floor(disparity)]
    if within:
        metric = describe(disparity)
        floors = [wording.number(variant.noise_floor(disparity)) for variant in within]
        shows = floors[0] if len(set(floors)) == 1 else f"{min(floors)} to {max(floors)}"
        yield (
            f"Noise floor: the {metric.title} of {wording.listing([variant.label for variant in within])} cannot be "
            f"told from {'1' if metric.better == 'one' else '0'} on so many test rows: a perfectly fair model would "
            f"show {'down' if metric.better == 'one' else 'up'} to {shows} by chance (95\u00a0%)."
        )


def _missing(comparison: Comparison) -> Iterator[str]:
    """What is undefined in some seeds, and what is withheld."""
    for metric in comparison.judged:
        partial = [variant for variant in comparison.variants if variant.over_seeds(metric).n < variant.seeds]
        if undefined := [variant.label for variant in partial if not variant.withholds(metric)]:
            yield (
                f"{describe(metric).heading} is undefined in some or all seeds of {wording.listing(undefined)}; "
                "means are over the seeds where it is defined."
            )
    for variant in comparison.variants:
        if variant.silos is not None and (who := variant.silos.withholding):
            yield (
                f"{wording.plain(variant.label)}: {wording.listing(who)} withhold{'s' * (len(who) == 1)} counts of "
                f"test rows that are too small to be disclosed. {variant.silos.basis()}"
            )


def _small_groups(comparison: Comparison) -> Iterator[str]:
    groups = pd.concat([variant.groups for variant in comparison.variants])
    smallest = groups[groups["metric"] == "count"].dropna().groupby("name", sort=False)["value"].min()
    if few := [f"{wording.plain(str(name))} ({rows:.0f})" for name, rows in smallest.items() if rows < SMALL_GROUP]:
        yield (
            f"Fewer than {SMALL_GROUP} test rows in group {wording.listing(few)}: these groups' rates, and every "
            "disparity that rests on them, are mostly noise."
        )


def _local(comparison: Comparison) -> Iterator[str]:
    """Where clients' own gaps tell another story than the one over all of them."""
    metric = comparison.disparity if comparison.disparity in SIGNED else SIGNED[0]
    said = []
    for variant in comparison.variants:
        local = Local.of(variant.local_gaps, metric)
        if local is None or not variant.eligible:
            continue
        parts = {"the reverse": local.reversed, f"wider than all clients' {wording.number(local.overall)}": local.wider}
        if found := [f"{what} at {len(who)}" for what, who in parts.items() if who]:
            said.append(f"{wording.plain(variant.label)} {' and '.join(found)} of {len(local.clients)}")
    if said:
        yield (
            f"Some clients' own {describe(metric).title} is, beyond chance, the reverse of the one over all clients or "
            f"wider: {wording.listing(said, most=4, longest=200)}."
        )


_ALIKE = ("data", "rounds", "clients_per_round", "dropout", "clip", "robust", "liars", "local", "model", "seeds")


def _unlike(comparison: Comparison) -> Iterator[str]:
    # a reference on pooled rows has one client, which another caveat mentions
    variants = [variant for variant in comparison.variants if not variant.pooled] or comparison.variants
    results = [*{id(variant.result): variant.result for variant in variants}.values()]
    known = [{**result.info, **result.settings.to_dict()} for result in results]
    differing = [name for name in _ALIKE if len({repr(facts.get(name)) for facts in known}) > 1]
    if "data" not in differing and len({variant.data for variant in variants}) > 1:
        differing.insert(0, "partition")
    if differing:
        yield (
            f"The results differ in more than the method: {', '.join(differing).replace('_', ' ')}. "
            "Part of what is seen may come from that."
        )
    if any(variant.split != "test" for variant in variants):
        yield "No test set: the numbers are from the server's validation rows, which training may have used."


def _incidents(comparison: Comparison) -> Iterator[str]:
    notes: dict[str, list[str]] = {}
    for result in comparison.results:
        method = str(result.info["method"])
        name = wording.plain(method)
        if silos := Silos.of(result):
            yield from (f"{name}: {sentence}" for sentence in silos.lost_rounds())
            if absent := [f"{wording.plain(silo.name)} ({silo.absence})" for silo in silos.members if silo.absence]:
                yield f"{name}: some silos did not answer: {wording.listing(absent, longest=300)}."
        refused = result.rejections[result.rejections["answered"].astype(bool)]
        if len(refused):
            who = refused["client"].astype(str).value_counts()
            yield (
                f"{name}: {len(refused)} rejected repl{'y' if len(refused) == 1 else 'ies'}, from client "
                f"{wording.listing(list(who.index))} "
                f"(first reason: {wording.plain(str(refused['reason'].iloc[0]), 200)})."
            )
        for note in other_notes(result):
            if note.kind not in ("replies-rejected", "kernel"):  # counted above; no incident
                notes.setdefault(str(note), []).append(method)
    for text, methods in notes.items():
        yield f"{wording.listing(list(dict.fromkeys(methods)))}: {wording.plain(text, 400)}"


def _chosen_on_test(comparison: Comparison) -> Iterator[str]:
    chosen = comparison.answer is None and any(result.swept for result in comparison.results)
    if chosen and len(comparison.variants) > 1 and comparison.for_choosing is comparison:
        yield (
            "The setting is chosen by the rows that its numbers are from, so they look a little better than they are: "
            "there are no validation rows that no method trains on."
        )


CAVEATS = (
    *(_degenerate, _references, _noise, _certainty, _chosen_on_test),
    *(_missing, _small_groups, _local, _unlike, _incidents),
)
"""In the order in which they are shown."""
