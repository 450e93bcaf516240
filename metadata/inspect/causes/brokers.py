"""Rules about brokers: registrations, fences, shutdowns, log directories.

A controller lets a broker that leads nothing shut down at once, with the same record that it writes when
heartbeats stop (KIP-631, `BrokerHeartbeatManager` of Kafka 3.7 and 3.9). Times are compared with Kafka's
defaults, and only where the batch does not have its cause.
"""

from __future__ import annotations

from typing import NamedTuple

from metaquorum.metadata.inspect.causes.rule import (
    SHUTDOWN_LEVEL,
    WARNING,
    Alternative,
    Cause,
    CauseRules,
    Reason,
    Scene,
)
from metaquorum.metadata.inspect.changes.change_steps import BrokerStep, Place
from metaquorum.metadata.records.batch_cause import BatchCause
from metaquorum.storage.uuids import uuid_to_text

SESSION_TIMEOUT_MS = 9_000
"""The default of broker.session.timeout.ms: no session ends sooner after a heartbeat."""


class BrokerChange(NamedTuple):
    """One record about a broker."""

    step: BrokerStep
    scene: Scene
    led: bool
    """Whether the record fenced it while it led partitions."""

    @property
    def broker(self) -> int:
        return self.step.broker_id

    @property
    def written(self) -> str | None:
        """Why the controller fenced it, if the batch says so."""
        return _written(self.scene.asked_rule)

    @property
    def was_stopping(self) -> bool:
        """Whether it was in controlled shutdown."""
        return self.step.before is not None and self.step.before.in_controlled_shutdown

    @property
    def lived_just_before(self) -> bool:
        """Whether no session with the default timeout can have ended since its last sign of life."""
        return self.scene.is_just_before(self.alive, SESSION_TIMEOUT_MS - 1)

    @property
    def alive(self) -> Place | None:
        """Its last sign of life before the record."""
        return self.scene.story(self.broker).alive_before(self.step.offset)


_WRITTEN = ("session-expired", "fence-requested", "metadata-lag", "directory-failed", "controlled-shutdown")
"""What a batch that fences a broker can say of its cause."""


def _written(rule: str | None) -> str | None:
    return rule if rule in _WRITTEN else None


def written_rule(asked: BatchCause | None, *, is_stopping: bool) -> str | None:
    """The rule of a fence by what its batch says of its cause; None if it says nothing."""
    rule = _written(None if asked is None else asked.rule)
    if rule != "controlled-shutdown":
        return rule
    return shutdown_finished.name if is_stopping else stopped_idle.name


BROKERS: CauseRules[BrokerChange] = CauseRules("brokers: registrations")
FENCES: CauseRules[BrokerChange] = CauseRules("brokers: fences by another record than a registration")
STATES: CauseRules[BrokerChange] = CauseRules("brokers: other records")


def broker_causes(step: BrokerStep, scene: Scene) -> tuple[Cause, ...]:
    """Why one record changed a broker, the most specific cause first. Never empty."""
    change = _change(step, scene)
    begun = BROKERS.first(change)
    if begun is not None:
        return (begun,)
    fence = fence_cause(step, scene) if step.was_fenced else None
    causes = (*([] if fence is None else [fence]), *STATES.all(change))
    return causes or (Cause(rule="set", text="the registration changed", broker_id=step.broker_id),)


def fence_cause(step: BrokerStep, scene: Scene) -> Cause:
    """Why a record other than a registration fenced a broker."""
    return _fence(step, scene)[0]


def fence_text(step: BrokerStep, scene: Scene) -> str:
    """The same briefly, for causes that are about something else."""
    return _fence(step, scene)[1]


def _fence(step: BrokerStep, scene: Scene) -> tuple[Cause, str]:
    fence = scene.fences.get(step.offset)
    if fence is None:
        change = _change(step, scene)
        cause = FENCES.first(change)
        if cause is None:
            raise RuntimeError("the last rule fits every fence")
        text = silence(change) if cause.rule == "session-expired" else _BRIEFLY.get(cause.rule, cause.rule)
        fence = scene.fences[step.offset] = cause, text
    return fence


