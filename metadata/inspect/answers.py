"""The answers of the log tools as plain data, for `--json` and the console, and the headline of `why`.

Values that may be secret are `Redacted`; the caller that encodes the data decides whether to show them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from metaquorum.metadata.inspect.checks.bisect import Bisection
from metaquorum.metadata.inspect.entities.diff import ChangeCause, EntityChange, FieldChange
from metaquorum.metadata.inspect.entities.history import Span
from metaquorum.metadata.inspect.log.points import utc_text
from metaquorum.metadata.inspect.timeline.event import TimelineEvent
from metaquorum.metadata.inspect.why.explanation import Explanation, Link
from metaquorum.metadata.secrets import REDACTED, Redacted
from metaquorum.metadata.text.cause_text import asked_by, asked_json, asked_text
from metaquorum.metadata.text.dump import payload_json

NOBODY_NAMED = "no record says who asked for it: see the request and authorizer logs of the active controller"
"""For Kafka's logs, and with `metadata.log.causes.enable=false`. Shown with every chain of such a log,
since people look for it next."""


def event_json(event: TimelineEvent) -> dict[str, Any]:
    """One event, in the keys of `log dump --json`."""
    return {
        "offset": event.offset,
        "leaderEpoch": event.epoch,
        "createTime": event.time_ms,
        "severity": event.severity,
        "kind": event.kind,
        "entity": event.entity,
        "entities": list(event.entities or (event.entity,)),
        "rule": event.rule,
        "text": event.text,
        **asked_by(event.asked),
        **({} if event.stamp_ms is None else {"stampedTime": event.stamp_ms}),
    }


def cause_json(cause: ChangeCause | None) -> dict[str, Any] | None:
    """The record's place, in the keys of `log dump --json`."""
    if cause is None:
        return None
    return {
        "file": cause.file,
        "offset": cause.offset,
        "leaderEpoch": cause.epoch,
        "createTime": cause.time_ms,
        "type": cause.type_name,
        "version": cause.version,
        **asked_by(cause.asked),
    }


def change_json(change: EntityChange) -> dict[str, Any]:
    """One object: entity, change, cause, and the fields with their old and new values and causes."""
    return {
        "entity": change.entity,
        "change": change.kind,
        "cause": cause_json(change.cause),
        "oldCause": cause_json(change.old_cause),
        "fields": {field.name: _field_json(field) for field in change.fields},
    }


def _field_json(field: FieldChange) -> dict[str, Any]:
    return {
        "old": field.old,
        "new": field.new,
        "cause": cause_json(field.cause),
        "oldCause": cause_json(field.old_cause),
    }


def span_json(span: Span) -> dict[str, Any]:
    """One object. `toOffset` and `toTime` are null for a current state."""
    return {
        "entity": span.entity,
        "fromOffset": span.from_offset,
        "fromTime": span.from_ms,
        "toOffset": span.to_offset,
        "toTime": span.to_ms,
        "fields": span.fields,
        "cause": cause_json(span.cause),
        "endedBy": cause_json(span.ended_by),
    }


def headline(answer: Explanation, *, secrets: bool = False) -> str:
    """`topic/orders/7.leader is -1 since 838 (2026-...): broker 1 was fenced at 889 ..., the ISR was [1]`."""
    link = answer.last
    if link is None:
        return f"no record is about {answer.target}"
    if answer.exists is None and answer.target.entity.startswith("controller/"):
        state = "has no registration in this log; the last record about it is"
    elif answer.exists is None:
        state = "is only partly known here; the last record about it is"
    elif not answer.exists:
        state = "does not exist since"
    elif answer.target.field is not None:
        state = f"is {plain_text(answer.value, secrets=secrets)} since"
    else:
        state = "was last changed at"
    causes = ", ".join(cause.text for cause in link.causes)
    return f"{answer.target} {state} {link.offset} ({utc_text(link.time_ms)}): {causes}"


def plain_text(value: Any, *, secrets: bool = False) -> str:
    """A value in a sentence: `none`, `true`, lists in brackets, objects as compact JSON."""
    match value:
        case None:
            return "none"
        case Redacted():
            return value.secret if secrets else REDACTED
        case bool():
            return "true" if value else "false"
        case list():
            return "[" + ",".join(map(str, value)) + "]"
        case dict():
            return msgspec.json.encode(value, enc_hook=partial(plain_text, secrets=secrets)).decode()
    return str(value)


def who_asked(answer: Explanation) -> str | None:
    """Which request caused the newest change. None: one of the links says so."""
    if answer.last is None:
        return None
    if answer.last.asked is not None:
        return f"asked: {asked_text(answer.last.asked)}"
    return None if any(link.asked is not None for link in answer.links) else NOBODY_NAMED


def explanation_json(answer: Explanation, links: list[Link]) -> dict[str, Any]:
    """One object: the target, its value, and the chain in display order."""
    return {
        "entity": answer.target.entity,
        "field": answer.target.field,
        "endOffset": answer.end_offset,
        "exists": answer.exists,
        "value": answer.value,
        "records": [_link_json(link) for link in links],
        "askedBy": None if answer.last is None else asked_json(answer.last.asked),
        "askedByText": who_asked(answer),
        "earlierRecords": None
        if answer.read_from is not None
        else len(answer.links) - len(links) + answer.dropped,
        **({} if answer.read_from is None else {"readFrom": answer.read_from}),
        "shownAs": [shown.tree() for shown in answer.limits.shown],
        "uncovered": answer.limits.coverage.tree(),
    }


def _link_json(link: Link) -> dict[str, Any]:
    return {
        "offset": link.offset,
        "leaderEpoch": link.epoch,
        "createTime": link.time_ms,
        **({} if link.stamp_ms is None else {"stampedTime": link.stamp_ms}),
        "type": link.type_name,
        **asked_by(link.asked),
        "changes": [{"field": name, "before": old, "after": new} for name, old, new in link.changes],
        "causes": [
            {
                "rule": cause.rule,
                "text": cause.text,
                "offset": cause.offset,
                "broker": cause.broker_id,
                "certain": cause.certain,
            }
            for cause in link.causes
        ],
    }


def bisection_json(answer: Bisection, *, secrets: bool = False) -> dict[str, Any]:
    """One object with everything that the text shows."""
    step, record = answer.step, answer.record
    offset = None if step is None else step.offset
    if record is not None:
        offset = record.offset
    elif answer.always_false:
        offset = answer.from_offset
    return {
        "check": answer.check,
        "method": answer.method,
        "reason": answer.reason,
        "snapshots": answer.snapshots,
        "snapshotsLoaded": answer.loaded,
        "batchesAsked": answer.batches,
        "fromOffset": answer.from_offset,
        "endOffset": answer.end_offset,
        "turnedFalse": answer.is_found,
        "alwaysFalse": answer.always_false,
        "offset": offset,
        "batchBaseOffset": None if step is None else step.offset,
        "leaderEpoch": None if step is None else step.epoch,
        "createTime": None if step is None else step.time_ms,
        "record": None if record is None else payload_json(record.record, record.version, secrets=secrets),
        "changes": [change_json(change) for change in answer.changes()],
        "shownAs": [shown.tree() for shown in answer.limits.shown],
        "uncovered": answer.limits.coverage.tree(),
    }
