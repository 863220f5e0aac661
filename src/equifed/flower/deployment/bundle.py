"""A silo's bundle: one archive with all that its machine needs, and nothing from other silos.

NAME/README.md                                     every command, for this silo
NAME/node.sh, equifed-NAME.service                 the node: its script, and the service that keeps it running
NAME/Dockerfile, compose.yaml, wheels/             the node in a container
NAME/ca.crt, keys/NAME, keys/NAME.pub              to authenticate the server, and the silo to the server
NAME/app/federation.toml, app/schema.json          the configuration that it is asked to take part in
NAME/roster.json                                   in a trial with secure sums
NAME/data/, state/                                 empty: for the silo's rows, and for the node's state
"""

from __future__ import annotations

import gzip
import io
import tarfile
from dataclasses import dataclass
from pathlib import Path

from equifed.errors import ConfigError, unknown_name
from equifed.files import read_regular, write_atomic
from equifed.flower.deployment.folder import Folder, service_of
from equifed.flower.deployment.installed import require_flower

DATE = 315532800
"""Timestamp of all entries, for reproducible archives: 1980-01-01, which all tools accept."""
EMPTY = ("data", "state")
PRIVATE = 0o700


@dataclass(frozen=True)
class Bundle:
    """A bundle that was written."""

    path: Path
    files: tuple[str, ...]
    key: bool
    """True if the silo's private key is in it."""


def write_bundle(folder: Folder, silo: str, path: Path, *, key: bool = True) -> Bundle:
    """Write all that the silo needs to a compressed archive that only its owner can read.

    key: include the silo's private key, if the folder has it. Use False if the silo has made its own key.
    """
    require_flower()
    if silo not in folder.silos():
        raise unknown_name("silo", silo, folder.silos())
    if path.exists():
        raise ConfigError(f"{path} exists and is not overwritten. Name a new file, or remove this one.")
    content = _content(folder, silo, key)
    _check_paths(folder, content)
    files = tuple(sorted(content))
    write_atomic(path, _archive(silo, content), mode=0o600)
    return Bundle(path, files, f"keys/{silo}" in content)


def _content(folder: Folder, silo: str, key: bool) -> dict[str, bytes]:
    """Return the files' content by their names in the bundle."""
    own, schema = folder.for_silo(silo), str(folder.config().data.schema_)
    if not (folder.app / schema).resolve().is_relative_to(folder.app):
        raise ConfigError(f"The schema {schema} lies outside of {folder.app}, so it is not shipped. Move it there.")
    sources = {name: own / name for name in ("README.md", "node.sh", "compose.yaml", service_of(silo))}
    sources |= {
        **{name: folder.deploy / name for name in ("Dockerfile", ".dockerignore")},
        "ca.crt": folder.certificates / "ca.crt",
        "app/federation.toml": folder.federation,
        f"app/{schema}": folder.app / schema,
    }
    sources |= {f"wheels/{wheel.name}": wheel for wheel in folder.wheels.glob("*.whl")}
    if key and folder.key(silo).is_file():
        _check_pair(folder, silo)
        sources |= {f"keys/{silo}": folder.key(silo), f"keys/{silo}.pub": folder.public_key(silo)}
    if folder.roster is not None:
        sources["roster.json"] = folder.roster
    try:
        return {name: read_regular(file) for name, file in sources.items()}
    except FileNotFoundError as error:
        raise ConfigError(
            f"The bundle of {silo} needs {error.filename}, which does not exist. If another version of equifed "
            "made the folder, make it again with: equifed flower init"
        ) from error


def _check_pair(folder: Folder, silo: str) -> None:
    """Raise if the private key does not match the public one: the silo may have made and sent its own since."""
    from equifed.flower.deployment.credentials import public_of

    public = folder.public_key(silo)
    if not public.is_file() or read_regular(public).split()[:2] != public_of(folder.key(silo)).split()[:2]:
        raise ConfigError(
            f"{folder.key(silo)} is not the private key of {public.name} in the same folder. If {silo} has made its "
            "own key, remove this one, or bundle with --no-key."
        )


def _check_paths(folder: Folder, content: dict[str, bytes]) -> None:
    """Raise if a file names a path of this machine, which is private and useless to the silo."""
    data = folder.config().data
    files = data.files.values() if isinstance(data.files, dict) else data.files or ()
    named = [place for place in (*files, data.validation_file) if place and Path(place).is_absolute()]
    places = [str(folder.path), *named]
    for name, text in content.items():
        for place in places:
            if not name.startswith("wheels/") and place.encode() in text:
                raise ConfigError(
                    f"{name} names {place}, a path of this machine, and would be sent to the silo. Write it "
                    "relative to the folder app/, such as ../data/NAME.parquet."
                )


def _archive(silo: str, content: dict[str, bytes]) -> bytes:
    """Build a reproducible archive: sorted entries, fixed timestamp, no owner."""
    folders = {silo, *(f"{silo}/{name}" for name in (*EMPTY, "wheels", "keys"))}
    files = {f"{silo}/{name}": data for name, data in content.items()}
    folders |= {str(Path(name).parent) for name in files}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(folders | set(files)):
            entry = tarfile.TarInfo(name)
            entry.mtime = DATE
            if name in folders:
                entry.type, entry.mode = tarfile.DIRTYPE, PRIVATE
                archive.addfile(entry)
            else:
                entry.mode, entry.size = _mode(name), len(files[name])
                archive.addfile(entry, io.BytesIO(files[name]))
    return gzip.compress(packed.getvalue(), mtime=0)


def _mode(name: str) -> int:
    """Return a file's mode: only the key is secret, and all folders are readable by their owner only."""
    return 0o600 if "/keys/" in name else 0o644
