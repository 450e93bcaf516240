"""For each rule: which histories leave the same records, and what is answered then.

Kafka's side was read in the controllers of 3.7.0 and 3.9.0: what they write when a heartbeat asks for a stop
(`calculateNextBrokerState`), when a session ends (`maybeFenceOneStaleBroker`), and in elections.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from metaquorum.metadata.inspect.causes.elections import election_causes
from metaquorum.metadata.inspect.causes.rule import Cause
from metaquorum.metadata.inspect.changes.changes import UNCLEAN_ELECTION
from metaquorum.metadata.inspect.entities.targets import parse_target
from metaquorum.metadata.inspect.timeline.event import TimelineEvent
from metaquorum.metadata.inspect.timeline.timeline import Timeline
from metaquorum.metadata.inspect.walk.batch_filter import SLICE_MIN
from metaquorum.metadata.inspect.why.why import Chain
from metaquorum.metadata.records import control
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.types import FENCED, IN_CONTROLLED_SHUTDOWN, UNFENCED
from tests.unit.controller.node_quorum import Quorum
from tests.unit.controller.test_node_brokers import beat, quorum_of

ID, OTHER = bytes(range(16)), bytes(range(1, 17))
ONE, TWO, LOST_DISK = bytes(range(2, 18)), bytes(range(3, 19)), bytes(range(4, 20))
Batch = tuple[int, list[object]]
LEVEL = [r.FeatureLevelRecord("metadata.version", 19)]
OLD_LEVEL = [r.FeatureLevelRecord("metadata.version", 6)]
SECOND, MINUTE = 1_000, 60_000


def broker(number: int, epoch: int, *, incarnation: bytes = ID, fenced: bool = False) -> r.BrokerRecord:
    return r.BrokerRecord(number, incarnation, epoch, fenced=fenced, log_dirs=(ONE, LOST_DISK))


def partition(**more: object) -> r.PartitionRecord:
    fields: dict[str, object] = {"leader": 1, "leader_epoch": 0, "partition_epoch": 0}
    return r.PartitionRecord(0, ID, (1, 2), (1, 2), **(fields | more))  # type: ignore[arg-type]


def change(**more: object) -> r.PartitionChangeRecord:
    return r.PartitionChangeRecord(0, ID, **more)  # type: ignore[arg-type]


def fence(number: int) -> r.BrokerRegistrationChangeRecord:
    return r.BrokerRegistrationChangeRecord(number, number, fenced=FENCED)


def shutdown(number: int) -> r.BrokerRegistrationChangeRecord:
    return r.BrokerRegistrationChangeRecord(number, number, in_controlled_shutdown=IN_CONTROLLED_SHUTDOWN)


def dirs(number: int, *left: bytes) -> r.BrokerRegistrationChangeRecord:
    return r.BrokerRegistrationChangeRecord(number, number, log_dirs=left)


UNFENCE = r.BrokerRegistrationChangeRecord(1, 1, fenced=UNFENCED)
START: list[object] = [broker(1, 1), broker(2, 2), r.TopicRecord("t", ID), partition()]
UNCLEAN = r.ConfigRecord(2, "t", UNCLEAN_ELECTION, "true")
MANY: list[object] = [
    r.TopicRecord("many", OTHER),
    *(
        r.PartitionRecord(index, OTHER, (1, 2), (1, 2), leader=1, leader_epoch=0, partition_epoch=0)
        for index in range(SLICE_MIN)
    ),
]
MANY_MOVED: list[object] = [
    r.PartitionChangeRecord(index, OTHER, isr=(2,), leader=2) for index in range(SLICE_MIN)
]
MOVING = change(replicas=(1, 2, 3), adding_replicas=(3,), removing_replicas=(2,))


def causes(target: str, batches: list[Batch], level: list[object] = LEVEL) -> tuple[Cause, ...]:
    chain, offset = Chain(parse_target(target)), 0
    for time_ms, records in [(0, [*level, *START]), *batches]:
        chain.batch(1, time_ms, list(enumerate(records, offset)))
        offset += len(records)
    return chain.result().links[-1].causes


# (the histories that leave these records; what is asked; the records; the rule; what is told)
SAME: list[tuple[str, str, list[Batch], str, list[str]]] = [
    ("an idle broker stops in order | it falls silent", "broker/2",
     [(MINUTE, [change(isr=(1,)), fence(2)])],
     "stopped-or-silent", ["the log does not show", "shut down cleanly", "sent no heartbeat in time"]),
    ("the same with nothing in any ISR", "broker/2",
     [(SECOND, [change(isr=(1,))]), (MINUTE, [fence(2)])],
     "stopped-or-silent", ["the log does not show"]),
    ("stopped right after it lived | its session is shorter than the default", "broker/2",
     [(8_999, [change(isr=(1,)), fence(2)])],
     "idle-fenced-early", ["the log does not show which", "shut down cleanly", "9 s", "session.timeout.ms"]),
    ("at 9 s the session may have ended", "broker/2",
     [(9_000, [change(isr=(1,)), fence(2)])], "stopped-or-silent", []),
    ("the clock ran backwards: it says nothing about sessions", "broker/2",
     [(MINUTE, [UNFENCE]), (-SECOND, [fence(2)])], "stopped-or-silent", []),
    ("it led a partition: no stop in order is granted then", "broker/1",
     [(MINUTE, [change(isr=(2,), leader=2), fence(1)])], "session-expired", ["no heartbeat in time"]),
    ("it led a partition without another replica", "broker/1",
     [(MINUTE, [change(leader=-1), fence(1)])], "session-expired", []),
    ("the fence was split, the last batch has the record alone", "broker/1",
     [(SECOND, MANY), (MINUTE, MANY_MOVED), (MINUTE + 400, [fence(1)])], "session-expired", []),
    ("a leadership left it, as to its preferred replica, and it shut down cleanly | fell silent", "broker/1",
     [(SECOND, [change(isr=(2,), leader=2)]), (SECOND + 400, [fence(1)])], "idle-fenced-early", []),
    ("a leadership left it, and it sent no heartbeat in time | it shut down cleanly", "broker/1",
     [(MINUTE, [change(isr=(2,), leader=2)]), (MINUTE + 400, [fence(1)])],
     "stopped-or-silent", ["the log does not show"]),
    ("the shutdown ended", "broker/1",
     [(MINUTE, [shutdown(1), change(isr=(2,), leader=2)]), (MINUTE + 300, [fence(1)])],
     "shutdown-finished", ["ended"]),
    ("a leadership left it before its shutdown began", "broker/1",
     [(MINUTE, [change(isr=(2,), leader=2)]), (MINUTE + 100, [shutdown(1)]), (MINUTE + 300, [fence(1)])],
     "shutdown-finished", ["ended"]),
    ("killed in its shutdown | the shutdown took that long", "broker/1",
     [(MINUTE, [shutdown(1), change(isr=(2,), leader=2)]), (2 * MINUTE, [fence(1)])],
     "stopped-or-silent", ["controlled shutdown, begun at 5", "sent no heartbeat in time"]),
    ("silent in its shutdown while it still led", "broker/1",
     [(MINUTE, [shutdown(1)]), (MINUTE + 9_300, [change(isr=(2,), leader=2), fence(1)])],
     "session-expired", ["during its controlled shutdown"]),
    ("fenced while it led, sooner than a session ends by default", "broker/1",
     [(8_999, [change(isr=(2,), leader=2), fence(1)])],
     "fenced-early", ["the log does not show which", "broker.session.timeout.ms", "could not continue"]),
    ("fenced while it led, and registered again in the same batch", "broker/1",
     [(MINUTE, [change(isr=(2,), leader=2), fence(1), broker(1, 9, incarnation=OTHER, fenced=True)])],
     "broker-restarted", []),
    ("the fence before a registration in the same batch", "topic/t/0.leader",
     [(MINUTE, [change(isr=(2,), leader=2), fence(1), broker(1, 9, incarnation=OTHER, fenced=True)])],
     "broker-fenced", ["no heartbeat in time"]),
    ("a follower lagged", "topic/t/0.isr", [(MINUTE, [change(isr=(1,))])],
     "replica-lagged", ["fell behind"]),
    ("a broker left an ISR as it was fenced while it led nothing", "topic/t/0.isr",
     [(MINUTE, [change(isr=(1,)), fence(2)])], "broker-fenced", ["shut down cleanly or sent no heartbeat"]),
    ("restarted, in one batch with what it leaves", "topic/t/0.isr",
     [(MINUTE, [change(isr=(2,), leader=2), broker(1, 6, incarnation=OTHER, fenced=True)])],
     "broker-restarted", ["restarted at 6"]),
    ("restarted when it was fenced already (KIP-966)", "topic/t/0.isr",
     [(MINUTE, [fence(2)]), (2 * MINUTE, [change(isr=(1,)), broker(2, 7, incarnation=OTHER, fenced=True)])],
     "broker-restarted", ["restarted at 7"]),
    ("the same process registered again, fenced by that", "topic/t/0.isr",
     [(MINUTE, [change(isr=(1,)), broker(2, 6, fenced=True)])], "registered-again", ["again at 6"]),
    ("a directory failed | somebody marked it", "broker/1", [(MINUTE, [dirs(1, ONE)])],
     "directory-failed", ["failed", "an operator took them offline"]),
    ("unclean by the setting", "topic/t/0.leader",
     [(1, [UNCLEAN]), (MINUTE, [change(isr=(1,))]), (2 * MINUTE, [change(isr=(2,), leader=2,
       leader_recovery_state=1), fence(1)])],
     "unclean-election", [f"{UNCLEAN_ELECTION} is true"]),
    ("the setting | somebody asked", "topic/t/0.leader",
     [(1, [UNCLEAN]), (2, [change(isr=(1,))]), (3, [fence(1), change(leader=-1)]),
      (MINUTE, [change(isr=(2,), leader=2, leader_recovery_state=1)])],
     "unclean-election", ["the log does not show", "is true", "someone requested"]),
    ("somebody asked | the controllers' own configuration", "topic/t/0.leader",
     [(2, [change(isr=(1,))]), (3, [fence(1), change(leader=-1)]),
      (MINUTE, [change(isr=(2,), leader=2, leader_recovery_state=1)])],
     "unclean-election", ["the log does not show", "own configuration", "someone requested"]),
    ("no leader: the default may be in the controllers' configuration", "topic/t/0.leader",
     [(2, [change(isr=(1,))]), (MINUTE, [change(leader=-1), fence(1)])],
     "no-eligible-leader", ["not set in the log", "unless"]),
    ("its broker came back", "topic/t/0.leader",
     [(2, [change(isr=(1,))]), (3, [fence(1), change(leader=-1)]), (MINUTE, [UNFENCE, change(leader=1)])],
     "broker-returned", ["unfenced at 8"]),
    ("asked for | found by a new controller", "topic/t/0.leader",
     [(2, [change(isr=(1,), leader=-1)]), (MINUTE, [change(leader=1)])],
     "led-again", ["the log does not show", "someone requested", "new controller"]),
    ("balanced | asked for", "topic/t/0.leader",
     [(2, [change(leader=2)]), (MINUTE, [change(leader=1)])],
     "preferred-election", ["balanced", "someone requested"]),
    ("cancelled | assigned back", "topic/t/0.replicas",
     [(2, [MOVING]), (MINUTE, [change(replicas=(1, 2), adding_replicas=(), removing_replicas=())])],
     "reassignment-cancelled", ["cancelled or reversed"]),
    ("ended at a third set of replicas: neither completed nor cancelled", "topic/t/0.replicas",
     [(2, [MOVING]), (MINUTE, [change(replicas=(1,), adding_replicas=(), removing_replicas=())])],
     "reassignment-changed", ["changed"]),
    ("completed", "topic/t/0.replicas",
     [(2, [MOVING]), (MINUTE, [change(replicas=(1, 3), isr=(1, 3), adding_replicas=(),
       removing_replicas=())])], "reassignment-completed", ["completed"]),
    ("registered for the first time | after it was unregistered", "broker/1",
     [(2, [r.UnregisterBrokerRecord(1, 1)]), (MINUTE, [broker(1, 6)])], "registered", ["unregistered at 5"]),
    ("restarted | another machine with its id", "broker/1",
     [(MINUTE, [broker(1, 5, incarnation=OTHER)])], "broker-restarted", ["or another process with its id"]),
    ("fenced once more: nothing happened", "broker/1", [(2, [fence(1)]), (MINUTE, [fence(1)])],
     "changed-nothing", ["changed nothing"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("histories", "target", "batches", "rule", "words"), SAME, ids=[row[0] for row in SAME]
)
def test_histories_that_leave_the_same_records(
    histories: str, target: str, batches: list[Batch], rule: str, words: list[str]
) -> None:
    found = next((cause for cause in causes(target, batches) if cause.rule == rule), None)
    assert found is not None, causes(target, batches)
    for word in words:
        assert word in found.text
    assert found.certain == ("the log does not show which:" not in found.text)


@pytest.mark.parametrize(
    ("batches", "gone", "rule", "words"),
    [
        ([(MINUTE, [change(isr=(1,))])], 2, "lagged-or-stopping", ["fell behind", "controlled shutdown"]),
        (
            [(MINUTE, [change(isr=(2,), leader=2)])],
            *(1, "stopping-or-fenced", ["controlled shutdown", "fenced"]),
        ),
    ],
)
def test_below_3_3_iv3_no_log_says_that_a_broker_stops(
    batches: list[Batch], gone: int, rule: str, words: list[str]
) -> None:
    found = causes("topic/t/0", batches, OLD_LEVEL)[0]
    assert (found.rule, found.certain) == (rule, False)
    assert all(word in found.text for word in words)
    fenced = [*batches, (MINUTE + 400, [r.FenceBrokerRecord(gone, gone)])]
    assert causes(f"broker/{gone}", fenced, OLD_LEVEL)[0].rule == "stopped-or-silent", (
        "its shutdown looks like this"
    )


# (votes of the old leader, silence, metadata.version, the rule)
ELECTIONS = [
    (False, 0, 19, "leader-replaced"),  # a reset connection counts at once
    (False, 850, 19, "leader-replaced"),  # a fetch timeout may be shorter than Kafka's default
    (True, 850, 19, "leader-replaced"),  # resigned, or was paused and is back
    (False, 2_000, 19, "leader-lost"),
    (True, 2_000, 19, "leader-replaced"),  # resigned, or failed and was back for the vote
    (False, 60_000, 4, "leader-replaced"),  # an idle leader writes nothing there
    (False, -5, 19, "leader-replaced"),  # the clocks of the two differ
    (False, None, 19, "leader-replaced"),  # a log that begins here
]


@pytest.mark.parametrize(("voted", "silence_ms", "level", "rule"), ELECTIONS)
def test_what_another_leader_of_the_quorum_means(
    voted: bool, silence_ms: int | None, level: int, rule: str
) -> None:
    voters = tuple(control.LeaderVoter(node) for node in (1, 2, 3))
    granting = voters if voted else voters[1:]
    found = election_causes(control.LeaderChangeMessage(2, voters, granting), 7, 1, 5, silence_ms, level)
    assert [cause.rule for cause in found] == ["leader-elected", rule, "epochs-skipped"]
    assert ("the log does not show" in found[1].text) == (rule == "leader-replaced") == (not found[1].certain)
    assert "or its winner committed nothing" in found[2].text


def idle_broker(end: Callable[[Quorum], None]) -> list[list[object]]:
    """What our controllers write of a broker that led nothing, with that end of its story."""
    quorum = quorum_of()
    for number in (1, 2):
        quorum.start_broker(number)
    quorum.create("t", (1, 2))
    quorum.beat_for(20_000, 1, 2)
    before = len(quorum.batches())
    end(quorum)
    made = quorum.batches()
    last = next(batch for batch in made[before:] if not isinstance(batch[0], r.NoOpRecord))
    return [*made[:before], last]


def stop_in_order(quorum: Quorum) -> None:
    assert beat(quorum.heartbeat(2, want_shutdown=True)).should_shut_down


def fall_silent(quorum: Quorum) -> None:
    quorum.beat_for(12_000, 1)


def test_our_controllers_write_the_same_records_for_a_stop_and_for_silence() -> None:
    told = []
    for end in (stop_in_order, fall_silent):
        made = idle_broker(end)
        chain, offset = Chain(parse_target("broker/2")), 0
        for number, records in enumerate(made):
            time_ms = MINUTE * (number == len(made) - 1)
            chain.batch(1, time_ms, list(enumerate(records, offset)))
            offset += len(records)
        link = chain.result().last
        assert link is not None
        told.append([type(record).__name__ for record in made[-1]])
        assert [cause.rule for cause in link.causes] == ["stopped-or-silent"], link
    assert told[0] == told[1] == ["PartitionChangeRecord", "FenceBrokerRecord"]


def split_fence(partitions: int, gap_ms: int) -> list[TimelineEvent]:
    """A fence of broker 1 over two batches: it led all partitions but one, which it followed."""
    timeline, events, offset = Timeline(), [], 0
    made = [
        r.PartitionRecord(
            at, ID, (1, 2), (1, 2), leader=2 if at == 0 else 1, leader_epoch=0, partition_epoch=0
        )
        for at in range(partitions)
    ]
    moved = [
        r.PartitionChangeRecord(at, ID, isr=(2,), leader=None if at == 0 else 2) for at in range(partitions)
    ]
    for time_ms, records in (
        (0, [*LEVEL, *START[:3], *made]),
        (MINUTE, moved),
        (MINUTE + gap_ms, [fence(1)]),
        (MINUTE + gap_ms + 1, [r.ConfigRecord(2, "t", "retention.ms", "1")]),
    ):
        events += timeline.batch(1, time_ms, list(enumerate(records, offset)))
        offset += len(records)
    assert [event.kind for event in events if event.kind == "config changed"], "nothing waits for good"
    return [event for event in events + timeline.finish() if event.time_ms >= MINUTE]


def test_a_timeline_waits_for_the_record_of_a_split_fence() -> None:
    events = split_fence(1_500, 300)
    told = {(event.kind, event.rule, event.severity) for event in events}
    assert ("isr shrank", "broker-fenced", "detail") in told
    assert ("leader changed", "broker-fenced", "info") in told
    assert ("broker fenced", "session-expired", "warning") in told
    assert [event.offset for event in events] == sorted(event.offset for event in events)


def test_a_timeline_does_not_wait_for_long_or_for_a_small_batch() -> None:
    late = {(event.kind, event.rule) for event in split_fence(1_500, 1_001)}
    assert ("isr shrank", "replica-lagged") in late and ("isr shrank", "broker-fenced") not in late
    small = {(event.kind, event.rule) for event in split_fence(10, 300)}
    assert ("isr shrank", "replica-lagged") in small
