"""Runs `metaquorum produce` and `metaquorum consume` during the demo and accounts for every message.

Owns the two processes, the numbers of messages and the final comparison. Knows nothing of the demo's steps.
Each message is `<key>:<number>`, numbered from 0 per key, so that a lost, repeated or reordered message
shows.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from metaquorum.cli.errors import Failure

KEYS = 24
ROUND_S = 0.05
"""Interval between two messages of a key, in seconds."""

END_WAIT_S = 5.0


@dataclass(slots=True)
class TrafficTotals:
    """Messages so far, by key. `written`: to the producer. `read`: by the consumer. `acknowledged`: the
    total, once the producer has ended. `longest_s`: the longest time from writing a message to reading it."""

    written: dict[str, int] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)
    acknowledged: int = 0
    longest_s: float = 0.0

    @property
    def written_total(self) -> int:
        return sum(self.written.values())

    @property
    def read_total(self) -> int:
        return sum(self.read.values())


class Traffic:
    """Writes to `topic` and reads it, from `start` to `finish`. `directory`: for the processes' errors."""

    def __init__(self, bootstrap: str, topic: str, directory: Path) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._directory = directory
        self._account = TrafficTotals()
        self._written_s: dict[tuple[str, int], float] = {}
        self._stop = threading.Event()
        self._problem: str | None = None
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        self._begin("produce", "--key-separator", "\t", "--linger-ms", "2", "--json", "--no-progress")
        self._begin("consume", "--from", "earliest", "--follow", "--key", "--no-progress")
        for work in (self._write, self._read):
            thread = threading.Thread(target=work, name=f"traffic-{work.__name__}", daemon=True)
            thread.start()
            self._threads.append(thread)

    @property
    def passed(self) -> int:
        """The number of messages that were read. Raises Failure if something is already wrong."""
        self._check()
        return self._account.read_total

    def finish(self, timeout_s: float) -> TrafficTotals:
        """Stops writing, then waits until the producer has ended and the consumer has read everything. Raises
        Failure for a message that failed, is missing, repeated or out of order."""
        self._stop.set()
        producer = self._processes["produce"]
        account = self._account
        deadline = time.monotonic() + timeout_s
        try:
            summary: dict[str, Any] = msgspec.json.decode(self._last_output(producer, timeout_s))
            account.acknowledged = int(summary["messages"])
            while account.read != account.written and time.monotonic() < deadline:
                self._check()
                time.sleep(0.05)
        finally:
            self.abandon()
        self._check()
        written, read = account.written_total, account.read_total
        if producer.returncode != 0 or account.acknowledged != written or account.read != account.written:
            raise Failure(
                f"{written} messages were written, {account.acknowledged} acknowledged and {read} read"
                f" (the producer's exit code: {producer.returncode}): {_difference(account)}"
            )
        return account

    def abandon(self) -> None:
        """Ends the two processes and drops messages in flight."""
        self._stop.set()
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        for thread in self._threads:
            thread.join(END_WAIT_S)

    def _begin(self, command: str, *options: str) -> None:
        writes = command == "produce"
        with (self._directory / f"{command}.log").open("wb") as log:
            self._processes[command] = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "metaquorum.cli",
                    command,
                    self._topic,
                    "--bootstrap",
                    self._bootstrap,
                    *options,
                ],
                stdin=subprocess.PIPE if writes else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._directory,  # a folder named cli in the current directory is not ours
                start_new_session=True,  # Ctrl-C reaches the demo, which ends them
            )

    def _check(self) -> None:
        if self._problem is not None:
            raise Failure(self._problem)
        for command, process in self._processes.items():
            if process.poll() is not None and not self._stop.is_set():
                said = (self._directory / f"{command}.log").read_text().strip().splitlines()
                last = said[-1] if said else "it printed nothing"
                raise Failure(f"metaquorum {command} exited with code {process.returncode}: {last}")

    @staticmethod
    def _last_output(process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
        """What the process prints before it ends by itself. Raises Failure if it does not end."""
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise Failure(
                f"the producer is still waiting for acknowledgements after {timeout_s:.0f} s"
            ) from None
        return b"" if process.stdout is None else process.stdout.read()

    # --- the threads

    def _write(self) -> None:
        pipe = self._processes["produce"].stdin
        if pipe is None:
            return
        written = self._account.written
        try:
            with pipe:
                while not self._stop.wait(ROUND_S):
                    now_s = time.monotonic()
                    lines = []
                    for at in range(KEYS):
                        key = f"k{at}"
                        number = written.get(key, 0)
                        lines.append(f"{key}\t{key}:{number}\n")
                        self._written_s[key, number] = now_s
                        written[key] = number + 1
                    pipe.write("".join(lines).encode())
                    pipe.flush()
        except BrokenPipeError:
            return  # the producer ended; `_check` reports how

    def _read(self) -> None:
        pipe = self._processes["consume"].stdout
        if pipe is None:
            return
        account = self._account
        for line in pipe:
            key, _, value = line.decode().rstrip("\n").partition("\t")
            expected = account.read.get(key, 0)
            if value != f"{key}:{expected}":
                self._problem = f"key {key}: expected message {expected}, got {value!r}"
                return
            waited_s = time.monotonic() - self._written_s.pop((key, expected))
            account.longest_s = max(account.longest_s, waited_s)
            account.read[key] = expected + 1


def _difference(account: TrafficTotals) -> str:
    keys: Mapping[str, int] = account.written
    apart = [key for key in keys if account.read.get(key, 0) != account.written[key]]
    if not apart:
        return "for every key, all written messages were read"
    key = apart[0]
    return f"key {key}: {account.written[key]} messages written, {account.read.get(key, 0)} read"
