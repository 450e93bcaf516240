"""Reads from a node's configuration file what formatting needs.

Owns that selection. Does not check what may be formatted; `format` and `voters` do.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from metaquorum.metadata.text.addresses import address_text
from metaquorum.storage.uuids import uuid_to_text


class ConfiguredNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node's id and directories. `voter_directory_id` is the id that the voter list pins for this node
    (None: none), which belongs to the directory at `metadata_index`. `has_static_voters`: whether there
    is a voter list. `controller_listener`: the name of the controllers' listener. `address`: a
    controller's own (host, port); an empty host means every interface. `other_voters`: addresses to ask,
    with the TLS files (None: plaintext)."""

    node_id: int
    directories: tuple[str, ...]
    voter_directory_id: str | None
    metadata_index: int = 0
    has_static_voters: bool = False
    is_controller: bool = False
    controller_listener: str = ""
    address: tuple[str, int] | None = None
    other_voters: tuple[str, ...] = ()
    keystore: Path | None = None
    truststore: Path | None = None


def read_node_config(path: str) -> ConfiguredNode:
    """Reads and checks a configuration file. Raises ConfigError."""
    # Imports gRPC, which the rest of this group does not need.
    from metaquorum.runtime.config.key import BROKER, CONTROLLER
    from metaquorum.runtime.config.load import load_config
    from metaquorum.runtime.config.node import UNKNOWN_NODE_ID
    from metaquorum.runtime.errors import ConfigError

    config = load_config(Path(path))
    if config.node_id == UNKNOWN_NODE_ID:
        raise ConfigError(
            f"{path} has broker.id.generation.enable=true and no node.id: this broker formats its "
            "directories when it starts; set node.id to format them now"
        )
    directories = list(config.log_dirs)
    if config.metadata_log_dir not in directories:
        directories.append(config.metadata_log_dir)
    pinned = next((voter.directory_id for voter in config.voters if voter.node_id == config.node_id), None)
    is_controller = config.role != BROKER
    listener = config.of(CONTROLLER).advertised[0] if is_controller else None
    address = None if listener is None else (listener.host, listener.port)
    others = [(voter.host, voter.port) for voter in config.voters if voter.node_id != config.node_id]
    if not config.voters:
        others = [server for server in config.bootstrap_servers if server != address]
    return ConfiguredNode(
        node_id=config.node_id,
        directories=tuple(str(directory) for directory in directories),
        voter_directory_id=None if pinned is None else uuid_to_text(pinned),
        metadata_index=directories.index(config.metadata_log_dir),
        has_static_voters=bool(config.voters),
        is_controller=is_controller,
        controller_listener=config.controller_listener,
        address=address,
        other_voters=tuple(address_text(host, port) for host, port in others),
        keystore=config.tls.keystore if config.controllers_use_tls else None,
        truststore=config.tls.truststore if config.controllers_use_tls else None,
    )
