"""Mistakes in when a node's driver takes a step, in what a step contains, and in how its messages leave."""

from __future__ import annotations

from tests.planted.bug import Bug

SCHEDULER = "tests/unit/node/test_scheduler.py"
SCHEDULER_FILE = "node/scheduler.py"
DRIVER = "tests/unit/node/test_driver.py"
DURABLE = "tests/unit/node/test_driver_syncs.py"
STREAM = "tests/unit/rpc/test_stream_transport.py"
STREAM_FILE = "rpc/stream_transport.py"
RUNNER_FILE = "node/node_runner.py"
APPENDS = "tests/unit/controller/test_node_leadership.py"

SCHEDULER_BUGS = (
    Bug(
        name="step-drops-the-rest",
        breaks="an event that a step has no room for is handled by the next",
        source="docs/architecture.md, Steps",
        file=SCHEDULER_FILE,
        old="        self.statistics.steps += 1\n",
        new="        self.statistics.steps += 1\n        inbox.clear()\n",
        caught_by=(SCHEDULER, "sim 0..12"),
    ),
    Bug(
        name="rest-waits-for-a-timer",
        breaks="a step that leaves events is followed by another at once",
        source="docs/architecture.md, Steps",
        file=SCHEDULER_FILE,
        old="        else:\n            self.due_ms = now_ms\n",
        new="        else:\n            self.due_ms = deadline_ms or now_ms\n",
        caught_by=(SCHEDULER,),
    ),
    Bug(
        name="newest-event-first",
        breaks="events are handled in the order of arrival",
        source="docs/architecture.md, Steps",
        file=SCHEDULER_FILE,
        old="handle(inbox.popleft(), now_ms=now_ms, wall_ms=wall_ms)",
        new="handle(inbox.pop(), now_ms=now_ms, wall_ms=wall_ms)",
        caught_by=(SCHEDULER,),
    ),
    Bug(
        name="linger-without-end",
        breaks="a step waits for more events for a bounded time",
        source="docs/architecture.md, Steps",
        file=SCHEDULER_FILE,
        old="if len(self._inbox) > self._seen and now_ms < until_ms:",
        new="if len(self._inbox) > self._seen:",
        caught_by=(SCHEDULER,),
    ),
    Bug(
        name="raft-first",
        breaks="Raft has everything decided before its next input, for which it may append itself",
        source="docs/architecture.md, Steps",
        file="controller/node.py",
        old="        self._append_decided()\n        self._release(self.replica.handle",
        new="        self._release(self.replica.handle",
        caught_by=(APPENDS,),
    ),
    Bug(
        name="requests-hold-up-slices",
        breaks="work in slices goes on, however many requests of one append are not committed",
        source="ADR 7",
        file="controller/active/steps.py",
        old="self._state.ledger.appends_waiting < ",
        new="len(self._state.ledger.pending) < ",
        caught_by=(APPENDS,),
    ),
    Bug(
        name="gap-passes-unnoticed",
        breaks="after a pause no silence is judged before the sockets have been read",
        source="docs/architecture.md, Steps; KAFKA-15489",
        file=SCHEDULER_FILE,
        old="        if gap_ms <= self.config.gap_ms:\n",
        new="        if gap_ms >= 0:\n",
        caught_by=(SCHEDULER,),
    ),
    Bug(
        name="slices-without-a-pause",
        breaks="work in slices leaves sockets as much time as it takes",
        source="docs/architecture.md, Steps",
        file=SCHEDULER_FILE,
        old="            self._tick_from_ms = now_ms + min(took_ms, self.config.pause_max_ms)\n",
        new="            self._tick_from_ms = now_ms\n",
        caught_by=(SCHEDULER,),
    ),
    Bug(
        name="tick-put-off-for-ever",
        breaks="a tick is put off once, however busy the node is",
        source="docs/architecture.md, Steps",
        file=SCHEDULER_FILE,
        old="        if self._tick_from_ms is None and took_ms >= self.config.long_ms:\n",
        new="        if took_ms >= self.config.long_ms:\n",
        caught_by=(SCHEDULER,),
    ),
    Bug(
        name="unknown-effect-is-dropped",
        breaks="a node's effects are carried out, or its process ends",
        source=RUNNER_FILE,
        file=RUNNER_FILE,
        old='raise TypeError(f"no part of this process carries out {type(effect).__name__}")',
        new="continue",
        caught_by=(DRIVER,),
    ),
    Bug(
        name="committed-note-not-durable",
        breaks="what is known to be committed is made durable, so that a later loss is noticed",
        source="docs/raft.md, Older copies",
        file=RUNNER_FILE,
        old="            self._disk.submit(lambda: self._store.persist_committed(position), done)\n",
        new="            done(None)\n",
        caught_by=(DURABLE,),
    ),
    Bug(
        name="committed-not-noted",
        breaks="a replica notes what it knows to be committed",
        source="docs/raft.md, Older copies",
        file=RUNNER_FILE,
        old="raft.NoteCommitted: self._note_committed,",
        new="raft.NoteCommitted: lambda effect: None,",
        caught_by=(DURABLE,),
    ),
    Bug(
        name="stream-without-backpressure",
        breaks="a connection that gRPC carries is not written to while its reader does not read",
        source="docs/adr/0027-one-transport-among-voters.md",
        file=STREAM_FILE,
        old="            self._protocol.pause_writing()\n",
        new="",
        caught_by=(STREAM,),
    ),
    Bug(
        name="stream-read-while-paused",
        breaks="no more is read of a stream than its connection takes",
        source="docs/adr/0027-one-transport-among-voters.md",
        file=STREAM_FILE,
        old="    def pause_reading(self) -> None:\n        self._may_read.clear()",
        new="    def pause_reading(self) -> None:\n        pass",
        caught_by=(STREAM,),
    ),
    Bug(
        name="votes-over-grpc",
        breaks="over gRPC nothing is answered but fetches of observers",
        source="docs/adr/0027-one-transport-among-voters.md",
        file="controller/server/kafka.py",
        old="random_uuid(rng), image)\n    services =",
        new="random_uuid(rng), image, voters_ask=True)\n    services =",
        caught_by=("tests/conformance/test_transport.py",),
    ),
    Bug(
        name="brokers-before-peers",
        breaks="voters' fetches and votes are answered before brokers' fetches",
        source="docs/adr/0027-one-transport-among-voters.md",
        file="rpc/transport.py",
        old="        if is_first:\n",
        new="        if not is_first:\n",
        caught_by=("tests/unit/rpc/test_raft_service.py",),
    ),
)
