"""Why a broker changed and why it cannot lead: rules over its registrations, fences and shutdowns.

Owns the rules about brokers. Does not explain what their partitions did: `causes` does. A controller lets a
broker that leads nothing shut down at once, with the same record that it writes when heartbeats stop
(KIP-631, `BrokerHeartbeatManager` of Kafka 3.7 and 3.9).
"""

from __future__ import annotations

from metaquorum.metadata.image import LOST, MIGRATING, UNASSIGNED
from metaquorum.metadata.image.damaged import is_mark
from metaquorum.metadata.image.types import PartitionInfo
from metaquorum.metadata.inspect.causes.cause_types import SHUTDOWN_LEVEL, Cause, Scene, cannot_tell
from metaquorum.metadata.inspect.changes.change_steps import BrokerStep, Place

SESSION_TIMEOUT_MS = 9_000
"""The default of broker.session.timeout.ms: no session ends sooner after a heartbeat."""

_SHORT = {
    "shutdown-finished": "end of its controlled shutdown",
    "stopped-idle": "it shut down cleanly",
    "stopped-or-silent": "it shut down cleanly or sent no heartbeat in time; the log does not show which",
}
"""Short names of fences, for causes that are about something else."""


def broker_causes(step: BrokerStep, scene: Scene) -> tuple[Cause, ...]:
    """Why one record changed a broker. Never empty."""
    broker, before, after = step.broker_id, step.before, step.after
    if after is None:
        text = f"broker {broker} was unregistered"
        return (Cause(rule="broker-unregistered", text=text, broker_id=broker),)
    if step.is_registration:
        return (_registration(step, scene),)
    found: list[Cause] = []
    if step.was_fenced:
        found.append(fence_cause(step, scene))
    if step.was_unfenced:
        text = f"broker {broker} sent heartbeats and had read the log up to its registration"
        found.append(Cause(rule="caught-up", text=text, broker_id=broker))
    if step.began_shutdown:
        text = f"broker {broker} asked for a controlled shutdown"
        found.append(Cause(rule="controlled-shutdown", text=text, broker_id=broker))
    if step.lost_directories:
        found.append(_directories_lost(step))
    if not found and before == after:
        text = f"broker {broker} was already in this state: the record changed nothing"
        found.append(Cause(rule="changed-nothing", text=text, broker_id=broker))
    elif not found:
        found.append(Cause(rule="set", text="the registration changed", broker_id=broker))
    return tuple(found)


def _directories_lost(step: BrokerStep) -> Cause:
    lost = len(step.lost_directories)
    left = 0 if step.after is None else len(step.after.directories)
    text = (
        f"broker {step.broker_id} lost {lost} of its {lost + left} log directories: they failed, or an "
        "operator took them offline (its own log says which)"
    )
    return Cause(rule="directory-failed", text=text, broker_id=step.broker_id)


def _registration(step: BrokerStep, scene: Scene) -> Cause:
    broker, before, after = step.broker_id, step.before, step.after
    if before is None or after is None:
        gone = scene.since(scene.story(broker).unregistered)
        if not (gone or scene.feed.is_known):
            text = f"broker {broker} registered; whether it was registered before is not known here"
            return Cause(rule="registered", text=text, broker_id=broker, certain=False)
        text = f"broker {broker} registered" + (f"; it was unregistered at {gone}" if gone else "")
        return Cause(rule="registered", text=text, broker_id=broker)
    if before.incarnation_id == after.incarnation_id:
        text = f"the same process of broker {broker} registered again, broker epoch {after.epoch}"
        return Cause(rule="registered-again", text=text, broker_id=broker)
    text = (
        f"broker {broker} was started again (or another process with its id),"
        f" broker epoch {before.epoch} -> {after.epoch}"
    )
    return Cause(rule="broker-restarted", text=text, broker_id=broker)


def fence_cause(step: BrokerStep, scene: Scene) -> Cause:
    """Why a record other than a registration fenced a broker."""
    broker = step.broker_id
    if _led(step, scene):
        return Cause(
            rule="session-expired",
            text=f"broker {broker}: {fence_reason(step, scene)} (or, in a metaquorum cluster, it reported "
            "that it cannot continue; see its own log)",
            broker_id=broker,
        )
    if not scene.feed.is_known:
        return Cause(
            rule="stopped-or-silent",
            text=f"broker {broker} was fenced; the log does not show why: its leaderships are unknown here",
            broker_id=broker,
            certain=False,
        )
    story = scene.story(broker)
    in_order = scene.is_just_before(story.alive, SESSION_TIMEOUT_MS - 1)
    if step.before is not None and step.before.in_controlled_shutdown:
        if in_order:
            text = f"the controlled shutdown of broker {broker} ended"
            return Cause(rule="shutdown-finished", text=text, broker_id=broker)
        begun = scene.since(story.shutdown)
        orderly = f"its controlled shutdown, begun at {begun}, ended"
    elif in_order:
        text = (
            f"broker {broker} shut down cleanly while it led nothing: it was alive at "
            f"{scene.since(story.alive)}, and a session lasts at least 9 s (the "
            "default) after that"
        )
        return Cause(rule="stopped-idle", text=text, broker_id=broker)
    else:
        orderly = "it shut down cleanly, which the controller grants at once to a broker that leads nothing"
    return Cause(
        rule="stopped-or-silent",
        text=f"broker {broker} led nothing when it was fenced; "
        + cannot_tell(
            (orderly, "the broker's own log ends with its shutdown"),
            ("it sent no heartbeat in time", "the controller's log says that its session timed out"),
        ),
        broker_id=broker,
        certain=False,
    )


