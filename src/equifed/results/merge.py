"""One result of several that are blocks of the same seeds and settings."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from equifed.notes import Note
from equifed.results.counts import SPLITS, shared_rows
from equifed.results.result import Result

if TYPE_CHECKING:
    import pandas as pd

    from equifed.federation import Federation


def merged(results: Sequence[Result], federations: Sequence[Federation] = ()) -> Result:
    """The result of all seeds and settings, from those of blocks of them: apart from these they must be the same.

    federations: of all seeds, where they are there. Which rows seeds have in common cannot be known from the results; a
    block of one seed counts as if all seeds had the same, so that intervals are rather too wide than too narrow.
    """
    first = results[0]
    if len(results) == 1:
        return first
    seeds = dict.fromkeys(seed for result in results for seed in result.settings.seed_list)
    frames: dict[str, Any] = {
        each.name: _joined([getattr(result, each.name) for result in results])
        for each in fields(Result)
        if each.type == "pd.DataFrame" and each.name != "messages"
    }
    seconds = [result.timings["seconds"] for result in results]
    own = [fed for fed in federations if fed.seed in seeds]
    shared = {"shared_rows": {split: shared_rows(own, split) for split in SPLITS}} if own else {}
    return replace(
        first,
        **frames,
        parameters={key: value for result in results for key, value in result.parameters.items()},
        settings=replace(first.settings, seeds=list(seeds)),
        info={**first.info, **shared},
        timings={
            "seconds": sum(seconds),
            "seconds_per_round": sum(result.timings["seconds_per_round"] for result in results),
        },
        notes=[*first.notes, *(note for note in _other_notes(results) if note not in first.notes)],
        final_states=ChainMap(*(result.final_states for result in reversed(results))),  # type: ignore[arg-type]
    )


def _other_notes(results: Sequence[Result]) -> list[Note]:
    """What is said of blocks after the first, each thing once."""
    said: list[Note] = []
    for result in results[1:]:
        said += [note for note in result.notes if note not in said]
    return said


def same_but_seeds(one: Result, other: Result) -> bool:
    """Whether two results are of different seeds of the same, so that they are one sample and no comparison."""

    def facts(result: Result) -> list[Any]:
        keys = ("method", "hyper_parameters", "swept", "data", "model", "classes", "groups", "num_clients", "clients")
        settings = {**result.settings.to_dict(), "seeds": None}
        swept = [sorted(result.log[name].unique()) for name in result.swept]
        return [*(result.info.get(key) for key in keys), settings, swept]

    apart = not set(one.settings.seed_list) & set(other.settings.seed_list)
    return apart and facts(one) == facts(other)


def gathered(results: Sequence[Result]) -> list[Result]:
    """The results, with those that differ in their seeds alone made one."""
    groups: list[list[Result]] = []
    for result in results:
        for group in groups:
            if all(same_but_seeds(result, other) for other in group):
                group.append(result)
                break
        else:
            groups.append([result])
    return [merged(group) for group in groups]


def _joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One after the other; columns of categories keep them, those of all."""
    import pandas as pd
    from pandas.api.types import union_categoricals

    some = [frame for frame in frames if len(frame)] or list(frames[:1])
    joined = pd.concat(some, ignore_index=True)
    for name in some[0].columns:
        if isinstance(some[0][name].dtype, pd.CategoricalDtype):
            joined[name] = union_categoricals([frame[name] for frame in some])
    return joined
