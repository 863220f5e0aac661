"""The folder of a federation: the app, which is sent to every silo, and all other files, which must not be.

README.md                     every command, for the server's machine and for each silo's
app/                          shipped to the nodes by `flwr run`: pyproject.toml, app.py, federation.toml, schema.json
certificates/                 of the server, and of the authority that signed it
keys/NAME, NAME.pub           a silo's key pair
roster.json                   in a trial with secure sums: the silos' public keys, otherwise collected by the silos
flwr/config.toml              the SuperLink's address; FLWR_HOME of the server's machine
deploy/                       scripts, services and container files: server/ for the server, silos/NAME/ for a silo
data/                         in a trial: one file per silo, and the server's validation rows
runs/ logs/ local/            made later: results, the programs' logs, state of programs on this machine
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shlex
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from equifed.config import Config, load_config
from equifed.data import Schema, get_dataset
from equifed.errors import ConfigError, check_number
from equifed.files import check_writable
from equifed.flower.deployment.installed import require_flower
from equifed.methods import make, summable_names
from equifed.secure import FEWEST, threshold
from equifed.settings import Local
from equifed.task import label_kind
from equifed.words import MOST, quoted

if TYPE_CHECKING:
    import pandas as pd
    from jinja2 import Environment

    from equifed.protocol import Method

NAME = "federation"
"""Name of the SuperLink in Flower's config.toml."""
SILOS = ("hospital-a", "hospital-b", "hospital-c")
METHOD = "fedavg-gr"
ROUNDS = 5
LOOPBACK = ("127.0.0.1", "localhost")
ADDRESS = LOOPBACK[0]
PORT = 8000
VALIDATION = "validation"
VALIDATION_SHARE = 0.2
"""Share of the trial's rows that the server gets if the method needs validation rows."""
HOME = "EQUIFED_FEDERATION"
"""Environment variable by which the server's app finds this folder, since a shipped app contains no paths."""
README = "README.md.j2"
SILO = "silo/"
"""Prefix of the templates of each silo's files, in `deploy/silos/NAME`."""
SERVICE = "service.j2"
SILO_PORT = 9094
"""Port of the first silo's node on its machine; the other silos' follow, so that all nodes can share a machine."""
PLACE = "/srv/equifed"
"""Default folder of a silo's service."""
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""Settings that stop Flower's programs from contacting the network."""
HOST_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
SEED = 0
"""Seed for distributing the trial's rows among the silos."""


class Folder:
    """A federation's folder and the paths of its files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.app, self.runs, self.logs = path / "app", path / "runs", path / "logs"
        self.federation = self.app / "federation.toml"
        self.certificates = path / "certificates"
        self.readme = path / "README.md"
        self.deploy = path / "deploy"
        self.superlink_script = self.deploy / "server" / "superlink.sh"
        self.wheels = self.deploy / "wheels"
        """Packages for the containers that are not on a package index."""
        self.home = path / "flwr"
        """FLWR_HOME of the server's machine."""

    @classmethod
    def of(cls, path: Path) -> Folder:
        """Return the folder; raise if it does not hold a federation."""
        folder = cls(path.resolve())
        if not folder.federation.is_file():
            raise ConfigError(f"{path} is not the folder of a federation. Make one with: equifed flower init {path}")
        return folder

    def key(self, silo: str) -> Path:
        return self.path / "keys" / silo

    def public_key(self, silo: str) -> Path:
        return self.path / "keys" / f"{silo}.pub"

    def for_silo(self, silo: str) -> Path:
        """Return the folder of the silo's files other than certificate and key."""
        return self.deploy / "silos" / silo

    @property
    def roster(self) -> Path | None:
        """The file with the silos' public keys, if the folder has one."""
        file = self.path / "roster.json"
        return file if file.is_file() else None

    def data(self, silo: str) -> Path:
        return self.config().paths()[silo].resolve()

    def validation(self) -> Path | None:
        """Return the file with the server's validation rows, if there is one."""
        file = self.config().data.validation_file
        return None if file is None else (self.app / file).resolve()

    def list_missing(self) -> dict[Path, str]:
        """Return the missing files that running all programs on one machine needs, with a description of each."""
        needed = {self.data(silo): f"rows of {silo}" for silo in self.silos()}
        needed |= {self.key(silo): f"key of {silo}" for silo in self.silos()}
        needed |= {self.public_key(silo): f"public key of {silo}" for silo in self.silos()}
        if validation := self.validation():
            needed[validation] = "validation rows of the server"
        return {file: what for file, what in needed.items() if not file.is_file()}

    def silos(self) -> list[str]:
        return list(self.config().paths())

    def config(self) -> Config:
        return load_config(self.federation)

    def superlink(self) -> tuple[str, int]:
        """Return host and port of the SuperLink's control address, from Flower's config.toml."""
        file = self.home / "config.toml"
        try:
            host, _, port = tomllib.loads(file.read_text(encoding="utf-8"))["superlink"][NAME]["address"].rpartition(
                ":"
            )
            return host, int(port)
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"{file} has no valid address of the SuperLink {NAME!r} ({error!r}).") from None


