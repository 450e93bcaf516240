"""How fast replicas catch up (KIP-73): the quotas of replication, by direction.

Owns which partitions a direction's quota covers, what they used, and how long they wait. Replicas in sync are
counted and never held; the callers know which are in sync.
"""

from __future__ import annotations

import math

from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, ConfigResource, MetadataImage
from metaquorum.metadata.node_configs.replicas import ReplicaConfig
from metaquorum.metadata.requests.rates import QuotaWindows, Rate
from metaquorum.metadata.settings.effective import CLUSTER_DEFAULT, NOTHING
from metaquorum.metadata.settings.keys import MAX_INT, MAX_LONG, whole_number

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
