"""Configurations: what is filled in, what survives a round trip, and what is said about mistakes."""

from __future__ import annotations

import tomllib

import pytest
import tomli_w
from store.silos import config, write_config, write_silos

from equifed import methods, models, partition
from equifed.config import RunSection, build, load_config, load_federations, parse_config
from equifed.errors import ConfigError, DataError
from equifed.options import options_of
from equifed.settings import Local

COMPAS = {"data": {"name": "compas", "preset": "fair-fate"}, "method": {"name": "fedprox", "mu": 0.3}}


FAIRNESS = ["demographic_parity_ratio", "equal_opportunity_ratio"]


def test_defaults_come_from_the_preset():
    made = parse_config(COMPAS)
    assert made.run.clients_per_round == 3
    assert made.partition == partition.Dirichlet(num_partitions=10, alpha=0.5)
    assert made.model == models.Logistic()
    assert made.method.mu == 0.3
    assert parse_config(COMPAS | {"data": {"name": "compas"}}).data.preset == "default"


def test_defaults_by_data():
    def of(name, preset=None):
        data = {"name": name} | ({"preset": preset} if preset else {})
        return parse_config({"data": data, "method": {"name": "fedavg"}})

    assert of("communities").model == models.Linear()
    assert of("mnist").model == models.LeNet()
    assert isinstance(of("mnist", "e2fl").partition, partition.RotationGroups)
    assert of("acs_income", "sffl").partition == partition.Natural("STATE")


def test_another_kind_of_partition_keeps_the_number_of_clients():
    made = parse_config(COMPAS | {"partition": {"kind": "iid"}})
    assert made.partition == partition.IID(10)
    fewer = parse_config(COMPAS | {"partition": {"num-partitions": 2}})
    assert fewer.partition == partition.Dirichlet(num_partitions=2, alpha=0.5)
    assert fewer.run.clients_per_round == 2


@pytest.mark.parametrize(
    "sections",
    [
        COMPAS,
        COMPAS | {"sweep": {"mu": [0, 0.1, 1e-7]}},
        COMPAS | {"local": {"batch-size": "all", "optimizer": "adam"}, "run": {"seeds": 3, "kernel": "traced"}},
        COMPAS | {"model": {"kind": "mlp", "hidden": [4, 4], "init": 0.1}, "run": {"clients-per-round": "all"}},
        COMPAS | {"method": {"name": "fair-fate", "fairness": FAIRNESS, "as-published": True, "rho": 1}},
        *(COMPAS | {"method": {"name": name}} for name in methods.REGISTRY),
    ],
)
def test_the_resolved_configuration_is_a_fixed_point(sections):
    once = parse_config(sections)
    text = tomli_w.dumps(once.resolved())
    again = parse_config(tomllib.loads(text))
    assert again.resolved() == once.resolved()
    assert again.fingerprint() == once.fingerprint()
    assert (again.method, again.model, again.run, again.partition) == (
        once.method,
        once.model,
        once.run,
        once.partition,
    )


