"""What follows from one turn of the active controller, as a value: the node carries it out.

A decision changes nothing. What it wants written, told, remembered and done next is all in its `Outcome`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

import msgspec

from metaquorum.controller.active.work import Work, WorkKey
from metaquorum.controller.brokers.sessions import BrokerHeartbeatState
from metaquorum.controller.events import Mutator, RequestArrived
from metaquorum.controller.result import ControllerAnswer, ControllerResult
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.records.batch_cause import BatchCause
from metaquorum.metadata.records.types import Record
from metaquorum.metadata.requests.common import ControllerResponse


class Step(Enum):
    """What the active controller does without being asked."""

    END_TRANSACTION = auto()
    BOOTSTRAP = auto()
    REGISTER_CONTROLLER = auto()
    OPEN_SESSIONS = auto()
    FORGET_ELIGIBLE = auto()
    ELECT_LEADERS = auto()
    REMOVE_TOKENS = auto()
    EXPIRE_SESSIONS = auto()
    COLLECT_BROKER_IDS = auto()
    BALANCE_LEADERS = auto()
    WORK = auto()
    NO_OP = auto()


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """A request that continues after what had to come first: it was let through before."""

    arrived: RequestArrived


Turn = RequestArrived | Resumed | Step
"""What the active controller is asked to decide: one at a time, each on the image after the one before."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Records to append as one atomic batch. Observers need not be woken for a NoOp."""

    records: Sequence[Record]
    wake_observers: bool = True


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Carried out in the order of its fields. If the batch cannot be appended, nothing of it holds.

    `sessions`: by broker id; None: forgotten. `begun_anew`: see `Sessions.begun_anew`; None: settled.
    `mutations`: what a client used of its quota.
    `work`: begun, or as it is after one more slice. `ended`: work that is done.
    `then`: turns to take next, before all others. `cause`: that of what is written and begun, with which the
    batch begins.
    """

    warnings: tuple[str, ...] = ()
    batch: Batch | None = None
    sessions: tuple[tuple[int, BrokerHeartbeatState | None], ...] = ()
    begun_anew: tuple[tuple[tuple[bytes, int, int], bytes | None], ...] = ()
    mutations: tuple[Mutator, int] | None = None
    work: tuple[Work, ...] = ()
    ended: tuple[WorkKey, ...] = ()
    answers: tuple[ControllerAnswer, ...] = ()
    then: tuple[Turn, ...] = ()
    cause: BatchCause | None = None


NOTHING = Outcome()
"""There was nothing to do."""


def batch_of(records: Sequence[Record]) -> Batch | None:
    """None: there is nothing to write."""
    return Batch(records=records) if records else None


def answer_of(key: int, result: ControllerResult) -> ControllerAnswer:
    """What is written and answered together is true once it is committed, whatever it was read from."""
    if result.records:
        return ControllerAnswer(key=key, response=result.response)
    return ControllerAnswer(
        key=key,
        response=result.response,
        depends_on_image=result.depends_on_image,
        depends_on_broker=result.depends_on_broker,
    )


def outcome_of(key: int, result: ControllerResult) -> Outcome:
    """The outcome of a request that concerns the log alone."""
    return Outcome(batch=batch_of(result.records), answers=(answer_of(key, result),))


def refused(key: int, error: ControllerResponse | ApiError) -> Outcome:
    """Told at once: no state of the cluster has to do with it."""
    return Outcome(answers=(ControllerAnswer(key=key, response=error, depends_on_image=False),))
