"""The recorded logs that these tests read, tables as any reader sees them, and programs of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from metaquorum.pipeline.audit.gather import TableSource
from metaquorum.pipeline.logs.survey import hop
from metaquorum.storage.disk.interface import name_of

GOLDEN = "kafka-3.7/controller-3000"
GOLDEN_CLUSTER = "ycvx3IyUTJ2ANvCy7N_YyA"
LOG = "__cluster_metadata-0"
WILD = "kraft-wild/kafka-3.3-three-nodes-lagging"
WILD_CLUSTER = "EP6hyiddQNW5FPrAvR9kWw"
LIGHT_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For SPARK_SUBMIT_OPTS in the environment of a driver: without the second compiler a JVM that runs for a
minute takes little more than half of the processor time."""


def node_copy(source: Path, target: Path, up_to: int | None = None) -> Path:
    """A node's directory, its log cut at the first batch boundary at or after an offset."""
    shutil.rmtree(target, ignore_errors=True)
    (target / LOG).mkdir(parents=True)
    shutil.copy(source / "meta.properties", target)
    for segment in sorted((source / LOG).glob("*.log")):
        end = segment.stat().st_size
        for header in hop(str(segment), None):
            if up_to is not None and header.base_offset >= up_to:
                end = header.position
                break
        if end:
            (target / LOG / segment.name).write_bytes(segment.read_bytes()[:end])
    return target


def table(out: Path | str, name: str) -> list[dict[str, Any]]:
    """The rows of a table, without the order of files."""
    rows = TableSource(out).dataset(name).to_table().to_pylist()
    return sorted(rows, key=lambda row: json.dumps(row, default=str, sort_keys=True))


def without_files(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without what depends on which node's copy was read, and on where it lies."""
    for row in rows:
        row.pop("node_id", None)
        if "file" in row:
            row["file"] = name_of(row["file"])
    return sorted(rows, key=lambda row: json.dumps(row, default=str, sort_keys=True))


def of_cluster(rows: list[dict[str, Any]], *clusters: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["cluster"] in clusters]


def run_alone(words: list[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """A program in a folder and an environment of its own."""
    found = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "SPARK_SUBMIT_OPTS": LIGHT_JVM, **more}
    if "JAVA_HOME" in os.environ:
        found["JAVA_HOME"] = os.environ["JAVA_HOME"]
    return subprocess.run(
        words, cwd=folder, env=found, capture_output=True, text=True, timeout=280, check=False
    )
