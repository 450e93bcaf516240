"""Settings, quotas, ACLs and users as the log tools tell them: whole, exact, and since when."""

from __future__ import annotations

import json

import pytest

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.changes.idle_records import NOT_JUDGED, subject
from metaquorum.metadata.inspect.entities.diff import changes_between
from metaquorum.metadata.inspect.entities.targets import parse_target
from metaquorum.metadata.inspect.entities.views import fields_of
from metaquorum.metadata.inspect.timeline.timeline import Timeline
from metaquorum.metadata.inspect.why.explanation import Explanation
from metaquorum.metadata.inspect.why.why import Chain
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.types import ClientQuotaRecord, QuotaEntity
from metaquorum.metadata.replay import Replayer, ReplayState, replay_records
from metaquorum.metadata.settings.quotas import describe_quotas, hash_order, map_hash, string_hash
from metaquorum.metadata.text.tree import image_json, image_tree, plain_number

ID, OTHER = bytes(range(16)), bytes(range(1, 17))
ACL_PATH = "acl/AAECAwQFBgcICQoLDA0ODw"
ACL = r.AccessControlEntryRecord(ID, 2, "orders", 4, "User:alice", "10.0.0.1", 3, 2)
ACL_TEXT = "DENY READ on TOPIC orders (PREFIXED) to User:alice from host 10.0.0.1"
BIG = 9_007_199_254_740_991


def quota(
    key: str, value: float, *parts: tuple[str, str | None], remove: bool = False
) -> r.ClientQuotaRecord:
    return r.ClientQuotaRecord(tuple(QuotaEntity(*part) for part in parts), key, value, remove)


WHOLE = (("user", "alice"), ("client-id", "app"))
QUOTA = quota("producer_byte_rate", 2_097_152.0, *WHOLE)
QUOTA_PATH = "quota/client-id=app,user=alice"


def set_key(value: str | None, key: str = "retention.ms", topic: str = "t") -> r.ConfigRecord:
    return r.ConfigRecord(2, topic, key, value)


def chain(target: str, *batches: list[object]) -> Explanation:
    found, offset = Chain(parse_target(target)), 0
    for records in batches:
        found.batch(1, 1_000 * offset, list(enumerate(records, offset)))
        offset += len(records)
    return found.result()


def image(*records: object) -> MetadataImage:
    engine = Replayer(ReplayState())
    for offset, record in enumerate(records):
        engine.apply(record, offset, 1, 0)
    return engine.state().image


# (what is asked, the records, since which offset it is gone)
GONE = [
    ("config/topic/t/retention.ms", [set_key("1"), set_key(None), set_key(None), set_key(None)], 1),
    ("config/topic/t", [set_key("1"), set_key(None), set_key(None)], 1),
    ("config/topic/t/retention.ms",
     [r.TopicRecord("t", ID), set_key("1"), set_key(None), r.RemoveTopicRecord(ID)], 2),
    ("config/topic/t/retention.ms", [r.TopicRecord("t", ID), set_key("1"), r.RemoveTopicRecord(ID)], 2),
    ("config/topic/t",
     [r.TopicRecord("t", ID), set_key("1"), set_key("2", "x"), set_key(None), r.RemoveTopicRecord(ID)], 4),
    (QUOTA_PATH, [QUOTA, quota("producer_byte_rate", 0.0, *WHOLE, remove=True),
                  quota("producer_byte_rate", 0.0, *WHOLE, remove=True)], 1),
    ("token/x", [r.DelegationTokenRecord("a", "b", (), 1, 2, 3, "x"), r.RemoveDelegationTokenRecord("x"),
                 r.RemoveDelegationTokenRecord("x")], 1),
    (ACL_PATH, [ACL, r.RemoveAccessControlEntryRecord(ID)], 1),
]  # fmt: skip


@pytest.mark.parametrize(("target", "records", "since"), GONE)
@pytest.mark.parametrize("together", [False, True])
def test_what_does_not_exist_is_gone_since_the_record_that_took_it(
    target: str, records: list[object], since: int, together: bool
) -> None:
    batches = [records] if together else [[one] for one in records]
    found = chain(target, *batches)
    assert not found.exists
    assert found.last is not None and found.last.offset == since
    later = [cause.rule for link in found.links if link.offset > since for cause in link.causes]
    assert set(later) <= {"changed-nothing"}, "what came later changed nothing, and says so"


def test_what_was_set_to_what_it_was_was_not_changed_then() -> None:
    found = chain("config/topic/t/retention.ms", [set_key("1")], [set_key("1")])
    assert found.exists and found.last is not None
    assert (found.last.offset, found.last.causes[0].rule) == (0, "set")
    assert [link.causes[0].rule for link in found.links] == ["set", "changed-nothing"]


def test_an_acl_is_told_with_all_that_it_says_also_when_it_goes() -> None:
    found = chain(ACL_PATH, [ACL], [r.RemoveAccessControlEntryRecord(ID)])
    assert [ACL_TEXT in link.causes[0].text for link in found.links] == [True, True]
    timeline = Timeline()
    events = timeline.batch(1, 0, [(0, ACL)]) + timeline.batch(
        1, 1, [(1, r.RemoveAccessControlEntryRecord(ID))]
    )
    assert [event.kind for event in events] == ["acl added", "acl removed"]
    assert all(ACL_TEXT in event.text for event in events)
    fields = {
        "resourceType": "TOPIC", "resourceName": "orders", "patternType": "PREFIXED",
        "principal": "User:alice", "host": "10.0.0.1", "operation": "READ", "permissionType": "DENY",
    }  # fmt: skip
    assert fields_of(image(ACL), ACL_PATH) == fields
    assert next(iter(image_tree(image(ACL))["acl"].values())) == fields
    (change,) = changes_between(image(), image(ACL))
    assert {field.name: field.new for field in change.fields} == fields
    odd = r.AccessControlEntryRecord(ID, 99, "x", 1, "p", "h", 77, 3)
    assert "77 on 99 x (ANY)" in chain(ACL_PATH, [odd]).links[0].causes[0].text, "numbers from the future"


