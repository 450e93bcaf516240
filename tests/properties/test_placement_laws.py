"""Whatever the order of metadata, disks, responses, failures and restarts: replicas end up where the log
says.

A random history is played on one broker. After every step no replica may run that the log does not place
there, and nothing that a failed directory holds may be recreated. In the end every request has been carried
out, and what runs, what is offline and what is on the disks is exactly what the metadata log says.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from metaquorum.broker.channel import NoAnswer, SendToController
from metaquorum.broker.replica.disk_work import (
    CreateReplica,
    FoundDirectory,
    FoundReplica,
    RemoveReplica,
    ReplicaLog,
)
from metaquorum.broker.replica.events import DataEffect
from metaquorum.metadata.image import LOST, UNASSIGNED
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.metadata.requests.partitions import AssignReplicasToDirsRequest
from metaquorum.raft.events import Stop
from tests.controllers import reported
from tests.unit.broker.manager_world import ELSEWHERE, ME, A, B, C, Cluster, Host, accepted, of_kind

DIRECTORIES = (A, B, C)
STEPS = st.lists(st.integers(min_value=0, max_value=2**20), min_size=5, max_size=60)


class Story:
    """The broker, its disks (which outlive it), and a controller that commits what it accepts."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.live: list[PartitionKey] = []
        self.stored: dict[bytes, dict[PartitionKey, str]] = {each: {} for each in DIRECTORIES}
        self.bad: set[bytes] = set()
        self.asked: deque[SendToController] = deque()
        self.waited_ms = 0
        self.owed: set[PartitionKey] = set()
        self.count = 0
        self.start()

    def start(self) -> None:
        found = [
            FoundDirectory(
                path=f"/data/{chr(each[0])}",
                directory_id=each,
                problem="EIO" if each in self.bad else None,
                replicas=tuple(
                    FoundReplica(key=key, topic=name, incarnation=1, log=ReplicaLog())
                    for key, name in sorted(self.stored[each].items())
                    if each not in self.bad
                ),
            )
            for each in DIRECTORIES
        ]
        self.host = Host(self.cluster, *found)
        self.asked.clear()
        self.owed.clear()
        self.note(self.host.start())
        self.publish()

    def publish(self) -> None:
        effects = self.host.publish()
        topics = self.host.image.topics
        infos = {key: topics.partition(*key) for key in self.owed}
        self.owed = {key for key, info in infos.items() if info is not None and ME in info.replicas}
        self.note(effects)

    # ---- what may happen -------------------------------------------------------------------------

    def step(self, number: int) -> None:
        what, pick = number % 11, number // 11
        key = self.live[pick % len(self.live)] if self.live else None
        if what <= 1 or key is None:
            self.create(pick)
        elif what == 2:
            self.live.remove(key)
            self.cluster.delete(key)
        elif what == 3:
            self.move(key)
        elif what == 4:
            self.publish()
        elif what == 5:
            self.disk(pick % 4)
        elif what == 6:
            self.controller(accepts=True)
        elif what == 7:
            self.controller(accepts=False)
        elif what == 8:
            self.wait(pick % 2_000)
        elif what == 9 and pick % 3 == 0 and len(self.bad) < 2:
            self.fail(DIRECTORIES[pick % 3])
        elif what == 10 and pick % 2 == 0:
            if pick % 4 == 0:
                self.bad.clear()
            self.start()
        self.check()

    def wait(self, ms: int) -> None:
        """Time passes; a process reports a request that has had no answer for its whole timeout."""
        self.waited_ms += ms
        if self.asked and self.waited_ms >= self.asked[0].timeout_ms:
            self.controller(accepts=False)
        self.note(self.host.tick(ms))

    def create(self, pick: int) -> None:
        self.count += 1
        name = f"t{pick % 3}"
        taken = {self.names[key] for key in self.live}
        if name not in taken:
            key = self.cluster.topic(name, as_id=self.count.to_bytes(16, "big"), leader=2 if pick % 2 else ME)
            self.live.append(key)

    @property
    def names(self) -> dict[PartitionKey, str]:
        topics = self.cluster.image().topics
        return {(each.topic_id, 0): each.name for each in topics.all()}

    def move(self, key: PartitionKey) -> None:
        """The replica leaves this broker, or comes back."""
        info = self.cluster.image().topics.partition(*key)
        assert info is not None
        if ME in info.replicas:
            self.cluster.change(key, replicas=(2, 3), isr=(2,), directories=(ELSEWHERE, ELSEWHERE), leader=2)
        else:
            places = (ELSEWHERE, UNASSIGNED)
            self.cluster.change(key, replicas=(2, ME), isr=(2,), directories=places, leader=2)

    def disk(self, count: int) -> None:
        """Directories do some of their work; each keeps its own order."""
        for _ in range(count):
            if self.host.queue:
                self.carry_out(self.host.queue.popleft())

    def carry_out(self, work: Any) -> None:
        stored = self.stored[work.directory_id]
        if isinstance(work, CreateReplica):
            assert work.topic not in stored.values(), "two replicas would share a name on the disk"
            stored[work.key] = work.topic
        elif isinstance(work, RemoveReplica):
            stored.pop(work.key, None)
        for event in self.host._carry_out(work):
            self.note(self.host.do(event))

    def controller(self, *, accepts: bool) -> None:
        if not self.asked:
            return
        asked = self.asked.popleft()
        self.waited_ms = 0
        response: Any = NoAnswer("lost")
        if accepts:
            response = accepted(asked.request)
            assert isinstance(asked.request, AssignReplicasToDirsRequest)
            for each in asked.request.assignments:
                info = self.cluster.image().topics.partition(each.topic_id, each.partition)
                if info is not None and ME in info.replicas:
                    self.cluster.change((each.topic_id, each.partition), place=each.directory_id)
                if each.directory_id == LOST:
                    self.owed.discard((each.topic_id, each.partition))
        self.note(self.host.do(reported(asked, response)))

    def fail(self, directory_id: bytes) -> None:
        if directory_id not in self.bad:
            self.bad.add(directory_id)
            for key in self.stored[directory_id]:
                info = self.host.image.topics.partition(*key)
                if info is not None and info.directory_of(ME) in (UNASSIGNED, LOST):
                    self.owed.add(key)
            self.note(self.host.fail(directory_id))

    # ---- what must hold --------------------------------------------------------------------------

    def note(self, effects: list[DataEffect]) -> None:
        assert of_kind(effects, Stop) == []
        sent = of_kind(effects, SendToController)
        self.waited_ms = 0 if sent else self.waited_ms
        self.asked.extend(sent)
        assert len(self.asked) <= 1, "one request is in flight"
        image = self.host.image
        for each in of_kind(effects, CreateReplica):
            assert each.directory_id not in self.bad
            assert each.key not in self.owed, "made anew before its loss is acknowledged (S3.6)"
            info = image.topics.partition(*each.key)
            place = None if info is None else info.directory_of(ME)
            assert place not in self.bad, "a replica of a failed directory is made anew (S3.6)"

    def check(self) -> None:
        for key, partition in self.host.manager.partitions.items():
            info = self.host.image.topics.partition(*key)
            assert info is not None and info.directory_of(ME) == partition.directory_id
            assert partition.directory_id not in self.bad

    def finish(self) -> None:
        """Nothing new happens, and everything in progress is completed."""
        for _ in range(200):
            before = self.state()
            self.publish()
            while self.host.queue:
                self.disk(1)
            self.controller(accepts=True)
            self.note(self.host.tick(1_000))
            self.check()
            if self.state() == before and not self.asked and not self.host.queue:
                return
        raise AssertionError("it does not come to rest")

    def state(self) -> Any:
        manager = self.host.manager
        running = {key: each.directory_id for key, each in manager.partitions.items()}
        stored = {each: dict(self.stored[each]) for each in DIRECTORIES if each not in self.bad}
        image = self.cluster.image().topics
        places = {key: image.partition(*key) for key in self.live}
        return running, stored, places, manager.status().offline


