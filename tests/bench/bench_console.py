"""Measures `metaquorum console` as a browser waits for it, on a log that `pipeline generate` writes.

From the command to the first overview; moves of the handle while the strip is computed, and after that; the
whole strip; the history of a broker and of a topic. One request at a time, as the page asks.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from metaquorum.console.guard import COOKIE
from tests.bench.bench_mixed import on_a_log
from tests.bench.figures import Figure, percentile

FULL = 1_000_000
FIRST_PICTURE_S = {100_000: 1.0, FULL: 2.0}
"""The targets, by how many records the log has."""
MOVES = 40
LIMIT_S = 600.0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=int, default=FULL)
    parser.add_argument("--log", type=Path, help="a log that was generated before, with this many records")


def run(options: argparse.Namespace) -> Iterator[Figure]:
    yield from on_a_log(options, figures)


class _Page:
    """What a browser asks of one console."""

    def __init__(self, log: Path) -> None:
        self.began = time.monotonic()
        command = [sys.executable, "-m", "metaquorum.cli", "console", str(log), "--no-browser"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        url = self._process.stdout.readline().strip()
        self._host, token = url.split("/")[2], url.partition("token=")[2]
        self._cookie = f"{COOKIE}-{self._host.partition(':')[2]}={token}"

    def ask(self, view: str, **params: object) -> tuple[float, Any]:
        """Seconds, and the answer."""
        words = "&".join(f"{name}={value}" for name, value in params.items())
        request = urllib.request.Request(f"http://{self._host}/api/{view}?{words}")
        request.add_header("cookie", self._cookie)
        began = time.monotonic()
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            found = json.load(answer)
        return time.monotonic() - began, found

    def end(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(timeout=60)


def figures(log: Path, records: int) -> Iterator[Figure]:
    page = _Page(log)
    try:
        page.ask("overview")
        yield Figure(
            name="first overview after the command",
            value=time.monotonic() - page.began,
            unit="s",
            at_most=FIRST_PICTURE_S.get(records),
        )
        end = page.ask("log")[1]["endOffset"]
        places = random.Random(3)
        yield from _moves(page, "while it is read", end, places)
        while page.ask("strip", width=1200)[1]["progress"] < 1:
            if time.monotonic() - page.began > LIMIT_S:
                raise TimeoutError("the strip is not whole in ten minutes")
            time.sleep(0.25)
        yield Figure(name="whole strip after the command", value=time.monotonic() - page.began, unit="s")
        yield from _moves(page, "when it is read", end, places)
        for target in ("broker/3", "topic"):
            path = target
            if target == "topic":
                path = page.ask("table", kind="topics", size=1)[1]["rows"][0]["path"]
            spent_s, _ = page.ask("history", target=path)
            yield Figure(name=f"history of {target}", value=spent_s, unit="s")
            spent_s, _ = page.ask("why", target=path, last=20)
            yield Figure(name=f"why of {target}", value=spent_s, unit="s")
    finally:
        page.end()


def _moves(page: _Page, when: str, end: int, places: random.Random) -> Iterator[Figure]:
    spent: list[float] = []
    for _ in range(MOVES):
        spent.append(1000 * page.ask("overview", at=places.randrange(1, end))[0])
        time.sleep(0.05)
    yield Figure(name=f"move {when}, median of {MOVES}", value=statistics.median(spent), unit="ms")
    yield Figure(name=f"move {when}, 95 %", value=percentile(spent, 0.95), unit="ms", at_most=150.0)
    yield Figure(name=f"move {when}, worst", value=max(spent), unit="ms")
