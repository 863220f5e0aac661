"""What a run records, and how it meets trouble: rejected replies, drop-out, bad arguments."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from fairlearn import metrics as fairlearn
from own_data import federation_of
from torch import nn

import equifed as ef
from equifed import randomness, tree
from equifed.errors import ConfigError, RunError
from equifed.federation import Federation
from equifed.methods.fedavg import FedAvg, apply_mean_update, weighted_update
from equifed.notes import Note
from equifed.protocol import Data, LocalTraining, Phase, Record, Server
from equifed.simulator import lane_data, make_job, tracing
from equifed.simulator.lane_data import grid_up, portions
from equifed.simulator.traced import segments
from equifed.tree import Tree

QUICK = {"model": ef.models.Logistic(), "rounds": 3, "local": ef.Local(epochs=1, batch_size=8, learning_rate=0.2)}
ENGINES = pytest.mark.parametrize("engine", ["lanes", "reference"])


def broken_update(theta: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
    """A client with exactly 33 rows divides by zero."""
    reply, state = weighted_update(theta, down, state, data, context)
    return {**reply, "rows": reply["rows"] + 0 / (data.n - 33)}, state


@dataclasses.dataclass(frozen=True)
class Broken(FedAvg):
    name: ClassVar[str] = "broken"

    @property
    def round(self) -> tuple[Phase, ...]:
        return (Phase("train", ("theta",), ("update", "rows"), LocalTraining(broken_update), apply_mean_update, "sum"),)


@ENGINES
def test_a_reply_with_nan_is_rejected_by_name_and_the_run_goes_on(uneven: Federation, engine: str) -> None:
    result = ef.simulate(Broken(), uneven, seeds=[0, 1], engine=engine, **QUICK)  # type: ignore[arg-type]
    assert set(result.rejections["client"]) == {"silo-5"}  # the one with 33 rows
    assert result.rejections["round"].tolist().count(1) == 2
    assert set(result.rejections["reason"]) == {"NaN or Inf in its reply"}
    assert (result.log["rejected"] == 1).all()
    assert (result.log["replied"] == uneven.num_clients - 1).all()
    assert any("6 replies were rejected" in str(note) for note in result.notes)
    # as if that client had not been there
    keep = [k for k in range(uneven.num_clients) if k != 5]
    without = ef.Federation.from_arrays(
        [tuple(part[uneven.train[k]] for part in uneven.rows[:3]) for k in keep], ids=[uneven.ids[k] for k in keep]
    )
    expected = ef.simulate(FedAvg(), without, seeds=[0, 1], **QUICK)  # type: ignore[arg-type]
    for seed in (0, 1):
        for name, value in expected.parameters[seed].items():
            np.testing.assert_allclose(result.parameters[seed][name], value, rtol=1e-5, atol=1e-6)


@ENGINES
def test_a_round_without_any_reply_leaves_the_model(uneven: Federation, engine: str) -> None:
    alone = ef.Federation.from_arrays(
        [tuple(part[uneven.train[5]] for part in uneven.rows[:3])],
        test=tuple(part[uneven.test] for part in uneven.rows[:3]),
    )
    result = ef.simulate(Broken(), alone, engine=engine, **QUICK)  # type: ignore[arg-type]
    assert not result.log["applied"].any()
    assert all((value == 0).all() for value in result.parameters[0].values())
    assert any("3 of 3 rounds left the model as it was: too few usable replies" in str(note) for note in result.notes)


@ENGINES
def test_everyone_dropping_out_is_a_round_not_applied(uneven: Federation, engine: str) -> None:
    result = ef.simulate(FedAvg(), uneven, clients_per_round=1, dropout=0.9, engine=engine, **{**QUICK, "rounds": 20})  # type: ignore[arg-type]
    assert (result.log["sampled"] == 1).all()
    assert (result.log["applied"] == (result.log["replied"] > 0)).all()
    assert 0 < (~result.log["applied"]).sum() < 20
    assert (result.log["sampled"] == result.log[["replied", "dropped", "rejected"]].sum(axis=1)).all()


def test_metrics_are_fairlearn_s_on_the_model_s_predictions(uneven: Federation) -> None:
    result = ef.simulate(FedAvg(), uneven, **QUICK)  # type: ignore[arg-type]
    x, y, s = (part[uneven.test] for part in uneven.rows[:3])
    weight, bias = result.parameters[0]["0.weight"], result.parameters[0]["0.bias"]
    predicted = (x @ weight[0] + bias > 0).astype(int)
    final = result.final().iloc[0]
    assert final["accuracy"] == pytest.approx((predicted == y).mean())
    for name in ("demographic_parity_difference", "equalized_odds_difference", "equal_opportunity_difference",
                 "demographic_parity_ratio", "equalized_odds_ratio"):  # fmt: skip
        assert final[name] == pytest.approx(getattr(fairlearn, name)(y, predicted, sensitive_features=s)), name
    z = x @ weight[0] + bias
    assert final["loss"] == pytest.approx(np.mean(np.log1p(np.exp(z)) - y * z), rel=1e-5)
    groups = result.metrics[(result.metrics["round"] == 3) & (result.metrics["split"] == "test")]
    for g in (0, 1):
        own = groups[groups["scope"] == f"group:{g}"].set_index("metric")["value"]
        assert own["count"] == (s == g).sum()
        assert own["selection_rate"] == pytest.approx(predicted[s == g].mean())
        assert own["true_positive_rate"] == pytest.approx(predicted[(s == g) & (y == 1)].mean())
    assert uneven.client_test is not None
    for k in (0, 4):
        rows = uneven.client_test[k]
        expected = ((uneven.rows.x[rows] @ weight[0] + bias > 0) == uneven.rows.y[rows]).mean()
        own = groups[groups["scope"] == f"client:silo-{k}"].set_index("metric")["value"]
        assert own["accuracy"] == pytest.approx(expected)
    accuracies = groups[groups["scope"].astype(str).str.startswith("client:") & (groups["metric"] == "accuracy")]
    assert final["client_equality.mean"] == pytest.approx(accuracies["value"].mean())
    assert final["client_equality.worst10"] == pytest.approx(accuracies["value"].min())


def test_frame_has_the_promised_columns(uneven: Federation) -> None:
    result = ef.simulate(FedAvg(), uneven, eval_every=2, seeds=range(2), **QUICK)  # type: ignore[arg-type]
    assert list(result.metrics.columns) == ["method", "seed", "round", "split", "scope", "metric", "value"]
    assert sorted(result.metrics["round"].unique()) == [2, 3]  # every second round, and the last
    assert set(result.metrics["split"]) == {"test", "validation"}
    summary = result.summary()
    by_hand = result.final()["accuracy"]
    assert summary[("accuracy", "mean")].item() == pytest.approx(by_hand.mean())
    assert summary[("accuracy", "std")].item() == pytest.approx(np.std(by_hand, ddof=1))
    assert "fedavg" in repr(result)


def test_a_constant_predictor_is_flagged(uneven: Federation) -> None:
    constant = {"0.weight": np.zeros((1, 4)), "0.bias": np.array([9.0])}
    result = ef.simulate(
        FedAvg(), uneven, initial_parameters=constant, **{**QUICK, "local": ef.Local(learning_rate=1e-9)}
    )  # type: ignore[arg-type]
    assert result.final()["degenerate"].item() == 1
    assert result.final()["demographic_parity_difference"].item() == 0


def test_messages_name_fields_and_bytes(uneven: Federation) -> None:
    result = ef.simulate(FedAvg(), uneven, **QUICK)  # type: ignore[arg-type]
    (message,) = result.messages.to_dict("records")
    assert message == {
        "stage": "round", "phase": "train", "down": "theta", "up": "update, rows", "gather": "sum",
        "bytes_down": 5 * 4, "bytes_up": 5 * 4 + 4, "sizes_down": {"theta": 20}, "sizes_up": {"update": 20, "rows": 4},
        "times": 1,
    }  # fmt: skip


def test_one_federation_per_seed_equals_each_alone() -> None:
    """Rows held once, splits and scalings of their own."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(3, 2, 200), "g": rng.choice(["f", "m"], 200)})
    frame["y"] = (frame["a"] + rng.normal(0, 1, 200) > 3).map({True: "yes", False: "no"})
    make = {"label": "y", "sensitive": "g", "partition": ef.partition.IID(4), "positive": "yes"}
    feds = [federation_of(frame, seed=seed, **make) for seed in (1, 2)]
    shared = [dataclasses.replace(fed, rows=feds[0].rows) for fed in feds]
    together = ef.simulate(FedAvg(), shared, **QUICK)  # type: ignore[arg-type]
    assert list(together.parameters) == [1, 2]
    for seed, fed in zip((1, 2), feds, strict=True):
        alone = ef.simulate(FedAvg(), fed, seeds=[seed], **QUICK)  # type: ignore[arg-type]
        for name, value in alone.parameters[seed].items():
            np.testing.assert_allclose(together.parameters[seed][name], value, rtol=1e-5, atol=1e-6)
    apart = ef.simulate(FedAvg(), feds, **QUICK)  # type: ignore[arg-type]
    np.testing.assert_allclose(apart.parameters[2]["0.bias"], together.parameters[2]["0.bias"], rtol=1e-5, atol=1e-6)


