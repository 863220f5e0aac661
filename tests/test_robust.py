"""Robust rules: against plain NumPy, the same in every engine, and what they leave in a result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from contract.test_contract import METHODS, SETTINGS, VARIANTS, assert_same, run
from support.samples import sampled_methods
from torch.func import vmap

import equifed as ef
from equifed.channel import Channel
from equifed.config import parse_config
from equifed.errors import ConfigError
from equifed.federation import Federation
from equifed.methods import FedAvg
from equifed.protocol import Method, Phase, Record, Update
from equifed.robust import aggregate, count_malicious, min_updates
from equifed.settings import RULES

K = 11
HERE = np.array([1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1], dtype=bool)


# -- the rules in NumPy ------------------------------------------------------------------------------------------------


def capped(weight: np.ndarray) -> np.ndarray:
    return np.minimum(weight, np.median(weight))


def numpy_centre(rule: str, u: np.ndarray, weight: np.ndarray, f: int) -> np.ndarray:
    """Of the updates [n, P] of clients that are all there."""
    n, weight = len(u), capped(weight)
    if rule == "median":
        return np.median(u, axis=0)
    if rule == "trimmed-mean":
        centre = []
        for column in u.T:
            kept = np.argsort(column, kind="stable")[f : n - f]
            centre.append(np.average(column[kept], weights=weight[kept]))
        return np.array(centre)
    if rule == "clipped-mean":
        norms = np.linalg.norm(u, axis=1)
        short = [each * min(1.0, np.median(norms) / norm) for each, norm in zip(u, norms, strict=True)]
        return np.average(short, axis=0, weights=weight)
    chosen = numpy_krum(u, f)[: 1 if rule == "krum" else n - f]
    return np.average(u[chosen], axis=0, weights=weight[chosen])


def numpy_krum(u: np.ndarray, f: int) -> list[int]:
    """Clients by their score, the least first."""
    n = len(u)
    distances = [sorted(float(((a - b) ** 2).sum()) for j, b in enumerate(u) if j != i) for i, a in enumerate(u)]
    scores = [sum(near[: n - f - 2]) for near in distances]
    return sorted(range(n), key=lambda k: scores[k])


def numpy_cut(rule: str, u: np.ndarray, f: int) -> np.ndarray:
    n = len(u)
    if "krum" in rule:
        return np.isin(np.arange(n), numpy_krum(u, f)[1 if rule == "krum" else n - f :]).astype(float)
    if rule == "clipped-mean":
        norms = np.linalg.norm(u, axis=1)
        return (norms > np.median(norms)).astype(float)
    ordered = np.sort(u, axis=0)
    return ((u < ordered[f]) | (u > ordered[n - 1 - f])).mean(1)


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Updates [K, 7], two of them far from the others and some numbers equal, and weights [K]."""
    rng = np.random.default_rng(seed)
    u, weight = rng.normal(size=(K, 7)).round(1), rng.integers(1, 300, K).astype(float)
    u[[3, 8]] *= -20
    return u, weight


def parts(u: np.ndarray) -> dict[str, torch.Tensor]:
    """A model of two tensors and a number."""
    return {
        "a": torch.tensor(u[..., :4]).unflatten(-1, (2, 2)),
        "b": torch.tensor(u[..., 4:6]),
        "c": torch.tensor(u[..., 6]),
    }


def flat(values: dict[str, torch.Tensor], lead: int = 0) -> np.ndarray:
    return torch.cat([leaf.reshape(*leaf.shape[:lead], -1) for leaf in values.values()], -1).numpy()


