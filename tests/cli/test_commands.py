"""Every command: what it prints where, its JSON, its exit code."""

from __future__ import annotations

import errno
import html
import importlib
import io
import json
import math
import os
import re
import sys

import pandas as pd
import pytest
from rich.console import Console
from store.faults import Fake
from store.silos import write_config
from typer.testing import CliRunner

from equifed import methods
from equifed.cli.app import app
from equifed.config import load_config
from equifed.errors import ConfigError
from equifed.methods import REGISTRY, FedAvg
from equifed.options import options_of
from equifed.settings import Local, RunSettings
from equifed.simulation import Simulation
from equifed.store import RunFolder, Store

SMALL = ["--rounds", "2", "--seeds", "2"]


def data(outcome) -> object:
    """The JSON on stdout, which must be all of it."""
    assert outcome.exit_code == 0, outcome.stderr
    return json.loads(outcome.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_run_saves_and_tells(place, invoke):
    outcome = invoke("run", str(write_config(place)), "--set", "run.rounds=3", "--set", "run.name=mine")
    assert outcome.exit_code == 0, outcome.stderr
    assert "accuracy" in outcome.stdout
    assert "±" in outcome.stdout
    assert "round 3/3" in outcome.stderr
    assert "round" not in outcome.stdout.replace("per client and round", "")
    assert re.search(r"equifed show \S+-fedavg-\w{4}", outcome.stderr)
    assert len(list((place / "runs").glob("*/result.json"))) == 1


def test_run_json(place, invoke):
    found = data(invoke("run", str(write_config(place)), "--json"))
    assert found["status"] == "finished"
    assert found["method"] == "fedavg"
    assert found["seeds"] == [0, 3]
    assert 0 <= found["metrics"]["accuracy"]["mean"] <= 1
    assert found["bytes_up"] > 0
    one = data(invoke("run", str(write_config(place)), "--json", "--set", "run.seeds=1"))
    assert one["metrics"]["accuracy"]["std"] is None


def test_a_long_run_prints_some_twenty_lines(place, invoke):
    outcome = invoke("run", str(write_config(place, run={"rounds": 100, "seeds": 1}, local={"batch-size": "all"})))
    lines = [line for line in outcome.stderr.splitlines() if "round" in line]
    assert 15 <= len(lines) <= 22
    assert "round 100/100" in lines[-1]


def test_run_with_a_sweep_section(place, invoke):
    path = write_config(place, method={"name": "fedprox"}, sweep={"mu": [0.0, 1.0]})
    outcome = invoke("run", str(path))
    assert "dominated" in outcome.stdout
    shown = data(invoke("show", "latest", "--json"))
    assert shown["runs"] == 4
    assert "dominated" in invoke("show", "latest").stdout


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("accuracy < 0", 0),
        ("accuracy<=1", 1),
        ("demographic_parity_difference > 0.99", 0),
        ("loss>=1e-9", 1),
    ],
)
def test_fail_if(place, invoke, text, code):
    outcome = invoke("run", str(write_config(place)), "--fail-if", "accuracy < 0", "--fail-if", text)
    assert outcome.exit_code == code
    assert ("Check failed" in outcome.stderr) == bool(code)
    assert invoke("show", "latest", "--fail-if", text).exit_code == code


@pytest.mark.full
def test_fail_if_the_constraint_is_violated(place, invoke):
    """Two rounds from nothing do not meet a tight constraint; a loose one is met at once."""
    path = str(write_config(place, method={"name": "fedfair"}, sweep={"epsilon": [0.0, 9.0]}))
    outcome = invoke("run", path, "--set", "method.step-size=2.0", "--fail-if", "constraint  violated")
    assert outcome.exit_code == 1, outcome.stderr
    assert "The constraint is not met at the end of 2 of 4 runs (first: seed 0, epsilon 0)" in outcome.stderr
    assert "Check failed: fedfair, epsilon=0: constraint violated at the end for seed 0, 3" in outcome.stderr
    assert "epsilon=9" not in outcome.stderr
    assert invoke("show", "latest", "--fail-if", "constraint violated").exit_code == 1
    loose = str(write_config(place, method={"name": "fedfair+eo", "epsilon": 9.0}))
    assert invoke("run", loose, "--fail-if", "constraint violated").exit_code == 0
    other = invoke("run", str(write_config(place)), "--fail-if", "constraint violated")
    assert other.exit_code == 2
    assert "fedavg has no constraint" in other.stderr
    alone = str(write_config(place, method={"name": "separate-training", "epsilon": 0.0}))
    outcome = invoke("run", alone, "--fail-if", "constraint violated")
    assert outcome.exit_code == 1, outcome.stderr
    assert "Check failed: separate-training: constraint violated at the end for seed 0, 3" in outcome.stderr


@pytest.mark.full
def test_compare_checks_the_constraints_of_the_methods_that_have_one(invoke, tiny):
    both = ("compare", tiny, "--rounds", "1", "--seeds", "1", "--fail-if", "constraint violated", "--methods")
    outcome = invoke(*both, "fedavg,fedfair", "--set", "fedfair.epsilon=9")
    assert outcome.exit_code == 0, outcome.stderr
    outcome = invoke(*both, "fedavg,fedfair", "--set", "fedfair.epsilon=0", "--set", "fedfair.step-size=2.0")
    assert outcome.exit_code == 1, outcome.stderr
    assert "Check failed: fedfair: constraint violated" in outcome.stderr
    outcome = invoke(*both, "fedavg,fedprox")
    assert outcome.exit_code == 2
    assert "none of fedavg, fedprox has a constraint to train under" in outcome.stderr


@pytest.mark.full
def test_post_processed_methods(place, invoke, needs):
    needs("compas")
    described = data(invoke("methods", "fedprox+ceo", "--json"))
    assert {each["name"] for each in described["hyper_parameters"]} == {"mu", "fit", "cost"}
    assert [phase["phase"] for phase in described["phases"]] == ["train", "fit"]
    path = write_config(place, method={"name": "fedprox+eo", "mu": 0.5, "fit": "global"})
    assert data(invoke("run", str(path), "--json"))["method"] == "fedprox+eo"
    assert invoke("show", "latest").exit_code == 0
    wrong = invoke("run", str(write_config(place, method={"name": "fedprox+eoo"})))
    assert wrong.exit_code == 2
    assert "method.name" in wrong.stderr
    assert "Did you mean '+eo'" in wrong.stderr
    compared = invoke("compare", "compas", *SMALL, "--methods", "fedavg,fedavg+eo", "--set", "fedavg+eo.fit=global")
    assert compared.exit_code == 0, compared.stderr
    assert "fedavg+eo" in compared.stdout


