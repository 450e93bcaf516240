"""Who a newcomer is, as exact lists of records (S0.5-S0.19)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest

from metaquorum.controller.active.state import BrokerIdPresence
from metaquorum.controller.brokers.broker_ids import (
    COLLECTED_MAX,
    collect,
    decide_allocation,
    decide_bind,
    decide_unbind,
    garbage_bindings,
    missing_ids,
    remember_registration,
)
from metaquorum.controller.brokers.sessions import Sessions
from metaquorum.controller.result import ControllerResult
from metaquorum.metadata import broker_ids as ids
from metaquorum.metadata.broker_ids import IdSource
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records.types import BrokerRecord, ConfigRecord, PartitionRecord, TopicRecord
from metaquorum.metadata.replay import ReplayState, replay_records
from metaquorum.metadata.requests.common import (
    AllocateBrokerIdRequest,
    AllocateBrokerIdResponse,
    BindBrokerIdRequest,
    Done,
    UnbindBrokerIdRequest,
)
from tests.unit.controller.node_quorum import CLUSTER, image_of, registration

CONFIG = ControllerConfig(cluster_id=CLUSTER, node_id=3000)
REQUEST = b"a request id 001"
ANOTHER = b"a request id 002"
TOPIC = b"topic-id-0000001"


@dataclass
class Here:
    """What the active controller is said to know."""

    leases: dict[int, int] = field(default_factory=dict)
    heard: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    claims: dict[int, int] = field(default_factory=dict)
    absent: dict[int, int] = field(default_factory=dict)
    voters: frozenset[int] = frozenset({3000, 3001, 3002})

    def lease_ms(self, broker_id: int) -> int:
        return self.leases.get(broker_id, 0)

    def heard_since_asked(self, broker_id: int) -> bool:
        return broker_id in self.heard

    def ended_since_asked(self, broker_id: int) -> bool:
        return broker_id in self.ended

    def claim_ms(self, broker_id: int) -> int:
        return self.claims.get(broker_id, 0)

    def absent_ms(self, broker_id: int) -> int:
        return self.absent.get(broker_id, 10**9)


def registered(broker_id: int, *, fenced: bool = False) -> BrokerRecord:
    request = registration(broker_id)
    return BrokerRecord(
        broker_id=broker_id,
        incarnation_id=request.incarnation_id,
        broker_epoch=5,
        end_points=request.endpoints,
        features=request.features,
        fenced=fenced,
        log_dirs=request.directories,
    )


def replicas_on(*broker_ids: int) -> list[object]:
    partition = PartitionRecord(
        partition_id=0,
        topic_id=TOPIC,
        replicas=broker_ids,
        isr=broker_ids,
        leader=broker_ids[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=(b"\0" * 15 + b"\1",) * len(broker_ids),
    )
    return [TopicRecord(name="t", topic_id=TOPIC), partition]


def ask(
    image: MetadataImage, here: Here | None = None, *, key: str | None = "host-a", **changes: object
) -> ControllerResult:
    fields: dict[str, object] = {"request_id": REQUEST, "binding_key": key, **changes}
    return decide_allocation(image, AllocateBrokerIdRequest(**fields), CONFIG, here or Here())


def granted(broker_id: int, source: IdSource) -> AllocateBrokerIdResponse:
    return AllocateBrokerIdResponse(cluster_id=CLUSTER, broker_id=broker_id, source=source)


def config(name: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(resource_type=4, resource_name="", name=name, value=value)


def claimed(broker_id: int, source: str, request: str = "YSByZXF1ZXN0IGlkIDAwMQ") -> ConfigRecord:
    value = f'{{"version":0,"request":"{request}","source":"{source}"}}'
    return config(f"broker.id.claim.{broker_id}", value)


def remembered(key: str, broker_id: int, *, current: bool = True) -> list[object]:
    records: list[object] = [ids.binding_record(key, broker_id)]
    return [*records, ids.current_key_record(broker_id, key)] if current else records


# ---- what an entry looks like --------------------------------------------------------------------


def test_s0_14_the_value_is_versioned() -> None:
    assert ids.binding_record("host-a", 10) == config(
        "broker.id.binding.host-a", '{"version":0,"broker.id":10}'
    )
    assert ids.binding_record("host-a", None) == config("broker.id.binding.host-a", None)


@pytest.mark.parametrize(
    ("value", "broker_id", "version"),
    [
        ('{"version":0,"broker.id":10}', 10, 0),
        ('{"version":7,"broker.id":10,"rack":"r1","more":[1]}', 10, 7),
        ('{"version":2,"broker":{"id":10}}', None, 2),
        ('{"version":0,"broker.id":-1}', None, 0),
        ('{"version":0,"broker.id":true}', None, 0),
        ('{"version":0,"broker.id":"10"}', None, 0),
        ("10", None, None),
        ("", None, None),
        ("[" * 5000, None, None),
        ("\ud800", None, None),
    ],
)
def test_s0_14_a_reader_takes_any_version(value: str, broker_id: int | None, version: int | None) -> None:
    entries = {"broker.id.binding.h": value, "log.retention.ms": "1"}
    binding = ids.Binding(key="h", broker_id=broker_id, version=version)
    assert ids.binding_of(entries, "h") == binding
    assert ids.bindings(entries) == [binding]


@pytest.mark.parametrize(
    "key", ["host", "10.0.0.1", "a b/c=d", "grün:9092", "key", "%6Bey", "%", "next", "~"]
)
def test_s0_25_any_text_is_a_key_and_comes_back(key: str) -> None:
    escaped = ids.escape_key(key)
    assert ids.unescape_key(escaped) == key
    assert escaped.isascii() and not set(escaped) & set(" /=:\n")
    assert f"broker.id.binding.{escaped}" != "broker.id.binding.key"
    assert ids.key_problem(key) is None


def test_s0_25_keys_that_are_none() -> None:
    assert "is empty" in (ids.key_problem(" ") or "")
    assert "at most 255" in (ids.key_problem("x" * 256) or "")
    assert "not UTF-8" in (ids.key_problem("\ud800") or "")


# ---- steps 3 to 5 --------------------------------------------------------------------------------


def test_s0_5_a_known_key_gets_its_id() -> None:
    image = image_of(registered(10, fenced=True), *remembered("host-a", 10))
    result = ask(image)
    assert result == ControllerResult(
        response=granted(10, IdSource.BINDING), records=(claimed(10, "binding"),)
    )


def test_s0_5_the_id_need_not_be_registered_any_more() -> None:
    assert ask(image_of(*remembered("host-a", 10))).response == granted(10, IdSource.BINDING)


def test_s0_6_a_lease_that_still_runs_is_waited_for() -> None:
    image = image_of(registered(10), *remembered("host-a", 10))
    result = ask(image, Here(leases={10: 7_000}))
    assert result.records == () and not result.depends_on_image
    assert isinstance(result.response, AllocateBrokerIdResponse)
    assert result.response.broker_id is None and result.response.retry_after_ms == 250
    assert "id 10 is bound to host-a" in result.response.waiting_for
    assert "7000 ms" in result.response.waiting_for
    soon = ask(image, Here(leases={10: 20})).response
    assert isinstance(soon, AllocateBrokerIdResponse) and soon.retry_after_ms == 20


def test_s0_6_s0_23_an_id_whose_holder_was_heard_of_again_is_in_use() -> None:
    image = image_of(registered(10), *remembered("host-a", 10))
    result = ask(image, Here(leases={10: 7_000}, heard={10}))
    assert result.response == granted(1001, IdSource.NEW)


def test_s0_6_a_holder_that_was_heard_of_and_then_ended_is_none() -> None:
    image = image_of(registered(10, fenced=True), *remembered("host-a", 10))
    assert ask(image, Here(heard={10})).response == granted(10, IdSource.BINDING)


def test_s0_21_an_id_that_was_handed_out_to_another_start_is_waited_for() -> None:
    image = image_of(*remembered("host-a", 10), ids.claim_record(10, ANOTHER, IdSource.BINDING))
    waits = ask(image, Here(claims={10: 4_000})).response
    assert isinstance(waits, AllocateBrokerIdResponse) and waits.broker_id is None
    assert "given to another process" in waits.waiting_for
    lapsed = ask(image, Here(claims={10: 0}))
    assert lapsed.response == granted(10, IdSource.BINDING)
    assert lapsed.records == (claimed(10, "binding"),)


def test_s0_10_nothing_known_is_a_new_id_counted_in_the_same_batch() -> None:
    result = ask(image_of())
    assert result.response == granted(1001, IdSource.NEW)
    assert result.records == (config("broker.id.next", "1002"), claimed(1001, "new"))


def test_s0_10_a_new_id_is_no_id_that_anything_names() -> None:
    image = image_of(
        registered(1001),
        *replicas_on(1002, 1001),
        ids.binding_record("elsewhere", 1003),
        ids.claim_record(1004, ANOTHER),
        config("broker.id.claim.1005", "of a form from the future"),
        config("broker.id.next", "999"),
    )
    result = ask(image, Here(voters=frozenset({1006})), key=None)
    assert result.response == granted(1007, IdSource.NEW)
    assert config("broker.id.next", "1008") in result.records


def test_s0_10_ids_are_never_handed_out_twice_even_if_nobody_registered() -> None:
    image = image_of(config("broker.id.next", "1500"))
    assert ask(image).response == granted(1500, IdSource.NEW)
    end = ask(image_of(config("broker.id.next", str(2**31 - 1)), registered(2**31 - 1)))
    assert isinstance(end.response, ApiError) and end.response.code is ErrorCode.POLICY_VIOLATION


def test_a_request_that_is_repeated_gets_the_same_id() -> None:
    image = image_of(ids.claim_record(1001, REQUEST), *remembered("host-a", 10))
    result = ask(image, Here(claims={1001: 1}))
    assert result == ControllerResult(response=granted(1001, IdSource.NEW))
    assert result.depends_on_image, "it waits for the commit of the claim"


def test_a_binding_that_cannot_be_read_or_names_a_controller_is_not_followed() -> None:
    unreadable = image_of(config("broker.id.binding.host-a", '{"version":3,"id":"ten"}'))
    assert ask(unreadable).response == granted(1001, IdSource.NEW)
    newer = image_of(config("broker.id.binding.host-a", '{"version":3,"broker.id":10,"x":1}'))
    assert ask(newer).response == granted(10, IdSource.BINDING)
    assert ask(image_of(ids.binding_record("host-a", 3000))).response == granted(1001, IdSource.NEW)


@pytest.mark.parametrize(
    ("changes", "code", "part"),
    [
        ({"cluster_id": "another"}, ErrorCode.INCONSISTENT_CLUSTER_ID, "belong to cluster another"),
        ({"request_id": b"short"}, ErrorCode.INVALID_REQUEST, "no request id"),
        ({"request_id": bytes(16)}, ErrorCode.INVALID_REQUEST, "no request id"),
        ({"key": " "}, ErrorCode.INVALID_REQUEST, "binding key is empty"),
    ],
)
def test_requests_that_are_refused(changes: dict[str, object], code: ErrorCode, part: str) -> None:
    result = ask(image_of(), **changes)
    assert isinstance(result.response, ApiError) and result.records == ()
    assert result.response.code is code and part in result.response.message


# ---- missing ids ---------------------------------------------------------------------------------


def test_s0_7_missing_ids_are_named_by_replicas_and_have_no_live_broker() -> None:
    image = image_of(registered(1), registered(2, fenced=True), registered(4), *replicas_on(1, 2, 3))
    assert missing_ids(image) == (2, 3)


def test_s0_8_exactly_one_missing_id_is_taken() -> None:
    image = image_of(registered(1), *replicas_on(1, 3))
    result = ask(image, Here(heard={1}), reuse_missing=True)
    assert result == ControllerResult(response=granted(3, IdSource.MISSING), records=(claimed(3, "missing"),))


def test_s0_9_several_missing_ids_stop_the_start_and_are_listed() -> None:
    result = ask(image_of(*replicas_on(7, 5, 6), registered(6)), Here(heard={6}), reuse_missing=True)
    assert isinstance(result.response, ApiError) and not result.response.retriable
    assert result.response.code is ErrorCode.INVALID_REGISTRATION
    assert "2 ids that no broker has (5, 7)" in result.response.message
    assert "set node.id" in result.response.message and result.records == ()


def test_s0_9_the_other_brokers_coming_back_resolve_it() -> None:
    image = image_of(*replicas_on(7, 5, 6), registered(6), registered(7))
    assert ask(image, Here(heard={6, 7}), reuse_missing=True).response == granted(5, IdSource.MISSING)


def test_s0_10_no_missing_id_is_a_new_one() -> None:
    image = image_of(registered(1), *replicas_on(1))
    assert ask(image, Here(heard={1}), reuse_missing=True).response == granted(1001, IdSource.NEW)


def test_s0_12_without_the_switch_missing_ids_are_left_alone() -> None:
    assert AllocateBrokerIdRequest(request_id=REQUEST).reuse_missing is False
    assert ask(image_of(*replicas_on(3)), reuse_missing=False).response == granted(1001, IdSource.NEW)


@pytest.mark.parametrize(
    "here",
    [
        Here(absent={3: 299_999}),
        Here(leases={3: 1}, heard={3}),
        Here(claims={3: 1}),
        Here(voters=frozenset({3})),
    ],
    ids=["within the grace period", "its process may live", "claimed by another", "a controller's"],
)
def test_s0_22_the_id_of_a_broker_that_merely_restarts_is_not_stolen(here: Here) -> None:
    image = image_of(registered(3, fenced=True), *replicas_on(3))
    assert ask(image, here, reuse_missing=True).response == granted(1001, IdSource.NEW)
    assert ask(image, Here(absent={3: 300_000}), reuse_missing=True).response == granted(3, IdSource.MISSING)


def test_sessions_that_are_open_are_waited_for_before_an_id_counts_as_missing() -> None:
    image = image_of(registered(1), registered(2, fenced=True), *replicas_on(1, 2, 3))
    result = ask(image, Here(leases={1: 7_000, 2: 20}), reuse_missing=True)
    assert result.records == () and not result.depends_on_image
    assert isinstance(result.response, AllocateBrokerIdResponse)
    assert result.response.broker_id is None and result.response.retry_after_ms == 250
    assert "open: 1, 2;" in result.response.waiting_for and "7000 ms" in result.response.waiting_for
    soon = ask(image, Here(leases={2: 20}, heard={1}), reuse_missing=True).response
    assert isinstance(soon, AllocateBrokerIdResponse) and soon.retry_after_ms == 20


def test_a_session_that_has_ended_is_waited_for_until_its_broker_is_fenced() -> None:
    image = image_of(registered(1), *replicas_on(1))
    waits = ask(image, Here(leases={1: 0}), reuse_missing=True).response
    assert isinstance(waits, AllocateBrokerIdResponse)
    assert waits.broker_id is None and waits.retry_after_ms == 250


def test_a_session_that_ended_while_the_newcomer_waited_needs_no_grace_period() -> None:
    image = image_of(registered(3, fenced=True), *replicas_on(3))
    here = Here(absent={3: 0}, ended={3})
    assert ask(image, here, reuse_missing=True).response == granted(3, IdSource.MISSING)


def test_a_line_names_at_most_20_open_sessions() -> None:
    image = image_of(*map(registered, range(1, 31)), *replicas_on(*range(1, 31)))
    waits = ask(image, Here(leases=dict.fromkeys(range(1, 31), 5)), reuse_missing=True).response
    assert isinstance(waits, AllocateBrokerIdResponse)
    assert "19, 20 and 10 more;" in waits.waiting_for and "21" not in waits.waiting_for


def test_s0_16_missing_ids_among_200_000_partitions_come_from_an_index() -> None:
    """The search sees the brokers and the index and nothing else (its time is in the benchmarks)."""
    image = _wide_image(200_000)

    class IndexOnly:
        def replica_counts(self) -> Mapping[int, int]:
            return image.topics.replica_counts()

    bare = SimpleNamespace(brokers=image.brokers, topics=IndexOnly())
    assert missing_ids(cast(MetadataImage, bare)) == tuple(range(0, 300, 10))
    assert len(image.topics.replica_counts()) == 300


def _wide_image(partitions: int) -> MetadataImage:
    """300 brokers of which every tenth is fenced; all of them hold replicas."""
    base = image_of(*[registered(one, fenced=one % 10 == 0) for one in range(300)], TopicRecord("t", TOPIC))
    records = [
        PartitionRecord(
            partition_id=index,
            topic_id=TOPIC,
            replicas=(index % 300, (index + 100) % 300, (index + 200) % 300),
            isr=((index + 1) % 300,),
            leader=(index + 1) % 300,
            leader_epoch=0,
            partition_epoch=0,
        )
        for index in range(max(300, partitions))
    ]
    offset = base.provenance.offset
    state = ReplayState(base)
    for start in range(0, len(records), 10_000):
        part = records[start : start + 10_000]
        state = replay_records(state, base_offset=offset, epoch=1, timestamp_ms=0, records=part)
        offset += len(part)
    counts = state.image.topics.replica_counts()
    assert sum(counts.values()) == 3 * len(records)
    return state.image


# ---- what a registration leaves ------------------------------------------------------------------


def left_by(image: MetadataImage, broker_id: int, key: str | None, *live: int) -> tuple[ConfigRecord, ...]:
    return remember_registration(image, registration(broker_id, binding_key=key), lambda one: one in live)


def test_s0_13_a_registration_binds_its_key() -> None:
    assert left_by(image_of(), 10, "host-a") == (
        config("broker.id.binding.host-a", '{"version":0,"broker.id":10}'),
        config("broker.id.current.10", "host-a"),
    )


def test_s0_13_nothing_is_written_twice() -> None:
    assert left_by(image_of(*remembered("host-a", 10)), 10, "host-a") == ()


def test_s0_13_the_claim_is_redeemed() -> None:
    image = image_of(ids.claim_record(10, REQUEST))
    assert left_by(image, 10, None) == (config("broker.id.claim.10", None),)
    assert left_by(image, 11, None) == ()


def test_s0_24_a_broker_without_the_feature_leaves_nothing() -> None:
    assert registration(10).binding_key is None
    assert left_by(image_of(*remembered("host-a", 10)), 10, None) == ()


def test_s0_23_a_key_stays_with_the_live_broker_that_has_it() -> None:
    image = image_of(registered(10), *remembered("host-a", 10))
    assert left_by(image, 11, "host-a", 10) == ()
    assert left_by(image, 11, "host-a") == (
        ids.binding_record("host-a", 11),
        ids.current_key_record(11, "host-a"),
    )


def test_s0_14_a_newer_value_of_the_same_id_is_left_as_it_is() -> None:
    image = image_of(config("broker.id.binding.h", '{"version":9,"broker.id":10,"zone":"a"}'))
    assert left_by(image, 10, "h") == (ids.current_key_record(10, "h"),)


# ---- by hand -------------------------------------------------------------------------------------


def bind(image: MetadataImage, key: str, broker_id: int) -> ControllerResult:
    request = BindBrokerIdRequest(key=key, broker_id=broker_id)
    return decide_bind(image, request, frozenset({3000}))


def test_s0_15_a_replacement_machine_of_another_name_is_bound() -> None:
    image = image_of(registered(10, fenced=True), *remembered("old", 10))
    result = bind(image, "new", 10)
    assert result == ControllerResult(
        response=Done(), records=(ids.binding_record("old", None), ids.binding_record("new", 10))
    )
    bound = image_of(registered(10, fenced=True), *remembered("old", 10), *result.records)
    assert bind(bound, "new", 10) == ControllerResult(response=Done())
    assert ask(bound, key="new").response == granted(10, IdSource.BINDING)
    assert ask(bound, key="old").response == granted(1001, IdSource.NEW)


@pytest.mark.parametrize(
    ("key", "broker_id"), [("", 1), ("x" * 256, 1), ("h", -1), ("h", 2**31), ("h", 3000)]
)
def test_s0_15_what_cannot_be_bound(key: str, broker_id: int) -> None:
    result = bind(image_of(), key, broker_id)
    assert isinstance(result.response, ApiError) and result.response.code is ErrorCode.INVALID_REQUEST
    assert result.records == ()


def test_s0_15_unbinding() -> None:
    image = image_of(config("broker.id.binding.h", "of another release"))
    unbound = decide_unbind(image, UnbindBrokerIdRequest(key="h"))
    assert unbound == ControllerResult(response=Done(), records=(ids.binding_record("h", None),))
    absent = decide_unbind(image, UnbindBrokerIdRequest(key="other"))
    assert isinstance(absent.response, ApiError) and absent.response.code is ErrorCode.RESOURCE_NOT_FOUND
    assert "brokers bindings" in absent.response.message


# ---- garbage -------------------------------------------------------------------------------------


def test_s0_18_bindings_of_other_keys_to_a_running_broker_are_garbage() -> None:
    image = image_of(
        registered(10), *remembered("home", 10), ids.binding_record("old", 10), ids.binding_record("x", 11)
    )
    assert collect(image, ()) == (config("broker.id.binding.old", None),)


def test_s0_18_the_current_binding_is_never_removed() -> None:
    image = image_of(registered(10), *remembered("home", 10))
    assert garbage_bindings(image) == [] and collect(image, ()) == ()


@pytest.mark.parametrize(
    "records",
    [
        [registered(10, fenced=True), *remembered("old", 10), ids.binding_record("new", 10)],
        [*remembered("old", 10, current=False), ids.binding_record("new", 10)],
        [registered(10), ids.current_key_record(10, "old"), ids.binding_record("new", 10)],
        [
            registered(10),
            *remembered("old", 10),
            config("broker.id.binding.n", '{"version":1,"broker.id":10}'),
        ],
        [registered(10), *remembered("old", 11, current=False), ids.current_key_record(10, "old")],
    ],
    ids=[
        "down, may be moving",
        "never registered",
        "its own was rebound by hand",
        "newer",
        "home is another's",
    ],
)
def test_s0_19_what_may_be_on_its_way_to_another_host_is_kept(records: list[object]) -> None:
    assert garbage_bindings(image_of(*records)) == []


def test_s0_19_collecting_twice_changes_nothing_more() -> None:
    records = [
        registered(10),
        *remembered("home", 10),
        *[ids.binding_record(f"old-{number}", 10) for number in range(5)],
        ids.current_key_record(99, "gone"),
        ids.claim_record(77, REQUEST),
    ]
    image = image_of(*records)
    first = collect(image, [77, 78])
    assert len(first) == 7 and all(record.value is None for record in first)
    after = image_of(*records, *first)
    assert collect(after, [77, 78]) == ()
    assert ids.bindings(ids.remembered(after)) == [ids.Binding(key="home", broker_id=10, version=0)]


def test_s0_18_what_is_removed_at_once_is_bounded_and_the_rest_goes_next() -> None:
    records = [ids.current_key_record(1_000 + number, "gone") for number in range(COLLECTED_MAX + 5)]
    image = image_of(*records)
    first = collect(image, ())
    assert len(first) == COLLECTED_MAX
    after = image_of(*records, *first)
    assert len(collect(after, ())) == 5


# What a new leader knows of a broker id before anybody has sent a heartbeat.


SESSION_MS = 9_000


def test_s0_6_the_session_that_a_new_leader_gives_a_broker_is_no_sign_of_life() -> None:
    """A newcomer may ask before the new leader has opened its sessions."""
    sessions = Sessions(session_timeout_ms=SESSION_MS, lag_timeout_ms=SESSION_MS)
    image = MetadataImage()
    presence = BrokerIdPresence(sessions, image, now_ms=100)

    def heard(arrived_ms: int) -> bool:
        found = presence.at(image, frozenset(), b"start", arrived_ms).heard_since_asked(1001)
        presence.note_asked(b"start", arrived_ms)
        return found

    assert not heard(110)
    sessions.put(1001, sessions.unheard(5, 120))
    assert not heard(400)
    sessions.put(1001, sessions.touched(1001, 5, 500))
    assert heard(700)
