"""Requests that name many things are answered in slices, so that the requests of others wait for one slice.

`CUTS` has their fields and the size of a slice: some milliseconds of work, rights and logging included. A
sliced request answers an item that it names several times once, and its answer has at most ANSWER_VALUES_MAX
values.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from metaquorum.listeners.long_work import LongAnswer
from metaquorum.listeners.services import Client, EndConnection, Handler, Offered
from metaquorum.wire.codec import Request

ANSWER_VALUES_MAX = 1 << 20
"""Structures in one answer to a sliced request: some hundred bytes of memory each."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """The field of the request whose items are answered one by one, the field of the answer with the results,
    and how many values of items a slice has. `parts` is the field of an item that is cut, too, if it is long,
    and of its result. From version `since` on."""

    items: str
    results: str
    values: int = 128
    parts: str = ""
    result_parts: str = "partitions"
    is_distinct: bool = True
    since: int = 0
    until: int = 2**15 - 1


def _parts(items: str, results: str, parts: str, **more: Any) -> Cut:
    return Cut(items=items, results=results, parts=parts, is_distinct=False, **more)


CUTS: Mapping[str, tuple[Cut, ...]] = {
    "Metadata": (Cut(items="topics", results="topics", values=64),),
    "FindCoordinator": (Cut(items="coordinator_keys", results="coordinators", since=4),),
    "DescribeGroups": (Cut(items="groups", results="groups"),),
    "ConsumerGroupDescribe": (Cut(items="group_ids", results="groups"),),
    "DeleteGroups": (Cut(items="groups_names", results="results"),),
    "DescribeTransactions": (Cut(items="transactional_ids", results="transaction_states"),),
    "DescribeConfigs": (Cut(items="resources", results="results", values=16),),
    "OffsetFetch": (
        Cut(items="groups", results="groups", values=64, since=8),
        _parts("topics", "topics", "partition_indexes", until=7),
    ),
    "ListOffsets": (_parts("topics", "topics", "partitions"),),
    "OffsetForLeaderEpoch": (_parts("topics", "topics", "partitions"),),
    "DescribeProducers": (_parts("topics", "topics", "partition_indexes"),),
    "DeleteRecords": (_parts("topics", "topics", "partitions"),),
}


def sliced(offered: Mapping[str, Offered]) -> dict[str, Offered]:
    """The same APIs, those of CUTS in slices."""
    turn = asyncio.Lock()
    return {
        name: each if name not in CUTS else _sliced(name, each, CUTS[name], turn)
        for name, each in offered.items()
    }


def _sliced(api: str, offered: Offered, cuts: tuple[Cut, ...], turn: asyncio.Lock) -> Offered:
    def handle(request: Request, client: Client) -> Any:
        version = request.header.version
        cut = next((each for each in cuts if each.since <= version <= each.until), None)
        if cut is None:
            return offered.handle(request, client)
        items = getattr(request.body, cut.items) or ()
        if _values(items, cut) <= cut.values:
            return offered.handle(request, client)
        return _in_slices(api, cut, request, client, offered.handle, turn)

    return Offered(offered.min_version, offered.max_version, handle)


def _values(items: tuple[Any, ...], cut: Cut) -> int:
    return len(items) + (sum([len(getattr(item, cut.parts)) for item in items]) if cut.parts else 0)


async def _in_slices(
    api: str, cut: Cut, request: Request, client: Client, handler: Handler, turn: asyncio.Lock
) -> LongAnswer:
    items = getattr(request.body, cut.items)
    results: list[Any] = []
    first: Any = None
    values = 0
    for piece, continues in _pieces(tuple(dict.fromkeys(items)) if cut.is_distinct else items, cut):
        asked = request.changed(replace(request.body, **{cut.items: piece}))
        # One slice of all requests in each turn of the loop.
        async with turn:
            found = handler(asked, client)
            await asyncio.sleep(0)
        answer = await found if isinstance(found, Awaitable) else found
        first = answer if first is None else first
        more = getattr(answer, cut.results)
        values += _structures(more)
        if values > ANSWER_VALUES_MAX:
            raise EndConnection(f"the answer to its {api} is too large: ask for fewer things at once")
        if continues and results and more:
            more = (_joined(results.pop(), more[0], cut.result_parts), *more[1:])
        results += more
    return LongAnswer(replace(first, **{cut.results: tuple(results)}))


def _pieces(items: tuple[Any, ...], cut: Cut) -> Iterator[tuple[tuple[Any, ...], bool]]:
    """The items in slices. True: the slice has more parts of the item before it."""
    piece: list[Any] = []
    room = cut.values
    for item in items:
        parts = getattr(item, cut.parts) if cut.parts else ()
        if piece and 1 + len(parts) > room:
            yield tuple(piece), False
            piece, room = [], cut.values
        if len(parts) < cut.values:
            piece.append(item)
            room -= 1 + len(parts)
            continue
        for start in range(0, len(parts), cut.values):
            yield (replace(item, **{cut.parts: parts[start : start + cut.values]}),), start > 0
    if piece:
        yield tuple(piece), False


def _joined(result: Any, more: Any, parts: str) -> Any:
    return replace(result, **{parts: getattr(result, parts) + getattr(more, parts)})


def _structures(found: Any) -> int:
    """How many structures are in these results."""
    count, left = 0, [*found]
    while left:
        each = left.pop()
        if isinstance(each, msgspec.Struct):
            count += 1
            left += [getattr(each, name) for name in each.__struct_fields__]
        elif type(each) is tuple:
            left += each
    return count
