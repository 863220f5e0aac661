"""The folder of a federation: what is in it, who may read it, and what travels."""

from __future__ import annotations

import json
import re
import shlex
import stat
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from equifed import Columns
from equifed.cli.app import app
from equifed.config import load_config, load_federations
from equifed.data import Schema, summarise
from equifed.errors import ConfigError
from equifed.flower.deployment import credentials, installed
from equifed.flower.deployment.bundle import write_bundle
from equifed.flower.deployment.folder import Folder, create, node_config
from equifed.flower.deployment.programs import free_ports
from flower.archives import everything


@pytest.fixture
def schema() -> Schema:
    return Schema.infer(table(), Columns(label="cured", sensitive="sex", positive="yes"))


@pytest.fixture
def federation(tmp_path, schema) -> Folder:
    return create(tmp_path / "fed", silos=["north", "south"], schema=schema)


@pytest.fixture
def trial(tmp_path, needs) -> Folder:
    needs("compas")
    return create(tmp_path / "trial", method="fair-fate", rounds=2)


def table(n: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": rng.integers(20, 90, n),
            "ward": rng.choice(["a", "b", "c"], n),
            "sex": rng.choice(["f", "m"], n),
            "cured": rng.choice(["no", "yes"], n),
        }
    )


OWN = ["--table", "own.csv", "--label", "cured", "--sensitive", "sex"]


def invoke(*args: object):
    return CliRunner().invoke(app, ["flower", *map(str, args)], env={"COLUMNS": "160", "NO_COLOR": "1"})


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# -- what is in it -----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_the_app_is_what_flower_takes_and_holds_no_secret_and_no_row(trial):
    from flwr.cli.build import build_fab_from_disk

    names = set(zipfile.ZipFile(BytesIO(build_fab_from_disk(trial.app))).namelist())
    assert names == {"pyproject.toml", "app.py", "federation.toml", "schema.json", ".info/CONTENT"}
    shipped = b"".join(path.read_bytes() for path in trial.app.iterdir())
    assert b"PRIVATE KEY" not in shipped
    assert b"CERTIFICATE" not in shipped
    assert str(trial.path.parent).encode() not in shipped  # nor where anything lies on the server's machine
    beside = {path.name for path in trial.path.iterdir()}
    assert beside == {"README.md", "app", "certificates", "data", "deploy", "flwr", "keys"}


def test_flower_finds_nothing_to_complain_about_in_the_app(federation):
    from flwr.cli.config_utils import load_and_validate

    config, warnings = load_and_validate(federation.app / "pyproject.toml", check_module=False)
    assert warnings == []
    assert config["project"]["dependencies"] == []
    assert config["tool"]["flwr"]["app"]["config"] == {"run": "", "runs": "", "validation": ""}


def test_only_the_owner_reads_private_keys_and_rows(trial):
    for silo in trial.silos():
        assert mode(trial.key(silo)) == 0o600
    for name in ("ca.key", "server.key"):
        assert mode(trial.certificates / name) == 0o600
    for folder in ("keys", "certificates", "data"):
        assert mode(trial.path / folder) == 0o700
    assert mode(trial.path) == 0o700  # the SuperLink's database and the runs will be in it
    guide = (trial.path / "README.md").read_text()
    for program in ("flower-superlink --host", *["while :; do\n"] * len(trial.silos())):
        block = guide[: guide.index(program)].rpartition("```sh")[2]
        assert block.startswith("\numask 077")
        guide = guide[guide.index(program) + 1 :]


def test_keys_are_those_that_flower_takes_and_differ(federation):
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    public = [try_load_public_key(federation.public_key(silo)) for silo in ("north", "south")]
    assert public[0] != public[1]
    for silo, key in zip(("north", "south"), public, strict=True):
        private = load_ssh_private_key(federation.key(silo).read_bytes(), None)
        assert private.curve.name == "secp384r1"
        assert public_key_to_bytes(private.public_key()) == key


@pytest.mark.parametrize("address", ["federation.example.org", "192.0.2.7", "127.0.0.1"])
def test_the_server_is_known_by_its_address_and_on_its_own_machine(tmp_path, schema, address):
    import ssl

    made = create(tmp_path / "fed", schema=schema, address=address, port=8443)
    for name in (address, "127.0.0.1", "localhost"):
        assert handshake(made.certificates, name, made.certificates / "ca.crt")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(made.certificates, "elsewhere.example.org", made.certificates / "ca.crt")
    other = create(tmp_path / "other", schema=schema, address=address)
    with pytest.raises(ssl.SSLCertVerificationError, match="verif"):
        handshake(made.certificates, address, other.certificates / "ca.crt")
    readme = (made.path / "README.md").read_text()
    assert f"--superlink {address}:8443" in readme
    assert ("location /v1/fleet/" in readme) == (address != "127.0.0.1")
    # commands go to the server's own machine, whatever the silos call it
    assert made.superlink() == ("127.0.0.1", 8443)


