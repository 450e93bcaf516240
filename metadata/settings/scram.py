"""SCRAM credentials (RFC 5802, RFC 7677), derived as in Kafka: without SASLprep, the password in UTF-8.

Neither a password nor a salted password is ever stored.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import IntEnum
from typing import TYPE_CHECKING

import msgspec

from metaquorum.metadata.records.types import UserScramCredentialRecord

if TYPE_CHECKING:
    from metaquorum.metadata.image import MetadataImage


MIN_ITERATIONS = 4096
MAX_ITERATIONS = 16384
DEFAULT_ITERATIONS = 4096
SALT_BYTES = 24
"""Length of the salts that this program generates; any other length is accepted."""


class Mechanism(IntEnum):
    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def title(self) -> str:
        """As in `SCRAM-SHA-256`."""
        return self.name.replace("_", "-")

    @property
    def digest(self) -> str:
        """The hash's name in hashlib."""
        return "sha256" if self is Mechanism.SCRAM_SHA_256 else "sha512"


def salted_password(mechanism: Mechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Hi(password, salt, iterations) of RFC 5802, which is PBKDF2."""
    return hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)


def stored_keys(mechanism: Mechanism, salted: bytes) -> tuple[bytes, bytes]:
    """(StoredKey, ServerKey) of RFC 5802, section 3."""
    client_key = hmac.digest(salted, b"Client Key", mechanism.digest)
    stored_key = hashlib.new(mechanism.digest, client_key).digest()
    return stored_key, hmac.digest(salted, b"Server Key", mechanism.digest)


def credential_record(
    user: str, mechanism: Mechanism, salted: bytes, salt: bytes, iterations: int
) -> UserScramCredentialRecord:
    """The record that stores the keys of a salted password."""
    stored_key, server_key = stored_keys(mechanism, salted)
    return UserScramCredentialRecord(
        name=user,
        mechanism=mechanism,
        salt=salt,
        stored_key=stored_key,
        server_key=server_key,
        iterations=iterations,
    )


class UserCredentials(msgspec.Struct, frozen=True, kw_only=True):
    """A user with a credential per mechanism: the parts that may be shown."""

    user: str
    iterations: tuple[tuple[Mechanism, int], ...]


def describe_users(image: MetadataImage, users: tuple[str, ...] = ()) -> tuple[UserCredentials, ...]:
    """The users that have credentials, by name; limited to `users` if not empty."""
    credentials: dict[str, list[tuple[Mechanism, int]]] = {}
    if users:
        for user in dict.fromkeys(users):
            for mechanism in sorted(Mechanism):
                if (known := image.scram.get((mechanism.value, user))) is not None:
                    credentials.setdefault(user, []).append((mechanism, known.iterations))
    else:
        for (number, user), credential in image.scram.items_sorted():
            if number in set(Mechanism):
                credentials.setdefault(user, []).append((Mechanism(number), credential.iterations))
    return tuple(
        UserCredentials(user=user, iterations=tuple(credentials[user])) for user in sorted(credentials)
    )
