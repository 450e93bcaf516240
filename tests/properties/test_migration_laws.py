"""Laws of a group whose members change their protocol one by one (KIP-848): in any order of joins, leaves,
crashes, silence and coordinator changes.

No partition has two owners at once; the log alone gives the same group, after every step; committed offsets
do not go back; if all members continue, each partition has one owner, and the group is of the new protocol as
long as any member uses it.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from metaquorum.broker.coordinator.groups.consumer.assignors import Subscriber, assign_uniform
from metaquorum.broker.coordinator.groups.consumer.group import LEFT, flat, gathered
from metaquorum.broker.coordinator.groups.group import Phase
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import GroupConfig, MigrationPolicy
from metaquorum.wire.embedded import assigned_partitions, consumer_subscription, encode_assignment
from tests.properties.test_consumer_group_laws import SESSION_MS, TOPICS, Consumer, image_of
from tests.unit.broker.group_world import G, Groups, subscription

CLASSIC, NEW = 3, 2
CONFIG = GroupConfig(
    group_consumer_session_timeout_ms=SESSION_MS,
    group_initial_rebalance_delay_ms=20,
    group_min_session_timeout_ms=10,
    group_consumer_migration_policy=MigrationPolicy.BIDIRECTIONAL,
)
TOPIC_ID, COUNT = TOPICS["t"]


class Classic:
    """A consumer of the classic protocol. An eager one gives up everything before it joins, a cooperative one
    what is no longer assigned to it, after which it rejoins."""

    def __init__(self, groups: Groups, *, is_eager: bool) -> None:
        self.groups = groups
        self.is_eager = is_eager
        self.protocol = "range" if is_eager else "cooperative-sticky"
        self.start()

    def start(self) -> None:
        """As a new process."""
        self.member_id = ""
        self.owns: set[tuple[bytes, int]] = set()
        self.generation = -1
        self.waiting: tuple[str, int] | None = None
        self.heard_ms = self.groups.now_ms

    def lose(self) -> None:
        self.owns, self.generation, self.waiting = set(), -1, None

    def step(self) -> None:
        """Handles the response that it waits for, or sends the next request."""
        if self.waiting is not None:
            kind, key = self.waiting
            self.heard_ms = self.groups.now_ms
            if key in self.groups.answers:
                self.waiting = None
                getattr(self, kind)(self.groups.answers[key])
        elif self.generation < 0:
            self.join()
        else:
            self.heard_ms = self.groups.now_ms
            self.refused(self.groups.heartbeat(self.member_id, self.generation))

    def refused(self, error: ErrorCode) -> bool:
        if error is ErrorCode.NONE:
            return False
        if error is not ErrorCode.REBALANCE_IN_PROGRESS:
            self.lose()
            if error is ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
        self.join()
        return True

    def join(self) -> None:
        if self.is_eager:
            self.owns = set()
        self.generation = -1
        owned = {"t": tuple(index for _, index in self.owns)} if self.owns else {}
        metadata = subscription("t", owned=owned)
        self.waiting = (
            "joined",
            self.groups.join(
                self.member_id,
                version=5,
                protocols=((self.protocol, metadata),),
                session_ms=SESSION_MS,
                rebalance_ms=2 * SESSION_MS,
            ),
        )

    def joined(self, answer: Any) -> None:
        error = ErrorCode(answer.error_code)
        if error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            self.join()
            return
        if self.refused(error):
            return
        self.member_id, self.generation = answer.member_id, answer.generation_id
        given = self.assign(answer.members) if answer.leader == self.member_id else None
        self.waiting = "synced", self.groups.sync(self.member_id, self.generation, given)

    def assign(self, members: Any) -> dict[str, bytes]:
        """As a leader does: evenly, and nothing that another member has not given up."""
        has: dict[str, set[tuple[bytes, int]]] = {}
        for each in members:
            found = consumer_subscription(each.metadata)
            assert found is not None
            owned = found.value.owned_partitions
            has[each.member_id] = {(TOPIC_ID, index) for one in owned for index in one.partitions}
        subscribers = tuple(
            Subscriber(
                member_id=name, instance_id=None, topics=frozenset({TOPIC_ID}), has=gathered(sorted(parts))
            )
            for name, parts in has.items()
        )
        given = {}
        for name, parts in assign_uniform(subscribers, {TOPIC_ID: COUNT}).items():
            taken = {at for other in has if other != name for at in has[other]}
            given[name] = encode_assignment({"t": [i for _, i in set(flat(parts)) - taken]}, 1)
        return given

    def synced(self, answer: Any) -> None:
        if self.refused(ErrorCode(answer.error_code)):
            return
        found = assigned_partitions(answer.assignment)
        mine = {(TOPIC_ID, index) for _, index in found[0]} if found is not None else set()
        gone, self.owns = self.owns - mine, mine
        if gone:
            self.join()


class MixedMachine(RuleBasedStateMachine):
    @initialize(is_eager=st.booleans(), running=st.sets(st.integers(0, CLASSIC)), rounds=st.integers(0, 12))
    def begin(self, is_eager: bool, running: set[int], rounds: int) -> None:
        self.image = image_of(TOPICS)
        self.groups = Groups(CONFIG)
        self.groups.publish(self.image, MetadataImage())
        self.classic = [Classic(self.groups, is_eager=is_eager) for _ in range(CLASSIC)]
        self.new = [Consumer(f"new-{at}", self.groups) for at in range(NEW)]
        self.running = [self.members[who] for who in running]
        self.committed = -1
        for _ in range(rounds):
            self.all_go_on()

    @property
    def members(self) -> list[Classic | Consumer]:
        return [*self.classic, *self.new]

    @rule(who=st.integers(0, CLASSIC + NEW - 1))
    def go_on(self, who: int) -> None:
        member = self.members[who]
        if member not in self.running:
            self.running.append(member)
        self._step(member)

    @staticmethod
    def _step(member: Classic | Consumer) -> None:
        if isinstance(member, Classic):
            member.step()
        else:
            member.heartbeat()

    @rule()
    def all_go_on(self) -> None:
        for member in self.running:
            self._step(member)
        self.groups.wait(30)

    @rule(who=st.integers(0, CLASSIC + NEW - 1), crashes=st.booleans())
    def stop(self, who: int, crashes: bool) -> None:
        member = self.members[who]
        if member not in self.running:
            return
        self.running.remove(member)
        if isinstance(member, Classic):
            if not crashes and member.member_id:
                self.groups.leave(member.member_id)
            member.start()
        else:
            if not crashes and member.epoch:
                member.heartbeat(epoch=LEFT)
            member.lose()

    @rule(who=st.integers(0, CLASSIC + NEW - 1))
    def commit(self, who: int) -> None:
        member = self.members[who]
        classic = isinstance(member, Classic)
        name = member.member_id if isinstance(member, Classic) else member.name
        epoch = member.generation if isinstance(member, Classic) else member.epoch
        if epoch > 0:
            error = self.groups.commit(self.committed + 1, member_id=name, generation=epoch)
            assert error is not ErrorCode.STALE_MEMBER_EPOCH or not classic
            self.committed += error is ErrorCode.NONE

    @rule(ms=st.sampled_from([10, 400, 1_100, 2_500]))
    def wait(self, ms: int) -> None:
        for member in self.members:
            if self.groups.now_ms + ms - member.heard_ms >= SESSION_MS:
                member.lose()
        self.groups.wait(ms)

    @rule()
    def coordinator_changes(self) -> None:
        before, self.groups = self.groups, self.groups.again()
        self.groups.next_key = before.next_key
        self.groups.publish(self.image, MetadataImage())
        for member in self.members:
            member.groups = self.groups
            member.heard_ms = self.groups.now_ms
            if isinstance(member, Classic) and member.waiting is not None:
                member.waiting, member.generation = None, -1

    @rule()
    def settle(self) -> None:
        if not self.running:
            return
        for _ in range(60):
            self.all_go_on()
        owned = sorted(index for member in self.running for _, index in member.owns)
        assert owned == list(range(COUNT))
        is_new = any(isinstance(each, Consumer) for each in self.running)
        assert (G in self.groups.state.consumers.groups) == is_new
        assert (G in self.groups.state.groups) != is_new

    @invariant()
    def one_owner(self) -> None:
        owned = [at for member in self.members for at in member.owns]
        assert len(owned) == len(set(owned))

    @invariant()
    def the_log_says_the_same(self) -> None:
        live, read = self.groups.state, self.groups.again().state
        assert read.consumers.groups == live.consumers.groups
        group, stored = live.groups.get(G), read.groups.get(G)
        assert group is None or G not in live.consumers.groups
        if group is not None and group.phase is Phase.STABLE:
            assert stored is not None
            assert (stored.generation, stored.leader) == (group.generation, group.leader)
            assert {k: m.assignment for k, m in stored.members.items()} == {
                k: m.assignment for k, m in group.members.items()
            }
        assert self.groups.committed() == self.committed


TestMixed = MixedMachine.TestCase
TestMixed.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
