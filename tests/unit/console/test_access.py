"""The entries that decide for a principal, also those for everyone, are found and named."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from metaquorum.console.access import _allows, _denies
from metaquorum.metadata.image import Acl
from metaquorum.metadata.records import types as r
from metaquorum.metadata.settings.acls import Operation, PatternType, Permission, ResourceType
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.uuids import uuid_to_text
from tests.unit.console.asked import Asked
from tests.unit.metadata.made_logs import STORY, make_node


def entry(number: int, principal: str, permission: Permission, *, topic: str, **more: Any) -> Any:
    pattern = PatternType.PREFIXED if topic.endswith("-") else PatternType.LITERAL
    return r.AccessControlEntryRecord(
        bytes([number]) * 16,
        ResourceType.TOPIC,
        topic.removesuffix("-"),
        pattern,
        principal,
        more.get("host", "*"),
        more.get("operation", Operation.READ),
        permission,
    )


ENTRIES = [
    entry(1, "User:alice", Permission.ALLOW, topic="orders"),
    entry(2, "User:*", Permission.DENY, topic="orders"),
    entry(3, "User:bob", Permission.ALLOW, topic="ord-"),
    entry(4, "User:bob", Permission.DENY, topic="payments", host="10.0.0.1"),
    entry(5, "User:carol", Permission.ALLOW, topic="*"),
    entry(6, "User:frank", Permission.ALLOW, topic="ledger", operation=Operation.WRITE),
    entry(7, "User:frank", Permission.DENY, topic="ledger", host="10.0.0.1", operation=Operation.ALL),
    entry(8, "User:frank", Permission.ALLOW, topic="led-", host="10.0.0.2", operation=Operation.ALL),
    r.UserScramCredentialRecord("dave", 1, b"s", b"k", b"v", 4096),
]


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    batches = [*STORY, *((2, [record]) for record in ENTRIES)]
    make_node(PosixDisk(), batches, home=str(tmp_path))
    return Asked(tmp_path)


def found(asked: Asked, text: str) -> list[str]:
    return [each["text"].replace("READ on TOPIC ", "") for each in asked.view("search", text=text)["acls"]]


@pytest.mark.parametrize("text", ["alice", "User:alice"])
def test_a_search_for_a_principal_finds_the_entries_for_everyone_denials_first(
    asked: Asked, text: str
) -> None:
    assert found(asked, text) == [
        "DENY orders (LITERAL) to User:* from host *",
        "ALLOW orders (LITERAL) to User:alice from host *",
    ]


def test_who_has_no_entry_is_a_principal_by_a_login_or_by_how_it_is_written(asked: Asked) -> None:
    everyone = ["DENY orders (LITERAL) to User:* from host *"]
    assert found(asked, "dave") == found(asked, "User:erin") == everyone
    assert found(asked, "erin") == found(asked, "ali-no") == []


def test_a_search_for_a_topic_finds_the_entries_with_a_prefix_or_for_all(asked: Asked) -> None:
    assert [text.partition(" (")[0] for text in found(asked, "orders")] == [
        "DENY orders",
        "ALLOW orders",
        "ALLOW ord",
        "ALLOW *",
    ]
    assert [text.partition(" (")[0] for text in found(asked, "order")] == ["DENY orders", "ALLOW orders"]


@pytest.mark.parametrize("text", ["alice", "orders", "ord", "User:erin", "erin"])
def test_the_table_s_filter_finds_the_entries_that_a_search_finds(asked: Asked, text: str) -> None:
    page = asked.view("table", kind="acls", text=text)
    searched = {each["path"] for each in asked.view("search", text=text)["acls"]}
    assert {row["path"] for row in page["rows"]} == searched
    assert (page["count"], page["total"]) == (len(searched), len(ENTRIES) - 1)


def test_the_table_s_filter_still_finds_words_of_other_columns(asked: Asked) -> None:
    page = asked.view("table", kind="acls", text="deny")
    assert {row["permissionType"] for row in page["rows"]} == {"DENY"}


def test_the_answer_names_what_decides_for_everyone_and_that_hosts_differ(asked: Asked) -> None:
    answer = asked.view("access", principal="User:alice", operation="READ", resource="topic/orders")
    assert not answer["allowed"] and answer["sentence"].endswith("an entry denies it")
    assert [each["principal"] for each in answer["entries"]] == ["User:*"]
    wanted = {"principal": "User:bob", "operation": "READ", "resource": "topic/payments"}
    assert "single hosts: ask for 10.0.0.1" in asked.view("access", **wanted)["sentence"]
    at_host = asked.view("access", **wanted, host="10.0.0.1")
    assert at_host["sentence"].endswith("an entry denies it") and len(at_host["entries"]) == 1


RIGHTS = {
    "READ": ("READ",),
    "WRITE": ("WRITE",),
    "DESCRIBE": ("DESCRIBE", "READ", "WRITE", "DELETE", "ALTER"),
}
"""By operation: what allows it, besides ALL (Kafka's rule)."""


@pytest.mark.parametrize("host", ["", "10.0.0.1", "10.0.0.2"])
def test_the_answer_and_its_entries_are_those_of_plain_rules(asked: Asked, host: str) -> None:
    principals = ("User:alice", "User:bob", "User:carol", "User:frank", "User:erin")
    topics = ("orders", "ord", "payments", "ledger", "ledgers", "other")
    for principal, topic, (operation, allowing) in product(principals, topics, RIGHTS.items()):
        own = [
            acl
            for acl in ENTRIES
            if isinstance(acl, r.AccessControlEntryRecord)
            and acl.principal in (principal, "User:*")
            and (
                acl.resource_name in (topic, "*")
                or (acl.pattern_type == 4 and topic.startswith(acl.resource_name))
            )
        ]
        decides = {Permission.DENY: (operation, "ALL"), Permission.ALLOW: (*allowing, "ALL")}
        own = [
            acl for acl in own if Operation(acl.operation).name in decides[Permission(acl.permission_type)]
        ]
        here = [acl for acl in own if acl.host in ("*", host or "*")]
        denies = [acl for acl in here if acl.permission_type == Permission.DENY]
        sentence = f"{principal} may {operation} topic/{topic}"
        if denies:
            sentence = sentence.replace("may", "may not") + ": an entry denies it"
        elif not here:
            sentence = sentence.replace("may", "may not")
            sentence += ": no entry allows it, unless the brokers are set to allow what has no entry"
        if not host and (hosts := sorted({acl.host for acl in own} - {"*"})):
            sentence += f"; there are other entries for single hosts: ask for {' or '.join(hosts)}"
        wanted = {"principal": principal, "operation": operation.lower(), "resource": f"topic/{topic}"}
        answer = asked.view("access", **wanted, host=host)
        assert answer["sentence"] == sentence and answer["allowed"] == (bool(here) and not denies)
        paths = {f"acl/{uuid_to_text(acl.id)}" for acl in denies or here}
        assert {each["path"] for each in answer["entries"]} == paths
        assert "READ" in answer["operations"] and "ALL" not in answer["operations"]


@pytest.mark.parametrize(
    ("operation", "resource"), [("ANY", "topic/x"), ("ALL", "topic/x"), ("READ", "any/x")]
)
def test_a_question_is_about_one_operation_on_one_kind(asked: Asked, operation: str, resource: str) -> None:
    text = asked.refusal("access", principal="User:alice", operation=operation, resource=resource)
    assert text.startswith("name one kind of resource and one operation")
    for kind in ("topic", "topic/"):
        assert "write the principal as User:alice" in asked.refusal(
            "access", principal="User:alice", operation="READ", resource=kind
        )


@pytest.mark.parametrize("permission", range(5))
def test_a_permission_of_a_newer_release_grants_nothing(permission: int) -> None:
    """As at the brokers: what they do not know denies."""
    acl = Acl(
        resource_type=2,
        resource_name="t",
        pattern_type=3,
        principal="User:a",
        host="*",
        operation=Operation.READ,
        permission_type=permission,
    )
    assert _allows(acl, (Operation.READ,)) is (permission == Permission.ALLOW)
    assert _denies(acl, Operation.READ) is (permission != Permission.ALLOW)