_STOPPED_OR_SILENT = "it shut down cleanly or sent no heartbeat in time; the log does not show which"
_BRIEFLY = {
    "shutdown-finished": "end of its controlled shutdown",
    "stopped-idle": "it shut down cleanly",
    "idle-fenced-early": _STOPPED_OR_SILENT,
    "fenced-early": "sooner than a session with the default timeout ends; the log does not show why",
    "stopped-or-silent": _STOPPED_OR_SILENT,
    "fence-requested": "it asked for it",
    "metadata-lag": "it applied no metadata for too long",
    "directory-failed": "no log directory is left",
}


def _change(step: BrokerStep, scene: Scene) -> BrokerChange:
    return BrokerChange(step, scene, step.was_fenced and not step.is_registration and _led(step, scene))


# -- registrations -------------------------------------------------------------------------------------------


@BROKERS.rule(
    "broker-unregistered", "the record removes the broker's registration", precedence=10, word="unregistered"
)
def unregistered(change: BrokerChange) -> Reason | None:
    if change.step.after is not None:
        return None
    return Reason(f"broker {change.broker} was unregistered", broker_id=change.broker)


@BROKERS.rule("registered", "the broker registered and had no registration before", precedence=11)
def registered(change: BrokerChange) -> Reason | None:
    broker, scene = change.broker, change.scene
    if not change.step.is_registration or change.step.before is not None:
        return None
    gone = scene.since(scene.story(broker).unregistered)
    if not (gone or scene.feed.is_known):
        text = f"broker {broker} registered; whether it was registered before is not known here"
        return Reason(text, broker_id=broker, is_certain=False)
    return Reason(
        f"broker {broker} registered" + (f"; it was unregistered at {gone}" if gone else ""), broker_id=broker
    )


@BROKERS.rule(
    "registered-again",
    "the same incarnation of the broker registered again",
    precedence=12,
    severity=WARNING,
    word="registered again",
)
def registered_again(change: BrokerChange) -> Reason | None:
    before, after = change.step.before, change.step.after
    if not change.step.is_registration or before is None or after is None:
        return None
    if before.incarnation_id != after.incarnation_id:
        return None
    text = f"the same process of broker {change.broker} registered again, broker epoch {after.epoch}"
    return Reason(text, broker_id=change.broker)


@BROKERS.rule(
    "broker-restarted",
    "the record registers a new incarnation of the broker",
    precedence=13,
    severity=WARNING,
    word="restarted",
)
def restarted(change: BrokerChange) -> Reason | None:
    before, after = change.step.before, change.step.after
    if not change.step.is_registration or before is None or after is None:
        return None
    text = (
        f"broker {change.broker} was started again (or another process with its id),"
        f" broker epoch {before.epoch} -> {after.epoch}"
    )
    return Reason(text, broker_id=change.broker)


# -- fences --------------------------------------------------------------------------------------------------

_NO_HEARTBEAT = Alternative(
    "it sent no heartbeat in time", "the controller's log says that its session timed out"
)
_STOPPED = Alternative("it shut down cleanly", "the broker's own log ends with its shutdown")
_SHORT_TIMEOUT = Alternative(
    "it sent no heartbeat in time", "the controllers have a shorter broker.session.timeout.ms"
)
_COULD_NOT = Alternative("it could not continue (metaquorum)", "the broker's own log says why")


@FENCES.rule(
    "fence-requested",
    "the batch says that the broker asked to be fenced",
    precedence=20,
    severity=WARNING,
    word="asked to be fenced",
)
def fence_requested(change: BrokerChange) -> Reason | None:
    if change.written != "fence-requested":
        return None
    text = f"broker {change.broker} asked to be fenced, because it cannot continue (its own log says why)"
    return Reason(text, broker_id=change.broker)


