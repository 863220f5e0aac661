"""The trackers, read back with their own tools: MLflow from a real store, TensorBoard from its files; W&B, which is not
installed, is a stand-in that notes the calls."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from flower.inprocess import federate, nodes, setting, write_files
from store.silos import write_config, write_silos
from typer.testing import CliRunner

import equifed as ef
from equifed.cli.app import app
from equifed.store import Store
from equifed.tracking.mlflow import _Names


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("EQUIFED_RUNS", "EQUIFED_TRACK", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    write_silos(tmp_path)
    return tmp_path


def invoke(*args: str, code: int = 0) -> str:
    outcome = CliRunner().invoke(app, list(args), env={"COLUMNS": "160", "NO_COLOR": "1"})
    assert outcome.exit_code == code, outcome.stderr
    return outcome.stderr


def stopping_after(monkeypatch, number: int) -> None:
    """Ctrl-C when this round has been recorded and told."""
    from equifed.cli import progress

    def interrupt(self, round):
        if round.number == number:
            raise KeyboardInterrupt

    monkeypatch.setattr(progress.Watch, "round_finished", interrupt)


def curve(result: ef.Result, scope: str, metric: str, **setting: float) -> list[float]:
    """Means over seeds, round by round."""
    frame = result.metrics
    own = frame[(frame["scope"] == scope) & (frame["metric"] == metric) & (frame["split"] == "test")]
    for name, value in setting.items():
        own = own[own[name] == value]
    return [float(np.mean(own[own["round"] == number]["value"])) for number in sorted(own["round"].unique())]


# -- MLflow ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def uri(tmp_path_factory):
    """An empty store; making its tables takes a while."""
    from equifed.tracking import MLflow

    folder = tmp_path_factory.mktemp("mlflow")
    address = f"sqlite:///{folder}/mlflow.db"
    # MLflow puts a folder for artifacts where it is started
    with contextlib.chdir(folder), contextlib.redirect_stderr(io.StringIO()) as said:
        MLflow(address)
    assert said.getvalue() == ""
    return address


@pytest.fixture
def client(uri):
    import mlflow
    from mlflow.telemetry import get_telemetry_client

    assert get_telemetry_client() is None  # it tells its makers nothing
    return mlflow.MlflowClient(tracking_uri=uri)


def found(client, folder) -> list:
    experiment = client.get_experiment_by_name("equifed")
    return client.search_runs([experiment.experiment_id], f"tags.`equifed.run` = '{folder.id}'")


def history(client, run: str, name: str) -> dict[int, float]:
    return {each.step: each.value for each in client.get_metric_history(run, name)}


@pytest.mark.full
def test_a_run_in_mlflow_is_the_run_also_after_an_interruption(place, uri, client, monkeypatch):
    write_config(place, run={"rounds": 4, "name": "first"})
    with monkeypatch.context() as patched:
        stopping_after(patched, 2)
        said = invoke("run", "experiment.toml", "--track", f"mlflow:{uri}", code=130)
    assert f"Tracked by MLflow at {uri}, experiment 'equifed'" in said
    folder = Store().find("first")
    (run,) = found(client, folder)
    assert run.info.status == "KILLED"
    invoke("resume", "first")
    (again,) = found(client, folder)
    assert (again.info.run_id, again.info.status, again.info.run_name) == (run.info.run_id, "FINISHED", "first")
    result = folder.result()
    parameters = again.data.params
    assert parameters["method"] == "fedavg"
    assert float(parameters["local.learning_rate"]) == 0.1
    assert json.loads(parameters["seeds"]) == [0, 3]
    assert (parameters["rounds"], parameters["clients_per_round"]) == ("4", "3")
    for name, scope, metric in (
        ("test/accuracy", "global", "accuracy"),
        ("test/demographic_parity_difference", "global", "demographic_parity_difference"),
        ("test/group/f/selection_rate", "group:f", "selection_rate"),
    ):
        values = history(client, run.info.run_id, name)
        assert list(values) == [1, 2, 3, 4]
        assert list(values.values()) == pytest.approx(curve(result, scope, metric))
    assert history(client, run.info.run_id, "log/replied") == dict.fromkeys((1, 2, 3, 4), 3.0)
    kept = {each.path for each in client.list_artifacts(run.info.run_id)}
    assert {"report.html", "config.toml", "result.json", "environment.json"} <= kept
    assert "checkpoint.safetensors" not in kept
    page = Path(client.download_artifacts(run.info.run_id, "report.html")).read_text(encoding="utf-8")
    assert "fedavg" in page
    config = Path(client.download_artifacts(run.info.run_id, "config.toml")).read_text(encoding="utf-8")
    assert config == (folder.path / "config.toml").read_text(encoding="utf-8")


@pytest.mark.full
def test_a_sweep_in_mlflow_has_a_run_for_each_setting_below_its_own(place, uri, client):
    write_config(place, run={"rounds": 2}, method={"name": "fedprox"}, sweep={"mu": [0.0, 0.5]})
    invoke("run", "experiment.toml", "--track", f"mlflow:{uri}")
    folder = Store().find("latest")
    runs = {run.data.tags["equifed.setting"]: run for run in found(client, folder)}
    assert runs.keys() == {"", "mu=0.0", "mu=0.5"}
    assert "method.mu" not in runs[""].data.params  # no run was with one value
    for mu in (0.0, 0.5):
        (one,) = client.search_runs(
            [runs[""].info.experiment_id], f"params.`method.mu` = '{mu}' AND tags.`equifed.run` = '{folder.id}'"
        )
        assert one.info.run_id == runs[f"mu={mu}"].info.run_id
    assert all(run.info.status == "FINISHED" for run in runs.values())
    for mu in (0.0, 0.5):
        run = runs[f"mu={mu}"]
        assert run.data.tags["mlflow.parentRunId"] == runs[""].info.run_id
        assert float(run.data.params["method.mu"]) == mu
        values = history(client, run.info.run_id, "test/accuracy")
        assert list(values.values()) == pytest.approx(curve(folder.result(), "global", "accuracy", mu=mu))
    assert "report.html" in {each.path for each in client.list_artifacts(runs[""].info.run_id)}


def test_the_model_package_is_kept_and_groups_may_be_called_anything(place, uri, client, tmp_path):
    rng = np.random.default_rng(0)
    x, s = rng.normal(size=(90, 3)), rng.integers(0, 3, 90)
    names = ["≥ 25, f/x", "..", "a%b"]
    rows = (x, (x[:, 0] > 0).astype(int), np.array(names)[s])
    fed = ef.Federation.from_arrays([rows, rows], test=rows, validation=rows)
    tracker = ef.tracking.MLflow(uri, experiment="odd")
    ef.simulate(ef.methods.FedAvg(), fed, model=ef.models.Logistic(), rounds=1, seeds=1, callbacks=[tracker])
    (run,) = client.search_runs([client.get_experiment_by_name("odd").experiment_id])
    assert {name for name in run.data.metrics if name.endswith("/selection_rate")} >= {
        "test/group/_ 25_ f/x/selection_rate",
        "test/group/_/selection_rate",
        "test/group/a_b/selection_rate",
    }
    (tmp_path / "RUN" / "model").mkdir(parents=True)
    (tmp_path / "RUN" / "model" / "weights.safetensors").write_bytes(b"w")
    tracker.run_finished(SimpleNamespace(metrics=SimpleNamespace(empty=True)), tmp_path / "RUN")
    inside = [each.path for each in client.list_artifacts(run.info.run_id, "model")]
    assert inside == ["model/weights.safetensors"]


def test_no_two_names_become_one():
    names = _Names()
    assert [names[name] for name in ("t/a,b", "t/a;b", "t/a,b", "t/...", "")] == [
        "t/a_b",
        "t/a_b 2",
        "t/a_b",
        "t/_",
        "_",
    ]
    assert len(names["x" * 1000]) < 250


@pytest.mark.filterwarnings("default::equifed.EquifedWarning")
def test_a_server_that_does_not_answer_does_not_end_a_run(place, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    write_config(place, run={"rounds": 1})
    said = invoke("run", "experiment.toml", "--track", "mlflow:http://127.0.0.1:9")
    assert "Warning: MLflow at http://127.0.0.1:9, experiment 'equifed' is disabled" in said
    assert Store().find("latest").is_finished()


# -- TensorBoard -------------------------------------------------------------------------------------------------------


def events(folder: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return read


def test_tensorboard_has_every_round_once(place, monkeypatch):
    write_config(place, run={"rounds": 4, "checkpoint-every": 3})
    with monkeypatch.context() as patched:
        stopping_after(patched, 2)
        assert "Tracked by TensorBoard in" in invoke("run", "experiment.toml", "--track", "tensorboard:tb", code=130)
    invoke("resume", "latest")  # from the beginning, since there is no checkpoint
    folder = Store().find("latest")
    read, result = events(place / "tb" / folder.id), folder.result()
    for name, scope, metric in (
        ("test/accuracy", "global", "accuracy"),
        ("test/group/m/selection_rate", "group:m", "selection_rate"),
    ):
        scalars = read.Scalars(name)
        assert [each.step for each in scalars] == [1, 2, 3, 4]
        assert [each.value for each in scalars] == pytest.approx(curve(result, scope, metric), rel=1e-6)
    (text,) = [name for name in read.Tags()["tensors"] if name.startswith("settings")]
    assert b"| method | fedavg |" in read.Tensors(text)[0].tensor_proto.string_val[0]


def test_tensorboard_of_sweeps_and_of_runs_without_a_folder(place, uneven):
    common = {"model": ef.models.Logistic(), "rounds": 2, "seeds": 1, "callbacks": ["tensorboard:tb"]}
    result = ef.simulate(ef.methods.FedProx(), uneven, over={"mu": [0.0, 1.0]}, **common)
    ef.simulate(ef.methods.FedProx(), uneven, **common)
    first, second = sorted(path.name for path in (place / "tb").iterdir())
    assert second == f"{first}-2"
    for mu in (0.0, 1.0):
        scalars = events(place / "tb" / first / f"mu={mu}").Scalars("test/accuracy")
        assert [each.value for each in scalars] == pytest.approx(curve(result, "global", "accuracy", mu=mu), rel=1e-6)


def test_a_federation_is_tracked_by_its_servers_environment(place, monkeypatch):
    write_files(place)
    monkeypatch.setenv("EQUIFED_TRACK", f"tensorboard:{place}/tb")
    made = setting(place)
    result = federate(made, nodes(made), place / "runs")
    scalars = events(place / "tb" / "run").Scalars("test/accuracy")
    assert [each.step for each in scalars] == sorted(result.metrics["round"].unique())
    assert [each.value for each in scalars] == pytest.approx(curve(result, "global", "accuracy"), rel=1e-6)


# -- Weights & Biases --------------------------------------------------------------------------------------------------


@pytest.fixture
def wandb(monkeypatch):
    """Notes what is called; `calls` has a line for each."""
    module, calls = ModuleType("wandb"), []

    class Artifact:
        def __init__(self, name, type):
            self.files = []

        def add_file(self, path):
            assert Path(path).is_file()
            self.files.append(Path(path).name)

        def add_dir(self, path, name):
            self.files.append(name)

    def init(**given):
        calls.append(("init", given))
        return SimpleNamespace(
            id=given.get("id", "made-up"),
            define_metric=lambda name, step_metric: calls.append(("define", name, step_metric)),
            log=lambda values: calls.append(("log", values)),
            log_artifact=lambda kept: calls.append(("artifact", kept.files)),
            finish=lambda exit_code=0: calls.append(("finish", exit_code)),
        )

    module.init, module.Artifact, module.calls = init, Artifact, calls
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_wandb_is_offline_unless_it_is_told_otherwise(place, wandb, monkeypatch):
    write_config(place, run={"rounds": 2, "track": ["wandb:fair"]})
    invoke("run", "experiment.toml")
    folder = Store().find("latest")
    (_, given), defined, *logged, artifact, finished = wandb.calls
    assert (given["project"], given["mode"], given["id"], given["resume"]) == ("fair", "offline", folder.id, "allow")
    assert given["config"]["method"] == "fedavg"
    assert defined == ("define", "*", "round")
    assert [values["round"] for _, values in logged] == [1, 2]
    expected = curve(folder.result(), "global", "accuracy")
    assert [values["test/accuracy"] for _, values in logged] == pytest.approx(expected)
    assert "test/group/f/accuracy" in logged[0][1]
    assert {"report.html", "config.toml"} <= set(artifact[1])
    assert finished == ("finish", 0)
    wandb.calls.clear()
    monkeypatch.setenv("WANDB_MODE", "online")
    stopping_after(monkeypatch, 1)
    sweep = {"method": {"name": "fedprox"}, "sweep": {"mu": [0.0, 0.5]}}
    write_config(place, run={"rounds": 2, "track": ["wandb"]}, **sweep)
    invoke("run", "experiment.toml", code=130)
    (_, given), _, *logged, finished = wandb.calls
    assert (given["mode"], given["project"]) == ("online", "equifed")
    assert given["config"]["over"] == [{"mu": 0.0}, {"mu": 0.5}]
    assert ["mu=0.0/test/accuracy" in values for _, values in logged] == [True, False]
    assert finished == ("finish", 1)


def test_trackers_of_compare_and_none(place, wandb, needs):
    needs("compas")
    write_config(place, run={"rounds": 1, "track": ["wandb"]})
    invoke("run", "experiment.toml", "--track", "none")
    assert not wandb.calls
    said = invoke("compare", "compas", "--track", "mlfow", "--methods", "fedavg", "--rounds", "1", code=2)
    assert "--track: Unknown tracker 'mlfow'" in said