@pytest.mark.parametrize("f", [0, 1, 3])
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_what_its_paper_says(rule: str, f: int) -> None:
    u, weight = drawn(f)
    found = aggregate(rule, {"u": parts(u)}, {"u": torch.tensor(weight)}, torch.tensor(HERE), torch.tensor(f))  # type: ignore[arg-type]
    expected = numpy_centre(rule, u[HERE], weight[HERE], f)
    np.testing.assert_allclose(flat(found.centre["u"]), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.cut[HERE], numpy_cut(rule, u[HERE], f), atol=1e-6)
    assert not found.cut[~HERE].any()
    dropped = found.cut.bool() if "krum" in rule else torch.zeros(K, dtype=torch.bool)
    assert torch.equal(found.dropped, dropped)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_can_be_vmapped_also_over_the_share_of_liars(rule: str) -> None:
    u, weight = (np.stack(values) for values in zip(*(drawn(seed) for seed in range(4)), strict=True))
    here = np.stack([np.roll(HERE, shift) for shift in range(4)])
    shares = torch.tensor([0.0, 0.1, 0.19, 0.29])

    def one(u: Record, weight: torch.Tensor, here: torch.Tensor, share: torch.Tensor) -> Record:
        return aggregate(rule, {"u": u}, {"u": weight}, here, count_malicious(share, K)).centre["u"]  # type: ignore[arg-type]

    found = vmap(one)(parts(u), torch.tensor(weight), torch.tensor(here), shares)
    for r, f in enumerate((0, 1, 2, 3)):
        expected = numpy_centre(rule, u[r][here[r]], weight[r][here[r]], f)
        np.testing.assert_allclose(flat(found, 1)[r], expected, rtol=1e-12, atol=1e-12)


def test_without_liars_the_trimmed_mean_is_the_mean_of_clients_alike() -> None:
    u, _ = drawn(5)
    alike, nobody = {"u": torch.full((K,), 30.0)}, torch.tensor(0)
    found = aggregate("trimmed-mean", {"u": parts(u)}, alike, torch.ones(K, dtype=torch.bool), nobody)
    np.testing.assert_allclose(flat(found.centre["u"]), u.mean(0), rtol=1e-12)


def test_how_many_may_lie() -> None:
    assert [int(count_malicious(share, 10)) for share in (0.0, 0.09, 0.1, 0.3, 0.49)] == [0, 0, 1, 3, 4]
    assert int(count_malicious(0.29, 100)) == 29  # 0.29 * 100 is less in floating point
    assert int(min_updates("krum", torch.tensor(2))) == 7
    assert int(min_updates("median", torch.tensor(2))) == 5


# -- what the server's step gets ---------------------------------------------------------------------------------------


def stacked(seed: int = 0) -> tuple[np.ndarray, np.ndarray, Record, torch.Tensor]:
    u, weight = drawn(seed)
    weight[4] = 0  # it answers, but has no rows
    update = torch.tensor(u * weight[:, None] * HERE[:, None])
    return u, weight, {"update": update, "rows": torch.tensor(weight * HERE)}, torch.tensor(HERE.astype(float))


def phase(gather: str, updates: dict[str, Update]) -> Phase:
    return Phase("p", ("theta",), ("update", "rows"), None, None, gather, updates=updates)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", RULES)
def test_a_sum_divided_by_its_weights_is_the_robust_mean(rule: str) -> None:
    u, weight, replies, present = stacked()
    channel = Channel(robust=rule, liars=0.2)  # type: ignore[arg-type]
    made = phase("sum", {"update": Update(weight="rows")})
    found = channel.apply_rule(made, {}, replies, present, K)
    here = HERE & (weight > 0)
    assert found.counted.tolist() == here.tolist()
    assert bool(found.enough)
    gathered = channel.gather(made, found.replies, found.present, torch.arange(K)).replies
    expected = numpy_centre(rule, u[here], weight[here], 2)
    np.testing.assert_allclose(gathered["update"] / gathered["rows"], expected, rtol=1e-9)
    chosen = np.flatnonzero(here)[numpy_krum(u[here], 2)[: {"krum": 1, "multi-krum": here.sum() - 2}.get(rule, K)]]
    assert float(gathered["rows"]) == weight[chosen].sum()  # of whoever is taken
    assert float(gathered["present"]) == len(chosen) + 1


