"""Parts of records, and the numbers that represent states.

Owns what several record types share. Knows no bytes, which are for `codec`; an image has its own values in
`image.types`.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

NO_LEADER = -1
"""The leader of a partition that has none."""

LEADER_RECOVERED = 0
LEADER_RECOVERING = 1
"""Values of `leader_recovery_state` (KIP-704): recovering means elected uncleanly and not yet settled."""

FENCED = 1
UNFENCED = -1
"""Values of `BrokerRegistrationChangeRecord.fenced`; `None` means unchanged."""

IN_CONTROLLED_SHUTDOWN = 1
"""The value of `BrokerRegistrationChangeRecord.in_controlled_shutdown`; `None` means unchanged."""

UnknownTags: TypeAlias = tuple[tuple[int, bytes], ...]


class BrokerEndpoint(msgspec.Struct, frozen=True, gc=False):
    """Where a broker listens. `port` is 0..65535; `security_protocol` 0 PLAINTEXT, 1 SSL, 2 and 3 SASL."""

    name: str
    host: str
    port: int
    security_protocol: int
    unknown_tags: UnknownTags = ()


class BrokerFeature(msgspec.Struct, frozen=True, gc=False):
    """The levels of one feature that a broker supports, both ends included (KIP-584)."""

    name: str
    min_supported_version: int
    max_supported_version: int
    unknown_tags: UnknownTags = ()


class ControllerEndpoint(msgspec.Struct, frozen=True, gc=False):
    """Where a controller listens."""

    name: str
    host: str
    port: int
    security_protocol: int
    unknown_tags: UnknownTags = ()


class ControllerFeature(msgspec.Struct, frozen=True, gc=False):
    """The levels of one feature that a controller supports, both ends included."""

    name: str
    min_supported_version: int
    max_supported_version: int
    unknown_tags: UnknownTags = ()


class QuotaEntity(msgspec.Struct, frozen=True, gc=False):
    """One part of a quota's entity: type `user`, `client-id` or `ip`; name None is the default entity."""

    entity_type: str
    entity_name: str | None
    unknown_tags: UnknownTags = ()
