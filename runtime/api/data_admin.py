"""The rest of the data service between values and protobuf: producer ids and log directories.

Owns the mapping only, as `data_codec` does for records and offsets. Ids that are not 16 bytes raise
`ApiError` INVALID_REQUEST.
"""

from __future__ import annotations

from metaquorum.broker.replica import messages as api
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.proto import data_pb2 as pb
from metaquorum.runtime.api.api import error_from_pb
from metaquorum.runtime.api.data import error_field, refusal_of, refused, uuid_field

# ---- producer ids


def init_producer_to_pb(request: api.InitProducerIdRequest) -> pb.InitProducerIdRequest:
    return pb.InitProducerIdRequest(
        producer_id=None if request.producer_id == -1 else request.producer_id,
        producer_epoch=None if request.producer_epoch == -1 else request.producer_epoch,
    )


def init_producer_from_pb(request: pb.InitProducerIdRequest) -> api.InitProducerIdRequest:
    return api.InitProducerIdRequest(
        producer_id=request.producer_id if request.HasField("producer_id") else -1,
        producer_epoch=request.producer_epoch if request.HasField("producer_epoch") else -1,
    )


def producer_to_pb(response: api.InitProducerIdResponse | ApiError) -> pb.InitProducerIdResponse:
    if isinstance(response, ApiError):
        return pb.InitProducerIdResponse(error=refused(response))
    return pb.InitProducerIdResponse(producer_id=response.producer_id, producer_epoch=response.producer_epoch)


def producer_from_pb(response: pb.InitProducerIdResponse) -> api.InitProducerIdResponse | ApiError:
    if response.HasField("error"):
        return error_from_pb(response.error)
    return api.InitProducerIdResponse(
        producer_id=response.producer_id, producer_epoch=response.producer_epoch
    )


# ---- log directories


def describe_dirs_to_pb(request: api.DescribeLogDirsRequest) -> pb.DescribeLogDirsRequest:
    """An empty choice of topics cannot be told from all of them: ask for one at least."""
    return pb.DescribeLogDirsRequest(topic_ids=request.topic_ids or ())


def describe_dirs_from_pb(request: pb.DescribeLogDirsRequest) -> api.DescribeLogDirsRequest:
    """Raises ApiError INVALID_REQUEST."""
    ids = tuple(uuid_field(each, "a topic id") for each in request.topic_ids)
    return api.DescribeLogDirsRequest(topic_ids=ids or None)


def described_dirs_to_pb(response: api.DescribeLogDirsResponse | ApiError) -> pb.DescribeLogDirsResponse:
    if isinstance(response, ApiError):
        return pb.DescribeLogDirsResponse(error=refused(response))
    return pb.DescribeLogDirsResponse(
        directories=[
            pb.LogDirDescription(
                path=each.path,
                directory_id=each.directory_id or b"",
                error=error_field(each.error, each.message),
                total_bytes=each.total_bytes,
                usable_bytes=each.usable_bytes,
                replicas=[
                    pb.ReplicaDescription(
                        topic_id=one.key[0],
                        partition=one.key[1],
                        topic=one.topic,
                        size_bytes=one.size_bytes,
                        start_offset=one.start_offset,
                        end_offset=one.end_offset,
                        high_watermark=one.high_watermark,
                        lag=one.lag,
                        leads=one.leads,
                    )
                    for one in each.replicas
                ],
            )
            for each in response.directories
        ]
    )


def described_dirs_from_pb(response: pb.DescribeLogDirsResponse) -> api.DescribeLogDirsResponse | ApiError:
    if response.HasField("error"):
        return error_from_pb(response.error)
    return api.DescribeLogDirsResponse(
        directories=tuple(_directory_from_pb(each) for each in response.directories)
    )


def _directory_from_pb(each: pb.LogDirDescription) -> api.LogDirDescription:
    code, message = refusal_of(each)
    return api.LogDirDescription(
        path=each.path,
        directory_id=each.directory_id or None,
        error=code,
        message=message,
        total_bytes=each.total_bytes,
        usable_bytes=each.usable_bytes,
        replicas=tuple(
            api.ReplicaDescription(
                key=(one.topic_id, one.partition),
                topic=one.topic,
                size_bytes=one.size_bytes,
                start_offset=one.start_offset,
                end_offset=one.end_offset,
                high_watermark=one.high_watermark,
                lag=one.lag,
                leads=one.leads,
            )
            for one in each.replicas
        ),
    )


def mark_dir_to_pb(request: api.MarkLogDirOfflineRequest) -> pb.MarkLogDirOfflineRequest:
    return pb.MarkLogDirOfflineRequest(path=request.path or "", directory_id=request.directory_id or b"")


def mark_dir_from_pb(request: pb.MarkLogDirOfflineRequest) -> api.MarkLogDirOfflineRequest:
    """Raises ApiError INVALID_REQUEST."""
    if bool(request.path) == bool(request.directory_id):
        raise ApiError(
            ErrorCode.INVALID_REQUEST, "name the log directory by its path or by its id, one of them"
        )
    directory_id = uuid_field(request.directory_id, "a directory id") if request.directory_id else None
    return api.MarkLogDirOfflineRequest(path=request.path or None, directory_id=directory_id)


def marked_dir_to_pb(response: api.MarkLogDirOfflineResponse | ApiError) -> pb.MarkLogDirOfflineResponse:
    if isinstance(response, ApiError):
        return pb.MarkLogDirOfflineResponse(error=refused(response))
    return pb.MarkLogDirOfflineResponse(
        directory_id=response.directory_id or b"", was_offline=response.was_offline
    )


def marked_dir_from_pb(response: pb.MarkLogDirOfflineResponse) -> api.MarkLogDirOfflineResponse | ApiError:
    if response.HasField("error"):
        return error_from_pb(response.error)
    return api.MarkLogDirOfflineResponse(
        directory_id=response.directory_id or None, was_offline=response.was_offline
    )