@pytest.mark.full
def test_a_method_whose_name_ends_in_a_plus(place, invoke, needs):
    needs("compas")
    names = "fedmgda+,fedmgda++eo"
    options = ("--set", "fedmgda+.epsilon=0.1", "--set", "fedmgda++eo.fit=global", "--json")
    assert invoke("compare", "compas", *SMALL, "--methods", names, *options).exit_code == 0
    path = write_config(place, method={"name": "fedmgda+", "epsilon": 0.1})
    assert data(invoke("run", str(path), "--json"))["method"] == "fedmgda+"
    assert invoke("show", "latest").exit_code == 0
    assert data(invoke("methods", "fedmgda+", "--json"))["citation"].startswith("FedMGDA+: Hu et al.")


def test_compare_leaves_out_what_the_data_cannot_have(place, invoke, monkeypatch, needs):
    """A method that nobody asked for by name does not cost the others their results."""
    needs("compas")
    kinds = {name: REGISTRY[name] for name in ("fedavg", "agnostic-fair")}
    monkeypatch.setattr(REGISTRY, "usable", lambda: kinds)

    def refuse(self, task):
        raise ConfigError("three groups are too many")

    monkeypatch.setattr(methods.AgnosticFair, "check", refuse)
    outcome = invoke("compare", "compas", *SMALL)
    assert outcome.exit_code == 0, outcome.stderr
    assert "agnostic-fair is left out: three groups are too many" in outcome.stderr
    assert invoke("compare", "compas", *SMALL, "--methods", "fedavg,agnostic-fair").exit_code == 2
    assert invoke("compare", "compas", *SMALL, "--clients-per-round", "999").exit_code == 2


def test_fail_if_is_read_before_the_run(place, invoke):
    path = str(write_config(place))
    for text, said in (
        ("acuracy > 1", "Did you mean 'accuracy'"),
        ("accuracy", "METRIC OP NUMBER"),
        ("a > b", "OP"),
        ("accuracy < nan", "finite"),
        ("accuracy > -inf", "finite"),
    ):
        outcome = invoke("run", path, "--fail-if", text)
        assert outcome.exit_code == 2
        assert said in outcome.stderr
    assert not list(place.glob("runs/*/status.json"))


def test_an_undefined_metric_fails_the_check(place, invoke):
    for path in place.glob("silo-*.csv"):
        path.write_text(path.read_text().replace(",m,", ",f,"))
    outcome = invoke("run", str(write_config(place)), "--fail-if", "demographic_parity_difference > 0.5")
    assert outcome.exit_code == 1
    assert "demographic_parity_difference is undefined for 2 of 2 seeds" in outcome.stderr


@pytest.fixture
def half_undefined(monkeypatch):
    """Equalized odds and demographic parity are undefined for seed 3, and so is group m's accuracy."""
    whole = Simulation.result

    def result(self):
        made = whole(self)
        frame = made.metrics
        lost = frame["metric"].isin(["equalized_odds_difference", "demographic_parity_difference"])
        lost |= (frame["metric"] == "accuracy") & (frame["scope"] == "group:m")
        frame.loc[lost & (frame["seed"] == 3), "value"] = float("nan")
        return made

    monkeypatch.setattr(Simulation, "result", result)


def test_a_metric_that_is_undefined_for_one_seed_fails_the_check_and_is_marked(place, invoke, half_undefined):
    path = str(write_config(place))
    outcome = invoke("run", path, "--fail-if", "equalized_odds_difference > 0.99")
    assert outcome.exit_code == 1
    assert "equalized_odds_difference is undefined for 1 of 2 seeds" in outcome.stderr
    assert re.search(r"\d\.\d{3} \(1 of 2\)", outcome.stdout)
    assert "(k of n): the mean is over k runs" in outcome.stdout
    assert "Diverged" not in outcome.stdout
    shown = invoke("show", "latest")
    assert re.search(r"equalized_odds_difference +\d\.\d{3} \(1 of 2\)", shown.stdout)
    assert re.search(r"\naccuracy +0\.\d+ +0\.\d+ \(1 of 2\)", shown.stdout)  # by group
    assert "(1 undefined)" in invoke("list").stdout
    found = data(invoke("show", "latest", "--json"))
    assert found["metrics"]["equalized_odds_difference"]["defined"] == 1
    assert found["metrics"]["accuracy"]["defined"] == 2
    assert "(k of n)" not in invoke("run", path, "--set", "run.seeds=[0]").stdout


def test_an_undefined_seed_is_marked_in_a_sweep(place, invoke, half_undefined):
    path = write_config(place, method={"name": "fedprox"}, sweep={"mu": [0.0, 1.0]})
    outcome = invoke("run", str(path))
    assert outcome.stdout.partition("\n\n")[0].count("1 of 2") == 2
    found = data(invoke("run", str(path), "--json"))
    assert [(point["defined"], point["runs"]) for point in found["pareto"]] == [(1, 2), (1, 2)]


def test_no_test_rows(place, invoke):
    outcome = invoke("run", str(write_config(place, data={"test": 0.0})))
    assert outcome.exit_code == 0, outcome.stderr
    assert "no test rows, so nothing was measured" in outcome.stdout
    assert "Diverged" not in outcome.stdout
    assert "no test rows" in invoke("show", "latest").stdout


def test_divergence_is_told(place, invoke, monkeypatch):
    whole = Simulation.result

    def result(self):
        made = whole(self)
        made.metrics.loc[made.metrics["metric"] == "loss", "value"] = float("inf")
        return made

    monkeypatch.setattr(Simulation, "result", result)
    outcome = invoke("run", str(write_config(place)))
    assert "Diverged (infinite or undefined loss): fedavg" in outcome.stdout


