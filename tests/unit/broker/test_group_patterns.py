"""Subscriptions by pattern (KIP-848): what they match, when they are looked up, and whose rights count."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from metaquorum.broker.coordinator.groups.consumer import patterns
from metaquorum.broker.coordinator.groups.consumer.group import LEFT
from metaquorum.broker.coordinator.groups.consumer.patterns import (
    COSTLY_MAX,
    PATTERN_MAX_BYTES,
    pattern_problem,
)
from metaquorum.broker.coordinator.groups.group import DescribeConsumerGroup
from metaquorum.metadata.authorizer import Authorizer, Caller
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import Acl, MetadataImage, Provenance
from metaquorum.metadata.node_configs import GroupConfig
from metaquorum.metadata.settings.acls import Operation, PatternType, Permission, ResourceType
from metaquorum.wire.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from tests.properties.test_consumer_group_laws import image_of
from tests.unit.broker.group_world import G, Groups

CONFIG = GroupConfig(group_consumer_session_timeout_ms=10_000_000)
PATTERN_KEY = 16


class Cluster:
    """Groups, topics of two partitions each, and the epoch of every member."""

    def __init__(self, *names: str, acls: tuple[Acl, ...] | None = None) -> None:
        self.groups = Groups(CONFIG, authorizer=None if acls is None else Authorizer())
        self.image = MetadataImage()
        self.epochs: dict[str, int] = {}
        self.publish(*names, acls=acls or ())

    def publish(self, *names: str, acls: tuple[Acl, ...] = ()) -> None:
        image = image_of({name: (name.encode().ljust(16), 2) for name in names})
        entries = image.acls.builder()
        for number, acl in enumerate(acls):
            entries.put(bytes([number]), acl)
        self._move(replace(image, acls=entries.freeze()))

    def _move(self, image: MetadataImage) -> None:
        before = self.image
        self.image = replace(image, provenance=Provenance(before.provenance.offset + 1, 1, 0))
        self.groups.publish(self.image, before)

    def beat(
        self, who: str, epoch: int | None = None, principal: str = "User:a", **fields: Any
    ) -> ConsumerGroupHeartbeatResponse:
        epoch = self.epochs.get(who, 0) if epoch is None else epoch
        values: dict[str, Any] = {"group_id": G, "member_id": who, "member_epoch": epoch}
        if epoch == 0:
            values |= {"rebalance_timeout_ms": 500, "topic_partitions": ()}
        body = ConsumerGroupHeartbeatRequest(**(values | fields))
        key = self.groups.ask(body, version=1, principal=principal)
        answer: ConsumerGroupHeartbeatResponse = self.groups.answers[key]
        if answer.error_code == 0:
            self.epochs[who] = answer.member_epoch
        self.groups.wait(0)
        return answer

    def join(self, who: str, pattern: str, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        return self.beat(who, subscribed_topic_regex=pattern, **fields)

    def has(self, who: str) -> str:
        """The topics of which a member has partitions after its next heartbeat."""
        kinds = ConsumerGroupHeartbeatRequest.TopicPartitions
        members = self.groups.state.consumers.groups[G].members
        for _ in range(2):
            held = tuple(
                kinds(topic_id=topic, partitions=tuple(indexes))
                for topic, indexes in members[who].assigned.items()
            )
            self.beat(who, topic_partitions=held)
            members = self.groups.state.consumers.groups[G].members
        return " ".join(sorted(topic.decode().strip() for topic in members[who].assigned))

    def stored(self) -> list[tuple[str, str | None]]:
        """The patterns of which there are new records, and what they match; None: nobody's any more."""
        found = [
            (each.key.regular_expression, None if each.value is None else " ".join(each.value.topics))
            for each in self.groups.records
            if each.key_version == PATTERN_KEY
        ]
        self.groups.records.clear()
        return found


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a.*", "aa ab"),
        ("a", ""),
        (".*b", "ab b"),
        ("(?i)b", "B b"),
        ("[[:lower:]]{2}|B", "B aa ab"),
        (r"\pL+", "B aa ab b"),
    ],
)
def test_a_member_has_what_its_pattern_matches_as_a_whole(pattern: str, expected: str) -> None:
    cluster = Cluster("aa", "ab", "b", "B")
    first = cluster.join("m", pattern)
    assert (first.error_code, first.member_epoch) == (0, 1)
    assert cluster.has("m") == expected
    assert cluster.stored() == [(pattern, expected)]


