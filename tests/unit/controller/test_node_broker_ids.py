"""Broker ids on a quorum of three: hand-outs, registrations, failovers, collections (S0)."""

from __future__ import annotations

import random

import pytest

from metaquorum.controller.active.state import CLAIM_MS
from metaquorum.metadata import broker_ids as ids
from metaquorum.metadata.broker_ids import IdSource
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records.types import BrokerRecord, ConfigRecord, FeatureLevelRecord
from metaquorum.metadata.requests.common import (
    AllocateBrokerIdRequest,
    AllocateBrokerIdResponse,
    BindBrokerIdRequest,
    Done,
    RegisterBrokerResponse,
)
from tests.unit.controller.node_quorum import CLUSTER, Quorum

SESSION_MS = 9_000


def quorum(seed: int = 1, **config: object) -> Quorum:
    fields: dict[str, object] = {
        "cluster_id": CLUSTER,
        "node_id": 0,
        "bootstrap": (FeatureLevelRecord(name="metadata.version", feature_level=19),),
        "broker_session_timeout_ms": SESSION_MS,
        **config,
    }
    made = Quorum(seed=seed, config=ControllerConfig(**fields))
    made.elect()
    return made


def request(start: int, key: str | None = "host-a", **changes: object) -> AllocateBrokerIdRequest:
    fields: dict[str, object] = {
        "request_id": b"start" + start.to_bytes(11, "big"),
        "binding_key": key,
        **changes,
    }
    return AllocateBrokerIdRequest(**fields)


def ask(q: Quorum, start: int, key: str | None = "host-a", **changes: object) -> AllocateBrokerIdResponse:
    answer = q.call(request(start, key, **changes))
    assert isinstance(answer, AllocateBrokerIdResponse), answer
    return answer


def settle_id(q: Quorum, start: int, key: str | None = "host-a", *others: int, **changes: object) -> int:
    """Asks until there is an id, as a broker does, while other brokers send heartbeats."""
    for _ in range(400):
        answer = ask(q, start, key, **changes)
        if answer.broker_id is not None:
            return answer.broker_id
        assert answer.retry_after_ms > 0 and answer.waiting_for
        q.advance(answer.retry_after_ms)
        if q.now_ms % 1_000 < 250:
            for broker_id in others:
                q.heartbeat(broker_id)
    raise AssertionError("no id was settled")


def ask_for_missing(
    q: Quorum, start: int, *others: int, key: str | None = None
) -> AllocateBrokerIdResponse | ApiError:
    """Asks for a missing id until the answer is final, as a broker does, while others send heartbeats."""
    for _ in range(400):
        answer = q.call(request(start, key, reuse_missing=True))
        if isinstance(answer, ApiError):
            return answer
        assert isinstance(answer, AllocateBrokerIdResponse), answer
        if answer.broker_id is not None:
            return answer
        q.advance(answer.retry_after_ms)
        for broker_id in others:
            q.heartbeat(broker_id)
    raise AssertionError(f"no answer is final: {answer}")


def taken(q: Quorum, start: int, *others: int, key: str | None = None) -> tuple[int | None, IdSource | None]:
    answer = ask_for_missing(q, start, *others, key=key)
    assert isinstance(answer, AllocateBrokerIdResponse), answer
    return answer.broker_id, answer.source


def come_up(q: Quorum, broker_id: int, incarnation: int, key: str | None = "host-a") -> None:
    answer = q.register(broker_id, incarnation, binding_key=key)
    assert isinstance(answer, RegisterBrokerResponse), answer
    q.heartbeat(broker_id)
    assert not q.image().brokers[broker_id].fenced


def fail_over(q: Quorum) -> None:
    """The active controller dies, another takes over, and the first comes back."""
    dead = q.leader
    dead.kill()
    q.elect()
    dead.boot()
    q.advance(1_000)


def bound(q: Quorum) -> dict[str, int | None]:
    return {each.key: each.broker_id for each in ids.bindings(ids.remembered(q.image()))}


