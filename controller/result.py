"""A decision: the records to write and the answer.

Owns these values. Does not know what decides or appends; what a turn also remembers and does next is in
`active.outcome`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from metaquorum.metadata.errors import ApiError
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