EVIL = "[/red] evil [bold]x[/] :smile: \x1b[31m"


def test_names_are_shown_as_they_are(place, invoke):
    for path in place.glob("silo-*.csv"):
        path.write_text(path.read_text().replace(",m,", ",[/b]<i>,"))
    path = write_config(place, run={"name": EVIL})
    assert invoke("run", str(path)).exit_code == 0
    shown = r"[/red] evil [bold]x[/] :smile: \x1b[31m"
    listed = invoke("list")
    assert listed.exit_code == 0, listed.stderr
    assert shown in listed.stdout
    outcome = invoke("show", EVIL)
    assert outcome.exit_code == 0, outcome.stderr
    assert "[/b]<i>" in outcome.stdout
    assert "\x1b" not in outcome.stdout + listed.stdout
    wrong = invoke("show", "[/x]")
    assert wrong.exit_code == 2
    assert "[/x]" in wrong.stderr


def test_a_learning_rate_of_zero_is_refused(invoke, tiny):
    outcome = invoke("compare", tiny, "--methods", "fedavg", "--learning-rate", "0")
    assert outcome.exit_code == 2
    assert "--learning-rate" in outcome.stderr


def test_the_reports_place_is_tried_before_training(place, invoke, tiny):
    (place / "file").write_text("")
    for wrong in ("/proc/x/y.html", "file/y.html", "."):
        outcome = invoke("compare", tiny, "--methods", "fedavg", *SMALL, "--report", wrong)
        assert outcome.exit_code == 2
        assert "--report" in outcome.stderr
    assert not list(place.glob("runs/*/status.json"))
    assert invoke("run", str(write_config(place))).exit_code == 0
    assert invoke("report", "latest", "-o", "file/y.html").exit_code == 2


def test_the_table_is_printed_before_the_report_is_written(place, invoke, tiny, monkeypatch):
    def full(*args, **values):
        raise OSError("the disk is full")

    monkeypatch.setattr("equifed.report.page.write_page", full)
    outcome = invoke("compare", tiny, "--methods", "fedavg", *SMALL)
    assert outcome.exit_code == 4
    assert "fedavg" in outcome.stdout
    assert "the disk is full" in outcome.stderr


def test_a_methods_own_hyper_parameters(place, invoke, tiny):
    options = [tiny, "--methods", "fedavg,fedprox,fair-fate", *SMALL, "--json"]
    fairness = '["demographic_parity_ratio", "equal_opportunity_ratio"]'
    own = ["fedprox.mu=0.5", f"fair-fate.fairness={fairness}", "fair-fate.as-published=true", "local.batch-size=16"]
    found = data(invoke("compare", *options, *(part for text in own for part in ("--set", text))))
    fedavg, fedprox, fair_fate = found["methods"]
    assert fedavg["hyper_parameters"] == {}
    assert fedprox["hyper_parameters"]["mu"] == 0.5
    assert fair_fate["hyper_parameters"]["fairness"] == json.loads(fairness)
    assert fair_fate["hyper_parameters"]["as_published"] is True
    assert found["settings"]["local"]["batch-size"] == 16
    kept = data(invoke("show", fair_fate["run"], "--json"))
    assert kept["config"]["method"]["fairness"] == json.loads(fairness)
    assert kept["hyper_parameters"] == fair_fate["hyper_parameters"]
    for wrong, said in (
        ("fedprox.nu=1", "Did you mean 'mu'"),
        ("fedavg.x=1", "nothing to set"),
        ("fedprx.mu=1", "Did you mean 'fedprox'"),
        ("fedmom.beta=1", "not among the methods"),
        ("method.mu=1", "fedprox.mu=0.1"),
        ("mu=0.1", "section.key=value"),
    ):
        outcome = invoke("compare", *options, "--set", wrong)
        assert outcome.exit_code == 2, wrong
        assert said in outcome.stderr


@pytest.mark.full
def test_compare_by_other_columns(needs, place, invoke):
    needs("german")
    options = ("compare", "german", *SMALL, "--methods", "fedavg,local", "--sensitive", "sex,foreign_worker")
    outcome = invoke(*options, "--min-group", "40")
    assert outcome.exit_code == 0, outcome.stderr
    assert "groups by sex, foreign_worker" in outcome.stdout
    # a group-by of the table: the two with fewer than 40 rows
    merged = "were merged into one group, 'other (merged)': female & no (7 rows), male & no (30 rows)"
    assert merged in " ".join(outcome.stderr.split())
    assert "other (merged)" in invoke("show", "latest").stdout
    found = data(invoke(*options, "--json"))
    assert found["settings"]["data"] == {
        "name": "german", "preset": "default", "sensitive": ["sex", "foreign_worker"]
    }  # fmt: skip
    wrong = invoke(*options[:-1], "sex,job,houses")
    assert wrong.exit_code == 2
    assert "--sensitive: Unknown sensitive column of german 'houses'. Did you mean 'housing'?" in wrong.stderr
    assert invoke(*options, "--min-group", "5000").exit_code == 3


def test_compare_leaves_out_endless_tests_of_personal_models(place, invoke, tiny, monkeypatch):
    monkeypatch.setattr("equifed.studies.comparing.PERSONAL_TESTS", 100)
    some = {name: REGISTRY[name] for name in ("fedavg", "local")}
    monkeypatch.setattr(REGISTRY, "usable", lambda: some)
    outcome = invoke("compare", tiny, *SMALL, "--json")
    assert data(outcome)["left_out"] == ["local"]
    assert "local is left out: every evaluation would test 4 models on 60 rows each" in outcome.stderr
    assert data(invoke("compare", tiny, *SMALL, "--json", "--methods", "local"))["left_out"] == []


def test_compare_with_a_partition_that_does_not_say_how_many_clients_it_makes(place, invoke, tiny):
    outcome = invoke(
        "compare", tiny, *SMALL, "--methods", "fedavg", "--partition", "natural", "--set", "partition.column=sex"
    )
    assert outcome.exit_code == 0, outcome.stderr
    assert "2 clients, 2 per round" in outcome.stdout
    assert list(place.glob("runs/compare-*.html"))


