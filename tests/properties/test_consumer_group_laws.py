"""Laws of KIP-848's groups: in any order of heartbeats, joins, leaves, silence and coordinator changes.

No partition has two owners at once; the log alone gives the same group; if all members continue to send
heartbeats, the group becomes stable, and every partition has one owner, as evenly as possible.
"""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from metaquorum.broker.coordinator.groups.consumer import patterns
from metaquorum.broker.coordinator.groups.consumer.assignors import Subscriber, assign_range, assign_uniform
from metaquorum.broker.coordinator.groups.consumer.group import LEFT, flat
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import ImageBuilder, MetadataImage, PartitionInfo
from metaquorum.metadata.node_configs import GroupConfig
from metaquorum.wire.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from tests.unit.broker.group_world import G, Groups

TOPICS = {"t": (b"t" * 16, 5), "u": (b"u" * 16, 3)}
WHO = st.integers(0, 3)
SESSION_MS = 1_000
CONFIG = GroupConfig(group_consumer_session_timeout_ms=SESSION_MS)


def image_of(topics: dict[str, tuple[bytes, int]]) -> MetadataImage:
    builder = ImageBuilder(MetadataImage())
    for name, (topic_id, count) in topics.items():
        builder.topics.add_topic(topic_id, name)
        for index in range(count):
            entry = builder.topics.by_id.get(topic_id)
            assert entry is not None
            info = PartitionInfo(
                topic_id=topic_id,
                index=index,
                replicas=(0,),
                isr=(0,),
                leader=0,
                leader_epoch=0,
                partition_epoch=0,
                leader_recovery_state=0,
                directories=(bytes(16),),
            )
            builder.topics.put_partition(entry, info)
    builder.offset += 1
    return builder.freeze()


class Consumer:
    """A member that follows its assignment: it gives up partitions at once, and reports what it has.
    `topics`: an element that begins with `~` is a pattern."""

    def __init__(self, name: str, groups: Groups) -> None:
        self.name = name
        self.groups = groups
        self.epoch = 0
        self.owns: set[tuple[bytes, int]] = set()
        self.topics: tuple[str, ...] = ("t",)
        self.heard_ms = 0

    def wants(self, topic: str) -> bool:
        return any(topic == each or re.fullmatch(each.removeprefix("~"), topic) for each in self.topics)

    def lose(self) -> None:
        self.epoch, self.owns = 0, set()

    def heartbeat(self, *, epoch: int | None = None, is_lost: bool = False) -> None:
        kinds = ConsumerGroupHeartbeatRequest
        said = {topic: tuple(i for other, i in self.owns if other == topic) for topic, _ in self.owns}
        key = self.groups.ask(
            ConsumerGroupHeartbeatRequest(
                group_id=G,
                member_id=self.name,
                member_epoch=self.epoch if epoch is None else epoch,
                rebalance_timeout_ms=2 * SESSION_MS,
                subscribed_topic_names=tuple(each for each in self.topics if not each.startswith("~")),
                subscribed_topic_regex="".join(each[1:] for each in self.topics if each.startswith("~")),
                topic_partitions=tuple(
                    kinds.TopicPartitions(topic_id=topic, partitions=parts) for topic, parts in said.items()
                ),
            ),
            version=1,
        )
        self.groups.wait(0)
        answer: ConsumerGroupHeartbeatResponse = self.groups.answers[key]
        self.heard_ms = self.groups.now_ms
        if is_lost:
            return
        if answer.error_code != ErrorCode.NONE:
            self.lose()
            return
        self.epoch = max(answer.member_epoch, 0)
        if answer.assignment is not None:
            listed = answer.assignment.topic_partitions
            self.owns = {(each.topic_id, index) for each in listed for index in each.partitions}


class ConsumerMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.between_ms, patterns.REFRESH_MIN_MS = patterns.REFRESH_MIN_MS, -1
        self.topics = dict(TOPICS)
        self.image = image_of(self.topics)
        self.groups = Groups(CONFIG)
        self.groups.publish(self.image, MetadataImage())
        self.members = [Consumer(f"member-{at}", self.groups) for at in range(4)]

    def teardown(self) -> None:
        patterns.REFRESH_MIN_MS = self.between_ms

    def _expire(self) -> None:
        """A client whose session may have ended stops consuming."""
        for member in self.members:
            if self.groups.now_ms - member.heard_ms >= SESSION_MS:
                member.lose()

    @rule(
        who=WHO,
        topics=st.sampled_from(
            [("t",), ("u",), ("t", "u"), ("t", "none"), ("~[tu]",), ("~u|none",), ("t", "~u|none")]
        ),
    )
    def subscribe(self, who: int, topics: tuple[str, ...]) -> None:
        self.members[who].topics = topics
        self.members[who].heartbeat()

    @rule(who=WHO)
    def heartbeat(self, who: int) -> None:
        self.members[who].heartbeat()

    @rule(who=WHO)
    def answer_is_lost(self, who: int) -> None:
        if self.members[who].epoch:
            self.members[who].heartbeat(is_lost=True)

    @rule(who=WHO)
    def leave(self, who: int) -> None:
        if self.members[who].epoch:
            self.members[who].heartbeat(epoch=LEFT)
            self.members[who].lose()

    @rule(ms=st.sampled_from([10, 400, 1_100, 2_500]))
    def wait(self, ms: int) -> None:
        for member in self.members:
            if self.groups.now_ms + ms - member.heard_ms >= SESSION_MS:
                member.lose()
        self.groups.wait(ms)

    @rule(more=st.integers(1, 2))
    def topic_grows(self, more: int) -> None:
        topic_id, count = self.topics["u"]
        if count < 9:
            self.topics["u"] = topic_id, count + more
            before, self.image = self.image, image_of(self.topics)
            self.groups.publish(self.image, before)

    @rule()
    def coordinator_changes(self) -> None:
        before = self.groups
        self.groups = before.again()
        assert self.groups.state.consumers.groups == before.state.consumers.groups
        self.groups.next_key = before.next_key
        self.groups.publish(self.image, MetadataImage())
        for member in self.members:
            member.groups = self.groups
            member.heard_ms = self.groups.now_ms

    @rule()
    def settle(self) -> None:
        """All members continue: the group becomes stable and fair."""
        for _ in range(5):
            for member in self.members:
                member.heartbeat()
        group = self.groups.state.consumers.groups[G]
        assert group.state_name == "Stable"
        owned = [at for member in self.members for at in member.owns]
        wanted = {
            (topic_id, index)
            for name, (topic_id, count) in self.topics.items()
            if any(member.wants(name) for member in self.members)
            for index in range(count)
        }
        assert sorted(owned) == sorted(wanted)
        assert all(
            {t for t, _ in each.owns} <= {TOPICS[n][0] for n in TOPICS if each.wants(n)}
            for each in self.members
        )

    @invariant()
    def one_owner(self) -> None:
        owned = [at for member in self.members for at in member.owns]
        assert len(owned) == len(set(owned))


TestConsumers = ConsumerMachine.TestCase
TestConsumers.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)


@st.composite
def situations(draw: st.DrawFn) -> tuple[tuple[Subscriber, ...], dict[bytes, int]]:
    counts = {bytes([65 + at]): draw(st.integers(1, 7)) for at in range(draw(st.integers(1, 3)))}
    names = [f"m{at}" for at in range(draw(st.integers(1, 5)))]
    has: dict[str, dict[bytes, set[int]]] = {name: {} for name in names}
    for topic, count in counts.items():
        for index in range(count + 1):
            owner = draw(st.sampled_from([None, *names]))
            if owner is not None:
                has[owner].setdefault(topic, set()).add(index)
    subscribers = tuple(
        Subscriber(
            member_id=name,
            instance_id=draw(st.sampled_from([None, f"i{name}"])),
            topics=frozenset(draw(st.sets(st.sampled_from(sorted(counts)), min_size=1))),
            has={topic: frozenset(parts) for topic, parts in has[name].items()},
        )
        for name in names
    )
    return subscribers, counts


@given(situations())
def test_assignors_give_every_wanted_partition_to_one_subscriber(
    situation: tuple[tuple[Subscriber, ...], dict[bytes, int]],
) -> None:
    subscribers, counts = situation
    topics = {each.member_id: each.topics for each in subscribers}
    wanted = sorted(
        (topic, index)
        for topic, count in counts.items()
        if any(topic in each.topics for each in subscribers)
        for index in range(count)
    )
    for assign in (assign_range, assign_uniform):
        given_ = assign(subscribers, counts)
        assert sorted(at for parts in given_.values() for at in flat(parts)) == wanted
        assert all(set(parts) <= topics[name] for name, parts in given_.items())


@given(situations())
def test_the_uniform_assignor_is_even_and_moves_only_what_it_must(
    situation: tuple[tuple[Subscriber, ...], dict[bytes, int]],
) -> None:
    subscribers, counts = situation
    same = tuple(
        Subscriber(member_id=each.member_id, instance_id=None, topics=frozenset(counts), has=each.has)
        for each in subscribers
    )
    given_ = assign_uniform(same, counts)
    sizes = [len(list(flat(parts))) for parts in given_.values()]
    assert max(sizes) - min(sizes) <= 1
    again = tuple(
        Subscriber(member_id=each.member_id, instance_id=None, topics=each.topics, has=given_[each.member_id])
        for each in same
    )
    assert assign_uniform(again, counts) == given_


def test_the_range_assignor_gives_ranges_of_each_topic() -> None:
    members = tuple(
        Subscriber(member_id=name, instance_id=None, topics=frozenset({b"a", b"b"}), has={}) for name in "yxz"
    )
    assert assign_range(members, {b"a": 5, b"b": 2}) == {
        "x": {b"a": frozenset({0, 1}), b"b": frozenset({0})},
        "y": {b"a": frozenset({2, 3}), b"b": frozenset({1})},
        "z": {b"a": frozenset({4})},
    }
