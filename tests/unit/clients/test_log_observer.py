"""What an observer of the metadata log asks, and that what it keeps is the leader's committed log."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from metaquorum.clients.kafka.observer import (
    READER_ID,
    UNCOMMITTED_WAIT_MS,
    WAIT_MS,
    AskNode,
    CopyProgress,
    CopyResumed,
    CopyTrouble,
    LiveLog,
    LocateQuorum,
    LogObserver,
    NothingHeard,
    PauseFor,
    QuorumNodes,
)
from metaquorum.clients.search import ClientError
from metaquorum.raft.messages import FetchRequest, FetchResponse, FetchSnapshotRequest, RaftError
from metaquorum.storage.batches.format import hop_headers
from metaquorum.storage.types import LogPosition
from tests.unit.clients.metadata_leader import ADDRESSES, CLUSTER, MemorySpool, MetadataLeader

Change = Callable[[Any, Any], Any]
"""What becomes of a step's result."""
BOOTSTRAP = (ADDRESSES[1],)
STEPS_MAX = 5_000


def is_complete(step: Any) -> bool:
    return isinstance(step, CopyProgress) and step.is_complete


class Run:
    """Drives an observer against a quorum. `chaos` may change the quorum, or an answer, at each request."""

    def __init__(self, quorum: MetadataLeader, spool: MemorySpool | None = None, **more: Any) -> None:
        self.quorum = quorum
        self.spool = MemorySpool() if spool is None else spool
        options = {"reader": bytes(16), "rng": Random(1), "timeout_ms": 10_000, **more}
        bootstrap = options.pop("bootstrap", BOOTSTRAP)
        self.observer = LogObserver(bootstrap, self.spool, **options)
        self.steps = self.observer.run()
        self.now_ms = 1_000
        self.seen: list[Any] = [next(self.steps)]
        self.bytes_read = 0

    def step(self, change: Change | None = None) -> Any:
        """Carries out the step at hand; returns the next one."""
        step = self.seen[-1]
        result: Any = None
        match step:
            case LocateQuorum() | AskNode():
                result = self.quorum.result(step)
                result = result if change is None else change(step, result)
                self.bytes_read += len(getattr(result, "records", b"") + getattr(result, "data", b""))
                self.now_ms += 1
            case PauseFor(wait_ms=wait_ms):
                assert wait_ms >= 0
                self.now_ms += wait_ms
        self.seen.append(self.steps.send((self.now_ms, result)))
        return self.seen[-1]

    def until(self, reached: Callable[[Any], bool], change: Change | None = None) -> Any:
        """The first step of which that is true."""
        for _ in range(STEPS_MAX):
            step = self.step(change)
            if reached(step):
                return step
        raise AssertionError(f"not in {STEPS_MAX} steps: {self.seen[-20:]}")

    def until_complete(self, change: Change | None = None) -> CopyProgress:
        found: CopyProgress = self.until(
            lambda step: isinstance(step, CopyProgress) and step.is_complete, change
        )
        return found

    def until_it_ends(self, change: Change | None = None) -> None:
        """Carries out steps until one raises."""
        self.until(lambda step: False, change)

    def until_all_is_kept(self) -> None:
        self.until(lambda step: self.observer.log.end_offset == self.quorum.high_watermark)

    def asked(self) -> list[Any]:
        return [each.request for each in self.seen if isinstance(each, AskNode)]

    def check(self) -> None:
        """The spool holds what the leader has committed: each segment follows the one before, or a snapshot
        covers what is missing; and each snapshot is the one of a single node."""
        quorum, spool = self.quorum, self.spool
        for position, data in spool.snapshots.items():
            assert data in [quorum.content(node, position) for node in ADDRESSES]
        known = {base: data for _, base, data in quorum.log}
        end = 0
        for base, data in sorted(spool.segments.items()):
            ends_of = [at.offset for at in (*spool.snapshots, *filter(None, [spool.nothing]))]
            assert base == end or any(at >= base for at in ends_of)
            hops = hop_headers(data)
            for at, (position, first, following, _) in enumerate(hops):
                assert first == (base if at == 0 else end)
                end = following
                stop = hops[at + 1][0] if at + 1 < len(hops) else len(data)
                assert data[position:stop] == known.get(first, data[position:stop])