@pytest.mark.parametrize("rule", RULES)
def test_single_models_are_let_through_as_far_as_they_are_trusted(rule: str) -> None:
    u, _, _, present = stacked()
    theta = np.linspace(-1, 1, 7)
    replies = {"update": torch.tensor((theta + u) * HERE[:, None]), "rows": torch.ones(K)}
    down = {"theta": torch.tensor(theta)}
    made = phase("stack", {"update": Update(around="theta")})
    found = Channel(robust=rule, liars=0.2).apply_rule(made, down, replies, present, K)  # type: ignore[arg-type]
    own, n = u[HERE], int(HERE.sum())
    if "krum" in rule:
        taken = np.isin(np.arange(n), numpy_krum(own, 2)[: 1 if rule == "krum" else n - 2])
        expected = np.where(taken[:, None], theta + own, 0.0)
        assert found.present[HERE].tolist() == taken.tolist()
        assert found.replies["rows"][HERE].tolist() == taken.tolist()  # nothing else of them counts
    elif rule == "clipped-mean":
        norms = np.linalg.norm(own, axis=1, keepdims=True)
        expected = theta + own * np.minimum(1, np.median(norms) / norms)
    else:
        trimmed = 2 if rule == "trimmed-mean" else (n - 1) // 2
        ordered = np.sort(own, axis=0)
        expected = theta + own.clip(ordered[trimmed], ordered[n - 1 - trimmed])
    np.testing.assert_allclose(found.replies["update"][HERE], expected, rtol=1e-9, atol=1e-12)
    assert not found.replies["update"][~HERE].any()


def test_a_server_that_weighs_single_updates_gets_no_weight_above_the_median() -> None:
    u, weight, replies, present = stacked()
    here = HERE & (weight > 0)
    made = phase("stack", {"update": Update(weight="rows")})
    found = Channel(robust="trimmed-mean").apply_rule(made, {}, replies, present, K)
    np.testing.assert_allclose(found.replies["rows"][here], capped(weight[here]))
    ordered = np.sort(u[here], axis=0)
    expected = u[here].clip(ordered[2], ordered[-3]) * capped(weight[here])[:, None]
    np.testing.assert_allclose(found.replies["update"][here], expected, rtol=1e-9)


def test_a_silo_that_declares_many_rows_gains_nothing_beyond_the_middle_one() -> None:
    u, weight = drawn(7)
    everyone, f = torch.ones(K, dtype=torch.bool), torch.tensor(1)
    before = {rule: aggregate(rule, {"u": parts(u)}, {"u": torch.tensor(weight)}, everyone, f) for rule in RULES}
    weight[np.argmax(weight)] *= 1e9
    for rule in RULES:
        after = aggregate(rule, {"u": parts(u)}, {"u": torch.tensor(weight)}, everyone, f)
        np.testing.assert_array_equal(flat(before[rule].centre["u"]), flat(after.centre["u"]))


# -- whole runs --------------------------------------------------------------------------------------------------------

OPTIONS = {"clients_per_round": "all", "dropout": 0.0, "rounds": 2, "seeds": [0]}
ROBUST = [
    *sampled_methods(METHODS, 6),
    *(pytest.param(method, marks=pytest.mark.full) for method in VARIANTS if "+" in method.name),
]
NO_UPDATES = ("local", "separate-training", "frl", "e2fl", "local+eo", "local+fair")
POOLED = ("centralized", "centralized-kernel")


