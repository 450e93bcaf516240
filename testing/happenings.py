"""What clients and brokers did in a test cluster, on one time axis with its metadata log and its faults."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from typing import Any

import msgspec

from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.wire.codec import Request
from metaquorum.wire.schema import StructSchema
from metaquorum.wire.table import API_BY_NAME, response_type

KEPT_MAX = 2_000
"""How many happenings are kept, the newest ones."""
LINES_MAX = 40
LONG_MS = 1 << 62
"""Of a time without records that is worth a line: none is."""
NAMES = ("name", "topic", "group_id", "transactional_id", "key", "resource_name")
"""Fields by which an entry of a response says what it is about."""
INDEXES = ("partition_index", "partition", "index")
STEPS = frozenset({ErrorCode.MEMBER_ID_REQUIRED.name})
"""Codes that are a step of the protocol: with this one, a member gets its id (KIP-394)."""


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    """`wall_ms`: Unix time by the cluster's clock. `kind`: metadata, group, transaction, error or fault."""

    wall_ms: int
    kind: str
    text: str


class Observed:
    """What answers to clients show: errors, rebalances and transactions. For the cluster's loop."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self.kept: deque[Happening] = deque(maxlen=KEPT_MAX)
        self._wall_ms = wall_ms
        self._generations: dict[str, int] = {}

    def note(self, kind: str, text: str) -> None:
        self.kept.append(Happening(wall_ms=self._wall_ms(), kind=kind, text=text))

    def answered(self, api: str, node: int, request: Request, answer: Any) -> None:
        """A broker has answered a client."""
        who = f"{api} of {request.header.client_id} at broker {node}"
        problems = [] if answer is None else list(dict.fromkeys(_problems(answer, _places_in(api))))
        for about, code in problems[:3]:
            if code not in STEPS:
                self.note("error", f"{who}: {code}{about and f' ({about})'}")
        body = request.body
        if problems:
            return
        if api == "SyncGroup" and self._generations.get(body.group_id) != body.generation_id:
            self._generations[body.group_id] = body.generation_id
            self.note("group", f"group {body.group_id} is rebalanced: generation {body.generation_id}")
        elif api == "LeaveGroup":
            self.note("group", f"a member left group {body.group_id}")
        elif api == "ConsumerGroupHeartbeat" and body.member_epoch <= 0:
            does = "left" if body.member_epoch < 0 else "joins"
            self.note("group", f"member {answer.member_id or body.member_id} {does} group {body.group_id}")
        elif api == "EndTxn":
            ending = "commit" if body.committed else "abort"
            self.note("transaction", f"transaction {body.transactional_id}: {ending}")
        elif api == "InitProducerId" and body.transactional_id:
            producer = f"producer {answer.producer_id}, epoch {answer.producer_epoch}"
            self.note("transaction", f"transaction {body.transactional_id}: {producer}")


class _Places(msgspec.Struct, frozen=True):
    """Where a structure of a response may have error codes: itself, or the structures in these fields."""

    has_code: bool
    parts: tuple[tuple[str, _Places], ...]


@cache
def _places_in(api: str) -> _Places:
    return _places(response_type(API_BY_NAME[api].key).schema)


def _places(schema: StructSchema) -> _Places:
    parts = ((each.name, _places(each.struct)) for each in schema.fields if each.struct is not None)
    return _Places(
        has_code=any(each.name == "error_code" for each in schema.fields),
        parts=tuple((name, places) for name, places in parts if places.has_code or places.parts),
    )


def _problems(value: Any, places: _Places, about: str = "") -> Iterator[tuple[str, str]]:
    """Each error code in a response, and what it is about."""
    code = value.error_code if places.has_code else 0
    if not code and not places.parts:
        return
    name = next((str(own) for each in NAMES if (own := getattr(value, each, None))), "")
    index = next((own for each in INDEXES if (own := getattr(value, each, None)) is not None), None)
    about = "-".join(part for part in (about, name, "" if index is None else str(index)) if part)
    if code:
        yield about, ErrorCode.of(code).name
        return
    for field_name, inside in places.parts:
        found = getattr(value, field_name)
        for entry in found if isinstance(found, tuple) else () if found is None else (found,):
            yield from _problems(entry, inside, about)


def of_metadata(log: MetadataLog) -> list[Happening]:
    """The story of a metadata log, as `log timeline` tells it."""
    # Only the report of a failed test needs them.
    from metaquorum.metadata.inspect.timeline.event import at_least
    from metaquorum.metadata.inspect.timeline.story import events as story_of

    # An idle cluster of a test writes little, and tests move its clock.
    story = story_of(log, lambda line: None, shown=at_least("info"), gap_ms=LONG_MS)
    return [
        Happening(wall_ms=each.time_ms, kind="metadata", text=f"{each.kind}: {each.text}") for each in story
    ]


def lines_of(happenings: list[Happening], lines_max: int = LINES_MAX) -> list[str]:
    """The last ones in order of time, one a line; those that follow each other and are alike are one."""
    merged: list[tuple[Happening, int]] = []
    for event in sorted(happenings, key=lambda happening: happening.wall_ms):
        if merged and (merged[-1][0].kind, merged[-1][0].text) == (event.kind, event.text):
            merged[-1] = event, merged[-1][1] + 1
        else:
            merged.append((event, 1))
    left = len(merged) - lines_max
    first = [] if left <= 0 else [f"... {left + 1} earlier events"]
    return first + [_line(*each) for each in merged[max(0, left + bool(first)) :]]


def _line(happening: Happening, count: int) -> str:
    at = datetime.fromtimestamp(happening.wall_ms / 1000, UTC)
    times = f" ({count} times)" if count > 1 else ""
    return f"{at:%H:%M:%S}.{happening.wall_ms % 1000:03d}  {happening.kind:<11}  {happening.text}{times}"
