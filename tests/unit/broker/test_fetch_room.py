"""What is read for clients' fetches while their answers are not taken: less, then nothing, never too much."""

from __future__ import annotations

import pytest

from metaquorum.broker.replica.disk_work import ReadPartition
from metaquorum.broker.replica.events import DataRequestCancelled, DataRespond
from tests.unit.broker.manager_world import Host, answer_to, key_of, of_kind, only
from tests.unit.broker.replica_world import batch
from tests.unit.broker.test_manager_requests import at, fetch, leading, produce

ONE = len(batch(b"v"))


def filled(*, tail_bytes: int = 0, **more: object) -> Host:
    """Three partitions with a batch each."""
    names = ("x", "y", "z")
    _, host = leading(*names, log_tail_cache_max_bytes=tail_bytes, **more)
    host.ask(produce(*map(key_of, names), acks=1))
    host.work()
    return host


EVERY = tuple(at(key_of(name), 0) for name in ("x", "y", "z"))


@pytest.mark.parametrize("tail_bytes", [0, 1 << 20], ids=["from disk", "from memory"])
@pytest.mark.parametrize(("left", "given"), [(10**9, 3), (2 * ONE, 2), (ONE, 1), (1, 1), (0, 0), (-5, 0)])
def test_a_client_gets_what_is_left_at_least_one_batch_if_anything_is(
    left: int, given: int, tail_bytes: int
) -> None:
    host = filled(tail_bytes=tail_bytes)
    host.manager.room.left = lambda: left
    effects = host.ask(fetch(*EVERY))
    parts = answer_to([*effects, *host.work()]).partitions
    assert [bool(part.records) for part in parts] == [place < given for place in range(3)]
    assert all(part.error == 0 for part in parts)


def test_what_is_being_read_for_others_counts_until_they_are_answered_or_gone() -> None:
    host = filled()
    host.manager.room.left = lambda: 2 * ONE
    assert len(of_kind(host.ask(fetch(*EVERY[:2]), "a"), ReadPartition)) == 2
    assert of_kind(effects := host.ask(fetch(*EVERY), "b"), ReadPartition) == []
    assert [bool(part.records) for part in answer_to(effects, "b").partitions] == [False] * 3
    host.do(DataRequestCancelled(key="a"))
    assert len(of_kind(host.ask(fetch(*EVERY), "c"), ReadPartition)) == 2
    assert len(answer_to(host.work(), "c").partitions) == 3
    assert len(of_kind(host.ask(fetch(*EVERY), "d"), ReadPartition)) == 2


def test_a_client_that_got_nothing_is_given_it_by_the_next_fetch_of_its_session() -> None:
    host = filled()
    host.manager.room.left = lambda: 0
    session_id = answer_to(host.ask(fetch(*EVERY, session=(0, 0)), "a"), "a").session_id
    host.manager.room.left = lambda: 10**9
    host.ask(fetch(session=(session_id, 1)), "b")
    assert [bool(part.records) for part in answer_to(host.work(), "b").partitions] == [True] * 3


def test_followers_are_not_bounded_by_what_clients_do_not_take() -> None:
    host = filled(replicas=(1, 2))
    host.manager.room.left = lambda: 0
    host.ask(fetch(at(key_of("x"), 0, epoch=0), follower=2), "f")
    (respond,) = of_kind(host.work(), DataRespond)
    assert respond.response.partitions[0].records
    assert only([respond], DataRespond).key == "f"
