"""Start Flower's programs: a run on a SuperLink, or a trial federation on this machine, over TLS."""

from __future__ import annotations

import hashlib
import os
import socket
import time
from pathlib import Path
from typing import Self

from equifed.errors import RunError
from equifed.files import make_private_folder
from equifed.flower.deployment.folder import HOME, LOOPBACK, NAME, QUIET, Folder, node_config, render
from equifed.flower.deployment.installed import programs
from equifed.flower.deployment.processes import GRACE, Processes
from equifed.store.locks import lock_at, take

HOST = LOOPBACK[0]
READY = 60.0
"""Seconds in which a program must have started, or a command must have finished."""
PAUSE = 0.1
RESTART = 'until "$@"; do sleep 5; done'
"""Script that restarts a crashed node; the SuperLink refuses it for up to a minute, until it deems the old one dead."""


def environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's programs: PATH, a separate FLWR_HOME, and no network access but loopback."""
    direct = ",".join((*LOOPBACK, *filter(None, [os.environ.get("NO_PROXY") or os.environ.get("no_proxy")])))
    return {
        "PATH": os.pathsep.join([str(programs()), os.environ.get("PATH", os.defpath)]),
        "FLWR_HOME": str(home),
        **QUIET,
        "PYTHONUNBUFFERED": "1",
        "NO_PROXY": direct,
        "no_proxy": direct,
    }


class SubmittedRun(Processes):
    """A run on a SuperLink by `flwr run`, which shows the server's output until the run ends."""

    def __init__(self, folder: Folder, home: Path | None = None, mark: str | None = None) -> None:
        super().__init__(folder.logs, mark)
        self.folder = folder
        self.home = home or folder.home

    def run(self, run_id: str) -> None:
        """Start a run with this id, or resume it."""
        self._flwr(run_id, "run", self.folder.app, NAME, "--stream", "--run-config", f'run="{run_id}"')

    def _flwr(self, name: str, *words: str | Path) -> None:
        self.start(name, [programs() / "flwr", *words], environment(self.home), self.folder.path)


class LocalFederation(SubmittedRun):
    """The SuperLink and SuperNodes of a federation on this machine, on free ports of the loopback interface.

    TLS and node authentication work as between machines. The programs' files are in the folder's `local/`: the
    SuperLink's database with the registered keys, and for each node a separate home (nodes that share one would read
    an app while another is still unpacking it) and the silo's state.
    """

    def __init__(self, folder: Folder) -> None:
        self._own = folder.path / "local"
        super().__init__(folder, self._own / "flwr", hashlib.sha256(str(self._own).encode()).hexdigest()[:16])
        self._lock = lock_at(self._own / "lock")
        self.silos = folder.silos()
        self.port, *ports = free_ports(1 + len(self.silos))
        self._ports = dict(zip(self.silos, ports, strict=True))

    def __enter__(self) -> Self:
        make_private_folder(self._own)
        if not take(self._lock):
            raise RunError(f"The federation in {self.folder.path} is already running on this machine.")
        self._end(GRACE)  # programs left behind by a killed command
        return super().__enter__()

    def stop(self) -> None:
        super().stop()
        self._lock.release()

    def start_all(self) -> None:
        """Start all programs, the SuperLink without its old database, where killed nodes seem alive for a minute."""
        for file in self.home.glob("superlink.db*"):
            file.unlink()
        self.start_superlink()
        self.register()
        for silo in self.silos:
            self.start_silo(silo)

    def start_superlink(self) -> None:
        make_private_folder(self.home)
        words = {"folder": self.folder, "port": self.port}
        (self.home / "config.toml").write_text(render("flwr/config.toml.j2", words), encoding="utf-8")
        certificates = self.folder.certificates
        self.start(
            "superlink",
            [
                *(programs() / "flower-superlink", "--host", HOST, "--port", str(self.port)),
                *("--ssl-ca-certfile", certificates / "ca.crt", "--ssl-certfile", certificates / "server.crt"),
                *("--ssl-keyfile", certificates / "server.key", "--enable-supernode-auth"),
                *("--database", self.home / "superlink.db", "--disable-runtime-dependency-installation"),
            ],
            {**environment(self.home), HOME: str(self.folder.path)},
            self.folder.path,
        )
        end = time.monotonic() + READY
        while not is_listening(HOST, self.port):
            if self.ended("superlink") is not None or time.monotonic() > end:
                raise RunError(f"The SuperLink did not start.\n{self.tail('superlink')}")
            time.sleep(PAUSE)

    def register(self) -> None:
        """Register the silos' public keys with the SuperLink, which stores them; known keys are skipped."""
        for silo in self.silos:
            name = f"register-{silo}"
            self._flwr(name, "supernode", "register", self.folder.public_key(silo), NAME)
            if self.wait(name, READY) and "already in use" not in self.tail(name):
                raise RunError(f"The key of {silo} could not be registered.\n{self.tail(name)}")

    def start_silo(self, silo: str) -> None:
        own = self._own / "nodes" / silo
        make_private_folder(own)
        signing = (self.folder.key(silo), self.folder.roster) if self.folder.config().run.secure else ()
        self.start(
            silo,
            [
                *("sh", "-c", RESTART, "sh", programs() / "flower-supernode"),
                *("--superlink", f"{HOST}:{self.port}", "--host", HOST, "--port", str(self._ports[silo])),
                *("--root-certificates", self.folder.certificates / "ca.crt"),
                *("--auth-supernode-private-key", self.folder.key(silo)),
                *("--node-config", node_config(silo, self.folder.data(silo), own / "state", *signing)),
            ],
            environment(own / "flwr"),
            own,
        )


def is_listening(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def free_ports(count: int) -> list[int]:
    """Return `count` different ports that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for opened in sockets:
            opened.bind((HOST, 0))
        return [opened.getsockname()[1] for opened in sockets]
    finally:
        for opened in sockets:
            opened.close()