def handshake(certificates: Path, name: str, authority: Path) -> bool:
    """TLS between a server and a client in memory, by the strict rules of newer Pythons."""
    import ssl

    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    client = ssl.create_default_context(cafile=authority)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(back, there, server_hostname=name)
    two = server.wrap_bio(there, back, server_side=True)
    for side in (one, two, one, two):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return one.version() is not None


def test_every_command_of_the_readme_names_files_that_are_there(trial):
    text = (trial.path / "README.md").read_text()
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
    named = {word for line in blocks.splitlines() for word in re.findall(rf"{trial.path}[\w./-]*", line)}
    later = {trial.path / name for name in ("runs", "superlink.db", "simulated")}
    later |= {trial.path / "nodes" / silo / state for silo in trial.silos() for state in ("", "state")}
    for path in map(Path, named):
        assert path.exists() or path in later, path
    for path in (trial.app, trial.certificates / "server.key", *map(trial.public_key, trial.silos())):
        assert any(word.startswith(str(path)) for word in named), path
    for silo in trial.silos():
        assert shlex.quote(node_config(silo, trial.data(silo), trial.path / "nodes" / silo / "state")) in blocks


def test_the_commands_of_the_readme_exist(federation):
    """As the programs themselves understand them."""
    from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
    from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

    text = (federation.path / "README.md").read_text().replace("\\\n", " ")
    (link,) = re.findall(r"^flower-superlink (.*)$", text, re.MULTILINE)
    given = _parse_args_run_superlink().parse_args(shlex.split(link))
    assert (given.host, given.port, given.enable_supernode_auth) == ("127.0.0.1", 8000, True)
    nodes = re.findall(r"^  flower-supernode (.*)$", text, re.MULTILINE)
    parsed = [_parse_args_run_supernode().parse_args(shlex.split(node)) for node in nodes]
    assert [Path(node.auth_supernode_private_key) for node in parsed] == list(map(federation.key, ("north", "south")))
    assert len({node.port for node in parsed}) == 2


# -- the trial ---------------------------------------------------------------------------------------------------------


def test_a_trial_deals_all_rows_once_and_the_schema_fits_all_files(trial):
    schema = Schema.from_json((trial.app / "schema.json").read_text())
    tables = {path.stem: pd.read_parquet(path) for path in (trial.path / "data").iterdir()}
    assert set(tables) == {"hospital-a", "hospital-b", "hospital-c", "validation"}
    assert sum(map(len, tables.values())) == 6_167
    assert {silo: len(tables[silo]) for silo in trial.silos()} == {
        "hospital-a": 1645,
        "hospital-b": 1645,
        "hospital-c": 1644,
    }
    for frame in tables.values():
        assert schema.encode(frame).x.shape == (len(frame), 10)
        assert set(frame["sex"]) == {"Female", "Male"}  # as people write it, not as numbers


def test_the_same_trial_is_made_again(tmp_path, needs):
    needs("compas")
    one, two = (create(tmp_path / name, silos=["a", "b"]) for name in ("one", "two"))
    for silo in ("a", "b"):
        assert one.data(silo).read_bytes() == two.data(silo).read_bytes()
    assert not one.validation()
    assert one.key("a").read_bytes() != two.key("a").read_bytes()


