"""The steps in the table of checks: refuse a request or items of it, hide parts of an answer.

They know no API: `table` says which needs which. A step checks a request before the API's handler runs, and
the answer after it. Steps hold no state of a request. The form of a refused item follows from the schemas of
request and response.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from metaquorum.listeners.services import Client, EndConnection
from metaquorum.metadata.authorizer import Authorizer, Caller
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import GROUP_RESOURCE, MetadataImage
from metaquorum.metadata.settings.acls import CLUSTER_NAME, Operation, ResourceType
from metaquorum.network.deferred import pause
from metaquorum.observability.authorizer_log import note_decision
from metaquorum.wire.codec import FEW_VALUES
from metaquorum.wire.schema import StructSchema
from metaquorum.wire.table import API_BY_NAME, response_type

CODES = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ResourceType.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER
_ZERO = bytes(16)

SLICE = 128
"""Items, or parts of refused ones, that are checked without a pause in a long request: some milliseconds."""
Pauses = Generator[None, None, Any]
"""Work with places where others may be served; it returns its result."""


def at_once(work: Pauses) -> Any:
    """The result, without pauses."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


async def with_pauses(work: Pauses) -> Any:
    """The result; the loop serves others at each pause."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value
        await pause()


class AccessAsked(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is being checked: the client, the request, and the image that answers."""

    api: str
    version: int
    client: Client
    authorizer: Authorizer
    image: MetadataImage
    creates_topics: bool = False
    """Whether Metadata may create topics here."""
    answers: dict[tuple[Operation, ResourceType, str, bool], bool] = msgspec.field(default_factory=dict)
    """What was decided for this request: it may name a resource many times."""

    def by(self, image: MetadataImage) -> AccessAsked:
        """The same with another image."""
        return self if image is self.image else replace(self, image=image, answers={})

    @property
    def caller(self) -> Caller:
        return Caller(self.client.principal, self.client.address)

    def allows(
        self, operation: Operation, resource: ResourceType, name: str, *, is_asked: bool = True
    ) -> bool:
        """Whether the client has the permission. `is_asked`: it named the resource, so the decision is
        logged."""
        question = operation, resource, name, is_asked
        known = self.answers.get(question)
        if known is not None:
            return known
        allowed = self.authorizer.allows(self.image, self.caller, operation, resource, name)
        self.answers[question] = allowed
        if is_asked:
            note_decision(allowed, self.caller, operation, resource, name, self.api)
        return allowed

    def topic_name(self, item: Any) -> str | None:
        """The name of the topic that an item gives by name or id; None if no topic has that id."""
        topic_id = getattr(item, "topic_id", _ZERO)
        if topic_id != _ZERO:
            topic = self.image.topics.topic(topic_id)
            return None if topic is None else topic.name
        return item if isinstance(item, str) else _first(item, ("name", "topic", "topic_name")) or ""


def _first(item: Any, names: Iterable[str]) -> Any:
    return next((getattr(item, name) for name in names if hasattr(item, name)), None)


ITEM, CONFIGURED = "item", "configured resource"


class RightNeeded(msgspec.Struct, frozen=True):
    """One check. `source`: what names the resource: ITEM, or a field of the request; a null field needs no
    check. CONFIGURED: the resource is the one that an item configures. `other` is enough as well."""

    operation: Operation
    resource: ResourceType
    source: str = ""
    other: RightNeeded | None = None

    def failure(self, asked: AccessAsked, body: Any, item: Any = None) -> ErrorCode | None:
        """The code of the refusal; None if it is allowed."""
        if self.other is not None and self.other.passes(asked, body, item, is_asked=False):
            return None
        if self.passes(asked, body, item):
            return None
        return CODES[self._target(asked, body, item)[0]]

    def passes(self, asked: AccessAsked, body: Any, item: Any, *, is_asked: bool = True) -> bool:
        resource, name = self._target(asked, body, item)
        return name is None or asked.allows(self.operation, resource, name, is_asked=is_asked)

    def _target(self, asked: AccessAsked, body: Any, item: Any) -> tuple[ResourceType, str | None]:
        if self.source == CONFIGURED:
            kind = item.resource_type
            if kind == ResourceType.TOPIC:
                return ResourceType.TOPIC, item.resource_name
            if kind == GROUP_RESOURCE:
                return ResourceType.GROUP, item.resource_name
            return ResourceType.CLUSTER, CLUSTER_NAME
        if self.resource == ResourceType.CLUSTER:
            return self.resource, CLUSTER_NAME
        if self.source != ITEM:
            return self.resource, getattr(body, self.source)
        if self.resource == ResourceType.TOPIC:
            return self.resource, asked.topic_name(item)
        return self.resource, item if isinstance(item, str) else item.group_id


class StepResult(msgspec.Struct, frozen=True):
    """What a step leaves of a request: the body to pass on, or the final answer; `note` is what the step
    needs when it sees the answer."""

    body: Any
    note: Any = None
    answer: Any = None


