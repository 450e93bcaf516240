"""One partition of a ListOffsets answer, in the form of each version.

Owns what old versions support: which special timestamps, which errors, and lists of offsets. Knows no topics
and does not look anything up.
"""

from __future__ import annotations

from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests import data as core
from metaquorum.wire.messages import ListOffsetsRequest, ListOffsetsResponse

_FIRST_BY_TIME = 1
"""ListOffsets 0 lists where segments begin, by when their files changed; here only the latest and the
earliest offset."""
_LAST_OF_EARLY_TIMES = 8
_OFFSET_NOT_AVAILABLE_FROM = 5
"""The version of ListOffsets from which clients know this error (KIP-207)."""
# The first version that knows each special timestamp.
_SPECIAL_FROM = {
    core.LATEST_TIMESTAMP: 0,
    core.EARLIEST_TIMESTAMP: 0,
    core.NEWEST_TIMESTAMP: 7,
    core.EARLIEST_LOCAL_TIMESTAMP: 8,
    core.LATEST_TIERED_TIMESTAMP: 9,
}


def time_asked(timestamp: int, version: int) -> int | None:
    """What to look for; None if this version does not allow it, and the core gets no request.

    Up to version 8, the last of Kafka 3.7, a negative number without a special meaning is an early time.
    """
    since = _SPECIAL_FROM.get(timestamp)
    if since is not None and version >= since:
        return timestamp
    if timestamp >= 0:
        return timestamp if version >= _FIRST_BY_TIME else None
    means_nothing = since is None or since > _LAST_OF_EARLY_TIMES
    return core.BEFORE_ALL if means_nothing and _FIRST_BY_TIME <= version <= _LAST_OF_EARLY_TIMES else None


def listed(
    result: core.ListedOffset | None,
    asked: ListOffsetsRequest.ListOffsetsPartition,
    code: ErrorCode,
    version: int,
) -> ListOffsetsResponse.ListOffsetsPartitionResponse:
    """`result` None: the core got no request, or answered with `code`."""
    if result is None:
        if time_asked(asked.timestamp, version) is None:
            code = ErrorCode.UNSUPPORTED_VERSION
        return ListOffsetsResponse.ListOffsetsPartitionResponse(
            partition_index=asked.partition_index, error_code=code
        )
    code = result.error
    if code is ErrorCode.OFFSET_NOT_AVAILABLE and version < _OFFSET_NOT_AVAILABLE_FROM:
        code = ErrorCode.LEADER_NOT_AVAILABLE
    if version < _FIRST_BY_TIME:
        offsets = (result.offset,) if code is ErrorCode.NONE and asked.max_num_offsets > 0 else ()
        return ListOffsetsResponse.ListOffsetsPartitionResponse(
            partition_index=asked.partition_index, error_code=code, old_style_offsets=offsets
        )
    return ListOffsetsResponse.ListOffsetsPartitionResponse(
        partition_index=asked.partition_index,
        error_code=code,
        timestamp=result.timestamp_ms,
        offset=result.offset,
        leader_epoch=result.leader_epoch if version >= 4 else -1,
    )
