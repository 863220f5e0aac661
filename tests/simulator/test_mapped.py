"""Training with rows that stay in a file: the bits of the same rows in memory, and what is refused beforehand."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from own_data import federation_of

import equifed as ef
from equifed import methods, randomness
from equifed.config import load_config
from equifed.errors import ConfigError, DataError
from equifed.federation import Federation
from equifed.results import Result
from equifed.settings import RunSettings
from equifed.simulation import Simulation
from equifed.simulator import job as jobs
from equifed.simulator import make_job, tables
from equifed.store import Store

INPUTS = [f"f{i}" for i in range(6)]
QUICK: dict[str, Any] = {
    "rounds": 3,
    "clients_per_round": 9,
    "dropout": 0.2,
    "local": ef.Local(epochs=2, batch_size=8, learning_rate=0.2),
}


def table(clients: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    owner = np.repeat(rng.permutation(clients), rng.integers(1, 25, clients))
    x = rng.normal(size=(len(owner), len(INPUTS))).astype(np.float32)
    group = rng.choice(["a", "b"], len(owner))
    label = (x[:, 0] - x[:, 1] + (group == "a") + rng.normal(size=len(owner)) > 0).astype(int)
    return pd.DataFrame(x, columns=INPUTS).assign(who=owner, group=group, label=label)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mapped")
    table(80, 0).to_parquet(folder / "rows.parquet", row_group_size=200)
    table(10, 1).to_parquet(folder / "test.parquet")
    table(10, 2).to_parquet(folder / "validation.parquet")
    return folder


def mapped(place: Path, **options: Any) -> Federation:
    given = {"client": "who", "label": "label", "sensitive": "group", "cache": place / "cache", "features": INPUTS}
    return federation_of(place / "rows.parquet", **{**given, **options})  # type: ignore[arg-type]


def from_tables(place: Path) -> Federation:
    """The same federation without any of the code that maps it: the files' rows as arrays, clients as they come."""

    def arrays(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return rows[INPUTS].to_numpy(), rows["label"].to_numpy(), rows["group"].to_numpy(dtype=object)

    rows = pd.read_parquet(place / "rows.parquet")
    own = {str(name): arrays(part) for name, part in rows.groupby("who", sort=False)}
    test, validation = (arrays(pd.read_parquet(place / f"{name}.parquet")) for name in ("test", "validation"))
    return Federation.from_arrays(list(own.values()), ids=list(own), test=test, validation=validation)


def assert_same(one: Result, other: Result) -> None:
    """Bit by bit."""
    assert one.parameters.keys() == other.parameters.keys()
    for key, parameters in one.parameters.items():
        for name, value in parameters.items():
            np.testing.assert_array_equal(value, other.parameters[key][name])
    for frame in ("metrics", "messages", "rejections", "counts"):
        pd.testing.assert_frame_equal(getattr(one, frame), getattr(other, frame), check_exact=True)


@pytest.mark.parametrize("engine", ["lanes", "reference"])
@pytest.mark.parametrize("method", ["fedavg", "kffl", "q-ffl", "fair-fate", "fedfb", "scaffold", "fedavg-gr"])
@pytest.mark.sample(5)
def test_the_bits_are_those_of_the_rows_in_memory(method: str, engine: str, place: Path) -> None:
    """Of FedFB all clients are asked before round 1; with SCAFFOLD they keep something; the others sample."""
    files = {"test_file": place / "test.parquet", "validation_file": place / "validation.parquet"}
    here, there = from_tables(place), mapped(place, scaling="none", cache=place / "unscaled", **files)
    options = {**QUICK, "model": ef.models.Logistic(), "engine": engine, "seeds": [3, 8]}
    assert_same(*(ef.simulate(methods.make(method), fed, **options) for fed in (here, there)))


@pytest.mark.parametrize("kernel", ["fused", "clients", "traced"])
def test_every_kernel_and_a_sweep(kernel: str, place: Path) -> None:
    """With another federation for every seed, whose rows and standardisation differ."""
    feds = [mapped(place, test=0.1, validation=0.1, seed=seed) for seed in (0, 1)]
    options = {**QUICK, "model": ef.models.MLP([7]), "kernel": kernel, "over": {"mu": [0.0, 0.3]}}
    both = feds, [fed.in_memory() for fed in feds]
    assert_same(*(ef.simulate(methods.make("fedprox"), each, **options) for each in both))


@pytest.mark.full
@pytest.mark.parametrize("method", [*methods.REGISTRY, "fedavg+fair", "fedavg+ditto", "fedavg@adam"])
def test_all_methods(method: str, place: Path) -> None:
    made = methods.make(method, **({"groups": "lowest-loss", "num_groups": 2} if method == "e2fl" else {}))
    if made.pooled or made.needs_client_groups:
        pytest.skip("not for such a federation")
    fed = mapped(place, test=0.1, validation=0.1)
    deep = method in ("frl", "e2fl", "fedper", "fedrep")  # which rank edges, or keep a layer
    model = ef.models.MLP([7], bias=method not in ("frl", "e2fl")) if deep else ef.models.Logistic()
    options = {**QUICK, "model": model, "dropout": 0.0}
    assert_same(*(ef.simulate(made, each, **options) for each in (fed, fed.in_memory())))


@pytest.mark.parametrize("engine", ["lanes", "reference"])
def test_decisions_fitted_on_the_rows_of_everybody(engine: str, place: Path) -> None:
    fed = mapped(place, test=0.2)
    options = {**QUICK, "model": ef.models.Logistic(), "engine": engine}
    assert_same(*(ef.simulate(methods.make("fedavg+fair"), each, **options) for each in (fed, fed.in_memory())))


@pytest.mark.parametrize("method", ["fedavg", "fedfb", "afl", "fedavg+fair"])
def test_clients_that_take_turns(method: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A phase that asks more clients than are worked on at once: the same bits wherever the rows are, and the same
    numbers as all at once, but for the order in which they are added up."""
    fed = mapped(place, test=0.2)
    options = {**QUICK, "model": ef.models.Logistic(), "dropout": 0.0, "clients_per_round": 40, "seeds": [0, 1]}
    whole = ef.simulate(methods.make(method), fed.in_memory(), **options)
    for stage in tables.AT_ONCE:
        monkeypatch.setitem(tables.AT_ONCE, stage, 32)
    turns = [ef.simulate(methods.make(method), each, **options) for each in (fed, fed.in_memory())]
    assert_same(*turns)
    for seed, parameters in whole.parameters.items():
        for name, value in parameters.items():
            np.testing.assert_allclose(turns[0].parameters[seed][name], value, rtol=1e-4, atol=1e-6)
    pd.testing.assert_frame_equal(turns[0].messages, whole.messages)


def test_no_more_rows_are_in_memory_than_the_window_holds(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = mapped(place, test=0.2)
    options = {**QUICK, "dropout": 0.0, "clients_per_round": 40}
    whole = ef.simulate(methods.make("fedfb"), fed, model=ef.models.Logistic(), **options)
    largest = int(fed.train.sizes.max())
    monkeypatch.setattr(tables, "WINDOW_BYTES", 4 * len(INPUTS) * (largest + 20))
    settings = RunSettings(**options)
    simulation = Simulation(make_job(methods.make("fedfb"), fed, ef.models.Logistic(), settings))
    for _ in simulation.rounds():
        pass
    held = simulation.engine.tables  # type: ignore[attr-defined]
    assert len(held.x) == len(fed.test) + largest + 20 < fed.train.sizes.sum()
    for name, value in whole.parameters[0].items():
        np.testing.assert_allclose(simulation.result().parameters[0][name], value, rtol=1e-4, atol=1e-6)


def test_the_window_holds_the_largest_clients_of_a_round(place: Path) -> None:
    """And what is brought in are the rows of those who are asked, once for each federation."""
    feds = [mapped(place, test=0.1, seed=seed) for seed in (0, 1)]
    settings = RunSettings(**{**QUICK, "clients_per_round": 5, "seeds": [0, 1]})
    job = make_job(methods.make("fedavg"), feds, ef.models.Logistic(), settings)
    made = tables.make_tables(job)
    assert made.window is not None
    assert made.window.size == sum(int(np.sort(fed.train.sizes)[-5:].sum()) for fed in feds)
    run, client = np.array([0, 1, 0, 1]), np.array([5, 5, 2, 40])
    n = made.count_rows(run, client)
    start = made.bring(run, client, n)
    for r, k, begin, count in zip(run, client, start, n, strict=True):
        rows = made.index[begin : begin + count].long()
        expected = feds[r].in_memory()
        np.testing.assert_array_equal(made.x[rows], expected.rows.x[expected.train[k]])
        np.testing.assert_array_equal(made.y[rows], expected.rows.y[expected.train[k]])
        np.testing.assert_array_equal(made.s[rows], expected.rows.s[expected.train[k]])


# -- a run on disk -----------------------------------------------------------------------------------------------------

CONFIG = """
[data]
mapped = "rows.parquet"
client = "who"
cache = "cache of the run"
label = "label"
sensitive = "group"
features = ["f0", "f1", "f2"]
{more}
[run]
rounds = 4
seeds = [0, 5]
[method]
name = "kffl"
"""


@pytest.mark.parametrize("more", ["test = 0.1", 'test-file = "test.parquet"', ""])
@pytest.mark.sample(1)
def test_a_resumed_run_has_the_bits_of_a_whole_one(more: str, place: Path, tmp_path: Path) -> None:
    (place / "run.toml").write_text(CONFIG.format(more=more))
    config, store = load_config(place / "run.toml"), Store(tmp_path / "runs")
    assert config.data.test == {"test = 0.1": 0.1, "": 0.01}.get(more, 0.0)
    with store.start(config) as recording:
        assert recording.simulation.job.cohort_size == 80  # 100 where there are as many
        for _ in recording.rounds():
            pass
        whole = recording.finish()
    recording = store.start(config)
    with contextlib.suppress(KeyboardInterrupt), recording:
        for step in recording.rounds():
            if step.round == 2:
                raise KeyboardInterrupt
    with store.resume(recording.folder.id) as resumed:
        for _ in resumed.rounds():
            pass
        assert_same(resumed.finish(), whole)
    again = load_config(recording.folder.path / "config.toml")
    assert again.fingerprint(tmp_path) == config.fingerprint(tmp_path)
    # other rows are other data
    recording = store.start(config)
    with contextlib.suppress(KeyboardInterrupt), recording:
        for _ in recording.rounds():
            raise KeyboardInterrupt
    rows = pd.read_parquet(place / "rows.parquet")
    try:
        rows.assign(f0=rows["f0"] + 1).to_parquet(place / "rows.parquet")
        with pytest.raises(DataError, match="have changed since it started"):
            store.resume(recording.folder.id)
    finally:
        rows.to_parquet(place / "rows.parquet", row_group_size=200)


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ('mapped = "x.parquet"', "client"),
        ('mapped = "x.parquet"\nclient = "who"\nmin-group = 5', "min-group"),
        ('mapped = "x.parquet"\nclient = "who"\ntest = 0.1\ntest-file = "y.csv"', "test-file"),
        ('table = "x.parquet"\nclient = "who"', "client"),
        ('mapped = "x.parquet"\nclient = "who"\n[partition]\nkind = "iid"\nnum-partitions = 3', "partition"),
    ],
)
def test_keys_of_a_configuration_that_do_not_go_together(lines: str, key: str, tmp_path: Path) -> None:
    head, _, tail = lines.partition("\n[")
    text = f'[method]\nname = "fedavg"\n[data]\nlabel = "label"\nsensitive = "group"\n{head}\n' + (tail and f"[{tail}")
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "run.toml")
    assert key in caught.value.where


# -- refused before round 1 --------------------------------------------------------------------------------------------


def refused(fed: Federation, method: str, **settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        make_job(methods.make(method), fed, ef.models.Logistic(), RunSettings(**settings))
    return str(caught.value)


def test_what_would_need_all_the_memory_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = mapped(place, test=0.2)
    assert "the rows of all clients in one place" in refused(fed, "centralized-kernel")
    monkeypatch.setattr(jobs, "MOST_STATES", 4 * 7 * 80 - 1)  # a logistic model of 6 inputs for 80 clients
    assert "every client keeps 7 numbers between rounds: for 80 clients and 1 runs" in refused(fed, "scaffold")
    make_job(methods.make("fedavg"), fed, ef.models.Logistic(), RunSettings())
    monkeypatch.setattr(jobs, "MOST_STATES", 2**30)
    monkeypatch.setattr(jobs, "MOST_MODELS", 79)
    monkeypatch.setattr(jobs, "FEW_NUMBERS", 6)
    assert "each would be evaluated on all test rows: 80 models, above 79" in refused(fed, "local")
    make_job(methods.make("local"), fed.in_memory(), ef.models.Logistic(), RunSettings())
    with pytest.raises(ConfigError, match="all have their rows in memory or all in files"):
        make_job(methods.make("fedavg"), [fed, fed.in_memory()], ef.models.Logistic(), RunSettings(seeds=[0, 1]))


# -- many clients ------------------------------------------------------------------------------------------------------


def test_keys_are_made_for_those_who_are_asked(uneven: Federation) -> None:
    job = make_job(methods.make("fedavg"), uneven, ef.models.Logistic(), RunSettings())
    some = np.array([3, 1, 3])
    expected = [randomness.key(uneven.ids[k]) for k in some]
    assert job.client_keys(some).tolist() == expected
    assert job._client_keys[1].sum() == 2
    everyone = np.arange(uneven.num_clients)
    assert job.client_keys(everyone).tolist() == [randomness.key(name) for name in uneven.ids]


def test_a_result_of_many_clients_does_not_list_them(
    monkeypatch: pytest.MonkeyPatch, place: Path, tmp_path: Path
) -> None:
    from equifed.results import collect, stored
    from equifed.store import load_result, save_result

    monkeypatch.setattr(collect, "LISTED", 50)
    monkeypatch.setattr(stored, "LISTED", 50)
    fed = mapped(place, test=0.2)
    result = ef.simulate(methods.make("fedavg"), fed, model=ef.models.Logistic(), rounds=2, clients_per_round=5)
    assert result.info["clients"] == []
    assert result.info["num_clients"] == 80
    save_result(tmp_path / "result", result)
    again = load_result(tmp_path / "result")
    x = fed.rows.x[fed.test]
    np.testing.assert_array_equal(again.predict(x), result.predict(x))
    result.to_html(tmp_path / "page.html")
    assert "80" in (tmp_path / "page.html").read_text()


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the memory of a process is read from /proc")
def test_memory_is_that_of_a_round_not_of_the_data(tmp_path: Path) -> None:
    """40,000 clients are 166 MB. Training with them takes hardly more than with 2,000."""
    program = Path(__file__).resolve().parents[2] / "benchmarks" / "million.py"

    def step(name: str, folder: Path, **options: Any) -> dict[str, float]:
        command = [sys.executable, str(program), "--step", name, "--folder", str(folder)]
        command += ["--options", json.dumps(options)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=300)
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found

    found = {}
    for clients in (2_000, 40_000):
        folder = tmp_path / str(clients)
        folder.mkdir()
        step("write", folder, clients=clients)
        step("prepare", folder)
        found[clients] = step("train", folder, rounds=60, per_round=100, method="fedavg", warm=True)
    data = 40_000 * 20 * (50 * 4 + 8) / 1e6
    few, many = found[2_000], found[40_000]
    assert many["peak"] - few["peak"] < data / 4
    assert many["anonymous"] - few["anonymous"] < data / 8
