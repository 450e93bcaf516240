"""Refusals, and the leader that they name, between values and protobuf, and checks of ids in requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.proto import metadata_pb2 as common
from metaquorum.storage.uuids import UUID_BYTES


class LeaderAddress(msgspec.Struct, frozen=True):
    """The controller to which a client must send the request instead."""

    node_id: int
    host: str
    port: int


class Address(Protocol):
    """Where a controller listens."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


class AddressBook(Protocol):
    """Where controllers listen, by id; a dict is one."""

    def get(self, node_id: int, /) -> Address | None: ...


class Hints:
    """Turns the leader's id in an error into its current address."""

    def __init__(self, controllers: AddressBook) -> None:
        self._controllers = controllers

    def of(self, node_id: int | None) -> common.LeaderHint | None:
        address = None if node_id is None else self._controllers.get(node_id)
        if node_id is None or node_id < 0 or address is None:
            return None
        return common.LeaderHint(id=node_id, host=address.host, port=address.port)


NO_HINTS = Hints({})
"""For services that answer about this node only, and for one part of a request."""


NO_GRPC = "no gRPC listener of it is known"
"""Part of a refusal that names a leader without an address: one of Apache Kafka's has none."""


def error_to_pb(error: ApiError, hints: Hints = NO_HINTS) -> common.Error:
    leader, message = hints.of(error.leader_hint), error.message
    if leader is None and error.leader_hint is not None and hints is not NO_HINTS:
        message = f"{message} ({NO_GRPC})"
    return common.Error(
        code=error.code,
        name=error.code.name,
        message=message,
        retriable=error.retriable,
        leader=leader,
    )


def error_from_pb(error: common.Error) -> ApiError:
    """The same error; an unknown code becomes UNKNOWN_SERVER_ERROR, with its name in the text."""
    hint = error.leader.id if error.HasField("leader") else None
    try:
        return ApiError(ErrorCode(error.code), error.message, hint)
    except ValueError:
        return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{error.name}: {error.message}", hint)


def leader_from_pb(error: common.Error) -> LeaderAddress | None:
    """The leader that an error names; None if it names none."""
    if not error.HasField("leader"):
        return None
    return LeaderAddress(error.leader.id, error.leader.host, error.leader.port)


def error_field(code: ErrorCode, message: str | None) -> common.Error | None:
    """The `error` field of the result of one part; None for a success."""
    return None if code is ErrorCode.NONE else error_to_pb(ApiError(code, message or code.name))


def refusal_of(error: common.Error) -> tuple[ErrorCode, str]:
    """The code and the text in the `error` of one part."""
    refusal = error_from_pb(error)
    return refusal.code, refusal.message


def uuid_check(what: str) -> Callable[[bytes], bytes]:
    """A check that `what`, such as "a topic id", is 16 bytes long. It raises ApiError INVALID_REQUEST."""

    def check(value: bytes) -> bytes:
        if len(value) != UUID_BYTES:
            text = f"{what} has {len(value)} bytes: give the {UUID_BYTES} of a uuid"
            raise ApiError(ErrorCode.INVALID_REQUEST, text)
        return value

    return check
