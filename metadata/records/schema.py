"""The table of every record: api key, versions, and its fields in wire order.

Owns the facts that Kafka's message definitions state (KIP-482 flexible encoding, 3.7 with the versions that
3.9 and 4.0 still use). Does not know bytes: `wire.generator` turns this table into code, `dump` into JSON;
docs/records.md lists its types. Every version of every record is flexible from 0 on.

A field exists from version `since` on; a nullable field is nullable, and a tagged one tagged, in every
version that has it; no field of any record is ignorable: setting one in a version without it is an error.
"""

from __future__ import annotations

from typing import Any

import msgspec

from metaquorum.metadata.records import control
from metaquorum.metadata.records import types as records
from metaquorum.metadata.records.parts import (
    NO_LEADER,
    BrokerEndpoint,
    BrokerFeature,
    ControllerEndpoint,
    ControllerFeature,
    QuotaEntity,
)
from metaquorum.wire.schema import ZERO, Field, StructSchema, kafka_field_name

SETTING_VALUE = "setting value"
"""Marks a field that is secret depending on the record's `name`."""


class RecordSchema(msgspec.Struct, frozen=True, kw_only=True):
    """A record type: `key` is its api key or its control type; versions 0..`latest_version` exist."""

    key: int
    type_name: str
    latest_version: int
    body: StructSchema

    @property
    def versions(self) -> range:
        return range(self.latest_version + 1)


def _f(  # noqa: PLR0913
    name: str,
    type_: str,
    *,
    since: int = 0,
    nullable: bool = False,
    tag: int | None = None,
    default: Any = ...,
    none_on_wire: Any = None,
    struct: StructSchema | None = None,
    kafka_name: str | None = None,
    secret: bool | str = False,
) -> Field:
    if default is ...:
        if nullable or none_on_wire is not None:
            default = None
        elif type_.startswith("[]"):
            default = ()
        else:
            default = struct.cls() if struct is not None else ZERO[type_]
    return Field(
        name=name,
        kafka_name=kafka_name or kafka_field_name(name),
        type=type_,
        since=since,
        nullable=nullable,
        tag=tag,
        default=default,
        none_on_wire=none_on_wire,
        struct=struct,
        secret=secret,
    )


def _s(cls: type[Any], *fields: Field) -> StructSchema:
    return StructSchema(cls=cls, fields=fields)


def _record(cls: type[Any], latest_version: int, *fields: Field) -> RecordSchema:
    return RecordSchema(
        key=cls.api_key, type_name=cls.type_name, latest_version=latest_version, body=_s(cls, *fields)
    )


def _control(cls: type[Any], latest_version: int, *fields: Field) -> RecordSchema:
    return RecordSchema(
        key=cls.control_type, type_name=cls.type_name, latest_version=latest_version, body=_s(cls, *fields)
    )


def _endpoint(cls: type[Any]) -> StructSchema:
    return _s(
        cls,
        _f("name", "string"),
        _f("host", "string"),
        _f("port", "uint16"),
        _f("security_protocol", "int16"),
    )


def _feature(cls: type[Any]) -> StructSchema:
    return _s(
        cls, _f("name", "string"), _f("min_supported_version", "int16"), _f("max_supported_version", "int16")
    )


