"""Which rights every API asks for, which decisions are logged, and which codes refuse, as recorded text.

Who changes a check changes lines here (`pytest tests/unit/kafka/auth/test_decisions.py --rewrite`).
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from metaquorum.listeners.access import steps
from metaquorum.metadata.authorizer import Authorizer
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.settings.acls import CLUSTER_NAME, Operation, ResourceType
from metaquorum.wire.table import API_BY_NAME
from tests.unit.kafka.auth.test_checks import NOBODY, ROOT, ask, image, values_in

RECORDED = Path(__file__).with_name("decisions.txt")
DESCRIBES = image(
    *(
        (kind, CLUSTER_NAME if kind is ResourceType.CLUSTER else name, Operation.DESCRIBE)
        for kind in (
            *(ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER),
            *(ResourceType.TRANSACTIONAL_ID, ResourceType.DELEGATION_TOKEN),
        )
        for name in ("asked", "hidden")
    )
)
CLIENTS = {"none": (NOBODY, MetadataImage()), "all": (ROOT, MetadataImage()), "describe": (NOBODY, DESCRIBES)}


def told(api: str, version: int, who: str, noted: list[str]) -> str:
    """One line about one request."""
    noted.clear()
    client, known = CLIENTS[who]
    answer, handler, _ = ask(api, version, client, known)
    codes = sorted({each for name, each in values_in(answer) if name.endswith("error_code")})
    asked = ", ".join(dict.fromkeys(noted)) or "-"
    passed = "passed on" if handler.bodies else "not passed on"
    return f"{who}: {asked}; {passed}; codes {', '.join(str(int(code)) for code in codes) or '-'}"


def test_decisions_are_what_was_recorded(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    noted: list[str] = []
    decide = Authorizer.allows

    def allows(self: Any, *arguments: Any) -> bool:
        allowed = decide(self, *arguments)
        _, _, operation, resource, name = arguments
        noted.append(f"{operation.name} {resource.name} {name}")
        return allowed

    def note(allowed: bool, *rest: Any) -> None:
        noted[-1] += " (logged)"

    monkeypatch.setattr(Authorizer, "allows", allows)
    monkeypatch.setattr(steps, "note_decision", note)
    lines = []
    for api in API_BY_NAME.values():
        rows = [
            (version, tuple(told(api.name, version, who, noted) for who in CLIENTS))
            for version in api.versions
        ]
        for texts, group in groupby(rows, lambda row: row[1]):
            versions = [version for version, _ in group]
            lines.append(f"{api.name} {versions[0]} to {versions[-1]}")
            lines += [f"    {text}" for text in texts]
    actual = "\n".join(lines) + "\n"
    if request.config.getoption("--rewrite"):
        RECORDED.write_text(actual, encoding="utf-8")
    assert actual == RECORDED.read_text(encoding="utf-8"), "review: pytest with --rewrite"
