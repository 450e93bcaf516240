"""Decisions of the authorizer over many access control entries, in processor time."""

from __future__ import annotations

import argparse
import time

from msgspec.structs import replace

from metaquorum.metadata.authorizer import Authorizer, Caller
from metaquorum.metadata.image import Acl, MetadataImage
from metaquorum.metadata.settings.acls import Operation, PatternType, Permission, ResourceType
from tests.bench.figures import Figure

DECISION_US = 20
USERS, TEAMS = 500, 997
HOST = "10.0.1.1"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--entries", type=int, default=100_000)


def run(options: argparse.Namespace) -> list[Figure]:
    image, authorizer = image_of(options.entries), Authorizer()
    asked = questions(options.entries)
    first_ms = _spent_s(authorizer, image, asked[:1]) * 1000
    spent_us = _spent_s(authorizer, image, asked) * 1e6 / len(asked)
    changed_ms = _spent_s(authorizer, with_one_more(image), asked[:1]) * 1000
    return [
        Figure(
            name=f"a decision over {options.entries:,} entries",
            value=spent_us,
            unit="us",
            at_most=DECISION_US,
        ),
        Figure(name="the first decision, which reads all entries", value=first_ms, unit="ms"),
        Figure(name="the first after one more entry", value=changed_ms, unit="ms"),
    ]


def image_of(entries: int) -> MetadataImage:
    """Every user has literal and prefixed entries on topics of every team, some of them for one host only."""
    image = MetadataImage()
    builder = image.acls.builder()
    for at in range(entries):
        host = HOST if at % 2 and not at % 3 else "*"
        builder.put(
            at.to_bytes(16, "big"), _read(f"User:u{at % USERS}", host, f"team{at % TEAMS}.{at}", at % 2 == 1)
        )
    return replace(image, acls=builder.freeze())


def with_one_more(image: MetadataImage) -> MetadataImage:
    builder = image.acls.builder()
    builder.put(b"one more", _read("User:*", "*", "*", False, Permission.DENY))
    return replace(image, acls=builder.freeze())


def questions(entries: int) -> list[tuple[Caller, str]]:
    """A user and a topic that one of its entries may apply to."""
    return [
        (Caller(f"User:u{at % USERS}", HOST), f"team{at % TEAMS}.{at}.orders")
        for at in range(1, entries // 5, 7)
    ]


def ask(authorizer: Authorizer, image: MetadataImage, question: tuple[Caller, str]) -> bool:
    caller, topic = question
    return authorizer.allows(image, caller, Operation.READ, ResourceType.TOPIC, topic)


def _read(
    principal: str, host: str, topic: str, is_prefixed: bool, permission: Permission = Permission.ALLOW
) -> Acl:
    return Acl(
        resource_type=ResourceType.TOPIC,
        resource_name=topic,
        pattern_type=PatternType.PREFIXED if is_prefixed else PatternType.LITERAL,
        principal=principal,
        host=host,
        operation=Operation.READ,
        permission_type=permission,
    )


def _spent_s(authorizer: Authorizer, image: MetadataImage, asked: list[tuple[Caller, str]]) -> float:
    begun = time.process_time()
    for question in asked:
        ask(authorizer, image, question)
    return time.process_time() - begun