@pytest.mark.full  # the compiler alone takes 10 s; that a compiler may fail is tested below
@pytest.mark.skipif(not shutil.which("g++"), reason="compiling needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own parts
def test_compiled_steps_equal_the_reference(uneven: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "TRACE_FROM", 1)
    settings = {**QUICK, "local": ef.Local(epochs=2, batch_size=8, learning_rate=0.05, momentum=0.5)}
    compiled = ef.simulate(ef.methods.FedProx(mu=0.3), uneven, kernel="compiled", seeds=[0, 1], **settings)  # type: ignore[arg-type]
    assert [note.fields.get("kernel", note) for note in compiled.notes] == ["compiled"]
    plain = ef.simulate(ef.methods.FedProx(mu=0.3), uneven, engine="reference", seeds=[0, 1], **settings)  # type: ignore[arg-type]
    for seed in (0, 1):
        for name, value in plain.parameters[seed].items():
            np.testing.assert_allclose(compiled.parameters[seed][name], value, rtol=1e-5, atol=1e-6)


def test_a_broken_compiler_is_said_and_costs_nothing(uneven: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no such compiler")

    monkeypatch.setattr(tracing, "TRACE_FROM", 1)
    monkeypatch.setattr("torch._inductor.compile", fail)
    result = ef.simulate(FedAvg(), uneven, kernel="compiled", **QUICK)  # type: ignore[arg-type]
    assert Note("compiling-failed", {"error": "OSError"}) in result.notes
    expected = ef.simulate(FedAvg(), uneven, **QUICK)  # type: ignore[arg-type]
    np.testing.assert_allclose(result.parameters[0]["0.weight"], expected.parameters[0]["0.weight"], atol=1e-6)


def test_any_module_works(uneven: Federation) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.norm, self.b = nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(torch.relu(self.norm(self.a(x)))).squeeze(-1)

    net = Net()
    as_it_stands = ef.simulate(FedAvg(), uneven, **{**QUICK, "model": net, "local": ef.Local(learning_rate=1e-12)})  # type: ignore[arg-type]
    np.testing.assert_allclose(as_it_stands.parameters[0]["a.weight"], net.a.weight.detach(), atol=1e-6)
    fresh = ef.simulate(FedAvg(), uneven, seeds=range(2), **{**QUICK, "model": Net})  # type: ignore[arg-type]
    assert not np.allclose(fresh.parameters[0]["a.weight"], fresh.parameters[1]["a.weight"])


def test_multi_class() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 2))
    y = np.array(["low", "middle", "high"])[np.digitize(x[:, 0], [-0.5, 0.5])]
    s = rng.integers(0, 3, 240)
    clients = [(x[i::4], y[i::4], s[i::4]) for i in range(3)]
    fed = Federation.from_arrays(clients, test=(x[3::4], y[3::4], s[3::4]))
    settings = {"model": ef.models.MLP(hidden=(8,)), "rounds": 30, "local": ef.Local(batch_size=16, learning_rate=0.3)}
    result = ef.simulate(FedAvg(), fed, eval_every=30, **settings)  # type: ignore[arg-type]
    assert result.final()["accuracy"].item() > 0.85
    assert "accuracy_difference" in result.final()
    assert "demographic_parity_difference" in result.final()
    assert "discrimination_index" not in result.final()
    reference = ef.simulate(FedAvg(), fed, eval_every=30, engine="reference", **settings)  # type: ignore[arg-type]
    np.testing.assert_allclose(result.parameters[0]["0.weight"], reference.parameters[0]["0.weight"], atol=1e-5)


