"""The codec against recorded frames: what is decoded and encoded again has the same bytes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from metaquorum.wire import codec
from metaquorum.wire.errors import DecodeError
from metaquorum.wire.table import APIS
from tests.unit.wire.captures import NOT_A_REQUEST, TRAILING_BYTES, WRITES_A_DEFAULT, Frame, frames

pytestmark = pytest.mark.shared_data


@pytest.fixture(scope="module")
def recorded(shared_data: Path) -> list[Frame]:
    return list(frames(shared_data / "kafka-3.7-wire"))


def test_every_request_is_written_to_the_byte(recorded: list[Frame]) -> None:
    refused: Counter[str] = Counter()
    trailing: Counter[tuple[int, int]] = Counter()
    with_defaults = same = 0
    for frame in recorded:
        if not frame.is_request:
            continue
        try:
            request = codec.decode_request(frame.data)
        except DecodeError as error:
            refused[next(text for text in NOT_A_REQUEST if str(error).startswith(text))] += 1
            continue
        written = b"".join(codec.encode_request(request.header, request.body))
        if written == frame.data[: request.end]:
            same += 1
        else:
            assert (frame.api_key, frame.version) == WRITES_A_DEFAULT, frame.where
            assert request.header.client_id == "raw"
            assert codec.decode_request(written).body == request.body
            with_defaults += 1
        if request.end != len(frame.data):
            key = (request.header.api_key, request.header.version)
            assert frame.data[request.end :].strip(b"\0") in (b"", b"\1"), frame.where
            trailing[key] += 1
    assert refused == dict.fromkeys(NOT_A_REQUEST, 2)
    assert trailing == TRAILING_BYTES
    assert with_defaults == 25
    assert same > 25_000


def test_every_response_is_written_to_the_byte(recorded: list[Frame]) -> None:
    same = 0
    for frame in recorded:
        if frame.is_request:
            continue
        response = codec.decode_response(frame.api_key, frame.version, frame.data)
        written = codec.encode_response(
            frame.api_key, response.version, response.correlation_id, response.body
        )
        assert b"".join(written) == frame.data, frame.where
        same += 1
    assert same > 25_000


def test_the_captures_reach_nearly_every_api(recorded: list[Frame]) -> None:
    seen = {frame.api_key for frame in recorded}
    # In 3.7 there were no DescribeTopicPartitions and no voters to add, remove or update.
    assert {APIS[key].name for key in APIS.keys() - seen} == {
        "DescribeTopicPartitions",
        "AddRaftVoter",
        "RemoveRaftVoter",
        "UpdateRaftVoter",
    }
