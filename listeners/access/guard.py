"""Puts the checks of the table around the handlers of a listener's APIs.

The order: the steps check the request from the first to the last, and the answer from the last to the first.
A handler sees what the client may see, and does not know permissions. An answer that took a while is checked
with the permissions of that later time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from metaquorum.listeners.access.steps import AccessAsked, AccessStep, Pauses, at_once, with_pauses
from metaquorum.listeners.answers import AnswerFrame, opened
from metaquorum.listeners.services import Client, Handler, Later, Offered
from metaquorum.metadata.authorizer import Authorizer
from metaquorum.metadata.image import MetadataImage
from metaquorum.wire.codec import Request

Passed = list[tuple[AccessStep, Any]]
"""Steps that a request has passed, and what each needs when it sees the answer."""


class Rights(msgspec.Struct, frozen=True, kw_only=True):
    """What decides: `authorizer` None allows everything. `image` is called at each request. `checks`: those
    of a broker or a controller (`listeners/rights.py`)."""

    authorizer: Authorizer | None
    image: Callable[[], MetadataImage]
    checks: Mapping[str, tuple[AccessStep, ...]]
    creates_topics: bool = False


def guarded(offered: Mapping[str, Offered], rights: Rights) -> dict[str, Offered]:
    """The same APIs behind their checks. Raises KeyError for an API without a row in the table."""
    missing = ", ".join(sorted(offered.keys() - rights.checks.keys()))
    if missing:
        raise KeyError(f"{missing}: CHECKS (listeners/rights.py) must say which rights it needs")
    return {name: _guarded(name, each, rights.checks[name], rights) for name, each in offered.items()}


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
    work = _passing(asked, steps, request.body)
    if any(step.is_long(request.body) for step in steps):
        return _checked_in_slices(asked, work, request, client, handler, rights)
    return _handled(asked, at_once(work), request, client, handler, rights)


async def _checked_in_slices(
    asked: AccessAsked, work: Pauses, request: Request, client: Client, handler: Handler, rights: Rights
) -> Any:
    """No other request of the connection starts meanwhile: this one is long by its number of values."""
    body, passed, answer = await with_pauses(work)
    if answer is None:
        answer = handler(request if body is request.body else request.changed(body), client)
        answer = await answer if isinstance(answer, Awaitable) else answer
        asked = asked.by(rights.image())
    return await with_pauses(_finishing(asked, passed, answer))


def _passing(asked: AccessAsked, steps: tuple[AccessStep, ...], body: Any) -> Pauses:
    """What the steps leave of a request. None instead of its body: the last step has answered it."""
    passed: Passed = []
    for step in steps:
        outcome = yield from step.checking(asked, body)
        passed.append((step, outcome.note))
        if outcome.answer is not None:
            return None, passed, outcome.answer
        body = outcome.body
    return body, passed, None


def _handled(
    asked: AccessAsked,
    outcome: tuple[Any, Passed, Any],
    request: Request,
    client: Client,
    handler: Handler,
    rights: Rights,
) -> Any:
    body, passed, refusal = outcome
    if refusal is not None:
        return _finished(asked, passed, refusal)
    answer = handler(request if body is request.body else request.changed(body), client)

    def finish_later(answered: Any) -> Any:
        return _finished(asked.by(rights.image()), passed, answered)

    if type(answer) is Later:
        finish = answer.finish
        return Later(answer.deferred, lambda found: finish_later(finish(found)))
    if isinstance(answer, Awaitable):
        return _awaited(answer, finish_later)
    return _finished(asked, passed, answer)


async def _awaited(answer: Awaitable[Any], finish: Callable[[Any], Any]) -> Any:
    return finish(await answer)


def _finished(asked: AccessAsked, passed: Passed, answer: Any) -> Any:
    return at_once(_finishing(asked, passed, answer))


def _finishing(asked: AccessAsked, passed: Passed, answer: Any) -> Pauses:
    for step, note in reversed(passed):
        if type(answer) is not AnswerFrame or step.needs_answer(note):
            answer = yield from step.finishing(asked, opened(answer), note)
    return answer
