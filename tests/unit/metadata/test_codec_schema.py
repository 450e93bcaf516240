"""The table, the classes, the levels and the page about them say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import msgspec
import pytest

from metaquorum.metadata.errors import UnsupportedVersionError
from metaquorum.metadata.features import (
    DEFAULT_METADATA_VERSION,
    MAX_METADATA_VERSION,
    METADATA_VERSION_NAMES,
    loses_metadata,
    metadata_version_name,
    parse_metadata_version,
    record_version_for,
    write_version,
)
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.control import ControlRecord
from metaquorum.metadata.records.fields import Int8, String, UInt16, UnknownTags, Uuid, Wire, structure
from metaquorum.metadata.records.schema import CONTROL_SCHEMAS, RECORD_SCHEMAS, RecordSchema
from metaquorum.wire.schema import StructSchema

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "records.md").read_text("utf-8")
U = bytes(16)


def _structures(schema: StructSchema) -> list[StructSchema]:
    inner = [found for field in schema.fields if field.struct for found in _structures(field.struct)]
    return [schema, *inner]


ALL = (*RECORD_SCHEMAS, *CONTROL_SCHEMAS)
STRUCTURES = [structure for schema in ALL for structure in _structures(schema.body)]


@pytest.mark.parametrize("schema", STRUCTURES, ids=lambda schema: schema.name)
def test_what_a_version_may_leave_out_has_a_default_in_its_class(schema: StructSchema) -> None:
    named = {field.name: field for field in msgspec.structs.fields(schema.cls)}
    assert set(named) == {field.name for field in schema.fields} | {"unknown_tags"}
    assert named["unknown_tags"].default == ()
    for field in schema.fields:
        optional = field.tag is not None or field.since > 0
        assert not optional or named[field.name].default is not msgspec.NODEFAULT, field.name


class Part(msgspec.Struct):
    port: UInt16 = 9092


class Whole(msgspec.Struct):
    name: String
    parts: tuple[Part, ...]
    owner: String | None
    first: Annotated[Int8, Wire(position=0, kafka_name="First")] = 7
    ids: Annotated[tuple[Uuid, ...] | None, Wire(since=1, tag=3, none_on_wire=())] = None
    rack: Annotated[String | None, Wire(default="", secret=True)] = None
    unknown_tags: UnknownTags = ()


class Bare(msgspec.Struct):
    count: int = 0


def test_a_class_says_its_wire_form_once() -> None:
    assert [
        (field.name, field.kafka_name, field.type, field.since, field.nullable, field.tag, field.default)
        for field in structure(Whole).fields
    ] == [
        ("first", "First", "int8", 0, False, None, 7),
        ("name", "name", "string", 0, False, None, ""),
        ("parts", "parts", "[]struct", 0, False, None, ()),
        ("owner", "owner", "string", 0, True, None, None),
        ("ids", "ids", "[]uuid", 1, False, 3, None),
        ("rack", "rack", "string", 0, True, None, ""),
    ]
    by_name = {field.name: field for field in structure(Whole).fields}
    assert by_name["ids"].none_on_wire == () and by_name["rack"].secret is True
    (port,) = by_name["parts"].struct.fields  # type: ignore[union-attr]
    assert (port.type, port.default) == ("uint16", 9092)


def test_a_field_without_a_wire_type_is_refused() -> None:
    with pytest.raises(TypeError, match="count: <class 'int'> says no wire type"):
        structure(Bare)


def test_every_record_class_has_a_schema() -> None:
    assert [schema.body.cls for schema in RECORD_SCHEMAS] == list(get_args(r.Record))
    assert [schema.body.cls for schema in CONTROL_SCHEMAS] == list(get_args(ControlRecord))
    keys = [schema.key for schema in RECORD_SCHEMAS]
    assert keys == [*range(6), *range(7, 13), 14, 15, *range(17, 30)], "a new record type: add its key here"


def _versions_text(latest: int) -> str:
    return f"0-{latest}" if latest else "0"


@pytest.mark.parametrize("schema", RECORD_SCHEMAS, ids=lambda schema: schema.type_name)
def test_the_page_has_a_row_for_every_record(schema: RecordSchema) -> None:
    try:
        written = record_version_for(schema.body.cls, DEFAULT_METADATA_VERSION)
        # The one type whose version depends on what is set.
        at_default = (
            _versions_text(written) if schema.body.cls is r.BrokerRegistrationChangeRecord else str(written)
        )
    except UnsupportedVersionError:
        at_default = "none"
    versions = _versions_text(schema.latest_version)
    shown = versions if versions == at_default else f"{versions} ({at_default})"
    row = f"- {schema.key} {schema.type_name} {shown}"
    assert f"\n{row}\n" in PAGE, f"docs/records.md, Metadata records, lacks the line: {row}"


def test_the_page_has_a_row_for_every_control_record() -> None:
    for schema in CONTROL_SCHEMAS:
        versions = _versions_text(schema.latest_version)
        assert f"\n- {schema.key} {schema.type_name} {versions}\n" in PAGE


# The draft's table: record, and its fields; Epoch of an ISR change and Deleting became something else.
DRAFT = {
    "BrokerRecord": "Id Epoch EndPoints Features Rack",
    "TopicRecord": "Name TopicId Deleting",
    "PartitionRecord": "PartitionId TopicId Replicas Isr RemovingReplicas AddingReplicas Leader LeaderEpoch",
    "ConfigRecord": "ResourceType ResourceName Name Value",
    "IsrChangeRecord": "PartitionId TopicId Isr Leader LeaderEpoch",
    "AccessControlRecord": "ResourceType ResourceName PatternType Principal Host Operation PermissionType",
    "FenceBrokerRecord": "Id Epoch",
    "RemoveTopicRecord": "Id",
    "UnfenceBrokerRecord": "Id Epoch",
}


def test_the_page_maps_every_record_and_field_of_the_draft() -> None:
    table = PAGE[PAGE.index("| draft (key) |") : PAGE.index("## Read by Kafka's own code")]
    shipped = {schema.body.name: schema.body for schema in RECORD_SCHEMAS}
    mapped = set()
    for line in table.strip().splitlines()[2:]:
        draft, record, notes = [cell.strip() for cell in line.strip("|").split("|")]
        name = draft.split(" ")[0]
        mapped.add(name)
        into = {
            field: text.lower().replace(",", " ").split()[0]
            for note in filter(None, notes.split("; "))
            for fields, text in (note.split(": ", 1),)
            for field in fields.split(", ")
        }
        own = {field.kafka_name.lower() for field in shipped[record.split(" ")[0]].fields}
        for field in DRAFT[name].split():
            found = into.pop(field, field.lower())
            assert found in own | {"none"} or (found == "empty" and field.lower() in own), (name, field)
        assert {field.split(".")[0].lower() for field in into} <= own, name
    assert mapped == set(DRAFT)


def test_levels_have_kafkas_names() -> None:
    assert len(METADATA_VERSION_NAMES) == MAX_METADATA_VERSION == 29
    named = {1: "3.0-IV1", 4: "3.3-IV0", 7: "3.3-IV3", 8: "3.4-IV0", 11: "3.5-IV2", 14: "3.6-IV2"}
    named |= {15: "3.7-IV0", 19: "3.7-IV4", 20: "3.8-IV0", 21: "3.9-IV0", 22: "4.0-IV0", 25: "4.0-IV3"}
    named |= {26: "4.1-IV0", 27: "4.1-IV1", 28: "4.2-IV0", 29: "4.2-IV1", 30: "4.3-IV0", 33: "4.4-IV2"}
    named |= {34: "4.5-IV0"}
    assert {level: metadata_version_name(level) for level in named} == named
    assert metadata_version_name(99) == "level 99"


@pytest.mark.parametrize(
    ("text", "level"), [("3.7-IV4", 19), ("3.7", 19), ("19", 19), ("3.3", 7), ("3.7-IV0", 15), ("4.0", 25)]
)
def test_levels_are_read_from_text(text: str, level: int) -> None:
    assert parse_metadata_version(text) == level


@pytest.mark.parametrize("text", ["", "0", "30", "4.3", "3.7.1", "3.7-IV9", "-1", "2.8", "3.7-", "١٩"])
def test_text_that_is_no_level(text: str) -> None:
    with pytest.raises(ValueError, match=r"write a release such as 3\.7"):
        parse_metadata_version(text)


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        (r.BrokerRecord, {1: 0, 6: 0, 7: 1, 8: 2, 16: 2, 17: 3, 29: 3}),
        (r.PartitionRecord, {1: 0, 16: 0, 17: 1, 19: 1, 22: 1, 23: 2, 29: 2}),
        (r.PartitionChangeRecord, {1: 0, 16: 0, 17: 1, 19: 1, 22: 1, 23: 2, 29: 2}),
        (r.BrokerRegistrationChangeRecord, {5: None, 6: 0, 7: 1, 16: 1, 17: 2}),
        (r.FeatureLevelRecord, {3: None, 4: 0}),
        (r.NoOpRecord, {4: None, 5: 0}),
        (r.ZkMigrationStateRecord, {7: None, 8: 0}),
        (r.UserScramCredentialRecord, {10: None, 11: 0}),
        (r.BeginTransactionRecord, {12: None, 13: 0}),
        (r.DelegationTokenRecord, {13: None, 14: 0}),
        (r.ControllerRecord, {14: None, 15: 0}),
        (r.ClearElrRecord, {22: None, 23: 0, 29: 0}),
        (r.UnregisterControllerRecord, {15: None, 29: None, 33: None}),
        (r.TopicRecord, {1: 0, 29: 0, 0: None, 30: None, 99: None}),
    ],
)
def test_record_versions_by_level(kind: type[r.Record], steps: dict[int, int | None]) -> None:
    for level, version in steps.items():
        if version is None:
            with pytest.raises(UnsupportedVersionError, match=r"metadata\.version"):
                record_version_for(kind, level)
        else:
            assert record_version_for(kind, level) == version


def test_a_downgrade_below_the_first_level_of_a_record_or_version_loses_metadata() -> None:
    """A state with such a record has no snapshot at the lower level."""
    for schema in RECORD_SCHEMAS:
        known: int | None = None
        for level in METADATA_VERSION_NAMES:
            try:
                version = record_version_for(schema.body.cls, level)
            except UnsupportedVersionError:
                continue
            if version != known and level > 1:
                assert loses_metadata(level, level - 1), (schema.type_name, level)
            known = version
    unchanged = (2, 9, 10, 12, 16, 18, 19, 20, 21, 26, 27, 28, 29)
    assert not any(loses_metadata(level, level - 1) for level in unchanged)


def test_registration_changes_take_the_lowest_version_that_carries_them() -> None:
    fence = r.BrokerRegistrationChangeRecord(1, 5, fenced=1)
    shutdown = r.BrokerRegistrationChangeRecord(1, 5, in_controlled_shutdown=1)
    directories = r.BrokerRegistrationChangeRecord(1, 5, fenced=1, in_controlled_shutdown=1, log_dirs=(U,))
    versions = [write_version(record, 19) for record in (fence, shutdown, directories, r.NoOpRecord())]
    assert versions == [0, 1, 2, 0]
    # Too old a level: the highest there is, which then refuses the field when it is written.
    assert [write_version(record, 6) for record in (fence, shutdown, directories)] == [0, 0, 0]
    assert write_version(directories, 7) == 1
