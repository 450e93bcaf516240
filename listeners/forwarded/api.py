"""What a handler of an API that the active controller answers declares: who asks, rights and bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from metaquorum.listeners.access.steps import AccessStep
from metaquorum.listeners.forwarded.shown_configs import NewTopics
from metaquorum.listeners.slices import Level
from metaquorum.metadata.authorizer import ANONYMOUS
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.common import ControllerRequest, ControllerResponse
from metaquorum.wire.table import API_BY_NAME

if TYPE_CHECKING:
    from metaquorum.metadata.image import MetadataImage

# One call of an API that the active controller answers: the caller, the node's state, and the way to the
# controller.
#
# Handlers of this folder must not wait for anything except `Call.ask`, and must not read a clock: with an
# `ask` that refuses, they produce the refusal of their request.

Answer = TypeVar("Answer")
P = TypeVar("P")
R = TypeVar("R", bound="Result")
ZERO_ID = bytes(16)


class Result(Protocol):
    """The result of one part of a request."""

    @property
    def error(self) -> ErrorCode: ...

    @property
    def message(self) -> str | None: ...


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """The context of a call. `ask` returns the controller's response or refusal. `principal` and `by_token`
    are the client's. `image` is this node's, `new_topics` lists the settings of created topics, `token_hmac`
    returns the secret of a token (None: delegation tokens are disabled), and `wall_ms` is the Unix time."""

    version: int
    ask: Callable[[ControllerRequest], Awaitable[ControllerResponse | ApiError]]
    wall_ms: int
    image: MetadataImage
    principal: str = ANONYMOUS
    by_token: bool = False
    new_topics: NewTopics = msgspec.field(default_factory=lambda: NewTopics({}))
    token_hmac: Callable[[str], bytes] | None = None

    async def answer(self, request: ControllerRequest, expected: type[Answer]) -> Answer | ApiError:
        """The controller's response or refusal; an unexpected type becomes ApiError UNKNOWN_SERVER_ERROR."""
        found = await self.ask(request)
        if isinstance(found, ApiError | expected):
            return found
        text = f"{type(request).__name__} was answered with {type(found).__name__}: report this as a bug"
        return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, text)


Outcome = tuple[int, str | None]
"""The error code of one part, and its text; None for a success."""


class Parts(list[tuple[P, ApiError | None]]):
    """The parts of a request in order, each with its refusal, or None if the controller decides."""

    def asked(self) -> list[P]:
        return [part for part, refusal in self if refusal is None]

    def settled(self, results: Sequence[R] | ApiError) -> Iterator[tuple[P, Outcome, R | None]]:
        """Every part with its outcome and its result. `results`: those of the parts in `asked`, in the same
        order, or the refusal of all."""
        left = iter(() if isinstance(results, ApiError) else results)
        for part, refusal in self:
            error = results if refusal is None and isinstance(results, ApiError) else refusal
            if error is not None:
                yield part, (error.code, error.message), None
            else:
                result = next(left)
                yield part, (result.error, result.message), result


def once(parts: Iterable[P], key: Callable[[P], Hashable]) -> tuple[list[P], frozenset[Hashable]]:
    """Returns the first part with each key, and the keys that occur more than once."""
    first: dict[Hashable, P] = {}
    found = list(parts)
    for part in found:
        first.setdefault(key(part), part)
    counted = Counter(map(key, found))
    return list(first.values()), frozenset(each for each, times in counted.items() if times > 1)


def invalid(text: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, text)


def by_name(pairs: Iterable[tuple[str, P]]) -> dict[str, list[P]]:
    """The parts by topic, in the order in which topics first occur."""
    found: dict[str, list[P]] = {}
    for name, part in pairs:
        found.setdefault(name, []).append(part)
    return found


DEFAULT_TIMEOUT_MS = 30_000
"""The timeout of requests without one."""


class AskedBy(Enum):
    """Who asks, and so which listeners have it."""

    CLIENTS = auto()
    """Clients of any broker, which forwards it."""
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
