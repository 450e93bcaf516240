"""Requests that name many things are answered in slices, so that the requests of others wait for one slice.

`CUTS` has their fields and the size of a slice: some milliseconds of work, rights and logging included. A
sliced request answers an item that it names several times once, and its answer has at most ANSWER_VALUES_MAX
values. What changes something is cut only if it is so long that no other request of its connection is in
progress (`FEW_VALUES`), so that the order on a connection stays.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from metaquorum.listeners.long_work import LongAnswer
from metaquorum.listeners.services import Client, EndConnection, Handler, Offered
from metaquorum.network.deferred import pause
from metaquorum.wire.codec import FEW_VALUES, Request

ANSWER_VALUES_MAX = 1 << 20
"""Structures in one answer to a sliced request: some hundred bytes of memory each."""

NAMED_AT_ONCE = 1_024
"""Things of a request that are compared without a pause."""

Level = tuple[str, str]
"""A field of the request, or of an item of it, and the field of the answer with the results; "" if the answer
has none."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """`levels`: the field of the request whose items are cut; then the field of an item whose parts are cut,
    and so on. A slice has `values` things of the last level. Requests with more than `above` items and parts
    are cut, from version `since` on."""

    levels: tuple[Level, ...]
    values: int = 128
    above: int = 128
    is_distinct: bool = False
    """What is named several times is answered once."""
    last_counts: bool = False
    """Of what is named several times, the last counts, as in a request that is not cut."""
    all_begin: bool = False
    """A slice begins before the answer to the one before: nothing waits for it meanwhile."""
    since: int = 0
    until: int = 2**15 - 1


def _each(items: str, results: str, **more: Any) -> Cut:
    return Cut(levels=((items, results),), is_distinct=True, **more)


def _parts(*levels: Level, **more: Any) -> Cut:
    return Cut(levels=levels, **more)


def _changes(*levels: Level, **more: Any) -> Cut:
    """Large slices: each may be an append of its own."""
    return Cut(levels=levels, **{"values": 512, "above": FEW_VALUES, **more})


PRODUCE = "Produce"
_TOPICS: Level = ("topics", "topics")
_BY_INDEX: Level = ("partition_indexes", "partitions")
_PARTITIONS: Level = ("partitions", "partitions")

CUTS: Mapping[str, tuple[Cut, ...]] = {
    "Metadata": (_each("topics", "topics", values=64, above=64),),
    "FindCoordinator": (_each("coordinator_keys", "coordinators", since=4),),
    "DescribeGroups": (_each("groups", "groups"),),
    "ConsumerGroupDescribe": (_each("group_ids", "groups", values=64),),
    "DeleteGroups": (_each("groups_names", "results"),),
    "DescribeTransactions": (_each("transactional_ids", "transaction_states"),),
    "DescribeConfigs": (_each("resources", "results", values=16, above=16),),
    "DescribeUserScramCredentials": (_each("users", "results", values=512, above=FEW_VALUES),),
    "OffsetFetch": (
        _parts(("groups", "groups"), _TOPICS, _BY_INDEX, values=64, since=8),
        _parts(_TOPICS, _BY_INDEX, until=7),
    ),
    "ListOffsets": (_parts(_TOPICS, _PARTITIONS),),
    "OffsetForLeaderEpoch": (_parts(_TOPICS, _PARTITIONS),),
    "DescribeProducers": (_parts(_TOPICS, _BY_INDEX),),
    "DeleteRecords": (_parts(_TOPICS, _PARTITIONS),),
    "AddPartitionsToTxn": (  # each transaction adds all or nothing
        _changes(("transactions", "results_by_transaction"), values=256, since=4),
    ),
    "WriteTxnMarkers": (_changes(("markers", "markers"), _TOPICS, _BY_INDEX, values=128, all_begin=True),),
    "AlterReplicaLogDirs": (_changes(("dirs", ""), ("topics", "results"), _PARTITIONS, values=64),),
    PRODUCE: (
        _changes(
            ("topic_data", "responses"),
            ("partition_data", "partition_responses"),
            values=256,
            last_counts=True,
            all_begin=True,
        ),
    ),
    "OffsetCommit": (_changes(_TOPICS, _PARTITIONS, values=256),),
    "TxnOffsetCommit": (_changes(_TOPICS, _PARTITIONS, values=256),),
    "OffsetDelete": (_changes(_TOPICS, _PARTITIONS, values=256),),
    "LeaveGroup": (_changes(("members", "members")),),
}


async def produced_in_slices(request: Request, client: Client, handler: Handler) -> Any:
    """The answer to a Produce. Its handler cuts it by itself, so that others do not pass here."""
    (cut,) = CUTS[PRODUCE]
    return (await in_slices(PRODUCE, cut, request, client, handler, asyncio.Lock())).body


def sliced(offered: Mapping[str, Offered]) -> dict[str, Offered]:
    """The same APIs, those of CUTS but Produce in slices."""
    turn = asyncio.Lock()
    return {
        name: each if name not in CUTS or name == PRODUCE else _sliced(name, each, CUTS[name], turn)
        for name, each in offered.items()
    }


def _sliced(api: str, offered: Offered, cuts: tuple[Cut, ...], turn: asyncio.Lock) -> Offered:
    def handle(request: Request, client: Client) -> Any:
        version = request.header.version
        cut = next((each for each in cuts if each.since <= version <= each.until), None)
        if cut is None or (request.frame is not None and request.end <= cut.above):
            return offered.handle(request, client)  # every item takes a byte
        if count_of(request.body, cut.levels) <= cut.above:
            return offered.handle(request, client)
        return in_slices(api, cut, request, client, offered.handle, turn)

    return Offered(offered.min_version, offered.max_version, handle)


def count_of(body: Any, levels: tuple[Level, ...]) -> int:
    """How many items and parts a request has."""
    items, count = [body], 0
    for name, _ in levels:
        items = [each for item in items for each in getattr(item, name) or ()]
        count += len(items)
    return count


async def in_slices(
    api: str, cut: Cut, request: Request, client: Client, handler: Handler, turn: asyncio.Lock
) -> LongAnswer:
    """The answer, joined from those to slices of the request; `turn`: that of all requests that share it."""
    leaves: Iterable[_Leaf] = _leaves(getattr(request.body, cut.levels[0][0]), cut.levels)
    if cut.is_distinct or cut.last_counts:
        leaves = await _once(leaves, _itself if cut.is_distinct else _name)
    answers = _Answers(api, cut.levels)
    begun: deque[tuple[Any, int]] = deque()
    before: _Leaf | None = None
    rest = iter(leaves)
    while piece := list(islice(rest, cut.values)):
        shared = 0 if before is None else _shared(before, piece[0])
        before = piece[-1]
        asked = request.changed(replace(request.body, **{cut.levels[0][0]: _items_of(piece, cut.levels[1:])}))
        # One slice of all requests in each turn of the loop.
        async with turn:
            begun.append((handler(asked, client), shared))
            await pause()
        if not (cut.all_begin or await answers.take(*begun.popleft())):
            break
    for found, shared in begun:
        await answers.take(found, shared)
        await pause()
    return LongAnswer(answers.joined())


class _Leaf(NamedTuple):
    """A thing of the last level, or an item without such: itself behind the items that it is in, and the
    places of these."""

    chain: tuple[Any, ...]
    places: tuple[int, ...]


def _leaves(
    items: Iterable[Any], levels: tuple[Level, ...], chain: tuple[Any, ...] = (), places: tuple[int, ...] = ()
) -> Iterator[_Leaf]:
    rest = levels[1:]
    for index, item in enumerate(items):
        parts = getattr(item, rest[0][0]) if rest else None
        if parts:
            yield from _leaves(parts, rest, (*chain, item), (*places, index))
        else:
            yield _Leaf((*chain, item), (*places, index))


def _items_of(leaves: Iterable[_Leaf], levels: tuple[Level, ...], depth: int = 0) -> tuple[Any, ...]:
    """The items with these leaves only; `levels`: those within an item."""
    items = []
    for _, group in groupby(leaves, lambda leaf: leaf.places[depth]):
        first, *others = group
        item = first.chain[depth]
        if len(first.chain) > depth + 1:
            parts = _items_of((first, *others), levels[1:], depth + 1)
            item = replace(item, **{levels[0][0]: parts})
        items.append(item)
    return tuple(items)


def _shared(leaf: _Leaf, other: _Leaf) -> int:
    """How many levels of items have both of these leaves."""
    alike = [one == two for one, two in zip(leaf.places, other.places, strict=False)]
    return next((depth for depth, same in enumerate(alike) if not same), len(alike))


async def _once(leaves: Iterable[_Leaf], name_of: Callable[[_Leaf], Any]) -> Iterable[_Leaf]:
    """Of several leaves with one name, the last, where the first one was."""
    by_name: dict[Any, _Leaf] = {}
    rest = iter(leaves)
    while piece := list(islice(rest, NAMED_AT_ONCE)):
        for leaf in piece:
            name = name_of(leaf)
            first = by_name.get(name)
            by_name[name] = (
                leaf if first is None else _Leaf((*first.chain[:-1], leaf.chain[-1]), first.places)
            )
        await pause()
    return by_name.values()


def _itself(leaf: _Leaf) -> Any:
    return leaf.chain[-1]


def _name(leaf: _Leaf) -> tuple[Any, ...]:
    return tuple([each for item in leaf.chain for each in _names(item)])


def _names(item: Any) -> list[Any]:
    """What an item or a result is about."""
    return [getattr(item, field) for field in _NAMES if hasattr(item, field)]


_NAMES = ("group_id", "transactional_id", "producer_id", "name", "topic_name", "topic_id", "index")


class _Answers:
    """The answers to the slices of a request, and what becomes of them."""

    def __init__(self, api: str, levels: tuple[Level, ...]) -> None:
        self._api = api
        self._fields = [result for _, result in levels if result]
        self._unanswered = len(levels) - len(self._fields)
        self._first: Any = None
        self._results: list[Any] = []
        self._endpoints: dict[int, Any] = {}
        self._values = 0

    async def take(self, answering: Any, shared: int) -> bool:
        """The next one. `shared`: at how many levels it continues the one before. False: it refuses all."""
        answer = await answering if isinstance(answering, Awaitable) else answering
        if answer is None:
            return True
        if self._first is None or _code(answer):
            self._first = answer
        more = getattr(answer, self._fields[0])
        self._values += _structures(more)
        if self._values > ANSWER_VALUES_MAX:
            raise EndConnection(f"the answer to its {self._api} is too large: ask for fewer things at once")
        self._results = _joined(self._results, more, self._fields, shared - self._unanswered)
        self._endpoints |= {each.node_id: each for each in getattr(answer, "node_endpoints", ())}
        return not _code(answer)

    def joined(self) -> Any:
        """One answer; None if there is none. One that refuses all is the whole answer."""
        first = self._first
        if first is None or _code(first):
            return first
        values: dict[str, Any] = {self._fields[0]: tuple(self._results)}
        if self._endpoints:
            values["node_endpoints"] = tuple([self._endpoints[each] for each in sorted(self._endpoints)])
        return replace(first, **values)


def _code(answer: Any) -> int:
    """Why all of it is refused."""
    return getattr(answer, "error_code", 0)


def _joined(results: list[Any], more: Sequence[Any], fields: Sequence[str], shared: int) -> list[Any]:
    """Changes `results`. An item that is refused once is refused."""
    if shared > 0 and results and more and len(fields) > 1 and _names(results[-1]) == _names(more[0]):
        last, continued, name = results.pop(), more[0], fields[1]
        more = more[1:]
        if _code(continued):
            last = continued
        elif not _code(last):
            parts = _joined([*getattr(last, name)], getattr(continued, name), fields[1:], shared - 1)
            last = replace(last, **{name: tuple(parts)})
        results.append(last)
    results += more
    return results


def _structures(results: Any) -> int:
    """How many structures are in these results."""
    count, left = 0, [*results]
    while left:
        value = left.pop()
        if isinstance(value, msgspec.Struct):
            count += 1
            left += [getattr(value, name) for name in value.__struct_fields__]
        elif type(value) is tuple:
            left += value
    return count
