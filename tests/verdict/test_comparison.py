"""Results beside each other, taken apart once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from equifed.metrics.evidence import Evidence
from equifed.verdict import Comparison, Variant


@pytest.mark.parametrize(("target", "on"), [((), ["test"]), (("--target", "accuracy >= 0.1"), ["test", "validation"])])
def test_the_command_takes_every_result_apart_once(
    target: tuple[str, ...], on: list[str], invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One comparison of all, and one for each run's own model card; a variant for each method, whoever asks."""
    made: dict[type, list[Any]] = {Comparison: [], Variant: [], Evidence: []}

    def counted(kind: type) -> Callable[..., None]:
        original = kind.__init__

        def begin(self: Any, *args: Any, **more: Any) -> None:
            made[kind].append(self)
            original(self, *args, **more)

        return begin

    for kind in made:
        monkeypatch.setattr(kind, "__init__", counted(kind))
    methods = "verdict.made:Shift,verdict.made:Half,verdict.made:Blind"
    outcome = invoke("compare", "even", "--methods", methods, "--rounds", "1", "--seeds", "3", *target)
    assert outcome.exit_code == 0, outcome.output
    assert sorted(len(comparison.results) for comparison in made[Comparison]) == [1, 1, 1, 3]
    names = [(variant.method, variant.split) for variant in made[Variant]]
    assert sorted(names) == sorted((method, split) for method in methods.split(",") for split in on)
    assert len(made[Evidence]) <= 3 * 4 * len(on)  # of counts with and without labels and rows of unknown group
