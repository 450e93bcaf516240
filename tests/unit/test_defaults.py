"""A field that was not given says nothing: its default is None, empty, zero or False, but for those that are
listed here."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyarrow")

from metaquorum.metadata.errors import ErrorCode
from metaquorum.pipeline.fleet.plan import KINDS
from metaquorum.pipeline.ingest.layout import FORMAT
from metaquorum.pipeline.intervals.state import VERSION

NOTHING: tuple[object, ...] = (None, False, 0, 0.0, "", b"", (), frozenset())
UNLESS: dict[str, dict[str, dict[str, Any]]] = {
    "metadata.inspect": {
        "Cause": {"certain": True},
        "CauseRule": {"severity": "info"},
        "Reason": {"is_certain": True},
        "LogReport": {"epoch": -1},
        "QuorumView": {"leader_id": -1, "epoch": -1, "offset": -1, "time_ms": -1},
        "Row": {"severity": "info"},
        "BrokerSum": {"longest_ms": -1, "longest": (0, 0)},
        "TimelineEvent": {"severity": "info"},
    },
    "pipeline": {
        "AuditLimits": {
            "flaps": 3,
            "flap_window_ms": 600_000,
            "slow_failover_ms": 30_000,
            "elections": 5,
            "election_window_ms": 3_600_000,
        },
        "Broker": {"epoch": -1, "state": "fenced"},
        "FleetPlan": {
            "clusters": 4,
            "records": 100_000,
            "nodes": 1,
            "start_ms": 1_782_864_000_000,
            "idle_ms": 5_000,
            "segment_bytes": 8 << 20,
            "snapshots": 2,
            "kinds": KINDS,
            "damaged_every": 4,
            "open_every": 3,
        },
        "ClusterEntry": {"resume_epoch": -1, "records_epoch": -1, "last_epoch": -1},
        "Manifest": {"format": FORMAT},
        "Facts": {"first_ms": -1, "last_ms": -1},
        "Plan": {"attempt": 1},
        "TaskResult": {"resume_epoch": -1},
        "BatchClock": {"now_ms": -1, "stepped_to_ms": -1},
        "SavedState": {"version": VERSION},
        "LogEnd": {"base": -1},
        "HistorySpan": {"epoch": -1},
    },
    "cli": {
        "Moving": {"error": ErrorCode.NONE},
        "FormatPlan": {"release": "3.7-IV4"},
        "Ordered": {"wait_s": 300.0},
    },
}
# Arrays, and what needs Spark.
WITHOUT = frozenset({"RunPart"})
SPARK = ("api", "session", "source", "submit", "audit.frames", "ingest.call", "ingest.spark")


def values_of(package: str) -> Iterator[type]:
    """The classes of values that the modules of a package define."""
    root = importlib.import_module(f"metaquorum.{package}")
    for module in pkgutil.walk_packages(root.__path__, f"metaquorum.{package}."):
        if module.name.startswith(tuple(f"metaquorum.pipeline.{name}" for name in SPARK)):
            continue
        if module.name.endswith("__main__"):
            continue
        for found in vars(importlib.import_module(module.name)).values():
            if isinstance(found, type) and found.__module__ == module.name:
                yield found


def defaults_of(value: type) -> dict[str, Any]:
    if issubclass(value, msgspec.Struct):
        fields = msgspec.structs.fields(value)
        return {each.name: each.default for each in fields if each.default is not msgspec.NODEFAULT}
    if dataclasses.is_dataclass(value):
        known = dataclasses.fields(value)
        return {each.name: each.default for each in known if each.default is not dataclasses.MISSING}
    return dict(getattr(value, "_field_defaults", {}))


def says_nothing(default: object) -> bool:
    return any(type(default) is type(one) and default == one for one in NOTHING)


@pytest.mark.parametrize("package", UNLESS)
def test_what_was_not_given_is_nothing(package: str) -> None:
    found: dict[str, dict[str, Any]] = {}
    for value in values_of(package):
        if value.__name__ in WITHOUT:
            continue
        telling = {name: one for name, one in defaults_of(value).items() if not says_nothing(one)}
        if telling:
            found[value.__name__] = telling
    assert found == UNLESS[package]
