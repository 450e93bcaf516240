"""What an attack is, and the table of them: `@attack` adds one."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from tests.attacks.site import PORTS, Target

Strike = Callable[[random.Random, Target], None]


class Attack(msgspec.Struct, frozen=True, kw_only=True):
    """`port`: which port of the site it is about. `memory_bytes`: by how much a node may grow meanwhile, if
    not by the judge's bound."""

    name: str
    port: str
    strike: Strike
    memory_bytes: int | None = None


ATTACKS: dict[str, Attack] = {}


def attack(name: str, *, port: str, memory_bytes: int | None = None) -> Callable[[Strike], Strike]:
    """Adds a function to the table under a name, which is unique."""
    if port not in PORTS or name in ATTACKS:
        raise ValueError(f"attack {name}: {port} is not a port of the site, or the name is taken")

    def add(strike: Strike) -> Strike:
        ATTACKS[name] = Attack(name=name, port=port, strike=strike, memory_bytes=memory_bytes)
        return strike

    return add
