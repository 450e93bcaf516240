"""The console's ASGI application: the page, its files, and the views as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from metaquorum.console.guard import Guard
from metaquorum.console.strip import is_users
from metaquorum.console.tables import TABLES, TablePage, TableQuery, csv_text
from metaquorum.console.views import Answer, Views
from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.settings.keys import MAX_LONG, whole_number

STATIC = Path(__file__).parent / "static"
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
WATCH_S = 0.5
"""How often the stream looks whether the log or the strip has grown."""


def application(views: Views, *, token: str, port: int) -> Any:
    """The application for one log, behind its guard."""
    api = _Api(views)
    routes = [
        Route("/", _file("index.html")),
        *(Route(f"/static/{path.name}", _file(path.name)) for path in sorted(STATIC.iterdir())),
        *(Route(f"/api/{name}", _json(view)) for name, view in api.views().items()),
        Route("/api/stream", api.stream),
    ]
    return Guard(Starlette(routes=routes), token=token, port=port)


def _file(name: str) -> Callable[[Request], Response]:
    path = STATIC / name

    def answer(request: Request) -> Response:
        return FileResponse(path, media_type=_TYPES[path.suffix])

    return answer


def encoded(value: Any) -> bytes:
    """Compact JSON; what is secret is redacted."""
    return msgspec.json.encode(value, enc_hook=_plain)


def _plain(value: object) -> object:
    if isinstance(value, str):  # a secret, which shows itself redacted
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise NotImplementedError(f"no JSON form for {type(value).__name__}")


def _json(view: Callable[[Request], Any]) -> Callable[[Request], Response]:
    """A view as a handler, which runs in a thread: what a user can cause is one sentence."""

    def answer(request: Request) -> Response:
        try:
            made = view(request)
            return made if isinstance(made, Response) else _in_json(made)
        except Exception as error:
            return _sentence(error)

    return answer


def _sentence(error: Exception) -> Response:
    """What a user can cause, in one sentence. Raises anything else again."""
    if not is_users(error):
        raise error
    text = " ".join(str(error).split()) or type(error).__name__
    return _in_json({"error": text}, 400)


def _in_json(value: Any, status: int = 200) -> Response:
    return Response(encoded(value), status, media_type="application/json")


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
            "moment": lambda request: self._views.moment(self._views.state(_at(request))),
            "overview": lambda request: self._views.overview(_at(request)),
            "entity": lambda request: self._views.entity(_text(request, "path"), _at(request)),
            "why": lambda request: self._views.why(
                _text(request, "target"), _at(request), _number(request, "last", 20)
            ),
            "history": lambda request: self._views.history(_text(request, "target"), _at(request)),
            "events": lambda request: self._views.events(
                _query(request), _text(request, "severity"), _window(request)
            ),
            "records": lambda request: self._views.records(
                _number(request, "start", 0), _number(request, "size", 50), _text(request, "entity")
            ),
            "record": lambda request: self._views.record(_number(request, "offset", 0)),
            "diff": lambda request: self._views.diff(
                _window(request), _text(request, "entity"), _query(request)
            ),
            "bisect": lambda request: self._views.bisect(_text(request, "predicate"), _window(request)),
            "access": lambda request: self._views.access(
                _at(request),
                *(_text(request, name) for name in ("principal", "operation", "resource", "host")),
            ),
            "search": lambda request: self._views.search(_text(request, "text"), _at(request)),
        }

    def _strip(self, request: Request) -> Answer:
        times = [_number(request, name, -1) for name in ("fromMs", "toMs")]
        low, high = (None if time_ms < 0 else time_ms for time_ms in times)
        return self._views.strip.cut(low, high, _number(request, "width", 1000))

    def _table(self, request: Request) -> Response | Answer:
        """A page of a table; with `format`, the whole table as a file."""
        kind, form = _text(request, "kind"), _text(request, "format")
        query = _query(request)
        if form:
            query = msgspec.structs.replace(query, start=0, size=0)
        page, state = self._views.table(kind, _at(request), query)
        if form:
            return _download(page, form, f"{kind}-{state.end_offset}")
        command = self._views.table_command(kind, state)
        return {**self._views.moment(state), **msgspec.structs.asdict(page), "command": command}

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
                yield b"data: " + encoded(answer) + b"\n\n"
            await asyncio.sleep(WATCH_S)


def _download(page: TablePage, form: str, name: str) -> Response:
    if form not in ("csv", "json"):
        raise InspectError(f"there is no format {form!r}; known are csv and json")
    body = csv_text(page).encode() if form == "csv" else encoded(page.rows)
    kind = "text/csv; charset=utf-8" if form == "csv" else "application/json"
    headers = {"content-disposition": f'attachment; filename="{name}.{form}"'}
    return Response(body, media_type=kind, headers=headers)


def _text(request: Request, name: str) -> str:
    return request.query_params.get(name, "")


def _at(request: Request) -> str | None:
    return request.query_params.get("at") or None


def _window(request: Request) -> tuple[str | None, str | None]:
    params = request.query_params
    return params.get("from") or None, params.get("to") or None


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name)
    if text is None or text == "":
        return default
    number = whole_number(text, MAX_LONG)
    if number is None:
        raise InspectError(f"{name}={text!r} is not a number")
    return number


def _query(request: Request) -> TableQuery:
    return TableQuery(
        text=_text(request, "text"),
        show=_text(request, "show"),
        sort=_text(request, "sort"),
        descending=_text(request, "order") == "descending",
        start=_number(request, "start", 0),
        size=max(1, _number(request, "size", 100)),
    )
