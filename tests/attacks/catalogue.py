"""Every attack: a module that adds some is imported here, and listed."""

from __future__ import annotations

from tests.attacks import batches, calls, connections, internal_topics, many_items
from tests.attacks.attack import ATTACKS

__all__ = ["ATTACKS"]

MODULES = (batches, calls, connections, internal_topics, many_items)
