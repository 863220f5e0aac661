"""A silo with a wrong clock is told so, and its node is started again whatever it ended with."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from equifed import Columns
from equifed.cli.app import app
from equifed.data import Schema
from equifed.errors import ConfigError, RunError
from equifed.flower.deployment import clock
from equifed.flower.deployment.bundle import write_bundle
from equifed.flower.deployment.credentials import write_certificates
from equifed.flower.deployment.folder import create
from flower.archives import unpack
from flower.test_folder import table

WAIT = 300
"""Seconds; only a program that hangs takes so long."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("server") / "certificates"
    write_certificates(folder, "127.0.0.1")
    return folder


@contextmanager
def served(certificates: Path, late: float = 0.0, dated: bool = True) -> Iterator[int]:
    """A server behind TLS whose clock is so late; its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(404)
            if dated:
                self.send_header("Date", formatdate(time.time() - late, usegmt=True))
            self.end_headers()

        def log_message(self, *about: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def compare(port: int, authority: Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["flower", "clock", f"127.0.0.1:{port}", str(authority)], env={"COLUMNS": "200"})
    return done.exit_code, done.stderr.strip()


@pytest.mark.parametrize(
    ("late", "code", "said"),
    [
        (20, 1, r"This clock is (19|20|21) s ahead of the server's: Flower allows 5\."),
        (-360, 1, r"This clock is 3(59|60|61) s behind the server's: Flower allows 305\."),
        (20 * 365 * 86400, 1, r"ahead of the server's: Flower allows 5\."),
        (-240, 0, r"are 2(39|40|41) s apart, which Flower allows\."),
        (0, 0, r"are [01] s apart, which Flower allows\."),
    ],
)
@pytest.mark.sample(2)
def test_a_clock_is_compared_with_the_servers(certificates: Path, late: float, code: int, said: str) -> None:
    with served(certificates, late) as port:
        found = compare(port, certificates / "ca.crt")
    assert found[0] == code
    assert re.search(said, found[1]), found[1]


def test_what_is_said_of_a_clock_is_what_flower_does() -> None:
    """By the limits of the interceptor that looks at a node's signature."""
    from flwr.server.superlink.fleet.grpc_rere import node_auth_server_interceptor as flower

    for ahead in (-400, -305.5, -304.5, -100, 0, 4.5, 5.5, 60):
        allowed = flower.MIN_TIMESTAMP_DIFF < -ahead < flower.MAX_TIMESTAMP_DIFF
        assert (clock.describe_offset(ahead) == "") is allowed, ahead


