"""What a curious server can do with single replies: everything in plain mode, nothing with secure sums. And what it can
do with sums."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict

from equifed import Columns, methods, randomness
from equifed.config import load_federations
from equifed.data import Schema
from equifed.fixed_point import PLACES
from equifed.flower import secure_engine
from equifed.flower.agreement import Setting
from equifed.flower.masks import MASKED
from equifed.flower.vectors import Vector
from equifed.methods._kernels import phi
from equifed.protocol import Method
from flower.inprocess import federate, nodes, setting
from flower.secure import EVERYONE, Traffic, keyed_nodes, secure_setting

SEED = 3
"""Of all runs here, and known to whoever has the configuration."""
Numbers = dict[str, np.ndarray]
"""What a server reads off a reply, by field."""


# -- reading a reply ---------------------------------------------------------------------------------------------------


def plain(content: RecordDict) -> Numbers:
    return {name: array.numpy() for name, array in content["fields"].items()}


def unmasked(content: RecordDict, kind: str, like: Numbers) -> Numbers:
    """The numbers that would be there if the masks were nothing: the server knows where which field is."""
    vector = Vector(kind, {name: torch.from_numpy(value) for name, value in like.items()}, {})
    masked = content["fields"][MASKED].numpy().view(np.int64)
    return {name: value.numpy() for name, value in vector.decode(masked[: vector.size]).items()}


# -- attacks: functions of what was read -------------------------------------------------------------------------------


def sizes_by_kffl(said: Numbers, round: int = 1) -> np.ndarray:
    """Rows of the two groups: `sum_s` adds up one of two vectors for each row, both of which follow from the seed."""
    draw = methods.KFFL().round[0].draws["phi_s"]
    (made,) = randomness.make_draws(SEED, round, {"phi_s": draw}, SimpleNamespace(sensitive_size=1)).values()  # type: ignore[arg-type]
    vectors = phi(torch.tensor([[0.0], [1.0]]), torch.from_numpy(made).float(), methods.KFFL().kernel_width)
    sizes, *_ = np.linalg.lstsq(vectors.numpy().astype(float).T, said["sum_s"].astype(float))
    return np.rint(sizes)


def sizes_by_fairfed(said: Numbers) -> np.ndarray:
    return said["counts"].astype(float).reshape(2, -1).sum(1)


def label_rate(said: Numbers, learning_rate: float) -> float:
    """Of logistic regression after one step on all rows: the gradient of the bias is the mean of p - y, and p is near
    one half as long as the model has hardly begun."""
    (bias,) = (value for name, value in said.items() if name.endswith("bias"))
    step = bias / said["rows"]
    return float(np.clip(0.5 + float(step.ravel()[0]) / learning_rate, 0, 1))


# -- group sizes -------------------------------------------------------------------------------------------------------

ATTACKS: dict[str, tuple[Method, str, Callable[[Numbers], np.ndarray]]] = {
    "kffl": (methods.KFFL(), "train.fair1", sizes_by_kffl),
    "fairfed": (methods.FairFed(), "train.measure", sizes_by_fairfed),
}


def traffic_of(made: Setting, folder: Path) -> Traffic:
    traffic = Traffic()
    grid = keyed_nodes(made, None, folder / "state", fault=traffic) if made.secure else nodes(made, traffic)
    federate(made, grid, folder / "runs")
    return traffic


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.sample(1)
def test_group_sizes_are_read_off_plain_replies_and_not_off_masked_ones(name: str, silos: Path, tmp_path: Path) -> None:
    method, kind, attack = ATTACKS[name]
    open_to_all = setting(silos, method, run=EVERYONE | {"rounds": 1})
    fed = load_federations(open_to_all.config)[0]
    truth = dict(zip(fed.ids, fed.cells().sum(2), strict=True))
    seen = traffic_of(open_to_all, tmp_path / "plain").of(kind)
    assert all((attack(plain(seen[silo])) == truth[silo]).all() for silo in truth)
    hidden = traffic_of(secure_setting(silos, method, run={"rounds": 1}), tmp_path / "secure").of(kind)
    assert hidden.keys() == truth.keys()
    guesses = {silo: attack(unmasked(hidden[silo], kind, plain(seen[silo]))) for silo in truth}
    assert not any((guesses[silo] == truth[silo]).any() for silo in truth)
    # who takes everybody for the average is nearer
    average = dict.fromkeys(truth, np.mean(list(truth.values()), axis=0))
    error, guessing = (np.mean([abs(told[silo] - truth[silo]) for silo in truth]) for told in (guesses, average))
    assert error > guessing


# -- label rates -------------------------------------------------------------------------------------------------------

RATES = {"a": 0.1, "b": 0.25, "c": 0.4, "d": 0.6, "e": 0.75, "f": 0.9}


@pytest.fixture(scope="module")
def unlike(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Silos whose labels are unlike, and hardly follow from anything."""
    folder, rng = tmp_path_factory.mktemp("unlike"), np.random.default_rng(2)
    frames = {}
    for silo, rate in RATES.items():
        y = (np.arange(400) < 400 * rate).astype(int)
        frames[silo] = pd.DataFrame(rng.normal(size=(400, 4)), columns=list("wxyz")).assign(
            sex=rng.choice(["f", "m"], 400), bought=np.array(["no", "yes"])[rng.permutation(y)]
        )
        frames[silo].to_parquet(folder / f"{silo}.parquet")
    schema = Schema.infer(pd.concat(frames.values()), Columns(label="bought", sensitive="sex", positive="yes"))
    (folder / "schema.json").write_text(schema.to_json())
    return folder


