"""The console's ASGI application for one log: the page, its files, and the views as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from metaquorum.console.answers import (
    AnswerTurns,
    download,
    number_of,
    page_file,
    query_of,
    static_routes,
    text_of,
    times_of,
)
from metaquorum.console.guard import Guard
from metaquorum.console.tables import TABLES
from metaquorum.console.views import Answer, Views, entity_of_table
from metaquorum.metadata.secrets import json_bytes

_LONG = frozenset({"bisect", "diff", "groups", "history", "records", "search", "voters", "why"})
"""Views that may read much of the log, or ask a cluster; a move of the handle does not wait for them."""
_SHORT_AT_ONCE, _LONG_AT_ONCE = 2, 2
WATCH_S = 0.5
"""How often the stream looks whether the log or the strip has grown."""


def application(views: Views, *, token: str, port: int) -> Any:
    """The application for one log, behind its guard."""
    return Guard(Starlette(routes=[*static_routes(), *log_routes(views)]), token=token, port=port)


def log_routes(views: Views) -> list[Route]:
    """The page of a log and what it asks, below the address of the page."""
    api = _Api(views)
    short, long = AnswerTurns(_SHORT_AT_ONCE), AnswerTurns(_LONG_AT_ONCE)

    def before_others(view: Callable[[Request], Any]) -> Callable[[Request], Any]:
        def answer(request: Request) -> Any:
            with views.moments.first():
                return view(request)

        return answer

    return [
        Route("/", page_file("index.html")),
        *(
            Route(
                f"/api/{name}",
                long.handler(view) if name in _LONG else short.handler(before_others(view)),
            )
            for name, view in api.views().items()
        ),
        Route("/api/stream", api.stream),
    ]


class _Api:
    """The parameters of each request."""

    def __init__(self, views: Views) -> None:
        self._views = views

    def views(self) -> dict[str, Callable[[Request], Any]]:
        """The JSON views by name."""
        return {
            "log": lambda request: {**self._views.log(), "tables": list(TABLES)},
            "strip": self._strip,
            "table": self._table,
            "groups": lambda request: self._views.groups(query_of(request)),
            "voters": lambda request: self._views.voters(),
            "moment": lambda request: self._views.moment(self._views.state(_at(request))),
            "overview": lambda request: self._views.overview(_at(request)),
            "entity": lambda request: self._views.entity(text_of(request, "path"), _at(request)),
            "why": lambda request: self._views.why(
                text_of(request, "target"), _at(request), number_of(request, "last", 20)
            ),
            "history": lambda request: self._views.history(text_of(request, "target"), _at(request)),
            "events": lambda request: self._views.events(
                query_of(request), text_of(request, "severity"), _window(request)
            ),
            "records": lambda request: self._views.records(
                number_of(request, "start", 0), number_of(request, "size", 50), text_of(request, "entity")
            ),
            "record": lambda request: self._views.record(number_of(request, "offset", 0)),
            "diff": lambda request: self._views.diff(
                _window(request), text_of(request, "entity"), query_of(request)
            ),
            "bisect": lambda request: self._views.bisect(text_of(request, "predicate"), _window(request)),
            "access": lambda request: self._views.access(
                _at(request),
                *(text_of(request, name) for name in ("principal", "operation", "resource", "host")),
            ),
            "search": lambda request: self._views.search(text_of(request, "text"), _at(request)),
        }

    def _strip(self, request: Request) -> Answer:
        return self._views.strip.cut(*times_of(request), number_of(request, "width", 1000))

    def _table(self, request: Request) -> Response | Answer:
        """A page of a table; with `format`, the whole table as a file."""
        kind, form = text_of(request, "kind"), text_of(request, "format")
        page, state = self._views.table(kind, _at(request), query_of(request))
        if form:
            return download(page, form, f"{kind}-{state.end_offset}")
        more = {"entity": entity_of_table(kind), "command": self._views.table_command(kind, state)}
        return {**self._views.moment(state), **msgspec.structs.asdict(page), **more}

    async def stream(self, request: Request) -> Response:
        """Server-sent events: the log as it is, whenever it or its strip has changed."""
        return StreamingResponse(self._changes(request), media_type="text/event-stream")

    async def _changes(self, request: Request) -> AsyncIterator[bytes]:
        last: tuple[int, int, str] | None = None
        while not await request.is_disconnected():
            answer = await asyncio.to_thread(self._views.log)
            now = answer["version"], answer["endOffset"], answer["trouble"]
            if now != last:
                last = now
                yield b"data: " + json_bytes(answer) + b"\n\n"
            await asyncio.sleep(WATCH_S)


def _at(request: Request) -> str | None:
    return request.query_params.get("at") or None


def _window(request: Request) -> tuple[str | None, str | None]:
    params = request.query_params
    return params.get("from") or None, params.get("to") or None
