"""Every field of every record reaches the image, the snapshot, the image loaded from it, and the delta.

The schema says which fields there are, so that a field that is added to it is tested at once. What is not
part of the state is listed below, with the reason; everything else must be in the snapshot's records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from metaquorum.metadata.delta import diff
from metaquorum.metadata.errors import ReplayError, UnsupportedVersionError
from metaquorum.metadata.features import LEVEL_ELR_RECORDS
from metaquorum.metadata.image import MetadataImage, images_equal
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.codec import decode, encode
from metaquorum.metadata.records.schema import RECORD_SCHEMAS, RecordSchema
from metaquorum.metadata.replay import Replayer, ReplayState
from metaquorum.metadata.snapshot import load_snapshot, snapshot_batches
from metaquorum.storage.batches.batch import encode_batch, iter_batches
from metaquorum.storage.types import LogPosition
from metaquorum.wire.schema import INT_RANGES, Field, StructSchema
from tests.images import describe_difference

LEVEL = LEVEL_ELR_RECORDS
TOPIC_ID = b"T" * 16
MANY = 40
"""This many partition records of one batch are read in columns."""

CHANGED_BY: dict[type[Any], type[Any]] = {
    r.PartitionChangeRecord: r.PartitionRecord,
    r.BrokerRegistrationChangeRecord: r.BrokerRecord,
}
"""Records that change some fields of what another record declared, under the same names."""

NO_STATE_OF_THEIR_OWN = {
    r.NoOpRecord,
    r.BeginTransactionRecord,  # markers: what is between them is state
    r.EndTransactionRecord,
    r.AbortTransactionRecord,
    r.FenceBrokerRecord,  # these two name a registration and nothing else
    r.UnfenceBrokerRecord,
    r.UnregisterBrokerRecord,  # these name what is removed
    r.RemoveTopicRecord,
    r.RemoveAccessControlEntryRecord,
    r.RemoveUserScramCredentialRecord,
    r.RemoveDelegationTokenRecord,
    r.ClearElrRecord,
    r.UnregisterControllerRecord,
}

NOT_IN_THE_STATE = {
    (r.ProducerIdsRecord, "broker_id"),  # the broker that got the last block: Kafka's snapshots have -1 too
    (r.ProducerIdsRecord, "broker_epoch"),
    (r.BrokerRegistrationChangeRecord, "broker_epoch"),  # names the registration that changes
}

EDGES_OF_INT32 = (-(2**31), 1 - 2**31, -1, 0, 1, 2, 2**31 - 2, 2**31 - 1)
UNICODE = "Größe-\u6f22\u5b57-\U0001f600"
EDGES: dict[str, tuple[Any, ...]] = {
    "bool": (False, True),
    "float64": (0.0, -1.5, 1e308, 5e-324),
    "string": ("", UNICODE, "x" * 249),
    "bytes": (b"", b"\0\xff", bytes(range(256))),
    "uuid": (bytes(15) + b"\x02", b"\xff" * 16, b"\x80" + bytes(15), b"\x7f" + b"\xff" * 15),
}
USUAL: dict[str, tuple[Any, Any]] = {
    "bool": (True, False),
    "float64": (2.5, 4.5),
    "string": ("one", "two"),
    "bytes": (b"one", b"two"),
    "uuid": (b"1" * 16, b"2" * 16),
}


def usual(field: Field, which: int) -> Any:
    """A value within the range that is not the field's default; another one for another `which`."""
    if field.struct is not None:
        return usual_struct(field.struct, which)
    if field.element_type in INT_RANGES:
        return 1 + which if field.element_type == "int8" else 11 + which
    return USUAL[field.element_type][which]


def usual_struct(schema: StructSchema, which: int, version: int = 99) -> Any:
    fields = {}
    for field in schema.fields:
        if field.since > version:
            fields[field.name] = field.default
        elif field.is_array:
            fields[field.name] = (usual(field, which), usual(field, 1 - which))
        else:
            fields[field.name] = usual(field, which)
    return schema.cls(**fields)


def edges(field: Field) -> Iterator[Any]:
    """Values of one element of `field`, at the limits of its type."""
    if field.struct is not None:
        whole = usual_struct(field.struct, 0)
        for inner in field.struct.fields:
            for value in edges(inner):
                yield msgspec.structs.replace(whole, **{inner.name: value})
            if inner.nullable:
                yield msgspec.structs.replace(whole, **{inner.name: None})
        return
    kind = field.element_type
    if kind in INT_RANGES:
        low, high = INT_RANGES[kind]
        yield from (low, low + 1, -1, 0, 1, 2, high - 1, high) if low else (0, 1, high - 1, high)
    else:
        yield from EDGES[kind]


