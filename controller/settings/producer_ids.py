"""Decisions on producer ids (KIP-730): each block goes to one broker and is never given again.

Owns the size of a block. Knows no producers: the broker gives out the ids of its block.
"""

from __future__ import annotations

from metaquorum.controller.request_checks import epoch_refusal
from metaquorum.controller.result import ControllerResult
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records.types import ProducerIdsRecord
from metaquorum.metadata.requests.settings import AllocateProducerIdsRequest, AllocateProducerIdsResponse

BLOCK_SIZE = 1000
"""Ids per block, as in Kafka."""

MAX_ID = 2**63 - 1


def decide_allocate_producer_ids(
    image: MetadataImage, request: AllocateProducerIdsRequest
) -> ControllerResult:
    """Only a registered broker in its current epoch gets a block."""
    refusal = epoch_refusal(image.brokers, request.broker_id, request.broker_epoch)
    if refusal is not None:
        return ControllerResult(response=refusal, depends_on_broker=request.broker_id)
    first_id = max(image.producer_ids.next_producer_id, 0)
    if first_id > MAX_ID - BLOCK_SIZE:
        text = f"all producer ids up to {MAX_ID} are allocated: do not retry"
        return ControllerResult(response=ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, text))
    record = ProducerIdsRecord(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        next_producer_id=first_id + BLOCK_SIZE,
    )
    response = AllocateProducerIdsResponse(first_id=first_id, count=BLOCK_SIZE)
    return ControllerResult(response=response, records=(record,))