def test_what_is_wrong_with_the_last_method_is_said_before_the_first_trains(place, invoke, tiny):
    outcome = invoke("compare", tiny, "--preset", "bare", *SMALL, "--methods", "fedavg,fair-fate")
    assert outcome.exit_code == 2
    assert "validation set" in outcome.stderr
    assert not list(place.glob("runs/*/status.json"))


@pytest.mark.filterwarnings("always::equifed.errors.EquifedWarning")
def test_damaged_files_are_named_and_a_result_is_made_again(place, invoke):
    shown = data(invoke("run", str(write_config(place, run={"rounds": 2})), "--json"))
    (folder,) = (path.parent for path in place.glob("runs/*/result.json"))
    (folder / "metrics.parquet").write_bytes((folder / "metrics.parquet").read_bytes()[:-9])
    for command in (["show", "latest"], ["report", "latest", "--csv"], ["show", str(folder), "--json"]):
        refused = invoke(*command)
        assert refused.exit_code == 4
        assert re.search(r"^Error: The result in .*metrics\.parquet is damaged.*equifed resume", refused.stderr)
        assert "EQUIFED_DEBUG" not in refused.stderr
    again = data(invoke("resume", "latest", "--json"))
    assert again["metrics"] == shown["metrics"]
    for name in ("status.json", "environment.json", "data.json", "config.toml", "SUMS.json"):
        kept = (folder / name).read_bytes()
        (folder / name).write_bytes(b"\xff{")
        refused = invoke("show", str(folder), "--json")
        assert refused.exit_code == 4
        assert f"{name} " in refused.stderr
        assert "EQUIFED_DEBUG" not in refused.stderr
        (folder / name).write_bytes(kept)


def test_a_full_disk_is_told_in_a_line_and_the_run_goes_on(place, invoke, monkeypatch):
    def full(handle, content):
        if len(content) > 2000:  # of the result
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(handle, content)

    with monkeypatch.context() as patched:
        patched.setattr("equifed.files.os", Fake(write=full))
        refused = invoke("run", str(write_config(place, run={"rounds": 2})))
    assert refused.exit_code == 4
    told = refused.stderr.splitlines()[-1]
    assert re.match(r"Error: runs/\S+ could not be written: the disk is full\. [\d,]+ bytes are needed, [\d,]+ ", told)
    (command,) = re.findall(r"go on with `equifed (resume \S+)`", told)
    resumed = invoke(*command.split())
    assert resumed.exit_code == 0, resumed.stderr
    assert "EQUIFED_DEBUG" not in refused.stderr


def test_resume_checks(place, invoke, monkeypatch):
    def stop(self, round):
        if round.number == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("equifed.cli.progress.Watch.round_finished", stop)
        first = invoke("run", str(write_config(place)), "--fail-if", "accuracy <= 1")
    assert first.exit_code == 130
    assert "--fail-if 'accuracy <= 1'" in first.stderr
    wrong = invoke("resume", "latest", "--fail-if", "acuracy <= 1")
    assert wrong.exit_code == 2
    assert "Did you mean 'accuracy'" in wrong.stderr
    assert data(invoke("list", "--json"))[0]["status"] == "interrupted"
    again = invoke("resume", "latest", "--fail-if", "accuracy <= 1")
    assert again.exit_code == 1
    assert "Check failed" in again.stderr
    finished = invoke("resume", "latest", "--fail-if", "accuracy <= 1", "--json")
    assert finished.exit_code == 1
    assert json.loads(finished.stdout)["failed_checks"]
    assert invoke("resume", "latest", "--fail-if", "accuracy < 0").exit_code == 0


def test_reading_makes_nothing(place, invoke):
    before = sorted(place.iterdir())
    for args, code in ((["list"], 0), (["show", "latest"], 2), (["report", "x"], 2), (["resume", "x"], 2)):
        assert invoke(*args).exit_code == code
    assert sorted(place.iterdir()) == before


def test_a_file_is_no_folder_for_runs(place, invoke):
    path = str(write_config(place))
    for args in (["run", path], ["list"], ["show", "latest"], ["resume", "x"], ["compare", "compas"]):
        outcome = invoke(*args, "--runs", path)
        assert outcome.exit_code == 2
        assert "it is a file" in outcome.stderr
        assert "--runs" in outcome.stderr
    assert invoke("run", path, "--runs", "/proc/x").exit_code == 2


NOT_LOGISTIC = ("frl", "e2fl", "fedper", "fedrep")
"""They rank edges, and the default model has a bias, or have a last layer for each client, and it has no other."""


def test_compare(place, invoke, tiny):
    outcome = invoke("compare", tiny, "--methods", "fedavg,local", *SMALL, "--report", "page.html")
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.stdout.startswith("tiny (default): 4 clients, 2 per round, 2 rounds, 2 seeds, logistic")
    table, _, said = outcome.stdout.partition("Mean ±")
    rows = [line.split()[0] for line in table.splitlines() if "±" in line]
    assert [row.rstrip("*") for row in rows] == ["fedavg", "local"]
    assert "The evidence is too thin to take one" in said  # two seeds
    assert "\nRule: the fairest mean demographic parity difference of those that lose at most 1 point" in said
    assert "Report: page.html" in outcome.stderr
    assert "<html" in (place / "page.html").read_text()
    assert len(data(invoke("list", "--json"))) == 2


@pytest.mark.full
def test_compare_takes_all_methods_that_can_run(place, invoke, tiny):
    found = data(invoke("compare", tiny, *SMALL, "--json"))
    assert found["left_out"] == [name for name in REGISTRY if name in NOT_LOGISTIC]
    assert {each["method"] for each in found["methods"]} == set(REGISTRY) - set(found["left_out"])


def test_compare_json_and_checks(place, invoke, tiny, monkeypatch):
    some = {name: REGISTRY[name] for name in ("fedavg", "fedval", "kffl", "frl", "ditto")}
    monkeypatch.setattr(REGISTRY, "usable", lambda: some)
    found = data(invoke("compare", tiny, *SMALL, "--json", "--alpha", "5", "--num-partitions", "3"))
    assert found["left_out"] == [name for name in some if name in NOT_LOGISTIC] == ["frl"]
    assert {each["method"] for each in found["methods"]} == set(some) - {"frl"}
    assert found["settings"]["partition"]["alpha"] == 5
    assert (place / found["report"]).exists()
    assert set(found["verdict"]) == {"chosen", "sentences", "rule", "caveats"}
    outcome = invoke("compare", tiny, "--methods", "fedavg", *SMALL, "--json", "--fail-if", "accuracy <= 1")
    assert outcome.exit_code == 1
    assert json.loads(outcome.stdout)["failed_checks"]