def test_s0_13_the_binding_is_in_the_registrations_own_batch_and_not_before() -> None:
    q = quorum()
    start = q.leader.end_offset
    broker_id = settle_id(q, 1)
    assert broker_id == 1001 and bound(q) == {}
    come_up(q, broker_id, 1)
    batches = q.batches(start)
    assert [type(record) for record in batches[0]] == [ConfigRecord, ConfigRecord]
    assert isinstance(batches[1][0], BrokerRecord)
    assert batches[1][1:] == [
        ids.claim_record(1001, None),
        ids.binding_record("host-a", 1001),
        ids.current_key_record(1001, "host-a"),
    ]
    assert bound(q) == {"host-a": 1001}


def test_s0_13_a_refused_registration_binds_nothing() -> None:
    q = quorum()
    come_up(q, 7, 1, key="host-a")
    refused = q.register(7, 2, binding_key="host-b")
    assert isinstance(refused, ApiError)
    assert refused.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert bound(q) == {"host-a": 7}


def test_s0_3_a_registration_with_an_id_of_its_own_ignores_the_binding() -> None:
    q = quorum()
    come_up(q, 7, 1, key="host-a")
    q.advance(2 * SESSION_MS)
    come_up(q, 8, 2, key="host-a")
    assert bound(q) == {"host-a": 8}
    assert set(q.image().brokers) == {7, 8}


def test_s0_5_a_lost_disk_gets_its_id_back_after_the_session() -> None:
    q = quorum()
    come_up(q, settle_id(q, 1), 1)
    q.advance(2 * SESSION_MS)
    assert ask(q, 2) == AllocateBrokerIdResponse(cluster_id=CLUSTER, broker_id=1001, source=IdSource.BINDING)


def test_s0_6_a_host_that_was_killed_and_comes_back_at_once_waits_and_keeps_its_id() -> None:
    q = quorum()
    come_up(q, settle_id(q, 1), 1)
    first = ask(q, 2)
    assert first.broker_id is None and "its last process may still be alive" in first.waiting_for
    asked_ms = q.now_ms
    assert settle_id(q, 2) == 1001
    assert q.now_ms - asked_ms <= SESSION_MS + 250


def test_s0_6_s0_23_a_second_broker_of_the_host_falls_through_after_one_heartbeat() -> None:
    q = quorum()
    come_up(q, settle_id(q, 1), 1)
    assert ask(q, 2).broker_id is None
    q.advance(500)
    q.heartbeat(1001)
    answer = ask(q, 2)
    assert (answer.broker_id, answer.source) == (1002, IdSource.NEW)
    come_up(q, 1002, 2)
    assert bound(q) == {"host-a": 1001}, "the live broker keeps the key"
    assert q.image().brokers[1001].epoch < q.image().brokers[1002].epoch


def test_s0_6_a_heartbeat_before_the_refusal_does_not_count() -> None:
    q = quorum()
    come_up(q, settle_id(q, 1), 1)
    q.advance(1_000)
    q.heartbeat(1001)
    q.advance(10)
    assert ask(q, 2).broker_id is None
    assert ask(q, 2).broker_id is None
    assert settle_id(q, 2) == 1001


def test_s0_6_after_a_failover_a_silent_fenced_broker_has_a_session_to_be_heard() -> None:
    """The new leader has no session of a broker that was fenced when it took over: it may be starting."""
    q = quorum()
    come_up(q, settle_id(q, 1), 1)
    q.heartbeat(1001, want_fence=True)
    assert q.image().brokers[1001].fenced
    q.leader.kill()
    q.elect()
    assert ask(q, 2).broker_id is None
    q.heartbeat(1001)
    q.advance(300)
    q.heartbeat(1001)
    assert ask(q, 2).source is IdSource.NEW


def test_s0_6_the_wait_goes_on_after_a_failover() -> None:
    q = quorum()
    come_up(q, settle_id(q, 1), 1)
    assert ask(q, 2).broker_id is None
    q.leader.kill()
    q.elect()
    assert settle_id(q, 2) == 1001