@FENCES.rule(
    "metadata-lag",
    "the batch says that the broker applied no metadata for too long",
    precedence=21,
    severity=WARNING,
    word="behind the metadata",
)
def metadata_lag(change: BrokerChange) -> Reason | None:
    if change.written != "metadata-lag":
        return None
    text = f"broker {change.broker} sent heartbeats, but applied no metadata for too long"
    return Reason(text, broker_id=change.broker)


@FENCES.rule(
    "directory-failed",
    "the batch says that no log directory of the broker is left",
    precedence=22,
    severity=WARNING,
    word="no log directory left",
)
def directories_failed(change: BrokerChange) -> Reason | None:
    if change.written != "directory-failed":
        return None
    text = f"broker {change.broker} reported its last log directory as offline"
    return Reason(text, broker_id=change.broker)


@FENCES.rule(
    "fenced-early",
    "without a cause in the log: the broker was fenced while it led partitions, less than the default "
    "session timeout (9 s) after its last sign of life",
    precedence=23,
    severity=WARNING,
    word="fenced early",
    readings=(_SHORT_TIMEOUT, _COULD_NOT),
)
def fenced_early(change: BrokerChange) -> Reason | None:
    broker, scene = change.broker, change.scene
    if change.written is not None or not change.led or not change.lived_just_before:
        return None
    alive = scene.since(change.alive)
    text = f"broker {broker} was fenced while it led partitions, and was alive at {alive}"
    return Reason(text, broker_id=broker, readings=(_SHORT_TIMEOUT, _COULD_NOT))


@FENCES.rule(
    "session-expired",
    "the batch says that no heartbeat arrived in time; without a cause in the log: the broker was fenced "
    "while it led partitions, which a clean shutdown never does, at least the default session timeout (9 s) "
    "after its last sign of life",
    precedence=24,
    severity=WARNING,
    word="no heartbeat",
)
def session_expired(change: BrokerChange) -> Reason | None:
    broker = change.broker
    if change.written == "session-expired":
        return Reason(f"broker {broker}: {silence(change)}", broker_id=broker)
    if change.written is not None or not change.led:
        return None
    text = (
        f"broker {broker}: {silence(change)} (or, in a metaquorum cluster, it reported that it cannot "
        f"continue; "
        "see its own log)"
    )
    return Reason(text, broker_id=broker)


@FENCES.rule(
    "shutdown-finished",
    "the broker was in controlled shutdown: the batch says that the controller let it stop; without a cause "
    "in the "
    "log: it led nothing, less than the default session timeout (9 s) after it began",
    precedence=25,
    word="shut down cleanly",
)
def shutdown_finished(change: BrokerChange) -> Reason | None:
    if not change.was_stopping:
        return None
    by_times = change.written is None and not change.led and change.lived_just_before
    if change.written != "controlled-shutdown" and not by_times:
        return None
    return Reason(f"the controlled shutdown of broker {change.broker} ended", broker_id=change.broker)


@FENCES.rule(
    "stopped-idle",
    "the broker led nothing, and the batch says that the controller let it stop",
    precedence=26,
    word="shut down cleanly",
)
def stopped_idle(change: BrokerChange) -> Reason | None:
    if change.written != "controlled-shutdown":
        return None
    return Reason(f"broker {change.broker} asked to shut down, and was let go", broker_id=change.broker)


@FENCES.rule(
    "idle-fenced-early",
    "without a cause in the log: the broker led nothing, and was fenced less than the default session "
    "timeout (9 s) after its last sign of life",
    precedence=27,
    word="probably shut down cleanly",
    readings=(_STOPPED, _SHORT_TIMEOUT),
)
def idle_fenced_early(change: BrokerChange) -> Reason | None:
    broker, scene = change.broker, change.scene
    if not (_leads_nothing(change) and change.lived_just_before):
        return None
    text = (
        f"broker {broker} led nothing when it was fenced, less than 9 s (the default session timeout) after "
        f"it was alive at {scene.since(change.alive)}"
    )
    return Reason(text, broker_id=broker, readings=(_STOPPED, _SHORT_TIMEOUT))


