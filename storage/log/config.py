"""The settings of a segmented log, apart from it: the command line names them without loading a log."""

from __future__ import annotations

import msgspec

from metaquorum.storage.batches.batch import MAX_BATCH_BYTES
from metaquorum.storage.uuids import METADATA_TOPIC_ID

DEFAULT_SEGMENT_BYTES = 1024 * 1024 * 1024
DEFAULT_SEGMENT_MS = 7 * 24 * 3600 * 1000
DEFAULT_RECOVERY_POINT_INTERVAL_BYTES = 4 * 1024 * 1024
METADATA_DIRECTORY = "__cluster_metadata-0"
PARTITION_METADATA_FILE = "partition.metadata"


class LogConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Size and age limits of a log; `topic_id` is written to `partition.metadata` of a new log."""

    segment_bytes: int = DEFAULT_SEGMENT_BYTES
    segment_ms: int = DEFAULT_SEGMENT_MS
    max_batch_bytes: int = MAX_BATCH_BYTES
    recovery_point_interval_bytes: int = DEFAULT_RECOVERY_POINT_INTERVAL_BYTES
    index_interval_bytes: int = 4096
    topic_id: str = METADATA_TOPIC_ID
