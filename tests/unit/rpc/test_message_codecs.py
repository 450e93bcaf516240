"""Every message of the tables in rpc/messages survives protobuf and reaches every field that it has."""

from __future__ import annotations

import importlib
import pkgutil
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import metaquorum.broker.server as brokers
import metaquorum.controller.server as controllers
import metaquorum.rpc as rpc
import metaquorum.rpc.messages as room
from metaquorum.listeners.forwarded.table import ANSWERED
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import common as requests
from metaquorum.metadata.requests.common import RegisterBrokerRequest
from metaquorum.metadata.requests.data import MarkLogDirOfflineRequest
from metaquorum.proto import broker_ids_pb2 as broker_ids
from metaquorum.proto import broker_pb2 as broker
from metaquorum.proto import metadata_pb2 as common
from metaquorum.proto import partitions_pb2 as partitions
from metaquorum.proto import voters_pb2 as voters
from metaquorum.rpc.messages.codec import FieldRule, MessageCodec
from metaquorum.rpc.messages.tables import ADD_VOTER, ALLOCATED, ALTER, ASSIGN, HEARTBEAT, REGISTER
from metaquorum.rpc.requests import request_name
from metaquorum.wire.table import API_BY_NAME

TOPIC_ID = b"t" * 16

NOT_BY_A_TABLE = {
    "metaquorum.v1.DescribeBrokerResponse.cluster_id": "the service's own",
    "metaquorum.v1.Error.leader": "of a whole request only",
    "metaquorum.v1.Error.retriable": "follows from the code; not every code has it",
}


def tables() -> dict[str, MessageCodec[Any, Any]]:
    found: dict[str, MessageCodec[Any, Any]] = {}
    for module in pkgutil.iter_modules(room.__path__):
        for name, value in vars(importlib.import_module(f"{room.__name__}.{module.name}")).items():
            if isinstance(value, MessageCodec):
                found[f"{module.name}.{name}"] = value
            elif isinstance(value, dict):
                each = {f"{module.name}.{key}": one for key, one in value.items()}
                found |= {key: one for key, one in each.items() if isinstance(one, MessageCodec)}
    return found


def services() -> dict[str, type]:
    """Every class that serves a service of `proto/`."""
    found: dict[str, type] = {}
    for package in (rpc, controllers, brokers):
        for module in pkgutil.iter_modules(package.__path__):
            for name, value in vars(importlib.import_module(f"{package.__name__}.{module.name}")).items():
                if isinstance(value, type) and "Servicer" in [at.__name__[-8:] for at in value.__bases__]:
                    found[name] = value
    return found


@pytest.mark.parametrize("service", services().values(), ids=lambda one: one.__name__)
def test_every_method_of_a_service_is_served(service: type) -> None:
    methods = {name for name in vars(service.__bases__[0]) if name[0].isupper()}
    assert methods
    missing = methods - vars(service).keys()
    assert not missing, f"{service.__module__}: {service.__name__} lacks {missing}, which callers may ask for"


TABLES = tables()
TEXT = st.text(min_size=1, max_size=5)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(0, 2**15),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    str: TEXT,
    bytes: st.binary(min_size=16, max_size=16),
}
BY_HAND: dict[type, Callable[[], st.SearchStrategy[Any]]] = {
    MarkLogDirOfflineRequest: lambda: (
        st.builds(MarkLogDirOfflineRequest, path=TEXT)
        | st.builds(MarkLogDirOfflineRequest, directory_id=PLAIN[bytes])
    ),
}
FIELDS: dict[tuple[type, str], st.SearchStrategy[Any]] = {
    (RegisterBrokerRequest, "binding_key"): st.none() | st.just("a-host"),
}


