"""A fetch of more partitions than are looked at in one step: others are served between, nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest

from metaquorum.broker.replica.events import (
    DataEffect,
    DataEvent,
    DataRequestArrived,
    DataRequestCancelled,
    DataRespond,
)
from metaquorum.broker.replica.requests import fetches
from metaquorum.metadata.requests.data import (
    ACKS_ALL,
    TO_HIGH_WATERMARK,
    DeletedRecords,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ProducePartition,
    ProduceRequest,
)
from metaquorum.storage.batches.batch import Batches
from tests.unit.broker.manager_world import A, Cluster, Host, answer_to, of_kind
from tests.unit.broker.replica_world import WALL_MS, batch

AT_ONCE = 5
COUNT = 3 * AT_ONCE + 1


@pytest.fixture(name="site")
def fixture_site(monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(fetches, "AT_ONCE_MAX", AT_ONCE)
    return Site()


class Site:
    """Broker 1 leads COUNT partitions, which are empty."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.host = Host(self.cluster)
        self.host.start()
        self.topic, _ = self.cluster.topic("x", place=A, partitions=COUNT, replicas=(1,))
        self.host.publish()
        self.host.work()
        assert len(self.host.manager.partitions) == COUNT

    def fetch(self, *indexes: int, **fields: Any) -> FetchRequest:
        """Of these partitions; of all if none is named."""
        parts = tuple(
            FetchPartition(
                key=(self.topic, index),
                fetch_offset=0,
                max_bytes=1_000,
                current_leader_epoch=-1,
                last_fetched_epoch=-1,
                log_start_offset=-1,
            )
            for index in indexes or range(COUNT)
        )
        values: dict[str, Any] = {
            "replica_id": -1,
            "replica_epoch": -1,
            "max_wait_ms": 500,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "session_id": 0,
            "session_epoch": 0,
            "partitions": parts,
        }
        return FetchRequest(**(values | fields))

    def write(self, *indexes: int) -> list[DataEffect]:
        parts = tuple(
            ProducePartition(key=(self.topic, index), batch=Batches.arrived(batch(b"v"))) for index in indexes
        )
        effects = self.host.ask(
            ProduceRequest(acks=ACKS_ALL, timeout_ms=100, partitions=parts), f"write {indexes}"
        )
        return effects + self.host.work()

    def steps(self, effects: list[DataEffect], key: str = "k") -> tuple[int, FetchResponse]:
        """How many ticks without any time it takes until the fetch is answered, and the answer."""
        for count in range(100):
            effects = [*effects, *self.host.work()]
            if any(each.key == key for each in of_kind(effects, DataRespond)):
                return count, answer_to(effects, key)
            assert self.host.manager.next_deadline_ms() == self.host.now_ms, "it is due at once"
            effects = [*effects, *self.host.tick()]
        raise AssertionError("no answer")


def found(answer: FetchResponse) -> list[int]:
    """The partitions with records."""
    return sorted(part.key[1] for part in answer.partitions if part.records)


