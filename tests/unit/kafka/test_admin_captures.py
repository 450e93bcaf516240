"""Administration as Kafka 3.7 answered it: every recorded request of these APIs, on the state that it met.

Every answer has the same fields and codes but for the rules below, which docs/divergence.md has too.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from metaquorum.metadata.image.types import BROKER_LOGGER_RESOURCE
from metaquorum.wire import codec
from metaquorum.wire.messages import CreateTopicsRequest
from metaquorum.wire.table import API_BY_NAME, APIS
from tests.unit.kafka.golden_cluster import ANSWERED, GoldenCluster, GoldenNode

ERRORS_AT, VERSIONS_AT = 900, 1690
"""Where the script of wrong requests, and that of all versions, stand best in the golden log."""
TOOLS_2_BEGAN_MS = 1_795_316_408_000
"""E-admin-tools-2 creates no topic: a time in what a tool printed."""
CREATE_TOPICS = API_BY_NAME["CreateTopics"].key


@dataclass(frozen=True)
class Exchange:
    """One request to a broker with Kafka's answer. `time_ms` since the recording began."""

    label: str
    api_key: int
    version: int
    node_id: int
    request: bytes
    answer: Any
    time_ms: int = 0

    @property
    def api(self) -> str:
        return APIS[self.api_key].name


Difference = tuple[str, Any, Any]
"""Where, Kafka's value, ours."""
Rule = Callable[[Exchange, str, Any, Any], bool]


def at(api: str, path: str) -> Rule:
    return lambda exchange, where, theirs, ours: (
        re.fullmatch(api, exchange.api) is not None and re.fullmatch(path, where) is not None
    )


def is_about_loggers(exchange: Exchange) -> bool:
    parts = getattr(exchange.answer, "results", ()) or getattr(exchange.answer, "responses", ())
    return any(getattr(each, "resource_type", None) == BROKER_LOGGER_RESOURCE for each in parts)


RULES: dict[str, Rule] = {
    "the controller that is named is any broker; ours names itself": at(".*", r"\.controller_id"),
    "keys that are Kafka's alone are not described, ours are": lambda exchange, where, theirs, ours: (
        exchange.api in {"DescribeConfigs", "CreateTopics"} and (theirs is None or ours is None)
    ),
    "a key without effect is named": lambda exchange, where, theirs, ours: (
        exchange.api.endswith("AlterConfigs") and theirs is None and "has no effect" in str(ours)
    ),
    "stores are PEM files": at("DescribeConfigs", r".*\.ssl\.(key|trust)store\.type\b.*\.value"),
    "the quorum's offsets, times and leader are of the moment": at(
        "DescribeQuorum",
        r".*\.(leader_id|leader_epoch|high_watermark|log_end_offset|last_(fetch|caught_up)_timestamp)",
    ),
    "entries can be written before an authorizer is configured": lambda exchange, where, theirs, ours: (
        "Acls" in exchange.api and theirs == 54 and ours == 0
    ),
    "loggers are each program's own": lambda exchange, where, theirs, ours: is_about_loggers(exchange),
    "version 0 of DescribeConfigs says which values are defaults": at("DescribeConfigs", r".*\.is_default"),
    "an operation that does not exist is refused, and the controller stays": (
        lambda exchange, where, theirs, ours: (theirs, ours) == (-1, 42)
    ),
    "a controller that is no voter does not hold up a feature": lambda exchange, where, theirs, ours: (
        exchange.api == "UpdateFeatures" and (theirs, ours) == (95, 0)
    ),
}


def comparable(value: Any) -> Any:
    """A body without the texts of errors and random ids; arrays by the key of their parts, order being no
    promise. Where nothing is wrong, clients tell no text from an empty one."""
    dropped = {"throttle_time_ms", "topic_id", "documentation", "unknown_tags"}
    if isinstance(value, dict):
        if value.get("error_code", 0):
            dropped.add("error_message")
        return {name: comparable(each) for name, each in value.items() if name not in dropped}
    if isinstance(value, list | tuple) and value and isinstance(value[0], dict):
        keys = (
            "name",
            "topic",
            "resource_name",
            "partition_index",
            "broker_id",
            "node_id",
            "user",
            "source",
            "mechanism",
        )
        found: dict[str, Any] = {}
        for each in value:
            known = [str(each[key]) for key in keys if key in each][:2]
            name = "/".join(known) if known else str(len(found))
            while name in found:
                name += "'"
            found[name] = comparable(each)
        return found
    return value


def differences(theirs: Any, ours: Any, where: str = "") -> Iterator[Difference]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in theirs.keys() | ours.keys():
            if name == "error_message" and not (name in theirs and name in ours):
                continue  # only one of them is a refusal, which their codes say
            yield from differences(theirs.get(name), ours.get(name), f"{where}.{name}")
    elif theirs != ours:
        yield where, theirs, ours


def shown(wrong: dict[Any, list[Difference]]) -> str:
    return "\n".join(f"{label}: {each}" for label, found in wrong.items() for each in found)


def unexplained(exchange: Exchange, ours: Any, used: Counter[str]) -> list[Difference]:
    found = differences(
        comparable(msgspec.to_builtins(exchange.answer)), comparable(msgspec.to_builtins(ours))
    )
    left = []
    for difference in found:
        name = next((name for name, rule in RULES.items() if rule(exchange, *difference)), None)
        if name is None:
            left.append(difference)
        else:
            used[name] += 1
    return left