@pytest.mark.parametrize("failover", [False, True])
def test_s0_21_starts_at_once_get_different_ids(failover: bool) -> None:
    """The swap is a known limit; that nobody shares an id is not."""
    q = quorum()
    keys = [q.request(request(start, key=f"host-{start}")) for start in range(8)]
    if failover:
        for _ in range(7):
            q.leader.step()
        q.settle()
        q.leader.kill()
        q.elect()
        got = [settle_id(q, start, f"host-{start}") for start in range(8)]
    else:
        leader = q.leader
        q.settle()
        got = [leader.answers[key].broker_id for key in keys]
    assert sorted(set(got)) == sorted(got) and min(got) > 1000
    assert [settle_id(q, start, f"host-{start}") for start in range(8)] == got, "repeats change nothing"


def test_s0_10_a_repeated_request_gets_the_same_id_from_the_next_leader() -> None:
    q = quorum()
    first = ask(q, 1).broker_id
    q.leader.kill()
    q.elect()
    assert ask(q, 1).broker_id == first
    assert ask(q, 2, key="host-b").broker_id == 1002


def test_s0_10_an_uncommitted_id_is_not_answered() -> None:
    q = quorum()
    leader = q.leader
    for follower in q.followers:
        q.disconnect(follower.node_id)
    key = q.request(request(1), leader)
    leader.step()
    again = q.request(request(1), leader)
    leader.step()
    assert key not in leader.answers and again not in leader.answers
    for follower in q.machines.values():
        q.reconnect(follower.node_id)
    q.advance(50)
    q.settle()


def test_s0_11_losing_meta_properties_on_known_hosts_never_grows_the_id_set() -> None:
    """Hosts lose their disks again and again, controllers fail over between: every host keeps its id."""
    for seed in range(3):
        rng = random.Random(seed)
        q = quorum(seed=seed + 1)
        hosts = {f"host-{number}": 0 for number in range(3)}
        incarnation = 0
        for start, host in enumerate(hosts):
            hosts[host] = settle_id(q, start, host)
            incarnation += 1
            come_up(q, hosts[host], incarnation, host)
        known = set(q.image().brokers)
        for start in range(100, 108):
            host = rng.choice(list(hosts))
            alive = [broker_id for name, broker_id in hosts.items() if name != host]
            if rng.random() < 0.3:
                fail_over(q)
                for broker_id in alive:
                    q.heartbeat(broker_id)
            if rng.random() < 0.5:
                q.beat_for(10_000, *alive)
            assert settle_id(q, start, host, *alive) == hosts[host], (seed, start)
            incarnation += 1
            come_up(q, hosts[host], incarnation, host)
            assert set(q.image().brokers) == known
        assert ids.claims(ids.remembered(q.image())) == {}


# ---- missing ids ---------------------------------------------------------------------------------


def with_a_missing_id(**config: object) -> Quorum:
    q = quorum(broker_id_reuse_grace_ms=60_000, **config)
    for broker_id in (11, 12):
        q.start_broker(broker_id, broker_id)
    q.create("orders", (11, 12))
    return q


def test_s0_22_a_restarting_brokers_id_is_not_stolen_within_the_grace_period() -> None:
    q = with_a_missing_id()
    q.beat_for(30_000, 11)
    assert q.image().brokers[12].fenced
    assert taken(q, 9, 11)[1] is IdSource.NEW


def test_s0_8_s0_22_after_the_grace_period_the_only_missing_id_is_taken() -> None:
    q = with_a_missing_id()
    q.beat_for(80_000, 11)
    assert taken(q, 9, 11) == (12, IdSource.MISSING)
    assert taken(q, 20, 11)[1] is IdSource.NEW, "it is claimed"
    assert ask(q, 21, key=None).source is IdSource.NEW, "S0.12: off by default"


def test_s0_22_the_grace_period_begins_anew_with_each_sign_of_life() -> None:
    q = with_a_missing_id()
    q.beat_for(50_000, 11)
    q.register(12, 5)
    q.heartbeat(12, applied_offset=0)
    assert q.image().brokers[12].fenced
    q.beat_for(50_000, 11)
    assert taken(q, 9, 11)[1] is IdSource.NEW


