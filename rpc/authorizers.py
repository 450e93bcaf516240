"""A controller and the brokers that register with it compare their authorizers.

Each node checks rights by its own file. Where one has an authorizer and the other has none, clients that one
refuses are administrators at the other, and nothing else shows it. Neither refuses the other: nodes are
restarted one by one when an authorizer is introduced. A node of a release that does not say which it has is
not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from metaquorum.metadata.settings.keys import Value
from metaquorum.network.refused_callers import RefusedCallers

KEY = "metaquorum-authorizer"
"""Of the metadata with a registration, and with its answer."""

NONE = "none: everything is allowed"


class Authorizers:
    """`values`: this node's configuration."""

    def __init__(self, values: Mapping[str, Value | None]) -> None:
        self._own = NONE
        if name := values["authorizer.class.name"]:
            everyone = values["allow.everyone.if.no.acl.found"]
            self._own = f"{str(name).rpartition('.')[2]}, allow.everyone.if.no.acl.found={everyone}"
        self._callers = RefusedCallers()

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return ((KEY, self._own),)

    def compare(self, metadata: Iterable[Any] | None, node: str, peer: str) -> None:
        """Logs one WARNING per host and interval if `node`, such as "broker 3", says that its authorizer is
        another one."""
        theirs = next((value for key, value in metadata or () if key == KEY), self._own)
        if theirs == self._own:
            return
        text = (
            f"{node} at {{peer}} has another authorizer ({theirs}) than this node ({self._own}): clients "
            "have other rights there; set authorizer.class.name and allow.everyone.if.no.acl.found alike in "
            "every node's file"
        )
        self._callers.log(peer, text, kind=f"authorizer of {node}")