def test_a_trial_can_be_simulated(trial):
    config = load_config(trial.federation)
    (fed,) = load_federations(config)
    assert config.method.name == "fair-fate"
    assert fed.ids == ("hospital-a", "hospital-b", "hospital-c")
    assert len(fed.validation) == 1233
    result = CliRunner().invoke(app, ["run", str(trial.federation), "--runs", str(trial.path / "sim"), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["rounds"] == 2


# -- for one's own files -----------------------------------------------------------------------------------------------


def test_a_table_gives_the_schema_and_none_of_its_rows(tmp_path):
    table().to_csv(tmp_path / "own.csv", index=False)
    done = invoke(
        *("init", tmp_path / "fed", "--silos", "north, south", "--method", "fedavg", "--rounds", 7),
        *("--address", "federation.example.org", "--port", 8443),
        *("--table", tmp_path / "own.csv", "--label", "cured", "--sensitive", "sex", "--positive", "no"),
    )
    assert done.exit_code == 0, done.output
    made = Folder.of(tmp_path / "fed")
    assert made.silos() == ["north", "south"]
    assert made.config().run.rounds == 7
    assert made.config().method.name == "fedavg"
    schema = Schema.from_json((made.app / "schema.json").read_text())
    assert (schema.label, schema.classes, schema.groups) == ("cured", ("yes", "no"), ("f", "m"))
    assert list((made.path / "data").iterdir()) == []
    assert done.stdout.strip().endswith("README.md")
    assert not [name for name in (tmp_path).iterdir() if name.name.startswith(".")]


def test_init_tells_programs_what_was_made(tmp_path, schema):
    (tmp_path / "agreed.json").write_text(schema.to_json())
    folder = tmp_path / "with space"
    done = invoke("init", folder, "--silos", "north,south", "--schema", tmp_path / "agreed.json", "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["folder"] == str(folder)
    assert set(said["files"]) == {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert {"keys/north", "app/schema.json", "deploy/silos/south/node.sh", "README.md"} <= set(said["files"])
    assert list(said["silos"]) == ["north", "south"]
    for silo, own in said["silos"].items():
        assert Path(own["public_key"]).is_file()
        assert Path(own["service"]).name == f"equifed-{silo}.service"
        assert Path(own["service"]).is_file()
        assert Path(own["rows"]) == folder / "data" / f"{silo}.parquet"
        assert shlex.split(own["bundle"]) == ["equifed", "flower", "bundle", str(folder), silo]
    commands = said["commands"]
    assert shlex.split(commands["superlink"]) == ["sh", str(folder / "deploy" / "server" / "superlink.sh")]
    assert shlex.split(commands["run_local"]) == ["equifed", "flower", "run", str(folder), "--local"]
    guide = (folder / "README.md").read_text()
    for command in commands["register"]:
        home, _, register = command.partition(" flwr ")
        assert f"export {home}\n" in guide  # the README says the same, in two lines
        assert f"\nflwr {register}\n" in guide


def test_the_schema_crosses_several_columns_and_holds_no_counts(tmp_path):
    frame = table()
    frame.to_csv(tmp_path / "own.csv", index=False)
    sizes = frame.groupby(["sex", "ward"]).size()
    least = int(sizes.sort_values().iloc[2])
    large = [f"{a} & {b}" for (a, b), n in sizes.items() if n >= least]
    done = invoke(
        *("init", tmp_path / "fed", "--table", tmp_path / "own.csv", "--label", "cured"),
        *("--sensitive", "sex,ward", "--min-group", least),
    )
    assert done.exit_code == 0, done.output
    schema = Schema.from_json((Folder.of(tmp_path / "fed").app / "schema.json").read_text())
    assert schema.groups == ("other (merged)", *large)
    assert schema.min_group == least


def test_a_schema_is_taken_as_it_is(tmp_path, schema):
    (tmp_path / "agreed.json").write_text(schema.to_json())
    done = invoke("init", tmp_path / "fed", "--schema", tmp_path / "agreed.json")
    assert done.exit_code == 0, done.output
    assert Schema.from_json((tmp_path / "fed" / "app" / "schema.json").read_text()) == schema


def test_regression_learns_slowly(tmp_path):
    schema = Schema.infer(table(), Columns(label="age", sensitive="sex", task="regression"))
    made = create(tmp_path / "fed", method="fedavg", schema=schema)
    assert made.config().run.local.learning_rate == 0.005


HOSTILE = {
    "name": [f"Adelheid Quixworth-{chr(65 + i // 26)}{chr(97 + i % 26)}" for i in range(60)],
    "record": [f"MRN-{7_340_000 + 13 * i}" for i in range(60)],
    "admitted": [f"19{47 + i % 50}-0{1 + i % 9}-1{i % 10}" for i in range(60)],
    "note": [f"came by bus {i}, said that the pear tree of row {i} is ill; see the letter" for i in range(60)],
    "illness": ["kuru", "kuru", *["cold", "flu"] * 29],
    "sex": ["intersex-xyzzy", *["f", "m"] * 29, "f"],
    "weight": [987.65625, 3.015625, *(60.0 + i % 30 for i in range(58))],
    "cured": ["no", "yes"] * 30,
}
"""A table of people, some of whom are easily known again."""
OF_FEW = {
    *(str(value) for column in ("name", "record", "admitted", "note") for value in HOSTILE[column]),
    *("Quixworth", "Adelheid", "Quentin", "MRN", "pear tree", "kuru", "xyzzy", "987.65", "3.0156"),
}
"""What only one or two rows have, and parts of it."""


def hostile(tmp_path: Path) -> list[Path]:
    """Two silos' files, of which one has a column more and some values less."""
    one = pd.DataFrame(HOSTILE)
    two = one.assign(name=one["name"].str.replace("Adelheid", "Quentin"), ward=["a", "b", "c"] * 20)
    two.loc[::7, "weight"] = None
    files = [tmp_path / "north.csv", tmp_path / "south.csv"]
    for frame, file in zip((one, two), files, strict=True):
        frame.to_csv(file, index=False)
    return files


def assert_nothing_of_few(content: bytes) -> None:
    assert [text for text in OF_FEW if text.encode() in content] == []


@pytest.mark.parametrize("source", ["table", "tables", "summaries"])
def test_nothing_that_names_a_person_leaves_in_the_app_or_a_bundle(tmp_path, source):
    files = hostile(tmp_path)
    options = ["--label", "cured", "--sensitive", "sex"]
    if source == "summaries":
        for file in files:
            told = summarise(pd.read_csv(file), Columns(label="cured", sensitive="sex"), name=file.stem)
            file.with_suffix(".json").write_text(told.to_json())
            assert_nothing_of_few(file.with_suffix(".json").read_bytes())
        options = [word for file in files for word in ("--summary", file.with_suffix(".json"))]
    else:
        options += [word for file in files[: 1 if source == "table" else 2] for word in ("--table", file)]
    done = invoke("init", tmp_path / "fed", "--silos", "north,south", *options, "--positive", "yes", "--json")
    assert done.exit_code == 0, done.output
    made, said = Folder.of(tmp_path / "fed"), json.loads(done.stdout)
    shipped = b"".join(path.read_bytes() for path in made.app.iterdir())
    assert_nothing_of_few(shipped)
    assert str(tmp_path).encode() not in shipped
    for silo in made.silos():
        packed = write_bundle(made, silo, tmp_path / f"{silo}.tar.gz").path
        assert_nothing_of_few(b"".join(content for name, content in everything(packed).items() if "/app/" in name))
    # the names of columns are no secret, and why each was left out is said
    assert {"name", "record", "admitted", "note"} <= said["left_out"].keys()
    assert not {"name", "record", "admitted", "note"} & set(said["inputs"])
    assert "Not used: record: " in done.stderr
    assert "Inputs: illness, weight" in done.stderr
    schema = Schema.from_json((made.app / "schema.json").read_text())
    assert {each.column: each.reason for each in schema.left_out} == said["left_out"]
    assert {"f", "m"} <= set(schema.groups)
    for file in files[: 1 if source == "table" else 2]:
        assert len(schema.encode(pd.read_csv(file)).x) == 60  # all rows can take part


@pytest.mark.parametrize("least", [0, 10])
def test_the_readme_says_from_how_many_rows_on_the_schema_tells(tmp_path, least):
    schema = Schema.infer(table(), Columns(label="cured", sensitive="sex", min_count=least))
    text = " ".join((create(tmp_path / "fed", schema=schema).path / "README.md").read_text().split())
    assert ("Values in fewer than 10 rows of a table are not disclosed in it" in text) == bool(least)
    assert ("check it before you send it" in text) == (not least)


def test_what_init_reads_off_a_table_can_be_said(tmp_path):
    south = hostile(tmp_path)[1]
    options = ["--table", south, "--label", "cured", "--sensitive", "sex"]
    chosen = ["--drop", "illness", "--date", "admitted=year", "--missing", "mean", "--min-count", 20]
    done = invoke("init", tmp_path / "fed", *options, *chosen)
    assert done.exit_code == 0, done.output
    schema = Schema.from_json((tmp_path / "fed" / "app" / "schema.json").read_text())
    frame = pd.read_csv(south)
    expected = Schema.infer(
        frame,
        Columns(
            label="cured", sensitive="sex", drop=["illness"], dates={"admitted": ["year"]}, missing="mean", min_count=20
        ),
    )
    assert schema == expected
    assert {column.name for column in schema.columns} == {"admitted", "weight", "ward"}
    invoke("init", tmp_path / "two", *options, "--features", "weight,ward")
    schema = Schema.from_json((tmp_path / "two" / "app" / "schema.json").read_text())
    assert [column.name for column in schema.columns] == ["weight", "ward"]


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"silos": ["one"]}, "at least two"),
        ({"silos": ["a", "b", "A"]}, "a and A are the same name"),
        ({"silos": ["a", "../b"]}, "'../b' cannot name a silo's files"),
        ({"silos": ["a", ""]}, "'' cannot name a silo's files"),
        ({"silos": ["a", "-b"]}, "'-b' cannot name a silo's files"),
        ({"silos": ["a", "Validation"]}, "'validation' names a file of the server"),
        ({"silos": ["a", "superlink"]}, "'superlink' names a file of the server"),
        ({"method": "fedavgg"}, "Did you mean 'fedavg'"),
        ({"method": "fair-fate+xx"}, "wrapper"),
        ({"method": "centralized-kernel"}, "trains on the rows of all clients in one place"),
        ({"rounds": 0}, "rounds must be"),
        ({"port": 70000}, "--port must be"),
        ({"address": "a:8000"}, "neither a host name nor an IPv4 address"),
        ({"address": "https://a"}, "neither a host name nor an IPv4 address"),
        ({"address": "10.0.0"}, "neither a host name nor an IPv4 address"),
        ({"address": "0.0.0.0"}, "neither a host name nor an IPv4 address"),
        ({"address": ""}, "neither a host name nor an IPv4 address"),
    ],
)
def test_mistakes_are_named_and_nothing_is_left(tmp_path, schema, options, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        create(tmp_path / "fed", **({"schema": schema} | options))
    assert list(tmp_path.iterdir()) == []


def test_a_method_that_cannot_learn_the_label_is_refused(tmp_path):
    schema = Schema.infer(table(), Columns(label="ward", sensitive="sex"))
    with pytest.raises(
        ConfigError, match="fair-fate is for binary labels, but the schema's label 'ward' is multiclass"
    ):
        create(tmp_path / "fed", method="fair-fate", schema=schema)


def test_nothing_is_overwritten(tmp_path, schema, federation):
    before = federation.key("north").read_bytes()
    with pytest.raises(ConfigError, match="is not empty and is not overwritten"):
        create(federation.path, schema=schema)
    assert federation.key("north").read_bytes() == before
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is a file"):
        create(tmp_path / "file", schema=schema)
    (tmp_path / "empty").mkdir()
    assert create(tmp_path / "empty", schema=schema).federation.is_file()


def test_a_path_that_flower_could_not_read_is_refused(tmp_path, schema):
    with pytest.raises(ConfigError, match="quote"):
        create(tmp_path / "it's", schema=schema)
    assert create(tmp_path / "with space", schema=schema).silos()


def test_a_failure_half_way_leaves_nothing(tmp_path, schema, monkeypatch):
    def fail(folder: Path, name: str) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(credentials, "write_key_pair", fail)
    with pytest.raises(OSError, match="disk full"):
        create(tmp_path / "fed", schema=schema)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--label", "cured"], 2, "--label: needs a table"),
        (["--table", "own.csv"], 2, "--table needs --label COLUMN and --sensitive COLUMN"),
        (
            ["--table", "own.csv", "--label", "curd", "--sensitive", "sex"],
            3,
            "own.csv: Column 'curd': the column is missing. 'cured' is there: is it 'curd'?",
        ),
        (["--table", "own.csv", "--label", "cured", "--sensitive", "gender"], 3, "has: age, ward, sex, cured"),
        ([*OWN, "--features", "age,wrad"], 3, "Column 'wrad': the column is missing"),
        ([*OWN, "--date", "admitted"], 2, "--date 'admitted' is not of the form COLUMN=PARTS"),
        ([*OWN, "--missing", "guess"], 2, "Unknown rule for missing values 'guess'"),
        ([*OWN, "--drop", "age,ward"], 3, "The table has no input column"),
        ([*OWN, "--table", "other/own.csv"], 2, "Two silo files are called 'own'"),
        (["--min-count", "5", "--drop", "age"], 2, "--drop, --min-count: needs a table"),
        (["--summary", "none.json"], 3, "none.json: There is no such file"),
        (["--summary", "own.csv"], 2, "own.csv: Not a valid summary"),
        (["--summary", "own.csv", "--label", "cured"], 2, "--label: the summaries define this already"),
        (
            ["--table", "own.csv", "--label", "cured", "--sensitive", "sex", "--positive", "maybe"],
            3,
            "no value 'maybe'",
        ),
        (["--table", "none.csv", "--label", "cured", "--sensitive", "sex"], 3, "none.csv: There is no such file"),
        (
            ["--table", "own.csv", "--label", "cured", "--sensitive", "sex", "--schema", "s.json"],
            2,
            "Give only one",
        ),
        (["--schema", "none.json"], 3, "none.json: There is no such file"),
        (["--schema", "own.csv"], 2, "Not a valid schema"),
        (["--silos", "a,b,a"], 2, "are the same name"),
    ],
)
def test_mistakes_of_the_command(tmp_path, monkeypatch, options, code, says):
    monkeypatch.chdir(tmp_path)
    table().to_csv("own.csv", index=False)
    done = invoke("init", "fed", *options)
    assert done.exit_code == code, done.output
    assert says in done.stderr
    assert not Path("fed").exists()


