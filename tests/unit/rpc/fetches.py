"""A fetch of a follower, for tests of how requests travel."""

from __future__ import annotations

from metaquorum.raft.messages import FetchRequest


def fetch(node_id: int) -> FetchRequest:
    return FetchRequest(
        cluster_id="c",
        replica_id=node_id,
        replica_directory_id=bytes(16),
        epoch=1,
        fetch_offset=0,
        last_fetched_epoch=0,
        high_watermark=-1,
        max_wait_ms=100,
        max_bytes=1000,
    )