def values(field: Field) -> list[Any]:
    """What to set `field` to: limits, and for arrays every limit in lists of several lengths."""
    if not field.is_array:
        found = list(edges(field))
    else:
        first, second = usual(field, 0), usual(field, 1)
        found = [(), (first,), (second, first)]
        for value in edges(field):
            found += [(value,), (first, value)]
        if field.element_type == "int32":  # wider than any list of its neighbors
            found += [tuple(range(1, 15)), tuple(range(400, 450))]
    if field.nullable or field.none_on_wire is not None:
        found.append(None)
    return [value for value in found if field.none_on_wire is None or value != field.none_on_wire]


def plain(schema: RecordSchema, version: int) -> Any:
    """A record of the type in which every field of `version` has a value other than its default."""
    record = usual_struct(schema.body, 0, version)
    fixed: dict[str, Any] = {
        r.PartitionRecord: {"topic_id": TOPIC_ID, "leader_recovery_state": 1},
        r.PartitionChangeRecord: {"topic_id": TOPIC_ID, "leader_recovery_state": 1},
        r.BrokerRegistrationChangeRecord: {"fenced": 1, "in_controlled_shutdown": 1 if version else None},
        r.ClientQuotaRecord: {"remove": False},
    }.get(schema.body.cls, {})
    return msgspec.structs.replace(record, **fixed)


SCHEMA_OF: dict[type[Any], RecordSchema] = {schema.body.cls: schema for schema in RECORD_SCHEMAS}


def prelude(record: Any, field: Field) -> list[tuple[int, Any]]:
    """What must exist before `record`, whatever value `field` has: topics, and what a change changes. Every
    field that is changed has another value than the plain change sets."""
    topics = {TOPIC_ID: "one"}
    if field.name == "topic_id":
        topics |= {topic_id: f"topic{at}" for at, topic_id in enumerate(EDGES["uuid"])}
    before: list[tuple[int, Any]] = []
    if isinstance(record, r.PartitionRecord | r.PartitionChangeRecord):
        before = [(0, r.TopicRecord(name, topic_id)) for topic_id, name in topics.items()]
    subject = CHANGED_BY.get(type(record))
    if subject is None:
        return before
    schema = SCHEMA_OF[subject]
    whole = usual_struct(schema.body, 1, schema.latest_version)
    if subject is r.PartitionRecord:
        whole = msgspec.structs.replace(whole, leader_recovery_state=0)
        names = [{"topic_id": topic_id, "partition_id": at} for topic_id in topics for at in range(MANY)]
    else:
        whole = msgspec.structs.replace(whole, broker_epoch=record.broker_epoch, log_dirs=(b"3" * 16,))
        names = [{"broker_id": at} for at in (record.broker_id, *EDGES_OF_INT32)]
    return before + [(schema.latest_version, msgspec.structs.replace(whole, **name)) for name in names]


def spread(record: Any) -> list[Any]:
    """The record; if it is a partition's, enough of them to be read in columns."""
    if isinstance(record, r.PartitionRecord | r.PartitionChangeRecord) and record.partition_id == 11:
        return [msgspec.structs.replace(record, partition_id=at) for at in range(MANY)]
    return [record]


def replayed(state: ReplayState, records: list[tuple[int, Any]], *, use_columns: bool) -> ReplayState:
    engine = Replayer(state, use_columns=use_columns)
    content = encode_batch(
        base_offset=state.end_offset,
        leader_epoch=3,
        timestamp_ms=77,
        values=[encode(record, version) for version, record in records],
    )
    for batch in iter_batches(content):
        engine.apply_batch(batch)
    return engine.state()


def position(image: MetadataImage) -> LogPosition:
    return LogPosition(3, image.provenance.offset)


def snapshot_of(image: MetadataImage) -> list[bytes]:
    return list(snapshot_batches(image, position=position(image), metadata_version=LEVEL))


def records_in(snapshot: list[bytes]) -> list[Any]:
    found = []
    for part in snapshot:
        for batch in iter_batches(part):
            if not batch.header.is_control:
                found += [decode(raw.value)[1] for raw in batch.records() if raw.value is not None]
    return [
        at for at in found if not (isinstance(at, r.FeatureLevelRecord) and at.name == "metadata.version")
    ]


def without_level(image: MetadataImage) -> MetadataImage:
    """A snapshot states its level; what is replayed here does not."""
    builder = Replayer(ReplayState(image)).builder
    builder.finalized.pop("metadata.version", None)
    builder.set_feature("none", 0)
    return builder.freeze()


def removes(record: Any) -> bool:
    """Whether `record` leaves nothing behind for which a snapshot has a record."""
    match record:
        case (
            r.ConfigRecord(value=None)
            | r.ClientQuotaRecord(remove=True)
            | r.FeatureLevelRecord(feature_level=0)
        ):
            return True
        case r.ZkMigrationStateRecord(zk_migration_state=0):
            return True
    return False


