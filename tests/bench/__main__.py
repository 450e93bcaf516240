"""Runs the benchmarks: `python -m tests.bench [NAME ...] [--json]`, all of them without a name.

Each benchmark runs in a process of its own, so that none inherits another's heap. `idle` takes ten minutes
and runs only by name.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import subprocess
import sys
from typing import Any

import uvloop

from tests.bench.figures import Figure, Neighbours, machine
from tests.closed_pipe import end

BENCHES = (
    "commit",
    "create",
    "failover",
    "failover_clock",
    "voters",
    "replay",
    "tools",
    "mixed",
    "console",
    "bisect",
    "restart",
    "catch_up",
    "live",
    "heartbeats",
    "bounce",
    "storm",
    "big",
    "shutdown",
    "decisions",
    "directories",
    "scrape",
    "wire",
    "cleaner",
    "access",
    "secured",
    "kafka",
    "replicas",
    "pipeline",
    "testing",
    "idle",
)
ON_DEMAND = frozenset({"idle"})


def main() -> int:
    names = sys.argv[1:2]
    if names and names[0] in BENCHES:
        return run_one(names[0], sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one object with all figures")
    parser.add_argument("--with-idle", action="store_true", help="also run the ten minutes of `idle`")
    options = parser.parse_args()
    chosen = [name for name in BENCHES if options.with_idle or name not in ON_DEMAND]
    return run_all(chosen, as_json=options.json)


def run_one(name: str, rest: list[str]) -> int:
    module: Any = importlib.import_module(f"tests.bench.bench_{name}")
    parser = argparse.ArgumentParser(prog=f"python -m tests.bench {name}", description=module.__doc__)
    parser.add_argument("--json", action="store_true", help="one object with all figures")
    module.arguments(parser)
    options = parser.parse_args(rest)
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    where, neighbours = machine(), Neighbours()
    if not options.json:
        print(head(name, where), flush=True)
    figures: list[Figure] = []
    for figure in module.run(options):  # a long one yields each figure as it is measured
        figures.append(figure)
        if not options.json:
            print(figure.as_line(), flush=True)
    where["others_cores"] = round(neighbours.cores(), 2)
    if options.json:
        print(json.dumps({"bench": name, "machine": where, "figures": [one.as_json() for one in figures]}))
    else:
        print(tail(where), flush=True)
    return 1 if any(one.met is False for one in figures) else 0


def run_all(names: list[str], *, as_json: bool) -> int:
    reports: list[dict[str, Any]] = []
    failed = False
    for name in names:
        command = [sys.executable, "-m", "tests.bench", name, "--json"]
        result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if not result.stdout:
            print(f"{name}: the bench itself failed, exit code {result.returncode}", file=sys.stderr)
            failed = True
            continue
        report = json.loads(result.stdout)
        reports.append(report)
        figures = [figure_from(each) for each in report["figures"]]
        failed = failed or any(one.met is False for one in figures)
        if not as_json:
            lines = [head(name, report["machine"]), *[one.as_line() for one in figures]]
            print("\n".join([*lines, tail(report["machine"])]), flush=True)
    if as_json:
        print(json.dumps(reports))
    return 1 if failed else 0


def figure_from(values: dict[str, Any]) -> Figure:
    return Figure(**{key: value for key, value in values.items() if key != "met"})


def head(name: str, where: dict[str, Any]) -> str:
    load = " ".join(map(str, where["load_1m_5m_15m"]))
    return (
        f"{name}: {where['cores']} cores, {where['memory_gib']} GiB, Python {where['python']}, "
        f"kernel {where['kernel']}, syncs by {where['sync']}, load before {load}"
    )


def tail(where: dict[str, Any]) -> str:
    return f"  other work used {where['others_cores']} cores\n"


if __name__ == "__main__":
    end(main)
