"""The most things that one request to the active controller may name, and the refusal of more.

A decision is one turn of the controller's loop, and its records are one batch: both have a bound. Kafka
refuses what would write more than 10,000 records with the same code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from metaquorum.listeners.forwarded.api import Forwarded
from metaquorum.listeners.services import Client
from metaquorum.listeners.slices import Cut, count_of, in_slices
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.wire.codec import Request
from metaquorum.wire.table import APIS

THINGS_MAX = 10_000
"""Topics, partitions, settings, entries and the like."""
REFUSED_AT_ONCE = 512
"""Things that are refused without a pause."""

TOO_MANY = ApiError(
    ErrorCode.POLICY_VIOLATION, f"a request may name {THINGS_MAX} things: split it into several requests"
)
_NOBODY = Client(listener="", address="")


def names_too_many(api: Forwarded, body: Any) -> bool:
    """Whether a request must be refused with TOO_MANY."""
    return sum([count_of(body, levels) for levels in api.things]) > THINGS_MAX


async def refused_in_slices(api: Forwarded, request: Request, refuse: Callable[[Any], Awaitable[Any]]) -> Any:
    """The refusal of a request of any length. `refuse` returns the refusal of a body."""
    body, name = request.body, APIS[request.header.api_key].name
    lists = [levels for levels in api.things if getattr(body, levels[0][0])]
    answer: Any = None
    turn = asyncio.Lock()
    for levels in lists:
        alone = replace(body, **{other[0][0]: () for other in lists if other is not levels})
        answered = tuple([level for level in levels if level[1]])
        cut = Cut(levels=answered, values=REFUSED_AT_ONCE)
        asked = request.changed(alone)
        refusal = (await in_slices(name, cut, asked, _NOBODY, lambda each, _: refuse(each.body), turn)).body
        field = levels[0][1]
        if answer is not None:
            refusal = replace(refusal, **{field: (*getattr(answer, field), *getattr(refusal, field))})
        answer = refusal
    return answer
