"""Following: one fetch loop per (leader, own directory), with a fetch session and one request at a time.

A slow directory holds up only its own loops.

A loop sends its next fetch when everything from the last answer is stored (S2.20, KIP-227): the next
positions are the acknowledgement, and no later fetch may be parked at the leader in front of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from metaquorum.broker.replica.deadlines import Deadlines
from metaquorum.broker.replica.events import DataEffect, SendFetch
from metaquorum.broker.replica.fetch_sessions import FIRST_EPOCH, LAST_EPOCH, NO_SESSION
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.broker.replica.partition.values import FollowerStep
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, ConfigResource, MetadataImage
from metaquorum.metadata.node_configs import ReplicaConfig
from metaquorum.metadata.requests.data import FetchPartition, FetchRequest, FetchResponse, PartitionKey
from metaquorum.metadata.requests.rates import QuotaWindows, Rate
from metaquorum.metadata.settings.configs import CLUSTER_DEFAULT, NOTHING
from metaquorum.metadata.settings.keys import MAX_INT, MAX_LONG, whole_number
from metaquorum.raft.effects import Outbox

FIRST_BACKOFF_MS = 50

Touched = Callable[[Partition], None]
LoopName = tuple[int, bytes]
"""(leader's broker id, own directory id)."""

_NEW_SESSION = frozenset({ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH})


class FetchLoop:
    """What one directory follows of one leader. `in_session`: positions that the leader's session
    knows. `changed`: to be looked at before the next request. `busy`: data of the last answer that is not
    stored yet. `trouble`: consecutive failures, by partition."""

    __slots__ = (
        "busy",
        "changed",
        "correlation_id",
        "directory_id",
        "epoch",
        "failures",
        "forgotten",
        "in_session",
        "leader",
        "members",
        "retry_ms",
        "session_id",
        "trouble",
    )

    def __init__(self, leader: int, directory_id: bytes) -> None:
        self.leader = leader
        self.directory_id = directory_id
        self.members: dict[PartitionKey, Partition] = {}
        self.in_session: dict[PartitionKey, FetchPartition] = {}
        self.changed: dict[PartitionKey, None] = {}
        self.forgotten: dict[PartitionKey, None] = {}
        self.busy: set[PartitionKey] = set()
        self.trouble: dict[PartitionKey, int] = {}
        self.session_id = NO_SESSION
        self.epoch = FIRST_EPOCH
        self.correlation_id: int | None = None
        self.failures = 0
        self.retry_ms = 0

    @property
    def name(self) -> LoopName:
        return self.leader, self.directory_id

    def restart_session(self) -> None:
        """The leader's session is gone, or its state is unknown: every position is sent again."""
        self.epoch = FIRST_EPOCH
        self.in_session.clear()
        self.forgotten.clear()
        self.changed = dict.fromkeys(self.members)

    def drop(self, key: PartitionKey) -> None:
        """The leader's session must forget a partition, for good or for a while."""
        self.changed.pop(key, None)
        self.busy.discard(key)
        # The session also has it while its next position has not been sent yet.
        if self.in_session.pop(key, None) is not None or self.epoch != FIRST_EPOCH:
            self.forgotten[key] = None

    def named(self) -> list[FetchPartition]:
        """Positions to send to the leader; they count as sent."""
        parts = []
        for key in self.changed:
            partition = self.members.get(key)
            position = None if partition is None else partition.fetch_position()
            if position is not None and self.in_session.get(key) != position:
                parts.append(position)
                self.in_session[key] = position
                self.forgotten.pop(key, None)
        self.changed.clear()
        return parts


class Fetchers:
    """`endpoint_of` returns (host, port) of a broker, None while it is not registered."""

    def __init__(
        self,
        config: ReplicaConfig,
        endpoint_of: Callable[[int], tuple[str, int] | None],
        next_correlation_id: Callable[[], int],
        touched: Touched,
        out: Outbox[DataEffect],
    ) -> None:
        self._config = config
        self.throttle = Throttle("follower", config)
        self._endpoint_of = endpoint_of
        self._next_correlation_id = next_correlation_id
        self._touched = touched
        self._out = out
        self._loops: dict[LoopName, FetchLoop] = {}
        self._loop_of: dict[PartitionKey, FetchLoop] = {}
        self._in_flight: dict[int, FetchLoop] = {}
        self.ready: dict[FetchLoop, None] = {}
        self._paused: Deadlines[PartitionKey] = Deadlines()
        self._retries: Deadlines[FetchLoop] = Deadlines()
        self.broker_epoch = -1
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._loops)

    # ---- leaders and followers ---------------------------------------------------------------

    def follow(self, partition: Partition, leader: int) -> None:
        """`partition` fetches from `leader` from now on, and from no other broker (S4.11)."""
        key = partition.key
        loop = self._loop_of.get(key)
        if loop is not None and (loop.leader != leader or loop.members.get(key) is not partition):
            self.leave(key)
            loop = None
        if loop is None:
            name = (leader, partition.directory_id)
            loop = self._loops.get(name)
            if loop is None:
                loop = self._loops[name] = FetchLoop(leader, partition.directory_id)
            loop.members[key] = partition
            self._loop_of[key] = loop
        self._paused.disarm(key)
        self.moved(key)

    def leave(self, key: PartitionKey) -> None:
        """The partition no longer fetches (S3.11): it leads, is offline, or is gone."""
        loop = self._loop_of.pop(key, None)
        self._paused.disarm(key)
        if loop is None:
            return
        loop.members.pop(key, None)
        loop.trouble.pop(key, None)
        loop.drop(key)
        if not loop.members:
            self._loops.pop(loop.name, None)
            self._retries.disarm(loop)
            self.ready.pop(loop, None)
        else:
            self.ready[loop] = None

    def moved(self, key: PartitionKey) -> None:
        """Its fetch position may have changed."""
        loop = self._loop_of.get(key)
        if loop is None or key in self._paused:
            return
        if key in loop.busy and loop.members[key].can_fetch:
            loop.busy.discard(key)
        loop.changed[key] = None
        self.ready[loop] = None

    def directory_failed(self, directory_id: bytes) -> None:
        """Its loops end; other directories' loops of the same leaders continue (S3.1)."""
        for loop in [each for each in self._loops.values() if each.directory_id == directory_id]:
            for key in list(loop.members):
                self.leave(key)

    def endpoints_changed(self) -> None:
        """An unknown leader may be known now."""
        for loop in self._loops.values():
            self.ready[loop] = None

    # ---- the loops ---------------------------------------------------------------------------

    def settle(self, now_ms: int) -> None:
        """Sends what can be sent."""
        while self.ready:
            loop = next(iter(self.ready))
            del self.ready[loop]
            self._send(loop, now_ms)

    def tick(self, now_ms: int) -> None:
        for key in self._paused.take_due(now_ms):
            self.moved(key)
        for loop in self._retries.take_due(now_ms):
            self.ready[loop] = None

    @property
    def timers(self) -> tuple[Deadlines[PartitionKey], Deadlines[FetchLoop]]:
        """When `tick` is due."""
        return self._paused, self._retries

    def _send(self, loop: FetchLoop, now_ms: int) -> None:
        if loop.correlation_id is not None or loop.busy or not loop.members:
            return
        if now_ms < loop.retry_ms:
            self._retries.arm(loop, loop.retry_ms)
            return
        endpoint = self._endpoint_of(loop.leader)
        if endpoint is None:
            return
        if self.throttle.topics:
            self._hold_back(loop, now_ms)
        if loop.epoch == FIRST_EPOCH:
            loop.in_session.clear()
            loop.changed = {key: None for key in loop.members if key not in self._paused}
        parts = loop.named()
        if not loop.in_session and not loop.forgotten:
            return
        correlation_id = loop.correlation_id = self._next_correlation_id()
        self._in_flight[correlation_id] = loop
        config = self._config
        request = FetchRequest(
            replica_id=config.broker_id,
            replica_epoch=self.broker_epoch,
            max_wait_ms=config.replica_fetch_wait_max_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=loop.session_id,
            session_epoch=loop.epoch,
            partitions=tuple(parts),
            forgotten=() if loop.epoch == FIRST_EPOCH else tuple(loop.forgotten),
        )
        loop.forgotten.clear()
        self._out.append(
            SendFetch(
                target=loop.leader,
                host=endpoint[0],
                port=endpoint[1],
                correlation_id=correlation_id,
                request=request,
                timeout_ms=config.replica_fetch_wait_max_ms + config.replica_request_timeout_ms,
            )
        )

    def _hold_back(self, loop: FetchLoop, now_ms: int) -> None:
        """Replicas that catch up wait while their quota is used up (KIP-73): the leader's session forgets
        them. A replica that does not know its leader's end yet fetches that first."""
        wait_ms = min(self.throttle.wait_ms(now_ms), self._config.replica_fetch_backoff_ms)
        if not wait_ms:
            return
        for key, partition in loop.members.items():
            if key not in self._paused and partition.lag and self.throttle.covers(partition):
                loop.drop(key)
                self._paused.arm(key, now_ms + wait_ms)

    def answered(
        self,
        correlation_id: int,
        response: FetchResponse | ApiError,
        *,
        now_ms: int,
        wall_ms: int,
    ) -> None:
        loop = self._in_flight.pop(correlation_id, None)
        if loop is None:
            return
        loop.correlation_id = None
        self.ready[loop] = None
        if isinstance(response, ApiError):
            if response.code in _NEW_SESSION and loop.failures == 0:
                loop.session_id = NO_SESSION
                loop.failures = 1
                loop.restart_session()
            else:
                self._back_off(loop, now_ms)
            return
        loop.failures = 0
        first = loop.epoch == FIRST_EPOCH
        loop.session_id = response.session_id
        if response.session_id == NO_SESSION:
            loop.epoch = FIRST_EPOCH
        else:
            loop.epoch = 1 if first or loop.epoch == LAST_EPOCH else loop.epoch + 1
        for part in response.partitions:
            asked = loop.in_session.get(part.key)
            partition = loop.members.get(part.key)
            if asked is None or partition is None:
                continue
            outcome = partition.fetched(part, asked=asked, now_ms=now_ms, wall_ms=wall_ms)
            self.bytes += len(part.records)
            if self.throttle.topics:
                self.throttle.count(partition, len(part.records), now_ms)
            reacts = bool(part.records) or part.diverging is not None
            self._note(loop, partition, outcome.step, reacts, now_ms)
            self._touched(partition)

    def failed(self, correlation_id: int, *, now_ms: int) -> None:
        """No answer: the leader may or may not have received the request, so its session no longer counts."""
        loop = self._in_flight.pop(correlation_id, None)
        if loop is not None:
            loop.correlation_id = None
            self._back_off(loop, now_ms)

    def _note(
        self, loop: FetchLoop, partition: Partition, step: FollowerStep, reacts: bool, now_ms: int
    ) -> None:
        """`reacts`: the leader waits until the partition is named again (see `fetch_sessions`)."""
        key = partition.key
        match step:
            case FollowerStep.APPENDED | FollowerStep.CUT:
                loop.trouble.pop(key, None)
                if not partition.can_fetch:
                    loop.busy.add(key)
                self._name_again(loop, key)
            case FollowerStep.NOTHING:
                loop.trouble.pop(key, None)
                if reacts:
                    self._name_again(loop, key)
            case FollowerStep.STALE:
                self._name_again(loop, key)
            case FollowerStep.BACK_OFF | FollowerStep.WAIT:
                # WAIT too: the metadata that helps may arrive without a change of this partition.
                loop.drop(key)
                failures = loop.trouble[key] = loop.trouble.get(key, 0) + 1
                self._paused.arm(key, now_ms + self._wait_ms(failures))

    def _name_again(self, loop: FetchLoop, key: PartitionKey) -> None:
        """With its next position, or with the same one."""
        loop.in_session.pop(key, None)
        loop.changed[key] = None

    def _back_off(self, loop: FetchLoop, now_ms: int) -> None:
        loop.failures += 1
        loop.restart_session()
        loop.retry_ms = now_ms + self._wait_ms(loop.failures)
        if loop.members:
            self._retries.arm(loop, loop.retry_ms)

    def _wait_ms(self, failures: int) -> int:
        """The first waits are short: a leader learns of its leadership a moment after its followers."""
        return min(self._config.replica_fetch_backoff_ms, FIRST_BACKOFF_MS << min(failures - 1, 10))