def test_pareto_marks_dominated_points(uneven: Federation) -> None:
    result = ef.simulate(ef.methods.FedProx(), uneven, over={"mu": [0.0, 0.1, 5.0]}, seeds=range(3), **QUICK)  # type: ignore[arg-type]
    points = result.pareto()
    assert points["mu"].tolist() == [0, 0.1, 5]
    for _, row in points.iterrows():
        gain = points["accuracy"] - row["accuracy"]
        cut = row["demographic_parity_difference"] - points["demographic_parity_difference"]
        assert row["dominated"] == ((gain >= 0) & (cut >= 0) & (gain + cut > 0)).any()
    with pytest.raises(ConfigError, match="Did you mean 'accuracy'"):
        result.pareto("acuracy")


def test_a_setting_that_diverges_does_not_disturb_the_others(uneven: Federation) -> None:
    """Settings share their rows in one computation; a refused reply counts for its own setting only."""
    settings = {**QUICK, "rounds": 6, "seeds": [0, 1], "local": ef.Local(epochs=2, batch_size=8, learning_rate=0.5)}
    swept = ef.simulate(ef.methods.FedProx(), uneven, over={"mu": [0.1, 1e30, 2.0]}, **settings)  # type: ignore[arg-type]
    assert set(swept.rejections["mu"]) == {1e30}
    for mu in (0.1, 2.0):
        alone = ef.simulate(ef.methods.FedProx(mu), uneven, **settings)  # type: ignore[arg-type]
        for seed in (0, 1):
            for name, value in alone.parameters[seed].items():
                np.testing.assert_allclose(value, swept.parameters[(mu, seed)][name], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("clients_per_round", [None, 4])
def test_rows_kept_at_hand_change_nothing(
    uneven: Federation, monkeypatch: pytest.MonkeyPatch, clients_per_round: int | None
) -> None:
    settings = {"model": ef.models.Logistic(), "rounds": 6, "seeds": [0, 1], "clients_per_round": clients_per_round}
    over = {"epsilon": [0.01, 0.2]}
    kept = ef.simulate(ef.methods.FedFair(), uneven, over=over, **settings)  # type: ignore[arg-type]
    monkeypatch.setattr(lane_data, "KEPT_BYTES", 0)
    again = ef.simulate(ef.methods.FedFair(), uneven, over=over, **settings)  # type: ignore[arg-type]
    for key, parameters in kept.parameters.items():
        for name, value in parameters.items():
            assert value.tobytes() == again.parameters[key][name].tobytes()


def test_pareto_intervals_and_hypervolume(uneven: Federation) -> None:
    result = ef.simulate(ef.methods.FedProx(), uneven, over={"mu": [0.0, 0.5, 5.0]}, seeds=range(6), **QUICK)  # type: ignore[arg-type]
    points, final = result.pareto(), result.final()
    for _, row in points.iterrows():
        values = final[final["mu"] == row["mu"]]["accuracy"].to_numpy()
        assert row["accuracy"] == pytest.approx(values.mean())
        interval = scipy.stats.bootstrap([values], np.mean, method="percentile", n_resamples=4000, rng=1)
        # both are random: 1000 and 4000 resamples of the same six numbers
        ends = interval.confidence_interval
        assert row["accuracy_low"] == pytest.approx(ends.low, abs=0.15 * (ends.high - ends.low) + 1e-9)
        assert row["accuracy_high"] == pytest.approx(ends.high, abs=0.15 * (ends.high - ends.low) + 1e-9)
    reference = (0.5, 0.6)
    found = result.hypervolume(reference=reference)
    # by counting: how much of the box between the corner (1, 0) and the reference some point dominates
    a, d = np.meshgrid(np.linspace(0.5, 1, 1001), np.linspace(0, 0.6, 1001))
    covered = np.zeros_like(a, dtype=bool)
    for accuracy, gap in zip(points["accuracy"], points["demographic_parity_difference"], strict=True):
        covered |= (a <= accuracy) & (d >= gap)
    assert found.value == pytest.approx(covered.mean() * 0.5 * 0.6, rel=0.01)
    assert found.low <= found.value <= found.high
    assert result.hypervolume().reference == (
        points["accuracy"].min(), points["demographic_parity_difference"].max(),
    )  # fmt: skip
    undefined = dataclasses.replace(uneven, test=uneven.test[uneven.rows.s[uneven.test] == 0])
    alone = ef.simulate(ef.methods.FedProx(), undefined, over={"mu": np.array([0.0, 5.0])}, **QUICK)  # type: ignore[arg-type]
    assert np.isnan(alone.hypervolume().value)
    assert alone.pareto()["dominated"].all()  # one group: no gap is defined, and nothing is on a front
    one = ef.simulate(ef.methods.FedProx(), uneven, over={"mu": [0.0, 5.0]}, seeds=[0], **QUICK)  # type: ignore[arg-type]
    assert one.pareto()["accuracy_low"].isna().all()
    assert np.isnan(one.hypervolume().low)


# -- plan --------------------------------------------------------------------------------------------------------------


def test_plan_is_reproducible_and_differs_by_purpose() -> None:
    assert randomness.generator(1, "a", 2).random() == randomness.generator(1, "a", 2).random()
    values = {
        randomness.generator(*key).random() for key in [(1, "a", 2), (2, "a", 2), (1, "b", 2), (1, "a", 3), (1, "a")]
    }
    assert len(values) == 5
    # a fixed number: a change here would silently change every published run
    assert randomness.key("silo-a") == 3419672453751797311


def test_cohorts_are_uniform_without_replacement() -> None:
    order = randomness.client_order([str(i) for i in range(12)])
    drawn = np.array([randomness.draw_cohort(0, number, order, 3) for number in range(4000)])
    assert all(len(set(row)) == 3 for row in drawn)
    share = np.bincount(drawn.ravel(), minlength=12) / 4000
    np.testing.assert_allclose(share, 3 / 12, atol=0.03)


def test_segments_cover_every_step_of_every_lane() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        count = np.sort(rng.integers(0, 40, rng.integers(1, 60)))[::-1]
        done = np.zeros(len(count), dtype=int)
        last = 0
        for begin, end, width in segments(count, rng.choice([0.5, 0.7])):
            assert begin == last
            last = end
            done[:width] += np.clip(np.minimum(count[:width], end) - begin, 0, None)
        np.testing.assert_array_equal(done, count)


def test_unequal_lanes_waste_little() -> None:
    """One client of 100,000 rows beside 2,000 of 20 must not be padded to each other."""
    n = np.array([100_000] + [20] * 2000)
    assert sum(width * (end - begin) for begin, end, width in segments(-(-n // 32), 0.7)) * 32 < 5 * n.sum()
    assert sum(width * (part.stop - part.start) for part, width in portions(n, 4)) < 1.5 * n.sum()
    assert [part.stop - part.start for part, _ in portions(np.full(1000, 1000), 2**20)] == [1] * 1000  # memory
    assert portions(n, 4, whole=4 * len(n) * grid_up(int(n[0]))) == [(slice(0, len(n)), grid_up(int(n[0])))]
    assert portions(n, 4, whole=4 * len(n) * grid_up(int(n[0])) - 1) == portions(n, 4)


def test_memory_of_a_row_counts_activations() -> None:
    fed = Federation.from_arrays([(np.zeros((2, 1, 28, 28)), [0, 1], [0, 1])])
    job = make_job(FedAvg(), fed, ef.models.LeNet(), ef.RunSettings())
    convolutions = 2 * (32 + 64) * 28 * 28  # each with its ReLU
    assert job.row_bytes() > 4 * convolutions
    assert job.row_bytes() < 4 * 1.5 * convolutions


def test_a_federation_brings_its_seed(uneven: Federation) -> None:
    seeded = dataclasses.replace(uneven, seed=7)
    assert list(ef.simulate(FedAvg(), seeded, **QUICK).parameters) == [7]  # type: ignore[arg-type]
    assert list(ef.simulate(FedAvg(), [seeded], **QUICK).parameters) == [7]  # type: ignore[arg-type]
    assert list(ef.simulate(FedAvg(), uneven, **QUICK).parameters) == [0]  # type: ignore[arg-type]


def test_federations_that_do_not_belong_together(uneven: Federation) -> None:
    assert uneven.client_groups is not None
    others = {
        "same client groups": dataclasses.replace(uneven, client_groups=uneven.client_groups[::-1].copy()),
        "same clients, but 'silo-0' is 'x-0'": dataclasses.replace(
            uneven, ids=tuple(name.replace("silo", "x") for name in uneven.ids)
        ),
        "agree in groups": dataclasses.replace(uneven, groups=("a", "b")),
    }
    for message, other in others.items():
        with pytest.raises(ConfigError, match=message):
            ef.simulate(FedAvg(), [uneven, other], seeds=[0, 1], **QUICK)  # type: ignore[arg-type]


def test_without_test_rows_there_is_nothing_to_sum_up(uneven: Federation) -> None:
    bare = dataclasses.replace(uneven, test=uneven.test[:0], validation=uneven.validation[:0], client_test=None)
    result = ef.simulate(FedAvg(), bare, **QUICK)  # type: ignore[arg-type]
    assert result.summary().empty
    assert result.notes[0].kind == "no-test-rows"
    assert "fedavg" in repr(result)
    with pytest.raises(ConfigError, match="Unknown split 'train'"):
        ef.simulate(FedAvg(), uneven, **QUICK).final("train")  # type: ignore[arg-type]


def test_a_diverged_regression_is_measured_as_undefined() -> None:
    """Parameters near float32's limit are finite, the predictions made with them are not."""
    rng = np.random.default_rng(0)
    part = (rng.normal(size=(20, 2)) * 100, rng.normal(size=20), np.arange(20) % 2)
    fed = Federation.from_arrays([part], test=part, task="regression")
    huge = {"0.weight": np.full((1, 2), 3e38), "0.bias": np.zeros(1)}
    result = ef.simulate(
        FedAvg(), fed, model=ef.models.Linear(), rounds=1, initial_parameters=huge,
        local=ef.Local(learning_rate=1e-30),
    )  # fmt: skip
    assert np.isnan(result.final()["ks_distance"].item())
    assert not np.isfinite(result.final()["rmse"].item())


@ENGINES
def test_clients_know_the_step_size_of_the_round(uneven: Federation, engine: str) -> None:
    def tell(theta: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
        return {"update": down["theta"], "rate": torch.as_tensor(data.learning_rate)}, state

    def keep(server: Server, replies: Record, validation: Data | None) -> Server:
        mean = replies["rate"] / replies["present"]
        return Server(tree.map(lambda leaf: torch.zeros_like(leaf) + mean, server.theta))

    @dataclasses.dataclass(frozen=True)
    class Told(FedAvg):
        name: ClassVar[str] = "told"

        @property
        def round(self) -> tuple[Phase, ...]:
            return (Phase("train", ("theta",), ("update", "rate"), LocalTraining(tell), keep, "sum"),)

    local = ef.Local(learning_rate=0.4, learning_rate_decay=0.5)
    result = ef.simulate(Told(), uneven, engine=engine, **{**QUICK, "local": local})  # type: ignore[arg-type]
    np.testing.assert_allclose(result.parameters[0]["0.weight"], 0.1, rtol=1e-6)  # the third round


@pytest.mark.parametrize("engine", ["lanes", "reference"])
def test_a_module_that_draws_random_numbers_is_refused(uneven: Federation, engine: str) -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) + torch.randn(len(x), 1)

    with pytest.raises(ConfigError, match=r"draws random numbers itself, .* use layers such as nn.Dropout"):
        ef.simulate(FedAvg(), uneven, engine=engine, **{**QUICK, "model": Noisy()})  # type: ignore[arg-type]


def test_a_method_that_draws_random_numbers_is_explained(uneven: Federation) -> None:
    def noisy(theta: Tree, context: Tree, batch: Data) -> torch.Tensor:
        return batch.mean(batch.task.row_loss(theta, batch.x + torch.randn(4), batch.y))

    @dataclasses.dataclass(frozen=True)
    class Noisy(FedAvg):
        @property
        def round(self) -> tuple[Phase, ...]:
            (phase,) = super().round
            return (dataclasses.replace(phase, client=dataclasses.replace(phase.client, loss=noisy)),)  # type: ignore[type-var]

    with pytest.raises(RunError, match="may not draw torch's random numbers"):
        ef.simulate(Noisy(), uneven, **QUICK)


def test_grid_wastes_at_most_a_quarter() -> None:
    for n in range(1, 3000):
        assert n <= grid_up(n) <= max(n * 1.25, 8)
    assert len({grid_up(n) for n in range(1, 3000)}) < 45


# -- bad arguments ---------------------------------------------------------------------------------------------------


class Squashed(nn.Linear):
    """Ends in a sigmoid in its code, and a change of shape."""

    def __init__(self) -> None:
        super().__init__(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).sigmoid().squeeze(-1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 0}, "rounds must be a whole number of at least 1"),
        ({"clients_per_round": 11}, "a whole number of at least 1 and at most 10, got 11"),
        ({"clients_per_round": 2.5}, "clients_per_round must be a whole number"),
        ({"local": {}}, "local must be equifed.Local"),
        ({"device": "meta"}, "device must be 'auto', 'cpu'"),
        ({"model": ef.models.MLP}, "model is the class MLP; give an instance"),
        (
            {"model": nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2, track_running_stats=False))},
            "batch normalisation",
        ),
        ({"model": nn.Linear(4, 1).requires_grad_(False)}, "All parameters of the model Linear are frozen"),
        ({"model": nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())}, "ends in a sigmoid, which equifed applies itself"),
        ({"model": nn.Sequential(nn.Linear(4, 2), nn.Softmax(-1))}, "ends in a softmax, which equifed applies itself"),
        ({"model": Squashed}, "ends in a sigmoid.*Remove it"),
        ({"initial_parameters": [1, 2]}, "must be {name: array}"),
        ({"initial_parameters": {5: {}}}, "no entry for seed 0"),
        ({"dropout": 1.0}, "probability below 1"),
        ({"dropout": "x"}, "dropout must be a number"),
        ({"seeds": [1, 1]}, "seeds must differ"),
        ({"seeds": []}, "at least one seed"),
        ({"seeds": [-1]}, "A seed must be a whole number of at least 0"),
        ({"device": "cuda"}, "no CUDA device"),
        ({"device": "quantum"}, "device must be 'auto', 'cpu'"),
        ({"engine": "warp"}, "Unknown engine 'warp'. Known: lanes"),
        ({"model": nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))}, "GroupNorm or LayerNorm"),
        ({"model": nn.Sequential(nn.Linear(4, 3), nn.AlphaDropout(0.5), nn.Linear(3, 1))}, "a layer AlphaDropout"),
        ({"model": nn.Sequential(nn.Linear(4, 3), nn.Dropout(1.0), nn.Linear(3, 1))}, "all is dropped"),
        ({"model": nn.Linear(7, 1)}, r"does not accept this data's rows of shape \[4\]"),
        ({"model": nn.Linear(4, 5)}, r"needs \[rows, 1 or 2\]"),
        ({"model": "mlp"}, "model must be from equifed.models"),
        ({"model": nn.ReLU()}, "has no parameters"),
        ({"initial_parameters": {"w": np.zeros(3)}}, "must have the model's parameters 0.weight, 0.bias"),
        (
            {"initial_parameters": {"0.weight": np.zeros((2, 4)), "0.bias": np.zeros(1)}},
            r"shape \[1, 4\], got \[2, 4\]",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_arguments_are_refused(uneven: Federation, changes: dict, message: str) -> None:
    if changes.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(ConfigError, match=message):
        ef.simulate(FedAvg(), uneven, **{**QUICK, **changes})


def test_bad_methods_are_refused(uneven: Federation) -> None:
    with pytest.raises(ConfigError, match="A class needs parentheses"):
        ef.simulate(FedAvg, uneven, **QUICK)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^mu must be a number of at least 0, got -1"):
        ef.simulate(ef.methods.FedProx(mu=-1), uneven, **QUICK)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"Unknown method 'fedavgg'\. Did you mean 'fedavg'"):
        ef.methods.make("fedavgg")
    with pytest.raises(ConfigError, match="Unknown hyperparameter of fedprox 'nu'"):
        ef.methods.make("fedprox", nu=1)
    with pytest.raises(ConfigError, match=r"^mu must be a number of at least 0, got 'big'"):
        ef.methods.make("fedprox", mu="big")
    with pytest.raises(ConfigError, match="has no values"):
        ef.simulate(ef.methods.FedProx(), uneven, over={"mu": []}, **QUICK)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="names a value twice"):
        ef.simulate(ef.methods.FedProx(), uneven, over={"mu": [0.1, 0.1]}, **QUICK)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs a list of values"):
        ef.simulate(ef.methods.FedProx(), uneven, over={"mu": 0.1}, **QUICK)  # type: ignore[arg-type, dict-item]
    ef.simulate(ef.methods.FedProx(), uneven, over={"mu": np.array([0.1, 0.2], dtype=np.float32)}, **QUICK)  # type: ignore[arg-type, dict-item]
    with pytest.raises(ConfigError, match="Unknown hyperparameter"):
        ef.simulate(ef.methods.FedProx(), uneven, over={"alpha": [1]}, **QUICK)  # type: ignore[arg-type]


