"""The folder of a federation: the app that travels to every silo, and beside it what must not.

README.md                     every command, for the server's machine and for each silo's
app/                          what `flwr run` ships to the nodes: pyproject.toml, app.py, federation.toml, schema.json
certificates/                 of the server, and of the authority that signed it
keys/NAME, NAME.pub           a silo's key pair
flwr/config.toml              where the SuperLink is; FLWR_HOME of the server's machine
data/                         of a trial: one file per silo, and the server's validation rows
runs/ logs/ local/            made later: results, the programs' logs, memory of what runs on this machine
"""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tomli_w

from equifed.config import Config, load_config, parse_config
from equifed.data import Schema, get_dataset
from equifed.errors import ConfigError, check_number
from equifed.flower.deployment.credentials import LOOPBACK, write_certificates, write_key_pair
from equifed.flower.deployment.installed import require_flower
from equifed.methods import make
from equifed.settings import Local

if TYPE_CHECKING:
    import pandas as pd

    from equifed.protocol import Method
from equifed.task import label_kind

NAME = "federation"
"""Of the SuperLink in Flower's config.toml."""
SILOS = ("hospital-a", "hospital-b", "hospital-c")
METHOD = "fedavg-gr"
ROUNDS = 5
ADDRESS = LOOPBACK[0]
PORT = 8000
VALIDATION = "validation"
VALIDATION_SHARE = 0.2
"""Of the trial's rows, which the server gets where the method needs rows of its own."""
HOST_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
SEED = 0
"""By which the trial's rows are dealt to the silos."""

APP = '''"""What Flower starts: on the server's machine `server`, on each silo's `client`."""

from pathlib import Path

from equifed.flower import client_app, server_app

FEDERATION = Path(__file__).with_name("federation.toml")
client = client_app(FEDERATION)
server = server_app(FEDERATION)
'''

HEADER = """\
# What is trained, by which method and for how long. It travels to every silo with the app, and has to be the same
# everywhere. Where all files are at hand, `equifed run` on it simulates the same federation.

"""


@dataclass(frozen=True)
class Folder:
    """A federation's folder that exists, and where things lie in it."""

    path: Path

    @classmethod
    def of(cls, path: Path) -> Folder:
        """The folder, if it is one."""
        folder = cls(path.resolve())
        if not folder.federation.is_file():
            raise ConfigError(f"{path} is not the folder of a federation. Make one with: equifed flower init {path}")
        return folder

    @property
    def app(self) -> Path:
        return self.path / "app"

    @property
    def federation(self) -> Path:
        return self.app / "federation.toml"

    @property
    def home(self) -> Path:
        """FLWR_HOME of the server's machine."""
        return self.path / "flwr"

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def certificates(self) -> Path:
        return self.path / "certificates"

    def key(self, silo: str) -> Path:
        return self.path / "keys" / silo

    def public_key(self, silo: str) -> Path:
        return self.path / "keys" / f"{silo}.pub"

    def data(self, silo: str) -> Path:
        return self.config().paths()[silo].resolve()

    def validation(self) -> Path | None:
        """The server's own rows, where the method needs them."""
        file = self.config().data.validation_file
        return None if file is None else (self.app / file).resolve()

    def silos(self) -> list[str]:
        return list(self.config().paths())

    def config(self) -> Config:
        return load_config(self.federation)

    def superlink(self) -> tuple[str, int]:
        """Where the SuperLink listens for commands, by Flower's config.toml."""
        file = self.home / "config.toml"
        try:
            host, _, port = tomllib.loads(file.read_text())["superlink"][NAME]["address"].rpartition(":")
            return host, int(port)
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"{file} does not say where the SuperLink {NAME!r} is ({error!r}).") from None