RECORD_SCHEMAS: tuple[RecordSchema, ...] = (
    _record(
        records.BrokerRecord,
        4,
        _f("broker_id", "int32"),
        _f("is_migrating_zk_broker", "bool", since=2),
        _f("incarnation_id", "uuid"),
        _f("broker_epoch", "int64"),
        _f("end_points", "[]struct", struct=_endpoint(BrokerEndpoint)),
        _f("features", "[]struct", struct=_feature(BrokerFeature)),
        _f("rack", "string", nullable=True),
        _f("fenced", "bool", default=True),
        _f("in_controlled_shutdown", "bool", since=1),
        _f("log_dirs", "[]uuid", since=3, tag=0),
    ),
    _record(records.UnregisterBrokerRecord, 0, _f("broker_id", "int32"), _f("broker_epoch", "int64")),
    _record(records.TopicRecord, 0, _f("name", "string"), _f("topic_id", "uuid")),
    _record(
        records.PartitionRecord,
        2,
        _f("partition_id", "int32", default=-1),
        _f("topic_id", "uuid"),
        _f("replicas", "[]int32"),
        _f("isr", "[]int32"),
        _f("removing_replicas", "[]int32"),
        _f("adding_replicas", "[]int32"),
        _f("leader", "int32", default=NO_LEADER),
        _f("leader_recovery_state", "int8", tag=0),
        _f("leader_epoch", "int32", default=-1),
        _f("partition_epoch", "int32", default=-1),
        _f("directories", "[]uuid", since=1),
        _f("eligible_leader_replicas", "[]int32", since=2, nullable=True, tag=1),
        _f("last_known_elr", "[]int32", since=2, nullable=True, tag=2, kafka_name="lastKnownELR"),
    ),
    _record(
        records.ConfigRecord,
        0,
        _f("resource_type", "int8"),
        _f("resource_name", "string"),
        _f("name", "string"),
        _f("value", "string", nullable=True, default="", secret=SETTING_VALUE),
    ),
    _record(
        records.PartitionChangeRecord,
        2,
        _f("partition_id", "int32", default=-1),
        _f("topic_id", "uuid"),
        _f("isr", "[]int32", nullable=True, tag=0),
        _f("leader", "int32", tag=1, none_on_wire=-2),
        _f("replicas", "[]int32", nullable=True, tag=2),
        _f("removing_replicas", "[]int32", nullable=True, tag=3),
        _f("adding_replicas", "[]int32", nullable=True, tag=4),
        _f("leader_recovery_state", "int8", tag=5, none_on_wire=-1),
        _f("directories", "[]uuid", since=1, nullable=True, tag=8),
        _f("eligible_leader_replicas", "[]int32", since=2, nullable=True, tag=6),
        _f("last_known_elr", "[]int32", since=2, nullable=True, tag=7, kafka_name="lastKnownELR"),
    ),
    _record(records.FenceBrokerRecord, 0, _f("id", "int32"), _f("epoch", "int64")),
    _record(records.UnfenceBrokerRecord, 0, _f("id", "int32"), _f("epoch", "int64")),
    _record(records.RemoveTopicRecord, 0, _f("topic_id", "uuid")),
    _record(
        records.DelegationTokenRecord,
        0,
        _f("owner", "string"),
        _f("requester", "string"),
        _f("renewers", "[]string"),
        _f("issue_timestamp", "int64"),
        _f("max_timestamp", "int64"),
        _f("expiration_timestamp", "int64"),
        _f("token_id", "string"),
    ),
    _record(
        records.UserScramCredentialRecord,
        0,
        _f("name", "string"),
        _f("mechanism", "int8"),
        _f("salt", "bytes", secret=True),
        _f("stored_key", "bytes", secret=True),
        _f("server_key", "bytes", secret=True),
        _f("iterations", "int32"),
    ),
    _record(records.FeatureLevelRecord, 0, _f("name", "string"), _f("feature_level", "int16")),
    _record(
        records.ClientQuotaRecord,
        0,
        _f(
            "entity",
            "[]struct",
            struct=_s(
                QuotaEntity,
                _f("entity_type", "string"),
                _f("entity_name", "string", nullable=True, default=""),
            ),
        ),
        _f("key", "string"),
        _f("value", "float64"),
        _f("remove", "bool"),
    ),
    _record(
        records.ProducerIdsRecord,
        0,
        _f("broker_id", "int32"),
        _f("broker_epoch", "int64", default=-1),
        _f("next_producer_id", "int64"),
    ),
    _record(
        records.BrokerRegistrationChangeRecord,
        3,
        _f("broker_id", "int32"),
        _f("broker_epoch", "int64"),
        _f("fenced", "int8", tag=0, none_on_wire=0),
        _f("in_controlled_shutdown", "int8", since=1, tag=1, none_on_wire=0),
        _f("log_dirs", "[]uuid", since=2, tag=2, none_on_wire=()),
    ),
    _record(
        records.AccessControlEntryRecord,
        0,
        _f("id", "uuid"),
        _f("resource_type", "int8"),
        _f("resource_name", "string"),
        _f("pattern_type", "int8"),
        _f("principal", "string"),
        _f("host", "string"),
        _f("operation", "int8"),
        _f("permission_type", "int8"),
    ),
    _record(records.RemoveAccessControlEntryRecord, 0, _f("id", "uuid")),
    _record(records.NoOpRecord, 0),
    _record(records.ZkMigrationStateRecord, 0, _f("zk_migration_state", "int8")),
    _record(records.RemoveUserScramCredentialRecord, 0, _f("name", "string"), _f("mechanism", "int8")),
    _record(records.BeginTransactionRecord, 0, _f("name", "string", nullable=True, tag=0)),
    _record(records.EndTransactionRecord, 0),
    _record(records.AbortTransactionRecord, 0, _f("reason", "string", nullable=True, tag=0)),
    _record(records.RemoveDelegationTokenRecord, 0, _f("token_id", "string")),
    _record(
        records.ControllerRecord,
        0,
        _f("controller_id", "int32"),
        _f("incarnation_id", "uuid"),
        _f("zk_migration_ready", "bool"),
        _f("end_points", "[]struct", struct=_endpoint(ControllerEndpoint)),
        _f("features", "[]struct", struct=_feature(ControllerFeature)),
    ),
    _record(records.ClearElrRecord, 0, _f("topic_name", "string")),
    _record(records.UnregisterControllerRecord, 0, _f("controller_id", "int32")),
)
"""Every metadata record, by ascending api key."""

