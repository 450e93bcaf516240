"""Puts the checks of the table around the handlers of a listener's APIs.

Owns the order: the steps check the request from the first to the last, and the answer from the last to the
first. A handler sees what the client may see, and does not know permissions. An answer that took a while is
checked with the permissions of that later time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from metaquorum.broker.server.kafka.access.steps import AccessAsked, AccessStep
from metaquorum.broker.server.kafka.access.table import CHECKS
from metaquorum.metadata.access.authorizer import Authorizer
from metaquorum.metadata.image import MetadataImage
from metaquorum.runtime.kafka.services import Client, Handler, Later, Offered
from metaquorum.wire.codec import Request


class Rights(msgspec.Struct, frozen=True, kw_only=True):
    """What decides: `authorizer` None allows everything. `image` is called at each request."""

    authorizer: Authorizer | None
    image: Callable[[], MetadataImage]
    creates_topics: bool = False


def guarded(offered: Mapping[str, Offered], rights: Rights) -> dict[str, Offered]:
    """The same APIs behind their checks. Raises KeyError for an API without a row in the table."""
    return {name: _guarded(name, each, CHECKS[name], rights) for name, each in offered.items()}


def _guarded(api: str, offered: Offered, checks: tuple[AccessStep, ...], rights: Rights) -> Offered:
    authorizer = rights.authorizer
    if authorizer is None or not checks:
        return offered

    def handle(request: Request, client: Client) -> Any:
        asked = AccessAsked(
            api=api,
            version=request.header.version,
            client=client,
            authorizer=authorizer,
            image=rights.image(),
            creates_topics=rights.creates_topics,
        )
        return _checked(asked, checks, request, client, offered.handle, rights)

    return Offered(offered.min_version, offered.max_version, handle)


def _checked(
    asked: AccessAsked,
    steps: tuple[AccessStep, ...],
    request: Request,
    client: Client,
    handler: Handler,
    rights: Rights,
) -> Any:
    body = request.body
    passed: list[tuple[AccessStep, Any]] = []
    for step in steps:
        outcome = step.before(asked, body)
        passed.append((step, outcome.note))
        if outcome.answer is not None:
            return _finished(asked, passed, outcome.answer)
        body = outcome.body
    answer = handler(request if body is request.body else replace(request, body=body), client)

    def finish_later(found: Any) -> Any:
        return _finished(asked.by(rights.image()), passed, found)

    if type(answer) is Later:
        finish = answer.finish
        return Later(answer.deferred, lambda found: finish_later(finish(found)))
    if isinstance(answer, Awaitable):
        return _awaited(answer, finish_later)
    return _finished(asked, passed, answer)


async def _awaited(answer: Awaitable[Any], finish: Callable[[Any], Any]) -> Any:
    return finish(await answer)


def _finished(asked: AccessAsked, passed: list[tuple[AccessStep, Any]], answer: Any) -> Any:
    for step, note in reversed(passed):
        answer = step.after(asked, answer, note)
    return answer
