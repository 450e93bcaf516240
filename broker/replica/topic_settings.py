"""What a topic's configuration says to its replicas on a broker, read from an image.

Owns the reading of the text: a value that does not parse counts as not set (the controller refuses such
values; an old log may hold them). Knows no partition.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.replica.events import LogSettings
from metadata.image import MetadataImage

MAX_LONG = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """`max_message_bytes` bounds a batch as it was sent. `timestamp_*_max_ms`: how far a record's own time
    may lie behind or ahead of the broker's clock; the largest number: no bound. `holds_back_high_watermark`:
    it advances only while the ISR has `min_insync_replicas` (KIP-966, eligible.leader.replicas.version)."""

    min_insync_replicas: int = 1
    max_message_bytes: int = 1_048_588
    log_append_time: bool = False
    timestamp_before_max_ms: int = MAX_LONG
    timestamp_after_max_ms: int = MAX_LONG
    holds_back_high_watermark: bool = False
    log: LogSettings = field(default_factory=LogSettings)


def topic_settings(image: MetadataImage, topic: str) -> TopicSettings:
    """What is in force for a topic: its own settings, else the cluster's default, else Kafka's."""
    raise NotImplementedError
