"""Who calls whom, in which protocol, read from the code: the diagram of docs/architecture.md.

`python -m tests.walk.processes` writes it there. A role is a top folder (`broker`, `controller`, `cli`). What
code of another folder offers or calls counts for each role whose code uses it, also through further code of
no role. A method counts for those of its class's users that read its name, so that a client class does not
count with calls that a role never makes.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from importlib import import_module
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENT = REPOSITORY / "docs/architecture.md"
BLOCK = re.compile(r"```mermaid\nflowchart LR\n.*?```\n", re.DOTALL)
ROLES = {"broker": "broker", "controller": "controller", "cli": "command"}
TITLES = {"broker": "brokers", "controller": "controllers", "command": "commands"}
STARTS_NODES = ("cli.server_commands", "cli.local.")
"""Modules of the command line that start nodes: what those call is not the command's call."""
NOT_SHOWN = "Health"
"""The service that any process may ask of any other."""
KAFKA, HTTP = "Kafka's protocol", "HTTP"
NOT_MADE = frozenset(
    {
        ("controller", "broker", KAFKA),  # voters connect to voters
        ("controller", "controller", "Admin.TransferLeadership"),  # a method of the Raft core has this name
    }
)
"""What the code seems to allow."""
OFFERS, CALLS = re.compile(r"add_(\w+?)(?:Servicer_to_server|_service)"), re.compile(r"(\w+)Stub")
SERVICES = [path.stem for path in sorted((REPOSITORY / "proto").glob("*_pb2_grpc.py"))]

Edge = tuple[str, str, str]
"""(who calls, who answers, the protocol or the call: `Service.Method`)."""
Place = tuple[str, str]
"""A module, and a name that it defines at its top, or `Class.method`."""


class Definition(NamedTuple):
    """`names`: all that it reads; `attributes`: those after a dot; `used`: what it names of the package."""

    names: set[str]
    attributes: set[str]
    used: set[Place]


