"""Faults of single requests: which requests they match, and what becomes of those.

An error code is where the broker
itself puts it: at the partition, with the rest of the request carried out, or for the whole answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypedDict, get_type_hints

from msgspec.structs import replace

from metaquorum.listeners.services import Client
from metaquorum.metadata.errors import ErrorCode
from metaquorum.testing.errors import ClusterError
from metaquorum.wire.codec import Request
from metaquorum.wire.table import API_BY_NAME, response_type

# The end of a fault, for which requests on the cluster's loop wait.


class Release:
    """Not set until its fault heals."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_set = False
        self._waiting: set[asyncio.Future[None]] = set()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """On any thread: what waits goes on."""
        with self._lock:
            self._is_set = True
            waiting = tuple(self._waiting)
        for ahead in waiting:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and what waited with it
                ahead.get_loop().call_soon_threadsafe(_settle, ahead)

    async def wait(self, at_most_s: float | None = None) -> None:
        """Returns once it is set, or after this time of the loop. Needs no task."""
        loop = asyncio.get_running_loop()
        ahead: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self._is_set:
                return
            self._waiting.add(ahead)
        timer = None if at_most_s is None else loop.call_later(at_most_s, _settle, ahead)
        try:
            await ahead
        finally:
            with self._lock:
                self._waiting.discard(ahead)
            if timer is not None:
                timer.cancel()


def _settle(ahead: asyncio.Future[None]) -> None:
    if not ahead.done():
        ahead.set_result(None)


AFTER_THE_WORK = frozenset({"REQUEST_TIMED_OUT", "NOT_ENOUGH_REPLICAS_AFTER_APPEND"})
"""Codes that a broker gives for a produce that it has stored."""
TOPIC_FIELDS = ("name", "topic", "topic_id")
"""Where an entry names its topic, whichever it has."""
READS = frozenset({"Fetch", "ListOffsets"})
"""APIs that change nothing: the code replaces what was read."""


@dataclass(frozen=True, slots=True)
class PartitionFields:
    """Where an API has its partitions: fields of topics, partitions and index, in request and response."""

    asked: tuple[str, str, str]
    answered: tuple[str, str, str]


_SAME = PartitionFields(
    ("topics", "partitions", "partition_index"), ("topics", "partitions", "partition_index")
)
PARTITIONS = {
    "Produce": PartitionFields(
        ("topic_data", "partition_data", "index"), ("responses", "partition_responses", "index")
    ),
    "Fetch": PartitionFields(
        ("topics", "partitions", "partition"), ("responses", "partitions", "partition_index")
    ),
    "ListOffsets": _SAME,
    "OffsetCommit": _SAME,
    "TxnOffsetCommit": _SAME,
}
"""APIs whose errors are of single partitions."""


@dataclass(frozen=True, slots=True)
class EntityFields:
    """Where an API has topics, groups or other entities: the list and the field of an entry's name, in
    request and response. `asked_name` None: the entry is the name."""

    asked: str
    asked_name: str | None
    answered: str
    answered_name: str


ENTITIES = {
    "AlterConfigs": EntityFields("resources", "resource_name", "responses", "resource_name"),
    "CreatePartitions": EntityFields("topics", "name", "results", "name"),
    "CreateTopics": EntityFields("topics", "name", "topics", "name"),
    "DeleteGroups": EntityFields("groups_names", None, "results", "group_id"),
    "DeleteTopics": EntityFields("topics", "name", "responses", "name"),
    "DescribeConfigs": EntityFields("resources", "resource_name", "results", "resource_name"),
    "DescribeGroups": EntityFields("groups", None, "groups", "group_id"),
    "FindCoordinator": EntityFields("coordinator_keys", None, "coordinators", "key"),
    "IncrementalAlterConfigs": EntityFields("resources", "resource_name", "responses", "resource_name"),
    "Metadata": EntityFields("topics", "name", "topics", "name"),
    "OffsetFetch": EntityFields("groups", "group_id", "groups", "group_id"),
}
"""APIs whose errors are of single entities; where an old version has one code for all, it is there."""


class Which(TypedDict, total=False):
    """The keywords of `Cluster.observe`: which requests it counts."""

    topic: str
    """Its name, also of requests that have its id."""
    partition: int
    group: str
    transaction: str
    """The transactional id."""
    resource: str
    """The name of a topic, broker or other resource whose configuration or ACLs the request is about."""
    node: int
    """The broker that gets the request."""
    client: str
    """The client id, or the principal."""
    predicate: Callable[[Any], bool]
    """True for the requests to meet, as `wire` decodes them."""


class How(Which, total=False):
    """The keywords of `Cluster.fault`: which requests it meets, and what becomes of them."""

    times: int
    """How many to meet; all, if it is left out."""
    error: str
    """The name of the code to answer, where the broker puts it; the rest of the request is carried out."""
    delay_s: float
    """Seconds by which the answer is late, by the cluster's clock; at most until the fault is removed."""
    throttle_ms: int
    """The answer asks the client to wait."""
    hold: bool
    """It is carried out once the fault is removed."""
    lose_answer: bool
    """It is carried out, then the connection ends."""
    disconnect: bool
    """The connection ends instead."""


