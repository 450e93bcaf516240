"""DescribeUserScramCredentials: named users, named twice, and many of them."""

from __future__ import annotations

from typing import Any

from metaquorum.listeners.forwarded.describe import describe_user_scram_credentials
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import ImageBuilder, MetadataImage
from metaquorum.metadata.image.types import ScramCredential
from metaquorum.metadata.settings.scram import Mechanism
from metaquorum.wire.messages import DescribeUserScramCredentialsRequest

KEYS = {"salt": b"s", "stored_key": b"k", "server_key": b"v"}


def image(*users: str) -> MetadataImage:
    builder = ImageBuilder(MetadataImage())
    for user in users:
        for mechanism in Mechanism:
            builder.scram.put(
                (mechanism.value, user), ScramCredential(iterations=4096 + mechanism.value, **KEYS)
            )
    return builder.freeze()


class Name(str):
    """Counts how often it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)


def asked(*names: str) -> Any:
    kinds: Any = DescribeUserScramCredentialsRequest
    return kinds(users=tuple(kinds.UserName(name=name) for name in names) if names else None)


def described(body: Any, known: MetadataImage) -> list[tuple[str, int, list[tuple[int, int]]]]:
    return [
        (each.user, each.error_code, [(one.mechanism, one.iterations) for one in each.credential_infos])
        for each in describe_user_scram_credentials(body, 0, known).results
    ]


def test_those_that_are_named_once_are_described_in_the_order_of_the_request() -> None:
    both = [(1, 4097), (2, 4098)]
    known = image("ann", "bob")
    duplicate, missing = ErrorCode.DUPLICATE_RESOURCE, ErrorCode.RESOURCE_NOT_FOUND
    assert described(asked("bob", "zoe", "ann"), known) == [
        ("bob", 0, both),
        ("zoe", missing, []),
        ("ann", 0, both),
    ]
    assert described(asked("bob", "ann", "bob"), known) == [("bob", duplicate, []), ("ann", 0, both)]
    assert described(asked(), known) == [("ann", 0, both), ("bob", 0, both)]


def test_many_names_cost_as_much_as_they_are() -> None:
    """Each name was compared with all others: 20 kB of names kept a broker busy for seconds."""
    known = image("ann", "bob")
    names = [Name(f"user-{number}") for number in range(5_000)]
    Name.compared = 0
    assert len(described(asked(*names), known)) == 5_000
    assert Name.compared <= 10 * len(names)
