"""A test cluster for programs in other languages: its methods over HTTP, with JSON or a form, and a token.

    POST /kill            {"node": 1}                        {"fault": 3}
    POST /heal            {"fault": 3}                       null
    POST /create_topic    {"name": "orders"}                 "orders"

A mistake is answered with 400 and {"error": "one line"}, a wait that timed out with 504. The methods, their
parameters and their answers are those of `Cluster` in Python: one table is made from them (`reference`).
"""

from __future__ import annotations

import contextlib
import hmac
import http.server
import inspect
import itertools
import json
import operator
import os
import secrets
import threading
import types
import typing
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import msgspec

from metaquorum.lines import one_line
from metaquorum.node.local_nodes import HOST
from metaquorum.testing.breaking import NodeCopy
from metaquorum.testing.clock import TimeControl
from metaquorum.testing.cluster import Cluster
from metaquorum.testing.errors import ClusterError, ClusterTimeoutError
from metaquorum.testing.healing import ActiveFault, ActiveRequestFault

FORM = "application/x-www-form-urlencoded"
BODY_MAX_BYTES = 1 << 20
ONLY_IN_PYTHON = frozenset(
    {
        "close",
        "failure_report",
        "intercept",
        "log",
        "save",
        "start",
        "wait_for_chaos",
        "wait_until",
    }
)
"""Methods that take or return what has no JSON, or end the cluster."""
STATE = (
    "cluster_id",
    "nodes",
    "brokers",
    "controllers",
    "active_controller",
    "bootstrap_servers",
    "client_config",
    "events",
)
"""Properties that are methods without parameters here."""
OF_FAULTS = {"heal": ActiveFault.heal, "hits": ActiveRequestFault.hits, "wait": ActiveRequestFault.wait}
"""Methods of a fault, which is the parameter `fault`."""


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """`kind`: its type in Python."""

    name: str
    kind: Any
    is_needed: bool


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """`answers`: what it returns, for people; `summary`: the first sentence of its docstring."""

    name: str
    parameters: tuple[Parameter, ...]
    answers: str
    summary: str


def methods() -> dict[str, Method]:
    """The table, by name."""
    public = [name for name in dir(Cluster) if not name.startswith("_") and name not in ONLY_IN_PYTHON]
    described = [_method(name, getattr(Cluster, name)) for name in public if callable(getattr(Cluster, name))]
    described += [_method(name, getattr(Cluster, name)) for name in STATE]
    described.append(_method("advance", TimeControl.advance))
    described.append(_method("time_ms", TimeControl.wall_ms))
    which = Parameter(name="fault", kind=int, is_needed=True)
    for name, function in OF_FAULTS.items():
        own = _method(name, function)
        described.append(msgspec.structs.replace(own, parameters=(which, *own.parameters)))
    return {each.name: each for each in sorted(described, key=operator.attrgetter("name"))}


def _method(name: str, function: Any) -> Method:
    function = function.fget if isinstance(function, property) else function
    signature = inspect.signature(function, eval_str=True)
    parameters: list[Parameter] = []
    for parameter in [*signature.parameters.values()][1:]:
        if parameter.kind is parameter.VAR_KEYWORD:  # the keywords of a fault
            hints = typing.get_type_hints(typing.get_args(parameter.annotation)[0])
            parameters += [
                Parameter(name=key, kind=kind, is_needed=False)
                for key, kind in hints.items()
                if key != "predicate"
            ]
        else:
            is_needed = parameter.default is parameter.empty
            kind = int if parameter.annotation is NodeCopy else parameter.annotation  # the number of a copy
            parameters.append(Parameter(name=parameter.name, kind=kind, is_needed=is_needed))
    words = " ".join((inspect.getdoc(function) or "").split())
    sentence = words.partition(". ")[0].rstrip(".") + "."
    return Method(
        name=name,
        parameters=tuple(parameters),
        answers=_answer_text(signature.return_annotation),
        summary=sentence,
    )


