"""Checks of a request that several decisions make: its broker's epoch, and keys that it repeats.

Owns both checks and the refusal of an epoch. Knows no kind of request: whether a repetition is refused is the
decision's, what makes a new epoch is in `brokers.brokers`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TypeVar

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import BrokersImage

Key = TypeVar("Key", bound=Hashable)


def repeated(keys: Iterable[Key]) -> frozenset[Key]:
    """The keys that occur twice or more."""
    # Not quadratic: a request may name tens of thousands.
    listed = [*keys]
    if len(set(listed)) == len(listed):
        return frozenset()
    return frozenset([key for key, count in Counter(listed).items() if count > 1])


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