def grown(quorum: MetadataLeader, batches: int = 20) -> MetadataLeader:
    for _ in range(batches):
        quorum.append(quorum.rng.randrange(1, 5))
        quorum.commit()
    return quorum


@given(st.integers(0, 2**32), st.booleans())
@example(0, True)
def test_what_is_kept_is_the_committed_log_whatever_happens(seed: int, kafkas: bool) -> None:
    rng = Random(seed)
    quorum = grown(MetadataLeader(rng, kafkas=kafkas), rng.randrange(30))
    for _ in range(rng.randrange(4)):
        rng.choice((quorum.snapshot, quorum.trim, quorum.elect))()
    run = Run(
        quorum,
        bootstrap=tuple(ADDRESSES.values()),
        rng=Random(seed),
        follows=True,
        rate=rng.choice((None, 100_000)),
        timeout_ms=10**9,
    )

    def disturbed(step: Any, result: Any) -> Any:
        if rng.random() < 0.1:
            return NothingHeard(text="it closed the connection")
        return result

    for _ in range(rng.randrange(200)):
        action = rng.random()
        if action < 0.3:
            quorum.append(rng.randrange(1, 5))
        elif action < 0.5:
            quorum.commit()
        elif action < 0.55:
            quorum.elect()
        elif action < 0.6:
            quorum.snapshot()
        elif action < 0.63:
            quorum.trim()
        elif action < 0.66:
            quorum.down = {rng.choice((1, 2, 3))}
        elif action < 0.7:
            quorum.down = set()
        run.step(disturbed)
    quorum.down = set()
    quorum.append(1)
    quorum.commit()
    run.until_all_is_kept()
    log = run.observer.log
    assert (log.end_offset, log.cluster_id) == (quorum.high_watermark, CLUSTER)
    run.check()
    last = max(run.spool.segments)
    assert run.spool.segments[last].endswith(quorum.committed(max(last, quorum.log_start.offset)))
    assert all(each.replica_id == READER_ID for each in quorum.asked)


def test_records_that_are_not_committed_are_not_kept() -> None:
    quorum = grown(MetadataLeader(Random(1)))
    run = Run(quorum, follows=True)
    run.until_complete()
    committed = quorum.high_watermark
    quorum.append(3)
    step = run.until(lambda step: isinstance(step, AskNode) and step.request.fetch_offset > committed)
    assert run.observer.log.end_offset == committed
    assert step.request.max_wait_ms == UNCOMMITTED_WAIT_MS
    quorum.commit()
    run.until(lambda step: isinstance(step, CopyProgress))
    assert run.observer.log.end_offset == quorum.high_watermark == committed + 3
    run.check()


def test_what_is_committed_is_kept_although_more_follows_that_is_not() -> None:
    quorum = grown(MetadataLeader(Random(1)))
    run = Run(quorum, follows=True)
    run.until_complete()
    quorum.append(3)
    committed = quorum.end.offset
    quorum.append(2)
    run.until(lambda step: isinstance(step, AskNode) and step.request.fetch_offset == committed + 2)
    quorum.high_watermark = committed
    run.until(lambda step: isinstance(step, CopyProgress))
    assert run.observer.log.end_offset == committed
    run.check()


def test_records_that_another_leader_lost_are_dropped() -> None:
    quorum = grown(MetadataLeader(Random(2)))
    run = Run(quorum, follows=True)
    run.until_complete()
    committed = quorum.high_watermark
    quorum.append(3)
    run.until(lambda step: isinstance(step, AskNode) and step.request.fetch_offset > committed)
    quorum.log.pop()
    quorum.leader, quorum.epoch = 2, quorum.epoch + 1
    quorum.append(1)
    quorum.commit()
    run.until_all_is_kept()
    assert (run.observer.log.leader_id, run.observer.log.address) == (2, ADDRESSES[2])
    run.check()


def test_committed_records_that_the_leader_lacks_end_it() -> None:
    quorum = grown(MetadataLeader(Random(3)))
    run = Run(quorum, follows=True)
    run.until_complete()
    del quorum.log[-3:]
    quorum.epoch += 1
    quorum.append(1)
    with pytest.raises(ClientError, match=r"lacks records below offset \d+, which were committed"):
        run.until_it_ends()