@pytest.mark.parametrize("rule", RULES)
def test_both_engines_and_the_run_with_the_plain_mean(rule: str, uneven: Federation) -> None:
    found = [
        run(FedAvg(), uneven, **OPTIONS, robust=rule, liars=0.2, engine=engine) for engine in ("lanes", "reference")
    ]
    assert_same(*found, tolerance=1e-5)
    np.testing.assert_allclose(found[0].cuts["cut"], found[1].cuts["cut"], atol=1e-6)
    plain = run(FedAvg(), uneven, **OPTIONS)
    expected = plain.metrics[plain.metrics["round"] == 2].reset_index(drop=True)
    for each in found:
        assert each.plain_mean[["seed", "split", "scope", "metric"]].equals(
            expected[["seed", "split", "scope", "metric"]]
        )
        np.testing.assert_allclose(each.plain_mean["value"], expected["value"], rtol=1e-4, atol=1e-5)
        assert list(each.parameters) == [0]
        assert len(each.log) == 2
    assert any(not np.allclose(found[0].parameters[0][name], value) for name, value in plain.parameters[0].items())
    assert plain.cuts.empty
    assert plain.plain_mean.empty


@pytest.mark.parametrize("method", ROBUST, ids=lambda method: method.name)
def test_every_method_resists_or_says_why_not(method: Method, uneven: Federation) -> None:
    options = {**OPTIONS, "rounds": 1}
    if method.name in NO_UPDATES:
        with pytest.raises(ConfigError, match="compares the model updates that clients send, but"):
            run(method, uneven, **options, robust="median")
        return
    if method.name == "ifca":
        with pytest.raises(ConfigError, match="train different models"):
            run(method, uneven, **options, robust="median")
        return
    found = [run(method, uneven, **options, robust="trimmed-mean", engine=engine) for engine in ("lanes", "reference")]
    assert_same(*found, tolerance=1e-5)
    if method.name in POOLED:  # one place, in which nobody is to be compared
        assert found[0].settings.robust is None
        return
    np.testing.assert_allclose(found[0].cuts["cut"], found[1].cuts["cut"], atol=1e-6)
    assert found[0].cuts["cut"].gt(0).any()
    plain = run(method, uneven, **options).parameters[0]
    assert any(not np.array_equal(value, plain[name]) for name, value in found[0].parameters[0].items())


def test_a_sweep_over_the_share_of_liars_is_one_run_for_each(uneven: Federation) -> None:
    options = {**OPTIONS, "seeds": [0, 5], "robust": "trimmed-mean"}
    swept = ef.simulate(FedAvg(), uneven, over={"liars": [0.0, 0.3]}, **{**SETTINGS, **options})
    assert swept.swept == ["liars"]
    assert len(swept.plain_mean["liars"].unique()) == 2
    for liars in (0.0, 0.3):
        alone = run(FedAvg(), uneven, **options, liars=liars)
        for seed in (0, 5):
            for name, value in alone.parameters[seed].items():
                np.testing.assert_allclose(swept.parameters[liars, seed][name], value, rtol=1e-5, atol=1e-6)
        own = swept.cuts[swept.cuts["liars"] == liars]
        np.testing.assert_allclose(own["cut"], alone.cuts["cut"], atol=1e-6)
    assert not swept.cuts.loc[swept.cuts["liars"] == 0.0, "cut"].any()


@pytest.mark.parametrize("engine", ["lanes", "reference"])
def test_a_round_with_too_few_replies_for_the_rule_has_no_effect(engine: str, uneven: Federation) -> None:
    """Run by run: rounds that one of them loses, the other may have."""
    options = {"clients_per_round": 7, "dropout": 0.3, "rounds": 6, "seeds": [0, 5], "robust": "krum", "liars": 0.2}
    found = run(FedAvg(), uneven, **options, engine=engine)
    lost = found.log[~found.log["applied"]]
    assert 0 < len(lost) < len(found.log)
    assert (lost["replied"] > 0).all()
    (note,) = (note for note in found.notes if note.kind == "rounds-not-applied")
    assert "krum needs 5 updates to tolerate 1 malicious client, and fewer came" in str(note)
    first = {seed: group["applied"].tolist() for seed, group in found.log.groupby("seed")}
    assert first[0] != first[5]
    short = min(int(rounds.index(False)) for rounds in first.values())
    seed = next(seed for seed, rounds in first.items() if not rounds[short])
    if short:  # the model after a round that was lost is the one before
        before, after = (run(FedAvg(), uneven, **{**options, "rounds": short + add}, engine=engine) for add in (0, 1))
        for name, value in before.parameters[seed].items():
            np.testing.assert_array_equal(value, after.parameters[seed][name])


