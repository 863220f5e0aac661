"""Methods that need each reply, as they run where only sums are seen: the same method."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import equifed as ef
from equifed import methods
from equifed.errors import ConfigError
from equifed.federation import Federation
from equifed.protocol import VALIDATION, Method

SETTINGS = {
    "rounds": 3,
    "clients_per_round": 9,
    "dropout": 0.07,
    "local": ef.Local(epochs=1, batch_size=8, learning_rate=0.2),
    "seeds": (0, 1),
}
"""Some of ten clients in each round, some of them gone, but never too many for a sum."""
RANKED = (
    methods.FRL(keep=0.4),
    methods.E2FL(),
    methods.E2FL(groups="sensitive"),
    methods.E2FL(groups="lowest-loss", num_groups=2),
    methods.E2FL(groups="one-shot", num_groups=3),
    methods.E2FL(groups="binary", num_groups=3, use="global"),
    methods.E2FL(min_clients=3),
    methods.E2FL(groups="sensitive", min_clients=3),
    methods.E2FL(groups="lowest-loss", num_groups=3, min_clients=3),
)
AVERAGED = (
    methods.IFCA(num_groups=2),
    methods.IFCA(num_groups=3, known=True),
    methods.IFCA(num_groups=3, known=True, min_clients=3),
    methods.IFCA(num_groups=3, min_clients=3),
    methods.SFFL(components=2, fairness_step=3.0),
    methods.SFFL(components=2, fairness_step=3.0, weight_clip=1e9),
    methods.FedVal(),
    methods.FedVal(fairness=("equal_opportunity_ratio", "average_odds_ratio"), as_published=True),
    methods.FairFate(lambda0=0.4, rho=0.2),
    methods.FairFate(fairness=("demographic_parity_ratio", "average_odds_ratio"), lambda0=0.4, rho=0.2),
    methods.FairFate(lambda0=0.4, rho=0.2, min_clients=4),
    ef.postprocess.Fair(methods.FairFate(lambda0=0.4), gap=0.02),
)

both_engines = pytest.mark.parametrize("engine", ["lanes", pytest.param("reference", marks=pytest.mark.full)])


def run(method: Method, federation: Federation, **changes: object) -> ef.Result:
    model = ef.models.MLP(hidden=(3,), activation="tanh", bias=method.name not in ("frl", "e2fl"))
    result = ef.simulate(method, federation, **{**SETTINGS, "model": model, **changes})  # type: ignore[arg-type]
    assert result.log["applied"].all()
    assert result.rejections.empty
    return result


def farthest(a: ef.Result, b: ef.Result) -> float:
    """The largest difference between two results' parameters."""
    return max(
        float(np.abs(value - b.parameters[seed][name]).max())
        for seed, parameters in a.parameters.items()
        for name, value in parameters.items()
    )


@both_engines
@pytest.mark.parametrize("method", RANKED, ids=repr)
@pytest.mark.sample(3)
def test_votes_are_the_same_bit_for_bit(method: Method, engine: str, uneven: Federation) -> None:
    secure, plain = (run(method, uneven, engine=engine, secure=secure) for secure in (True, False))
    assert (plain.log["replied"] < 9).any()
    assert farthest(secure, plain) == 0
    np.testing.assert_array_equal(secure.metrics["value"], plain.metrics["value"])


@both_engines
@pytest.mark.parametrize("method", AVERAGED, ids=repr)
@pytest.mark.sample(4)
def test_models_are_the_same_but_for_rounding(method: Method, engine: str, uneven: Federation) -> None:
    secure, plain = (run(method, uneven, engine=engine, secure=secure) for secure in (True, False))
    loss = plain.metrics[(plain.metrics["metric"] == "loss") & (plain.metrics["scope"] == "global")]
    assert (loss.groupby(["seed", "split"], observed=True)["value"].nunique() > 1).all()  # it moves
    assert farthest(secure, plain) < 1e-6
    observed = [name for name in ("fair_clients", "undefined_clients", "lambda", "beta") if name in plain.log]
    np.testing.assert_array_equal(secure.log[observed], plain.log[observed])


def test_a_fair_set_that_is_empty_or_undefined(uneven: Federation) -> None:
    """Validation rows of one group leave F undefined, for the global model too."""
    one_group = dataclasses.replace(uneven, validation=uneven.validation[uneven.rows.s[uneven.validation] == 1])
    method = methods.FairFate(lambda0=0.4)
    secure, plain = (run(method, one_group, secure=secure) for secure in (True, False))
    assert (secure.log["undefined_clients"] == secure.log["replied"]).all()
    assert not secure.log["fair_clients"].any()
    assert farthest(secure, plain) < 1e-6


def test_settings_that_share_lanes_share_the_validation_rows(uneven: Federation) -> None:
    values, seeds = [0.3, 0.9], (0, 1)
    made = {**SETTINGS, "model": ef.models.Logistic(), "secure": True, "seeds": seeds}
    method = methods.FairFate(lambda0=0.4)
    swept = ef.simulate(method, uneven, over={"lambda_max": values}, **made)  # type: ignore[arg-type]
    for value in values:
        alone = ef.simulate(method.with_hyper(lambda_max=value), uneven, **made)  # type: ignore[arg-type]
        for seed in seeds:
            for name, parameter in alone.parameters[seed].items():
                np.testing.assert_allclose(parameter, swept.parameters[value, seed][name], atol=1e-6)


