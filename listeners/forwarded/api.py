"""What a handler of an API that the active controller answers declares: who asks, rights and bounds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import Any

import msgspec

from metaquorum.listeners.access.steps import AccessStep
from metaquorum.listeners.slices import Level
from metaquorum.wire.table import API_BY_NAME

DEFAULT_TIMEOUT_MS = 30_000
"""The timeout of requests without one."""


class AskedBy(Enum):
    """Who asks, and so which listeners have it."""

    CLIENTS = auto()
    """Clients of any broker, which forwards it."""
    TOOLS = auto()
    """What tools ask controllers themselves (KIP-853); brokers do not forward it."""
    NODES = auto()
    """What nodes ask for themselves, in the versions of Kafka 3.7 to 4.0; brokers do not forward it."""


class Forwarded(msgspec.Struct, frozen=True, kw_only=True):
    """One API. `handle` returns the response to a request's body; `answers` explains the others."""

    name: str
    min_version: int
    max_version: int
    handle: Callable[[Any, Any], Awaitable[Any]]
    rights: tuple[AccessStep, ...]
    by: AskedBy
    strict_from: int
    asks_others: bool
    things: tuple[tuple[Level, ...], ...]


def answers(
    name: str,
    *rights: AccessStep,
    by: AskedBy = AskedBy.CLIENTS,
    since: int | None = None,
    until: int | None = None,
    strict_from: int = 0,
    asks_others: bool = False,
    things: tuple[tuple[Level, ...], ...] = (),
) -> Callable[[Callable[[Any, Any], Awaitable[Any]]], Forwarded]:
    """Makes a handler the declaration of its API, in the versions that `wire/tables` has, or those from
    `since` to `until`. `rights` are checked in this order (`listeners/access`). `strict_from`: from this
    version on, requests over the quota of changes are refused, which older clients would not understand
    (KIP-599). `asks_others`: the handler waits for other nodes, too, so the answer takes a task. `things`:
    the lists of the request that are bounded (`too_many`), each with what its items list; an array without
    its place there costs next to nothing."""
    api = API_BY_NAME[name]

    def declare(handle: Callable[[Any, Any], Awaitable[Any]]) -> Forwarded:
        return Forwarded(
            name=name,
            min_version=api.min_version if since is None else since,
            max_version=api.max_version if until is None else until,
            handle=handle,
            rights=rights,
            by=by,
            strict_from=strict_from,
            asks_others=asks_others,
            things=things,
        )

    return declare


def timeout_ms(body: Any) -> int:
    """The timeout of a request; the default if it has none, or one that is not positive."""
    asked = getattr(body, "timeout_ms", DEFAULT_TIMEOUT_MS)
    return asked if asked > 0 else DEFAULT_TIMEOUT_MS