def test_what_a_method_needs_is_checked_before_round_1(uneven: Federation) -> None:
    @dataclasses.dataclass(frozen=True)
    class Needy(FedAvg):
        name: ClassVar[str] = "needy"
        needs_validation: ClassVar[bool] = True

    @dataclasses.dataclass(frozen=True)
    class Grouped(FedAvg):
        name: ClassVar[str] = "grouped"
        needs_client_groups: ClassVar[bool] = True

    numbers = [(part[0], part[0][:, 0], part[2]) for part in [tuple(p[uneven.train[0]] for p in uneven.rows[:3])]]
    with pytest.raises(ConfigError, match="is for binary labels; the labels of this federation are regression"):
        ef.simulate(ef.methods.FairFate(), Federation.from_arrays(numbers, task="regression"), **QUICK)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="true or false and cannot be swept"):
        ef.simulate(ef.methods.FairFate(), uneven, over={"as_published": [0, 1]}, **QUICK)  # type: ignore[arg-type]
    bare = Federation.from_arrays([tuple(part[uneven.train[k]] for part in uneven.rows[:3]) for k in (0, 1)])
    with pytest.raises(ConfigError, match="needy measures fairness on a validation set"):
        ef.simulate(Needy(), bare, **QUICK)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="grouped needs to know each client's group"):
        ef.simulate(Grouped(), bare, **QUICK)  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class Chatty(FedAvg):
    """Replies more than it declares."""

    name: ClassVar[str] = "chatty"

    @property
    def round(self) -> tuple[Phase, ...]:
        return (Phase("train", ("theta",), ("update",), LocalTraining(weighted_update), apply_mean_update, "sum"),)