def create(
    path: Path,
    *,
    silos: Sequence[str] = SILOS,
    method: str = METHOD,
    rounds: int = ROUNDS,
    address: str = ADDRESS,
    port: int = PORT,
    schema: Schema | None = None,
    suffix: str = ".parquet",
    secure: bool = False,
) -> Folder:
    """Create a federation's folder. Without a schema it is a trial: COMPAS, distributed among the silos at random.
    suffix: that of the silos' files. secure: use secure sums, which hide single replies from the server."""
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
    if secure:
        _check_secure(trained, silos)
    from equifed.flower.deployment import credentials

    with _in_one_step(target) as draft:
        end = credentials.write_certificates(draft / "certificates", address)
        for silo in silos:
            credentials.write_key_pair(draft / "keys", silo)
        if secure and trial:
            from equifed.secure import Roster

            Roster.collect(Folder(draft).public_key(silo) for silo in silos).write(draft / "roster.json")
        (draft / "data").mkdir(mode=0o700)
        for name, table in tables.items():
            table.to_parquet(draft / "data" / f"{name}.parquet", index=False)
        words = {
            "folder": Folder(target),
            "silos": silos,
            "schema": schema,
            "suffix": suffix,
            "method": method,
            "rounds": rounds,
            "local": Local().for_task(schema.task),
            "address": address,
            "port": port,
            "remote": address not in LOOPBACK,
            "trial": trial,
            "needs_validation": trained.needs_validation,
            "secure": secure,
            "threshold": threshold(len(silos)),
            "digest": partial(_digest, Folder(draft)),
            "end": end.date().isoformat(),
            "version": version("equifed"),
            "programs": Path(sys.executable).parent,
            "user": _owner(draft),
            "place": PLACE,
            "ports": {silo: SILO_PORT + index for index, silo in enumerate(silos)},
        }
        (draft / "app").mkdir()
        (draft / "app" / "schema.json").write_text(schema.to_json(), encoding="utf-8")
        Folder(draft).wheels.mkdir(parents=True)
        for name in sorted(
            _templates().list_templates(filter_func=_is_file), key=README.__eq__
        ):  # README last: it may contain the app's digest
            if name.startswith(SILO):
                for silo in silos:
                    _write(Folder(draft).for_silo(silo) / _name_file(silo, name), render(name, words | {"silo": silo}))
            else:
                _write(draft / name.removesuffix(".j2"), render(name, words))
    return Folder(target)


def _is_file(template: str) -> bool:
    """Return True if a template makes a file; others are included in several."""
    return not template.startswith("_")


def _name_file(silo: str, template: str) -> str:
    name = template.removeprefix(SILO)
    return service_of(silo) if name == SERVICE else name.removesuffix(".j2")


def service_of(silo: str) -> str:
    """Return the name of the systemd unit of a silo's node."""
    return f"equifed-{silo}.service"


def _owner(path: Path) -> str:
    """Return the owner's name, or the user id if the system has no name for it."""
    try:
        return path.owner()
    except (KeyError, NotImplementedError):
        return str(path.stat().st_uid)


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def render(template: str, words: Mapping[str, Any]) -> str:
    """Render a file of the folder from its template, which has the same name and `.j2`."""
    return _templates().get_template(template).render(words)


def install_command() -> str:
    """Return the command that installs this version of equifed on another machine."""
    return f"pip install 'equifed[flower]=={version('equifed')}'"


def node_config(
    silo: str, data: Path | str, state: Path | str, key: Path | str = "", roster: Path | str | None = "", app: str = ""
) -> str:
    """Return a SuperNode's --node-config; with the node's `key` it takes part in secure sums only."""
    values = {"client-id": silo, "data": data, "state": state, "key": key, "roster": roster, "app": app}
    secure = ["secure=true"] if key else []
    return " ".join([*(f'{name}="{value}"' for name, value in values.items() if value), *secure])


