"""What is said about settings that are kept and change nothing yet."""

from __future__ import annotations

import pytest

from metaquorum.broker.replica import topic_settings as reading
from metaquorum.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, ConfigResource, MetadataImage
from metaquorum.metadata.records.types import ConfigRecord
from metaquorum.metadata.settings.configs import FILE_ONLY, NO_EFFECT, describe_resource, note_on, notes_on
from metaquorum.metadata.settings.resource_keys import TOPIC_KEYS
from tests.unit.metadata.test_snapshot_files import image_of


@pytest.mark.parametrize(
    ("name", "value", "note"),
    [
        ("cleanup.policy", "compact", None),
        ("min.cleanable.dirty.ratio", "0.1", None),
        ("cleanup.policy", "delete", None),
        ("cleanup.policy", "", None),
        ("compression.type", "zstd", None),
        ("compression.type", "producer", None),
        ("flush.messages", "1", "this is stored but has no effect yet"),
        ("flush.messages", "9223372036854775807", None),
        ("preallocate", "TRUE", "this is stored but has no effect yet"),
        ("retention.ms", "5", None),
        ("no.such.key", "5", None),
        ("compression.type", None, None),
    ],
)
def test_notes_on_topics(name: str, value: str | None, note: str | None) -> None:
    assert note_on(TOPIC_RESOURCE, name, value) == note


def test_notes_on_brokers_keys_behind_them() -> None:
    assert note_on(BROKER_RESOURCE, "log.cleanup.policy", "compact") == note_on(
        TOPIC_RESOURCE, "cleanup.policy", "compact"
    )
    assert note_on(BROKER_RESOURCE, "log.retention.hours", "5") is None


@pytest.mark.parametrize(
    ("name", "value", "note"),
    [
        ("ssl.client.auth", "required", FILE_ONLY),
        ("listener.name.out.max.connections", "7", FILE_ONLY),
        ("max.connections", "7", FILE_ONLY),
        ("max.connections", str(2**31 - 1), None),
        ("num.io.threads", "9", NO_EFFECT),
        ("leader.replication.throttled.rate", "9", None),
        ("replica.alter.log.dirs.io.max.bytes.per.second", "9", None),
    ],
)
def test_what_brokers_take_only_from_their_files(name: str, value: str, note: str | None) -> None:
    assert note_on(BROKER_RESOURCE, name, value) == note
    assert note_on(BROKER_RESOURCE, name, value, in_file=True) == (None if note == FILE_ONLY else note)


def test_several_notes_are_one_line() -> None:
    values = [("flush.ms", "4"), ("retention.ms", "1"), ("preallocate", "true")]
    assert notes_on(TOPIC_RESOURCE, values) == (
        "flush.ms=4: this is stored but has no effect yet; "
        "preallocate=true: this is stored but has no effect yet"
    )
    assert notes_on(TOPIC_RESOURCE, [("retention.ms", "1")]) is None


def test_what_is_carried_out_is_what_brokers_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what controllers act on, and what brokers' throttles read for themselves."""
    read: set[str] = set()
    plain = reading.topic_setting

    def noted(image: MetadataImage, topic: str, key: str, **more: object) -> str | None:
        read.add(key)
        return plain(image, topic, key, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(reading, "topic_setting", noted)
    reading.topic_settings(MetadataImage(), "t")
    throttled = {f"{side}.replication.throttled.replicas" for side in ("leader", "follower")}
    carried_out = {name for name, key in TOPIC_KEYS.items() if key.roles}
    assert read | throttled | {"unclean.leader.election.enable"} == carried_out < set(TOPIC_KEYS)


def test_a_description_says_so_whatever_the_source() -> None:
    """Also of a topic that has it from the default of all brokers."""
    record = ConfigRecord(resource_type=4, resource_name="", name="log.preallocate", value="true")
    image = image_of(record)
    topic = describe_resource(image, ConfigResource(TOPIC_RESOURCE, "t"), all_keys=True)
    noted = {entry.name: entry.note for entry in topic if entry.note}
    assert list(noted) == ["preallocate"] and "no effect" in noted["preallocate"]
    (shared,) = describe_resource(image, ConfigResource(BROKER_RESOURCE, ""))
    assert shared.note == noted["preallocate"]
