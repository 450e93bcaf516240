"""Names of topics: Kafka's rules on length, characters and collisions, and its internal topics."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import product

NAME_LENGTH_MAX = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+\Z")
_VARIANTS_MAX = 256


def name_problem(name: str) -> str | None:
    """Why `name` is not a valid topic name, as a line for people; None if it is valid."""
    if not name:
        return "a topic name must not be empty: give it one"
    if name in {".", ".."}:
        return f"'{name}' cannot be a topic name: choose another"
    if len(name) > NAME_LENGTH_MAX:
        return f"a topic name has at most {NAME_LENGTH_MAX} characters, this one has {len(name)}: shorten it"
    if _LEGAL.match(name) is None:
        return (
            f"'{name}' has a character that is not allowed in topic names: use letters, digits, '.', "
            "'_' and '-'"
        )
    return None


def normal_form(name: str) -> str:
    """Names with the same normal form collide: metrics write '.' as '_'."""
    return name.replace(".", "_")


def colliding_name(
    name: str, exists: Callable[[str], bool], every_name: Callable[[], Iterable[str]]
) -> str | None:
    """Another existing topic that collides with `name`; None if there is none.

    Looks up every spelling of the name if there are few, otherwise goes through all names.
    """
    if "." not in name and "_" not in name:
        return None
    parts = re.split(r"[._]", name)
    marks = len(parts) - 1
    if 2**marks > _VARIANTS_MAX:
        normal = normal_form(name)
        return next((other for other in every_name() if other != name and normal_form(other) == normal), None)
    for choice in product("._", repeat=marks):
        other = parts[0] + "".join([mark + part for mark, part in zip(choice, parts[1:], strict=True)])
        if other != name and exists(other):
            return other
    return None


# Names of the topics that Kafka keeps its own state in.

METADATA_TOPIC = "__cluster_metadata"
"""The log of the quorum, as partition 0 of a topic; no broker has it as a topic."""
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