def test_without_flower_the_way_to_it_is_said(tmp_path, schema, monkeypatch):
    monkeypatch.setattr(installed, "find_spec", lambda name: None)
    for words in (["init", tmp_path / "fed"], ["demo", "--folder", tmp_path / "fed"]):
        done = invoke(*words)
        assert done.exit_code == 2
        assert "pip install 'equifed[flower]'" in done.stderr


@pytest.mark.full
def test_flower_is_only_imported_where_it_is_used():
    import subprocess
    import sys

    code = "import sys, equifed.cli.flower, equifed.cli.flower_runs; print('flwr' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# -- the commands, before anything is started --------------------------------------------------------------------------


def test_other_folders_are_no_federations(tmp_path):
    for name in ("run", "resume"):
        done = invoke(name, tmp_path)
        assert done.exit_code == 2
        assert "is not the folder of a federation" in done.stderr


def test_a_run_needs_a_superlink(federation):
    (port,) = free_ports(1)
    settings = federation.home / "config.toml"
    settings.write_text(settings.read_text().replace(":8000", f":{port}"))
    done = invoke("run", federation.path)
    assert done.exit_code == 4
    assert f"No SuperLink answers at 127.0.0.1:{port}. Start it here, as" in done.stderr
    assert "--local" not in done.stderr  # the silos' files are not here
    for silo in federation.silos():
        federation.data(silo).touch()
    done = invoke("run", federation.path)
    assert f"or run everything on this machine: equifed flower run {federation.path} --local" in done.stderr