def create(
    path: Path,
    *,
    silos: Sequence[str] = SILOS,
    method: str = METHOD,
    rounds: int = ROUNDS,
    address: str = ADDRESS,
    port: int = PORT,
    schema: Schema | None = None,
) -> Folder:
    """A new folder. Without a schema it is a trial: COMPAS, dealt to the silos at random."""
    require_flower()
    target = path.resolve()
    _check_place(target)
    _check_silos(silos)
    _check_address(address, port)
    check_number("rounds", rounds, whole=True, low=1)
    trained = make(method)
    trial = schema is None
    tables, schema = _trial(silos, trained) if schema is None else ({}, schema)
    _check_method(trained, schema)
    files = {name: f"../data/{name}.parquet" for name in silos}
    local = Local().for_task(schema.task)
    needed = {"validation-file": f"../data/{VALIDATION}.parquet"} if trained.needs_validation else {}
    settings: dict[str, Any] = {
        "run": {"rounds": rounds},
        "data": {"schema": "schema.json", **needed, "files": files},
        "local": {
            "local-epochs": local.epochs,
            "batch-size": local.batch_size,
            "learning-rate": local.learning_rate,
        },
        "method": {"name": method},
        "flower": {"deadline": 300.0, "join-deadline": 300.0, "min-count": 10},
    }
    with _in_one_step(target) as draft:
        app = draft / "app"
        app.mkdir()
        (app / "app.py").write_text(APP, encoding="utf-8")
        (app / "pyproject.toml").write_text(tomli_w.dumps(_project(target)), encoding="utf-8")
        (app / "schema.json").write_text(schema.to_json(), encoding="utf-8")
        (app / "federation.toml").write_text(HEADER + tomli_w.dumps(settings), encoding="utf-8")
        parse_config(settings, source="federation.toml", folder=app)
        end = write_certificates(draft / "certificates", address)
        for silo in silos:
            write_key_pair(draft / "keys", silo)
        (draft / "flwr").mkdir()
        (draft / "flwr" / "config.toml").write_text(tomli_w.dumps(connection(target, port)), encoding="utf-8")
        (draft / "data").mkdir(mode=0o700)
        for name, table in tables.items():
            table.to_parquet(draft / "data" / f"{name}.parquet", index=False)
        words = {
            "folder": Folder(target),
            "silos": silos,
            "method": method,
            "rounds": rounds,
            "address": address,
            "port": port,
            "remote": address not in LOOPBACK,
            "trial": trial,
            "needs_validation": trained.needs_validation,
            "end": end.date().isoformat(),
            "schema": schema,
        }
        (draft / "README.md").write_text(_guide(words), encoding="utf-8")
    return Folder(target)


def connection(folder: Path, port: int) -> dict[str, Any]:
    """Flower's config.toml. Commands always go to this machine's own SuperLink: see the guide on its open port."""
    return {
        "superlink": {
            "default": NAME,
            NAME: {
                "address": f"{LOOPBACK[0]}:{port}",
                "root-certificates": str(folder / "certificates" / "ca.crt"),
            },
        }
    }


def node_config(silo: str, data: Path, state: Path) -> str:
    """A SuperNode's --node-config."""
    return f'client-id="{silo}" data="{data}" state="{state}"'


def schema_of_table(table: Path, label: str, sensitive: str, positive: str | None) -> Schema:
    """The schema that a table has, which the silos' files must have too."""
    from equifed.federation.tables import read_table

    frame = read_table(table)
    for option, column in (("--label", label), ("--sensitive", sensitive)):
        if column not in frame.columns:
            columns = ", ".join(map(str, frame.columns))
            raise ConfigError(f"{option} {column!r}: {table} has no such column. It has: {columns}.")
    return Schema.infer(frame, label=label, sensitive=sensitive, positive=positive)


def read_schema(path: Path) -> Schema:
    try:
        return Schema.from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--schema {path} cannot be read: {error}.") from None


# -- parts -------------------------------------------------------------------------------------------------------------


