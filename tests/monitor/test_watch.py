"""The alarm sounds as rarely as it says, and says what changed, since when and where."""

from __future__ import annotations

import math

import numpy as np
import pytest
from fairlearn.metrics import demographic_parity_difference, equal_opportunity_difference
from scipy import stats

from equifed.errors import ConfigError, DataError
from equifed.monitor import History, cusum, watch
from equifed.monitor.drift import find_drifts, homogeneity, stability_index
from equifed.monitor.handin import PeriodCounts
from equifed.monitor.verdict import caveats, failures, rule, sentences, to_dict
from equifed.monitor.watch import FEW, NO_COUNTS, NO_LABELS, WITHHELD, RunCounts
from equifed.target import Condition
from monitor.made import CLASSES, hand_in, months, stable

SILOS = ("north", "south", "west")


def history(rng: np.random.Generator, periods: int, silos: tuple[str, ...] = SILOS, **of: dict) -> History:
    """of: what `stable` takes, by silo."""
    return History.of(hand_in(silo, stable(rng, periods, **of.get(silo, {}))) for silo in silos)


# -- the rule ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "known"), [(3, 58.8), (4, 167.7), (5, 465.4)])
def test_run_lengths_are_the_published_ones(limit: float, known: float) -> None:
    """Two-sided, allowance 1/2: the zero-state ARLs that textbooks tabulate (4: 168, 5: 465)."""
    assert cusum.run_length(limit) == pytest.approx(known, rel=2e-3)
    siegmund = (math.exp(limit + 1.166) - limit - 1.166 - 1) / (2 * 0.5**2) / 2
    assert cusum.run_length(limit) == pytest.approx(siegmund, rel=0.03)


def test_run_length_by_simulation() -> None:
    """All runs side by side, written anew: the mean time to a false alarm is the stated one."""
    limit, rng = cusum.limit_for(100), np.random.default_rng(0)
    runs = 4000
    up, down, times, alive = np.zeros(runs), np.zeros(runs), np.zeros(runs), np.ones(runs, dtype=bool)
    while alive.any():
        z = rng.standard_normal(runs)
        up, down = np.maximum(0, up + z - 0.5), np.maximum(0, down - z - 0.5)
        times += alive
        alive &= np.maximum(up, down) <= limit
    error = times.std() / math.sqrt(runs)
    assert abs(times.mean() - 100) < 3 * error
    assert error < 2


def test_sums_go_on_over_what_is_missing() -> None:
    path = cusum.follow([1.0, math.nan, 2.0, -4.0, math.nan, -3.0, 0.0], 5.0)
    np.testing.assert_allclose(path.up, [0.5, np.nan, 2.0, 0.0, np.nan, 0.0, np.nan])
    np.testing.assert_allclose(path.down, [0.0, np.nan, 0.0, 3.5, np.nan, 6.0, np.nan])
    assert path.alarm == (-1, 5)


def test_deviations_are_independent_and_standard() -> None:
    """However short the reference is: it is one period here, and silos differ in their rates."""
    rng = np.random.default_rng(1)
    rates = {"north": (0.2, 0.3), "south": (0.5, 0.45), "west": (0.35, 0.7)}
    z = []
    for _ in range(150):
        told = History.of(hand_in(silo, stable(rng, 12, 120, rates[silo])) for silo in SILOS)
        z.append(watch(told).series[0].deviations[1:])
    z = np.array(z)
    assert abs(z.mean()) < 3 / math.sqrt(z.size)
    assert z.std() == pytest.approx(1, abs=3 / math.sqrt(2 * z.size))
    products = z[:, :-1] * z[:, 1:]
    assert abs(products.mean()) < 3 / math.sqrt(products.size)
    assert stats.kstest(z.ravel(), "norm").pvalue > 0.01


def test_false_alarms_are_no_more_than_stated() -> None:
    """200 histories of 25 periods in which nothing changes: rows vary, silos differ, one joins late."""
    rng = np.random.default_rng(2)
    alarmed = 0
    for _ in range(200):
        tables = [stable(rng, 25, int(rng.integers(80, 300)), rates) for rates in ((0.3, 0.4), (0.5, 0.5), (0.6, 0.3))]
        tables[2][:8] = np.nan
        told = History.of(hand_in(silo, table) for silo, table in zip(SILOS, tables, strict=True))
        alarmed += watch(told, every=100).state == "alarm"
    # at most one in 100 periods: of 24 watched ones, 1 - exp(-24 / 100) = 21 % of histories; that of a chain that
    # starts at 0 is lower
    assert alarmed <= stats.binom.ppf(0.999, 200, 1 - math.exp(-24 / 100))
    assert alarmed >= 5  # nor is it deaf