@settings(max_examples=150, deadline=None)
@given(STEPS)
@example([0, 1632, 75, 57285, 57285, 57285])
def test_replicas_end_where_the_log_says(steps: list[int]) -> None:
    story = Story()
    for number in steps:
        story.step(number)
    story.finish()
    running, stored, places, offline = story.state()
    expected, away = {}, 0
    for key, info in places.items():
        place = info.directory_of(ME)
        if place is None:
            continue
        assert place not in (UNASSIGNED, LOST), "the log never learned where it lies"
        if place in story.bad:
            away += 1
        elif key in running:
            expected[key] = place
        else:
            assert story.bad, "it may only be missing while a directory is bad"
            away += 1
    assert (running, offline) == (expected, away)
    on_disks = {key: each for each, keys in stored.items() for key in keys}
    assert all(key in stored[place] for key, place in expected.items())
    # Other copies are kept only while the named directory is bad: they may still be needed.
    for key in set(on_disks) - set(expected):
        info = places.get(key)
        assert info is not None and info.directory_of(ME) in story.bad


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_a_restart_changes_nothing_that_is_at_rest(steps: list[int]) -> None:
    story = Story()
    for number in steps:
        story.step(number)
    story.finish()
    before = story.state()
    story.start()
    story.finish()
    assert story.state() == before


def test_the_order_in_which_topics_are_read_does_not_matter() -> None:
    """The same log, published record by record or all at once."""
    for seed in range(20):
        rng = random.Random(seed)
        slow, fast = Story(), Story()
        for number in [
            rng.choice((0, 1, 11, 12, 22, 23, 2, 13, 3, 14)) + 11 * rng.randrange(9) for _ in range(30)
        ]:
            slow.step(number)
            slow.publish()
            fast.step(number)
        slow.finish()
        fast.finish()
        assert set(slow.state()[0]) == set(fast.state()[0])
