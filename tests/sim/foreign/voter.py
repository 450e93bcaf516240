"""A controller of Apache Kafka 3.7 as a process of the simulator: the model of its voter, with a disk that
takes time, connections that carry one request at a time, and a controller that writes while it leads.

Kafka's Raft thread does one thing after another: while it waits for the disk it says nothing, so what it says
is durable. A truncation is not durable before the next write is.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec import structs

from metaquorum.clients.kafka.message_forms import CannotSay
from metaquorum.controller.answers import not_controller
from metaquorum.metadata.requests.common import RequestArrived
from metaquorum.raft.events import RaftRequestAbandoned, RaftRequestArrived, ShutdownRequested, Stop
from metaquorum.raft.voters import VoterSet
from tests.raft.kafka_voter import LEADER, REQUEST_TIMEOUT_MS, KafkaStops, KafkaVoter
from tests.raft.mixed_world import (
    NO_PRE_VOTE,
    VERSIONS,
    answered_in_kafkas_words,
    asked_in_kafkas_words,
)
from tests.raft.world import MemoryDisk
from tests.sim.errors import SafetyError
from tests.sim.foreign.active import KafkaController
from tests.sim.host import Host
from tests.sim.processes import CLUSTER_ID

if TYPE_CHECKING:
    from tests.sim.foreign.quorum import MixedWorld

TICK_MS, POLL_MS = 15, 0.05


@dataclass(slots=True)
class Line:
    """The connection to one node: it carries a request when the one before has ended. `number` is another one
    once it was closed."""

    number: int
    waiting: deque[tuple[int, Any]] = field(default_factory=deque)
    is_busy: bool = False


class DirectoryOfKafka:
    """The disk of one voter, which survives its processes. `now` is what a process sees, `durable` what a
    power loss leaves."""

    def __init__(self) -> None:
        self.now = MemoryDisk()
        self.durable = MemoryDisk()

    def must_flush(self) -> bool:
        """Whether something was written. What is only cut off comes back after a power loss."""
        now, durable = self.now, self.durable
        if now.hard != durable.hard or now.start != durable.start or now.snapshots != durable.snapshots:
            return True
        held = len(now.batches)
        is_cut = held <= len(durable.batches) and now.batches[-1:] == durable.batches[:held][-1:]
        return not is_cut

    def flush(self) -> None:
        self.durable = self.now.copy()

    def lose_power(self, rng: random.Random) -> bool:
        """Loses all, some or none of what was being written; whether a record was lost."""
        now, before = self.now, self.now.end
        kind, known = rng.randrange(3), len(self.durable.batches)
        is_longer = now.start == self.durable.start and now.batches[:known] == self.durable.batches
        if kind == 0 or (kind == 1 and not is_longer):
            self.now = self.durable.copy()
        elif kind == 1:
            kept = rng.randint(known, len(now.batches))
            now.batches = now.batches[:kept]
            now.end = now.synced = now.batches[-1][1] if kept else now.start
        self.flush()
        return self.now.end < before


class _Store:
    """What the world asks of a process's files."""

    def __init__(self, directory: DirectoryOfKafka) -> None:
        self._directory = directory

    @property
    def log(self) -> _Store:
        return self

    @property
    def synced_offset(self) -> int:
        return self._directory.durable.end

    @property
    def end_offset(self) -> int:
        return self._directory.now.end

    def close(self, *, clean: bool) -> None:
        pass


