"""A real browser for tests: headless Chromium over the WebDriver protocol, if the machine has it."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from metaquorum.node.local_nodes import free_ports

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None,
    reason="needs Chromium and chromedriver: apt-get install chromium-driver",
)
WAIT_S = 60.0
SHIFT, LEFT, RIGHT = "\ue008", "\ue012", "\ue014"
"""Keys as WebDriver names them."""


class Browser:
    """One window. Leaves nothing behind: its profile is a temporary directory."""

    def __init__(self, width: int = 1440, height: int = 900, *, dark: bool = False) -> None:
        self._size = width, height
        self._dark = dark

    def __enter__(self) -> Self:
        assert CHROMIUM is not None and DRIVER is not None
        self._home = tempfile.mkdtemp(prefix="browser-")
        (port,) = free_ports(1)
        self._base = f"http://127.0.0.1:{port}"
        self._driver = subprocess.Popen(
            [DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        flags = [
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--lang=en"),
            *(f"--user-data-dir={self._home}", f"--window-size={self._size[0]},{self._size[1]}"),
            *(["--blink-settings=preferredColorScheme=0"] if self._dark else []),
        ]
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": CHROMIUM, "args": flags},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        end = time.monotonic() + WAIT_S
        while True:
            try:
                made = self._send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
                break
            except (urllib.error.URLError, ConnectionError):
                assert time.monotonic() < end, "chromedriver does not start"
                time.sleep(0.1)
        self._session = f"/session/{made['sessionId']}"
        width, height = self._size
        self._devtools(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._do("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.wait(timeout=WAIT_S)
            shutil.rmtree(self._home, ignore_errors=True)

    def _send(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, {"content-type": "application/json"})
        request.method = method
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from None

    def _do(self, method: str, path: str, body: Any = None) -> Any:
        return self._send(method, self._session + path, body)

    def _devtools(self, command: str, params: dict[str, Any]) -> None:
        self._do("POST", "/goog/cdp/execute", {"cmd": command, "params": params})

    def block(self, pattern: str) -> None:
        """From now on, files whose address has this pattern (`*` is anything) are not loaded."""
        self._devtools("Network.enable", {})
        self._devtools("Network.setBlockedURLs", {"urls": [pattern]})

    def open(self, url: str) -> None:
        self._do("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of a JavaScript function body."""
        return self._do("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str) -> str:
        """The visible text of the first element; empty if there is none."""
        return str(self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def wait(self, script: str, what: str) -> Any:
        """The value of an expression as soon as it is true."""
        end = time.monotonic() + WAIT_S
        while True:
            value = self.run(f"return {script}")
            if value:
                return value
            page = self.text("main")[:500]
            assert time.monotonic() < end, f"no {what}; the page shows {page!r}; {self.messages()}"
            time.sleep(0.05)

    def go(self, fragment: str) -> None:
        """Shows another view of the page that is open, and waits until it is there."""
        self.run(
            "window.seen = document.querySelector('main').firstChild; location.hash = arguments[0]", fragment
        )
        self.settled()

    def settled(self) -> None:
        """Waits until a view is shown, the strip is drawn and the handle is where the view is."""
        self.wait(
            "document.querySelector('main h1') && document.querySelector('main').firstChild !== window.seen"
            " && document.querySelector('#strip .handle')"
            " && !document.querySelector('main[aria-busy], main [aria-busy]')",
            "view with a strip",
        )

    def press(self, keys: str, held: str = "") -> None:
        """Types into what has the focus, while `held` (a key such as Shift) is down."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        if held:
            actions = [{"type": "keyDown", "value": held}, *actions, {"type": "keyUp", "value": held}]
        self._do("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def drag(self, selector: str, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Drags from one place in an element to another, each as parts of its width and height."""
        box = self.run(
            "const box = document.querySelector(arguments[0]).getBoundingClientRect();"
            "return [box.left, box.top, box.width, box.height]",
            selector,
        )
        moves = [
            {
                "type": "pointerMove",
                "duration": 50,
                "x": int(box[0] + x * box[2]),
                "y": int(box[1] + y * box[3]),
            }
            for x, y in (start, end)
        ]
        actions = [
            moves[0],
            {"type": "pointerDown", "button": 0},
            moves[1],
            {"type": "pointerUp", "button": 0},
        ]
        self._do("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": actions}]})

    def use_window(self, number: int) -> None:
        """Goes to another tab; they are numbered from 0 on."""
        self._do("POST", "/window", {"handle": self._do("GET", "/window/handles")[number]})

    def messages(self) -> list[str]:
        """What the page wrote to the console since the last call: errors and warnings."""
        entries = self._do("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._do("GET", "/screenshot")))