def values(hint: Any, fields: Mapping[str, FieldRule | str] | None = None) -> st.SearchStrategy[Any]:
    """Values of an annotation."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([st.none() if one is types.NoneType else values(one, fields) for one in arguments])
    if origin is tuple and arguments[-1] is ...:
        return st.lists(values(arguments[0], fields), min_size=1, max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*[values(one) for one in arguments])
    if hint in PLAIN:
        return PLAIN[hint]
    if issubclass(hint, Enum):
        return st.sampled_from(hint)
    return BY_HAND[hint]() if hint in BY_HAND else built(hint, fields or {})


def built(cls: Any, fields: Mapping[str, FieldRule | str]) -> st.SearchStrategy[Any]:
    """Instances of a class. An error has a text, and NONE has none."""
    hints = typing.get_type_hints(cls)
    parts: dict[str, st.SearchStrategy[Any]] = {}
    for each in msgspec.structs.fields(cls):
        rule = fields.get(each.name, "")
        rule = FieldRule() if isinstance(rule, str) else rule
        if rule.local:
            continue
        parts[each.name] = (
            FIELDS[cls, each.name] if (cls, each.name) in FIELDS else values(hints[each.name], rule.nested)
        )
        if each.default == -1:
            parts[each.name] |= st.just(-1)
    if hints.get("error") is not ErrorCode:
        return st.builds(cls, **parts)
    refused = {"error": st.sampled_from([code for code in ErrorCode if code]), "message": TEXT}
    done = {"error": st.just(ErrorCode.NONE), "message": st.none()}
    return st.builds(cls, **{**parts, **done}) | st.builds(cls, **{**parts, **refused})


def reach(message: Any, found: set[str], wanted: set[str]) -> None:
    """Adds the fields that are set in a message and below it, and those that could be."""
    wanted |= {field.full_name for field in message.DESCRIPTOR.fields}
    for field, value in message.ListFields():
        found.add(field.full_name)
        if field.message_type is None:
            continue
        for each in value if field.is_repeated else [value]:
            reach(each, found, wanted)


@pytest.mark.parametrize("name", TABLES)
def test_messages_survive_and_reach_every_field(name: str) -> None:
    codec = TABLES[name]
    found: set[str] = set()
    wanted: set[str] = set()

    @settings(max_examples=60, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(values(codec.value, codec.fields))
    def survive(value: Any) -> None:
        message = codec.to_pb(value)
        reach(message, found, wanted)
        again = codec.message.FromString(message.SerializeToString())
        assert codec.from_pb(again) == value

    survive()
    # The refusal of a whole request has no field in the value, and an answer's `read` is the service's.
    own = {f"{codec.message.DESCRIPTOR.full_name}.{field}" for field in ("error", "read")}
    assert wanted - found - set(NOT_BY_A_TABLE) - own == set()


def test_the_tables_cover_every_message_with_a_counterpart() -> None:
    """One that is added to a union of requests or answers needs a table."""
    unions = (requests.ControllerRequest, requests.ControllerResponse)
    kinds = {kind for union in unions for kind in typing.get_args(union)}
    without = {kind.__name__ for kind in kinds - {codec.value for codec in TABLES.values()}}
    # Without fields in protobuf, or a controller's own read of its image.
    without -= {"DescribeQuorumRequest", "Done", "ReadImageRequest", "ReadImageResponse"}
    # Asked in Kafka's protocol alone, in frames that brokers forward or that nodes send themselves.
    in_kafkas_protocol = set(ANSWERED)
    asked = {
        kind.__name__ for kind in kinds if request_name(type(kind.__name__, (), {})()) in in_kafkas_protocol
    }
    without -= asked | {f"{each.removesuffix('Request')}Response" for each in asked}
    without -= {"SettingsResponse", "TokenExpiryResponse", "TopicsResponse"}
    assert without == {"UpgradeKRaftVersionRequest"}, (
        "a request needs a table in rpc/messages, or in listeners/forwarded/ the API that asks it"
    )


OWN = {
    *("ReadImage", "TransferLeadership", "UpgradeKRaftVersion"),
    *("AllocateBrokerId", "BindBrokerId", "UnbindBrokerId"),
}
"""Requests that are no API of Kafka's."""