def stated(record: Any) -> list[Field]:
    """The fields of `record` that say something about the state; None in a change says nothing."""
    return [
        field
        for field in SCHEMA_OF[type(record)].body.fields
        if (type(record), field.name) not in NOT_IN_THE_STATE
        and not (type(record) in CHANGED_BY and getattr(record, field.name) is None)
        and not (field.name == "directories" and not record.directories)  # keeps them, or names none
    ]


def shown(record: Any, field: Field) -> Any:
    """A field's value as in a snapshot's record of the entity."""
    value = getattr(record, field.name)
    if type(record) is r.BrokerRegistrationChangeRecord and field.name in (
        "fenced",
        "in_controlled_shutdown",
    ):
        return value == 1
    if field.is_array and field.name in ("end_points", "features", "log_dirs", "entity"):
        return tuple(sorted(value or (), key=repr))  # Kafka keeps these in maps and sets
    return value or () if field.is_array else value


def check(record: Any, version: int, field: Field, base: ReplayState, plain_image: MetadataImage) -> bool:
    """The laws for one record, whose `field` differs from the plain record's; False if replay refuses it."""
    try:
        records = [(version, at) for at in spread(record)]
        image = replayed(base, records, use_columns=True).image
    except (ReplayError, UnsupportedVersionError):
        return False
    one_by_one = replayed(base, records, use_columns=False).image
    assert describe_difference(image, one_by_one) == ""
    same = images_equal(plain_image, image, provenance=False)
    named = (type(record), field.name) not in NOT_IN_THE_STATE
    directories_follow = field.name == "directories" and not record.directories
    assert not (same and named and not directories_follow), f"{field.name} has no place in the image"

    content = snapshot_of(image)
    for use_columns in (True, False):
        loaded = without_level(load_snapshot(content, position=position(image), use_columns=use_columns))
        lost = describe_difference(loaded, without_level(image), provenance=False)
        assert lost == "", f"the records of a snapshot (metadata/snapshot.py) do not have it: {lost}"
        assert images_equal(loaded, without_level(image), provenance=False)
        assert diff(without_level(image), loaded).is_empty
        assert snapshot_of(loaded) == content
        assert diff(without_level(plain_image), loaded).is_empty == same, "see metadata/delta.py"

    assert diff(plain_image, image).is_empty == same, "metadata/delta.py does not have it"
    assert diff(image, plain_image).is_empty == same
    assert (describe_difference(plain_image, image, provenance=False) == "") == same

    subject = CHANGED_BY.get(type(record), type(record))
    told = [at for at in records_in(content) if type(at) is subject]
    if removes(record):
        assert told == []
        return True
    for expected in spread(record):
        assert any(
            all(shown(at, part) == shown(expected, part) for part in stated(expected)) for at in told
        ), f"no record of the snapshot says all of {expected}; if it removes something, `removes` lacks it"
    return True


def cases() -> Iterator[Any]:
    for schema in RECORD_SCHEMAS:
        if schema.body.cls in NO_STATE_OF_THEIR_OWN:
            continue
        for version in schema.versions:
            for field in (*schema.body.fields_at(version), *schema.body.tagged_at(version)):
                yield pytest.param(schema, version, field, id=f"{schema.type_name}-v{version}-{field.name}")


@pytest.mark.parametrize(("schema", "version", "field"), list(cases()))
def test_a_field_is_in_the_image_the_snapshot_and_the_delta(
    schema: RecordSchema, version: int, field: Field
) -> None:
    base = replayed(
        ReplayState(), [(0, r.NoOpRecord()), *prelude(plain(schema, version), field)], use_columns=True
    )
    record = plain(schema, version)
    try:
        plain_image = replayed(base, [(version, at) for at in spread(record)], use_columns=True).image
    except ReplayError as error:
        pytest.fail(
            f"{error}. Add a record that changes what another one declared to CHANGED_BY, one that only "
            "names or removes it to NO_STATE_OF_THEIR_OWN; let prelude() make what it refers to"
        )
    fit = 0
    for value in values(field):
        changed = msgspec.structs.replace(record, **{field.name: value})
        if shown(changed, field) != shown(record, field):
            fit += check(changed, version, field, base, plain_image)
    assert fit > 0 or (schema.body.cls, field.name) in NOT_IN_THE_STATE


def test_what_the_schema_has_no_state_for_is_named_and_exists() -> None:
    known = {schema.body.cls: {field.name for field in schema.body.fields} for schema in RECORD_SCHEMAS}
    assert NO_STATE_OF_THEIR_OWN <= known.keys()
    assert all(name in known[record] for record, name in NOT_IN_THE_STATE)
