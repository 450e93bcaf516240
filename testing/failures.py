"""Clusters of failed tests: what their reports show, and where their metadata logs are kept.

pytest loads it in every run: it imports nothing heavy.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Protocol

PREFIX = "kafka-cluster-"
KEPT_MAX = 10
"""Directories of earlier failures that are kept."""


class Reported(Protocol):
    """What a report needs of a cluster."""

    seed: int

    @property
    def directory(self) -> str | None: ...

    def timeline(self, *, since_ms: int) -> list[str]: ...

    def save(self, directory: str) -> None: ...

    def failure_report(self) -> str: ...


is_wanted = False
"""Whether pytest runs, and shows them."""
ended: list[str] = []
"""Reports of the clusters whose `with` block an error has ended, since the last `take`."""


def note(cluster: Reported) -> None:
    """An error ends the `with` block of a cluster, which is about to close."""
    ended.append(cluster.failure_report())
    del ended[:-3]


def take() -> list[str]:
    """The reports so far."""
    taken, ended[:] = list(ended), []
    return taken


def report_of(cluster: Reported, since_ms: int) -> str:
    """The timeline of a cluster, and the command that opens its metadata logs, which are kept."""
    lines = cluster.timeline(since_ms=since_ms)
    directory = cluster.directory or _kept(cluster)
    seed = f"seed {cluster.seed}: Cluster(seed={cluster.seed}) repeats what the cluster draws"
    return "\n".join((*lines, seed, f"metaquorum log timeline {directory}"))


def _kept(cluster: Reported) -> str:
    home = tempfile.gettempdir()
    older = sorted(
        (os.path.join(home, name) for name in os.listdir(home) if name.startswith(PREFIX)),
        key=lambda path: os.stat(path).st_mtime if os.path.exists(path) else 0,
    )
    for path in older[: -KEPT_MAX + 1]:
        shutil.rmtree(path, ignore_errors=True)
    directory = tempfile.mkdtemp(prefix=PREFIX)
    cluster.save(directory)
    return directory
