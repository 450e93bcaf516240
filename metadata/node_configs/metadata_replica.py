"""The configuration of a node's replica of the metadata log, in any role."""

from __future__ import annotations

import msgspec


class MetadataReplicaConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a node follows the metadata log. Durations in ms, sizes in bytes of record batches."""

    metadata_log_max_record_bytes_between_snapshots: int = 20 * 1024 * 1024
    """metadata.log.max.record.bytes.between.snapshots: the number of record bytes after which a
    snapshot is written."""
    metadata_log_max_snapshot_interval_ms: int = 3_600_000
    """metadata.log.max.snapshot.interval.ms: the longest time between two snapshots while records
    arrive; 0 disables it."""
    apply_slice_bytes: int = 64 * 1024
    """Maximum size of the log slice that is read and replayed in one step (at least one batch), so that a
    voter's fetches and votes never wait long."""
    catch_up_slice_bytes: int = 1024 * 1024
    """The same while the replica is more than `catch_up_records` behind: fewer steps, while
    nothing depends on it yet."""
    catch_up_records: int = 100_000
