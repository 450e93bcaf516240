"""Clusters in the process of the tests, for what commands and clients do: no process is tested there."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from metaquorum import testing
from tests.e2e.cluster import BUG_SIGNS


class _Bugs(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter())
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        self.found += [text] if any(sign in text for sign in BUG_SIGNS) else []


@contextmanager
def in_process(brokers: int, controllers: int, **wishes: Any) -> Iterator[testing.Cluster]:
    """A running cluster; at its end, no node has logged a traceback or a bug of its own, and all run."""
    bugs = _Bugs()
    logging.getLogger().addHandler(bugs)
    try:
        with testing.Cluster(brokers, controllers, timeout_s=90, **wishes) as cluster:
            yield cluster
            cluster.clean()
    finally:
        logging.getLogger().removeHandler(bugs)
    assert bugs.found == []