def test_s0_22_the_grace_period_begins_anew_with_a_failover() -> None:
    q = with_a_missing_id()
    q.beat_for(80_000, 11)
    q.leader.kill()
    q.elect()
    q.heartbeat(11)
    q.beat_for(30_000, 11)  # longer than a session: only the grace period still holds
    assert taken(q, 9, 11)[1] is IdSource.NEW
    q.beat_for(40_000, 11)
    assert taken(q, 10, 11) == (12, IdSource.MISSING)


def test_s0_9_all_brokers_gone_is_an_error_that_names_them() -> None:
    q = with_a_missing_id()
    q.advance(80_000)
    refused = q.call(request(9, key=None, reuse_missing=True))
    assert isinstance(refused, ApiError) and "(11, 12)" in refused.message


def test_a_broker_that_restarts_at_once_without_its_disks_waits_for_its_own_session_and_gets_its_id() -> None:
    q = with_a_missing_id()
    first = ask(q, 9, key=None, reuse_missing=True)
    assert first.broker_id is None and "11, 12" in first.waiting_for
    assert taken(q, 9, 11) == (12, IdSource.MISSING)
    assert q.image().brokers[12].fenced and not q.image().brokers[11].fenced


def test_two_brokers_that_lost_their_disks_and_restart_at_once_are_told_to_choose() -> None:
    q = with_a_missing_id()
    q.advance(3_000)
    q.heartbeat(12)  # the sessions do not end together
    for start in (31, 32):
        refused = ask_for_missing(q, start)
        assert isinstance(refused, ApiError) and "(11, 12)" in refused.message, refused
    again = ask_for_missing(q, 33)
    assert isinstance(again, ApiError), "a start that is repeated makes no new broker of a lost one"


def test_who_sends_a_heartbeat_while_a_newcomer_waits_is_another_process_and_keeps_the_grace_period() -> None:
    """12 is alive when the newcomer asks, and dies while the newcomer still waits for 11."""
    q = with_a_missing_id()
    assert ask(q, 9, key=None, reuse_missing=True).broker_id is None
    q.advance(100)
    q.heartbeat(12)
    assert taken(q, 9) == (11, IdSource.MISSING)


def test_a_failover_while_a_newcomer_waits_starts_the_wait_over() -> None:
    q = with_a_missing_id()
    assert ask(q, 9, key=None, reuse_missing=True).broker_id is None
    q.advance(1_000)
    q.heartbeat(11)
    q.leader.kill()
    q.elect()
    assert taken(q, 9, 11) == (12, IdSource.MISSING)


def test_a_broker_that_was_lost_before_the_newcomer_asked_keeps_the_grace_period_after_a_failover() -> None:
    q = with_a_missing_id()
    q.beat_for(20_000, 11)
    q.leader.kill()
    q.elect()
    q.heartbeat(11)
    assert taken(q, 9, 11)[1] is IdSource.NEW


# ---- known limits --------------------------------------------------------------------------------


def test_s0_20_a_changed_host_name_is_a_new_id_unless_it_is_bound_by_hand() -> None:
    q = quorum()
    come_up(q, settle_id(q, 1, "old-name"), 1, "old-name")
    q.advance(2 * SESSION_MS)
    assert settle_id(q, 2, "new-name") == 1002
    assert isinstance(q.call(BindBrokerIdRequest(key="newest-name", broker_id=1001)), Done)
    assert settle_id(q, 3, "newest-name") == 1001


def test_s0_24_brokers_with_and_without_the_feature_at_an_old_level() -> None:
    """Level 7 (3.3-IV3) knows no directories, and the records of this feature all the same."""
    q = quorum(bootstrap=(FeatureLevelRecord(name="metadata.version", feature_level=7),))
    q.start_broker(5)
    come_up(q, settle_id(q, 1), 2)
    assert set(q.image().brokers) == {5, 1001} and bound(q) == {"host-a": 1001}
    assert all(machine.stopped is None for machine in q.machines.values())


# ---- collection ----------------------------------------------------------------------------------


