"""The groups of one partition, classic and of the new protocol, driven by a script (`coordinator_player`)."""

from __future__ import annotations

import random
from typing import Any

from msgspec.structs import replace

from metaquorum.broker.coordinator.groups.group import (
    DeleteGroup,
    DescribeConsumerGroup,
    DescribeGroup,
    FetchOffsets,
    ListGroups,
)
from metaquorum.broker.coordinator.groups.state import GroupState
from metaquorum.broker.coordinator.state import CoordinatorState
from metaquorum.metadata.node_configs import GroupConfig, MigrationPolicy
from metaquorum.wire.embedded import encode_assignment
from metaquorum.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)
from tests.scripts.coordinator_player import CoordinatorPlayer, parts_of
from tests.scripts.player import show
from tests.unit.broker.group_world import subscription
from tests.unit.broker.manager_world import topic_id

G = "g"
CONFIG = GroupConfig(
    group_initial_rebalance_delay_ms=100,
    group_min_session_timeout_ms=10,
    group_max_session_timeout_ms=10_000,
    group_consumer_session_timeout_ms=1_000,
    offsets_retention_ms=50_000,
    offsets_retention_check_interval_ms=20_000,
    offset_metadata_max_bytes=4,
)


class GroupsPlayer(CoordinatorPlayer):
    """The group is g unless a command names another."""

    def __init__(self) -> None:
        self.config = CONFIG
        self.rng = random.Random(7)
        super().__init__("__consumer_offsets")

    def new_state(self) -> CoordinatorState:
        return GroupState(self.config, self.rng)

    def facts(self) -> dict[str, str]:
        state = self.state
        assert isinstance(state, GroupState)
        facts: dict[str, str] = {}
        for group in state.groups.values():
            name = f"group {group.group_id}"
            facts[name] = " ".join(
                [
                    f"{group.phase.name} {group.generation} {group.protocol_type}/{group.protocol}",
                    f"leader={show(group.leader)} since={group.state_since_ms}",
                    f"pending={show(sorted(group.pending))} unsynced={show(sorted(group.not_synced))}",
                    f"first={show(group.is_first_join)}/{group.delay_left_ms}/{show(group.someone_joined)}",
                ]
            )
            facts |= {f"{name} {each.member_id}": show(each) for each in group.members.values()}
        for group_id, one in state.consumers.groups.items():
            name = f"consumers {group_id}"
            facts[name] = f"{one.state_name} {one.epoch}/{one.target_epoch} of {show(one.topics)}"
            facts |= {f"{name} {each.member_id}": show(each) for each in one.members.values()}
            facts |= {f"{name} pattern {each}": show(found) for each, found in one.patterns.items()}
            facts |= {f"{name} {each} target": show(parts) for each, parts in one.targets.items()}
        offsets = state.offsets
        for group_id, committed in offsets._committed.items():
            facts |= {f"offset {group_id} {show(at)}": show(each) for at, each in committed.items()}
        facts |= {f"held by {producer}": show(held) for producer, held in offsets._pending.items()}
        timers = sorted((due, *timer) for timer, due in state._timers.when.items())
        facts["timers"] = ", ".join(
            f"{' '.join(names).strip()} +{due - self.now_ms}" for due, *names in timers
        )
        return facts

    def do_configure(self, policy: str = "", **figures: str) -> None:
        """configure policy=bidirectional group_max_size=2; `again` begins with it."""
        self.config = replace(self.config, **{name: int(value) for name, value in figures.items()})  # type: ignore[arg-type]
        if policy:
            self.config = replace(self.config, group_consumer_migration_policy=MigrationPolicy(policy))

    # ---- classic members -------------------------------------------------------------------------

    def do_join(
        self,
        member: str = "",
        group: str = G,
        instance: str | None = None,
        protocols: str = "range:t",
        session: str = "1000",
        rebalance: str = "5000",
        kind: str = "consumer",
        owned: str = "",
    ) -> None:
        """join MEMBER protocols=range:t,u/sticky:t owned=t.0.1 session=1000; `range:!`: no subscription."""
        has = parts_of(owned) if owned else None
        split = [each.partition(":") for each in protocols.split("/") if each]
        named = [
            (name, b"\xff" if topics == "!" else subscription(*topics.split(","), owned=has))
            for name, _, topics in split
        ]
        self.ask(
            JoinGroupRequest(
                group_id=group,
                session_timeout_ms=int(session),
                rebalance_timeout_ms=int(rebalance),
                member_id=member,
                group_instance_id=instance,
                protocol_type=kind,
                protocols=tuple(
                    JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata)
                    for name, metadata in named
                ),
            )
        )

    def do_sync(
        self,
        member: str,
        generation: str,
        *given: str,
        group: str = G,
        instance: str | None = None,
        kind: str | None = None,
        protocol: str | None = None,
    ) -> None:
        """sync MEMBER GENERATION MEMBER:t.0.1+u.0 MEMBER:text"""
        split = [each.rpartition(":") for each in given]
        self.ask(
            SyncGroupRequest(
                group_id=group,
                generation_id=int(generation),
                member_id=member,
                group_instance_id=instance,
                protocol_type=kind,
                protocol_name=protocol,
                assignments=tuple(
                    SyncGroupRequest.SyncGroupRequestAssignment(
                        member_id=name,
                        assignment=encode_assignment(parts_of(text), 1) if "." in text else text.encode(),
                    )
                    for name, _, text in split
                ),
            )
        )

    def do_beat(self, member: str, generation: str, group: str = G, instance: str | None = None) -> None:
        body = HeartbeatRequest(
            group_id=group, generation_id=int(generation), member_id=member, group_instance_id=instance
        )
        self.ask(body)

    def do_leave(self, *members: str, group: str = G) -> None:
        """leave MEMBER MEMBER@INSTANCE @INSTANCE"""
        split = [each.partition("@") for each in members]
        kinds = LeaveGroupRequest.MemberIdentity
        named = [kinds(member_id=name, group_instance_id=place or None) for name, _, place in split]
        self.ask(LeaveGroupRequest(group_id=group, members=tuple(named)))

    # ---- members of the new protocol -------------------------------------------------------------

    def do_consume(self, member: str, epoch: str = "0", group: str = G, **options: str) -> None:
        """consume MEMBER EPOCH topics=t,u owned=t.0.1 timeout=500 instance=i rack=r assignor=range regex=x:
        at epoch 0 with topics, an empty `owned` and a timeout; `-` leaves a field out."""
        begins = {"topics": "t", "owned": "", "timeout": "500"} if epoch == "0" else {}
        said = {name: value for name, value in (begins | options).items() if value != "-"}
        kinds = ConsumerGroupHeartbeatRequest
        fields: dict[str, Any] = {
            name: said[word]
            for word, name in (
                ("instance", "instance_id"),
                ("rack", "rack_id"),
                ("assignor", "server_assignor"),
                ("regex", "subscribed_topic_regex"),
            )
            if word in said
        }
        if "topics" in said:
            fields["subscribed_topic_names"] = tuple(name for name in said["topics"].split(",") if name)
        if "owned" in said:
            fields["topic_partitions"] = tuple(
                kinds.TopicPartitions(topic_id=topic_id(name), partitions=tuple(indexes))
                for name, indexes in parts_of(said["owned"]).items()
            )
        if "timeout" in said:
            fields["rebalance_timeout_ms"] = int(said["timeout"])
        member = "" if member == "-" else member
        self.ask(kinds(group_id=group, member_id=member, member_epoch=int(epoch), **fields))

    # ---- offsets ---------------------------------------------------------------------------------

    def do_commit(
        self,
        *offsets: str,
        member: str = "",
        generation: str = "-1",
        group: str = G,
        instance: str | None = None,
        retention: str = "-1",
        stamp: str = "-1",
    ) -> None:
        """commit t.0:5 u.1:7@3!text: partition, offset, leader epoch, metadata."""
        kinds = OffsetCommitRequest
        topics = []
        for word in offsets:
            name, index, fields = _offset(word)
            part = kinds.OffsetCommitRequestPartition(
                partition_index=index, commit_timestamp=int(stamp), **fields
            )
            topics.append(kinds.OffsetCommitRequestTopic(name=name, partitions=(part,)))
        self.ask(
            kinds(
                group_id=group,
                generation_id_or_member_epoch=int(generation),
                member_id=member,
                group_instance_id=instance,
                retention_time_ms=int(retention),
                topics=tuple(topics),
            )
        )

    def do_promise(
        self,
        producer: str,
        *offsets: str,
        member: str = "",
        generation: str = "-1",
        group: str = G,
        instance: str | None = None,
    ) -> None:
        """promise 7.0 t.0:5: as `commit`, in a transaction."""
        kinds, (producer_id, epoch) = TxnOffsetCommitRequest, producer.split(".")
        topics = []
        for word in offsets:
            name, index, fields = _offset(word)
            part = kinds.TxnOffsetCommitRequestPartition(partition_index=index, **fields)
            topics.append(kinds.TxnOffsetCommitRequestTopic(name=name, partitions=(part,)))
        self.ask(
            kinds(
                transactional_id="x",
                group_id=group,
                producer_id=int(producer_id),
                producer_epoch=int(epoch),
                generation_id=int(generation),
                member_id=member,
                group_instance_id=instance,
                topics=tuple(topics),
            )
        )

    def do_forget(self, *places: str, group: str = G) -> None:
        """forget t.0 u.1: OffsetDelete."""
        kinds = OffsetDeleteRequest
        split = [each.split(".") for each in places]
        topics = tuple(
            kinds.OffsetDeleteRequestTopic(
                name=name, partitions=(kinds.OffsetDeleteRequestPartition(partition_index=int(index)),)
            )
            for name, index in split
        )
        self.ask(kinds(group_id=group, topics=topics))

    def do_fetch(self, *places: str, group: str = G, stable: str = "no") -> None:
        """fetch t.0 u.1; fetch: all of the group."""
        split = [each.split(".") for each in places]
        wanted = tuple((name, int(index)) for name, index in split) or None
        self.ask(FetchOffsets(group_id=group, partitions=wanted, require_stable=stable == "yes"))

    # ---- operators -------------------------------------------------------------------------------

    def do_describe(self, group: str = G) -> None:
        self.ask(DescribeGroup(group_id=group))
        self.ask(DescribeConsumerGroup(group_id=group))

    def do_list(self, states: str = "", types: str = "") -> None:
        wanted = [frozenset(each for each in word.split(",") if each) for word in (states, types)]
        self.ask(ListGroups(states=wanted[0], types=wanted[1]))

    def do_delete(self, group: str = G) -> None:
        self.ask(DeleteGroup(group_id=group))


def _offset(word: str) -> tuple[str, int, dict[str, Any]]:
    place, _, rest = word.partition(":")
    name, _, index = place.partition(".")
    number, _, text = rest.partition("!")
    offset, _, epoch = number.partition("@")
    fields = {"committed_offset": int(offset), "committed_metadata": text or None}
    return name, int(index), fields | ({"committed_leader_epoch": int(epoch)} if epoch else {})
