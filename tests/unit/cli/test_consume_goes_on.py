"""`consume` of a topic that it follows, while the cluster does not say which partitions there are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from metaquorum.cli.client import TlsOptions
from metaquorum.cli.cluster import ClusterOptions
from metaquorum.cli.data import consume
from metaquorum.cli.data.cluster import KafkaCluster
from metaquorum.cli.data.consume import (
    ConsumeOptions,
    ConsumeTotals,
    RangePolicy,
    ReadFrom,
    ReadFromKind,
)
from metaquorum.cli.data.rates import Progress
from metaquorum.cli.errors import Failure

PLAN = ConsumeOptions(
    topic="t",
    partitions=(),
    start=ReadFrom(ReadFromKind.EARLIEST),
    group=None,
    out_of_range=RangePolicy.FAIL,
    max_messages=6,
    until_end=False,
    idle_timeout_s=None,
    with_key=False,
    with_offsets=True,
    skip_cut=False,
    as_json=False,
)


class Follower:
    """A consumer whose partition 0 always has the next record, for `consume` and `poll` alike. `looks`: what
    it learns of the topic, look by look: a number of partitions, or an error."""

    def __init__(self, *looks: int) -> None:
        self.looks = list(looks)
        self.assigned: list[int] = []
        self._next = 0

    def list_topics(self, name: str, timeout: float) -> Any:
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if look not in range(1, 5):
            raise KafkaException(KafkaError(look))
        return SimpleNamespace(
            topics={name: SimpleNamespace(error=None, partitions=dict.fromkeys(range(look)))}
        )

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        self.assigned += [each.partition for each in places]

    def poll(self, timeout: float) -> Message | None:
        if not self.assigned:
            return None
        self._next += 1
        return Message(topic="t", partition=0, offset=self._next - 1, value=b"v")

    def consume(self, most: int, timeout: float) -> list[Message]:
        found = self.poll(timeout)
        return [] if found is None else [found]

    def close(self) -> None:
        self.assigned = []


def followed(
    follower: Follower, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> bytes:
    """What `consume` prints of it."""
    monkeypatch.setattr(consume, "Consumer", lambda _: follower)
    monkeypatch.setattr(consume, "_NEW_PARTITIONS_S", 0.0)
    options = ClusterOptions(bootstrap="127.0.0.1:1", timeout_s=5.0, tls=TlsOptions())
    cluster = KafkaCluster(options, ())
    cluster.timeout_s = 0.05
    consume.read(cluster, PLAN, ConsumeTotals(), Progress(False))
    return capfdbinary.readouterr().out


@pytest.mark.parametrize("code", [KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN])
def test_no_record_is_lost_while_the_partitions_are_not_told(
    code: int, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    follower = Follower(1, code, code, 2, code)
    printed = followed(follower, monkeypatch, capfdbinary)
    assert printed == b"".join(b"0:%d\tv\n" % offset for offset in range(6))


def test_partitions_that_were_added_are_read_after_a_silence(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    follower = Follower(1, KafkaError._TIMED_OUT, 3)
    seen: list[int] = []
    monkeypatch.setattr(follower, "close", lambda: seen.extend(follower.assigned))
    followed(follower, monkeypatch, capfdbinary)
    assert seen == [0, 1, 2]


def test_who_may_no_longer_look_is_told_so(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with pytest.raises(Failure, match="TOPIC_AUTHORIZATION_FAILED"):
        followed(Follower(1, KafkaError.TOPIC_AUTHORIZATION_FAILED), monkeypatch, capfdbinary)
