"""The entries that decide for a principal, also those for everyone, are found and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaquorum.metadata.records import types as r
from metaquorum.metadata.settings.acls import Operation, PatternType, Permission, ResourceType
from metaquorum.storage.disk.posix import PosixDisk
from tests.unit.console.asked import Asked
from tests.unit.metadata.made_logs import STORY, make_node


def entry(number: int, principal: str, permission: Permission, *, topic: str, **more: str) -> object:
    pattern = PatternType.PREFIXED if topic.endswith("-") else PatternType.LITERAL
    return r.AccessControlEntryRecord(
        bytes([number]) * 16,
        ResourceType.TOPIC,
        topic.removesuffix("-"),
        pattern,
        principal,
        more.get("host", "*"),
        Operation.READ,
        permission,
    )


ENTRIES = [
    entry(1, "User:alice", Permission.ALLOW, topic="orders"),
    entry(2, "User:*", Permission.DENY, topic="orders"),
    entry(3, "User:bob", Permission.ALLOW, topic="ord-"),
    entry(4, "User:bob", Permission.DENY, topic="payments", host="10.0.0.1"),
    entry(5, "User:carol", Permission.ALLOW, topic="*"),
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
