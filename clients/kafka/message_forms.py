"""Forms of messages: which fields of a body of Kafka's protocol carry those of a value of Raft, by version.

A form is interpreted once for each version; what remains is straight-line code, because voters exchange
several messages for each record that is committed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from metaquorum.metadata.settings.topic_names import METADATA_TOPIC
from metaquorum.wire import messages as wire
from metaquorum.wire.generator import SourceWriter

METADATA_TOPIC_ID = bytes(15) + b"\1"
BY_NAME_TO = 12
"""Up to this version, a fetch names its topic."""
HIGHEST = 2**15 - 1


class CannotSay(ValueError):
    """This version of the API has no form of the request."""


def as_it_is(value: Any) -> Any:
    """What needs no conversion."""
    return value


class Carried(NamedTuple):
    """Fields of a value of Raft, and the fields of a body, or of its partition, that carry them in the
    versions `since` to `until`. The two conversions take all of one side, and return a tuple if the other
    side has several. `absent`: the values in other versions; if they are `needed`, nothing else can be said
    there."""

    names: tuple[str, ...]
    fields: tuple[str, ...]
    to_wire: Callable[..., Any] = as_it_is
    to_raft: Callable[..., Any] = as_it_is
    since: int = 0
    until: int = HIGHEST
    absent: tuple[Any, ...] | None = None
    needed: bool = False

    def is_in(self, version: int) -> bool:
        return self.since <= version <= self.until


class OwnTag(NamedTuple):
    """A field of Raft in a tagged field of our own. `to_wire`: what is packed; None: it is left out.
    `absent`: its value, by the other ones, from a node that does not send it."""

    name: str
    number: int
    form: struct.Struct
    to_wire: Callable[[Any], tuple[int, ...] | None]
    to_raft: Callable[..., Any]
    absent: Callable[[dict[str, Any]], Any]


class MessageForm(NamedTuple):
    """A kind of message. `topics`: the body's field of topics; empty: it has none, and `whole` is all.
    `echoed`: fields of a response that repeat its request. `missing`: fields of Raft in a response without a
    partition. `nodes_since`: the first version of a response that names the leader's address. `is_sound`:
    whether a request can be one at all."""

    raft: Any
    wire: Any
    whole: tuple[Carried, ...] = ()
    partition: tuple[Carried, ...] = ()
    tags: tuple[OwnTag, ...] = ()
    topics: str = "topics"
    echoed: tuple[str, ...] = ()
    missing: tuple[tuple[str, Any], ...] = ()
    nodes_since: int = HIGHEST
    is_sound: Callable[[Any], bool] = lambda value: True

    @property
    def api(self) -> str:
        name: str = self.wire.__name__
        return name.removesuffix("Request").removesuffix("Response")


class Compiled(NamedTuple):
    """A form in one version. `to_body` makes a body of a value and the nodes that it names. `of_whole` and
    `of_partition` take the values out of a body and out of the only partition of one, which `partition`
    finds: None if it is not partition 0 of the metadata log."""

    to_body: Callable[[Any, tuple[Any, ...]], Any]
    of_whole: Callable[[Any], dict[str, Any]]
    of_partition: Callable[[Any], dict[str, Any]]
    partition: Callable[[Any], Any]


def compiled(form: MessageForm, version: int) -> Compiled:
    """The form in this version of its API."""
    return Compiled(
        _to_body(form, version),
        _values(form.whole, version),
        _values(form.partition, version),
        _partition(form, version) if form.topics else as_it_is,
    )


# ---- to bodies -------------------------------------------------------------------------------------


def _to_body(form: MessageForm, version: int) -> Callable[[Any, tuple[Any, ...]], Any]:
    code = SourceWriter(version, flexible=True)
    code.line("def to_body(value, nodes):")
    code.indent(1)
    fields = _fields(code, form, form.whole)
    if form.topics:
        topic, partition, number = _kinds(form)
        name, named = _topic_named(form, version)
        parts = [f"{number}=0", *_fields(code, form, form.partition)]
        if form.wire is wire.FetchResponse:
            parts.append("aborted_transactions=()")
        one = f"{code.bind('partition', partition)}({', '.join(parts)})"
        whole = f"{code.bind('topic', topic)}({name}={code.bind('name', named)}, partitions=({one},))"
        fields.append(f"{form.topics}=({whole},)")
    if version >= form.nodes_since:
        fields.append("node_endpoints=nodes")
    code.line("tags = ()")
    for tag in form.tags:
        code.line(f"packed = {code.bind('tag', tag.to_wire)}(value.{tag.name})")
        code.line("if packed is not None:")
        code.line(f"tags += (({tag.number}, {code.bind('pack', tag.form.pack)}(*packed)),)", 1)
    code.line(f"return {code.bind('body', form.wire)}({', '.join(fields)}, unknown_tags=tags)")
    function: Callable[[Any, tuple[Any, ...]], Any] = code.function("to_body")
    return function


def _fields(code: SourceWriter, form: MessageForm, columns: tuple[Carried, ...]) -> list[str]:
    """The arguments of a structure; writes the lines before them."""
    arguments: list[str] = []
    for column in columns:
        values = ", ".join(f"value.{name}" for name in column.names)
        if column.is_in(code.version):
            made = _converted(code, column.to_wire, values)
            arguments += _named(code, column.fields, made)
        elif column.needed:
            text = f"version {code.version} of {form.raft.__name__} cannot carry {column.names[0]}"
            code.line(f"if ({values},) != {code.bind('absent', column.absent)}:")
            code.line(f"raise {code.bind('CannotSay', CannotSay)}({text!r})", 1)
    return arguments


def _named(code: SourceWriter, names: tuple[str, ...], made: str) -> list[str]:
    if len(names) == 1:
        return [f"{names[0]}={made}"]
    code.line(f"{', '.join(names)} = {made}")
    return [f"{name}={name}" for name in names]


def _converted(code: SourceWriter, convert: Callable[..., Any], values: str) -> str:
    return values if convert is as_it_is else f"{code.bind('convert', convert)}({values})"


# ---- from bodies -----------------------------------------------------------------------------------


def _values(columns: tuple[Carried, ...], version: int) -> Callable[[Any], dict[str, Any]]:
    code = SourceWriter(version, flexible=True)
    code.line("def values(fields):")
    code.indent(1)
    entries: list[str] = []
    for column in columns:
        if column.is_in(version):
            made = _converted(code, column.to_raft, ", ".join(f"fields.{name}" for name in column.fields))
            entries += _named(code, column.names, made)
        elif column.absent is not None:
            absent = zip(column.names, column.absent, strict=True)
            entries += [f"{name}={code.bind('absent', value)}" for name, value in absent]
    code.line(f"return dict({', '.join(entries)})")
    function: Callable[[Any], dict[str, Any]] = code.function("values")
    return function


def _partition(form: MessageForm, version: int) -> Callable[[Any], Any]:
    field, named = _topic_named(form, version)
    code = SourceWriter(version, flexible=True)
    code.line("def partition(body):")
    code.indent(1)
    code.line(f"topics = body.{form.topics}")
    code.line("if len(topics) != 1 or len(topics[0].partitions) != 1:")
    code.line("return None", 1)
    code.line("found = topics[0].partitions[0]")
    code.line(f"is_it = topics[0].{field} == {code.bind('name', named)} and found.{_kinds(form)[2]} == 0")
    code.line("return found if is_it else None")
    function: Callable[[Any], Any] = code.function("partition")
    return function


# ---- topics and partitions -------------------------------------------------------------------------

_KINDS = {
    "FetchRequest": ("FetchTopic", "FetchPartition", "partition"),
    "FetchResponse": ("FetchableTopicResponse", "PartitionData", "partition_index"),
    "FetchSnapshotRequest": ("TopicSnapshot", "PartitionSnapshot", "partition"),
    "FetchSnapshotResponse": ("TopicSnapshot", "PartitionSnapshot", "index"),
}
"""The classes of topics and partitions, and the partition's number, where they are not called as in Vote."""
_AS_IN_VOTE = ("TopicData", "PartitionData", "partition_index")


def _kinds(form: MessageForm) -> tuple[Any, Any, str]:
    topic, partition, number = _KINDS.get(form.wire.__name__, _AS_IN_VOTE)
    return getattr(form.wire, topic), getattr(form.wire, partition), number


def _topic_named(form: MessageForm, version: int) -> tuple[str, Any]:
    match form.api:
        case "Fetch":
            return ("topic", METADATA_TOPIC) if version <= BY_NAME_TO else ("topic_id", METADATA_TOPIC_ID)
        case "FetchSnapshot":
            return "name", METADATA_TOPIC
        case _:
            return "topic_name", METADATA_TOPIC
