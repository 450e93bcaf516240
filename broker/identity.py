"""Which broker this is, according to its configuration and its own directories (S0.1 to S0.4, S0.27).

Owns the steps that need no controller. Pure: the contents of the directories go in; what is known, what to
request and what to write comes out. Does not send the requests or write the files, which
`broker.server.identity` does; steps 3 to 5 of S0.1 are the active controller's.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from metaquorum.storage.files.meta_properties import MetaProperties


class IdentityConflict(Exception):
    """The configuration and the directories disagree on which broker this is; one line for humans."""


class IdentityFile(msgspec.Struct, frozen=True, kw_only=True):
    """One directory of the broker. `file` is the path of its meta.properties, which may not exist;
    `properties` is None if it does not."""

    path: str
    file: str
    properties: MetaProperties | None


class KnownIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What is known without a request. `node_id` None: the controllers assign it; `cluster_id` None: they
    report it. `unwritten`: directories without a meta.properties, in the order given. `is_blank`: no
    directory has one."""

    node_id: int | None
    cluster_id: str | None
    unwritten: tuple[str, ...]
    is_blank: bool


def known_identity(explicit_id: int | None, found: Sequence[IdentityFile]) -> KnownIdentity:
    """The explicit id and that of the files, which must agree; raises IdentityConflict if they do not.

    Any directory that survived identifies the broker, whatever happened to the others (S0.27).
    """
    node_id, cluster_id = explicit_id, None
    id_from: IdentityFile | None = None
    cluster_from: IdentityFile | None = None
    for directory in found:
        properties = directory.properties
        if properties is None:
            continue
        if properties.node_id is not None:
            if id_from is not None and properties.node_id != node_id:
                raise IdentityConflict(
                    f"{id_from.file} says that this broker is {node_id}, but {directory.file} says "
                    f"{properties.node_id}: one of them belongs to another broker; correct log.dirs"
                )
            if id_from is None and explicit_id is not None and properties.node_id != explicit_id:
                raise IdentityConflict(
                    f"node.id is {explicit_id}, but {directory.file} says {properties.node_id}: correct or "
                    "remove node.id, or set log.dirs to this broker's own directories"
                )
            node_id, id_from = properties.node_id, directory
        if properties.cluster_id is not None:
            if cluster_from is not None and properties.cluster_id != cluster_id:
                raise IdentityConflict(
                    f"{cluster_from.file} belongs to cluster {cluster_id}, but {directory.file} to "
                    f"{properties.cluster_id}: use directories of one cluster"
                )
            cluster_id, cluster_from = properties.cluster_id, directory
    unwritten = tuple(directory.path for directory in found if directory.properties is None)
    return KnownIdentity(
        node_id=node_id,
        cluster_id=cluster_id,
        unwritten=unwritten,
        is_blank=len(unwritten) == len(found),
    )