def test_it_takes_several_steps_to_look_and_to_answer(site: Site) -> None:
    site.write(*range(COUNT))
    effects = site.host.ask(site.fetch(max_wait_ms=0))
    assert not of_kind(effects, DataRespond)
    count, answer = site.steps(effects)
    assert count >= 2 * (COUNT // AT_ONCE)
    assert found(answer) == list(range(COUNT))


def test_a_fetch_of_few_is_answered_in_its_own_step(site: Site) -> None:
    site.write(*range(COUNT))
    effects = site.host.ask(site.fetch(*range(AT_ONCE)))
    assert found(answer_to(effects + site.host.work())) == list(range(AT_ONCE))


def test_others_are_answered_meanwhile(site: Site) -> None:
    site.write(1)
    site.host.ask(site.fetch(), "long")
    effects = site.host.ask(site.fetch(1), "short") + site.host.work()
    assert found(answer_to(effects, "short")) == [1]
    assert not any(each.key == "long" for each in of_kind(effects, DataRespond))


def test_it_waits_for_records_and_then_has_those_that_came(site: Site) -> None:
    effects = site.host.ask(site.fetch())
    for _ in range(10):
        effects += site.host.tick()
    assert not of_kind(effects, DataRespond)
    assert site.host.manager.next_deadline_ms() != site.host.now_ms, "it waits, and costs nothing"
    _, answer = site.steps(site.write(COUNT - 1, 2))
    assert found(answer) and set(found(answer)) <= {2, COUNT - 1}


def test_at_its_deadline_it_is_answered_without_records(site: Site) -> None:
    effects = site.host.ask(site.fetch())
    for _ in range(5):
        effects += site.host.tick()
    _, answer = site.steps(site.host.tick(after_ms=500))
    assert len(answer.partitions) == COUNT and found(answer) == []


def test_what_comes_while_it_is_looked_at_is_in_the_answer_or_in_the_next(site: Site) -> None:
    site.write(0)
    site.host.ask(site.fetch(), "long")
    effects = site.write(COUNT - 1, 1)
    _, answer = site.steps(effects, "long")
    seen = found(answer)
    following = site.fetch(session_id=answer.session_id, session_epoch=1, partitions=())
    effects = site.host.ask(following, "next")
    effects += site.host.work()
    for _ in range(10):
        effects += site.host.tick() + site.host.work()
    seen += [each for each in found(answer_to(effects, "next")) if each not in seen]
    assert sorted(seen) == [0, 1, COUNT - 1]


@pytest.mark.parametrize("ticks", range(9))
def test_a_session_loses_nothing_if_its_fetch_is_given_up_at_any_step(site: Site, ticks: int) -> None:
    _, answer = site.steps(site.host.ask(site.fetch(max_wait_ms=0)))
    site.write(*range(COUNT))
    given_up = site.fetch(session_id=answer.session_id, session_epoch=1, partitions=(), max_wait_ms=0)
    effects = site.host.ask(given_up, "given up")
    for _ in range(ticks):
        effects += site.host.work() + site.host.tick()
    site.host.do(DataRequestCancelled(key="given up"))
    told = [each for each in of_kind(effects, DataRespond) if each.key == "given up"]
    again = site.fetch(session_id=answer.session_id, session_epoch=2, partitions=())
    _, rest = site.steps(site.host.ask(again, "again"), "again")
    assert found(rest) == list(range(COUNT)), "as long as the fetcher does not name another position"
    assert len(told) <= 1


def test_a_follower_that_is_throttled_waits_and_does_not_keep_the_broker_busy(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = site.host.manager._fetches
    monkeypatch.setattr(held.throttle, "topics", {"x": None})
    monkeypatch.setattr(held, "_is_held", lambda session, key, now_ms: True)
    site.cluster.change((site.topic, 0), replicas=(1, 2))
    site.host.publish()
    site.host.work()
    site.write(*range(COUNT))
    effects = site.host.ask(site.fetch(replica_id=2, replica_epoch=102))
    for _ in range(20):
        effects += site.host.tick() + site.host.work()
    assert site.host.manager.next_deadline_ms() != site.host.now_ms
    monkeypatch.setattr(held, "_is_held", lambda session, key, now_ms: False)
    effects += site.host.tick(after_ms=500)
    _, answer = site.steps(effects)
    assert len(answer.partitions) == COUNT


# A follower that asks for a partition in the very moment in which this broker begins to lead it.


FOLLOWER = 2


def test_a_fetch_that_finds_the_log_opened_meanwhile_counts() -> None:
    """The leader hears where the follower's log starts: a partition that is quiet is not named again."""
    cluster = Cluster()
    host = Host(cluster)
    host.start()
    host.publish()
    key = cluster.topic("x", place=A, replicas=(1, FOLLOWER))
    host.publish()
    position = FetchPartition(
        key=key,
        fetch_offset=0,
        max_bytes=1,
        current_leader_epoch=0,
        last_fetched_epoch=-1,
        log_start_offset=0,
    )
    request = FetchRequest(
        replica_id=FOLLOWER,
        replica_epoch=100 + FOLLOWER,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1,
        session_id=0,
        session_epoch=0,
        partitions=(position,),
    )
    events: list[DataEvent] = [DataRequestArrived(key="fetch", request=request)]
    while host.queue:
        events += host._carry_out(host.queue.popleft())
    for event in events:
        host.manager.gather(event, serving=True, now_ms=host.now_ms, wall_ms=WALL_MS)
    effects = host.manager.settle(now_ms=host.now_ms, wall_ms=WALL_MS)
    assert of_kind(effects, DataRespond) == [], "it waits for records"

    part = DeleteRecordsPartition(key=key, offset=TO_HIGH_WATERMARK)
    answer = answer_to(host.ask(DeleteRecordsRequest(partitions=(part,), timeout_ms=3_000)))
    assert answer.results == (DeletedRecords(key=key, low_watermark=0),)
