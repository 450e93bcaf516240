"""Requests to the active controller that name more than one decision may take: refused, in slices, by whoever
reads them first."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from metaquorum.broker.server.kafka.forwarding import Forwarder, Published
from metaquorum.listeners.forwarded.table import FORWARDED
from metaquorum.listeners.forwarded.too_many import REFUSED_AT_ONCE, THINGS_MAX, names_too_many
from metaquorum.listeners.services import Client
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.proto import forwarding_pb2 as pb
from metaquorum.wire import codec, messages
from metaquorum.wire.table import API_BY_NAME, request_type, response_type
from tests.long_turns import Arrays
from tests.unit.kafka.test_forwarding import codes
from tests.unit.kafka.test_mutation_quota import Requests, service_of

CLIENT = Client(listener="PLAINTEXT", address="10.0.0.1", principal="User:alice")
BOUNDED = [
    (name, tuple(level for level, _ in levels)) for name, api in FORWARDED.items() for levels in api.things
]
IDS = [f"{name}-{'.'.join(path)}" for name, path in BOUNDED]


class NoController:
    """In the place of the client that finds the active controller, which must not be asked."""

    async def forward(self, frame: bytes, **_: Any) -> Any:
        pytest.fail("the request was forwarded")


def request_of(name: str, path: tuple[str, ...], items: int) -> codec.Request:
    api = API_BY_NAME[name]
    versions = [v for v in range(FORWARDED[name].max_version, -1, -1) if path in Arrays(api.key, v).paths()]
    body = Arrays(api.key, versions[0]).body(path, items)
    frame = b"".join(codec.encode_request(codec.RequestHeader(api.key, versions[0], 1), body))
    return codec.decode_request(frame)


@pytest.mark.parametrize(("name", "path"), BOUNDED, ids=IDS)
async def test_a_broker_refuses_them_and_serves_others_meanwhile(name: str, path: tuple[str, ...]) -> None:
    request = request_of(name, path, THINGS_MAX + 1)
    forwarder = Forwarder(NoController(), node_id=0, published=Published(MetadataImage()))  # type: ignore[arg-type]
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.ensure_future(other())
    answer = await forwarder.handle(request, CLIENT)
    beside.cancel()
    header = request.header
    frame = b"".join(codec.encode_response(header.api_key, header.version, 1, answer))
    read = codec.decode_response(header.api_key, header.version, frame).body
    (results,) = {levels[0][1] for levels in FORWARDED[name].things}
    found = getattr(read, results)
    is_whole = bool(getattr(read, "error_code", 0))
    assert ErrorCode.POLICY_VIOLATION in ([read.error_code] if is_whole else codes_of(found))
    if not is_whole and len(path) == 1:
        assert len(found) == THINGS_MAX + 1
        assert turns >= THINGS_MAX // REFUSED_AT_ONCE


def codes_of(results: Any) -> set[int]:
    return set(codes(msgspec.to_builtins(results)))


@pytest.mark.parametrize(("name", "path"), BOUNDED, ids=IDS)
def test_what_is_at_the_bound_is_decided(name: str, path: tuple[str, ...]) -> None:
    most = request_of(name, path, THINGS_MAX - len(path) + 1).body
    assert not names_too_many(FORWARDED[name], most)
    assert names_too_many(FORWARDED[name], request_of(name, path, THINGS_MAX - len(path) + 2).body)


async def test_the_controller_refuses_them_as_well() -> None:
    requests, request = Requests(), request_of("CreateAcls", ("creations",), THINGS_MAX + 1)
    forwarded = pb.ForwardRequest(frame=bytes(request.frame or b""), principal="User:a")
    answer = await service_of(requests).Forward(forwarded, None)
    body = codec.decode_response(request.header.api_key, request.header.version, answer.frame).body
    assert len(body.results) == THINGS_MAX + 1
    assert {each.error_code for each in body.results} == {ErrorCode.POLICY_VIOLATION}
    assert requests.asked == []


async def test_both_lists_of_a_request_are_refused() -> None:
    kind: Any = messages.AlterUserScramCredentialsRequest
    half = THINGS_MAX // 2
    body = kind(
        deletions=tuple(kind.ScramCredentialDeletion(name=f"d{n}", mechanism=1) for n in range(half)),
        upsertions=tuple(kind.ScramCredentialUpsertion(name=f"u{n}", mechanism=1) for n in range(half + 1)),
    )
    header = codec.RequestHeader(API_BY_NAME["AlterUserScramCredentials"].key, 0, 1)
    forwarder = Forwarder(NoController(), node_id=0, published=Published(MetadataImage()))  # type: ignore[arg-type]
    answer = await forwarder.handle(codec.Request(header, body, 0), CLIENT)
    assert [each.user for each in answer.results] == [
        *(f"d{n}" for n in range(half)),
        *(f"u{n}" for n in range(half + 1)),
    ]
    assert {each.error_code for each in answer.results} == {ErrorCode.POLICY_VIOLATION}


@pytest.mark.parametrize("name", FORWARDED)
def test_the_table_names_fields_of_the_request_and_of_its_answer(name: str) -> None:
    key = API_BY_NAME[name].key
    for levels in FORWARDED[name].things:
        asked, told = request_type(key).schema, response_type(key).schema
        for item, result in levels:
            of_item = next(each for each in asked.fields if each.name == item)
            assert of_item.is_array
            if result:
                of_result = next(each for each in told.fields if each.name == result)
                assert of_result.is_array
                told = of_result.struct or told
            asked = of_item.struct or asked