class KafkaVoterProcess:
    """One process on a host, with what `World` and `Calls` need of one."""

    broker = None

    def __init__(self, host: Host, node_id: int, world: MixedWorld) -> None:
        self.host, self.node_id, self.world = host, node_id, world
        self.directory = world.kafkas[node_id]
        self.store = _Store(self.directory)
        self.directory.flush()
        self.rng = random.Random(host.rng.getrandbits(64))
        host.boot += 1
        self.voter = self.make_voter(random.Random(host.rng.getrandbits(64)))
        self.controller = self.make_controller()
        self.alive, self.touched, self.paused = True, True, False
        self.stopped: Stop | None = None
        self.checked_to = self.committed_to = 0
        self._inbox: deque[Callable[[], Any]] = deque()
        self._is_planned = self.is_flushing = False
        self._asked: dict[int, Any] = {}
        self._lines: dict[int, Line] = {}

    # ---- which release it is of ------------------------------------------------------------------

    versions = VERSIONS
    directory_id = b""

    def sets_that_count(self) -> tuple[VoterSet, ...]:
        """By one of them, what it calls committed is on a majority of disks."""
        return (self.world.voter_set,)

    def make_voter(self, rng: random.Random) -> KafkaVoter:
        now = self.host.monotonic_ms()
        return KafkaVoter(self.node_id, self.world.controller_ids, self.directory.now, rng, now)

    def make_controller(self) -> KafkaController:
        return KafkaController(self.voter, self.rng, self.host.profile.snapshot_every_bytes)

    def reach(self, to: int) -> Host:
        """The host that a request goes to."""
        return self.world.directory[to]

    def answer_in_words(self, response: Any, asked: Any) -> Any:
        return answered_in_kafkas_words(response, asked, by_kafka=True)

    def take_client(self, key: int, request: Any) -> None:
        """It serves none of the clients here."""
        refusal = not_controller(self.node_id, self.voter.leader_id)
        self.world.calls.answered_client(key, refusal, outright=True)

    # ---- life ------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._guarded(self.voter.start)
        self._tick()

    def end(self) -> None:
        self.alive = False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self._plan()

    def ask_to_stop(self) -> None:
        self.deliver(ShutdownRequested)

    def writes_in_flight(self) -> bool:
        return self.is_flushing

    def lose_power(self) -> None:
        """What was not durable may be gone."""
        if self.directory.lose_power(self.rng):
            self.world.marks.add("Kafka's voter lost unsynced records")

    def trace(self, text: str) -> None:
        self.host.engine.trace(self.host.name, text)

    # ---- its thread ------------------------------------------------------------------------------

    def deliver(self, make_event: Callable[[], Any]) -> None:
        if self.alive:
            self._inbox.append(make_event)
            self._plan()

    def _tick(self) -> None:
        if self.alive:
            self._plan()
            self.host.engine.after(TICK_MS, self._tick)

    def _plan(self) -> None:
        if self._is_planned or self.is_flushing or self.paused or not self.alive:
            return
        self._is_planned = True
        self.host.engine.after(POLL_MS, self._poll)

    def _poll(self) -> None:
        """One message at a time."""
        self._is_planned = False
        if not self.alive or self.paused or self.is_flushing:
            return
        self.touched = True
        role, start, end = self.voter.role, self.directory.now.start, self.directory.now.end
        if self._inbox:
            make_event = self._inbox.popleft()
            self._guarded(lambda: self._take(make_event()))
        self._guarded(self._turn)
        self._tell(role, start, end)
        if not self.directory.must_flush():
            self._release()
            return
        self.is_flushing = True
        self.host.engine.after(self.host.sync_cost_ms(), self._flushed)

    def _flushed(self) -> None:
        if self.alive:
            self.is_flushing, self.touched = False, True
            self.directory.flush()
            self._release()

    def _turn(self) -> None:
        self.voter.tick(self.host.monotonic_ms())
        self.controller.turn(self.host.wall_ms())
        if self.voter.may_stop:
            self.stopped = Stop(reason="it was asked to", failed=False)
            self.alive = False

    def _guarded(self, action: Callable[[], object]) -> None:
        try:
            action()
        except KafkaStops as error:
            raise SafetyError(f"Kafka's voter {self.node_id} would end: {error}") from error

    def _tell(self, role: str, start: int, end: int) -> None:
        voter, add = self.voter, self.world.marks.add
        if voter.role != role:
            self.trace(f"{role} -> {voter.role} epoch {voter.epoch} leader {voter.leader_id}")
            add(f"Kafka's voter is {voter.role}")
        if self.directory.now.start > start and self.directory.now.end == self.directory.now.start:
            add("Kafka's voter fetched a snapshot")
        elif self.directory.now.end < end:
            add("Kafka's voter cut its log")
        self.controller.tell(add)

    def _take(self, event: Any) -> None:
        now = self.host.monotonic_ms()
        match event:
            case RaftRequestArrived(key=key, request=request):
                self._asked_of_it(key, request, now)
            case RequestArrived(key=key, request=request):
                self.take_client(key, request)
            case ShutdownRequested():
                self.trace("SIGTERM")
                self.voter.now = now
                self.voter.shut_down()
            case RaftRequestAbandoned(key=key):
                self._asked.pop(key, None)
            case _:
                event(now)

    # ---- what it is asked ------------------------------------------------------------------------

    def _asked_of_it(self, key: int, request: Any, now: int) -> None:
        try:
            asked = asked_in_kafkas_words(request, self.node_id, CLUSTER_ID, self.versions)
        except CannotSay:
            self.world.calls.answered_raft(key, NO_PRE_VOTE)
            return
        self._asked[key] = asked
        self.voter.on_request(0, key, asked, now)

    def _release(self) -> None:
        """What it wants to say is said."""
        answers, self.voter.answers = self.voter.answers, []
        sends, self.voter.sends = self.voter.sends, []
        for _, key, response in answers:
            asked = self._asked.pop(key, None)
            if asked is not None:
                self.world.calls.answered_raft(key, self.answer_in_words(response, asked))
        for to, number, request in sends:
            if to not in self._lines:
                self._lines[to] = Line(self.world.next_connection())
            self._lines[to].waiting.append((number, request))
            self._send_next(to)
        if self._inbox:
            self._plan()

    # ---- what it asks ----------------------------------------------------------------------------

    def _send_next(self, to: int) -> None:
        """A node answers the requests of a connection in their order, so Kafka sends one at a time."""
        line = self._lines[to]
        if line.is_busy or not line.waiting:
            return
        number, request = line.waiting.popleft()
        line.is_busy = True

        def finish(answer: Any) -> None:
            self.deliver(lambda: lambda now: self.voter.on_response(to, number, answer, now))
            ended()

        def fail(_reason: str) -> None:
            line.number = self.world.next_connection()
            self.deliver(lambda: lambda now: self._failed(to, number, now))
            ended()

        def ended() -> None:
            line.is_busy = False
            if self.alive:
                self._send_next(to)

        self.send_on(line.number, to, request, finish, fail)

    def send_on(
        self,
        connection: int,
        to: int,
        asked: Any,
        finish: Callable[[Any], None],
        fail: Callable[[str], None],
    ) -> None:
        """Sends one request on a connection."""
        request = structs.replace(asked, cluster_id=CLUSTER_ID)
        self.world.calls.foreign(
            self.host.name,
            self.reach(to),
            asked_in_kafkas_words(request, to, CLUSTER_ID, self.versions),
            REQUEST_TIMEOUT_MS,
            lambda answer, _: finish(answered_in_kafkas_words(answer, request, versions=self.versions)),
            fail,
            once=True,
            read=lambda process, key, asked: self.world.read_by(process, key, asked, connection),
        )

    def _failed(self, to: int, number: int, now: int) -> None:
        self.voter.now = now
        self.voter.failed(to, number)

    @property
    def leads(self) -> bool:
        return self.voter.role == LEADER
