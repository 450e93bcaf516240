"""What the active controller is asked by each forwarded request, and what the client gets, as recorded text.

No two values of a request or of an answer are alike, so none can be lost or mixed up unseen. Who changes a
handler reviews its lines; `pytest --rewrite` with this file records them again.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import count, cycle
from pathlib import Path
from typing import Any

import msgspec
import pytest

from metaquorum.listeners.forwarded.api import Call
from metaquorum.listeners.forwarded.shown_configs import NewTopics
from metaquorum.listeners.forwarded.table import FORWARDED
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests.common import (
    ReadImageResponse,
    TopicResult,
    TopicsResponse,
)
from metaquorum.metadata.settings.topic_names import METADATA_TOPIC
from metaquorum.wire import codec
from metaquorum.wire.messages import DeleteTopicsRequest
from metaquorum.wire.schema import Field
from metaquorum.wire.table import API_BY_NAME, request_type
from tests.unit.kafka.test_admin_calls import Filled, shown
from tests.unit.kafka.test_cluster_answers import image

RECORDED = Path(__file__).with_name("forwarded_calls.txt")
REFUSED = ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "no")


class Requests(Filled):
    """Requests with names, indexes and codes that a controller knows."""

    KNOWN: Mapping[str, tuple[Any, ...]] = {
        "resource_type": (2, 4, 8),
        "resource_type_filter": (2,),
        "resource_pattern_type": (3, 4),
        "pattern_type_filter": (3,),
        "operation": (3, 4),
        "permission_type": (3, 2),
        "mechanism": (1, 2),
        "iterations": (4096, 8192),
        "config_operation": (0, 1, 2, 3),
        "upgrade_type": (1, 2),
        "election_type": (1,),
        "principal": ("User:a", "User:b"),
        "principal_type": ("User",),
        "owner_principal_type": ("User",),
        "entity_type": ("user", "client-id"),
        "key": ("producer_byte_rate", "consumer_byte_rate"),
        "partition_index": (0, 1),
        "topic_name": (METADATA_TOPIC, "u"),
        "feature": ("metadata.version", "kraft.version"),
    }

    def request(self, api: str, version: int) -> Any:
        """As the broker reads it in this version."""
        key = API_BY_NAME[api].key
        body = self._struct(request_type(key).schema, version, depth=0)
        frame = b"".join(codec.encode_request(codec.RequestHeader(key, version, 1), body))
        return codec.decode_request(frame).body

    def _one(self, field: Field, kind: str, version: int, depth: int) -> Any:
        if field.name in self.KNOWN:
            return self._next(f"known {field.name}", *self.KNOWN[field.name])
        return super()._one(field, kind, version, depth)


SMALL = {"resource_type": 2, "pattern_type": 3, "operation": 4, "permission_type": 3}
"""Of an entry, in the form that every version has."""


class Answers:
    """Values of the controller's answers, by their annotations."""

    def __init__(self, codes: tuple[ErrorCode, ...]) -> None:
        self._codes = cycle(codes)
        self._numbers = count(1_001)
        self._bools = cycle((True, False))
        self._enums: dict[Any, Iterator[Any]] = {}

    def of(self, hint: Any, name: str, size: int) -> Any:
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return self.of(next(each for each in arguments if each is not types.NoneType), name, size)
        if hint is ErrorCode:
            return next(self._codes)
        if origin is tuple and arguments[-1] is ...:
            return tuple(self.of(arguments[0], name, 2) for _ in range(size))
        if origin is tuple:
            return tuple(self.of(each, name, 2) for each in arguments)
        if origin is not None:
            return {}
        if hint is bool:
            return next(self._bools)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return next(self._enums.setdefault(hint, cycle(hint)))
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            hints = typing.get_type_hints(hint)
            return hint(**{each: self.of(hints[each], each, size) for each in hint.__struct_fields__})
        if name in SMALL:
            return SMALL[name]
        number = next(self._numbers)
        if hint is bytes:
            return number.to_bytes(16, "big")
        return number if hint is int else number + 0.5 if hint is float else f"{name} {number}"


class Controller(Call, frozen=True, kw_only=True):
    """A call whose answers are of the kind that is expected; notes what was asked."""

    answers: Any
    asked: list[str]

    async def answer(self, request: Any, expected: Any) -> Any:
        self.asked.append(f"asks {shown(request)}")
        if isinstance(self.answers, ApiError):
            return self.answers
        if expected is ReadImageResponse:
            return ReadImageResponse(image=self.image, offset=0)
        parts = [getattr(request, name) for name in request.__struct_fields__]
        size = max([len(each) for each in parts if isinstance(each, tuple)], default=2)
        return self.answers.of(expected, "", size)


KINDS = {
    "answered": (ErrorCode.NONE,),
    "refused in part": (ErrorCode.NONE, ErrorCode.INVALID_REQUEST, ErrorCode.POLICY_VIOLATION),
    "refused": None,
}


async def told(api: str, version: int, known: MetadataImage) -> list[str]:
    lines = []
    for kind, codes in KINDS.items():
        call = Controller(
            version=version,
            ask=None,  # type: ignore[arg-type]
            wall_ms=1_234,
            image=known,
            principal="User:ann",
            new_topics=NewTopics({"num.partitions": "3"}),
            token_hmac=lambda token_id: b"hmac of " + token_id.encode(),
            answers=REFUSED if codes is None else Answers(codes),
            asked=[],
        )
        body = await FORWARDED[api].handle(Requests((0,)).request(api, version), call)
        key = API_BY_NAME[api].key
        frame = b"".join(codec.encode_response(key, version, 1, body))
        answer = codec.decode_response(key, version, frame).body
        lines += [f"{kind}:", *(f"    {each}" for each in [*call.asked, f"gives {shown(answer)}"])]
    return lines


async def test_forwarded_requests_are_what_was_recorded(request: pytest.FixtureRequest) -> None:
    lines: list[str] = []
    known = image()
    for api, each in FORWARDED.items():
        before: list[str] = []
        for version in range(each.min_version, each.max_version + 1):
            found = await told(api, version, known)
            if found != before:
                lines += [f"{api} from {version}", *(f"    {line}" for line in found)]
            before = found
    actual = "\n".join(lines) + "\n"
    if request.config.getoption("--rewrite"):
        RECORDED.write_text(actual, encoding="utf-8")
    assert actual == RECORDED.read_text(encoding="utf-8"), "review: pytest with --rewrite"


async def test_a_topic_that_is_not_deleted_is_named_as_the_client_named_it() -> None:
    """Who may not delete a topic does not learn its name from its id."""
    ids = [bytes([at]) * 16 for at in range(3)]

    async def ask(_: Any) -> TopicsResponse:
        codes = (ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return TopicsResponse(
            results=tuple(
                TopicResult(name=f"name {at}", topic_id=ids[at], error=code, message=None)
                for at, code in zip((1, 2), codes, strict=True)
            )
        )

    state = DeleteTopicsRequest.DeleteTopicState
    body = DeleteTopicsRequest(topics=tuple(state(name=None, topic_id=ids[at]) for at in (1, 2)))
    call = Call(version=6, ask=ask, wall_ms=0, image=image())  # type: ignore[arg-type]
    answer = await FORWARDED["DeleteTopics"].handle(body, call)
    found = [(each.name, each.topic_id, each.error_code) for each in answer.responses]
    assert found == [("name 1", ids[1], 0), (None, ids[2], 29)]