@FENCES.rule(
    "stopped-or-silent",
    "the same, but later, and the batch has no cause: a clean shutdown, or no heartbeat in time",
    precedence=28,
    severity=WARNING,
    word="unclear",
    readings=(_STOPPED, _NO_HEARTBEAT),
)
def stopped_or_silent(change: BrokerChange) -> Reason | None:
    broker, scene = change.broker, change.scene
    if not scene.feed.is_known:
        text = f"broker {broker} was fenced; the log does not show why: its leaderships are unknown here"
        return Reason(text, broker_id=broker, is_certain=False)
    text = f"broker {broker} led nothing when it was fenced"
    if change.was_stopping:
        begun = scene.since(scene.story(broker).shutdown)
        text += f", in its controlled shutdown, begun at {begun}" if begun else ", in its controlled shutdown"
    return Reason(text, broker_id=broker, readings=(_STOPPED, _NO_HEARTBEAT))


def silence(change: BrokerChange) -> str:
    """Briefly, why a broker was fenced that led partitions or was not in controlled shutdown."""
    led = ", while it still led partitions" if change.led else ""
    if change.was_stopping:
        return f"no heartbeat in time during its controlled shutdown{led}"
    unfenced = change.scene.since(change.scene.story(change.broker).unfenced)
    return "no heartbeat in time" + (f"; unfenced since {unfenced}" if unfenced else "")


def _leads_nothing(change: BrokerChange) -> bool:
    """Whether the state says so, and the batch has no other cause."""
    return change.written is None and change.scene.feed.is_known and not change.led


def _led(step: BrokerStep, scene: Scene) -> bool:
    """Whether the fence took leaderships from the broker in this batch, or in the batches just before it
    that the fence was split over, or leaves it some. Below 3.3-IV3 a split fence is what a controlled
    shutdown looks like. Partitions that moved before a shutdown began (because a directory failed, say) are
    not part of the fence that ends it."""
    broker = step.broker_id
    if scene.batch.changes_led_by(broker):
        return True
    if (scene.batch.leads_after or scene.feed.leads)(broker):
        return True
    if step.before is not None and step.before.in_controlled_shutdown:
        return False
    return scene.metadata_version >= SHUTDOWN_LEVEL and scene.is_just_before(scene.story(broker).moved_off)


# -- other records -------------------------------------------------------------------------------------------


@STATES.rule(
    "caught-up",
    "the broker was unfenced: it sent heartbeats and had read the log up to its registration",
    precedence=30,
)
def caught_up(change: BrokerChange) -> Reason | None:
    if not change.step.was_unfenced:
        return None
    text = f"broker {change.broker} sent heartbeats and had read the log up to its registration"
    return Reason(text, broker_id=change.broker)


@STATES.rule(
    "controlled-shutdown",
    "the record puts the broker in controlled shutdown",
    precedence=31,
    word="shut down cleanly",
)
def shutdown_began(change: BrokerChange) -> Reason | None:
    if not change.step.began_shutdown:
        return None
    return Reason(f"broker {change.broker} asked for a controlled shutdown", broker_id=change.broker)


@STATES.rule(
    "directory-failed",
    "the record removes a log directory from the broker's registration",
    precedence=32,
    severity=WARNING,
)
def directory_lost(change: BrokerChange) -> Reason | None:
    lost = len(change.step.lost_directories)
    if not lost:
        return None
    left = 0 if change.step.after is None else len(change.step.after.directories)
    ids = ", ".join(uuid_to_text(each) for each in sorted(change.step.lost_directories))
    text = (
        f"broker {change.broker} lost {lost} of its {lost + left} log directories ({ids}): they failed, or "
        "an operator took them offline; the log has no paths, the broker's own log and metaquorum log-dirs "
        "describe have"
    )
    return Reason(text, broker_id=change.broker)


@STATES.rule("changed-nothing", "the state already matched the record", precedence=33)
def changed_nothing(change: BrokerChange) -> Reason | None:
    if change.step.before != change.step.after:
        return None
    text = f"broker {change.broker} was already in this state: the record changed nothing"
    return Reason(text, broker_id=change.broker)