@pytest.mark.parametrize(
    ("parts", "who"),
    [
        (WHOLE, "client-id=app,user=alice"),
        ((("user", "alice"),), "user=alice"),
        ((("user", None), ("client-id", "app")), "client-id=app,user=<default>"),
        ((("user", None), ("client-id", None)), "client-id=<default>,user=<default>"),
        ((("ip", None),), "ip=<default>"),
    ],
)
def test_a_quota_is_named_with_its_whole_entity(parts: tuple[tuple[str, str | None], ...], who: str) -> None:
    record = quota("producer_byte_rate", 2_097_152.0, *parts)
    told = f"{who}: producer_byte_rate=2097152"
    timeline = Timeline()
    assert [event.text for event in timeline.batch(1, 0, [(0, record)])] == [told]
    assert chain(f"quota/{who}", [record]).links[0].causes[0].text == told
    assert fields_of(image(record), f"quota/{who}") == {"producer_byte_rate": 2_097_152}


@pytest.mark.parametrize(
    ("value", "text"), [(2_097_152.0, "2097152"), (float(BIG), str(BIG)), (1e7, "10000000"), (50.5, "50.5")]
)
def test_large_integers_are_integers_everywhere(value: float, text: str) -> None:
    record = quota("producer_byte_rate", value, *WHOLE)
    assert str(plain_number(value)) == text
    assert Timeline().batch(1, 0, [(0, record)])[0].text.endswith(f"={text}")
    found = chain(QUOTA_PATH, [record])
    assert found.links[0].causes[0].text.endswith(f"={text}")
    assert json.dumps(found.value) == f'{{"producer_byte_rate": {text}}}'
    assert f'"producer_byte_rate":{text}' in "".join(
        image_json(image(record), lambda one: json.dumps(one, separators=(",", ":")))
    )
    (change,) = changes_between(image(), image(record))
    assert [str(field.new) for field in change.fields] == [text]


def test_a_quota_that_is_no_number_is_told_as_it_is() -> None:
    assert [str(plain_number(value)) for value in (float("inf"), float("nan"))] == ["inf", "nan"]


def test_what_is_judged_is_compared_and_nothing_else_is() -> None:
    state = Replayer(ReplayState())
    assert subject(r.NoOpRecord(), state.builder) is NOT_JUDGED
    assert subject(r.BrokerRecord(1, ID, 1), state.builder) is NOT_JUDGED
    assert subject(set_key("1"), state.builder) is None
    again = Timeline()
    again.batch(1, 0, [(0, QUOTA)])
    events = again.batch(1, 1, [(1, QUOTA)])
    assert [(event.severity, "which changed nothing" in event.text) for event in events] == [("detail", True)]


# The order of what Kafka keeps in hash maps: as Java documents it, and as Kafka 3.7 answered.


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0), ("a", 97), ("Aa", 2112), ("BB", 2112), ("hello", 99162322), ("user", 3599307), (None, 0)],
)
def test_hashes_are_those_of_java(text: str | None, value: int) -> None:
    assert string_hash(text) == value


def test_a_map_hashes_its_entries_in_any_order() -> None:
    assert map_hash({"a": "b", "user": None}) == map_hash({"user": None, "a": "b"}) == (97 ^ 98) + 3599307


def test_entries_of_one_place_keep_their_order_and_a_map_grows() -> None:
    assert hash_order(["BB", "Aa"], string_hash) == ["BB", "Aa"]
    numbers = list(range(40, 0, -1))
    assert hash_order(numbers, lambda number: number) == sorted(numbers)
    assert hash_order([16, 1, 0], lambda number: number, capacity=16) == [16, 0, 1]


def quotas(*entries: tuple[dict[str, str | None], dict[str, float]]) -> MetadataImage:
    records = [
        ClientQuotaRecord(
            entity=tuple(QuotaEntity(kind, name) for kind, name in sorted(entity.items())),
            key=key,
            value=value,
            remove=False,
        )
        for entity, values in entries
        for key, value in values.items()
    ]
    return replay_records(ReplayState(), base_offset=0, epoch=0, timestamp_ms=0, records=records).newest


def test_the_answer_that_kafka_recorded() -> None:
    """As in the capture of all versions."""
    image = quotas(
        ({"ip": "127.0.0.9"}, {"connection_creation_rate": 50.0}),
        ({"user": "erin", "client-id": "c1"}, {"producer_byte_rate": 1e6, "consumer_byte_rate": 2e6}),
    )
    assert [(entity, list(values)) for entity, values in describe_quotas(image)] == [
        ((("client-id", "c1"), ("user", "erin")), ["consumer_byte_rate", "producer_byte_rate"]),
        ((("ip", "127.0.0.9"),), ["connection_creation_rate"]),
    ]


def test_the_order_is_neither_by_name_nor_by_age() -> None:
    """Four values: of a table of eight places."""
    names = ["consumer_byte_rate", "controller_mutation_rate", "producer_byte_rate", "request_percentage"]
    image = quotas(({"user": None}, dict.fromkeys(names, 1.0)))
    ((_, values),) = describe_quotas(image)
    places = {name: (string_hash(name) ^ string_hash(name) >> 16) & 7 for name in names}
    assert list(values) == sorted(names, key=places.__getitem__) != names
