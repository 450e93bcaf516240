"""Elections in an idle quorum while two other processes keep both cores busy: there must be none."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from tests.bench.figures import Figure
from tests.bench.quorum import cpu_seconds, three_controllers

GAP_TEXT = "this process was stalled for"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--burners", type=int, default=os.cpu_count(), help="processes that only burn CPU")


def run(options: argparse.Namespace) -> list[Figure]:
    with three_controllers() as cluster:
        burners = [
            subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.burners)
        ]
        try:
            before = cluster.quorum()
            used = {node.name: cpu_seconds(node.pid) for node in cluster.controllers}
            logged = {node.name: len(node.lines()) for node in cluster.controllers}
            start = time.monotonic()
            time.sleep(options.minutes * 60)
            took_s = time.monotonic() - start
            after = cluster.quorum()
            lines = [line for node in cluster.controllers for line in node.lines()[logged[node.name] :]]
            figures = [
                Figure(name="idle time with both cores loaded", value=took_s / 60, unit="minutes"),
                Figure(
                    name="elections (rise of the epoch)",
                    value=after.leader_epoch - before.leader_epoch,
                    unit="",
                    at_most=0,
                ),
                Figure(name="pre-votes begun", value=sum(": prospective" in line for line in lines), unit=""),
                Figure(
                    name="pauses of over 200 ms noticed",
                    value=sum(GAP_TEXT in line for line in lines),
                    unit="",
                ),
                Figure(name="load of the last minute", value=os.getloadavg()[0], unit=""),
            ]
            for node in cluster.controllers:
                active = " (active)" if node.node_id == after.leader_id else ""
                share = (cpu_seconds(node.pid) - used[node.name]) / took_s
                figures.append(Figure(name=f"CPU of idle {node.name}{active}", value=share, unit="cores"))
            return figures
        finally:
            for burner in burners:
                burner.kill()
                burner.wait()
