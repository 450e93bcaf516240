"""The order of what Kafka keeps in hash maps: as Java documents it, and as Kafka 3.7 answered."""

from __future__ import annotations

import pytest

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records.types import ClientQuotaRecord, QuotaEntity
from metaquorum.metadata.replay import ReplayState, replay_records
from metaquorum.metadata.settings.quotas import describe_quotas, hash_order, map_hash, string_hash


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
