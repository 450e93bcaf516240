"""Reads of a broker's image by its services.

Owns the answer to a read. Does not wait for a newer image, as `published` does, or decide whether the broker
serves.
"""

from __future__ import annotations

from metaquorum.broker.node import BrokerNode
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.proto import metadata_pb2 as pb
from metaquorum.runtime.clock import Clock
from metaquorum.runtime.rpc.image_service import ImageRead


class BrokerImages:
    """Reads of the broker's own image, refused while it is fenced; never linearizable."""

    def __init__(self, node: BrokerNode, clock: Clock) -> None:
        self._node = node
        self._clock = clock

    async def read(self, consistency: pb.Consistency.ValueType) -> ImageRead | ApiError:
        now_ms = self._clock.monotonic_ms()
        status = self._node.status(now_ms=now_ms)
        if consistency == pb.CONSISTENCY_LINEARIZABLE:
            return ApiError(
                ErrorCode.NOT_CONTROLLER,
                f"broker {status.node_id} answers from its own image: only controllers serve linearizable "
                "reads",
                status.leader_id,
            )
        found = self._node.read_image(now_ms=now_ms)
        if isinstance(found, ApiError):
            return found
        image, offset = found
        return ImageRead(
            image=image,
            offset=offset,
            leader_id=status.leader_id,
            epoch=status.quorum_epoch,
            linearizable=False,
        )
