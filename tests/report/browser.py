"""A headless Chromium driven over its DevTools protocol, through a pipe: nothing to install beside the browser."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",  # tests may run as root, where Chromium refuses to start with its sandbox
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
CHARTS = "document.documentElement.dataset.charts"
WAIT = 300
"""Seconds until a browser that says nothing is given up."""


def chromium() -> str | None:
    """The browser's program, if there is one."""
    return os.environ.get("EQUIFED_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page in one browser. What the page complains about, and asks the network for, is kept."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._numbers, self._rest = itertools.count(1), b""
        self._session: dict[str, str] = {}
        self.problems: list[str] = []
        """Errors and warnings on the console, and exceptions."""
        self.requests: list[str] = []
        """Addresses asked for, the page's own file included."""
        self.dialogs: list[str] = []
        """What alert, confirm and prompt said."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    # -- the protocol --------------------------------------------------------------------------------------------------

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters, **self._session}
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    def _read(self) -> dict[str, Any]:
        end = time.monotonic() + WAIT
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._receive], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self._receive, 1 << 20) if ready else b""
            if not part:
                raise RuntimeError("The browser ended." if ready else f"The browser said nothing for {WAIT} s.")
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, about: dict[str, Any]) -> None:
        if event == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(each.get("value", each.get("description"))) for each in about["args"]))
        elif event == "Runtime.exceptionThrown":
            details = about["exceptionDetails"]
            self.problems.append(str(details.get("exception", {}).get("description") or details["text"]))
        elif event == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.problems.append(about["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif event == "Page.javascriptDialogOpening":
            self.dialogs.append(about["message"])
            # answered without waiting: we may be inside a call that the dialog holds up
            answer = {"id": next(self._numbers), "method": "Page.handleJavaScriptDialog", "params": {"accept": True}}
            os.write(self._send, json.dumps({**answer, **self._session}).encode() + b"\0")

    # -- what a reader does --------------------------------------------------------------------------------------------

    def open(self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a page from its file and wait until its charts are drawn."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.media(dark=dark)
        self.problems.clear(), self.requests.clear(), self.dialogs.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.until(f"document.readyState === 'complete' && ['drawn', 'failed'].includes({CHARTS})")

    def media(self, *, dark: bool = False, kind: str = "") -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=kind, features=[scheme])

    def do(self, script: str) -> Any:
        """The value of an expression in the page, awaited when it is a promise."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise AssertionError(found["exceptionDetails"].get("exception", {}).get("description", found))
        return found["result"].get("value")

    def until(self, condition: str) -> None:
        end = time.monotonic() + WAIT
        while not self.do(f"Boolean({condition})"):
            if time.monotonic() > end:
                raise AssertionError(f"waited {WAIT} s for {condition}; the page says {self.problems}")
            time.sleep(0.02)

    def drawn(self) -> None:
        """Wait until charts that have been changed are drawn."""
        self.until(f"{CHARTS} === 'drawn'")

    def move(self, x: float, y: float) -> None:
        """The mouse to a place of the window."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        self.move(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])


@contextlib.contextmanager
def browser(program: str) -> Iterator[Browser]:
    """A new browser with an empty profile of its own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        its_input, our_output = _pipe()
        our_input, its_output = _pipe()
        arguments = [program, *FLAGS, f"--user-data-dir={profile}"]
        actions = [
            *((os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)),
            (os.POSIX_SPAWN_DUP2, its_input, 3),  # Chromium reads commands from 3
            (os.POSIX_SPAWN_DUP2, its_output, 4),  # and answers on 4
        ]
        process = os.posix_spawn(program, arguments, os.environ, file_actions=actions)
        os.close(its_input)
        os.close(its_output)
        try:
            yield Browser(our_output, our_input)
        finally:
            os.close(our_output)  # it ends when its pipe does
            os.close(our_input)
            _ended(process)


def _pipe() -> list[int]:
    """Above 9: lower, the browser's own ends would be written over when they become 3 and 4."""
    made = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in made]
    for end in made:
        os.close(end)
    return moved


def _ended(process: int) -> None:
    for _ in range(200):
        if os.waitpid(process, os.WNOHANG)[0]:
            return
        time.sleep(0.05)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
