"""Suggests names for a mistyped or incomplete one: what an image holds, as entity paths."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.entities.views import entities_of
from metaquorum.metadata.inspect.log.entities import KINDS

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
