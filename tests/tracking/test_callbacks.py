"""Callbacks: what they are told is what the result says, and whatever they do, the numbers stay."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from store.silos import write_config, write_silos

import equifed as ef
from equifed.config import load_config
from equifed.config.sections import identity
from equifed.flower.agreement import Setting
from equifed.registry import trust
from equifed.store import Store
from equifed.tracking import Callback, Callbacks, Round, Run, get_callbacks, make
from equifed.tracking.mlflow import USUAL as USUAL_MLFLOW
from equifed.tracking.names import REGISTRY, VARIABLE
from equifed.tracking.series import KEPT, values_of
from equifed.tracking.series import MODEL as MODEL_FOLDER

MODEL = ef.models.Logistic()
USUAL = {"rounds": 3, "seeds": [0, 4], "clients_per_round": 4}


class Heard(Callback):
    """Keeps what it is told."""

    def __init__(self, given: str = "") -> None:
        self.given, self.told, self.rounds = given, [], []

    def run_started(self, run):
        self.told.append("started")
        self.run = run

    def round_finished(self, round):
        self.told.append(round.number)
        self.rounds.append(round)

    def run_finished(self, result, folder):
        self.told.append("finished")
        self.result, self.folder = result, folder

    def run_stopped(self, error):
        self.told.append(type(error).__name__)


class Silent(Callback):
    """Takes nothing."""

    def __init__(self) -> None:
        pass


class Broken(Callback):
    def __init__(self, when: str = "round_finished") -> None:
        self.calls = 0
        setattr(self, when, self.fail)

    def fail(self, *facts):
        self.calls += 1
        raise OSError("no\nroute to host")


def test_what_is_told_is_what_the_result_says(uneven):
    heard = Heard()
    method = ef.methods.FedProx(mu=0.1)
    result = ef.simulate(method, uneven, model=MODEL, eval_every=2, dropout=0.3, callbacks=[heard], **USUAL)
    assert heard.told == ["started", 1, 2, 3, "finished"]
    assert heard.result is result
    assert heard.folder is None
    run = heard.run
    assert (run.method, run.hyper_parameters["mu"], run.seeds, run.settings) == (
        "fedprox",
        0.1,
        [0, 4],
        result.settings,
    )
    assert (run.over, run.clients, run.done, run.folder) == (({},), uneven.num_clients, 0, None)
    assert run.parameters({})["local.learning_rate"] == result.settings.local.learning_rate
    assert [round.evaluated for round in heard.rounds] == [False, True, True]
    assert [round.last for round in heard.rounds] == [False, False, True]
    log = pd.concat([round.log for round in heard.rounds])
    pd.testing.assert_frame_equal(
        log.sort_values(["seed", "round"], ignore_index=True),
        result.log.sort_values(["seed", "round"], ignore_index=True),
    )
    order = ["seed", "round", "split", "scope", "metric"]
    told = pd.concat([round.metrics.astype(dict.fromkeys(order[2:], str)) for round in heard.rounds])
    kept = result.metrics.astype(dict.fromkeys(order[2:], str))
    pd.testing.assert_frame_equal(
        told.sort_values(order, ignore_index=True), kept.sort_values(order, ignore_index=True), check_categorical=False
    )
    last = heard.rounds[-1].overall(["accuracy"])["accuracy"]
    np.testing.assert_allclose(last, result.final().sort_values("seed")["accuracy"])


def test_values_are_means_over_seeds_and_undefined_ones_are_left_out(uneven):
    heard = Heard()
    over = {"mu": [0.0, 0.1]}
    result = ef.simulate(ef.methods.FedProx(), uneven, model=MODEL, over=over, callbacks=[heard], **USUAL)
    assert heard.run.over == ({"mu": 0.0}, {"mu": 0.1})
    found = [values for round in heard.rounds for values in values_of(round)]
    assert [(values.setting["mu"], values.round) for values in found] == [
        (mu, number) for number in (1, 2, 3) for mu in (0.0, 0.1)
    ]
    frame = result.metrics
    for setting, number, values in found:
        own = frame[(frame["mu"] == setting["mu"]) & (frame["round"] == number) & (frame["split"] == "test")]
        everyone = own[(own["scope"] == "global") & (own["metric"] == "accuracy")]["value"].to_numpy()
        assert values["test/accuracy"] == pytest.approx(np.mean(everyone))
        assert values["test/accuracy_std"] == pytest.approx(np.std(everyone, ddof=1))
        group = own[(own["scope"] == f"group:{uneven.groups[1]}") & (own["metric"] == "selection_rate")]["value"]
        assert values[f"test/group/{uneven.groups[1]}/selection_rate"] == pytest.approx(group.mean())
        assert values["log/sampled"] == 4
        assert not any("client" in name and "/client:" in name for name in values)
        assert not np.isnan([*values.values()]).any()


@pytest.mark.parametrize("when", ["run_started", "round_finished", "run_finished"])
def test_one_that_fails_is_switched_off_and_changes_nothing(uneven, when):
    plain = ef.simulate(ef.methods.FedAvg(), uneven, model=MODEL, **USUAL)
    broken, heard = Broken(when), Heard()
    with pytest.warns(ef.EquifedWarning, match=r"^Broken is disabled.*OSError: no\\nroute to host$") as warned:
        result = ef.simulate(ef.methods.FedAvg(), uneven, model=MODEL, callbacks=[broken, heard], **USUAL)
    assert len(warned) == broken.calls == 1
    assert heard.told == ["started", 1, 2, 3, "finished"]
    pd.testing.assert_frame_equal(result.metrics, plain.metrics)
    for seed, parameters in plain.parameters.items():
        for name, value in parameters.items():
            np.testing.assert_array_equal(result.parameters[seed][name], value)


def test_who_interrupts_or_fails_is_told(uneven):
    heard = Heard()
    with pytest.raises(KeyboardInterrupt), Callbacks([heard]).follow(None):
        raise KeyboardInterrupt
    assert heard.told == ["started", "KeyboardInterrupt"]


def test_a_warning_shows_no_password(uneven):
    class Refused(Callback):
        def run_started(self, run):
            raise OSError("https://me:secret@host/path does not answer")

    with pytest.warns(ef.EquifedWarning, match="https://host/path does not answer") as warned:
        ef.simulate(ef.methods.FedAvg(), uneven, model=MODEL, rounds=1, seeds=1, callbacks=[Refused()])
    assert "secret" not in str(warned[0].message)


# -- names -------------------------------------------------------------------------------------------------------------


def test_names(monkeypatch, tmp_path):
    trust(__name__)
    assert make(f"{__name__}:Heard").given == ""
    assert make(f"{__name__}:Heard:sqlite:///a b").given == "sqlite:///a b"
    assert make(f"tensorboard:{tmp_path}").folder == tmp_path
    assert not [*get_callbacks([])]
    monkeypatch.setenv("EQUIFED_TRACK", f"{__name__}:Heard '{__name__}:Heard:two words'")
    assert [each.given for each in get_callbacks([])] == ["", "two words"]
    assert not [*get_callbacks(["none"])]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mlfow", "Unknown tracker 'mlfow'. Did you mean 'mlflow'?"),
        ("tensorboard", "TensorBoard needs a folder: tensorboard:FOLDER."),
        (f"{__name__}:Silent:x", "does not accept the argument 'x'"),
        (f"{__name__}:MODEL", "must be a class derived from equifed.tracking.Callback"),
        ("nowhere.at.all:Tracker", "there is no module nowhere.at.all"),
        (7, "must be callbacks"),
    ],
)
def test_names_that_are_wrong(text, said):
    with pytest.raises(ef.ConfigError) as caught:
        get_callbacks([text])
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("name", "module"), [("mlflow", "mlflow"), ("tensorboard:x", "tensorboard"), ("wandb", "wandb")]
)
def test_a_missing_extra_is_said_before_anything_is_computed(monkeypatch, uneven, tmp_path, name, module):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    heard = Heard()
    with pytest.raises(ef.ConfigError, match=rf"pip install 'equifed\[{module}\]'"):
        ef.simulate(ef.methods.FedAvg(), uneven, model=MODEL, callbacks=[heard, name])
    assert heard.told == []
    assert not [*tmp_path.iterdir()]


# -- runs with a folder ------------------------------------------------------------------------------------------------


def test_who_is_told_is_no_part_of_what_a_run_is(tmp_path):
    write_silos(tmp_path)
    plain = load_config(write_config(tmp_path))
    tracked = load_config(write_config(tmp_path, run={"track": [f"{__name__}:Heard"]}))
    other = load_config(write_config(tmp_path, run={"rounds": 7}))
    assert plain.fingerprint() == tracked.fingerprint() != other.fingerprint()
    assert tracked.resolved()["run"]["track"] == [f"{__name__}:Heard"]
    assert identity(plain.resolved()) == identity(tracked.resolved())


def test_a_recorded_run_is_told_what_is_on_the_disk_and_goes_on(tmp_path):
    write_silos(tmp_path)
    config = load_config(write_config(tmp_path, run={"track": [f"{__name__}:Heard"], "name": "mine"}))
    store = Store(tmp_path / "runs")
    recording = store.start(config)
    (heard,) = recording.callbacks
    with contextlib.suppress(KeyboardInterrupt), recording:
        for step in recording.rounds():
            assert recording.folder.rounds_done() == step.round == heard.told[-1]
            if step.round == 2:
                raise KeyboardInterrupt
    assert heard.told == ["started", 1, 2, "KeyboardInterrupt"]
    assert (heard.run.title, heard.run.id) == ("mine", recording.folder.id)
    with store.resume("mine") as again:
        (heard,) = again.callbacks
        for _ in again.rounds():
            pass
        result = again.finish()
    assert heard.told == ["started", 3, 4, 5, 6, "finished"]
    assert heard.run.done == 2
    assert (heard.run.folder, heard.folder) == (recording.folder.path, recording.folder.path)
    assert heard.result is result


def test_an_interruption_while_the_end_is_told_leaves_the_run_finished(tmp_path):
    class Slow(Callback):
        def run_finished(self, result, folder):
            raise KeyboardInterrupt

    write_silos(tmp_path)
    store = Store(tmp_path / "runs")
    recording = store.start(load_config(write_config(tmp_path, run={"rounds": 1})), callbacks=Callbacks([Slow()]))
    with contextlib.suppress(KeyboardInterrupt), recording:
        for _ in recording.rounds():
            pass
        recording.finish()
        pytest.fail("was not interrupted")
    assert recording.folder.is_finished()
    assert store.entries()[0].status == "finished"


@pytest.mark.parametrize(
    ("track", "said"),
    [
        (["mlflow:http://me:secret@host/"], "run.track: has an address with a password"),
        ("mlflow", "run.track: must be a list"),
        ([7], "run.track"),
    ],
)
def test_a_configuration_that_is_wrong(tmp_path, track, said):
    with pytest.raises(ef.ConfigError) as caught:
        load_config(write_config(tmp_path, run={"track": track}))
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def test_an_unknown_tracker_is_said_with_its_key_and_leaves_no_folder(tmp_path):
    write_silos(tmp_path)
    path = write_config(tmp_path, run={"track": ["mlfow"]})
    with pytest.raises(ef.ConfigError, match=r"run\.track: Unknown tracker"):
        Store(tmp_path / "runs").start(load_config(path))
    assert not [folder for folder in (tmp_path / "runs").iterdir() if folder.is_dir()]


def test_what_is_shipped_to_silos_names_no_tracker(tmp_path):
    write_silos(tmp_path)
    schema = ef.Federation.from_tables(
        [tmp_path / f"silo-{k}.csv" for k in range(4)], ef.Columns(label="label", sensitive="sex")
    ).schema
    (tmp_path / "schema.json").write_text(schema.to_json())
    files = {f"silo-{k}": f"silo-{k}.csv" for k in range(4)}
    sections = {"data": {"files": files, "schema": "schema.json"}, "run": {"seeds": 1}}
    path = write_config(tmp_path, **sections)
    text = path.read_text().replace('label = "label"\n', "").replace('sensitive = "sex"\n', "")
    path.write_text(text)
    plain = Setting.load(path)
    told = dataclasses.replace(plain.config, run=dataclasses.replace(plain.config.run, track=("mlflow",)))
    assert Setting(told, plain.schema).digest == plain.digest
    path.write_text(text.replace("[run]", '[run]\ntrack = ["mlflow"]'))
    with pytest.raises(ef.ConfigError, match=r"run\.track: This file is shipped to every silo.*\$EQUIFED_TRACK"):
        Setting.load(path)


# -- the page ----------------------------------------------------------------------------------------------------------

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tracking.md").read_text(encoding="utf-8")


def test_the_callback_of_the_page(uneven, capsys):
    names: dict = {}
    exec(PAGE.split("```python\n")[2].split("```")[0], names)
    result = ef.simulate(ef.methods.FedAvg(), uneven, model=MODEL, callbacks=[names["Alarm"]("-1")], **USUAL)
    said = capsys.readouterr().out
    assert f"fedavg on {uneven.name}, seeds [0, 4]" in said
    assert [f"Round {number}: a gap above -1.0" in said for number in (1, 2, 3)] == [True] * 3
    assert str(result.summary().T) in said


def test_the_page_names_what_is_told():
    table = PAGE[PAGE.index("| function |") :].split("\n\n")[0]
    lines = {line.split("(")[0].strip("| `"): line for line in table.splitlines()[2:]}
    functions = {name for name, value in vars(Callback).items() if callable(value) and not name.startswith("_")}
    assert lines.keys() == functions
    for kind, line in ((Run, "run_started"), (Round, "round_finished")):
        for name in re.findall(r"`(\w+)(?:\(\w+\))?`", lines[line].split("|")[2]):
            assert name in dir(kind) or name in kind.__dataclass_fields__
    assert set(Run.__dataclass_fields__) <= set(re.findall(r"`(\w+)`", lines["run_started"]))


def test_the_page_names_every_tracker():
    for name in REGISTRY:
        assert re.search(rf"^\| `{name}", PAGE, re.MULTILINE)
    for name in (VARIABLE, *USUAL_MLFLOW, *KEPT, f"{MODEL_FOLDER}/"):
        assert name in PAGE