def test_label_rates_are_read_off_plain_updates_and_not_off_masked_ones(unlike: Path, tmp_path: Path) -> None:
    sections = {
        "data": {"validation-file": None, "client-groups": None, "test": 0.0},
        "model": {"kind": "logistic", "hidden": None, "activation": None},
        "local": {"local-epochs": 1, "batch-size": 1000, "learning-rate": 0.1},
    }
    once = {"rounds": 1}
    seen = traffic_of(setting(unlike, run=EVERYONE | once, **sections), tmp_path / "plain").of("train.train")
    hidden = traffic_of(secure_setting(unlike, run=once, **sections), tmp_path / "secure").of("train.train")

    def error(read: Callable[[str], Numbers]) -> float:
        return float(np.mean([abs(label_rate(read(silo), 0.1) - rate) for silo, rate in RATES.items()]))

    guessing = float(np.mean([abs(rate - 0.5) for rate in RATES.values()]))
    assert error(lambda silo: plain(seen[silo])) < 0.1 * guessing
    # masks are drawn anew every time: what is read off them is mostly 0 or 1, and may by chance be nearer than guessing
    assert error(lambda silo: unmasked(hidden[silo], "train.train", plain(seen[silo]))) > 0.5 * guessing


# -- all that the server receives --------------------------------------------------------------------------------------

RECORDS = {
    "about": {"client", "exchange", "public", "signature", "roster", "min-count"},
    "fields": {MASKED},
    "secure": {"commitment", "for", "shares", "shares-of", "seeds-of", "seeds", "openers-of", "openers"},
}


FULL = pytest.mark.full


@pytest.mark.parametrize(
    "method",
    [methods.KFFL(), pytest.param(methods.FedAvgGR(), marks=FULL), pytest.param(methods.FairFed(), marks=FULL)],
    ids=lambda each: each.name,
)
def test_recorded_traffic_has_no_plain_field(method: Method, silos: Path, tmp_path: Path) -> None:
    """Masked vectors, sealed shares, keys, and who answers which exchange: nothing else comes from a silo, in any
    message, and the bits of what is masked are those of coins."""
    traffic = traffic_of(secure_setting(silos, method), tmp_path)
    kinds = {kind for _, kind, _, _ in traffic.seen}
    assert {"query.join", "query.introduce", "query.unmask", "train.train", "evaluate.counts"} <= kinds
    vectors = []
    for silo, kind, _, content in traffic.seen:
        assert set(content) <= RECORDS.keys()
        for name, record in content.items():
            assert set(record) <= RECORDS[name], (kind, name)
            if name != "fields":
                assert isinstance(record, ConfigRecord)
        assert content["about"]["client"] == silo
        assert ("fields" in content) == (kind not in ("query.join", "query.unmask"))
        if "fields" in content:
            assert content["fields"][MASKED].dtype == "uint64"
            vectors.append(content["fields"][MASKED].numpy())
    numbers = np.concatenate(vectors)
    bits = np.unpackbits(numbers.view(np.uint8).reshape(-1, 8), axis=1).mean(0)
    assert np.abs(bits - 0.5).max() < 5 * 0.5 / np.sqrt(len(numbers))
    assert len(np.unique(numbers)) == len(numbers)
    # small numbers, such as counts, would all be below this
    assert (numbers.view(np.int64) < 2 ** (PLACES + 20)).mean() < 0.6


def test_the_difference_of_two_sums_is_the_silo_that_was_missing(
    silos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What secure sums do not hide: docs/privacy.md says so."""
    made = secure_setting(silos, methods.KFFL(), flower={"deadline": 0.05})
    sums, honest = {}, secure_engine.sum_replies

    def listening(link, journal, question, *args, **more):
        done = honest(link, journal, question, *args, **more)
        if question.kind == "train.fair1":
            sums[question.number] = done.total
        return done

    def fault(silo: str, message: Message, reply: Message) -> Message | None:
        asked = message.content["about"].get("round"), message.metadata.message_type
        return None if silo == "b" and asked == (2, "train.fair1") else reply

    monkeypatch.setattr(secure_engine, "sum_replies", listening)
    grid = keyed_nodes(made, None, tmp_path / "state", fault=fault)
    federate(made, grid, tmp_path / "runs")
    open_to_all = setting(silos, methods.KFFL(), run=EVERYONE | {"rounds": 1})
    like = plain(traffic_of(open_to_all, tmp_path / "plain").of("train.fair1")["b"])
    vector = Vector("train.fair1", {name: torch.from_numpy(value) for name, value in like.items()}, {})
    with_b, without = (
        sizes_by_kffl({name: value.numpy() for name, value in vector.decode(total[: vector.size]).items()}, round)
        for round, total in enumerate(sums.values(), 1)
    )
    fed = load_federations(open_to_all.config)[0]
    assert (with_b - without).tolist() == fed.cells().sum(2)[fed.ids.index("b")].tolist()
