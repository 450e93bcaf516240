"""A decision: the records to write and the answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

import msgspec

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import BrokersImage
from metaquorum.metadata.records.types import Record
from metaquorum.metadata.requests.common import ControllerResponse


class ControllerResult(msgspec.Struct, frozen=True, kw_only=True):
    """`records` are one atomic batch; `response` is true once they are committed.

    A result without records names what it was read from, so that it is answered as soon as that much is
    committed: the whole image, or only the registration of `depends_on_broker`, or nothing at all.
    """

    response: ControllerResponse | ApiError
    records: Sequence[Record] = ()
    depends_on_image: bool = True
    depends_on_broker: int | None = None


class ControllerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to the request `key`, as soon as what it was read from is committed: the newest image (with
    the outcome's batch), only the registration of `depends_on_broker`, or nothing at all."""

    key: int
    response: ControllerResponse | ApiError
    depends_on_image: bool = True
    depends_on_broker: int | None = None


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """One bounded batch of a longer piece of work, valid alone. `done`: nothing is left after it."""

    records: Sequence[Record]
    done: bool


# Checks of a request that several decisions make: its broker's epoch, and keys that it repeats.

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
    registration = brokers.get(broker_id)
    if registration is None:
        return ApiError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {broker_id} is not registered: register it first"
        )
    if broker_epoch < registration.epoch:
        text = (
            f"broker epoch {broker_epoch} of broker {broker_id} has ended, and {registration.epoch} is "
            "registered: a newer process with this id registered, or this one must register again"
        )
        return ApiError(ErrorCode.STALE_BROKER_EPOCH, text)
    if broker_epoch > registration.epoch:
        text = (
            f"broker {broker_id} sent epoch {broker_epoch}, but this controller knows {registration.epoch}: "
            "retry when it has caught up"
        )
        return ApiError(ErrorCode.NOT_CONTROLLER, text)
    return None
