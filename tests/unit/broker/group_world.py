"""One partition's groups without a log: records are replayed at once, answers are kept by their key."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from metaquorum.broker.coordinator.groups.group import FetchOffsets, Group, Phase
from metaquorum.broker.coordinator.groups.state import GroupState
from metaquorum.broker.coordinator.state import Ask, BatchOrigin, Decision, Now
from metaquorum.metadata.authorizer import ANONYMOUS, Authorizer
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import GroupConfig
from metaquorum.metadata.requests.data import CoordinatorRequest
from metaquorum.wire.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    SyncGroupRequest,
)
from metaquorum.wire.stored import StoredRecord, decode_stored, encode_stored

WALL_MS = 1_700_000_000_000
G = "group"
CONFIG = GroupConfig(group_initial_rebalance_delay_ms=100, group_min_session_timeout_ms=10)


def subscription(*topics: str, owned: Mapping[str, Sequence[int]] | None = None) -> bytes:
    """A consumer's metadata: version 0, or 1 where it says what it has."""

    def text(value: str) -> bytes:
        return len(value).to_bytes(2, "big") + value.encode()

    data = len(topics).to_bytes(4, "big") + b"".join(map(text, topics)) + b"\xff\xff\xff\xff"
    if owned is None:
        return b"\0\0" + data
    data += len(owned).to_bytes(4, "big")
    for topic, indexes in owned.items():
        data += text(topic) + len(indexes).to_bytes(4, "big")
        data += b"".join(index.to_bytes(4, "big") for index in indexes)
    return b"\0\1" + data