def test_files_are_found_from_the_config_wherever_it_is_copied(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    write_silos(tmp_path / "here")
    made = load_config(write_config(tmp_path / "here"))
    elsewhere = tmp_path / "runs" / "one"
    elsewhere.mkdir(parents=True)
    (elsewhere / "config.toml").write_text(tomli_w.dumps(made.resolved(elsewhere)))
    assert str(tmp_path) not in (elsewhere / "config.toml").read_text()
    monkeypatch.chdir("/")
    copied = load_config(elsewhere / "config.toml")
    assert copied.fingerprint(elsewhere) == made.fingerprint(elsewhere)
    simulation = build(copied)
    feds = [run.federation for run in simulation.job.runs]
    assert [fed.seed for fed in feds] == [0, 3]
    assert feds[0].rows.x is feds[1].rows.x
    assert feds[0].ids == tuple(f"silo-{k}" for k in range(4))


def test_overrides_are_toml_values_or_text(tmp_path):
    made = load_config(
        write_config(tmp_path), ["run.rounds=9", "run.seeds=[5, 6]", "run.name=my run", "local.optimizer=adam"]
    )
    assert (made.run.rounds, made.run.seeds, made.run.name) == (9, (5, 6), "my run")
    assert made.run.local.optimizer == "adam"


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"run": {"rounds": 0}}, ["run.rounds: must be", "got 0", "at least 1"]),
        ({"run": {"rounds": 2.5}}, ["run.rounds: must be", "got 2.5", "whole number"]),
        ({"run": {"rounds": "many"}}, ["run.rounds: must be", 'got "many"', "whole number"]),
        ({"run": {"ronds": 3}}, ["run.ronds", "Did you mean 'rounds'", "eval-every"]),
        ({"run": {"clients-per-round": 0}}, ["run.clients-per-round: must be", "got 0", "at least 1, or 'all'"]),
        ({"run": {"seeds": []}}, ["run.seeds: must name at least one"]),
        ({"run": {"seeds": [1, -1]}}, ["run.seeds: A seed must be", "got -1", "at least 0"]),
        ({"run": {"dropout": 1}}, ["run.dropout: must be a probability", "got 1", "below 1"]),
        ({"run": {"engine": "lane"}}, ["run.engine: must be", 'got "lane"', "'lanes' or 'reference'"]),
        ({"run": {"kernel": "quick"}}, ["run.kernel: ", "quick", "fused"]),
        ({"methd": {"name": "fedavg"}}, ["methd", "Did you mean 'method'"]),
        ({"method": {"name": "fedavgg"}}, ["method.name", "Did you mean 'fedavg'", "fedprox"]),
        ({"method": {"name": "fedprox", "mu": -1}}, ["method.mu: must be", "got -1", "at least 0"]),
        ({"method": {"name": "fedprox", "nu": 1}}, ["method.nu", "Did you mean 'mu'"]),
        ({"local": {"learning-rate": 0}}, ["local.learning-rate", "above 0", "got 0"]),
        ({"local": {"local-epochs": 0}}, ["local.local-epochs", "at least 1"]),
        ({"local": {"learning-rate-decay": 0}}, ["local.learning-rate-decay", "above 0"]),
        ({"local": {"warm-up": 40}}, ["local.warm-up", "below the rounds of the run"]),
        ({"local": {"epochs": 1}}, ["local.epochs", "Did you mean 'local-epochs'"]),
        ({"local": {"optimizer": "sdg"}}, ["local.optimizer: must be", 'got "sdg"', "'sgd' or 'adam'"]),
        ({"model": {"kind": "mpl"}}, ["model.kind", "Did you mean 'mlp'"]),
        ({"model": {"kind": ["mlp"]}}, ["model.kind: must be", 'got ["mlp"]', "text in quotes"]),
        ({"method": {"name": 3}}, ["method.name: must be", "got 3", "text in quotes"]),
        ({"model": {"kind": "mlp", "init": -1.0}}, ["model.init", "-1.0"]),
        ({"method": {"name": "fair-fate", "fairness": []}}, ["method.fairness", "demographic_parity_ratio"]),
        ({"method": {"name": "fair-fate", "fairness": ["x"]}}, ["method.fairness", "demographic_parity_ratio"]),
        (
            {"method": {"name": "fair-fate", "as-published": 1}},
            ["method.as-published: must be", "got 1", "true or false"],
        ),
        ({"method": {"name": "fedavg", "mu": 1}}, ["method.mu", "nothing to set"]),
        ({"model": {"kind": "mlp", "hidden": 3}}, ["model.hidden: must be", "got 3", "list"]),
        ({"model": {"kind": "mlp", "activation": "relo"}}, ["model.activation", "Did you mean 'relu'"]),
        ({"partition": {"kind": "dirichlet"}}, ["partition", "files already say"]),
        ({"data": {"name": "compas"}}, ["data", "both a name and files"]),
        ({"data": {"files": 3}}, ["data.files: must be", "got 3", "list or a table"]),
        ({"sweep": {"mu": [1]}}, ["sweep.mu", "hyperparameter of fedavg"]),
        ({"method": {"name": "fedprox"}, "sweep": {"mu": ["a"]}}, ["sweep.mu", "list of numbers", '"a"']),
        ({"method": {"name": "fedprox"}, "sweep": {"mu": [1, -1]}}, ["sweep.mu", "at least 0", "-1"]),
        ({"method": {"name": "fedprox"}, "sweep": {"mu": [1, 1.0]}}, ["sweep.mu: names a value twice: [1, 1.0]"]),
        ({"method": {"name": "fair-fate"}, "sweep": {"rho": [0, float("inf")]}}, ["sweep.rho", "list of numbers"]),
        ({"method": {"name": "fair-fate"}, "sweep": {"as-published": [0, 1]}}, ["sweep.as-published", "true or false"]),
        (
            {"method": {"name": "fair-fate"}, "sweep": {"lambda-max": [0, 1], "lambda_max": [0.5]}},
            ["sweep.lambda_max", "twice"],
        ),
    ],
)
def test_mistakes_name_file_key_value_and_what_is_allowed(tmp_path, sections, said):
    path = write_config(tmp_path, **sections)
    with pytest.raises(ConfigError) as error:
        load_config(path)
    for part in ["experiment.toml", *said]:
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({}, "data: needs a name"),
        ({"data": {"name": "compass"}, "method": {"name": "fedavg"}}, "Did you mean 'compas'"),
        ({"data": {"name": "compas", "preset": "x"}, "method": {"name": "fedavg"}}, "Unknown preset of compas 'x'"),
        ({"data": {"name": "compas"}}, "method.name: is required"),
        ({"data": {"files": ["a.csv"]}, "method": {"name": "fedavg"}}, "need a schema, or a label"),
        ({"data": 3}, "data: must be a section"),
        (
            {**COMPAS, "partition": {"kind": "dirichlet", "alpha": -1}},
            "partition.alpha: must be a number above 0",
        ),
        ({**COMPAS, "partition": {"alpha": "x"}}, 'partition.alpha: must be a number, got "x".'),
    ],
)
def test_what_is_missing_or_unknown(raw, said):
    with pytest.raises(ConfigError, match="configuration") as error:
        parse_config(raw)
    assert said in str(error.value)


