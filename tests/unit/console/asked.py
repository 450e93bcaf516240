"""Asks the console's application as a browser would, in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from metaquorum.cli.log.input.nodes import open_merged
from metaquorum.console.app import application
from metaquorum.console.guard import COOKIE
from metaquorum.console.moments import Moments
from metaquorum.console.strip import Strip
from metaquorum.console.views import Views

TOKEN, PORT = "t0ken", 4711
MEMORY_BYTES = 64 << 20


class Answered(NamedTuple):
    """A response: status, headers in small letters, body."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class AskedPage:
    """An application, asked as its page asks it; `root` is the page's address."""

    def __init__(self, app: Any, root: str = "/") -> None:
        self.app = app
        self._root = root

    def get(
        self, path: str, headers: dict[str, str] | None = None, *, method: str = "GET", cookie: bool = True
    ) -> Answered:
        """The response to a request of the page, or one with other headers."""
        sent = {"host": f"127.0.0.1:{PORT}", **({"cookie": f"{COOKIE}-{PORT}={TOKEN}"} if cookie else {})}
        return asyncio.run(_call(self.app, method, path, {**sent, **(headers or {})}))

    def view(self, name: str, **params: object) -> Any:
        """A view's JSON."""
        answer = self.get(f"{self._root}api/{name}?{urlencode(params, quote_via=quote)}")
        assert answer.status == 200, answer.body
        return answer.json()

    def refusal(self, name: str, **params: object) -> str:
        """The sentence of a view that cannot answer."""
        answer = self.get(f"{self._root}api/{name}?{urlencode(params, quote_via=quote)}")
        assert answer.status == 400, answer.body
        text = answer.json()["error"]
        assert "\n" not in text and "Traceback" not in text
        return str(text)


class Asked(AskedPage):
    """The console of the log at some paths; its strip is built."""

    def __init__(self, *paths: str | Path, memory_bytes: int = MEMORY_BYTES) -> None:
        self.words = tuple(map(str, paths))
        self.log, _ = open_merged(self.words)
        self.moments = Moments(self.log, memory_bytes)
        self.strip = Strip(self.moments)
        self.strip.follow(None)
        super().__init__(application(Views(self.strip, self.words), token=TOKEN, port=PORT))


async def _call(app: Any, method: str, path: str, headers: dict[str, str]) -> Answered:
    target, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": target,
        "raw_path": target.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", PORT),
    }
    sent: list[Any] = []
    waiting = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        return waiting.pop() if waiting else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    found = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return Answered(sent[0]["status"], found, b"".join(part.get("body", b"") for part in sent[1:]))
