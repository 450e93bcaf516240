"""A headless Chromium that is told what to do over its debugging pipe: enough to load a page and look at it.

Speaks the DevTools protocol over file descriptors 3 and 4, so that no port is needed.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--remote-debugging-pipe",
)
TIMEOUT_S = 60


def chromium() -> str:
    """The browser's path; the test is skipped, saying why, where there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        found = shutil.which(name)
        if found is not None:
            return found
    pytest.skip("no Chromium here: install it (apt-get install chromium) to have the page checked")


class Browser:
    """One browser with one page. Keeps what the page logs, throws and asks the network for."""

    def __init__(self) -> None:
        self._home = tempfile.mkdtemp(prefix="metaquorum-browser-")
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        command = [chromium(), *_FLAGS, f"--user-data-dir={self._home}", "about:blank"]
        # The browser reads descriptor 3 and writes 4; bash puts the pipes there (not every sh can).
        joined = " ".join(f"'{part}'" for part in command)
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {joined} 3<&{to_browser} 4>&{from_browser}"],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends one command and waits for its answer; events that come before it are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            # A browser that hangs must not hang the tests.
            says, _, _ = select.select([self._in], [], [], TIMEOUT_S)
            assert says, f"the browser said nothing for {TIMEOUT_S} s"
            read = os.read(self._in, 1 << 16)
            assert read, "the browser ended"
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, path: Path, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Loads a file in a window of that size and waits until it is loaded."""
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Page.navigate", url=path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._read()

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives on the page."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def requests(self) -> list[str]:
        """Every address that the page asked for."""
        sent = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [str(event["params"]["request"]["url"]) for event in sent]

    def complaints(self) -> list[dict[str, Any]]:
        """Errors, warnings and exceptions that the page caused."""
        kinds = {"Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"}
        return [event for event in self.events if event["method"] in kinds]

    def close(self) -> None:
        """Ends the browser and removes its profile."""
        os.close(self._out)
        os.close(self._in)
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._home, ignore_errors=True)