@ENGINES
def test_nothing_undeclared_leaves_a_client(uneven: Federation, engine: str) -> None:
    with pytest.raises(RunError, match="Only declared fields may leave a client"):
        ef.simulate(Chatty(), uneven, engine=engine, **QUICK)  # type: ignore[arg-type]


def test_the_reference_engine_names_the_client_in_an_error(uneven: Federation) -> None:
    def crash(theta: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
        raise KeyError("gamma")

    @dataclasses.dataclass(frozen=True)
    class Crashing(FedAvg):
        name: ClassVar[str] = "crashing"

        @property
        def round(self) -> tuple[Phase, ...]:
            return (Phase("train", ("theta",), ("update",), LocalTraining(crash), apply_mean_update, "sum"),)

    with pytest.raises(RunError, match=r"crashing, seed 0, round 1, phase 'train', client 'silo-0' \(41 rows\)"):
        ef.simulate(Crashing(), uneven, engine="reference", **QUICK)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs"),
        ({"epochs": 1.5}, "epochs must be a whole number"),
        ({"learning_rate": "0.1"}, "learning_rate must be a number above 0"),
        ({"learning_rate": float("inf")}, "learning_rate"),
        ({"weight_decay": float("nan")}, "weight_decay"),
        ({"batch_size": 0}, "batch_size"),
        ({"optimizer": "lion"}, "Unknown optimizer 'lion'"),
        ({"momentum": 1.0}, "momentum"),
        ({"optimizer": "adam", "momentum": 0.9}, "applies to SGD"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"weight_decay": -1.0}, "weight_decay"),
    ],
)
def test_bad_local_settings(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ef.Local(**changes)


def test_a_diverged_regression_raises_no_flag_on_any_processor(tmp_path: Path) -> None:
    """Its errors are infinite for both groups and with every seed: measured, compared, reported and answered."""
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(n, 2)) * 100, rng.normal(size=n), np.arange(n) % 2) for n in (20, 30, 25)]
    fed = Federation.from_arrays(parts, test=parts[0], client_tests=parts, task="regression")
    made = {
        "model": ef.models.Linear(),
        "rounds": 1,
        "initial_parameters": {"0.weight": np.full((1, 2), 1e30), "0.bias": np.zeros(1)},
        "local": ef.Local(learning_rate=1e-30),
        "seeds": [0, 1, 2],
    }
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        results = [ef.simulate(method, fed, **made) for method in (ef.methods.LocalOnly(), ef.methods.AFL())]  # type: ignore[arg-type]
        final = results[0].final()
        ef.report.write_report(results, tmp_path / "report.html")
        ef.answer(results, "rmse <= 1")
    assert np.isinf(final["rmse"]).all()
    assert final["rmse_difference"].isna().all()
    assert "rmse" in (tmp_path / "report.html").read_text().lower()
