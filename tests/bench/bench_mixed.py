"""Measures `metaquorum log` on a log with real traffic, in processor time and peak memory.

`pipeline generate` writes one cluster with creations, fences, elections, reassignments, settings and two
snapshots. Most of its batches hold several records.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench.figures import Figure

MEMORY_MB = 150.0
FULL = 1_000_000
"""The targets are for this many records."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=int, default=FULL)
    parser.add_argument("--log", type=Path, help="a log that was generated before, with this many records")


def run(options: argparse.Namespace) -> Iterator[Figure]:
    yield from on_a_log(options, figures)


def on_a_log(
    options: argparse.Namespace, figures_of: Callable[[Path, int], Iterator[Figure]]
) -> Iterator[Figure]:
    """The figures of the log that `--log` names, or of a new one."""
    if options.log is not None:
        yield from figures_of(options.log, options.records)
        return
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "fleet"
        command = ["pipeline", "generate", "--clusters", "1", "--damaged-every", "0", "--out", str(out)]
        cost(*command, "--records", str(options.records))
        (node,) = (out / "clusters").glob("*/controller-*")
        yield from figures_of(node, options.records)


def figures(log: Path, records: int) -> Iterator[Figure]:
    part = records // 100
    for name, seconds, arguments_of in (
        ("summary", 12.0, ()),
        ("timeline", 12.0, ()),
        ("check", 15.0, ()),
        ("why", 4.0, ("broker/3.fenced",)),
        ("history", 4.0, ("broker/3.fenced",)),
        ("diff", 6.0, (str(40 * part), str(60 * part))),
        ("timeline", 2.0, ("--from", str(99 * part))),
        ("summary", 2.0, ("--last", "10min")),
    ):
        spent_s, peak_mb = cost("log", name, str(log), *arguments_of)
        text = " ".join((name, *arguments_of))
        target = seconds if records == FULL else None
        yield Figure(name=f"{text}, processor", value=spent_s, unit="s", at_most=target)
        yield Figure(name=f"{text}, peak memory", value=peak_mb, unit="MB", at_most=MEMORY_MB)


def cost(*args: str) -> tuple[float, float]:
    """Processor time in seconds and peak memory in MB of one command, whose output is discarded."""
    process = subprocess.Popen(
        [sys.executable, "-m", "metaquorum.cli", *args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode < 0 or process.returncode == 1:
        raise RuntimeError(f"{args} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6  # in KiB, as Linux counts