def test_a_request_has_the_name_that_kafka_gives_it() -> None:
    """The causes that a log has of its batches show it."""
    kinds = typing.get_args(requests.ControllerRequest)
    names = {request_name(type(kind.__name__, (), {})()) for kind in kinds}
    missing = (names - API_BY_NAME.keys()) ^ OWN
    assert not missing, f"_KAFKA_NAMES (rpc/requests.py), or OWN here if Kafka has no such API: {missing}"


@pytest.mark.parametrize(
    ("codec", "message", "text"),
    [
        (
            REGISTER,
            broker.RegisterBrokerRequest(incarnation_id=b"x"),
            "incarnation_id has 1 bytes: give the 16",
        ),
        (
            REGISTER,
            broker.RegisterBrokerRequest(
                incarnation_id=TOPIC_ID, endpoints=[common.Endpoint(name="PLAINTEXT", port=70_000)]
            ),
            "endpoint PLAINTEXT has port 70000: give 0 to 65535",
        ),
        (
            REGISTER,
            broker.RegisterBrokerRequest(incarnation_id=TOPIC_ID, directories=[b"12"]),
            "a directory id has 2 bytes",
        ),
        (HEARTBEAT, broker.BrokerHeartbeatRequest(offline_directories=[b""]), "a directory id has 0 bytes"),
        (
            ALTER,
            partitions.AlterPartitionRequest(partitions=[partitions.PartitionAlteration(topic_id=b"123")]),
            "a topic id has 3 bytes",
        ),
        (
            ASSIGN,
            partitions.AssignReplicasToDirsRequest(assignments=[partitions.ReplicaAssignment()]),
            "a directory id has 0 bytes",
        ),
        (ALLOCATED, broker_ids.AllocateBrokerIdResponse(source="dream"), "'dream'"),
    ],
)
def test_malformed_messages_are_refused_in_one_line(
    codec: MessageCodec[Any, Any], message: Any, text: str
) -> None:
    with pytest.raises(ApiError, match=text) as caught:
        codec.from_pb(message)
    assert "\n" not in caught.value.message


NO_UUIDS = {"request_id"}
"""Bytes of requests that their senders choose freely."""


def test_every_uuid_of_a_request_has_16_bytes() -> None:
    refused = 0
    for table in tables().values():
        message = table.message
        if not message.__name__.endswith("Request"):
            continue
        for field in message.DESCRIPTOR.fields:
            if field.type != field.TYPE_BYTES or field.name in NO_UUIDS:
                continue
            value = b"xy" if isinstance(getattr(message(), field.name), bytes) else [b"xy"]
            with pytest.raises(ApiError, match=r"has \d+ bytes: give the 16 of a uuid"):
                table.from_pb(message(**{field.name: value}))
            refused += 1
    assert refused >= 5
    voter = voters.NewVoter(voter_directory_id=b"xy")
    with pytest.raises(ApiError, match="a directory id has 2 bytes"):
        ADD_VOTER.from_pb(voters.AddRaftVoterRequest(voter=voter))


class Renamed(msgspec.Struct, frozen=True, kw_only=True):
    session: int


class WithoutPresence(msgspec.Struct, frozen=True, kw_only=True):
    broker_id: int | None


class WithoutDefault(msgspec.Struct, frozen=True, kw_only=True):
    broker_epoch: int


@pytest.mark.parametrize(
    ("codec", "text"),
    [
        (MessageCodec(Renamed, broker.BrokerHeartbeatRequest), "has no field session"),
        (MessageCodec(WithoutPresence, broker.BrokerHeartbeatRequest), "None would read as 0"),
        (MessageCodec(WithoutDefault, broker.DescribeBrokerResponse), "say what that stands for"),
        (
            MessageCodec(MarkLogDirOfflineRequest, broker.MarkLogDirOfflineRequest, pth="path"),
            r"no fields \['pth'\]",
        ),
    ],
)
def test_what_fits_no_rule_is_a_mistake_of_the_program(codec: MessageCodec[Any, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        codec.to_pb  # noqa: B018 -- compiles