class Groups:
    """See the module. `records`: everything that was stored."""

    def __init__(
        self,
        config: GroupConfig = CONFIG,
        records: list[StoredRecord] | None = None,
        now_ms: int = 1_000,
        seed: int = 7,
        authorizer: Authorizer | None = None,
    ) -> None:
        self.config = config
        self.authorizer = authorizer
        self.now_ms = now_ms
        self._seed = seed
        self.state = GroupState(config, random.Random(seed), authorizer)
        self.records: list[StoredRecord] = []
        self.answers: dict[object, Any] = {}
        self.next_key = 0
        for record in records or ():
            self._keep(record)
        self._take(self.state.loaded(MetadataImage(), self.now))

    @property
    def now(self) -> Now:
        return Now(self.now_ms, WALL_MS + self.now_ms)

    def group(self, group_id: str = G) -> Group:
        return self.state.groups[group_id]

    @property
    def phase(self) -> Phase:
        return self.group().phase

    def again(self) -> Groups:
        """What another broker finds in the log."""
        return Groups(self.config, self.records, self.now_ms, self._seed + 1, self.authorizer)

    # ---- inputs ----------------------------------------------------------------------------------

    def ask(
        self, body: Any, *, version: int = 5, refuse: ErrorCode | None = None, principal: str = ANONYMOUS
    ) -> int:
        """The key under which the answer comes. `refuse`: the log does not take the records."""
        self.next_key += 1
        request = CoordinatorRequest(
            topic="",
            partition=0,
            body=body,
            version=version,
            client_id="client",
            client_host="/h",
            principal=principal,
        )
        self._take(self.state.decide(Ask(self.next_key, request), self.now), refuse)
        return self.next_key

    def wait(self, ms: int, *, refuse: ErrorCode | None = None) -> None:
        """Time passes, and everything that is due happens in its order. `refuse`: as in `ask`."""
        end = self.now_ms + ms
        while True:
            due_ms = self.state.next_deadline_ms()
            if due_ms is None or due_ms > end:
                break
            self.now_ms = max(self.now_ms, due_ms)
            self._take(self.state.tick(self.now), refuse)
        self.now_ms = end

    def publish(self, image: MetadataImage, previous: MetadataImage) -> None:
        self._take(self.state.image_moved(image, previous, self.now))
        self.wait(0)

    def _take(self, decision: Decision, refuse: ErrorCode | None = None) -> None:
        if refuse is not None and decision.records:
            assert decision.if_refused is not None
            decision = decision.if_refused(refuse)
        for record in decision.records:
            self._keep(record, decision.origin)
        for reply in decision.replies:
            assert reply.key not in self.answers, "a caller was answered twice"
            self.answers[reply.key] = reply.body

    def _keep(self, record: StoredRecord, origin: BatchOrigin | None = None) -> None:
        decoded = decode_stored("__consumer_offsets", *encode_stored(record))
        assert decoded == record
        producer = (origin.producer_id, origin.producer_epoch) if origin else (-1, -1)
        self.state.replay(record, BatchOrigin(len(self.records), *producer))
        self.records.append(record)

    # ---- requests --------------------------------------------------------------------------------

    def join(
        self,
        member_id: str = "",
        *,
        version: int = 3,
        group_id: str = G,
        instance: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = (("range", subscription("t")),),
        session_ms: int = 1_000,
        rebalance_ms: int = 5_000,
        kind: str = "consumer",
        refuse: ErrorCode | None = None,
    ) -> int:
        return self.ask(
            JoinGroupRequest(
                group_id=group_id,
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=rebalance_ms,
                member_id=member_id,
                group_instance_id=instance,
                protocol_type=kind,
                protocols=tuple(
                    JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata)
                    for name, metadata in protocols
                ),
            ),
            version=version,
            refuse=refuse,
        )

    def sync(
        self,
        member_id: str,
        generation: int,
        given: dict[str, bytes] | None = None,
        *,
        refuse: ErrorCode | None = None,
        instance: str | None = None,
    ) -> int:
        assignments = tuple(
            SyncGroupRequest.SyncGroupRequestAssignment(member_id=name, assignment=assignment)
            for name, assignment in (given or {}).items()
        )
        body = SyncGroupRequest(
            group_id=G,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            assignments=assignments,
        )
        return self.ask(body, refuse=refuse)

    def heartbeat(self, member_id: str, generation: int, instance: str | None = None) -> ErrorCode:
        key = self.ask(
            HeartbeatRequest(
                group_id=G, generation_id=generation, member_id=member_id, group_instance_id=instance
            )
        )
        return ErrorCode(self.answers[key].error_code)

    def leave(self, *members: str, instance: str | None = None) -> list[ErrorCode]:
        key = self.ask(
            LeaveGroupRequest(
                group_id=G,
                members=tuple(
                    LeaveGroupRequest.MemberIdentity(member_id=each, group_instance_id=instance)
                    for each in members
                ),
            )
        )
        return [ErrorCode(each.error_code) for each in self.answers[key].members]

    def commit(
        self,
        offset: int,
        *,
        member_id: str = "",
        generation: int = -1,
        topic: str = "t",
        group_id: str = G,
        metadata: str | None = "",
        retention_ms: int = -1,
    ) -> ErrorCode:
        kinds = OffsetCommitRequest
        part = kinds.OffsetCommitRequestPartition(committed_offset=offset, committed_metadata=metadata)
        key = self.ask(
            OffsetCommitRequest(
                group_id=group_id,
                generation_id_or_member_epoch=generation,
                member_id=member_id,
                retention_time_ms=retention_ms,
                topics=(kinds.OffsetCommitRequestTopic(name=topic, partitions=(part,)),),
            )
        )
        return ErrorCode(self.answers[key].topics[0].partitions[0].error_code)

    def committed(self, topic: str = "t", group_id: str = G) -> int:
        key = self.ask(FetchOffsets(group_id=group_id, partitions=((topic, 0),)))
        return int(self.answers[key][0].offset)

    # ---- shorthand -------------------------------------------------------------------------------

    def stable(self, count: int = 2) -> list[str]:
        """A group of so many members that consume."""
        keys = [self.join() for _ in range(count)]
        self.wait(100 + 100 * count)
        joined = [self.answers[key] for key in keys]
        ids = [each.member_id for each in joined]
        leader = joined[0].leader
        given = {each: b"share of " + each.encode() for each in ids}
        for each in ids:
            self.sync(each, joined[0].generation_id, given if each == leader else None)
        assert self.phase is Phase.STABLE
        return ids