_LEADER_VOTER = _s(control.LeaderVoter, _f("voter_id", "int32"), _f("voter_directory_id", "uuid", since=1))

_VOTER = _s(
    control.Voter,
    _f("voter_id", "int32"),
    _f("voter_directory_id", "uuid"),
    _f(
        "endpoints",
        "[]struct",
        struct=_s(control.VoterEndpoint, _f("name", "string"), _f("host", "string"), _f("port", "uint16")),
    ),
    _f(
        "kraft_version_feature",
        "struct",
        kafka_name="kRaftVersionFeature",
        struct=_s(
            control.KRaftVersionFeature,
            _f("min_supported_version", "int16"),
            _f("max_supported_version", "int16"),
        ),
    ),
)

CONTROL_SCHEMAS: tuple[RecordSchema, ...] = (
    _control(
        control.LeaderChangeMessage,
        1,
        _f("version", "int16"),
        _f("leader_id", "int32"),
        _f("voters", "[]struct", struct=_LEADER_VOTER),
        _f("granting_voters", "[]struct", struct=_LEADER_VOTER),
    ),
    _control(
        control.SnapshotHeaderRecord, 0, _f("version", "int16"), _f("last_contained_log_timestamp", "int64")
    ),
    _control(control.SnapshotFooterRecord, 0, _f("version", "int16")),
    _control(
        control.KRaftVersionRecord,
        0,
        _f("version", "int16"),
        _f("kraft_version", "int16", kafka_name="kRaftVersion"),
    ),
    _control(control.VotersRecord, 0, _f("version", "int16"), _f("voters", "[]struct", struct=_VOTER)),
)
"""Every control record, by ascending control type. The value's first field repeats its version."""

SCHEMA_BY_API_KEY: dict[int, RecordSchema] = {schema.key: schema for schema in RECORD_SCHEMAS}
SCHEMA_BY_CLASS: dict[type[Any], RecordSchema] = {
    schema.body.cls: schema for schema in (*RECORD_SCHEMAS, *CONTROL_SCHEMAS)
}
CONTROL_SCHEMA_BY_TYPE: dict[int, RecordSchema] = {schema.key: schema for schema in CONTROL_SCHEMAS}
