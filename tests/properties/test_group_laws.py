"""Laws of groups under any order of joins, syncs, commits, leaves and silence.

A partition has one owner in a generation, only a commit changes an offset, silent members are removed, no
request gets two responses, and the log alone gives the same groups.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from metaquorum.broker.coordinator.groups.group import Phase
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.node_configs import GroupConfig
from tests.unit.broker.group_world import G, Groups, subscription

PARTITIONS = 6
SESSION_MS = 1_000
WHO = st.integers(0, 3)


class Client:
    """A member as a client library drives it: it joins, receives or computes assignments, and remembers
    both."""

    def __init__(self, groups: Groups, instance: str | None) -> None:
        self.groups = groups
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.joining: int | None = None
        self.syncing: int | None = None
        self.to_assign: list[str] | None = None
        self.owns: frozenset[int] = frozenset()
        self.heard_ms = 0

    def hear(self) -> None:
        """Handles the responses that have arrived."""
        answers = self.groups.answers
        if self.joining in answers:
            answer, self.joining = answers[self.joining], None
            self.heard_ms = self.groups.now_ms
            self.owns = frozenset()
            if answer.error_code == ErrorCode.NONE:
                self.member_id, self.generation = answer.member_id, answer.generation_id
                leads = answer.leader == answer.member_id and not answer.skip_assignment
                self.to_assign = [each.member_id for each in answer.members] if leads else None
            elif answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = answer.member_id
            else:
                self.member_id, self.generation = "", -1
        if self.syncing in answers:
            answer, self.syncing = answers[self.syncing], None
            self.owns = frozenset(answer.assignment) if answer.error_code == ErrorCode.NONE else frozenset()

    def join(self, version: int, topics: tuple[str, ...]) -> None:
        if self.joining is None:
            self.owns = frozenset()
            protocols = (("range", subscription(*topics)),)
            self.joining = self.groups.join(
                self.member_id,
                version=version,
                instance=self.instance,
                protocols=protocols,
                session_ms=SESSION_MS,
                rebalance_ms=2 * SESSION_MS,
            )

    def sync(self) -> None:
        if self.generation < 0 or self.syncing is not None or self.joining is not None:
            return
        given = None
        if self.to_assign:
            shares = [range(at, PARTITIONS, len(self.to_assign)) for at in range(len(self.to_assign))]
            given = {name: bytes(share) for name, share in zip(self.to_assign, shares, strict=True)}
        self.syncing = self.groups.sync(self.member_id, self.generation, given, instance=self.instance)


class GroupMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.groups = Groups(
            GroupConfig(
                group_initial_rebalance_delay_ms=200,
                group_min_session_timeout_ms=10,
                group_max_size=3,
            )
        )
        self.clients = [Client(self.groups, "static" if at == 0 else None) for at in range(4)]
        self.committed = -1

    def _heard(self) -> None:
        for client in self.clients:
            client.hear()

    @rule(who=WHO, version=st.sampled_from([3, 4, 9]), topics=st.sampled_from([("t",), ("t", "u")]))
    def join(self, who: int, version: int, topics: tuple[str, ...]) -> None:
        self.clients[who].join(version, topics)
        self._heard()

    @rule(who=WHO)
    def sync(self, who: int) -> None:
        self.clients[who].sync()
        self._heard()

    @rule(who=WHO, offset=st.integers(0, 99))
    def commit(self, who: int, offset: int) -> None:
        client = self.clients[who]
        if client.instance is None:
            error = self.groups.commit(offset, member_id=client.member_id, generation=client.generation)
            if error is ErrorCode.NONE:
                self.committed = offset

    @rule(who=WHO)
    def heartbeat(self, who: int) -> None:
        client = self.clients[who]
        if client.generation >= 0:
            self.groups.heartbeat(client.member_id, client.generation, client.instance)

    @rule(who=WHO)
    def leave(self, who: int) -> None:
        client = self.clients[who]
        if client.member_id and client.joining is None:
            self.groups.leave(client.member_id, instance=client.instance)
            client.member_id, client.generation, client.owns = "", -1, frozenset()
        self._heard()

    @rule(ms=st.sampled_from([1, 150, 400, 1_100, 2_500]))
    def wait(self, ms: int) -> None:
        self.groups.wait(ms)
        self._heard()

    @rule()
    def silence(self) -> None:
        """A member that sends nothing for longer than every timeout is no longer in the group."""
        self.groups.wait(400_000)
        self._heard()
        for client in self.clients:
            client.member_id, client.generation, client.owns = "", -1, frozenset()
        group = self.groups.state.groups.get(G)
        assert group is None or (group.phase is Phase.EMPTY and not group.members and not group.pending)

    @rule()
    def coordinator_dies(self) -> None:
        """What was only in memory is lost; members rejoin."""
        before = self.groups
        self.groups = before.again()
        self.groups.next_key = before.next_key
        for client in self.clients:
            client.groups = self.groups
            client.joining = client.syncing = None

    @invariant()
    def one_owner_in_a_generation(self) -> None:
        owners: dict[tuple[int, int], Client] = {}
        for client in self.clients:
            for partition in client.owns:
                known = owners.setdefault((client.generation, partition), client)
                assert known is client, f"two members own {partition} in generation {client.generation}"

    @invariant()
    def offsets_are_what_was_committed_last(self) -> None:
        assert self.groups.committed() == self.committed

    @invariant()
    def the_log_gives_the_same_groups(self) -> None:
        read = self.groups.again().state
        for name, group in self.groups.state.groups.items():
            if group.phase in (Phase.STABLE, Phase.EMPTY) and group.generation:
                found: Any = read.groups[name]
                assert (found.phase, found.generation, found.leader) == (
                    group.phase,
                    group.generation,
                    group.leader,
                )
                assert {each: member.assignment for each, member in found.members.items()} == {
                    each: member.assignment for each, member in group.members.items()
                }
            assert read.offsets.of(name) == self.groups.state.offsets.of(name)


TestGroups = GroupMachine.TestCase
TestGroups.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
