"""Plans of replicas in the JSON format of Kafka's reassignment tool, so that either tool reads the other's.

    {"version": 1, "partitions": [
        {"topic": "t", "partition": 0, "replicas": [1, 2], "log_dirs": ["/disk-1", "any"]}]}

It does not check that topics, brokers or directories exist.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from metaquorum.cli.errors import Failure
from metaquorum.cli.given import GivenPath
from metaquorum.config.files import read_small_file
from metaquorum.controller.partitions.plans import Assignment

PLAN_VERSION = 1
MAX_PLAN_BYTES = 256 * 1024 * 1024
PLAN_FILE = GivenPath(exists=True, dir_okay=False, path_type=Path)
ANY = "any"
"""Instead of a directory: the broker chooses."""


class WantedPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A replica of a partition on one broker, and the log directory to which it should move."""

    topic: str
    partition: int
    broker_id: int
    path: str


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    replicas: tuple[int, ...]
    log_dirs: tuple[str, ...]
    where: str


def plan_json(planned: Assignment) -> dict[str, Any]:
    """A plan in Kafka's format."""
    return {
        "version": PLAN_VERSION,
        "partitions": [
            {"topic": topic, "partition": at, "replicas": list(held)}
            for (topic, at), held in sorted(planned.items())
        ],
    }


def read_plan(path: Path) -> Assignment:
    """The replicas that a file asks for. Its directories must be "any". Raises Failure."""
    planned: Assignment = {}
    for entry in _entries(path):
        if any(one != ANY for one in entry.log_dirs):
            text = (
                f'{entry.where}: log_dirs can only be "any" here; to move replicas between the directories '
            )
            raise Failure(text + "of their brokers: metaquorum log-dirs move --plan")
        planned[entry.topic, entry.partition] = entry.replicas
    return planned


def read_places(path: Path) -> list[WantedPlace]:
    """The directories that a file asks for, in its order, without those that are "any". Raises Failure."""
    partitions = [
        WantedPlace(topic=entry.topic, partition=entry.partition, broker_id=broker_id, path=directory)
        for entry in _entries(path)
        for broker_id, directory in zip(entry.replicas, entry.log_dirs, strict=False)
        if directory != ANY
    ]
    if not partitions:
        text = f'{path} names no log directory: give each replica one, as "log_dirs": ["/disk-1", "any"]'
        raise Failure(text)
    return partitions


def _entries(path: Path) -> list[_Entry]:
    try:
        content = json.loads(read_small_file(path, MAX_PLAN_BYTES).decode("utf-8"))
    except UnicodeDecodeError:
        raise Failure(f"{path} is not UTF-8 text: check that it is the right file") from None
    except (ValueError, RecursionError) as error:
        text = f"{path} is not JSON ({error}): write a plan as `metaquorum partitions plan` does"
        raise Failure(text) from None
    if not isinstance(content, dict) or content.get("version") != PLAN_VERSION:
        raise Failure(f'{path} is not a plan: it must be an object with "version": {PLAN_VERSION}')
    partitions = content.get("partitions")
    if not isinstance(partitions, list) or not partitions:
        raise Failure(f'{path} names no partitions: give a list of them as "partitions"')
    entries = [_entry(each, f"{path}, partition entry {number}") for number, each in enumerate(partitions)]
    seen: set[tuple[str, int]] = set()
    for entry in entries:
        if (name := (entry.topic, entry.partition)) in seen:
            raise Failure(f"{path} names partition {name[0]}-{name[1]} twice: name it once")
        seen.add(name)
    return entries


def _entry(entry: Any, where: str) -> _Entry:
    problem = f'{where}: write {{"topic": "name", "partition": 0, "replicas": [1, 2]}}'
    if not isinstance(entry, dict):
        raise Failure(problem)
    topic, index, replicas = entry.get("topic"), entry.get("partition"), entry.get("replicas")
    if (
        not isinstance(topic, str)
        or not isinstance(index, int)
        or not _is_index(index)
        or not isinstance(replicas, list)
    ):
        raise Failure(problem)
    if not all(map(_is_index, replicas)):
        raise Failure(problem)
    return _Entry(
        topic=topic,
        partition=index,
        replicas=tuple(replicas),
        log_dirs=_log_dirs(entry.get("log_dirs"), len(replicas), where),
        where=where,
    )


def _log_dirs(given: Any, count: int, where: str) -> tuple[str, ...]:
    if given is None:
        return (ANY,) * count
    if not isinstance(given, list) or len(given) != count:
        raise Failure(f'{where}: log_dirs has to be a list with a directory, or "any", for each replica')
    for one in given:
        if not isinstance(one, str) or not (one == ANY or one.startswith("/")):
            raise Failure(f'{where}: {one!r} in log_dirs is neither an absolute path nor "any"')
    return tuple(given)


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31