@dataclass(slots=True, kw_only=True)
class RequestFault:
    """A fault in force. `code`: that of `error`."""

    api: str
    how: How
    code: ErrorCode | None
    hits: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)
    """Notified of each hit."""
    released: Release = field(default_factory=Release)
    """Set when it was removed."""

    @classmethod
    def of(cls, api: str, how: How) -> RequestFault:
        """Raises ClusterError for what a broker would not answer."""
        known = list(get_type_hints(How))
        unknown = sorted(set(how) - set(known))
        if unknown:
            raise ClusterError(f"a fault has no {', '.join(unknown)}: it has {', '.join(known)}")
        if not how.get("times", 1):
            raise ClusterError("times=0: a fault meets at least one request; without it, it meets all")
        return cls(api=api, how=how, code=_code(api, how.get("error")))

    @property
    def only_counts(self) -> bool:
        return set(self.how) <= {*Which.__annotations__, "times"}

    def takes(self, node: int, request: Request, client: Client, topics: TopicNames) -> bool:
        """Counts a request that it meets, on the loop."""
        how, names = self.how, (request.header.client_id, client.principal)
        if self.hits >= how.get("times", self.hits + 1):
            return False
        if how.get("node", node) != node or how.get("client", names[0]) not in names:
            return False
        if ("topic" in how or "partition" in how) and not self.partitions_in(request.body, topics):
            return False
        if not all(how[kind] in named(request.body, kind) for kind in NAMED if kind in how):  # type: ignore[literal-required]
            return False
        if "predicate" in how and not how["predicate"](request.body):
            return False
        with self.changed:
            self.hits += 1
            self.changed.notify_all()
        return True

    def matches_topic(self, entry: Any, topics: TopicNames) -> bool:
        """Whether it is about a topic of a request or response."""
        return "topic" not in self.how or topics(entry) == self.how["topic"]

    def matches_index(self, index: int) -> bool:
        """Whether it is about a partition of such a topic."""
        return self.how.get("partition", index) == index

    def partitions_in(self, body: Any, topics: TopicNames) -> bool:
        """Whether a request names a partition that it is about, or the topic."""
        places = PARTITIONS.get(self.api)
        if places is None:
            return any(self.matches_topic(each, topics) for each in getattr(body, "topics", None) or ())
        of_topics, of_partitions, index = places.asked
        return any(
            self.matches_index(getattr(part, index))
            for topic in getattr(body, of_topics)
            if self.matches_topic(topic, topics)
            for part in getattr(topic, of_partitions)
        )


TopicNames = Callable[[Any], str | None]
"""The topic's name of an entry that has its name or its id."""


_WRITE = "in Kafka's protocol: write one such as"


def check_api(api: str) -> None:
    """Raises ClusterError for a name that no API has."""
    if api not in API_BY_NAME:
        raise ClusterError(f"there is no API {api!r} {_WRITE} Produce or JoinGroup")


def _code(api: str, error: str | None) -> ErrorCode | None:
    check_api(api)
    if error is None:
        return None
    code = ErrorCode.__members__.get(error)
    if code is None or code is ErrorCode.NONE:
        raise ClusterError(f"there is no error {error!r} {_WRITE} REQUEST_TIMED_OUT")
    fields = response_type(API_BY_NAME[api].key).cls.__struct_fields__
    if api not in PARTITIONS and api not in ENTITIES and "error_code" not in fields:
        known = ", ".join(sorted((*PARTITIONS, *ENTITIES)))
        raise ClusterError(
            f"error= needs an API with one code for the whole answer, or one of {known}; {api} has neither"
        )
    return code


def describe(fault: RequestFault) -> str:
    """One line for `events`."""
    how = ", ".join(f"{name}={value}" for name, value in fault.how.items() if name != "predicate")
    return f"requests {fault.api}: {how or 'counted'}"


CarryOut = Callable[[Request], Awaitable[Any]]
"""Has the broker answer a request."""


async def with_error(fault: RequestFault, request: Request, carry_out: CarryOut, topics: TopicNames) -> Any:
    """The broker's answer, with the fault's error where the broker would put it."""
    error, body = fault.code, request.body
    if error is None:
        return await carry_out(request)
    cls = response_type(request.header.api_key).cls
    entities = ENTITIES.get(fault.api)
    asked = () if entities is None else getattr(body, entities.asked)
    if asked is None:  # of all topics, and of none by its name
        return await carry_out(request)
    if entities is not None and asked:
        return await _with_entity_errors(fault, entities, request, carry_out)
    places = PARTITIONS.get(fault.api)
    if places is None:
        return cls(error_code=error.value)
    left, failing = _divided(fault, places, body, topics)
    if fault.api == "Fetch":  # it must not wait for messages of partitions that fail
        left = replace(body, max_wait_ms=0)
    elif fault.api in READS or error.name in AFTER_THE_WORK:
        left = body
    answer = await carry_out(request.changed(left)) if getattr(left, places.asked[0]) else None
    if answer is None and getattr(body, "acks", 1) == 0:
        return None
    return _with_errors(places, answer or cls(), failing, error)


