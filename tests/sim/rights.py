"""A simulated cluster whose principals gain and lose permissions during faults; laws about permissions and
causes.

Queries serving brokers about what principals may do. The law: the answer is that of the access control
entries in the committed log at the offset that the broker has applied, by the plain rule; and each committed
change of entries or topics names its cause.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from random import Random
from typing import Any

from metaquorum.metadata.authorizer import Authorizer, Caller
from metaquorum.metadata.image import Acl
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batch_cause import cause_in
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.metadata.replay import ReplayState, replay
from metaquorum.metadata.requests.settings import CreateAclsRequest, DeleteAclsRequest
from metaquorum.metadata.settings.acls import AclFilter, Operation, PatternType, Permission, ResourceType
from metaquorum.storage.batches.batch import iter_batches
from tests.sim.errors import SafetyError
from tests.sim.processes import BrokerProcess
from tests.sim.world import World
from tests.unit.metadata.plain_authorizer import plain_allows

PRINCIPALS = ("User:a", "User:b", "User:*")
TOPICS = ("t", "t1", "u", "*")
EVERY_MS = 60


class RightsWorld(World):
    """Its operator adds and removes entries at intervals, and queries brokers in between."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._rng = Random(seed)
        self._authorizers: dict[BrokerProcess, Authorizer] = {}
        self._state = ReplayState()
        self._given: list[tuple[int, tuple[Acl, ...]]] = [(0, ())]
        self.asked, self.allowed, self.behind = 0, 0, 0
        self.engine.after(EVERY_MS, self._act)

    @property
    def changes(self) -> int:
        """How often the entries changed."""
        return len(self._given) - 1

    def _act(self) -> None:
        self._follow()
        if self._rng.random() < 0.4:
            self.ask_active(self._change())
        for broker in self.brokers():
            self._ask(broker)
        self.engine.after(EVERY_MS, self._act)

    def _change(self) -> Any:
        rng = self._rng
        principal, name = rng.choice(PRINCIPALS), rng.choice(TOPICS)
        if rng.random() < 0.4:
            return DeleteAclsRequest(filters=(AclFilter(principal=principal),))
        acl = Acl(
            resource_type=ResourceType.TOPIC,
            resource_name=name,
            pattern_type=rng.choice((PatternType.LITERAL, PatternType.PREFIXED)),
            principal=principal,
            host="*",
            operation=rng.choice((Operation.READ, Operation.ALL, Operation.WRITE)),
            permission_type=rng.choice((Permission.ALLOW, Permission.ALLOW, Permission.DENY)),
        )
        return CreateAclsRequest(acls=(acl,))

    def _follow(self) -> None:
        """The access control entries of the committed log, by offset."""
        committed = self.checks.committed_batches()
        while (found := committed.get(self._state.end_offset)) is not None:
            (batch,) = iter_batches(found[1])
            if not batch.header.is_control:
                require_causes([one.record for one in decode_batch(batch)])
            before, self._state = self._state.image.acls, replay(self._state, batch)
            if self._state.image.acls is not before:
                acls = tuple(acl for _, acl in self._state.image.acls.items_sorted())
                self._given.append((self._state.image.provenance.offset, acls))

    def _ask(self, broker: BrokerProcess) -> None:
        image, offset = broker.node._image, broker.node.provenance.offset
        if not broker.node.serves(broker.host.monotonic_ms()) or offset > self._state.end_offset:
            return
        self.behind += offset < self._state.end_offset
        authorizer = self._authorizers.setdefault(broker, Authorizer())
        entries = self._given[bisect_right(self._given, offset, key=lambda given: given[0]) - 1][1]
        caller = Caller(self._rng.choice(("User:a", "User:b")), "10.0.0.1")
        for name in TOPICS[:3]:
            for operation in (Operation.READ, Operation.DESCRIBE):
                allowed = authorizer.allows(image, caller, operation, ResourceType.TOPIC, name)
                self.asked, self.allowed = self.asked + 1, self.allowed + allowed
                if allowed != plain_allows(entries, caller, operation, ResourceType.TOPIC, name):
                    raise SafetyError(
                        f"broker {broker.node_id} at offset {offset} says {allowed}: {caller} "
                        f"{operation.name} {name}; the committed log gives {entries}"
                    )


def require_causes(records: Sequence[Any]) -> None:
    """Raises SafetyError for a change of entries or topics without a cause."""
    cause = cause_in(records[0])
    causes: dict[type, str] = {
        r.AccessControlEntryRecord: "CreateAcls",
        r.RemoveAccessControlEntryRecord: "DeleteAcls",
        r.TopicRecord: "CreateTopics",
        r.RemoveTopicRecord: "DeleteTopics",
    }
    for record in records:
        wanted = causes.get(type(record))
        if wanted is not None and (cause is None or cause.request != wanted or cause.principal is None):
            raise SafetyError(f"{record} was written for {cause}")
