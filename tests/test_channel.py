"""The channel: clipping against plain NumPy, and the same in every engine."""

from __future__ import annotations

import dataclasses
import math
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
from equifed.federation import Federation, RowSets
from equifed.methods.fedavg import FedAvg
from equifed.protocol import Method, Phase, Update

CLIPPABLE = [*METHODS, *(method for method in VARIANTS if "+" in method.name)]
REFUSED = ("local", "separate-training", "frl", "e2fl", "local+eo", "local+fair")


def numpy_clipped(update: np.ndarray, norm: float) -> np.ndarray:
    return update * min(1.0, norm / np.linalg.norm(update))


def phase_of(updates: dict[str, Update], reply: dict[str, torch.Tensor]) -> Phase:
    return Phase("p", ("theta",), tuple(reply), lambda down, state, data: (reply, state), None, updates=updates)  # type: ignore[arg-type,return-value]


def sent(clip: float | torch.Tensor, updates: dict[str, Update], down: object, reply: object) -> dict[str, object]:
    phase = Channel(clip).apply(phase_of(updates, reply))  # type: ignore[arg-type]
    return phase.client({"theta": down}, (), None)[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("norm", [0.5, 3.0, 1e6])
def test_a_weighted_update_is_clipped_before_its_weight(norm: float) -> None:
    rng = np.random.default_rng(0)
    u, n = rng.normal(size=(3, 4)), 17.0
    reply = {"update": {"a": torch.tensor(n * u[:, :3]), "b": torch.tensor(n * u[:, 3])}, "rows": torch.tensor(n)}
    found = sent(norm, {"update": Update(weight="rows")}, (), reply)
    expected = n * numpy_clipped(u, norm)
    np.testing.assert_allclose(found["update"]["a"], expected[:, :3], rtol=1e-12)  # type: ignore[index]
    np.testing.assert_allclose(found["update"]["b"], expected[:, 3], rtol=1e-12)  # type: ignore[index]
    assert found["rows"] == n  # weights and counts are left alone
    assert found["clipped"] == float(np.linalg.norm(u) > norm)


@pytest.mark.parametrize("norm", [0.5, 1e6])
def test_a_model_is_clipped_around_the_one_that_came_down(norm: float) -> None:
    rng = np.random.default_rng(1)
    theta, own = rng.normal(size=(2, 5))
    found = sent(norm, {"theta": Update(around="theta")}, torch.tensor(theta), {"theta": torch.tensor(own)})
    np.testing.assert_allclose(found["theta"], theta + numpy_clipped(own - theta, norm), rtol=1e-12)
    if norm > 1e5:
        assert torch.equal(found["theta"], torch.tensor(own))  # type: ignore[arg-type]


def test_clients_and_settings_can_be_vmapped() -> None:
    rng = np.random.default_rng(2)
    u, norms = rng.normal(size=(6, 4)), np.array([0.1, 2.0])

    def one(update: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
        return sent(norm, {"update": Update()}, (), {"update": update})["update"]  # type: ignore[return-value]

    found = vmap(lambda update: vmap(lambda norm: one(update, norm))(torch.tensor(norms)))(torch.tensor(u))
    expected = [[numpy_clipped(each, norm) for norm in norms] for each in u]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_what_has_no_weight_or_no_bound() -> None:
    none = {"update": torch.zeros(3), "rows": torch.tensor(0.0)}
    assert torch.equal(sent(1.0, {"update": Update("rows")}, (), none)["update"], torch.zeros(3))  # type: ignore[arg-type]
    huge = {"update": torch.full((4,), 1e30)}  # its square is no 32-bit number
    np.testing.assert_allclose(sent(2.0, {"update": Update()}, (), huge)["update"], np.full(4, 1.0), rtol=1e-6)
    broken = {"update": torch.tensor([torch.nan, 1.0])}
    assert torch.isnan(sent(1.0, {"update": Update()}, (), broken)["update"]).any()  # type: ignore[arg-type]


def test_an_empty_channel_hands_out_the_phase_itself() -> None:
    (phase,) = FedAvg().round
    assert Channel().apply(phase) is phase
    count = dataclasses.replace(phase, updates={})
    assert Channel(1.0).apply(count) is count


@pytest.mark.parametrize("engine", ["lanes", "reference"])
def test_fedavg_is_the_weighted_mean_of_clipped_updates(engine: str, uneven: Federation) -> None:
    """The clients' own updates come from federations of one client each; the rest is NumPy."""
    options = {"rounds": 1, "clients_per_round": "all", "dropout": 0.0, "seeds": [0], "engine": engine}
    start = run(FedAvg(), uneven, **options, local=ef.Local(learning_rate=1e-30)).parameters[0]
    flat = np.concatenate([start[name].ravel() for name in start]).astype(float)
    updates, sizes = [], []
    for k in np.flatnonzero(uneven.train.sizes):
        alone = dataclasses.replace(
            uneven,
            train=RowSets.of([uneven.train[k]]),
            ids=(uneven.ids[k],),
            client_test=None,
            client_groups=None,
        )
        own = run(FedAvg(), alone, **options).parameters[0]
        updates.append(np.concatenate([own[name].ravel() for name in start]) - flat)
        sizes.append(len(uneven.train[k]))
    norm = float(np.mean([np.linalg.norm(update) for update in updates]))
    expected = flat + np.average([numpy_clipped(update, norm) for update in updates], axis=0, weights=sizes)
    result = run(FedAvg(), uneven, **options, clip=norm)
    found = np.concatenate([result.parameters[0][name].ravel() for name in start])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    long = sum(np.linalg.norm(update) > norm for update in updates)
    assert result.log["clipped"].tolist() == pytest.approx([long / uneven.num_clients])


@pytest.mark.parametrize(
    "method",
    sampled_methods(CLIPPABLE, 6),
    ids=lambda method: method.name,
)
def test_every_method_clips_or_says_why_not(method: Method, uneven: Federation) -> None:
    """Without an effect it changes no bit; with one it does, and both engines agree."""
    if method.name in REFUSED:
        with pytest.raises(ConfigError, match="bounds the norm of the model updates that clients send, but"):
            run(method, uneven, rounds=1, clip=1.0)
        return
    options = {"rounds": 1, "seeds": [0]}
    plain, never = run(method, uneven, **options), run(method, uneven, **options, clip=math.inf)
    for name, value in plain.parameters[0].items():
        np.testing.assert_array_equal(value, never.parameters[0][name])
    assert not never.log["clipped"].any()
    clipped = [run(method, uneven, **options, clip=0.02, engine=engine) for engine in ("lanes", "reference")]
    assert_same(*clipped, tolerance=1e-5)
    assert clipped[0].log["clipped"].tolist() == clipped[1].log["clipped"].tolist()
    assert clipped[0].log["clipped"].gt(0).any()
    assert any(not np.array_equal(value, plain.parameters[0][name]) for name, value in clipped[0].parameters[0].items())


def test_a_sweep_over_clip_is_one_run_for_each(uneven: Federation) -> None:
    options = {"rounds": 3, "seeds": [0, 5]}
    swept = ef.simulate(FedAvg(), uneven, over={"clip": [0.1, 10.0]}, **{**SETTINGS, **options})
    assert swept.swept == ["clip"]
    for clip in (0.1, 10.0):
        alone = run(FedAvg(), uneven, **options, clip=clip)
        for seed in (0, 5):
            for name, value in alone.parameters[seed].items():
                np.testing.assert_allclose(swept.parameters[clip, seed][name], value, rtol=1e-5, atol=1e-6)
    both = ef.simulate(
        ef.methods.FedProx(), uneven, over={"clip": [0.1, 10.0], "mu": [0.0, 1.0]}, **{**SETTINGS, **options}
    )
    assert len(both.parameters) == 8


def test_a_client_with_a_huge_update_moves_the_model_by_no_more_than_the_norm() -> None:
    rng = np.random.default_rng(3)
    x, y, s = rng.normal(size=(40, 3)).astype(np.float32), rng.integers(0, 2, 40), rng.integers(0, 2, 40)
    wild = (1e8 * x, y, s)
    fed = ef.Federation.from_arrays([(x, y, s), wild], test=(x, y, s))
    options = {"rounds": 1, "clients_per_round": 2, "dropout": 0.0, "model": ef.models.Logistic(), "seeds": [0]}
    start = {"0.weight": np.zeros((1, 3)), "0.bias": np.zeros(1)}  # a logistic model starts at 0
    moved = {
        clip: math.sqrt(
            sum(
                np.square(value - start[name]).sum()
                for name, value in run(FedAvg(), fed, **options, clip=clip, max_update=math.inf).parameters[0].items()
            )
        )
        for clip in (None, 1.0)
    }
    assert moved[None] > 1e3
    assert moved[1.0] <= 1.0 + 1e-5


def test_wrong_settings_are_refused(uneven: Federation) -> None:
    with pytest.raises(ConfigError, match="clip must be a number above 0"):
        run(FedAvg(), uneven, clip=0.0)
    with pytest.raises(ConfigError, match="clip must be a number above 0"):
        ef.simulate(FedAvg(), uneven, over={"clip": [1.0, -1.0]}, **SETTINGS)
    with pytest.raises(ConfigError, match="nothing leaves its clients"):
        run(ef.methods.LocalOnly(), uneven, clip=1.0)
    with pytest.raises(ConfigError, match="its clients send ranking"):
        run(ef.methods.FRL(), uneven, clip=1.0)


class Odd(FedAvg):
    name = "odd"

    @property
    def round(self) -> tuple[Phase, ...]:
        return tuple(dataclasses.replace(phase, updates={"update": Update("weight")}) for phase in super().round)


def test_a_declaration_that_fits_no_field_is_refused(uneven: Federation) -> None:
    with pytest.raises(
        ConfigError, match="the update 'update' is declared with 'weight', which the phase does not send"
    ):
        run(Odd(), uneven, clip=1.0)


def test_a_result_says_what_was_clipped(uneven: Federation) -> None:
    result = run(ef.methods.LCO(), uneven, rounds=2, clip=0.02)
    assert result.settings.clip == 0.02
    (note,) = (note for note in result.notes if note.kind == "clipped")
    assert note.fields["fields"] == {"gradients": ["loss_gradient", "gap_gradient"]}
    ((norm, share),) = (each.values() for each in note.fields["norms"])
    assert (norm, share) == (0.02, pytest.approx(result.log["clipped"].mean()))
    assert "updates (loss_gradient, gap_gradient) were clipped to the L2 norm 0.02 (" in str(note)
    swept = ef.simulate(FedAvg(), uneven, over={"clip": [1e-3, 1e3]}, **{**SETTINGS, "rounds": 1, "dropout": 0.0})
    (note,) = (note for note in swept.notes if note.kind == "clipped")
    assert [each["norm"] for each in note.fields["norms"]] == [1e-3, 1e3]
    assert note.fields["norms"][0]["share"] > 0.5
    assert note.fields["norms"][1]["share"] == 0


def test_in_a_configuration(tmp_path: Path) -> None:
    raw = {"run": {"rounds": 2, "clip": 0.5}, "data": {"name": "compas"}, "method": {"name": "fedavg"}}
    config = parse_config(raw)
    assert config.run.clip == 0.5
    assert config.resolved()["run"]["clip"] == 0.5
    assert "clip" not in parse_config({**raw, "run": {"rounds": 2}}).resolved()["run"]
    assert parse_config({**raw, "sweep": {"clip": [0.1, 1]}}).sweep == {"clip": [0.1, 1.0]}
    with pytest.raises(ConfigError, match=r"run\.clip"):
        parse_config({**raw, "run": {"clip": 0}})
    with pytest.raises(ConfigError, match=r"sweep\.clip"):
        parse_config({**raw, "sweep": {"clip": [0.0]}})