@cache
def uses() -> dict[Place, Definition]:
    """Every definition. Methods with two underscores belong to their class."""
    folders = [path.name for path in (REPOSITORY / "metaquorum").iterdir() if path.is_dir()]
    found: dict[Place, Definition] = {}
    for path in (path for folder in folders for path in (REPOSITORY / folder).rglob("*.py")):
        module = ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
        if "_pb2" in module or module.startswith(STARTS_NODES):
            continue
        tree = ast.parse(path.read_text("utf-8"))
        imports = {
            alias.asname or alias.name: ((node.module or "").removeprefix("metaquorum."), alias.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("metaquorum.")
            for alias in node.names
        }
        for statement in tree.body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                continue
            defined = getattr(statement, "name", f"line {statement.lineno}")
            for name, parts in _definitions(defined, statement).items():
                read = [node for part in parts for node in ast.walk(part)]
                attributes = {node.attr for node in read if isinstance(node, ast.Attribute)}
                names = attributes | {node.id for node in read if isinstance(node, ast.Name)}
                own = {(module, each) for each in names - imports.keys()}
                used = own | {imports[each] for each in names & imports.keys()}
                found[module, name] = Definition(names, attributes, used)
    return found


def _definitions(name: str, statement: ast.stmt) -> dict[str, list[ast.AST]]:
    """What a statement defines: a class without its methods, and each of these."""
    if not isinstance(statement, ast.ClassDef):
        return {name: [statement]}
    functions = [each for each in statement.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    methods = [each for each in functions if not each.name.startswith("__")]
    rest = [each for each in ast.iter_child_nodes(statement) if each not in methods]
    found: dict[str, list[ast.AST]] = {name: rest}
    for each in methods:
        found.setdefault(f"{name}.{each.name}", []).append(each)
    return found


@cache
def roles() -> dict[Place, frozenset[str]]:
    """The roles that use each definition: its own, or those whose code uses it."""
    users: dict[Place, set[Place]] = defaultdict(set)
    readers: dict[str, set[Place]] = defaultdict(set)
    for user, definition in uses().items():
        for used in definition.used:
            users[used].add(user)
        for name in definition.attributes:
            readers[name].add(user)
    found: dict[Place, frozenset[str]] = dict.fromkeys(uses(), frozenset())
    before: dict[Place, frozenset[str]] = {}
    while found != before:
        before = dict(found)
        for place in found:
            (module, name), role = place, ROLES.get(place[0].partition(".")[0])
            of, _, method = name.partition(".")
            if role is not None:
                found[place] = frozenset({role})
            elif not method:
                found[place] = frozenset().union(*(found[each] for each in users[place] if each in found))
            elif readers[method]:
                reading = frozenset().union(*(found[each] for each in readers[method]))
                found[place] = found[module, of] & reading
            else:
                found[place] = found[module, of]  # called by a library
    return found


def edges() -> set[Edge]:
    """Every call that the code has."""
    offers: dict[str, set[str]] = defaultdict(set)
    calls: dict[str, set[str]] = defaultdict(set)
    reads: dict[str, set[str]] = defaultdict(set)
    for place, definition in uses().items():
        behind = roles()[place]
        for name in definition.names:
            reads[name] |= behind
            if (match := OFFERS.fullmatch(name)) is not None:
                offers[match[1][0].upper() + match[1][1:]] |= behind
            elif (match := CALLS.fullmatch(name)) is not None:
                calls[match[1]] |= behind
            elif name == "KafkaListeners":
                offers[KAFKA] |= behind
            elif name == "PendingRequests":
                calls[KAFKA] |= behind
            elif name == "MetricsEndpoint":
                offers[HTTP] |= behind
    made = {(caller, KAFKA, KAFKA) for caller in calls.pop(KAFKA)}
    made |= {
        (caller, service, f"{service}.{method}")
        for service in calls.keys() - {NOT_SHOWN}
        for method in methods_of(service)
        for caller in calls[service] & reads[method]
    }
    found = {(caller, answerer, what) for caller, service, what in made for answerer in offers[service]}
    found |= {("Kafka's clients", answerer, KAFKA) for answerer in offers[KAFKA]}
    found |= {("Prometheus", answerer, HTTP) for answerer in offers[HTTP]}
    return found - NOT_MADE


def methods_of(service: str) -> list[str]:
    """The calls of a service of gRPC."""
    modules = [import_module(f"metaquorum.proto.{name}") for name in SERVICES]
    name = f"{service}Servicer"
    (servicer,) = (getattr(module, name) for module in modules if hasattr(module, name))
    return [name for name in vars(servicer) if not name.startswith("_")]


def diagram() -> str:
    """The edges as a Mermaid flowchart; gRPC's calls between two parties are one arrow."""
    arrows: dict[tuple[str, str], tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    for caller, answerer, what in edges():
        is_call = what not in (KAFKA, HTTP)
        arrows[caller, answerer][is_call].add(what)
    lines = ["```mermaid", "flowchart LR"]
    names = sorted({party for pair in arrows for party in pair})
    ids = {name: re.sub(r"\W", "", name) for name in names}
    lines += [f'    {ids[name]}["{TITLES.get(name, name)}"]' for name in names]
    for (caller, answerer), (protocols, calls) in sorted(arrows.items()):
        labels = sorted(protocols)
        if calls:
            by_service = groupby((call.split(".") for call in sorted(calls)), key=itemgetter(0))
            rows = [f"{service}: {', '.join(method for _, method in each)}" for service, each in by_service]
            labels.append("\n        ".join(["gRPC", *rows]))
        lines += [f'    {ids[caller]} -- "{label}" --> {ids[answerer]}' for label in labels]
    return "\n".join([*lines, "```", ""])


if __name__ == "__main__":
    page = DOCUMENT.read_text("utf-8")
    DOCUMENT.write_text(BLOCK.sub(lambda _: diagram(), page, count=1), "utf-8")
