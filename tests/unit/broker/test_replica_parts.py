"""The small parts of the replica manager, each alone: deadlines, tails of logs, assignments, directories."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metaquorum.broker.replica.controller_requests import ASSIGNMENTS_PER_REQUEST_MAX, Assignments
from metaquorum.broker.replica.deadlines import Deadlines
from metaquorum.broker.replica.placement.directories import Directories
from metaquorum.broker.replica.requests.tail import BATCH_MAX_BYTES, Tail
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import LOST
from metaquorum.metadata.requests.partitions import AssignmentResult, AssignReplicasToDirsResponse
from tests.controllers import channel
from tests.unit.broker.manager_world import A, B, C, accepted, found, key_of

X, Y = key_of("x"), key_of("y")


# ---- deadlines -----------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 20))))
def test_deadlines_are_those_of_a_dict(steps: list[tuple[int, int]]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    model: dict[int, int] = {}
    for item, when in steps:
        if when < 0:
            deadlines.disarm(item)
            model.pop(item, None)
        elif when % 3 == 0:
            due = deadlines.take_due(when)
            assert sorted(due) == sorted(each for each, at in model.items() if at <= when)
            for each in due:
                del model[each]
        elif when % 3 == 1:
            deadlines.arm(item, when)
            model[item] = when
        else:
            deadlines.arm_earlier(item, when)
            model[item] = min(model.get(item, when), when)
        assert deadlines.next_ms() == min(model.values(), default=None)
        assert len(deadlines) == len(model) and all(each in deadlines for each in model)


def test_deadlines_come_in_order_and_at_most_as_many_as_wanted() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for name, when in (("c", 3), ("a", 1), ("b", 2), ("d", 9)):
        deadlines.arm(name, when)
    assert deadlines.take_due(5, limit=2) == ["a", "b"]
    assert deadlines.take_due(5) == ["c"]
    assert deadlines.next_ms() == 9


# ---- the tail ------------------------------------------------------------------------------------


def test_the_tail_gives_whole_batches_up_to_a_bound() -> None:
    tail = Tail(1_000)
    for at in range(0, 30, 10):
        tail.note(X, at, at + 10, bytes([at]) * 100)
    assert tail.read(X, 0, 30, 10_000) == bytes([0]) * 100 + bytes([10]) * 100 + bytes([20]) * 100
    assert tail.read(X, 10, 30, 150) == bytes([10]) * 100
    assert tail.read(X, 10, 30, 1) == bytes([10]) * 100, "at least one"
    assert tail.read(X, 0, 20, 10_000) == bytes([0]) * 100 + bytes([10]) * 100
    assert tail.read(X, 20, 29, 10_000) is None, "none that reaches beyond what may be read"
    assert tail.read(X, 5, 30, 10_000) is None and tail.read(Y, 0, 30, 1) is None


def test_the_oldest_batches_of_all_partitions_go_first() -> None:
    tail = Tail(250)
    tail.note(X, 0, 1, b"a" * 100)
    tail.note(Y, 0, 1, b"b" * 100)
    tail.note(X, 1, 2, b"c" * 100)
    assert tail.kept_bytes == 200
    assert tail.read(X, 0, 2, 999) is None and tail.read(X, 1, 2, 999) == b"c" * 100
    assert tail.read(Y, 0, 1, 999) == b"b" * 100
    tail.note(Y, 1, 2, b"d" * (BATCH_MAX_BYTES + 1))
    assert tail.kept_bytes == 200


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 120)), max_size=200))
def test_forgetting_keeps_the_account(steps: list[tuple[int, int]]) -> None:
    tail = Tail(500)
    ends = [0, 0, 0]
    for which, size in steps:
        if which == 3:
            tail.forget(key_of("t", size % 3))
        else:
            tail.note(key_of("t", which), ends[which], ends[which] + 1, b"x" * (size + 1))
            ends[which] += 1
        held = sum(len(kept.data) for batches in tail._batches.values() for kept in batches.values())
        assert tail.kept_bytes == held <= 500
        assert len(tail._order) <= 2 * sum(map(len, tail._batches.values())) + 65


# ---- assignments ---------------------------------------------------------------------------------


def assignments() -> Assignments:
    return Assignments(channel().kind(1_000), 30_000)


def told(queue: Assignments) -> list[tuple[bytes, bytes]]:
    request = queue.next_request(1, 5)
    return [] if request is None else [(each.topic_id, each.directory_id) for each in request.assignments]


def test_the_newest_word_on_a_replica_is_sent() -> None:
    queue = assignments()
    queue.want(X, A)
    queue.want(X, B)
    assert told(queue) == [(X[0], B)]
    queue.want(X, B)
    assert told(queue) == [], "it is on its way"
    queue.lose(X, 100)
    queue.failed()
    assert told(queue) == [(X[0], LOST)]


def test_what_was_acknowledged_is_told_again_under_another_registration_only() -> None:
    queue = assignments()
    queue.want(X, A)
    assert told(queue) == [(X[0], A)]
    result = AssignmentResult(directory_id=A, topic_id=X[0], partition=X[1], error=ErrorCode.NONE)
    assert queue.answered(AssignReplicasToDirsResponse(results=(result,)), 0) == []
    queue.want(X, A)
    assert told(queue) == [] and len(queue) == 0, "the image is on its way"
    queue.clear_reported()
    queue.want(X, A)
    assert told(queue) == [(X[0], A)]


def test_requests_are_bounded() -> None:
    queue = assignments()
    for index in range(ASSIGNMENTS_PER_REQUEST_MAX + 5):
        queue.want(key_of("t", index), A)
    request = queue.next_request(1, 5)
    assert request is not None and len(request.assignments) == ASSIGNMENTS_PER_REQUEST_MAX
    queue.answered(accepted(request), 0)  # type: ignore[arg-type]
    rest = queue.next_request(1, 5)
    assert rest is not None and [each.partition for each in rest.assignments] == list(range(1_000, 1_005))


def test_refused_ones_are_sent_again_and_those_the_controller_does_not_know_are_not() -> None:
    queue = assignments()
    queue.want(X, A)
    queue.want(Y, A)
    told(queue)
    errors = {X: ErrorCode.UNKNOWN_TOPIC_ID, Y: ErrorCode.UNKNOWN_SERVER_ERROR}
    results = tuple(
        AssignmentResult(directory_id=A, topic_id=key[0], partition=key[1], error=error)
        for key, error in errors.items()
    )
    queue.answered(AssignReplicasToDirsResponse(results=results), 0)
    assert not queue.call.is_ready(0) and queue.call.is_ready(100)
    assert told(queue) == [(Y[0], A)]


def test_a_loss_is_owed_until_it_is_acknowledged_and_a_late_answer_to_another_word_does_not_count() -> None:
    queue = assignments()
    queue.want(X, A)
    request = queue.next_request(1, 5)
    queue.lose(X, 100)
    assert request is not None
    assert queue.answered(accepted(request), 200) == [] and queue.owes_lost(X)  # type: ignore[arg-type]
    assert queue.lost_deadline_ms() == 30_100
    lost = queue.next_request(1, 5)
    assert lost is not None
    assert queue.answered(accepted(lost), 300) == [X]  # type: ignore[arg-type]
    assert not queue.owes_lost(X) and queue.lost_deadline_ms() is None


# ---- directories ---------------------------------------------------------------------------------


def test_a_directory_is_bad_for_good_and_counts_no_more() -> None:
    directories = Directories((found(A), found(B, problem="EIO"), found(None, problem="unreadable")))
    assert (directories.good_ids(), directories.bad_ids(), directories.any_bad) == ((A,), (B,), True)
    assert directories.fail(A, "EIO") and not directories.fail(A, "again") and not directories.fail(C, "?")
    assert not directories.good_ids() and directories.choose() is None
    assert [each.problem for each in directories.bad()] == ["EIO", "EIO", "unreadable"]


def test_a_directory_without_an_id_is_bad() -> None:
    directories = Directories((found(None),))
    assert directories.bad() == directories.all and not directories.good_ids()