# How fast replicas catch up (KIP-73): the quotas of replication, by direction.
# Replicas in sync are counted and never held; the callers know which are in sync.

_UNLIMITED = 2**63 - 1


class Throttle:
    """One direction, `leader` or `follower`: the quota that this broker's
    `DIRECTION.replication.throttled.rate` allows the partitions in `DIRECTION.replication.throttled.replicas`
    of their topics."""

    def __init__(self, direction: str, config: ReplicaConfig) -> None:
        self._rate_key = f"{direction}.replication.throttled.rate"
        self._replicas_key = f"{direction}.replication.throttled.replicas"
        self._me = str(config.broker_id)
        windows = QuotaWindows(
            count=config.replication_quota_window_num, window_ms=config.replication_quota_window_ms
        )
        self._used = Rate(windows)
        self._bound = _UNLIMITED
        self.topics: dict[str, frozenset[int] | None] = {}
        """Partitions by topic; None: all."""

    def publish(self, image: MetadataImage, previous: MetadataImage) -> None:
        """The image moved on from `previous`, at first the empty one."""
        if image.configs is previous.configs:
            return
        for resource in previous.configs.changed_keys(image.configs):
            if resource.resource_type == TOPIC_RESOURCE:
                self._set_topic(
                    resource.name, (image.configs.get(resource) or NOTHING).get(self._replicas_key)
                )
        own = ConfigResource(BROKER_RESOURCE, self._me)
        for resource in (own, CLUSTER_DEFAULT):
            text = (image.configs.get(resource) or NOTHING).get(self._rate_key)
            bound = None if text is None else whole_number(text, MAX_LONG)
            if bound is not None:
                self._bound = bound
                return
        self._bound = _UNLIMITED

    def _set_topic(self, name: str, text: str | None) -> None:
        """A value that does not parse counts as not set: the controller refuses it, but an old log may hold
        it."""
        pairs = [each.strip().split(":") for each in (text or "").split(",")]
        if pairs == [["*"]]:
            self.topics[name] = None
            return
        numbers = (whole_number(pair[0], MAX_INT) for pair in pairs if pair[1:] == [self._me])
        mine = frozenset(number for number in numbers if number is not None)
        self.topics.pop(name, None)
        if mine:
            self.topics[name] = mine

    def covers(self, partition: Partition) -> bool:
        """Whether the quota covers this partition."""
        topic = partition.topic
        if topic not in self.topics:
            return False
        partitions = self.topics[topic]
        return partitions is None or partition.key[1] in partitions

    def count(self, partition: Partition, size: int, now_ms: int) -> None:
        """Counts these bytes in this direction."""
        if size and self.covers(partition):
            self._used.add(size, now_ms)

    def wait_ms(self, now_ms: int) -> int:
        """How long replicas that catch up wait; 0 if they continue."""
        if not self.topics:
            return 0
        return math.ceil(self._used.wait_ms(self._bound, now_ms))

    def holds(self, partition: Partition, replica_id: int, now_ms: int) -> bool:
        """Whether a follower gets nothing now from the partition, which leads."""
        return self.wait_ms(now_ms) > 0 and replica_id not in partition.isr and self.covers(partition)