@pytest.mark.parametrize("kafkas", [True, False])
def test_a_log_with_its_beginning_is_read_from_there_although_there_is_a_snapshot(kafkas: bool) -> None:
    """Kafka refers a reader without a log to its snapshot, and gives the record at offset 0 to no reader."""
    quorum = grown(MetadataLeader(Random(4), kafkas=kafkas))
    quorum.snapshots.add(quorum.log[10][0])
    run = Run(quorum)
    run.until_complete()
    log = run.observer.log
    assert log.start_offset == (1 if kafkas else 0)
    assert log.snapshot == (quorum.log[10][0] if kafkas else None)
    assert run.spool.nothing == (LogPosition(1, 1) if kafkas else None)
    assert run.spool.segments == {log.start_offset: quorum.committed(log.start_offset)}


@pytest.mark.parametrize("kafkas", [True, False])
def test_a_trimmed_log_is_read_from_its_start_with_the_snapshot_there(kafkas: bool) -> None:
    quorum = grown(MetadataLeader(Random(5), kafkas=kafkas), 5)
    for _ in range(3):
        quorum.elect()
        quorum.commit()
        grown(quorum, 5)
    oldest, newest = quorum.log[8][0], quorum.log[15][0]
    quorum.snapshots = {oldest, newest}
    quorum.log_start = oldest
    quorum.log = quorum.log[9:]
    run = Run(quorum)
    run.until_complete()
    assert set(run.spool.snapshots) == {oldest, newest}
    assert run.observer.log.snapshot == newest
    assert run.spool.segments == {oldest.offset: quorum.committed(oldest.offset)}
    run.check()


def test_records_that_were_trimmed_before_they_were_read_are_left_out() -> None:
    quorum = grown(MetadataLeader(Random(6)))
    run = Run(quorum, follows=True)
    run.until_complete()
    end = quorum.high_watermark
    grown(quorum)
    quorum.snapshots = {quorum.log[-5][0]}
    quorum.trim()
    run.until_all_is_kept()
    assert sorted(run.spool.segments) == [0, quorum.log_start.offset]
    assert quorum.log_start.offset > end
    assert set(run.spool.snapshots) == quorum.snapshots
    run.check()


def test_a_snapshot_is_read_again_if_the_leader_changes() -> None:
    """Two nodes may have its records in another order: half of each would be neither."""
    quorum = grown(MetadataLeader(Random(7)))
    quorum.snapshots = {quorum.log[-1][0]}
    quorum.trim()
    run = Run(quorum)
    run.until(lambda step: isinstance(step, AskNode) and getattr(step.request, "position", 0) > 0)
    quorum.leader, quorum.epoch = 3, quorum.epoch + 1
    quorum.append(1)
    quorum.commit()
    run.until_complete()
    (position,) = quorum.snapshots
    assert run.spool.snapshots[position] == quorum.content(3, position)


def test_the_rate_bounds_what_is_read() -> None:
    quorum = grown(MetadataLeader(Random(8)), 2_000)
    run = Run(quorum, rate=70_000)
    began_ms = run.now_ms
    run.until_complete()
    assert run.bytes_read > 300_000
    assert run.now_ms - began_ms >= 1000 * (run.bytes_read - 70_000) / 70_000
    assert all(each.max_bytes <= 70_000 for each in run.asked())


def test_a_reader_that_has_everything_lets_the_leader_wait() -> None:
    run = Run(grown(MetadataLeader(Random(9))), follows=True)
    run.until_complete()
    assert [each.max_wait_ms for each in run.asked()] == [0] * len(run.asked())
    run.step()
    assert run.asked()[-1].max_wait_ms == WAIT_MS
    # An answer before its time is followed by a pause.
    assert isinstance(run.step(), PauseFor)


