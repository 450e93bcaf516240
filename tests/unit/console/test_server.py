"""The port that is open until Ctrl-C, and the stream that a page keeps open."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from metaquorum.console import app as app_module
from metaquorum.console.app import application
from metaquorum.console.guard import COOKIE
from metaquorum.console.moments import Moments
from metaquorum.console.server import Console, LogPage, log_console
from metaquorum.console.strip import Strip
from metaquorum.console.views import SEARCHED_MAX, Views
from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.inspect.log.log import open_log
from metaquorum.metadata.records import types as r
from tests.unit.console.asked import PORT, TOKEN
from tests.unit.metadata.made_logs import HOME, STORY, Batch, make_node, memory_disk, topic

WAIT_S = 30.0


@contextmanager
def serving(console: Console) -> Iterator[threading.Thread]:
    """A console that serves meanwhile, as after Ctrl-C at the end."""
    thread = threading.Thread(target=console.serve)
    thread.start()
    try:
        yield thread
    finally:
        console._server.should_exit = True
        thread.join(WAIT_S)
    assert not thread.is_alive()


def fetched(url: str) -> Any:
    """A response, from a browser that keeps cookies."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    return opener.open(url, timeout=WAIT_S)


def test_a_console_serves_its_page_to_its_own_url_until_it_is_ended() -> None:
    disk = memory_disk()
    make_node(disk, STORY)
    page = LogPage(open_log(disk, HOME), ("night",), 64 << 20)
    with log_console(page, 0) as console:
        with serving(console):
            with fetched(console.url) as answer:
                assert answer.status == 200 and b"<title>" in answer.read()
            bare = console.url.partition("?")[0]
            with pytest.raises(urllib.error.HTTPError, match="403"):
                fetched(bare)
            with pytest.raises(InspectError, match=r"cannot be used .*; give another one with --port"):
                Console(lambda token, port: None, console._port)
        with pytest.raises(urllib.error.URLError):
            fetched(bare)
    assert page._ended.is_set() and not page._thread.is_alive()
    assert logging.getLogger("uvicorn.error").filters == []


def test_an_open_answer_does_not_hold_up_the_end_and_is_not_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    has_begun = threading.Event()

    async def endless(request: Request) -> PlainTextResponse:
        has_begun.set()
        await asyncio.Event().wait()
        raise AssertionError("nobody ends it")

    console = Console(lambda token, port: Starlette(routes=[Route("/", endless)]), 0)
    with socket.create_connection(("127.0.0.1", console._port), timeout=WAIT_S) as opened:
        with serving(console):
            opened.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert has_begun.wait(WAIT_S)
        opened.recv(100)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


class _Stream:
    """What a page gets of the stream; a message is taken with `next`."""

    def __init__(self, views: Views) -> None:
        self._app = application(views, token=TOKEN, port=PORT)
        self._sent: asyncio.Queue[Any] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._task = asyncio.ensure_future(self._app(self._scope(), self._receive, self._sent.put))

    async def next(self) -> Any:
        return await asyncio.wait_for(self._sent.get(), WAIT_S)

    async def is_silent(self) -> bool:
        await asyncio.sleep(20 * app_module.WATCH_S)
        return self._sent.empty()

    async def end(self) -> None:
        self._gone.set()
        await asyncio.wait_for(self._task, WAIT_S)

    async def _receive(self) -> Any:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    @staticmethod
    def _scope() -> dict[str, Any]:
        headers = {"host": f"127.0.0.1:{PORT}", "cookie": f"{COOKIE}-{PORT}={TOKEN}"}
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "method": "GET",
            "path": "/api/stream",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }


def test_the_stream_says_what_the_log_is_once_and_whenever_it_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app_module, "WATCH_S", 0.01)
    disk = memory_disk()
    make_node(disk, STORY)
    strip = Strip(Moments(open_log(disk, HOME), 64 << 20))
    strip.follow(None)
    views = Views(strip, ("night",))

    async def watch() -> None:
        stream = _Stream(views)
        start = await stream.next()
        assert start["status"] == 200
        assert (b"content-type", b"text/event-stream; charset=utf-8") in start["headers"]
        first = _message(await stream.next())
        assert (first["endOffset"], first["trouble"]) == (15, "")
        assert await stream.is_silent()
        strip.version += 1
        assert _message(await stream.next())["version"] == first["version"] + 1
        strip._problem = "the log is gone"
        assert _message(await stream.next())["trouble"] == "the log is gone"
        assert await stream.is_silent()
        await stream.end()

    asyncio.run(watch())


def _message(sent: dict[str, Any]) -> Any:
    body: bytes = sent["body"]
    assert body.startswith(b"data: ") and body.endswith(b"\n\n") and body.count(b"\n") == 2
    return msgspec.json.decode(body.removeprefix(b"data: "))


def test_a_search_shows_as_many_of_each_kind_as_a_person_reads() -> None:
    many = 3 * SEARCHED_MAX
    topics: list[Batch] = [
        (2, topic(f"night-{number}", number.to_bytes(16, "big"))) for number in range(100, 100 + many)
    ]
    settings: list[Batch] = [
        (2, [r.ConfigRecord(2, f"night-{number}", "retention.ms", "1")]) for number in range(100, 100 + many)
    ]
    disk = memory_disk()
    make_node(disk, [*STORY, *topics, *settings])
    strip = Strip(Moments(open_log(disk, HOME), 64 << 20))
    strip.follow(None)
    found = Views(strip, ("night",)).search("night-", None)
    assert {kind: len(rows) for kind, rows in found.items()} == {
        "moments": 0,
        "entities": 20,
        "acls": 0,
        "settings": 20,
        "events": 20,
    }