class AccessStep:
    """One step; see the module. `checks` are its checks, `also` any others, for the printed table."""

    checks: tuple[RightNeeded, ...] = ()
    also = ""

    def before(self, asked: AccessAsked, body: Any) -> StepResult:
        return StepResult(body)

    def is_long(self, body: Any) -> bool:
        """Whether `checking` should pause."""
        return False

    def checking(self, asked: AccessAsked, body: Any) -> Pauses:
        """`before` with pauses."""
        return self.before(asked, body)
        yield

    def after(self, asked: AccessAsked, answer: Any, note: Any) -> Any:
        return answer

    def finishing(self, asked: AccessAsked, answer: Any, note: Any) -> Pauses:
        """`after` with pauses."""
        return self.after(asked, answer, note)
        yield

    def needs_answer(self, note: Any) -> bool:
        """Whether `after` may change or refuse the answer: only then is one that a controller has encoded
        decoded here. A step with an `after` of its own says when it changes nothing."""
        return type(self).after is not AccessStep.after


def response_class(api: str) -> Any:
    return response_type(API_BY_NAME[api].key).cls


@dataclass(frozen=True, slots=True)
class Whole(AccessStep):
    """Everything is refused with one code, at the top of the answer. `when` decides which requests are
    checked."""

    checks: tuple[RightNeeded, ...]
    when: Callable[[Any], bool] = lambda body: True

    def before(self, asked: AccessAsked, body: Any) -> StepResult:
        for check in self.checks if self.when(body) else ():
            code = check.failure(asked, body)
            if code is not None:
                return StepResult(body, answer=refused_whole(asked.api, code))
        return StepResult(body)