def test_a_member_may_name_topics_too_and_change_or_drop_its_pattern() -> None:
    cluster = Cluster("aa", "ab", "b")
    cluster.join("m", "a.*", subscribed_topic_names=("b",))
    assert cluster.has("m") == "aa ab b"
    cluster.beat("m", subscribed_topic_regex="")
    assert cluster.has("m") == "b"
    assert cluster.stored() == [("a.*", "aa ab"), ("a.*", None)]
    refused = cluster.beat("m", subscribed_topic_regex="[")
    assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert refused.error_message == "SubscribedTopicRegex [ is not valid in RE2: missing ]: ["
    assert cluster.stored() == []
    assert cluster.has("m") == "b"


def test_a_member_may_join_without_any_topic() -> None:
    cluster = Cluster("aa")
    assert cluster.join("m", "").error_code == 0
    assert cluster.has("m") == ""
    assert cluster.beat("n", subscribed_topic_names=()).error_code == 0


def test_who_brings_a_known_pattern_shares_at_once_and_the_last_one_takes_it_along() -> None:
    cluster = Cluster("aa", "ab")
    cluster.join("m", "a.*")
    assert cluster.has("m") == "aa ab"
    cluster.join("n", "a.*")
    cluster.has("m")
    cluster.has("n")
    members = cluster.groups.state.consumers.groups[G].members
    assert [sum(map(len, each.assigned.values())) for each in members.values()] == [2, 2]
    cluster.stored()
    cluster.beat("m", LEFT)
    assert cluster.stored() == []
    cluster.beat("n", LEFT)
    assert cluster.stored() == [("a.*", None)]


def test_new_topics_are_found_by_a_heartbeat_but_not_more_often_than_every_ten_seconds() -> None:
    cluster = Cluster("aa")
    cluster.join("m", "a.*")
    assert cluster.has("m") == "aa"
    cluster.publish("aa", "ab")
    assert cluster.has("m") == "aa"
    cluster.groups.wait(patterns.REFRESH_MIN_MS)
    assert cluster.has("m") == "aa"
    cluster.groups.wait(1)
    cluster.beat("m")
    assert cluster.has("m") == "aa ab"
    assert cluster.stored() == [("a.*", "aa"), ("a.*", "aa ab")]
    cluster.groups.wait(patterns.REFRESH_MIN_MS + 1)
    assert cluster.has("m") == "aa ab"
    cluster._move(cluster.image)
    assert cluster.has("m") == "aa ab"
    assert cluster.stored() == [], "no topic is new"
    cluster.publish("ab")
    assert cluster.has("m") == "ab"


def test_a_second_pattern_waits_for_its_turn_too() -> None:
    cluster = Cluster("aa", "b")
    cluster.join("m", "a.*")
    cluster.join("n", "b.*")
    assert cluster.stored() == [("a.*", "aa")]
    cluster.groups.wait(patterns.REFRESH_MIN_MS + 1)
    cluster.has("m")
    assert cluster.stored() == [("a.*", "aa"), ("b.*", "b")]
    assert cluster.has("n") == "b"


def entry(name: str, operation: Operation = Operation.DESCRIBE) -> Acl:
    return Acl(
        resource_type=ResourceType.TOPIC,
        resource_name=name,
        pattern_type=PatternType.LITERAL,
        principal="User:a",
        host="*",
        operation=operation,
        permission_type=Permission.ALLOW,
    )


def test_only_topics_that_the_member_may_describe_are_found_and_later_rights_count_after_a_while() -> None:
    cluster = Cluster("aa", "ab", "ac", acls=(entry("aa", Operation.READ), entry("ab")))
    cluster.join("m", "a.*")
    assert cluster.has("m") == "aa ab"
    everything = replace(cluster.image, acls=Cluster("aa", acls=tuple(map(entry, ("aa", "ac")))).image.acls)
    cluster._move(everything)
    cluster.groups.wait(CONFIG.group_consumer_regex_refresh_interval_ms - 1)
    assert cluster.has("m") == "aa ab"
    cluster.groups.wait(2)
    cluster.beat("m")
    assert cluster.has("m") == "aa ac"
    other = Cluster("aa", acls=(entry("aa"),))
    other.join("m", "a.*", principal="User:b")
    assert other.has("m") == ""


