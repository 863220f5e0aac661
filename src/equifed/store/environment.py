"""What a run depended on besides its configuration: versions and data. Nothing that names a person or a machine."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from equifed import modules
from equifed.config import Config, identity, named
from equifed.federation import Federation
from equifed.metrics.catalogue import METRICS

if TYPE_CHECKING:
    from equifed.simulator import Job

PACKAGE = Path(__file__).parent.parent


def environment(job: Job) -> dict[str, Any]:
    """What the job runs with: versions, device, threads."""
    return {**versions(), "device": str(job.device), "threads": job.threads}


def versions() -> dict[str, Any]:
    """Versions, platform, and the commit of equifed, with what changed since, where it runs from a checkout."""
    return {
        "equifed": version("equifed"),
        "commit": revision(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
    }


def sources(config: Config) -> dict[str, str]:
    """A hash of the file of every module that something of the configuration is from, by `module:Name`: neither the
    configuration nor a version says that it has changed."""
    sections = identity(config.resolved())
    for name in named({"run": sections["run"]}):  # metrics, which are not imported when a configuration is read
        if ":" in name:
            METRICS[name]
    modules = {name.partition(":")[0] for name in named(sections) if ":" in name}
    files = {module: getattr(sys.modules.get(module), "__file__", None) for module in sorted(modules)}
    return {module: _hash(Path(file)) for module, file in files.items() if file and Path(file).is_file()}


def data_record(config: Config, job: Job) -> dict[str, Any]:
    """Which data a run used: names, file hashes, a fingerprint of the rows as each seed's clients hold them, and of
    what is frozen in the model and of the user's own code, which are not in the configuration either."""
    federations = federations_of(config, job)
    first, frozen = federations[0], modules.fingerprint(job.task.module)
    return {
        "name": config.data.title,
        "preset": config.data.preset,
        "seeds": config.run.seed_list,
        "provenance": dict(first.provenance),
        "files": {name: _hash(path) for name, path in config.tables().items() if path.is_file()},
        "fingerprint": fingerprint(federations),
        **({"frozen": frozen} if frozen else {}),
        **({"code": code} if (code := sources(config)) else {}),
    }


def federations_of(config: Config, job: Job) -> list[Federation]:
    """One for each seed; the settings of a sweep share them."""
    return [run.federation for run in job.runs[: len(config.run.seed_list)]]


def fingerprint(federations: Sequence[Federation]) -> str:
    """A hash of all rows and of who holds them; rows that federations share are read once."""
    digest = hashlib.blake2b(digest_size=16)
    seen: set[int] = set()
    for fed in federations:
        arrays = [fed.train.index, fed.train.start, fed.train.stop, fed.validation, fed.test]
        if fed.mapped is not None:  # of the rows in its file a hash was taken when it was made
            about = fed.mapped.file.about
            digest.update(f"{about['digest']} {about['clients_checksum']}".encode())
            arrays += fed.mapped.held.values()
        if id(fed.rows.x) not in seen:
            seen.add(id(fed.rows.x))
            arrays += [array for array in fed.rows if array is not None]
        for array in arrays:
            digest.update(np.ascontiguousarray(array).data)
        if fed.mapped is None:
            digest.update("\0".join(fed.ids).encode())
    return digest.hexdigest()


def _hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def commit(*others: Path) -> str | None:
    """The last commit that touched the package or one of these other folders, or None where they are not under git."""
    return _git("log", "-1", "--format=%H", others=others) or None


@cache
def is_changed(*others: Path) -> bool:
    """Whether the package and the other folders are under git and have changes that are not committed."""
    return bool(_git("status", "--porcelain", others=others))


@cache
def revision(*others: Path) -> str | None:
    """The commit of the package and of other folders; where they have changes since, also a hash of their files: other
    changes are another revision."""
    last = commit(*others)
    if last is None or not is_changed(*others):
        return last
    digest = hashlib.blake2b(digest_size=8)
    files = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard", others=others)
    for name in sorted(filter(None, files.split("\0"))):
        path = PACKAGE / name
        if path.is_file():  # and was not removed
            digest.update(f"{name} {_hash(path)}\n".encode())
    return f"{last}+{digest.hexdigest()}"


def _git(*command: str, others: Sequence[Path] = ()) -> str:
    """What git says of the package and of other folders; nothing where they are not under git."""
    try:
        said = subprocess.run(
            ["git", *command, "--", ".", *map(str, others)],
            cwd=PACKAGE,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return said.stdout.strip()