# -- what it finds -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1, -1])
def test_a_planted_change_is_alarmed_and_its_silo_named(sign: int) -> None:
    right, late, since = 0, [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        moved = {"rows": 300, "moved": (14, 0, sign * 0.25)}
        seen = watch(history(rng, 22, north={"rows": 300}, south=moved, west={"rows": 300}), every=500)
        if not seen.alarms:
            continue
        change = seen.alarms[0].change
        right += change.clear is not None and change.clear.silo == "south"
        late.append(change.noticed - 14)
        since.append(change.since)
        assert np.sign(change.after - change.before) == sign
        parts = [each.contribution for each in change.silos]
        assert abs(sum(parts) - (change.after - change.before)) < 0.05
    assert right >= 18
    assert 0 <= np.median(late) <= 3
    assert sum(period in (13, 14, 15) for period in since) >= 16


def test_the_alarm_in_words() -> None:
    seen = watch(history(np.random.default_rng(3), 20, south={"rows": 400, "moved": (12, 0, -0.3)}))
    text = " ".join(sentences(seen))
    assert "Alarm: selection rate, women minus men, went from" in text
    assert "(wider), since 2001-01" in text
    assert "south moved" in text
    assert "at most once in 100 months on average, over all gaps together" in rule(seen)
    assert "once in 200 months for each of the 2 gaps" in rule(seen)
    assert any("too small rather than too large" in caveat for caveat in caveats(seen))
    assert failures(seen, ["alarm"])[0].startswith("Alarm: ")
    told = to_dict(seen)
    assert told["state"] == "alarm"
    assert told["watched"][0]["alarm"]["moved"] == "south"
    assert told["watched"][0]["alarm"]["since"] == "2001-01"


def test_a_silo_with_more_rows_is_no_alarm() -> None:
    """Two silos with opposite gaps: the whole gap changes with their shares of the rows, no silo does."""
    rng = np.random.default_rng(4)
    parts = [stable(rng, 20, 100, (0.2, 0.6)), stable(rng, 20, 100, (0.6, 0.2))]
    parts[0][10:] = stable(rng, 10, 900, (0.2, 0.6))
    seen = watch(History.of(map(hand_in, SILOS, parts)))
    gaps = seen.series[0].gaps
    assert abs(gaps[:10]).max() < 0.12 < 0.25 < abs(gaps[10:]).min()
    assert seen.state == "quiet"


def test_gaps_are_those_of_fairlearn_and_of_other_intervals() -> None:
    rng = np.random.default_rng(5)
    told = history(rng, 3)
    seen = watch(told)
    counts = told.labelled.sum(1).astype(int)  # [period, group, label, decision]
    for t in range(3):
        cells = [(g, y, d) for g in range(2) for y in range(2) for d in range(2) for _ in range(counts[t, g, y, d])]
        group, label, decision = np.array(cells).T
        expected = {
            "demographic_parity_difference": demographic_parity_difference,
            "equal_opportunity_difference": equal_opportunity_difference,
        }
        for metric, compute in expected.items():
            gap = seen.gaps[metric][t]
            assert gap.value == pytest.approx(compute(label, decision, sensitive_features=group))
            assert gap.low <= gap.value <= gap.high
        # of a gap that is clearly not 0, about what the normal approximation says
        rows, granted = counts[t].sum((-2, -1)), counts[t].sum(-2)[:, 1]
        p = granted / rows
        half = 1.96 * math.sqrt((p * (1 - p) / rows).sum())
        gap = seen.gaps["demographic_parity_difference"][t]
        assert gap.high - gap.value == pytest.approx(half, rel=0.25)
        assert p[0] - p[1] == pytest.approx(seen.series[0].gaps[t])


def test_deviation_of_one_silo_is_the_textbook_one() -> None:
    """Two periods, one silo: the difference of two gaps over its standard error under pooled shares."""
    told = history(np.random.default_rng(6), 2, ("north",))
    counts = told.decided[:, 0]  # [period, group, decision]
    rows, granted = counts.sum(-1), counts[..., 1]
    p = granted / rows
    pooled = (granted.sum(0) + 0.5) / (rows.sum(0) + 1)
    change = (p[1, 0] - p[0, 0]) - (p[1, 1] - p[0, 1])
    error = math.sqrt((pooled * (1 - pooled) * (1 / rows).sum(0)).sum())
    assert watch(told).series[0].deviations[1] == pytest.approx(change / error)


# -- what is not known -------------------------------------------------------------------------------------------------


def test_withheld_groups_are_unknown_and_pass_no_check() -> None:
    rng = np.random.default_rng(7)
    tables = [stable(rng, 6) for _ in SILOS]
    for table in tables:
        table[5, 0] = np.nan
    seen = watch(History.of(map(hand_in, SILOS, tables)))
    assert seen.state == "unknown"
    assert seen.gaps["demographic_parity_difference"][5].unknown == WITHHELD
    assert math.isnan(seen.gaps["demographic_parity_difference"][5].value)
    assert not seen.gaps["demographic_parity_difference"][4].unknown
    (failed,) = failures(seen, ["alarm"])
    assert failed.startswith("Unknown: selection rate, women minus men and true positive rate, women minus men. ")
    assert "unknown (withheld)" in failures(seen, [Condition("demographic_parity_difference", ">", 0.9)])[0]
    assert any("north withholds women" in caveat for caveat in caveats(seen))
    # withheld by one silo that seldom shows them: the others count, and the reader is told
    tables = [stable(rng, 6) for _ in SILOS]
    tables[0][[1, 2, 3, 5], 0] = np.nan
    seen = watch(History.of(map(hand_in, SILOS, tables)))
    assert seen.state == "quiet"
    assert any("north withholds women" in caveat for caveat in caveats(seen))


def test_a_change_that_hides_itself_passes_no_check() -> None:
    """Nobody of a group is granted anything at one silo any more: too few to be told, and not quiet."""
    rng = np.random.default_rng(16)  # one of the 99 % of seeds without a false alarm in so few periods
    tables = [stable(rng, 6) for _ in SILOS]
    tables[1][5, 0] = np.nan
    seen = watch(History.of(map(hand_in, SILOS, tables)))
    assert not seen.gaps["demographic_parity_difference"][5].unknown
    assert seen.state == "unknown"
    assert seen.series[0].lost == (("south", "women", "2000-06"),)
    assert "women at south. A large change can be the reason" in failures(seen, ["alarm"])[0]


def test_few_rows_missing_periods_and_late_labels() -> None:
    rng = np.random.default_rng(8)
    table = stable(rng, 8)
    table[3] = np.floor(table[3] / 10)
    one = hand_in("north", table, min_count=0)
    names = months(8)
    periods = {name: counts for name, counts in one.periods.items() if name != names[5]}
    periods[names[7]] = periods[names[7]].model_copy(update={"labels": None})
    seen = watch(History.of([one.model_copy(update={"periods": periods})]))
    parity, opportunity = seen.gaps.values()
    assert [gap.unknown for gap in parity] == ["", "", "", FEW, "", NO_COUNTS, "", ""]
    assert [gap.unknown for gap in opportunity] == ["", "", "", FEW, "", NO_COUNTS, "", NO_LABELS]
    assert seen.series[0].unknown[3] == FEW
    assert np.isnan(seen.series[0].path.up[[0, 3, 5]]).all()
    assert seen.state == "quiet"  # labels come later than decisions
    assert not failures(seen, ["alarm"])
    assert failures(seen, [Condition("equal_opportunity_difference", ">", 0.9)])
    assert watch(History.of([one.model_copy(update={"periods": {names[0]: one.periods[names[0]]}})])).state == "waiting"


def test_references() -> None:
    rng = np.random.default_rng(9)
    told = history(rng, 12, south={"moved": (6, 0, -0.3), "rows": 400})
    assert watch(told).state == "alarm"
    later = watch(told, months(12)[6] + ":" + months(12)[8])
    assert later.state == "quiet"
    assert np.isnan(later.series[0].deviations[:9]).all()
    assert later.reference == "2000-07 to 2000-09"
    with pytest.raises(ConfigError, match="is not a month of the hand-ins"):
        watch(told, "2031-01")
    counts = stable(rng, 1, 3000)[0]
    run = RunCounts("r1", ("men", "women"), CLASSES, counts[::-1].sum(1), counts[::-1])
    same = watch(history(rng, 8), run)
    assert same.state == "quiet"
    assert not np.isnan(same.series[0].deviations[0])
    shifted = run._replace(decided=run.decided * [[1, 1], [1, 3]])
    moved = watch(history(rng, 8), shifted)
    assert moved.alarms[0].change.since == 0
    assert "silo that changed is unknown" in sentences(moved)[0]
    assert "the silos of its test rows" in " ".join(caveats(moved))
    with pytest.raises(ConfigError, match="decides between"):
        watch(told, run._replace(classes=("no", "yes")))


def test_more_groups_are_each_compared_with_the_others() -> None:
    rng = np.random.default_rng(10)
    rates = (0.3, 0.4, 0.5)
    tables = [stable(rng, 16, 300, rates) for _ in SILOS]
    tables[1] = stable(rng, 16, 300, rates, moved=(8, 2, 0.35))
    seen = watch(History.of(map(hand_in, SILOS, tables)))
    assert len(seen.series) == 6
    assert seen.limit == pytest.approx(cusum.limit_for(600))
    first = seen.alarms[0]
    assert (first.group, first.others) == ("others", ("women", "men"))
    assert first.change.clear.silo == "south"
    with pytest.raises(ConfigError, match="a single group"):
        watch(History.of([hand_in("north", tables[0][:, :1])]))


# -- hand-ins together -------------------------------------------------------------------------------------------------


def test_revisions_and_duplicates() -> None:
    rng = np.random.default_rng(11)
    old, new = stable(rng, 4), stable(rng, 4)
    first = hand_in("north", old)
    second = hand_in("north", new[:2], revision=2)
    told = History.of([second, first, first])
    np.testing.assert_array_equal(told.labelled[:, 0], np.concatenate([new[:2], old[2:]]))
    assert told.revisions == {(0, 0): 2, (1, 0): 2, (2, 0): 1, (3, 0): 1}
    with pytest.raises(DataError, match="different counts of 2000-01 as revision 1"):
        History.of([first, hand_in("north", new)])
    with pytest.raises(DataError, match="other classes"):
        History.of([first, hand_in("south", new, classes=("no", "yes"))])
    with pytest.raises(DataError, match="No hand-ins"):
        History.of([])
    far = first.model_copy(update={"periods": {"0001-01": first.periods["2000-01"], **first.periods}})
    with pytest.raises(DataError, match="more than 2000 periods"):
        History.of([far])


# -- drift -------------------------------------------------------------------------------------------------------------


def test_drift_measures_are_those_of_others() -> None:
    rng = np.random.default_rng(12)
    before, after = rng.integers(20, 200, 6), rng.integers(20, 200, 6)
    assert homogeneity(np.stack([before, after])) == pytest.approx(stats.chi2_contingency([before, after]).pvalue)
    p, q = (before + 0.5) / (before + 0.5).sum(), (after + 0.5) / (after + 0.5).sum()
    assert stability_index(before, after) == pytest.approx(stats.entropy(p, q) + stats.entropy(q, p))


def binned(silo: str, bins: list[list[int | None]], rows: int) -> object:
    one = hand_in(silo, stable(np.random.default_rng(0), len(bins)))
    made = {
        name: PeriodCounts(
            rows=rows, decisions=dict.fromkeys(one.groups), labels=None, unknown=None, inputs={"age": each}
        )
        for name, each in zip(months(len(bins)), bins, strict=True)
    }
    return one.model_copy(update={"bins": {"age": ("young", "middle", "old")}, "periods": made})


def test_the_column_and_the_silo_that_drifted_are_named() -> None:
    rng = np.random.default_rng(13)
    same = rng.multinomial(600, [0.3, 0.4, 0.3], 5).tolist()
    moved = [*same[:4], [80, 240, 280]]
    told = History.of([binned("north", same, 600), binned("south", moved, 600)])
    north, south = find_drifts(told, [0, 1])
    assert (north.silo, north.shown, south.silo, south.shown) == ("north", False, "south", True)
    assert (south.column, south.bin, south.period) == ("age", "old", "2000-05")
    reference = np.sum(moved[:2], 0)
    assert south.p == pytest.approx(stats.chi2_contingency([reference, moved[-1]]).pvalue)
    assert south.holm == pytest.approx(2 * south.p)
    # withheld bins count as one, and where nothing is left to compare nothing is said
    hidden = [[None, each[1], None] for each in moved]
    (pooled,) = find_drifts(History.of([binned("west", hidden, 600)]), [0, 1])
    sums = [[reference[1], 1200 - reference[1]], [240, 360]]
    assert pooled.p == pytest.approx(stats.chi2_contingency(sums, correction=False).pvalue)
    (nothing,) = find_drifts(History.of([binned("west", [[None] * 3] * 5, 600)]), [0, 1])
    assert nothing.size == "unknown"
    seen = watch(told)
    assert "Inputs have drifted: age at south" in " ".join(sentences(seen))
    assert failures(seen, ["drift"]) == [f"Drift of age at south: {south.size}"]


def test_stable_inputs_do_not_drift() -> None:
    rng = np.random.default_rng(14)
    shown = 0
    for _ in range(100):
        bins = rng.multinomial(150, [0.3, 0.4, 0.3], 2).tolist()
        shown += find_drifts(History.of([binned("north", bins, 150)]), [0])[0].shown
    assert shown <= stats.binom.ppf(0.999, 100, 0.05)