def _trial(silos: Sequence[str], method: Method) -> tuple[dict[str, pd.DataFrame], Schema]:
    """COMPAS as FAIR-FATE read it: its own columns and values, dealt at random, and their schema."""
    dataset = get_dataset("compas")
    preset = dataset.preset("fair-fate")
    frame, _ = dataset.table(preset)
    used = dict.fromkeys([*preset.features, *(rule.column for rule in preset.sensitive), preset.label])
    order = np.random.default_rng(SEED).permutation(len(frame))
    held = round(VALIDATION_SHARE * len(frame)) if method.needs_validation else 0
    rows = dict(zip(silos, np.array_split(order[held:], len(silos)), strict=True))
    if held:
        rows[VALIDATION] = order[:held]
    tables = {name: frame.loc[np.sort(chosen), list(used)] for name, chosen in rows.items()}
    return tables, preset.schema(frame)


def _project(folder: Path) -> dict[str, Any]:
    return {
        "project": {
            "name": "equifed-federation",
            "version": "1.0.0",
            "description": "A fair federation, trained with equifed.",
            "license": "Apache-2.0",
            "dependencies": [],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "equifed",
                    "components": {"serverapp": "app:server", "clientapp": "app:client"},
                    "config": {"runs": str(folder / "runs"), "run": "", "validation": ""},
                }
            }
        },
    }


def _guide(words: Mapping[str, Any]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("equifed.flower.deployment", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # it is Markdown
    )
    environment.filters["sh"] = lambda value: shlex.quote(str(value))
    return environment.get_template("guide.md.j2").render(words, node_config=node_config)


@contextmanager
def _in_one_step(target: Path) -> Iterator[Path]:
    """A draft beside the target that takes its place at the end, or leaves nothing behind."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise ConfigError(
            f"Cannot write to {target.parent} ({error.strerror or error}). Name another folder."
        ) from None
    with beside:
        draft = Path(beside.name) / target.name
        draft.mkdir()
        yield draft
        os.replace(draft, target)


def _check_place(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        what = "is not empty" if target.is_dir() else "is a file"
        raise ConfigError(f"{target} {what}; nothing is overwritten. Name a new folder, or remove this one.")
    if re.search(r"[\"'\\\x00-\x1f]", str(target)):
        raise ConfigError(f"{str(target)!r} holds a quote, backslash or control character, which Flower cannot take.")


def _check_silos(silos: Sequence[str]) -> None:
    for name in silos:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", name):
            raise ConfigError(
                f"--silos: {name!r} is no good name for a silo, whose files are called by it. Use up to 63 letters, "
                "digits, dashes and underscores, beginning with a letter or digit."
            )
    lower = [name.lower() for name in silos]
    twice = [name for name in silos if lower.count(name.lower()) > 1]
    if twice:
        raise ConfigError(f"--silos: {' and '.join(twice)} have the same name (large and small letters are alike).")
    for name in {VALIDATION, "superlink"} & set(lower):
        raise ConfigError(f"--silos: {name!r} is the name of a file of the server. Choose another.")
    if len(silos) < 2:
        raise ConfigError("--silos: a federation needs at least two silos, e.g. --silos hospital-a,hospital-b.")


def _check_address(address: str, port: int) -> None:
    check_number("--port", port, whole=True, low=1, high=65535)
    labels = address.split(".")
    numbers = labels[-1].isdigit()  # no host name ends like this, so it is meant as an IP address
    try:
        fits = bool(int(ipaddress.IPv4Address(address))) if numbers else all(map(HOST_LABEL.fullmatch, labels))
    except ValueError:
        fits = False
    if not fits or len(address) > 253:
        raise ConfigError(
            f"--address {address!r} is neither a host name nor an IPv4 address. Give the one by which the silos reach "
            "the server, without a port, e.g. federation.example.org."
        )


def _check_method(method: Method, schema: Schema) -> None:
    if method.pooled:
        raise ConfigError(
            f"{method.name} trains on the rows of all clients in one place, which a federation does not have. "
            "Choose another with --method; `equifed methods` lists them."
        )
    labels = label_kind(schema.task, len(schema.classes))
    if labels not in method.label_kinds:
        raise ConfigError(
            f"{method.name} is for {' or '.join(method.label_kinds)} labels, but the schema's label {schema.label!r} "
            f"is {labels}. Choose another with --method; `equifed methods` lists them."
        )