def test_a_copy_is_continued_where_it_ends() -> None:
    quorum = grown(MetadataLeader(Random(10)))
    first = Run(quorum)
    first.until_complete()
    known = first.observer.log
    grown(quorum)
    spool = MemorySpool()
    spool.segments[known.end_offset] = b""
    second = Run(quorum, spool, copied=known)
    second.until_complete()
    assert spool.segments == {known.end_offset: quorum.committed(known.end_offset)}
    assert second.observer.log.start_offset == 0
    other = Run(quorum, MemorySpool(), copied=replace(known, cluster_id="other"))
    with pytest.raises(ClientError, match="now answers, but the log belongs to other"):
        other.until_complete()


# --- whom it asks


def test_the_leader_is_found_from_any_controller() -> None:
    quorum = grown(MetadataLeader(Random(11)))
    quorum.leader = 3
    run = Run(quorum, bootstrap=(ADDRESSES[2],))
    run.until_complete()
    log = run.observer.log
    assert (log.leader_id, log.address, log.epoch) == (3, ADDRESSES[3], quorum.epoch)


def test_a_leader_without_a_known_address_is_one_line_at_once() -> None:
    quorum = grown(MetadataLeader(Random(12), names=False))
    quorum.leader = 3
    run = Run(quorum, bootstrap=(ADDRESSES[1], ADDRESSES[2]))
    with pytest.raises(
        ClientError, match="controller 3 leads, and no answer names its address: give it, too"
    ):
        run.until_complete()
    assert run.now_ms < 5_000


@pytest.mark.parametrize("kafkas", [True, False])
@pytest.mark.parametrize("leader", [1, 2, 3])
def test_without_names_the_given_addresses_are_asked_one_after_another(leader: int, kafkas: bool) -> None:
    quorum = grown(MetadataLeader(Random(13), names=False, kafkas=kafkas))
    quorum.leader = leader
    run = Run(quorum, bootstrap=tuple(ADDRESSES[each] for each in (1, 2, 3)))
    run.until_complete()
    assert (run.observer.log.leader_id, run.observer.log.address) == (leader, ADDRESSES[leader])


def test_a_follower_without_names_finds_the_next_leader_among_the_given_addresses() -> None:
    quorum = grown(MetadataLeader(Random(13), names=False))
    run = Run(quorum, bootstrap=tuple(ADDRESSES[each] for each in (1, 2, 3)), follows=True)
    run.until_complete()
    for leader in (3, 2, 1):
        quorum.elect()
        quorum.leader = leader
        quorum.append(1)
        quorum.commit()
        run.until(lambda step: isinstance(step, CopyProgress) and step.end_offset == quorum.high_watermark)
        assert run.observer.log.address == ADDRESSES[leader]


@pytest.mark.parametrize("follows", [True, False])
def test_silence_ends_a_copy_but_not_a_follower_that_has_begun(follows: bool) -> None:
    quorum = grown(MetadataLeader(Random(14)))
    run = Run(quorum, follows=follows, timeout_ms=3_000)
    run.until_complete()
    quorum.down = {1, 2, 3}
    began_ms = run.now_ms
    if not follows:
        with pytest.raises(ClientError, match=r"no node at 127.0.0.1:9001 answered within 3000 ms \(last: "):
            run.until_complete()
        assert run.now_ms - began_ms < 8_000
        return
    for _ in range(100):
        run.step()
    (trouble,) = [each for each in run.seen if isinstance(each, CopyTrouble)]
    assert trouble.text.endswith("still trying")
    quorum.down = set()
    grown(quorum)
    run.until_all_is_kept()
    run.check()
    told = [each for each in run.seen if isinstance(each, CopyTrouble | CopyResumed)]
    assert [type(each) for each in told] == [CopyTrouble, CopyResumed]
    assert told[-1].text == f"controller {quorum.leader} at 127.0.0.1:{9000 + quorum.leader} answers again"


def test_a_follower_outlasts_a_name_that_is_not_found_for_a_while() -> None:
    quorum = grown(MetadataLeader(Random(17)))
    run = Run(quorum, follows=True, timeout_ms=1_000)
    run.until_complete()
    unknown = NothingHeard(text="no such host", lasts=True)
    trouble = run.until(lambda step: isinstance(step, CopyTrouble), lambda step, result: unknown)
    assert "no such host" in trouble.text
    grown(quorum)
    run.until_all_is_kept()
    run.check()