def test_every_run_has_one_job(place, invoke, tiny, monkeypatch):
    """It is made and checked once, and all of a comparison are before the first trains."""
    events = []
    module = importlib.import_module("equifed.config.build")
    make_job, start = module.make_job, Store.start
    monkeypatch.setattr(module, "make_job", lambda *some, **more: events.append("job") or make_job(*some, **more))
    monkeypatch.setattr(Store, "start", lambda *some: events.append("run") or start(*some))
    methods = ("--methods", "fedavg,fedprox,fedmom")
    assert invoke("compare", tiny, *methods, *SMALL, "--fail-if", "accuracy < 0").exit_code == 0
    assert events == ["job"] * 3 + ["run"] * 3
    events.clear()
    assert invoke("sweep", tiny, "--method", "fedprox", "--over", "mu=0,1", *SMALL).exit_code == 0
    assert invoke("run", str(write_config(place))).exit_code == 0
    assert events == ["job", "run"] * 2


def test_options_are_the_settings(invoke):
    """Every setting of a run is an option, with the description and the default of its field."""
    told = " ".join(invoke("compare", "--help").stdout.replace("\u2502", " ").split())
    for kind, renamed in ((RunSettings, {}), (Local, {"epochs": "local_epochs"})):
        for option in options_of(kind):
            name = renamed.get(option.name, option.name).replace("_", "-")
            assert f"--{name} " in told
            assert option.description.split()[0] in told
    assert f"Rounds of training. (default: {RunSettings().rounds})" in told


def test_compare_leaves_out_what_cannot_run(place, invoke, tiny, monkeypatch):
    class Picky(FedAvg):
        name = "picky"
        needs_validation = True

    monkeypatch.setitem(methods.REGISTRY, "picky", Picky)
    needing = [name for name, kind in REGISTRY.items() if kind.needs_validation or name in NOT_LOGISTIC]
    # what else there is runs in another test
    monkeypatch.setattr(REGISTRY, "usable", lambda: {name: REGISTRY[name] for name in ("fedavg", *needing)})
    found = invoke("compare", tiny, "--preset", "bare", *SMALL, "--json")
    assert "picky is left out: picky measures fairness on a validation set held by the server" in found.stderr
    assert json.loads(found.stdout)["left_out"] == needing
    assert [each["method"] for each in json.loads(found.stdout)["methods"]] == ["fedavg"]
    assert {"picky", "fedval"} <= set(needing)
    asked = invoke("compare", tiny, "--preset", "bare", *SMALL, "--methods", "picky")
    assert asked.exit_code == 2
    assert "validation set" in asked.stderr


def test_one_method_that_fails_does_not_cost_the_others(place, invoke, tiny, monkeypatch):
    class Broken(FedAvg):
        name = "broken"

        def init(self, task, parameters):
            raise ZeroDivisionError("oh")

    monkeypatch.setitem(methods.REGISTRY, "broken", Broken)
    outcome = invoke("compare", tiny, "--methods", "broken,fedavg", *SMALL, "--json")
    assert outcome.exit_code == 4
    assert "broken failed: ZeroDivisionError: oh" in outcome.stderr
    found = json.loads(outcome.stdout)
    assert [each["method"] for each in found["methods"]] == ["fedavg"]
    assert found["failed_methods"] == ["broken"]
    assert {entry["status"] for entry in data(invoke("list", "--json"))} == {"finished", "failed"}
    assert "ZeroDivisionError: oh" in invoke("show", data(invoke("list", "--json"))[-1]["id"]).stdout


def test_degenerate_predictors_are_flagged(place, invoke, tiny):
    outcome = invoke("compare", tiny, "--methods", "fedavg", *SMALL, "--learning-rate", "1e-9")
    assert "fedavg*" in outcome.stdout
    assert "Degenerate" in outcome.stdout


def test_sweep(place, invoke, tiny):
    options = [tiny, "--method", "fedprox", "--over", "mu=0,0.5", *SMALL]
    outcome = invoke("sweep", *options)
    assert outcome.exit_code == 0, outcome.stderr
    assert "dominated" in outcome.stdout
    assert "bootstrap over the seeds alone" in " ".join(outcome.stdout.split())
    assert "\nRule, on validation rows: the fairest" in outcome.stdout
    found = data(invoke("sweep", *options, "--json", "--margin", "0.2"))
    assert [point["mu"] for point in found["pareto"]] == [0, 0.5]
    assert "lose at most 20 points of accuracy" in found["verdict"]["rule"]
    runs = len(data(invoke("list", "--json")))
    for command in (["sweep", *options], ["compare", tiny, "--methods", "fedavg"]):
        outcome = invoke(*command, "--margin", "1")
        assert outcome.exit_code == 2
        assert "0.01 is one point of accuracy" in outcome.stderr
    assert len(data(invoke("list", "--json"))) == runs  # refused before training
    for wrong, said in (
        ("mu=a", "NAME=V1,V2"),
        ("mu", "NAME=V1,V2"),
        ("nu=1", "Did you mean 'mu'"),
        ("mu=-1", "at least 0"),
        ("mu=nan", "list of numbers"),
        ("mu=0.1,0.1", "names a value twice"),
    ):
        outcome = invoke("sweep", tiny, "--method", "fedprox", "--over", wrong)
        assert outcome.exit_code == 2
        assert said in outcome.stderr


def test_a_sweep_names_everything_once(place, invoke, tiny):
    for first, second in (("mu=0,0.1", "mu=1"), ("lambda-max=0", "lambda_max=1")):
        outcome = invoke("sweep", tiny, "--method", "fair-fate", "--over", first, "--over", second, *SMALL)
        assert outcome.exit_code == 2
        assert "twice" in outcome.stderr
    assert not (place / "runs").exists()


