"""The target of a user's question: an entity and optionally one of its fields, as text."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

import msgspec

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.entities.views import entities_of
from metaquorum.metadata.inspect.log.entities import KINDS, entity_problem
from metaquorum.metadata.settings.keys import MAX_INT, whole_number

_PARTITION = re.compile(r"(topic/.+/\d+)\.([A-Za-z_]+)")
_NODE = re.compile(r"((?:broker|controller)/\d+|quorum)\.([A-Za-z_]+)")
PARTITION_FIELDS = (
    *("leader", "leaderEpoch", "partitionEpoch", "replicas", "isr", "directories", "leaderRecoveryState"),
    *("removingReplicas", "addingReplicas", "eligibleLeaderReplicas", "lastKnownElr"),
)
BROKER_FIELDS = (
    *("epoch", "incarnationId", "fenced", "inControlledShutdown", "isMigratingZkBroker", "rack"),
    *("endPoints", "features", "logDirs"),
)
QUORUM_FIELDS = ("leader", "voters", "voterSet", "epoch", "kraftVersion")


class EntityTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The target of a question: an entity path, and one of its fields or None."""

    entity: str
    field: str | None = None

    def __str__(self) -> str:
        return self.entity + (f".{self.field}" if self.field else "")

    @property
    def partition(self) -> tuple[str, int] | None:
        """(topic name, index) if the entity is a partition."""
        head, _, index = self.entity.rpartition("/")
        number = whole_number(index, MAX_INT)
        if head.startswith("topic/") and number is not None:
            return head.removeprefix("topic/"), number
        return None


def parse_target(text: str) -> EntityTarget:
    """`topic/orders/7.leader`, `broker/3`, `config/topic/orders/retention.ms`... Raises ValueError, which
    says what to write instead."""
    text = text.removesuffix("/") if text.count("/") > 1 else text
    match = _PARTITION.fullmatch(text) or _NODE.fullmatch(text)
    entity, name = (match[1], match[2]) if match else (text, None)
    problem = entity_problem(entity)
    if problem is not None:
        raise ValueError(problem)
    if name is None:
        return EntityTarget(entity=entity)
    first, *rest = name.split("_")
    wanted = first + "".join(word.capitalize() for word in rest)
    known = fields_of_target(entity)
    if wanted not in known:
        close = difflib.get_close_matches(wanted, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(known) or 'none'}"
        raise ValueError(f"{entity} has no field {name!r}; {hint}")
    return EntityTarget(entity=entity, field=wanted)


def fields_of_target(entity: str) -> tuple[str, ...]:
    """The names of an entity's fields that a target may use; empty if the fields are not fixed."""
    match entity.partition("/")[0]:
        case "topic":
            return PARTITION_FIELDS
        case "broker":
            return BROKER_FIELDS
        case "quorum":
            return QUORUM_FIELDS
    return ()


# Suggests names for a mistyped or incomplete one: what an image holds, as entity paths.

SHOWN = 10
"""How many names are listed if none is close."""
MAX_COMPARED = 20_000
"""Among more names, only those with the same beginning are compared."""


def suggestion(path: str, image: MetadataImage, more: Iterable[str] = ()) -> str:
    """The end of a sentence that says that `path` does not exist: "; did you mean topic/orders?" or "; known
    are 0, 1". Empty if nothing fits or the path exists. `more` are paths in addition to the image's."""
    kind, _, rest = path.partition("/")
    if not rest:
        return ""
    others = {one for one in more if one.startswith(f"{kind}/")}
    if kind == "topic":
        return _topic(rest, image, {one.removeprefix("topic/") for one in others})
    paths = sorted(_of_kind(kind, image) | others, key=_numbers_first)
    if path in paths:
        return ""
    close = _close(path, paths)
    if close is not None and kind not in ("broker", "controller"):
        return f"; did you mean {close}?"
    if not paths:
        return ""
    return f"; known are {_listed([one.removeprefix(f'{kind}/') for one in paths])}"


def _topic(rest: str, image: MetadataImage, others: set[str]) -> str:
    name, slash, index = rest.partition("/")
    topic = image.topics.topic_named(name)
    if topic is not None and slash:
        count = image.topics.partition_count_of(topic.topic_id)
        if index.isascii() and index.isdigit() and int(index) < count:
            return ""
        return (
            f"; topic/{name} has partitions 0 to {count - 1}" if count else f"; topic/{name} has no partition"
        )
    if topic is not None or name in others:
        return ""
    known = sorted({one.name for one in image.topics.all()} | others)
    close = _close(name, known)
    return "" if close is None else f"; did you mean topic/{close}{slash}{index}?"


def _close(wanted: str, names: list[str]) -> str | None:
    """The most similar name."""
    same = next((one for one in names if one.lower() == wanted.lower()), None)
    if same is not None:
        return same
    if len(names) > MAX_COMPARED:
        names = [one for one in names if one[:2] == wanted[:2] and abs(len(one) - len(wanted)) <= 2]
    return next(iter(difflib.get_close_matches(wanted, names, n=1)), None)


def _listed(ids: list[str]) -> str:
    shown = ", ".join(ids[:SHOWN])
    return shown + (f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else "")


def _numbers_first(path: str) -> tuple[int, str]:
    last = path.rpartition("/")[2]
    return (int(last), path) if last.isascii() and last.isdigit() else (1 << 62, path)


def _of_kind(kind: str, image: MetadataImage) -> set[str]:
    """Paths of everything of a kind except topics, by the names that users type."""
    paths: set[str] = set()
    for path in entities_of(image, with_topics=False):
        for name in (path, *_aliases(path)):
            if name.partition("/")[0] == kind:
                paths.add(name)
    return paths


def _aliases(path: str) -> Iterator[str]:
    """user/alice for a SCRAM credential and for quotas, plus client-id/app and ip/10.0.0.1 for quotas."""
    kind, _, rest = path.partition("/")
    if kind == "scram":
        yield f"user/{rest.partition('/')[2]}"
    elif kind == "quota":
        for part in rest.split(","):
            yield "/".join(part.partition("=")[::2])
    elif kind == "config" and rest.startswith(("client-metrics/", "group/")):
        yield rest


def continuations(beginning: str, image: MetadataImage) -> list[str]:
    """Paths that continue what was typed, one part at a time: kinds, then names, then partitions."""
    kind, slash, rest = beginning.partition("/")
    if not slash:
        return [one for one in KINDS if one.startswith(kind)]
    if kind == "topic":
        name, inner, index = rest.partition("/")
        if not inner:
            return sorted(f"topic/{one.name}" for one in image.topics.all() if one.name.startswith(name))
        topic = image.topics.topic_named(name)
        listed = [] if topic is None else image.topics.partitions_of(topic.topic_id)
        return [f"topic/{name}/{one.index}" for one in listed if str(one.index).startswith(index)]
    known = (one for one in _of_kind(kind, image) if one.startswith(beginning))
    return sorted(known, key=_numbers_first)
