"""Broker epochs: whether a request comes from the process that is registered.

Owns that check and its refusal. Knows no kind of request; what makes a new epoch is in `brokers.brokers`.
"""

from __future__ import annotations

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import BrokersImage


def epoch_refusal(brokers: BrokersImage, broker_id: int, broker_epoch: int) -> ApiError | None:
    """Why a request with this broker epoch is refused; None if it is the registered one (S1.5, S1.6)."""
    known = brokers.get(broker_id)
    if known is None:
        return ApiError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {broker_id} is not registered: register it first"
        )
    if broker_epoch < known.epoch:
        text = (
            f"broker epoch {broker_epoch} of broker {broker_id} has ended, and {known.epoch} is "
            "registered: a newer process with this id registered, or this one must register again"
        )
        return ApiError(ErrorCode.STALE_BROKER_EPOCH, text)
    if broker_epoch > known.epoch:
        text = (
            f"broker {broker_id} sent epoch {broker_epoch}, but this controller knows {known.epoch}: retry "
            "when it has caught up"
        )
        return ApiError(ErrorCode.NOT_CONTROLLER, text)
    return None