def test_list_and_show(place, invoke):
    empty = invoke("list")
    assert empty.exit_code == 0
    assert "no runs" in empty.stderr
    assert data(invoke("list", "--json")) == []
    invoke("run", str(write_config(place, run={"name": "mine"}, data={"meaning": "it is so"})))
    listed = invoke("list")
    assert "finished" in listed.stdout
    (entry,) = data(invoke("list", "--json"))
    outcome = invoke("show", "mine")
    for part in ("fedavg on 4 files", "Positive: '1', it is so.", "accuracy", "true_positive_rate", "update, rows"):
        assert part in outcome.stdout
    assert re.search(r"client_equalized_odds_difference\.worst +\S+ +few rows\n", outcome.stdout)
    assert re.search(r"\nclient_accuracy\.mean +[\d.±]+ *\n", outcome.stdout)
    found = data(invoke("show", entry["id"][:-2], "--json"))
    assert found["metrics"]["client_equalized_odds_difference.worst"]["few_rows"]
    assert found["status"] == "finished"
    assert found["config"]["run"]["name"] == "mine"
    assert found["messages"][0]["phase"] == "train"
    assert set(found["data_record"]["files"]) == {f"silo-{k}" for k in range(4)}


def test_listing_reads_no_more_runs_than_it_shows(place, invoke, monkeypatch):
    store = Store(place / "runs")
    ids = ["first", "second", "third", "fourth"]
    for id in ids:
        with store.start(load_config(write_config(place)), id=id):
            pass
    entry, read = RunFolder.entry, []
    monkeypatch.setattr(RunFolder, "entry", lambda folder: read.append(folder.id) or entry(folder))
    listed = invoke("list", "-n", "2")
    assert read == ["fourth", "third"]
    assert listed.stderr.strip() == "2 more; see them with -n 4."
    assert [each["id"] for each in data(invoke("list", "--json", "-n", "3"))] == ids[:0:-1]


def test_report(place, invoke):
    invoke("run", str(write_config(place)))
    outcome = invoke("report", "latest", "-o", "one.html")
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.stdout.strip() == "one.html"
    assert "<html" in (place / "one.html").read_text()
    assert data(invoke("report", "latest", "-o", "two.html", "--json"))["report"] == "two.html"
    assert (place / "two.html").exists()
    assert invoke("report", "latest").stdout.strip() == "equifed-report.html"


@pytest.mark.full
def test_numbers_for_programs_leave_no_page_behind(place, invoke, three_seeds):
    before = sorted(place.iterdir())
    assert data(invoke(*three_seeds, "--json"))["report"] is None
    for more in (["--csv"], ["--table", "latex"], ["--table", "markdown"]):
        outcome = invoke(*three_seeds, *more)
        assert outcome.exit_code == 0, outcome.stderr
        assert outcome.stderr == ""
    assert sorted(place.iterdir()) == before
    outcome = invoke(*three_seeds, "--table", "markdown", "--columns", "loss,accuracy", "-o", "page.html")
    assert outcome.stdout.splitlines()[0] == "| method | loss ↓ | accuracy ↑ |"
    assert outcome.stderr.strip() == "Written: page.html"
    assert (place / "page.html").exists()


@pytest.fixture
def three_seeds(place, invoke):
    """A run of fedavg, then one of fedprox."""
    for method in ({"name": "fedavg"}, {"name": "fedprox", "mu": 5.0}):
        path = str(write_config(place, run={"seeds": 3, "name": method["name"]}, method=method))
        assert invoke("run", path).exit_code == 0
    return ["report", "fedavg", "fedprox"]


def test_report_for_other_programs(place, invoke, three_seeds):
    found = data(invoke(*three_seeds, "--json", "--baseline", "fedprox"))
    assert (found["baseline"], found["disparity"]) == ("fedprox", "demographic_parity_difference")
    assert found["verdict"]["sentences"]
    assert found["margin"] == 0.01
    wide = data(invoke(*three_seeds, "--json", "--margin", "0.5", "-o", "wide.html"))
    assert "lose at most 50 points" in wide["verdict"]["rule"]
    assert "lose at most 50 points" in (place / "wide.html").read_text()
    lines = {(each["method"], each["scope"], each["metric"]): each for each in found["metrics"]}
    shown = data(invoke("show", "fedavg", "--json"))["metrics"]["accuracy"]
    assert lines["fedavg", "global", "accuracy"]["mean"] == shown["mean"]
    assert lines["fedavg", "global", "accuracy"]["std"] == pytest.approx(shown["std"])
    assert lines["fedprox", "global", "accuracy"]["p"] is None
    assert lines["fedavg", "group:f", "selection_rate"]["interval"] == "wilson"
    assert found["messages"][0]["exchanges"][0]["up"] == "update, rows"
    outcome = invoke(*three_seeds, "--csv", "-o", "page.html")
    table = pd.read_csv(io.StringIO(outcome.stdout))
    assert len(table) == len(lines)
    exact = [math.nan if each["mean"] is None else each["mean"] for each in found["metrics"]]
    assert table["mean"].tolist() == pytest.approx(exact, nan_ok=True)
    assert "Written: page.html" in outcome.stderr
    text = (place / "page.html").read_text()
    for part in ("fingerprint of the rows", "versions: torch", "mu = 5.0", "equifed run FILE"):
        assert part in text
    assert next(place.glob("runs/*fedprox*/config.toml")).read_text() in html.unescape(text)
    assert str(place) not in text  # nothing that names the machine


def test_report_refuses(place, invoke, three_seeds):
    for more, said in (
        (["--csv", "--json"], "both want stdout"),
        (["--margin", "1"], "must be a share below 1"),
        (["--table", "latex", "--csv"], "--table and --csv both want stdout"),
        (["--table", "latec"], "Did you mean 'latex'"),
        (["--table", "latex", "--columns", "acuracy"], "Did you mean 'accuracy'"),
        (["--columns", "accuracy"], "--table latex"),
        (["--baseline", "fedav"], "Did you mean 'fedavg'"),
        (["--disparity", "demographic_parity_diff"], "Did you mean 'demographic_parity_difference'"),
        (["--figures", "figures", "--formats", "pgn"], "Did you mean 'png'"),
    ):
        outcome = invoke(*three_seeds, *more)
        assert outcome.exit_code == 2, more
        assert said in outcome.stderr
        assert outcome.stdout == ""
    assert not (place / "equifed-report.html").exists()