def test_s0_18_garbage_is_collected_periodically() -> None:
    q = quorum(broker_id_gc_interval_ms=5_000)
    come_up(q, 7, 1, "old")
    q.heartbeat(7, want_shutdown=True)
    q.advance(SESSION_MS)
    come_up(q, 7, 2, "new")
    assert bound(q) == {"new": 7, "old": 7}
    q.beat_for(7_000, 7)
    assert bound(q) == {"new": 7}
    end = q.leader.end_offset
    q.beat_for(20_000, 7)
    assert q.records(end) == [], "nothing is written when there is nothing to collect"


def test_s0_18_an_interval_of_0_switches_collection_off() -> None:
    q = quorum(broker_id_gc_interval_ms=0)
    come_up(q, 7, 1, "new")
    q.call(BindBrokerIdRequest(key="old", broker_id=8))
    q.beat_for(70_000, 7)
    assert bound(q) == {"new": 7, "old": 8}


def test_s0_19_a_host_that_moves_while_garbage_is_collected_keeps_its_id() -> None:
    """Bind by hand, collections and the move in every order that a seed draws."""
    for seed in range(8):
        rng = random.Random(seed)
        q = quorum(seed=seed + 1, broker_id_gc_interval_ms=500)
        come_up(q, 7, 1, "old")
        steps = ["bind", "stop"] if rng.random() < 0.5 else ["stop", "bind"]
        for step in steps:
            q.advance(rng.choice((0, 400, 1_200)))
            if step == "bind":
                assert isinstance(q.call(BindBrokerIdRequest(key="new", broker_id=7)), Done)
                q.heartbeat(7)
            else:
                q.heartbeat(7, want_shutdown=True)
                q.advance(rng.choice((0, 2 * SESSION_MS)))
            if rng.random() < 0.3:
                fail_over(q)
        q.advance(rng.choice((0, 1_000)))
        assert settle_id(q, 1, "new") == 7, seed
        q.advance(rng.choice((0, 1_000)))
        come_up(q, 7, 2, "new")
        q.beat_for(3_000, 7)
        assert bound(q) == {"new": 7}, seed


def test_a_start_that_dies_before_it_registers_delays_the_next_one_and_costs_no_id() -> None:
    q = quorum(broker_id_gc_interval_ms=5_000)
    come_up(q, settle_id(q, 1), 1)
    q.advance(2 * SESSION_MS)
    assert ask(q, 2).broker_id == 1001
    waits = ask(q, 3)
    assert waits.broker_id is None and "given to another process" in waits.waiting_for
    asked_ms = q.now_ms
    assert settle_id(q, 3) == 1001
    assert CLAIM_MS - 1 <= q.now_ms - asked_ms <= CLAIM_MS + 500


def test_a_claim_that_lapsed_is_forgotten_and_its_id_is_not_given_again() -> None:
    q = quorum(broker_id_gc_interval_ms=5_000)
    assert ask(q, 1).broker_id == 1001
    q.advance(CLAIM_MS + 10_000)
    assert ids.claims(ids.remembered(q.image())) == {}
    assert ask(q, 2).broker_id == 1002


# ---- known limits of taking missing ids ----------------------------------------------------------


def test_s0_21_two_renamed_hosts_at_once_are_told_to_choose_and_never_share_an_id() -> None:
    """With two ids missing nobody is given one; once one is settled by hand the other start takes the rest,
    whichever of the two machines it is: that is the swap."""
    q = with_a_missing_id()
    q.start_broker(13, 13)
    q.beat_for(80_000, 13)
    for start in (31, 32):
        refused = ask_for_missing(q, start, 13, key=f"renamed-{start}")
        assert isinstance(refused, ApiError) and "(11, 12)" in refused.message
    come_up(q, 12, 3, key="renamed-31")
    assert taken(q, 32, 12, 13, key="renamed-32") == (11, IdSource.MISSING)


def test_s0_22_whose_id_was_taken_after_the_grace_period_is_refused_and_takes_no_other() -> None:
    q = with_a_missing_id()
    q.beat_for(80_000, 11)
    assert taken(q, 9, 11) == (12, IdSource.MISSING)
    come_up(q, 12, 9, key=None)
    late = q.register(12, 2)
    assert isinstance(late, ApiError) and late.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert "broker id 12 belongs to another live process" in late.message
    assert set(q.image().brokers) == {11, 12}