def _led(step: BrokerStep, scene: Scene) -> bool:
    """Whether the fence took leaderships from the broker: in this batch, or in the batches just before
    it that the fence was split over. Below 3.3-IV3 the latter is what a controlled shutdown looks
    like. Partitions that moved before a shutdown began (because a directory failed, say) are not part
    of the fence that ends it."""
    broker = step.broker_id
    if any(each.before is not None and each.before.leader == broker for each in scene.batch.partitions):
        return True
    if step.before is not None and step.before.in_controlled_shutdown:
        return False
    return scene.metadata_version >= SHUTDOWN_LEVEL and scene.is_just_before(scene.story(broker).moved_off)


def fence_reason(step: BrokerStep, scene: Scene) -> str:
    """Briefly, why a broker was fenced that led partitions or was not in controlled shutdown."""
    if step.before is not None and step.before.in_controlled_shutdown:
        return "no heartbeat in time during its controlled shutdown, while it still led partitions"
    unfenced = scene.since(scene.story(step.broker_id).unfenced)
    return "no heartbeat in time" + (f"; unfenced since {unfenced}" if unfenced else "")


def broker_loss(broker: int, before: PartitionInfo, scene: Scene) -> Cause | None:
    """Why a broker can neither lead nor be in an ISR now; None if it can."""
    for step in scene.batch.steps_of(broker):
        if step.after is None:
            return _loss("broker-unregistered", f"was unregistered at {step.offset}", step)
        if step.began_shutdown:
            return _loss("controlled-shutdown", f"began its controlled shutdown at {step.offset}", step)
        if step.is_registration and step.before is not None:
            if step.before.incarnation_id != step.after.incarnation_id:
                return _loss("broker-restarted", f"restarted at {step.offset}", step)
            if step.was_fenced:
                text = f"registered again at {step.offset}, which fenced it"
                return _loss("registered-again", text, step)
        elif step.was_fenced:
            reason = _SHORT.get(fence_cause(step, scene).rule) or fence_reason(step, scene)
            return _loss("broker-fenced", f"was fenced at {step.offset} ({reason})", step)
        if before.directory_of(broker) in step.lost_directories:
            return _loss("directory-failed", f"lost this log directory at {step.offset}", step)
    return _known_loss(broker, before, scene)


def _loss(rule: str, text: str, step: BrokerStep) -> Cause:
    text = f"broker {step.broker_id} {text}"
    return Cause(rule=rule, text=text, offset=step.offset, broker_id=step.broker_id)


def _known_loss(broker: int, before: PartitionInfo, scene: Scene) -> Cause | None:
    """The same as `broker_loss`, from what the log said before this batch."""
    known = scene.feed.brokers.get(broker)
    story = scene.story(broker)

    def cause(rule: str, text: str, place: Place | None) -> Cause:
        since = scene.since(place)
        text = f"broker {broker} {text}" + (f" since {since}" if since else "")
        return Cause(rule=rule, text=text, offset=place[0] if place else None, broker_id=broker)

    if known is None and not scene.feed.is_known:
        text = f"the earlier state of broker {broker} is unknown: no snapshot has the state before this log"
        return Cause(rule="unexplained", text=text, broker_id=broker, certain=False)
    if known is None:
        return cause("broker-unregistered", "is not registered", story.unregistered)
    if known.in_controlled_shutdown and not known.fenced:
        return cause("controlled-shutdown", "is in controlled shutdown", story.shutdown)
    if known.fenced:
        return cause("broker-fenced", "is fenced", story.fenced)
    directory = before.directory_of(broker)
    if directory == LOST or (
        known.directories
        and directory not in (None, UNASSIGNED, MIGRATING)
        and directory not in known.directories
    ):
        if is_mark(known, directory):
            return cause("replica-damaged", "cannot read its replica, whose log is damaged", None)
        if story.directory_lost is not None:
            return cause("directory-failed", "has this log directory offline", story.directory_lost)
        text = "is registered without this log directory (it failed, left log.dirs, or was reformatted)"
        return cause("directory-failed", text, story.registered)
    return None