def test_a_refusal_ends_it_at_once() -> None:
    run = Run(grown(MetadataLeader(Random(15))))
    with pytest.raises(ClientError, match=r"127.0.0.1:9001: no right"):
        run.until_it_ends(lambda step, result: NothingHeard(text="no right", is_refusal=True))


def test_a_node_that_cannot_help_leaves_the_others() -> None:
    quorum = grown(MetadataLeader(Random(16)))
    quorum.leader = 2
    run = Run(quorum, bootstrap=(ADDRESSES[1], ADDRESSES[2]))

    def deaf(step: Any, result: Any) -> Any:
        return NothingHeard(text="it speaks TLS", lasts=True) if step.address == ADDRESSES[1] else result

    run.until_complete(deaf)
    assert run.observer.log.address == ADDRESSES[2]
    lonely = Run(quorum, bootstrap=(ADDRESSES[1],))
    with pytest.raises(ClientError, match="it speaks TLS"):
        lonely.until_it_ends(deaf)


def test_a_broker_that_names_no_controller_says_what_to_give() -> None:
    run = Run(MetadataLeader(Random(17)))
    nothing = QuorumNodes(controllers={}, is_controller=False, cluster_id=CLUSTER, hint="give a controller")
    with pytest.raises(ClientError, match=r"127.0.0.1:9001: give a controller"):
        run.until_it_ends(lambda step, result: nothing)


@pytest.mark.parametrize("position", [70, -10])
def test_a_damaged_answer_is_one_line(position: int) -> None:
    def damaged(step: Any, result: Any) -> Any:
        if not isinstance(result, FetchResponse) or not result.records:
            return result
        records = bytearray(result.records)
        records[position] ^= 1
        return replace(result, records=bytes(records))

    quorum = MetadataLeader(Random(18), kafkas=False)
    run = Run(grown(quorum, 1))
    with pytest.raises(ClientError, match=r"controller 1 at 127.0.0.1:9001 sent what does not follow offset"):
        run.until_it_ends(damaged)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RaftError.INCONSISTENT_CLUSTER_ID, "belongs to another cluster than d2ly"),
        (RaftError.OFFSET_OUT_OF_RANGE, "refused a fetch from 0 .epoch 0.: OFFSET_OUT_OF_RANGE"),
    ],
)
def test_another_error_ends_it(error: RaftError, text: str) -> None:
    def refused(step: Any, result: Any) -> Any:
        return replace(result, error=error) if isinstance(result, FetchResponse) else result

    run = Run(grown(MetadataLeader(Random(19))))
    with pytest.raises(ClientError, match=text):
        run.until_it_ends(refused)


def test_a_leader_that_does_not_know_what_is_committed_is_asked_again() -> None:
    quorum = grown(MetadataLeader(Random(20)))
    known, quorum.high_watermark = quorum.high_watermark, -1
    run = Run(quorum)
    for _ in range(30):
        run.step()
    assert not any(isinstance(each, CopyProgress) for each in run.seen)
    quorum.high_watermark = known
    run.until_complete()
    run.check()


def test_snapshots_that_are_always_gone_end_it() -> None:
    quorum = grown(MetadataLeader(Random(21), kafkas=False))
    quorum.snapshots = {quorum.log[5][0]}
    quorum.trim()

    def gone(step: Any, result: Any) -> Any:
        if isinstance(step, AskNode) and isinstance(step.request, FetchSnapshotRequest):
            return replace(result, error=RaftError.SNAPSHOT_NOT_FOUND)
        return result

    run = Run(quorum)
    with pytest.raises(ClientError, match="its snapshots could not be read in 20 attempts"):
        run.until_it_ends(gone)


def test_what_is_kept_is_named() -> None:
    quorum = grown(MetadataLeader(Random(22)))
    run = Run(quorum)
    progress = run.until_complete()
    assert run.observer.log == LiveLog(
        cluster_id=CLUSTER,
        leader_id=1,
        epoch=1,
        address=ADDRESSES[1],
        start_offset=0,
        end_offset=progress.end_offset,
        last_epoch=1,
    )
    first = next(each for each in run.asked() if isinstance(each, FetchRequest))
    assert (first.replica_id, first.fetch_offset, first.epoch, first.high_watermark) == (-1, 0, 0, -1)