def _digest(folder: Folder) -> str:
    from equifed.flower.agreement import Setting

    return Setting.load(folder.federation).digest


# -- parts -------------------------------------------------------------------------------------------------------------


def _trial(silos: Sequence[str], method: Method) -> tuple[dict[str, pd.DataFrame], Schema]:
    """Return COMPAS with FAIR-FATE's columns and values, split among the silos at random, and its schema."""
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


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("equifed.flower.deployment"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # the templates are not HTML
    )
    environment.filters["sh"] = lambda value: shlex.quote(str(value))
    environment.filters["expanding"] = lambda value: '"' + str(value).replace('"', '\\"') + '"'  # $NAME is replaced
    environment.filters["toml"] = lambda value: json.dumps(str(value), ensure_ascii=False)
    environment.filters["yaml"] = lambda value: json.dumps(str(value), ensure_ascii=False).replace("$", "$$")
    environment.filters["unit"] = lambda value: str(value).replace("%", "%%")
    environment.globals.update(node_config=node_config, service_of=service_of, install=install_command(), quiet=QUIET)
    return environment


@contextmanager
def _in_one_step(target: Path) -> Iterator[Path]:
    """Yield a draft folder that replaces the target at the end, or is removed on an error."""
    check_writable(target.parent, "Name another folder.")
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as beside:
        draft = Path(beside) / target.name
        draft.mkdir(mode=0o700)
        yield draft
        os.replace(draft, target)


def _check_place(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        what = "is not empty" if target.is_dir() else "is a file"
        raise ConfigError(f"{target} {what} and is not overwritten. Name a new folder, or remove this one.")
    if re.search(r"[\"'\\\x00-\x1f\x7f\ud800-\udfff]", str(target)):
        raise ConfigError(
            f"The path {quoted(str(target), MOST)} holds a quote, a backslash, a control character or a byte that is "
            "not text, which Flower does not accept. Choose another folder."
        )


def _check_silos(silos: Sequence[str]) -> None:
    for name in silos:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", name):
            raise ConfigError(
                f"--silos: {name!r} cannot name a silo's files. Use up to 63 letters, digits, dashes and underscores, "
                "beginning with a letter or digit."
            )
    lower = [name.lower() for name in silos]
    twice = [name for name in silos if lower.count(name.lower()) > 1]
    if twice:
        raise ConfigError(f"--silos: {' and '.join(twice)} are the same name (case is ignored). Rename one.")
    for name in {VALIDATION, "superlink"} & set(lower):
        raise ConfigError(f"--silos: {name!r} names a file of the server. Choose another name.")
    if len(silos) < 2:
        raise ConfigError("--silos: a federation needs at least two silos, e.g. --silos hospital-a,hospital-b.")


def _check_address(address: str, port: int) -> None:
    check_number("--port", port, whole=True, low=1, high=65535)
    labels = address.split(".")
    numbers = labels[-1].isdigit()  # host names do not end like this, so it is meant as an IP address
    try:
        fits = bool(int(ipaddress.IPv4Address(address))) if numbers else all(map(HOST_LABEL.fullmatch, labels))
    except ValueError:
        fits = False
    if not fits or len(address) > 253:
        raise ConfigError(
            f"--address {address!r} is neither a host name nor an IPv4 address. Give the address at which the silos "
            "reach the server, without a port, e.g. federation.example.org."
        )


def _check_secure(method: Method, silos: Sequence[str]) -> None:
    if len(silos) < FEWEST:
        raise ConfigError(
            f"--secure: secure sums need at least {FEWEST} silos, got {len(silos)}: a smaller sum would disclose "
            "replies. Name more silos with --silos, or omit --secure."
        )
    if method.summed is None:
        raise ConfigError(
            f"--secure hides each silo's reply, which {method.name} needs. Methods that work with secure sums: "
            f"{', '.join(summable_names())}."
        )


def _check_method(method: Method, schema: Schema) -> None:
    if method.pooled:
        raise ConfigError(
            f"{method.name} trains on the rows of all clients in one place, which a federation cannot do. "
            "Choose another with --method; `equifed methods` lists them."
        )
    labels = label_kind(schema.task, len(schema.classes))
    if labels not in method.label_kinds:
        raise ConfigError(
            f"{method.name} is for {' or '.join(method.label_kinds)} labels, but the schema's label {schema.label!r} "
            f"is {labels}. Choose another with --method; `equifed methods` lists them."
        )