def test_all_programs_here_need_all_rows_and_keys_here(federation):
    for silo in federation.silos():
        federation.data(silo).touch()
    federation.key("south").unlink()  # as the README asks for
    for command in (["run", federation.path, "--local"], ["demo", "--folder", federation.path]):
        done = invoke(*command)
        assert done.exit_code == 2
        assert f"lacks: {federation.key('south')} (key of south). Put them there, or start each silo" in done.stderr
    assert not federation.runs.exists()


def test_a_demo_leaves_a_folder_of_somebody_else_alone(tmp_path, federation):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    done = invoke("demo", "--folder", tmp_path / "mine")
    assert done.exit_code == 2
    assert "is not empty and is not overwritten" in done.stderr
    done = invoke("demo", "--folder", federation.path)
    assert done.exit_code == 2
    assert (
        f"lacks: {federation.data('north')} (rows of north); {federation.data('south')} (rows of south)" in done.stderr
    )
    done = invoke("demo", "--folder", federation.path, "--method", "kffl")
    assert done.exit_code == 2
    assert "already a federation, with fedavg-gr" in done.stderr


def test_resuming_where_there_is_nothing_to_resume(trial):
    done = invoke("resume", trial.path)
    assert done.exit_code == 2
    assert "has no run yet" in done.stderr
    ran = CliRunner().invoke(app, ["run", str(trial.federation), "--runs", str(trial.runs), "--json"])
    run = json.loads(ran.stdout)["run"]
    done = invoke("resume", trial.path)
    assert (done.exit_code, done.stdout) == (0, "")
    assert "have finished" in done.stderr
    done = invoke("resume", trial.path, run)
    assert done.exit_code == 0
    assert f"Run {run} has already finished" in done.stderr
    (trial.path / "elsewhere").mkdir()
    elsewhere = (trial.runs / run).rename(trial.path / "elsewhere" / run)
    done = invoke("resume", trial.path, elsewhere)
    assert done.exit_code == 2
    assert "is not a run of this federation" in done.stderr
