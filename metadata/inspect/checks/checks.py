"""What `bisect` can evaluate on every state of a log: named checks and a user's predicate, with one
interface.

`metadata.invariants` owns the invariants themselves.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable

import msgspec

from metaquorum.metadata.image import MetadataImage, partition_changes
from metaquorum.metadata.image.chunk import Chunk
from metaquorum.metadata.inspect.changes.change_steps import was_unclean
from metaquorum.metadata.inspect.checks.predicate import (
    ChunkCounts,
    Predicate,
    Verdict,
    leaderless,
    under_replicated,
)
from metaquorum.metadata.inspect.checks.predicate_names import IMAGE_RULES, Subject
from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.inspect.timeline.spans import is_under_min_isr, under_min_isr
from metaquorum.metadata.inspect.walk.batch_filter import BatchFilter
from metaquorum.metadata.invariants import ERROR, Violation, check_batch, check_image

STEP_RULES = (
    *("provenance-grows", "producer-ids-grow", "metadata-version-grows", "broker-epoch-grows"),
    *("incarnation-has-own-epoch", "partitions-stay", "partition-epoch-grows", "leader-epoch-grows"),
)
"""The rules of docs/invariants.md about images and about steps between them."""

HEALTH = {
    "no-errors": "no invariant of severity error is broken",
    "no-violations": "no invariant is broken, warnings included",
    "all-led": "every partition has a leader",
    "full-isr": "every replica is in its ISR",
    "min-isr": "no ISR is smaller than min.insync.replicas, as far as the log has it",
    "clean-elections": "no leader was elected from outside the ISR",
}
"""Checks in addition to the single rules."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check. `image` evaluates a state alone (None: a step is needed), `step` a step whose state before
    it was fine. `is_monotone`: it can turn false only once; `is_vouched`: by the user's word. `headers` is
    set if batch headers suffice. `batch_filter` limits which batches may change the answer (None: all)."""

    name: str
    image: Callable[[Subject], Verdict] | None
    step: Callable[[MetadataImage, MetadataImage, QuorumView], Verdict]
    is_monotone: bool = False
    is_vouched: bool = False
    headers: Predicate | None = None
    batch_filter: BatchFilter | None = None


NOT_IDLE = BatchFilter()


def known_checks() -> tuple[str, ...]:
    """The names that `named_check` accepts."""
    return (*HEALTH, *IMAGE_RULES, *STEP_RULES)


def named_check(name: str) -> Check:
    """The check of this name. Raises ValueError, which lists or suggests names."""
    known = known_checks()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=2)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(known)}"
        raise ValueError(f"there is no check {name!r}; {hint}")
    if name in _COUNTED:
        counts = ChunkCounts(_COUNTED[name])
        return Check(
            name=name,
            image=lambda place: _verdict(not counts.total(place.image.topics.columns)),
            step=lambda before, after, quorum: _verdict(not counts.total(after.topics.columns)),
            batch_filter=NOT_IDLE,
        )
    if name == "min-isr":
        return Check(
            name=name,
            image=lambda place: _verdict(not under_min_isr(place.image)),
            step=lambda before, after, quorum: _verdict(not _fell_under_min_isr(before, after)),
            batch_filter=NOT_IDLE,
        )
    if name == "clean-elections":
        return Check(
            name=name,
            image=None,
            step=lambda before, after, quorum: _verdict(not unclean_elections(before, after)),
            batch_filter=NOT_IDLE,
        )
    wants = _wants(name)
    return Check(
        name=name,
        image=None
        if name in STEP_RULES
        else lambda place: _verdict(not any(map(wants, check_image(place.image)))),
        step=lambda before, after, quorum: _verdict(not any(map(wants, check_batch(before, after)))),
        batch_filter=NOT_IDLE,
    )


def predicate_check(predicate: Predicate, *, vouched: bool = False) -> Check:
    """A user's expression as a check; with `vouched`, the user says that once false it stays false."""
    return Check(
        name=predicate.source,
        image=predicate.verdict,
        step=lambda before, after, quorum: predicate.verdict(Subject(image=after, quorum=quorum)),
        is_monotone=(vouched or predicate.is_monotone) and "quorum" not in predicate.used,
        is_vouched=vouched,
        headers=predicate if predicate.headers_only else None,
        batch_filter=predicate.batch_filter,
    )


def _verdict(fine: bool) -> Verdict:
    return Verdict.TRUE if fine else Verdict.FALSE


def _wants(name: str) -> Callable[[Violation], bool]:
    if name == "no-violations":
        return lambda violation: True
    if name == "no-errors":
        return lambda violation: violation.severity == ERROR
    return lambda violation: violation.rule == name


def _fell_under_min_isr(before: MetadataImage, after: MetadataImage) -> bool:
    """Whether a partition is under min ISR, given that none was `before`: only changes are looked at."""
    if before.configs is not after.configs:
        return bool(under_min_isr(after))
    if before.topics is after.topics:
        return False
    changes = partition_changes(before.topics, after.topics)
    return any(is_under_min_isr(after, key) for key in (*changes.added, *changes.changed))


def unclean_elections(before: MetadataImage, after: MetadataImage) -> list[str]:
    """Paths of partitions whose leader came from outside the ISR in this step (see `causes`)."""
    lines: list[str] = []
    if before.topics is after.topics:
        return lines
    for topic_id, index in partition_changes(before.topics, after.topics).changed:
        old, new = before.topics.partition(topic_id, index), after.topics.partition(topic_id, index)
        topic = after.topics.topic(topic_id)
        if old is not None and new is not None and topic is not None and was_unclean(old, new):
            lines.append(f"topic/{topic.name}/{index}")
    return lines


_COUNTED: dict[str, Callable[[Chunk], int]] = {"all-led": leaderless, "full-isr": under_replicated}
"""Checks that hold if the count of partitions is zero."""