@pytest.mark.parametrize("formats", ["svg", pytest.param("svg,png,pdf", marks=pytest.mark.full)])
def test_report_figures(formats, place, invoke, three_seeds, monkeypatch):
    """All formats take seconds for each and are drawn by the same code: only in `make test-full`."""
    outcome = invoke(*three_seeds, "--figures", "figures", "--formats", formats)
    assert outcome.exit_code == 0, outcome.stderr
    starts = {".svg": b"<svg", ".png": b"\x89PNG\r\n", ".pdf": b"%PDF"}
    drawn = sorted((place / "figures").iterdir())
    assert {path.stem for path in drawn} >= {
        "trade-off-demographic-parity-difference",
        "rounds-accuracy",
        "groups-selection-rate",
        "partition",
    }
    for path in drawn:
        assert path.read_bytes().startswith(starts[path.suffix])
    assert sorted(outcome.stdout.splitlines()[1:]) == [str(path.relative_to(place)) for path in drawn]
    assert "it is a file" in invoke(*three_seeds, "--figures", "experiment.toml").stderr
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    outcome = invoke(*three_seeds, "--figures", "figures")
    assert outcome.exit_code == 2
    assert "equifed[figures]" in outcome.stderr


def test_watch_prints_a_line_per_evaluation(place, invoke):
    path = write_config(place, run={"rounds": 60, "seeds": 1, "eval-every": 2}, local={"batch-size": "all"})
    outcome = invoke("run", str(path), "--watch")
    lines = [line for line in outcome.stderr.splitlines() if ": round " in line]
    assert len(lines) == 30
    assert "round 60/60" in lines[-1]
    assert outcome.stdout.count("fedavg") == 1


def test_watch_refreshes_a_table_on_a_terminal(place, invoke, monkeypatch):
    screen = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    monkeypatch.setattr("equifed.cli.progress.err", lambda: screen)
    path = write_config(place, run={"rounds": 3, "seeds": 2}, method={"name": "fedmom"})
    outcome = invoke("run", str(path), "--watch")
    assert outcome.exit_code == 0, outcome.stderr
    seen = screen.file.getvalue()
    for part in ("round 1 of 3", "round 3 of 3", "accuracy", "momentum_norm (of the method)", "replies"):
        assert part in seen
    found = data(invoke("show", "latest", "--json"))["metrics"]["accuracy"]
    assert re.search(rf"accuracy +{found['mean']:.3f} +{found['std']:.3f}", seen.split("round 3 of 3")[1])


def test_methods(invoke):
    outcome = invoke("methods")
    for name in REGISTRY:
        assert name in outcome.stdout
    assert {each["name"] for each in data(invoke("methods", "--json"))} == set(REGISTRY)
    narrow = " ".join(CliRunner().invoke(app, ["methods"], env={"COLUMNS": "80", "NO_COLOR": "1"}).stdout.split())
    facts = "server sees: only sums; secure sums: yes; exchanges: 1"
    assert f"Average the clients' models, weighted by their numbers of rows. {facts}" in narrow
    secure = {each["name"]: each["secure"] for each in data(invoke("methods", "--json"))}
    refused = {"fcfl", "centralized-kernel", "afl", "gifair", "fedmgda+"}
    assert {name for name, works in secure.items() if works == "no"} == refused
    assert secure["fair-fate"] == "as a variant"
    one = invoke("methods", "fedprox")
    for part in ("MLSys 2020", "(mu/2) ||theta_k - theta||^2", "at least 0", "0.01", "update, rows", "fedavg"):
        assert part in one.stdout
    assert "Needs: nothing besides the clients' rows; with mu 0 it is fedavg" in one.stdout
    found = data(invoke("methods", "local", "--json"))
    assert found["needs"] == ["client memory"]
    assert found["leaves_a_client"] == []
    one = invoke("methods", "fair-fate").stdout
    for part in ("str | tuple[str, ...]", "or a list of several", " false ", '"demographic_parity_ratio"'):
        assert part in one
    assert "Knob: lambda-max trades accuracy for fairness, more is fairer; 0 asks for nothing" in " ".join(one.split())
    found = data(invoke("methods", "fair-fate", "--json"))
    assert found["knob"]["aims"]["equal_opportunity_difference"] == {"fairness": "equal_opportunity_ratio"}
    assert {each["name"]: each["default"] for each in found["hyper_parameters"]}["as-published"] is False
    assert found["bibtex"].startswith("@inproceedings{salazar2023fairfate")
    assert found["bibtex"] in one
    one = invoke("methods", "fedavg+eo").stdout
    for part in ("{mcmahan2017", "{hardt2016"):
        assert part in one
    assert "{pleiss2017" in invoke("methods", "local+ceo").stdout


def test_data(invoke, tiny):
    assert "compas" in invoke("data", "list").stdout
    assert "tiny" in {each["name"] for each in data(invoke("data", "list", "--json"))}
    assert "made up" in invoke("data", "describe", tiny).stdout
    assert data(invoke("data", "describe", tiny, "--json"))["presets"]["default"]["clients"] == 4
    assert data(invoke("data", "fetch", tiny, "--json")) == {"name": tiny, "files": {}}


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["run", "none.toml"], 2, "none.toml: no such file"),
        (
            ["run", "experiment.toml", "--set", "run.rounds=0"],
            2,
            "experiment.toml: run.rounds: must be at least 1, got 0",
        ),
        (["run", "experiment.toml", "--set", "data.label=lable"], 3, "label"),
        (["compare", "compass"], 2, "Did you mean 'compas'"),
        (["compare", "compas", "--methods", "fedavgg"], 2, "Did you mean 'fedavg'"),
        (["compare", "compas", "--methods", ","], 2, "names nothing"),
        (["compare", "compas", "--methods", ""], 2, "names nothing"),
        (["compare", "tiny", "--num-partitions", "100000"], 2, "compare: --num-partitions: 100000 clients"),
        (["show", ""], 2, "Which run?"),
        (["compare", "compas", "--preset", "x"], 2, "fair-fate"),
        (["compare", "compas", "--partition", "dirichle"], 2, "Did you mean 'dirichlet'"),
        (["compare", "compas", "--model", "mpl"], 2, "Did you mean 'mlp'"),
        (["methods", "fedpro"], 2, "Did you mean 'fedprox'"),
        (["data", "describe", "adlut"], 2, "Did you mean 'adult'"),
        (["show", "latest"], 2, "no runs"),
        (["resume", "20"], 2, "no runs"),
        (["report", "x"], 2, "no runs"),
        (["run"], 2, "FILE.toml"),
        (["nonsense"], 2, "nonsense"),
        (["compare", "compas", "--rounds", "few"], 2, "--rounds"),
    ],
)
def test_mistakes_have_their_code_and_no_traceback(place, invoke, tiny, args, code, said):
    write_config(place)
    outcome = invoke(*args)
    assert outcome.exit_code == code
    assert outcome.stdout == ""
    assert said in outcome.stderr
    assert "Traceback" not in outcome.stderr