def _answer_text(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, ActiveFault):
        return "the fault"
    if kind is NodeCopy:
        return "the copy"
    return "" if kind in (None, type(None)) else kind_text(kind)


def kind_text(kind: Any) -> str:
    """A type for people, in JSON's words."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(kind_text(each) for each in arguments if each is not type(None))
    if origin is not None and issubclass(origin, Mapping):
        return "object" if arguments[0] is str else "list of objects"
    if origin is not None and issubclass(origin, Sequence):
        return f"list of {kind_text(arguments[0])}s"
    names = {int: "number", float: "number", str: "string", bool: "true or false", object: "value"}
    return names.get(kind) or "object"


def reference() -> str:
    """The table of docs/control.md."""
    lines = ["| method | parameters | answers | what it does |", "|---|---|---|---|"]
    for method in methods().values():
        words = ", ".join(
            f"`{one.name}`: {kind_text(one.kind)}" + ("" if one.is_needed else "?")
            for one in method.parameters
        )
        lines.append(f"| `{method.name}` | {words} | {method.answers} | {method.summary} |")
    return "\n".join(lines) + "\n"


def parsed(kind: Any, text: str) -> Any:
    """A value of a form. Raises msgspec.ValidationError."""
    choices = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    if int in choices and text.isdecimal():
        return int(text)
    if str in choices:
        return text
    if any(typing.get_origin(each) is not None for each in choices):
        try:
            return msgspec.convert(json.loads(text), kind)
        except json.JSONDecodeError as error:
            raise msgspec.ValidationError(f"{text!r} is not JSON: {error}") from None
    return msgspec.convert(text, kind, strict=False)


class CallRefused(Exception):
    """`status`: of HTTP."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Control:
    """Carries out methods on a cluster that runs; any thread may call it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._methods = methods()
        self._faults: dict[int, ActiveFault] = {}
        self._copies: dict[int, NodeCopy] = {}
        self._numbers = itertools.count(1)

    def call(self, name: str, given: Mapping[str, Any], *, is_text: bool = False) -> Any:
        """What the method returns, as JSON has it. `is_text`: the values are those of a form. Raises
        CallRefused."""
        method = self._methods.get(name)
        if method is None:
            near = get_close_matches(name, self._methods, n=1)
            hint = f", did you mean {near[0]}?" if near else ": GET / lists all"
            raise CallRefused(404, f"there is no method {name!r}{hint}")
        try:
            values = _checked(method, given, is_text)
            return self._answer(self._carry_out(name, values))
        except ClusterTimeoutError as error:
            raise CallRefused(504, str(error)) from error
        except ClusterError as error:
            raise CallRefused(400, str(error)) from error

    def _carry_out(self, name: str, values: dict[str, Any]) -> Any:
        if name in OF_FAULTS:
            fault = self._faults.get(values.pop("fault"))
            if fault is None or not hasattr(fault, name):
                numbers = ", ".join(map(str, self._faults)) or "none"
                raise ClusterError(f"there is no such fault with {name}: in force are {numbers}")
            found = getattr(fault, name)
            return found(**values) if callable(found) else found
        if name in STATE:
            return getattr(self._cluster, name)
        if name == "advance":
            return self._cluster.clock.advance(**values)
        if name == "time_ms":
            return self._cluster.clock.wall_ms
        if name == "lag":
            lags = self._cluster.lag(**values).items()
            return [{"topic": topic, "partition": index, "lag": lag} for (topic, index), lag in lags]
        if name == "restore_disk_from":
            values["earlier"] = self._copy(values["earlier"])
        return getattr(self._cluster, name)(**values)

    def _copy(self, number: int) -> NodeCopy:
        if number not in self._copies:
            numbers = ", ".join(map(str, self._copies)) or "none"
            raise ClusterError(f"there is no copy {number}: copies are {numbers}")
        return self._copies[number]

    def _answer(self, value: Any) -> Any:
        self._faults = {number: fault for number, fault in self._faults.items() if fault.is_in_force}
        if isinstance(value, ActiveFault):
            number = next(self._numbers)
            self._faults[number] = value
            return {"fault": number}
        if isinstance(value, NodeCopy):
            number = next(self._numbers)
            self._copies[number] = value
            return {"copy": number}
        return msgspec.to_builtins(value)


def _checked(method: Method, given: Mapping[str, Any], is_text: bool) -> dict[str, Any]:
    """Raises ClusterError."""
    by_name = {each.name: each for each in method.parameters}
    wrong = sorted({*given} - {*by_name})
    missing = [each.name for each in method.parameters if each.is_needed and each.name not in given]
    if wrong or missing:
        what = f"has no {', '.join(wrong)}" if wrong else f"needs {', '.join(missing)}"
        raise ClusterError(f"{method.name} {what}: it takes {', '.join(by_name) or 'nothing'}")
    values = {}
    for name, value in given.items():
        kind = by_name[name].kind
        try:
            values[name] = parsed(kind, value) if is_text else msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise ClusterError(f"{method.name}: {name} is a {kind_text(kind)}: {error}") from error
    return values


class ControlServer:
    """Serves `Control` on loopback in threads, until it is closed. Its port is one that is free."""

    def __init__(self, control: Control) -> None:
        self.token = secrets.token_urlsafe(24)
        self._server = _Server((HOST, 0), _Handler)
        self._server.control, self._server.token = control, self.token
        self._thread = threading.Thread(target=self._server.serve_forever, name="kafka control", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    control: Control
    token: str


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    timeout = 60
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """The reference."""
        self._reply(self._asked_for_reference)

    def do_POST(self) -> None:
        """Carries out a method."""
        self._reply(self._called)

    def _reply(self, work: Callable[[], Any]) -> None:
        try:
            status, answer = 200, work()
        except CallRefused as error:
            status, answer = error.status, {"error": one_line(error)}
        is_text = isinstance(answer, _Text)
        body = answer.text.encode() if isinstance(answer, _Text) else msgspec.json.encode(answer)
        with contextlib.suppress(ConnectionError):
            self.send_response(status)
            kind = "text/markdown; charset=utf-8" if is_text else "application/json"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if status != 200:
                self.send_header("Connection", "close")  # what it has sent may not be read
            self.end_headers()
            self.wfile.write(body)

    def _asked_for_reference(self) -> Any:
        self._check_token()
        if self.path != "/":
            raise CallRefused(404, f"there is no {self.path}: GET / has the methods, and POST calls them")
        return _Text(reference())

    def _called(self) -> Any:
        self._check_token()
        length = self.headers.get("Content-Length") or "0"
        if not length.isdecimal() or int(length) > BODY_MAX_BYTES:
            raise CallRefused(413, f"a request has at most {BODY_MAX_BYTES} bytes, and says how many")
        body = self.rfile.read(int(length)).decode(errors="replace")
        name = urllib.parse.unquote(self.path.lstrip("/"))
        if (self.headers.get("Content-Type") or "").startswith(FORM):
            return self.server.control.call(name, dict(urllib.parse.parse_qsl(body, True)), is_text=True)
        try:
            given = json.loads(body or "{}")
        except (json.JSONDecodeError, RecursionError) as error:
            raise CallRefused(400, f"the body is not JSON: {error}") from None
        if not isinstance(given, dict):
            raise CallRefused(400, "the body must be a JSON object with the parameters by name")
        return self.server.control.call(name, given)

    def _check_token(self) -> None:
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self.server.token.encode()):
            raise CallRefused(401, "give the token of control.json, as: Authorization: Bearer TOKEN")

    def log_message(self, format: str, *arguments: Any) -> None:
        """Writes nothing."""


class _Text(msgspec.Struct, frozen=True):
    text: str


class ControlFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `control.json`: where the control port of a running cluster is, for its user alone."""

    url: str
    token: str
    pid: int
    bootstrap_servers: str

    @classmethod
    def of(cls, server: ControlServer, cluster: Cluster) -> ControlFile:
        return cls(
            url=server.url,
            token=server.token,
            pid=os.getpid(),
            bootstrap_servers=cluster.bootstrap_servers,
        )