@dataclass(frozen=True, slots=True)
class Each(AccessStep):
    """Items of the request are refused one by one: they are in the field `items` of the request, their
    results in the field `results` of the answer. `defaults` are values of refused parts."""

    items: str
    results: str
    checks: tuple[RightNeeded, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    when: Callable[[Any], bool] = lambda body: True
    others: ErrorCode | None = None
    """The code of all other items when one is refused; None: they are answered."""
    whole_since: int | None = None
    """From this version on, an answer that refuses every item has the code at its top, too."""

    def before(self, asked: AccessAsked, body: Any) -> StepResult:
        result: StepResult = at_once(self.checking(asked, body))
        return result

    def is_long(self, body: Any) -> bool:
        given = getattr(body, self.items) or ()
        if len(given) > FEW_VALUES:
            return True
        return len(given) + sum([len(_first(item, _PARTS) or ()) for item in given]) > FEW_VALUES

    def checking(self, asked: AccessAsked, body: Any) -> Pauses:
        given = getattr(body, self.items)
        if not given or not self.when(body):
            return StepResult(body)
        refused = {}
        schema = _of(response_type(API_BY_NAME[asked.api].key).schema, self.results)
        for index, item in enumerate(given):
            if index % SLICE == SLICE - 1:
                yield
            code = next((code for each in self.checks if (code := each.failure(asked, body, item))), None)
            if code is not None:
                refused[index] = yield from _refusing(schema, item, code, self.defaults)
        if not refused:
            return StepResult(body)
        if self.others is not None:
            for index in range(len(given)):
                if index not in refused:
                    refused[index] = yield from _refusing(schema, given[index], self.others, self.defaults)
                if index % SLICE == SLICE - 1:
                    yield
        kept = tuple(item for place, item in enumerate(given) if place not in refused)
        answer = None if kept else response_class(asked.api)()
        if answer is not None and self.whole_since is not None and asked.version >= self.whole_since:
            answer = replace(answer, error_code=code)
        return StepResult(replace(body, **{self.items: kept}), (len(given), refused), answer)

    def needs_answer(self, note: Any) -> bool:
        return note is not None

    def after(self, asked: AccessAsked, answer: Any, note: Any) -> Any:
        """Refused items get their places among the results, if each item has a result."""
        if note is None:
            return answer
        if answer is None:
            raise EndConnection(f"{asked.api} is not authorized, and has no answer for the error")
        count, refused = note
        others = [*getattr(answer, self.results)]
        if len(others) + len(refused) == count:
            rest = iter(others)
            results = [refused[place] if place in refused else next(rest) for place in range(count)]
        else:
            results = [*others, *refused.values()]
        return replace(answer, **{self.results: tuple(results)})


@dataclass(frozen=True, slots=True)
class Listed(AccessStep):
    """Items that the client may not see are silently left out of the answer. `enough`: a permission to see
    all."""

    results: str
    name: str
    check: RightNeeded
    enough: RightNeeded | None = None

    @property
    def checks(self) -> tuple[RightNeeded, ...]:  # type: ignore[override]
        return (self.check,)

    def after(self, asked: AccessAsked, answer: Any, note: Any) -> Any:
        if answer is None or (self.enough and self.enough.passes(asked, None, None, is_asked=False)):
            return answer
        seen = tuple(
            item
            for item in getattr(answer, self.results) or ()
            if asked.allows(
                self.check.operation, self.check.resource, getattr(item, self.name) or "", is_asked=False
            )
        )
        return replace(answer, **{self.results: seen})


def on_cluster(operation: Operation) -> Whole:
    """Everything needs this permission on the cluster."""
    return Whole((RightNeeded(operation, CLUSTER),))


def each_of_cluster(operation: Operation, items: str, results: str) -> Each:
    """Items that all belong to the cluster."""
    return Each(items, results, (RightNeeded(operation, CLUSTER),))


def each_topic(operation: Operation, items: str = "topics", results: str = "topics", **defaults: Any) -> Each:
    """Items that each name a topic. `defaults`: see `Each`."""
    return Each(items, results, (RightNeeded(operation, TOPIC, ITEM),), defaults)


_INDEXES = ("index", "partition_index", "partition", "partition_id")
_ERRORS = ("error_code", "partition_error_code")
_PARTS = ("partitions", "partition_data", "partition_indexes")
"""Names of the field with an item's parts."""


def refused_whole(api: str, code: ErrorCode) -> Any:
    """The answer to a refused request; clients have their own texts for a code without a message."""
    cls = response_class(api)
    fields = {each.name: each for each in response_type(API_BY_NAME[api].key).schema.fields}
    return cls(error_code=code, **_without_message(fields))


def refused_item(
    api: str, results: str, item: Any, code: ErrorCode, defaults: Mapping[str, Any] | None = None
) -> Any:
    """The result of a refused item: the fields that it repeats from the item, with the code at the top or at
    each of its partitions."""
    return at_once(refusing(api, results, item, code, defaults or {}))


def refusing(api: str, results: str, item: Any, code: ErrorCode, defaults: Mapping[str, Any]) -> Pauses:
    """`refused_item` with pauses."""
    return _refusing(_of(response_type(API_BY_NAME[api].key).schema, results), item, code, defaults)


def _of(schema: StructSchema, name: str) -> StructSchema:
    found = next(each.struct for each in schema.fields if each.name == name)
    if found is None:
        raise AssertionError(f"{name} must be a list of structures")
    return found


def _refusing(schema: StructSchema, item: Any, code: ErrorCode, defaults: Mapping[str, Any]) -> Pauses:
    fields = {each.name: each for each in schema.fields}
    values: dict[str, Any] = {}
    error = next((name for name in _ERRORS if name in fields), None)
    index = next((name for name in _INDEXES if name in fields), None)
    if index is not None:
        values[index] = item if isinstance(item, int) else _first(item, _INDEXES)
    elif isinstance(item, str):
        values[next(each.name for each in schema.fields if each.type == "string")] = item
    else:
        values |= _in_common(fields, item)
    values |= {name: value for name, value in defaults.items() if name in fields}
    if error is not None:
        return schema.cls(**{**_without_message(fields), **values, error: code})
    parts = next(each for each in schema.fields if each.struct is not None)
    if parts.struct is None:
        raise AssertionError(f"{schema.name} has no field for an error")
    given = _first(item, (parts.name, *_PARTS)) or ()
    refused = []
    for place, each in enumerate(given):
        if place % SLICE == SLICE - 1:
            yield
        refused.append((yield from _refusing(parts.struct, each, code, defaults)))
    values[parts.name] = tuple(refused)
    return schema.cls(**values)


def _without_message(fields: Mapping[str, Any]) -> dict[str, None]:
    """Java clients show an empty message, but their own text if there is none."""
    message = fields.get("error_message")
    return {"error_message": None} if message is not None and message.nullable else {}


def _in_common(fields: Mapping[str, Any], item: Any) -> dict[str, Any]:
    """The fields that a result repeats from its item."""
    in_common: dict[str, Any] = {}
    for name in _field_names(item):
        value = getattr(item, name)
        target = fields.get(_OTHER_NAMES.get(name, name)) or fields.get(name)
        if target is None or target.name in _ERRORS:
            continue
        if target.struct is None and not isinstance(value, tuple):
            in_common[target.name] = value
        elif target.struct is not None and not _has_error(target.struct) and isinstance(value, tuple):
            known = {each.name: each for each in target.struct.fields}
            in_common[target.name] = tuple(target.struct.cls(**_in_common(known, each)) for each in value)
    return in_common


_OTHER_NAMES = {"topic": "topic_name"}


def _has_error(schema: StructSchema) -> bool:
    return any(each.name in _ERRORS or (each.struct and _has_error(each.struct)) for each in schema.fields)


def _field_names(item: Any) -> set[str]:
    return set(getattr(item, "__struct_fields__", ())) - {"unknown_tags"}
