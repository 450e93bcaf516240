"""The console's ASGI application for a fleet: its page, and that of a cluster's log below /log/CLUSTER/."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from metaquorum.console.answers import (
    AnswerTurns,
    download,
    page_file,
    query_of,
    static_routes,
    text_of,
    times_of,
)
from metaquorum.console.app import log_routes
from metaquorum.console.fleet import FleetViews
from metaquorum.console.guard import Guard
from metaquorum.console.views import Views
from metaquorum.metadata.errors import InspectError

_AT_ONCE = 2


def fleet_application(
    views: FleetViews, logs: Mapping[str, Callable[[], Views]], *, token: str, port: int
) -> Any:
    """The application for a fleet, behind its guard. `logs` open the logs that are within reach, by
    cluster, when a page asks for them."""
    turns = AnswerTurns(_AT_ONCE)

    def table(request: Request) -> Any:
        kind, form = text_of(request, "kind"), text_of(request, "format")
        page = views.table(kind, query_of(request), *times_of(request))
        return download(page, form, f"fleet-{kind}") if form else msgspec.structs.asdict(page)

    handlers: dict[str, Callable[[Request], Any]] = {
        "fleet": lambda request: views.fleet(),
        "lanes": lambda request: views.lanes(text_of(request, "cluster")),
        "table": table,
    }
    routes = [
        *static_routes(),
        Route("/", page_file("fleet.html")),
        *(Route(f"/api/{name}", turns.handler(handler)) for name, handler in handlers.items()),
        Route("/log/{cluster}", lambda request: RedirectResponse(f"{quote(request.url.path)}/")),
        Mount("/log/{cluster}", app=_Logs(logs)),
    ]
    return Guard(Starlette(routes=routes), token=token, port=port)


class _Logs:
    """The pages of the clusters' logs, each opened when it is first asked for."""

    def __init__(self, logs: Mapping[str, Callable[[], Views]]) -> None:
        self._logs = logs
        self._opened: dict[str, Starlette] = {}
        self._opening = asyncio.Lock()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        answer: Any = await self._page(str(scope["path_params"]["cluster"]))
        await answer(scope, receive, send)

    async def _page(self, cluster: str) -> Starlette | Response:
        if cluster not in self._logs:
            text = f"The log of cluster {cluster} was not given: metaquorum console TABLES LOG...\n"
            return PlainTextResponse(text, 404)
        async with self._opening:
            if cluster not in self._opened:
                try:
                    views = await asyncio.to_thread(self._logs[cluster])
                except (InspectError, OSError) as error:
                    return PlainTextResponse(f"{error}\n", 404)
                self._opened[cluster] = Starlette(routes=log_routes(views))
            return self._opened[cluster]
