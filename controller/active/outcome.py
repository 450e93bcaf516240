"""The result of one turn of the active controller, as a value that the node carries out.

A decision must not change state: everything that it wants written, answered, remembered and done next is in
its `Outcome`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

import msgspec

from metaquorum.controller.active.work import Work, WorkKey
from metaquorum.controller.brokers.sessions import BrokerHeartbeatState
from metaquorum.controller.events import RequestArrived
from metaquorum.controller.result import ControllerAnswer, ControllerResult
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.records.batch_cause import BatchCause
from metaquorum.metadata.records.types import Record
from metaquorum.metadata.requests.common import ControllerResponse, Mutator


class Step(Enum):
    """What the active controller does without a request."""

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
    """A request that continues after something that had to come first: it was admitted before."""

    arrived: RequestArrived


Turn = RequestArrived | Resumed | Step
"""The inputs of the active controller: one at a time, each decided on the image after the previous one."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Records to append as one atomic batch. Observers need not be woken for a NoOp."""

    records: Sequence[Record]
    wake_observers: bool = True


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Carried out in the order of its fields. If the batch cannot be appended, none of it takes effect.

    `sessions`: by broker id; None: forgotten. `expired`: brokers whose overdue session has ended.
    `recreated`: see `Sessions.recreated`; None: settled. `mutations`: a client's use of its quota. `asked`:
    the id and the arrival of a request for a broker id. `next_ms`: when a step of an interval is due again.
    `work`: begun, or its state after one more slice. `ended`: work that is done. `then`: turns to take next,
    before all others. `cause`: that of what is written and begun; the batch begins with it.
    """

    warnings: tuple[str, ...] = ()
    batch: Batch | None = None
    sessions: tuple[tuple[int, BrokerHeartbeatState | None], ...] = ()
    expired: tuple[int, ...] = ()
    recreated: tuple[tuple[tuple[bytes, int, int], bytes | None], ...] = ()
    mutations: tuple[Mutator, int] | None = None
    asked: tuple[bytes, int] | None = None
    next_ms: tuple[tuple[Step, int], ...] = ()
    work: tuple[Work, ...] = ()
    ended: tuple[WorkKey, ...] = ()
    answers: tuple[ControllerAnswer, ...] = ()
    then: tuple[Turn, ...] = ()
    cause: BatchCause | None = None


NOTHING = Outcome()
"""There was nothing to do."""


def batch_of(records: Sequence[Record]) -> Batch | None:
    """None if there is nothing to write."""
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
    """The outcome of a request that concerns only the log."""
    return Outcome(batch=batch_of(result.records), answers=(answer_of(key, result),))


def refused(key: int, error: ControllerResponse | ApiError) -> Outcome:
    """Answered at once: it does not depend on the cluster's state."""
    return Outcome(answers=(ControllerAnswer(key=key, response=error, depends_on_image=False),))