async def _with_entity_errors(
    fault: RequestFault, fields: EntityFields, request: Request, carry_out: CarryOut
) -> Any:
    """The answer, with the error at the entries that the fault names; at all, if it names none."""
    how, key, error = fault.how, fields.asked_name, fault.code or ErrorCode.NONE
    wanted = {how[kind] for kind in ("topic", *NAMED) if kind in how}  # type: ignore[literal-required]
    failing: list[Any] = []
    left: list[Any] = []
    for entry in getattr(request.body, fields.asked):
        name = entry if key is None else getattr(entry, key)
        (failing if not wanted or name in wanted else left).append(entry)
    cls = response_type(request.header.api_key).cls
    answer = cls()
    if left:
        body = replace(request.body, **{fields.asked: tuple(left)})
        answer = await carry_out(request.changed(body))
    nested: list[Any] = [each for each in vars(cls).values() if isinstance(each, type)]
    entry_cls = next(
        each
        for each in nested
        if {"error_code", fields.answered_name} <= {*getattr(each, "__struct_fields__", ())}
    )
    added = []
    for entry in failing:
        values: dict[str, Any] = {fields.answered_name: entry if key is None else getattr(entry, key)}
        shared = ({*entry_cls.__struct_fields__} & {*getattr(entry, "__struct_fields__", ())}) & ENTRY_FIELDS
        values |= {name: getattr(entry, name) for name in shared}
        added.append(entry_cls(**values, error_code=error.value))
    return replace(answer, **{fields.answered: (*getattr(answer, fields.answered), *added)})


NAMED: dict[str, tuple[str, ...]] = {
    "group": ("group_id", "groups", "groups_names"),
    "transaction": ("transactional_id", "transactional_ids", "transactions"),
    "resource": ("resource_name", "resource_name_filter", "resources", "creations", "filters"),
}
"""In which fields a request has the names of a kind: of its own, or of entries that have them."""
COORDINATORS = {"group": 0, "transaction": 1}
"""The kinds of FindCoordinator."""
ENTRY_FIELDS = frozenset({"topic_id", "resource_type"})
"""What an entry of a response has from that of the request, besides the name."""


def named(body: Any, kind: str) -> set[str]:
    """The names of a kind in a request."""
    names: set[str] = set()
    if getattr(body, "key_type", None) == COORDINATORS.get(kind, -1):
        names |= {body.key, *body.coordinator_keys}
    for field_name in NAMED[kind]:
        value = getattr(body, field_name, None)
        for entry in value if isinstance(value, tuple) else (value,):
            if isinstance(entry, str):
                names.add(entry)
            elif entry is not None:
                names |= named(entry, kind)
    return names


def _divided(
    fault: RequestFault, places: PartitionFields, body: Any, topics: TopicNames
) -> tuple[Any, list[tuple[Any, int]]]:
    """The request without the partitions that fail, and those, each with the entry of its topic."""
    of_topics, of_partitions, index = places.asked
    left, failing = [], []
    for topic in getattr(body, of_topics):
        parts = getattr(topic, of_partitions)
        topic_matches = fault.matches_topic(topic, topics)
        matching = [each for each in parts if topic_matches and fault.matches_index(getattr(each, index))]
        failing += [(topic, getattr(part, index)) for part in matching]
        others = tuple(part for part in parts if part not in matching)
        if others:
            left.append(replace(topic, **{of_partitions: others}))
    return replace(body, **{of_topics: tuple(left)}), failing


def _with_errors(
    places: PartitionFields, answer: Any, failing: list[tuple[Any, int]], error: ErrorCode
) -> Any:
    of_topics, of_partitions, index = places.answered
    topic_cls, part_cls = _entry_classes(type(answer), of_topics, of_partitions)
    entries = list(getattr(answer, of_topics))
    for asked, number in failing:
        key = {name: getattr(asked, name) for name in TOPIC_FIELDS if hasattr(asked, name)}
        failed = part_cls(**{index: number, "error_code": error.value})
        position = next((at for at, each in enumerate(entries) if _has_key(each, key)), None)
        if position is None:
            entries.append(topic_cls(**key, **{of_partitions: (failed,)}))
            continue
        parts = [part for part in getattr(entries[position], of_partitions) if getattr(part, index) != number]
        entries[position] = replace(entries[position], **{of_partitions: (*parts, failed)})
    return replace(answer, **{of_topics: tuple(entries)})


def _has_key(entry: Any, key: dict[str, Any]) -> bool:
    return all(getattr(entry, name, value) == value for name, value in key.items())


def _entry_classes(cls: type[Any], of_topics: str, of_partitions: str) -> tuple[type[Any], type[Any]]:
    """The classes of a response's topics and partitions, which are its own."""
    nested: list[Any] = [each for each in vars(cls).values() if isinstance(each, type)]
    topic = next(each for each in nested if of_partitions in each.__struct_fields__)
    part = next(
        each
        for each in nested
        if "error_code" in each.__struct_fields__ and {"index", "partition_index"} & {*each.__struct_fields__}
    )
    return topic, part