def test_a_lost_round_takes_back_what_clients_kept(uneven: Federation) -> None:
    """FairFed's clients keep their weights between rounds: both engines agree on what they go on from."""
    options = {"clients_per_round": 6, "dropout": 0.3, "rounds": 5, "seeds": [0], "robust": "multi-krum", "liars": 0.2}
    found = [run(ef.methods.FairFed(), uneven, **options, engine=engine) for engine in ("lanes", "reference")]
    assert not found[0].log["applied"].all()
    assert_same(*found, tolerance=1e-5)


def test_wrong_settings_are_refused(uneven: Federation) -> None:
    with pytest.raises(ConfigError, match=r"Unknown robust rule 'mean'.*median"):
        run(FedAvg(), uneven, robust="mean")
    with pytest.raises(ConfigError, match="no rule tolerates a malicious half"):
        run(FedAvg(), uneven, robust="median", liars=0.5)
    with pytest.raises(ConfigError, match="single clients, which secure = true hides"):
        run(FedAvg(), uneven, robust="median", secure=True)
    with pytest.raises(ConfigError, match=r"f = 2 malicious clients; krum needs 2 f \+ 3 = 7 clients"):
        run(FedAvg(), uneven, robust="krum", liars=0.4, clients_per_round=6)
    with pytest.raises(ConfigError, match=r"less than one client.*Give at least 0\.167"):
        run(FedAvg(), uneven, robust="trimmed-mean", liars=0.1, clients_per_round=6)
    with pytest.raises(ConfigError, match="liars"):
        ef.simulate(FedAvg(), uneven, over={"liars": [0.1, 0.6]}, robust="median", **SETTINGS)
    with pytest.raises(ConfigError, match="has no effect without a robust rule"):
        ef.simulate(FedAvg(), uneven, over={"liars": [0.1, 0.2]}, **SETTINGS)


def test_in_a_configuration() -> None:
    raw = {"run": {"robust": "krum", "liars": 0.1}, "data": {"name": "compas"}, "method": {"name": "fedavg"}}
    config = parse_config(raw)
    assert (config.run.robust, config.run.liars) == ("krum", 0.1)
    assert config.resolved()["run"]["robust"] == "krum"
    assert "robust" not in parse_config({**raw, "run": {}}).resolved()["run"]
    assert parse_config({**raw, "sweep": {"liars": [0.1, 0.2]}}).sweep == {"liars": [0.1, 0.2]}
    with pytest.raises(ConfigError, match=r"run\.robust"):
        parse_config({**raw, "run": {"robust": "average"}})


def test_a_result_is_kept_with_what_was_cut(uneven: Federation, tmp_path: Path) -> None:
    result = run(FedAvg(), uneven, rounds=3, clients_per_round=6, robust="multi-krum")
    assert not result.cuts.empty
    for _, own in result.cuts.groupby("seed"):
        # everyone's share is that of the clients together: as many as were cut
        assert (own["updates"] * own["cut"]).sum() == pytest.approx((own["updates"] * own["everyone"]).sum())
    ef.save_result(tmp_path / "kept", result)
    loaded = ef.load_result(tmp_path / "kept")
    for name in ("cuts", "plain_mean"):
        assert getattr(loaded, name).astype(str).equals(getattr(result, name).astype(str))


def test_clipping_and_a_rule_together(uneven: Federation) -> None:
    """Also replies that the rule did not take were clipped, and are counted."""
    options = {**OPTIONS, "rounds": 1, "clip": 1e-3}
    clipped = run(FedAvg(), uneven, **options).log["clipped"].tolist()
    for engine in ("lanes", "reference"):
        found = run(FedAvg(), uneven, **options, robust="krum", engine=engine)
        assert found.log["clipped"].tolist() == clipped