def test_another_coordinator_knows_the_patterns_and_looks_for_topics_that_came_meanwhile() -> None:
    cluster = Cluster("aa")
    cluster.join("m", "a.*")
    assert cluster.has("m") == "aa"
    before = cluster.groups
    cluster.groups = before.again()
    assert cluster.groups.state.consumers.groups == before.state.consumers.groups
    cluster.groups.wait(patterns.REFRESH_MIN_MS + 1)
    cluster.publish("aa", "ab")
    cluster.beat("m")
    assert cluster.has("m") == "aa ab"


def test_many_topics_are_looked_through_in_slices_and_others_are_answered_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patterns, "SLICE_WORK", 100)
    cluster = Cluster(*(f"a{at:02}" for at in range(20)))
    ticks, tick = [], cluster.groups.state.tick
    cluster.groups.state.tick = lambda now: ticks.append(now) or tick(now)  # type: ignore[method-assign, func-returns-value]
    cluster.join("m", "a.*")
    assert len(ticks) >= 4
    assert len(cluster.has("m").split()) == 20


def test_patterns_are_described_and_a_static_member_returns_with_its_own() -> None:
    cluster = Cluster("aa")
    cluster.join("m", "a.*", instance_id="i")
    assert cluster.has("m") == "aa"
    cluster.beat("m", -2, instance_id="i")
    again = cluster.join("n", "a.*", instance_id="i")
    assert again.error_code == 0
    key = cluster.groups.ask(DescribeConsumerGroup(group_id=G))
    (member,) = cluster.groups.answers[key].members
    assert (member.member_id, member.subscribed_topic_regex, member.subscribed_topic_names) == (
        "n",
        "a.*",
        (),
    )
    assert [each.topic_name for each in member.assignment.topic_partitions] == ["aa"]
    assert cluster.stored() == [("a.*", "aa")]


def test_what_the_log_refuses_is_looked_up_again() -> None:
    cluster = Cluster("aa")
    body = ConsumerGroupHeartbeatRequest(
        group_id=G,
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=500,
        topic_partitions=(),
        subscribed_topic_regex="a.*",
    )
    answer = cluster.groups.answers[cluster.groups.ask(body, version=1)]
    cluster.epochs["m"] = answer.member_epoch
    cluster.groups.wait(0, refuse=ErrorCode.NOT_ENOUGH_REPLICAS)
    assert cluster.stored() == []
    cluster.beat("m")
    assert cluster.has("m") == "aa"


def test_a_broker_without_re2_refuses_patterns_and_keeps_what_another_has_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster("aa", "b")
    cluster.join("m", "a.*")
    assert cluster.has("m") == "aa"
    monkeypatch.setattr(patterns, "is_installed", lambda module: module != "re2")
    cluster.groups = cluster.groups.again()
    cluster.groups.wait(patterns.REFRESH_MIN_MS + 1)
    cluster.publish("aa", "ab", "b")
    cluster.beat("m")
    assert cluster.has("m") == "aa"
    refused = cluster.beat("n", 0, subscribed_topic_regex="b")
    assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert refused.error_message == (
        "SubscribedTopicRegex b cannot be used: this broker lacks google-re2; install it with: "
        "pip install 'metaquorum[patterns]'"
    )


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("x" * (PATTERN_MAX_BYTES + 1), "at most 2048 are allowed"),
        ("\u00e9" * 1025, "at most 2048 are allowed"),
        ("\\pL" * (COSTLY_MAX + 1), "over 24 repetitions in braces and Unicode classes"),
        ("a{0,1000}" * (COSTLY_MAX + 1), "over 24 repetitions"),
        ("\\pL{1000}", "too large"),
        ("(", "missing"),
    ],
)
def test_a_pattern_that_would_take_long_is_not_compiled(pattern: str, text: str) -> None:
    assert text in (pattern_problem(pattern) or "")


def test_patterns_are_compiled_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    lookup = patterns._Lookup(frozenset({"a", "b", "c"}), MetadataImage(), Caller("User:x", ""), None)
    compiled: list[str] = []
    monkeypatch.setattr(patterns, "_compiled", lambda each: compiled.append(each) or "no pattern")
    steps = 1
    while not lookup.advance():
        steps += 1
        assert len(compiled) <= steps
    assert (steps, len(compiled)) == (3, 3)
