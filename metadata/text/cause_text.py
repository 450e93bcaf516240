"""Causes of batches as text for people, and as JSON.

Clients choose their ids, and a log's writer chose everything in it: only printable characters of a cause
reach a terminal.
"""

from __future__ import annotations

from typing import Any

from metaquorum.lines import printable
from metaquorum.metadata.records.batch_cause import BatchCause


def asked_text(cause: BatchCause) -> str:
    """`CreateTopics by User:alice at 10.0.0.7 (client app-1, through broker 3)`; without a request, `the
    controller itself, by rule leader-balance`."""
    if cause.request is None:
        return "the controller itself" + (f", by rule {printable(cause.rule)}" if cause.rule else "")
    more = []
    if cause.client_id is not None:
        more.append(f"client {printable(cause.client_id)}")
    if cause.broker_id is not None:
        more.append(f"through broker {cause.broker_id}")
    if cause.rule is not None:
        more.append(f"rule {printable(cause.rule)}")
    return brief_text(cause) + (f" ({', '.join(more)})" if more else "")


def brief_text(cause: BatchCause) -> str:
    """Request, principal and address; or the rule."""
    if cause.request is None:
        return f"rule {printable(cause.rule or '?')}"
    who = "the controller's own process" if cause.principal is None else printable(cause.principal)
    address = f" at {printable(cause.address)}" if cause.address else ""
    return f"{printable(cause.request)} by {who}{address}"


def asked_json(cause: BatchCause | None) -> dict[str, Any] | None:
    """Everything that the log says about the cause, with the names of the other JSON of `metaquorum log`."""
    if cause is None:
        return None
    return {
        "request": cause.request,
        "rule": cause.rule,
        "principal": cause.principal,
        "clientId": cause.client_id,
        "address": cause.address,
        "forwardedBy": cause.broker_id,
    }


def asked_by(cause: BatchCause | None) -> dict[str, Any]:
    """The field of a JSON object that names the cause; empty if the log does not have it."""
    return {} if cause is None else {"askedBy": asked_json(cause)}