def test_all_problems_are_told_at_once():
    with pytest.raises(ConfigError) as error:
        parse_config(config(local={"learning-rate": "fast"}, model={"kind": "cnn"}, method={"name": "x"}))
    assert "3 problems" in str(error.value)
    keys = ["model.kind", "local.learning-rate", "method.name"]
    assert [problem.where for problem in error.value.problems] == keys
    for key in keys:
        assert f"\n  {key}: " in str(error.value)


def test_syntax_errors_show_the_line(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text("[run]\nrounds = 3\nseeds = [1,, 2]\n")
    with pytest.raises(ConfigError, match=r"broken\.toml: line 3.*\n  seeds = \[1,, 2\]"):
        load_config(path)
    path.write_text('[run]\nname = "open')
    with pytest.raises(ConfigError, match=r"broken\.toml: line 2"):
        load_config(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(path)
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "none.toml")


@pytest.mark.parametrize("text", ["rounds=3", "run.rounds", "=3", "run.=3"])
def test_an_override_must_have_its_form(tmp_path, text):
    with pytest.raises(ConfigError, match=r"section\.key=value"):
        load_config(write_config(tmp_path), [text])


def test_what_only_the_data_can_tell_is_said_with_the_file(tmp_path):
    write_silos(tmp_path)
    with pytest.raises(ConfigError, match=r"experiment\.toml: run\.clients-per-round: .*4, got 9"):
        build(load_config(write_config(tmp_path, run={"clients-per-round": 9})))
    (tmp_path / "silo-2.csv").unlink()
    with pytest.raises(DataError, match=r"experiment\.toml: data\.files: .*silo-2\.csv"):
        build(load_config(write_config(tmp_path)))


def _compas(**sections):
    return {**COMPAS, "run": {"rounds": 1}, **sections}


WRONG = [  # the file, the key at fault, what the text must say
    (_compas(local={"optimizer": "adam", "momentum": 0.9}), "local.momentum", "applies to SGD"),
    (_compas(partition={"alpha": 0}), "partition.alpha", "above 0, got 0"),
    (_compas(partition={"kind": "skewed", "num-partitions": 5}), "partition.num-partitions", "must be even"),
    (_compas(partition={"kind": "skewed", "majority": 0.5}), "partition.majority", "above 0.5"),
    (_compas(partition={"kind": "drichlet"}), "partition.kind", "Did you mean 'dirichlet'?"),
    (_compas(run={"dropout": 1.0}), "run.dropout", "below 1, got 1.0"),
    (_compas(run={"seeds": [3, 3]}), "run.seeds", "must differ"),
    (_compas(local={"local-epochs": 0}), "local.local-epochs", "at least 1, got 0"),
    (_compas(local={"momentum": 1.5}), "local.momentum", "below 1, got 1.5"),
    (_compas(data={"name": "compass"}), "data.name", "Did you mean 'compas'?"),
    (_compas(data={"name": "compas", "preset": "fairfate"}), "data.preset", "Did you mean 'fair-fate'?"),
    (_compas(data={"name": "compas", "label": "x"}), "data.label", "both a name and label"),
    (_compas(model={"kind": "mlp", "hidden": [0]}), "model.hidden", "width of a hidden layer"),
    (_compas(sweep={"mu": [0.1, -1]}), "sweep.mu", "at least 0, got -1"),
]
WRONG_FOR_THE_DATA = [
    (_compas(partition={"min-rows": 1000}), "partition.min-rows", "10 clients with at least 1000 rows need 10000 rows"),
    (
        _compas(partition={"kind": "dirichlet-per-client", "alpha": 1.0, "size": 4000}),
        "partition.size",
        "10 clients of 4000 rows need 40000 rows",
    ),
    (_compas(partition={"partition-by": ["lable"]}), "partition.partition-by", "Did you mean 'label'? Known: age"),
    (_compas(partition={"partition-by": ["label", "foo"]}), "partition.partition-by", "'foo'"),
    (_compas(partition={"partition-by": ["grup"]}), "partition.partition-by", "Did you mean 'group'?"),
    (_compas(partition={"kind": "natural", "column": "foo"}), "partition.column", "'foo'"),
    (_compas(partition={"kind": "natural", "column": "race", "min-rows": 30}), "partition.min-rows", "Native American"),
    (_compas(partition={"num-partitions": 100000}), "partition.num-partitions", "100000 clients need"),
    (_compas(partition={"kind": "rotation-groups", "clients-per-group": [1, 1]}), "partition.kind", "need images"),
    (_compas(partition={"kind": "iid", "alpha": 0.3}), "partition.alpha", "Unknown key 'alpha' of the partition iid."),
    (_compas(run={"clients-per-round": 11}), "run.clients-per-round", "at most 10, got 11"),
    (_compas(run={"device": "tpu"}), "run.device", "'auto', 'cpu', 'cuda' or 'cuda:N'"),
    (_compas(model={"kind": "lenet"}), "model", "images of shape"),
    (_compas(method={"name": "e2fl"}), "method", "e2fl"),
]
WRONG_FILES = [
    ({"validation": 0.1, "validation-file": "silo-0.csv"}, "data.validation-file", "keep one of them"),
    ({"validation": 0.5, "test": 0.5}, "data.test", "some training rows"),
    ({"label": "grad"}, "data.label", "Column 'grad': the column is missing"),
    ({"sensitive": "colour"}, "data.sensitive", "Column 'colour': the column is missing"),
    ({"positive": "perhaps"}, "data.positive", "has no value 'perhaps' to be class 1"),
    ({"schema": "none.json"}, "data.schema", "none.json: There is no such file"),
    ({"validation-file": "none.csv"}, "data.validation-file", "none.csv: There is no such file"),
    ({"files": ["silo-0.csv", "silo-9.csv"]}, "data.files", "silo-9.csv: There is no such file"),
    ({"files": ["silo-0.csv", "experiment.toml"]}, "data.files", "experiment.toml: Silo files must be .csv"),
    ({"client-groups": {"silo-0": "a"}}, "data.client-groups", "no group for the client 'silo-1'"),
    ({"client-groups": {f"silo-{k}": "a" for k in range(5)}}, "data.client-groups", "'silo-4'"),
]


def _refused(path):
    with pytest.raises((ConfigError, DataError)) as caught:
        build(load_config(path))
    return caught.value


@pytest.mark.parametrize(("raw", "where", "text"), WRONG, ids=[where for _, where, _ in WRONG])
def test_a_wrong_configuration_names_its_key(tmp_path, raw, where, text):
    _check_refusal(tmp_path, raw, where, text)


@pytest.mark.parametrize(
    ("raw", "where", "text"), WRONG_FOR_THE_DATA, ids=[where for _, where, _ in WRONG_FOR_THE_DATA]
)
def test_a_configuration_that_does_not_fit_its_data_names_its_key(tmp_path, needs, raw, where, text):
    needs("compas")
    _check_refusal(tmp_path, raw, where, text)


def _check_refusal(tmp_path, raw, where, text):
    path = tmp_path / "experiment.toml"
    path.write_text(tomli_w.dumps(raw))
    error = _refused(path)
    assert (error.source, error.where) == (str(path), where)
    assert str(error).startswith(f"{path}: {where}: ")
    assert text in error.text


@pytest.mark.parametrize(("data", "where", "text"), WRONG_FILES, ids=[where for _, where, _ in WRONG_FILES])
def test_wrong_files_name_their_key(tmp_path, data, where, text):
    write_silos(tmp_path)
    error = _refused(write_config(tmp_path, data=data))
    assert error.where == where
    assert str(error).startswith(f"{tmp_path / 'experiment.toml'}: {where}: ")
    assert text in str(error)


def test_python_gets_the_same_sentence_with_the_name_of_the_argument():
    with pytest.raises(ConfigError, match=r"^learning_rate must be a number above 0, got 0\.$") as caught:
        Local(learning_rate=0)
    assert (caught.value.key, caught.value.value) == ("learning_rate", 0)
    with pytest.raises(ConfigError) as caught:
        parse_config(_compas(local={"learning-rate": 0.0}))
    assert str(caught.value) == "configuration: local.learning-rate: must be a number above 0, got 0.0."


def test_a_schema_that_is_no_text_is_named(tmp_path):
    write_silos(tmp_path)
    (tmp_path / "schema.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"experiment\.toml: data\.schema: .*schema\.json"):
        build(load_config(write_config(tmp_path, data={"schema": "schema.json"})))


def test_every_key_is_described():
    for option in options_of(RunSection):
        assert option.description, option.name


def test_text_in_place_of_a_list_reads_well() -> None:
    with pytest.raises(ConfigError, match=r'run.seeds: must be a list or a whole number, got "a"\.'):
        parse_config({"run": {"seeds": "a"}, "data": {"name": "compas"}, "method": {"name": "fedavg"}})


def test_a_folder_is_the_files_in_it(tmp_path):
    (tmp_path / "here").mkdir()
    write_silos(tmp_path / "here")
    for ignored in (".silo-9.csv", "notes.txt", "schema.json"):
        (tmp_path / "here" / ignored).write_text("")
    raw = {"data": {"folder": "here", "label": "label", "sensitive": "sex"}, "method": {"name": "fedavg"}}
    made = parse_config(raw, folder=tmp_path)
    assert made.resolved(tmp_path)["data"]["files"] == {f"silo-{k}": f"here/silo-{k}.csv" for k in range(4)}
    (tmp_path / "config.toml").write_text(tomli_w.dumps(made.resolved(tmp_path)))
    assert load_config(tmp_path / "config.toml").fingerprint(tmp_path) == made.fingerprint(tmp_path)


def test_every_seed_splits_and_deals_one_table_anew(tmp_path):
    write_silos(tmp_path, clients=1, rows=200)
    data = {"table": "silo-0.csv", "label": "label", "sensitive": "sex", "features": ["a", "b"]}
    raw = {"data": data, "partition": {"kind": "iid", "num-partitions": 3}, "method": {"name": "fedavg"}}
    made = parse_config(raw | {"run": {"seeds": 2}}, folder=tmp_path)
    first, second = load_federations(made)
    assert (first.num_clients, first.features, first.name) == (3, ("a", "b"), "silo-0")
    assert first.rows.x is second.rows.x
    assert set(first.test) != set(second.test)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "config.toml").write_text(tomli_w.dumps(made.resolved(tmp_path / "runs")))
    again = load_federations(load_config(tmp_path / "runs" / "config.toml"))
    assert [set(fed.test) for fed in again] == [set(first.test), set(second.test)]


@pytest.mark.parametrize(
    ("data", "where", "text"),
    [
        ({"files": ["a.csv"], "table": "b.csv"}, "data.table", "has files and table. Keep one"),
        ({"table": "b.csv"}, "partition.kind", "One table needs a partition"),
        ({"table": "b.csv", "client-groups": {"a": "b"}}, "data.client-groups", "belongs to one file per client"),
        ({"folder": "nowhere"}, "data.folder", "cannot be read: No such file"),
        ({"files": ["a.csv"], "schema": "s.json", "drop": ["x"]}, "data.drop", "The schema, which is given too"),
        ({"files": ["a.csv"], "dates": ["x"]}, "data.dates", "must be a table"),
    ],
)
def test_keys_about_own_tables_must_go_together(tmp_path, data, where, text):
    with pytest.raises(ConfigError) as error:
        parse_config({"data": {"label": "y", "sensitive": "s"} | data, "method": {"name": "fedavg"}}, folder=tmp_path)
    assert error.value.where == where
    assert text in str(error.value)