@pytest.fixture(name="golden", scope="module")
def fixture_golden(shared_data: Path) -> GoldenCluster:
    return GoldenCluster(shared_data / "kafka-3.7-wire")


@cache
def rows(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") as lines:
        return [json.loads(line) for line in lines]


def scripted(folder: Path, name: str, keys: Container[int] = ANSWERED) -> Iterator[Exchange]:
    """The exchanges with brokers of a file that has one a line, of the APIs `keys`."""
    for row in rows(folder / "kafka-3.7-wire" / f"{name}.jsonl.gz"):
        if row["api_key"] in keys and row["response"] and row["to"].startswith("broker"):
            yield exchange_of(row["label"], row["to"], row, row["request"], row["response"])


def paired(
    folder: Path, name: str, keys: Container[int], to: str
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The requests of a recording to nodes whose name begins with `to`, of the APIs `keys`, and their
    answers."""
    waiting: dict[tuple[int, int], dict[str, Any]] = {}
    for row in rows(folder / "kafka-3.7-wire" / f"{name}.jsonl.gz"):
        if row.get("api_key") not in keys or row.get("event") or not row["link"].startswith(to):
            continue
        place = row["conn"], row["correlation_id"]
        if row["dir"] == ">":
            waiting[place] = row
        elif place in waiting:
            yield waiting.pop(place), row


def recorded(folder: Path, name: str, keys: Container[int] = ANSWERED) -> Iterator[Exchange]:
    """The exchanges of clients with brokers in a recording, of the APIs `keys`."""
    for asked, row in paired(folder, name, keys, "broker"):
        label = f"{name} at {asked['t_ms']}"
        yield exchange_of(label, row["link"], asked, asked["frame"], row["frame"], asked["t_ms"])


def exchange_of(
    label: str, node: str, row: dict[str, Any], request: str, response: str, time_ms: int = 0
) -> Exchange:
    key, version = row["api_key"], row["api_version"]
    answer = codec.decode_response(key, version, base64.b64decode(response)).body
    found = re.match(r"broker-(\d)", node)
    assert found is not None
    return Exchange(label, key, version, int(found[1]), base64.b64decode(request), answer, time_ms)


def test_wrong_requests_are_refused_with_kafkas_codes(golden: GoldenCluster, shared_data: Path) -> None:
    used: Counter[str] = Counter()
    wrong, count = {}, 0
    for exchange in scripted(shared_data, "M-error-cases"):
        node = GoldenNode(golden, golden.at(ERRORS_AT), exchange.node_id)
        count += 1
        left = unexplained(exchange, node.answer(exchange.request), used)
        if left:
            wrong[exchange.label] = left
    assert not wrong, shown(wrong)
    assert count > 90


def test_every_version_is_answered_alike(golden: GoldenCluster, shared_data: Path) -> None:
    """The script's requests one after another, on the topic that they are about."""
    used: Counter[str] = Counter()
    node = GoldenNode(golden, golden.at(VERSIONS_AT), 0)
    node.answer(made_topic("ver2", 2))
    wrong, count = {}, 0
    for exchange in scripted(shared_data, "N-all-versions"):
        if "all topics" in exchange.label or exchange.api == "DescribeAcls":
            continue  # the cluster had topics and entries by then that the golden log does not
        count += 1
        left = unexplained(exchange, node.answer(exchange.request), used)
        if left:
            wrong[exchange.label] = left
    assert not wrong, shown(wrong)
    assert count > 60


def made_topic(name: str, partitions: int) -> bytes:
    body = CreateTopicsRequest(
        topics=(
            CreateTopicsRequest.CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=3,
                configs=(CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value="-1"),),
            ),
        )
    )
    return b"".join(codec.encode_request(codec.RequestHeader(CREATE_TOPICS, 7, 1), body))


@pytest.mark.parametrize("name", ["E-admin-tools", "E-admin-tools-2", "G-librdkafka", "H-python-clients"])
def test_clients_and_tools_read_the_same(golden: GoldenCluster, shared_data: Path, name: str) -> None:
    """Each request on the state that Kafka had then: one of those of that second gives its answer."""
    exchanges = list(recorded(shared_data, name))
    began_ms = max(
        (
            golden.created_ms[topic.name] - exchange.time_ms
            for exchange in exchanges
            if exchange.api_key == CREATE_TOPICS
            for topic in exchange.answer.topics
            if not topic.error_code and topic.name in golden.created_ms
        ),
        default=TOOLS_2_BEGAN_MS,
    )
    used: Counter[str] = Counter()
    wrong = {}
    for exchange in exchanges:
        if exchange.node_id > 2:
            continue  # it has no file among the golden ones
        attempts = []
        for image in reversed(golden.around(began_ms + exchange.time_ms)):
            node = GoldenNode(golden, image, exchange.node_id)
            attempts.append(unexplained(exchange, node.answer(exchange.request), used))
            if not attempts[-1]:
                break
        else:
            wrong[exchange.label, exchange.api] = min(attempts, key=len)
    assert not wrong, shown(wrong)
    assert len(exchanges) > 20