def test_what_travels_is_counted(uneven: Federation) -> None:
    """The validation rows go down with every message."""
    validation = 80 * (4 * 4 + 8 + 8 + 4)  # 4 inputs, label, group, mask
    messages = run(methods.FedVal(), uneven, secure=True).messages
    train = messages[messages["phase"] == "train"].iloc[0]
    theta, keys = 4 * (4 * 3 + 3 + 3 + 1), 9 * 32
    assert VALIDATION in train["down"]
    assert train["bytes_down"] == theta + validation + keys


@pytest.mark.parametrize(
    "method",
    [methods.FairFate(as_published=True), methods.E2FL(groups="rank-clustering", num_groups=2)],
    ids=lambda method: method.name,
)
def test_what_no_sums_can_do_is_refused(method: Method, uneven: Federation) -> None:
    with pytest.raises(ConfigError, match=f"which {method.name} needs with these hyperparameters"):
        run(method, uneven, secure=True)


def test_a_method_that_is_wrong_about_itself_tells_nothing(uneven: Federation) -> None:
    class Wrong(methods.FedVal):
        @property
        def summed(self) -> Method | None:
            return self  # whose replies are stacked

    with pytest.raises(ConfigError, match="phase 'train' of fedval needs single replies"):
        run(Wrong(), uneven, secure=True)


def test_how_few_clients_a_sum_is_over_is_logged_and_said(uneven: Federation) -> None:
    """So that it is seen where one was a single client's reply."""
    known = {"clients_per_round": "all", "dropout": 0.0, "secure": True, "rounds": 2}
    has_rows = uneven.train.sizes > 0
    fewest = min(int((has_rows & (uneven.client_groups == q)).sum()) for q in range(3))
    for method in (methods.IFCA(num_groups=3, known=True), methods.E2FL()):
        assert (run(method, uneven, **known).log["fewest_clients"] == fewest).all()

    for clients, groups in ((1, [2, *[0] * 5, *[1] * 4]), (2, [2, 2, *[0] * 4, *[1] * 4])):
        small = dataclasses.replace(uneven, client_groups=np.array(groups))
        for method in (methods.IFCA(num_groups=3, known=True), methods.E2FL()):
            result = run(method, small, **known)
            assert (result.log["fewest_clients"] == clients).all()
            (note,) = [note for note in result.notes if note.kind == "sum-of-few"]
            assert note.fields == {"method": method.name, "one": 4 * (clients == 1), "rounds": 4, "of": 4}
            plain = run(method, small, **{**known, "secure": False})
            assert "sum-of-few" not in {note.kind for note in plain.notes}


def test_no_sum_is_over_fewer_clients_than_asked_for(uneven: Federation) -> None:
    """What a client of a small group adds is zeros, so that the sum of its group tells nothing of it."""
    alone = dataclasses.replace(uneven, client_groups=np.array([2, 2, *[0] * 4, *[1] * 4]))
    known = {"clients_per_round": "all", "dropout": 0.0, "secure": True, "rounds": 2, "seeds": (0,)}
    result = run(methods.IFCA(num_groups=3, known=True, min_clients=3), alone, **known)
    start = run(methods.IFCA(num_groups=3, known=True, min_clients=11), alone, **known)  # nobody adds anything
    for name, value in result.parameters[0].items():
        moved = np.abs(value - start.parameters[0][name]).reshape(3, -1).max(1)
        assert (moved[:2] > 1e-3).all()
        assert moved[2] == 0
    assert (result.log["fewest_clients"] == 3).all()  # of four, one has no rows
    assert "sum-of-few" not in {note.kind for note in result.notes}
    fair = run(methods.FairFate(lambda0=0.4, min_clients=4), uneven, secure=True)
    few = fair.log["fair_clients"] < 4
    assert few.any()
    assert not few.all()
    np.testing.assert_array_equal(fair.log["fewest_clients"], np.where(few, 0, fair.log["fair_clients"]))


def test_a_result_says_that_clients_saw_the_validation_rows(uneven: Federation) -> None:
    for secure in (True, False):
        result = run(methods.FairFate(), uneven, secure=secure)
        assert [note.fields for note in result.notes if note.kind == "validation-shown"] == [{"rows": 80}] * secure
        if secure:
            np.testing.assert_array_equal(result.log["fewest_clients"], result.log["fair_clients"])


@pytest.mark.parametrize(("q", "size"), [(10.0, 0.1), (10.0, 6.0), (0.5, 1.0)])
def test_qffl_with_weights_that_no_sum_holds(q: float, size: float) -> None:
    """Squared errors of 0.01 to the tenth power are 1e-20, which is nothing at 30 binary places; of 36, 4e15."""
    rng = np.random.default_rng(0)

    def rows(n: int) -> tuple[np.ndarray, ...]:
        x = rng.normal(size=(n, 3)).astype(np.float32)
        return x, (size * (1 + 0.2 * rng.random() + 0.1 * x[:, 0])).astype(np.float32), rng.integers(0, 2, n)

    fed = Federation.from_arrays([rows(40) for _ in range(5)], test=rows(50), task="regression")
    local = ef.Local(epochs=1, batch_size=8, learning_rate=0.01)
    options = {"model": ef.models.Linear(), "rounds": 4, "seeds": [0], "local": local, "engine": "reference"}
    plain, secure = (
        ef.simulate(methods.QFFL(q), fed, **options, secure=secure)  # type: ignore[arg-type]
        for secure in (False, True)
    )
    assert secure.rejections.empty
    for name, value in plain.parameters[0].items():
        assert np.abs(value).max() > 1e-4 * size
        np.testing.assert_allclose(secure.parameters[0][name], value, rtol=1e-4, atol=1e-6 * np.abs(value).max())
