"""Who calls whom, in which protocol, read from the code: the diagram of docs/architecture.md.

`python -m tests.walk.processes` writes it there. A role is a top folder (`broker`, `controller`, `cli`). What
code of another folder offers or calls counts for each role whose code uses it, also through further code of
no role.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

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
NOT_MADE = frozenset({("controller", "broker", KAFKA)})
"""The code would allow it: voters connect to voters."""
OFFERS, CALLS = re.compile(r"add_(\w+?)(?:Servicer_to_server|_service)"), re.compile(r"(\w+)Stub")

Edge = tuple[str, str, str]
"""(who calls, who answers, the protocol or the service)."""
Place = tuple[str, str]
"""A module, and a name that it defines at its top."""


@cache
def uses() -> dict[Place, tuple[set[str], set[Place]]]:
    """By definition: the names that it reads, and those of other modules of the package."""
    folders = [path.name for path in (REPOSITORY / "metaquorum").iterdir() if path.is_dir()]
    found: dict[Place, tuple[set[str], set[Place]]] = {}
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
            names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
            names |= {node.attr for node in ast.walk(statement) if isinstance(node, ast.Attribute)}
            defined = getattr(statement, "name", f"line {statement.lineno}")
            own = {(module, name) for name in names - imports.keys()}
            found[module, defined] = names, own | {imports[name] for name in names & imports.keys()}
    return found


def roles_behind(place: Place) -> set[str]:
    """The roles that use a definition: its own, or those whose code uses it."""
    users: dict[Place, set[Place]] = defaultdict(set)
    for user, (_, used) in uses().items():
        for each in used:
            users[each].add(user)
    roles: set[str] = set()
    seen: set[Place] = set()
    waiting = [place]
    while waiting:
        place = waiting.pop()
        if place not in seen:
            seen.add(place)
            role = ROLES.get(place[0].partition(".")[0])
            if role is not None:
                roles.add(role)
            else:
                waiting += users[place]
    return roles


def edges() -> set[Edge]:
    """Every call that the code has."""
    offers: dict[str, set[str]] = defaultdict(set)
    calls: dict[str, set[str]] = defaultdict(set)
    for place, (names, _) in uses().items():
        for name in names:
            if (match := OFFERS.fullmatch(name)) is not None:
                offers[match[1][0].upper() + match[1][1:]] |= roles_behind(place)
            elif (match := CALLS.fullmatch(name)) is not None:
                calls[match[1]] |= roles_behind(place)
            elif name == "KafkaListeners":
                offers[KAFKA] |= roles_behind(place)
            elif name == "PendingRequests":
                calls[KAFKA] |= roles_behind(place)
            elif name == "MetricsEndpoint":
                offers[HTTP] |= roles_behind(place)
    found = {
        (caller, answerer, service)
        for service, callers in calls.items()
        for caller in callers
        for answerer in offers[service]
        if service != NOT_SHOWN and (caller, answerer, service) not in NOT_MADE
    }
    found |= {("Kafka's clients", answerer, KAFKA) for answerer in offers[KAFKA]}
    found |= {("Prometheus", answerer, HTTP) for answerer in offers[HTTP]}
    return found


def diagram() -> str:
    """The edges as a Mermaid flowchart; gRPC's services of two parties are one arrow."""
    arrows: dict[tuple[str, str], tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    for caller, answerer, what in edges():
        is_service = what not in (KAFKA, HTTP)
        arrows[caller, answerer][is_service].add(what)
    lines = ["```mermaid", "flowchart LR"]
    names = sorted({party for pair in arrows for party in pair})
    ids = {name: re.sub(r"\W", "", name) for name in names}
    lines += [f'    {ids[name]}["{TITLES.get(name, name)}"]' for name in names]
    for (caller, answerer), (protocols, services) in sorted(arrows.items()):
        labels = [*sorted(protocols), *([f"gRPC: {', '.join(sorted(services))}"] if services else [])]
        lines += [f'    {ids[caller]} -- "{label}" --> {ids[answerer]}' for label in labels]
    return "\n".join([*lines, "```", ""])


if __name__ == "__main__":
    page = DOCUMENT.read_text("utf-8")
    DOCUMENT.write_text(BLOCK.sub(lambda _: diagram(), page, count=1), "utf-8")
