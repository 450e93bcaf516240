"""What the pages of the console share: JSON answers in turn, sentences for errors, files, parameters."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from metaquorum.console.event_reader import is_users
from metaquorum.console.tables import TablePage, TableQuery, csv_text
from metaquorum.lines import one_line
from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.secrets import json_bytes
from metaquorum.metadata.settings.keys import MAX_LONG, whole_number

STATIC = Path(__file__).parent / "static"
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_OVERTAKEN = 499


def static_routes() -> list[Route]:
    """The files that every page loads."""
    return [Route(f"/static/{path.name}", page_file(path.name)) for path in sorted(STATIC.iterdir())]


def page_file(name: str) -> Callable[[Request], Response]:
    """A handler that answers with one of the files."""
    path = STATIC / name

    def answer(request: Request) -> Response:
        return FileResponse(path, media_type=_TYPES[path.suffix])

    return answer


class AnswerTurns:
    """How many answers are computed at once. A request that its page has given up before its turn, since the
    handle has moved on, is not computed."""

    def __init__(self, at_once: int) -> None:
        self._free = asyncio.Semaphore(at_once)

    def handler(self, view: Callable[[Request], Any]) -> Callable[[Request], Awaitable[Response]]:
        """A view as a handler, which runs in a thread: what a user can cause is one sentence."""

        def answer(request: Request) -> Response:
            try:
                made = view(request)
                return made if isinstance(made, Response) else in_json(made)
            except Exception as error:
                return _sentence(error)

        async def in_turn(request: Request) -> Response:
            async with self._free:
                if await request.is_disconnected():
                    return Response(status_code=_OVERTAKEN)
                return await _apart(lambda: answer(request))

        return in_turn


async def _apart(answer: Callable[[], Response]) -> Response:
    """An answer that is made in a thread which ends with the process: Ctrl-C need not wait for a view that
    reads much of a log."""
    loop = asyncio.get_running_loop()
    made: asyncio.Future[Response] = loop.create_future()

    def settle(settled: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(lambda: None if made.done() else settled())

    def run() -> None:
        try:
            response = answer()
        except BaseException as error:
            settle(partial(made.set_exception, error))
        else:
            settle(partial(made.set_result, response))

    threading.Thread(target=run, name="answer", daemon=True).start()
    return await made


def in_json(value: Any, status: int = 200) -> Response:
    """A value as a response."""
    return Response(json_bytes(value), status, media_type="application/json")


def _sentence(error: Exception) -> Response:
    """What a user can cause, in one sentence. Raises anything else again."""
    if not is_users(error):
        raise error
    text = one_line(error)
    return in_json({"error": text}, 400)


def download(page: TablePage, form: str, name: str) -> Response:
    """A whole table as a file, CSV or JSON. Raises InspectError for another format."""
    if form not in ("csv", "json"):
        raise InspectError(f"there is no format {form!r}; known are csv and json")
    body = csv_text(page).encode() if form == "csv" else json_bytes(page.rows)
    kind = "text/csv; charset=utf-8" if form == "csv" else "application/json"
    headers = {"content-disposition": f'attachment; filename="{name}.{form}"'}
    return Response(body, media_type=kind, headers=headers)


def text_of(request: Request, name: str) -> str:
    """A parameter; empty if it is absent."""
    return request.query_params.get(name, "")


def number_of(request: Request, name: str, default: int) -> int:
    """A parameter that is a number of 0 or more. Raises InspectError for another text."""
    text = request.query_params.get(name)
    if text is None or text == "":
        return default
    number = whole_number(text, MAX_LONG)
    if number is None:
        raise InspectError(f"{name}={text!r} is not a number")
    return number


def times_of(request: Request) -> tuple[int | None, int | None]:
    """The window of time that is asked for, Unix ms; None for an end that is open."""
    low, high = (number_of(request, name, -1) for name in ("fromMs", "toMs"))
    return (None if low < 0 else low, None if high < 0 else high)


def query_of(request: Request) -> TableQuery:
    """The page of a table that is asked for; with `format`, the whole table."""
    is_whole = bool(text_of(request, "format"))
    return TableQuery(
        text=text_of(request, "text"),
        show=text_of(request, "show"),
        sort=text_of(request, "sort"),
        descending=text_of(request, "order") == "descending",
        start=0 if is_whole else number_of(request, "start", 0),
        size=0 if is_whole else max(1, number_of(request, "size", 100)),
    )