def test_a_clock_that_is_years_off_does_not_find_the_certificate_invalid(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate that has ended still says whose the server is."""
    contexts = []
    make = ssl.create_default_context

    def noting(**given: str) -> ssl.SSLContext:
        contexts.append(make(**given))
        return contexts[-1]

    monkeypatch.setattr(ssl, "create_default_context", noting)
    with served(certificates) as port:
        clock.seconds_ahead("127.0.0.1", port, certificates / "ca.crt")
    assert contexts[0].verify_flags & 0x200000  # OpenSSL's X509_V_FLAG_NO_CHECK_TIME
    assert contexts[0].verify_mode is ssl.CERT_REQUIRED
    assert contexts[0].check_hostname


def test_who_cannot_be_compared_with_is_said(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "PATIENCE", 0.2)
    authority = certificates / "ca.crt"
    with served(certificates, dated=False) as port, pytest.raises(RunError, match="its answer has no date"):
        clock.seconds_ahead("127.0.0.1", port, authority)
    with pytest.raises(RunError, match=f"with that of 127.0.0.1:{port}: Connection refused"):
        clock.seconds_ahead("127.0.0.1", port, authority)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(RunError, match="timed out"):
        clock.seconds_ahead("127.0.0.1", silent.getsockname()[1], authority)
    write_certificates(tmp_path / "other", "127.0.0.1")
    with served(certificates) as port, pytest.raises(RunError, match="certificate verify failed"):
        clock.seconds_ahead("127.0.0.1", port, tmp_path / "other" / "ca.crt")
    with pytest.raises(ConfigError, match=r"The certificate .*none\.crt cannot be read: No such file"):
        clock.seconds_ahead("127.0.0.1", port, tmp_path / "none.crt")
    assert compare(0, authority) == (
        2,
        "Error: The server '127.0.0.1:0' is not of the form HOST:PORT, such as federation.example.org:8000.",
    )


# -- the silo's script -------------------------------------------------------------------------------------------------


def at_the_silo(place: Path, port: int) -> Path:
    """A silo's folder for the server at this port, with programs in its virtual environment that stand for Flower's: a
    node that ends with 0, then with 7, then stays, and a pause that takes no time."""
    schema = Schema.infer(table(), Columns(label="cured", sensitive="sex", positive="yes"))
    made = create(place / "fed", silos=("north", "south"), schema=schema, method="fedavg", port=port)
    write_bundle(made, "north", place / "north.tar.gz")
    own = unpack(place / "north.tar.gz", place / "there")
    (own / "data" / "north.parquet").touch()
    node = f"""
        echo started >> {shlex.quote(str(own / "starts"))}
        case $(wc -l < {shlex.quote(str(own / "starts"))}) in 1) exit 0 ;; 2) exit 7 ;; esac
        echo $$ > {shlex.quote(str(own / "pid"))}.new
        mv {shlex.quote(str(own / "pid"))}.new {shlex.quote(str(own / "pid"))}
        exec {shlex.quote(str(shutil.which("sleep")))} 1000
        """
    equifed = f'exec {shlex.quote(sys.executable)} -c "from equifed.cli import main; main()" "$@"'
    programs = own / "venv" / "bin"
    programs.mkdir(parents=True)
    for name, code in {"flower-supernode": node, "sleep": "exit 0", "equifed": equifed}.items():
        (programs / name).write_text(f"#!/bin/sh\n{code}\n")
        (programs / name).chmod(0o755)
    return own


@pytest.mark.full
def test_a_node_is_started_again_whatever_it_ends_with(tmp_path: Path, certificates: Path) -> None:
    """And before each start the clocks are compared. A signal to the script ends the node with it."""
    with served(certificates, late=20) as port:
        own = at_the_silo(tmp_path, port)
        (own / "ca.crt").write_bytes((certificates / "ca.crt").read_bytes())
        script = subprocess.Popen(
            ["sh", own / "node.sh"], cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            end = time.monotonic() + WAIT
            while not (own / "pid").exists():
                assert script.poll() is None, script.communicate()
                assert time.monotonic() < end
                time.sleep(0.02)
            node = int((own / "pid").read_text())
            script.send_signal(signal.SIGTERM)
            said, _ = script.communicate(timeout=WAIT)
        finally:
            script.kill()
            script.wait()
    assert script.returncode == 143
    with pytest.raises(ProcessLookupError):
        os.kill(node, 0)
    lines = [line for line in said.splitlines() if line.startswith(("This clock", "The node"))]
    assert [line.partition(" s ahead")[0].rstrip("0123456789") for line in lines] == [
        "This clock is ",
        "The node has ended with exit code 0 and is restarted in 10 s.",
        "This clock is ",
        "The node has ended with exit code 7 and is restarted in 10 s.",
        "This clock is ",
    ]


def test_a_server_that_cannot_be_asked_keeps_no_node_from_starting(tmp_path: Path) -> None:
    """The node itself says that it cannot connect."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    own = at_the_silo(tmp_path, port)
    (own / "venv" / "bin" / "sleep").write_text("#!/bin/sh\nkill $PPID\n")
    done = subprocess.run(["sh", own / "node.sh"], cwd="/", capture_output=True, text=True, timeout=WAIT)
    assert (own / "starts").read_text() == "started\n"
    assert "This clock could not be compared" in done.stderr


def test_the_guide_has_what_flower_allows() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "federation.md").read_text(encoding="utf-8")
    (ahead, behind) = re.findall(r"more than (\d+) seconds ahead of the server's or (\d+) behind", page)[0]
    assert clock.describe_offset(float(ahead) + 0.1)
    assert not clock.describe_offset(float(ahead) - 0.1)
    assert clock.describe_offset(-float(behind) - 0.1)
    assert not clock.describe_offset(-float(behind) + 0.1)
