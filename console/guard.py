"""Who may ask the server: a browser on this machine that was given the token.

The server listens on loopback only, but any page in that browser can send requests there, and a foreign name
may resolve to loopback (DNS rebinding). So a request needs this server's own name as its Host, no other page
as its Origin, and the token: once in the URL, from then on in a cookie.
"""

from __future__ import annotations

import secrets
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
COOKIE = "metaquorum-console"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


_WRONG_TOKEN = "The token is wrong: open the URL that metaquorum console printed last."


class Guard:
    """ASGI middleware that lets through what may ask, and adds the headers that bind the page."""

    def __init__(self, app: Any, *, token: str, port: int) -> None:
        self._app = app
        self._token = token
        self._cookie = f"{COOKIE}-{port}"
        self._hosts = frozenset(f"{name}:{port}" for name in LOOPBACK_NAMES)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_bound(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self._answer(Request(scope))
        await (self._app if refusal is None else refusal)(scope, receive, send_bound)

    def _answer(self, request: Request) -> Response | None:
        """A refusal, or the cookie for the token; None if the request may pass."""
        if request.headers.get("host", "").lower() not in self._hosts:
            return _refusal(421, "This server answers only to 127.0.0.1 and localhost with its port.")
        if not self._is_own(request.headers):
            return _refusal(403, "Another page may not ask this server.")
        if request.method not in ("GET", "HEAD"):
            return _refusal(405, "The console is read only: it answers GET.")
        given = request.query_params.get("token")
        if given is not None and request.url.path == "/":
            if not secrets.compare_digest(given.encode(), self._token.encode()):
                return _refusal(403, _WRONG_TOKEN)
            response = RedirectResponse("/", 303)
            response.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
            return response
        cookie = request.cookies.get(self._cookie)
        if cookie is None:
            text = "The token is missing: open the URL that metaquorum console printed, and allow its cookie."
            return _refusal(403, text)
        if not secrets.compare_digest(cookie.encode(), self._token.encode()):
            return _refusal(403, _WRONG_TOKEN)  # the cookie is of a server that ended
        return None

    def _is_own(self, headers: Headers) -> bool:
        """Whether a request is from the console's own page, or typed by a person."""
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() not in self._hosts:
            return False
        return headers.get("sec-fetch-site", "none") in ("none", "same-origin")


def _refusal(status: int, text: str) -> Response:
    return PlainTextResponse(f"{text}\n", status)