@pytest.mark.parametrize("words", [("predict", ".", "x.csv", "--setting"), ("predict", "y", "x.csv", "--runs")])
def test_a_long_word_is_not_repeated_in_full(place, invoke, words):
    outcome = invoke(*words, "x" * 10_000)
    assert outcome.exit_code == 2
    assert "characters)" in outcome.stderr
    assert len(outcome.stderr) < 1000


def test_data_that_cannot_be_had_are_one_sentence_and_exit_code_3(place, invoke, monkeypatch):
    """As in `make demo` on a machine that reaches neither the data's addresses nor a package index."""
    monkeypatch.setenv("EQUIFED_DATA", str(place / "nothing"))
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    outcome = invoke("compare", "adult", "--methods", "fedavg")
    assert outcome.exit_code == 3
    assert outcome.stdout == ""
    first, *tried = outcome.stderr.splitlines()
    assert first == (
        f"Error: compare: data: adult.data and adult.test are not in the data home {place / 'nothing'} and could not "
        "be downloaded: put them there (plain or .gz) as adult/adult.data and adult/adult.test, or set EQUIFED_DATA to "
        "a folder that has them so, or, behind a proxy, set HTTPS_PROXY and try again."
    )
    assert all(len(line) < 200 for line in tried)
    assert any("the proxy does not let it through (Connection refused)" in line for line in tried)


def test_what_nobody_expected_is_one_line(place, invoke, monkeypatch):
    def broken(*args, **values):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("equifed.store.read_entries", broken)
    outcome = invoke("list")
    assert outcome.exit_code == 4
    assert outcome.stderr.startswith("Error: ZeroDivisionError: oh")
    assert "EQUIFED_DEBUG=1" in outcome.stderr
    assert "Traceback" not in outcome.stderr
    monkeypatch.setenv("EQUIFED_DEBUG", "1")
    assert "Traceback" in invoke("list").stderr


def test_version_and_help(invoke):
    assert re.fullmatch(r"equifed \d+\.\d+\.\d+\n", invoke("--version").stdout)
    for command in ("run", "compare", "sweep", "resume", "list", "show", "report", "methods", "data"):
        outcome = invoke(command, "--help")
        assert outcome.exit_code == 0
        assert "--json" in outcome.stdout or command == "data"


def test_no_color_is_kept(place, invoke):
    write_config(place)
    for args in (["methods"], ["run", "experiment.toml"], ["run", "--help"]):
        outcome = invoke(*args)
        assert "\x1b[" not in outcome.stdout + outcome.stderr


def test_compare_refuses_one_method_under_two_names(place, invoke, tiny):
    outcome = invoke("compare", tiny, "--methods", "ditto,fedavg+ditto", *SMALL)
    assert outcome.exit_code == 2
    assert "--methods names one method twice, as ditto and as fedavg+ditto" in outcome.stderr


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.sample(1)
def test_workers(invoke, tiny, monkeypatch, workers: str):
    """One is as ever, without Ray; several without Ray say what is missing, before anything is computed."""
    monkeypatch.setitem(sys.modules, "ray", None)
    command = ("compare", tiny, "--methods", "fedavg,fedprox", "--rounds", "2", "--seeds", "2", "--json")
    plain = json.loads(invoke(*command).stdout)
    done = invoke(*command, "--workers", workers, "--seeds-per-job", "1", "--runs", "shared")
    if workers == "2":
        assert done.exit_code == 4
        assert "pip install 'equifed[cluster]'" in done.stderr
        assert not Store("shared").entries()
        return
    assert done.exit_code == 0, done.stderr
    assert "fedprox on tiny, seed 1: done; 4 of 4 jobs have ended" in done.stderr
    shared = json.loads(done.stdout)
    assert [len(each["jobs"]) for each in shared["methods"]] == [2, 2]
    for one, other in zip(plain["methods"], shared["methods"], strict=True):
        for name, value in one["metrics"].items():  # intervals too, which depend on the rows that seeds share
            assert other["metrics"][name] == pytest.approx(value, nan_ok=True, rel=1e-5), name


def test_a_run_of_which_no_round_was_applied_has_failed(place, invoke):
    """Every reply is refused, since steps of this length end in no number: the result is kept and shown."""
    path = str(write_config(place, run={"rounds": 2}, local={"learning-rate": 1e30}, model={"kind": "mlp"}))
    done = invoke("run", path)
    assert done.exit_code == 4
    assert "fedavg was not trained: not one of its rounds was applied" in done.stderr
    assert "12 replies were refused or never came, the first because of NaN or Inf in its reply." in done.stderr
    assert invoke("show", "latest").exit_code == 0
    whole = json.loads(invoke("run", path, "--json").stdout)
    assert whole["status"] == "finished"
    files = ",".join(f"silo-{k}.csv" for k in range(4))
    words = ("--data", files, "--label", "label", "--sensitive", "sex", "--rounds", "1", "--seeds", "1")
    compared = invoke("compare", *words, "--methods", "fedavg,fedprox", "--set", "fedprox.mu=1e30", "--model", "mlp")
    assert compared.exit_code == 4
    assert "fedprox was not trained" in compared.stderr
    assert "fedavg" in compared.stdout
