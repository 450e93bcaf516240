"""What a benchmark reports: figures with a unit, the target if there is one, and the machine that they are
from.
"""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from metaquorum.platforms import name_of_sync


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """`at_most` and `at_least`: the target; a figure without one is context. `kafka`: the value of Apache
    Kafka 3.7 on a similar machine, if it was measured."""

    name: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None
    kafka: str | None = None

    @property
    def met(self) -> bool | None:
        """None: it has no target."""
        if self.at_most is not None:
            return self.value <= self.at_most
        return None if self.at_least is None else self.value >= self.at_least

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}

    def as_line(self) -> str:
        target = ""
        if self.at_most is not None:
            target = f"at most {self.at_most:g}"
        elif self.at_least is not None:
            target = f"at least {self.at_least:,g}"
        verdict = {None: "", True: "met", False: "MISSED"}[self.met]
        line = f"  {self.name:58} {_number(self.value):>12} {self.unit:14} {target:18} {verdict}".rstrip()
        return line if self.kafka is None else f"{line}  [Kafka: {self.kafka}]"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest value that `share` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def spread(name: str, values: Sequence[float], unit: str, median: float, worst: float) -> list[Figure]:
    """Median and worst with their targets, and the best as context."""
    return [
        Figure(
            name=f"{name}, median of {len(values)}",
            value=statistics.median(values),
            unit=unit,
            at_most=median,
        ),
        Figure(name=f"{name}, worst", value=max(values), unit=unit, at_most=worst),
        Figure(name=f"{name}, best", value=min(values), unit=unit),
    ]


def busy_cpu_s() -> float:
    """CPU time that everything on this machine has used since boot (proc(5), /proc/stat)."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq = map(int, fields[:7])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def own_cpu_s() -> float:
    """CPU time of this process and its descendants, including those that have ended."""
    used, here = 0.0, psutil.Process()
    for process in [here, *here.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended: from now on its parent has its time
            times = process.cpu_times()
            used += times.user + times.system + times.children_user + times.children_system
    return used


class Neighbours:
    """How many cores other work on the machine used, from now until it is read: such work makes figures
    worse."""

    def __init__(self) -> None:
        self._busy, self._own, self._start = busy_cpu_s(), own_cpu_s(), time.monotonic()

    def cores(self) -> float:
        others = (busy_cpu_s() - self._busy) - (own_cpu_s() - self._own)
        return max(0.0, others / (time.monotonic() - self._start))


def machine() -> dict[str, Any]:
    """Cores, memory, Python, kernel and the current load."""
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(pages * page / 2**30, 1),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "sync": name_of_sync(),
        "load_1m_5m_15m": [round(each, 2) for each in os.getloadavg()],
    }
