"""One attack as a process: `python -m tests.attacks.strike NAME SEED TARGET`, TARGET as JSON."""

from __future__ import annotations

import random
import sys

import msgspec

from tests.attacks.catalogue import ATTACKS
from tests.attacks.site import Target


def main(name: str, seed: str, target: str) -> None:
    """Runs it to its end."""
    ATTACKS[name].strike(random.Random(f"{name} {seed}"), msgspec.json.decode(target, type=Target))


if __name__ == "__main__":
    main(*sys.argv[1:])
