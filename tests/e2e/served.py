"""`metaquorum console` as a process, and what its server says without a browser."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from metaquorum.console.guard import COOKIE
from tests.browser import WAIT_S


class Served:
    """`metaquorum console` as a process."""

    def __init__(self, *words: str | Path) -> None:
        command = [sys.executable, "-m", "metaquorum.cli", "console", *map(str, words), "--no-browser"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("http://127.0.0.1:"), self.process.communicate(timeout=WAIT_S)

    def log(self) -> dict[str, Any]:
        """What the server says about the log."""
        return self.ask("log")

    def ask(self, view: str, **params: str) -> dict[str, Any]:
        """What the server answers, asked without a browser."""
        with self._open(view, params) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def stream(self) -> Any:
        """What tells a page that is open how the log grows."""
        return self._open("stream", {})

    def _open(self, view: str, params: dict[str, str]) -> Any:
        host, token = self.url.split("/")[2], self.url.partition("token=")[2]
        request = urllib.request.Request(f"http://{host}/api/{view}?{urllib.parse.urlencode(params)}")
        request.add_header("cookie", f"{COOKIE}-{host.partition(':')[2]}={token}")
        return urllib.request.urlopen(request, timeout=WAIT_S)

    def wait(self, wanted: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        end = time.monotonic() + WAIT_S
        while not wanted(found := self.log()):
            assert time.monotonic() < end, f"no {what}: {found}"
            time.sleep(0.2)
        return found

    def end(self) -> str:
        """Ends it as Ctrl-C does. Returns what it wrote to standard error."""
        self.process.send_signal(signal.SIGINT)
        _, errors = self.process.communicate(timeout=WAIT_S)
        return errors
