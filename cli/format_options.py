"""What formatting needs: a node's configuration file, and the options about the first voter set (KIP-853).

Which options can be combined are the rules of Kafka's `StorageTool` and `Formatter`.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from pathlib import Path

import click
import msgspec

from metaquorum.cli.errors import Failure
from metaquorum.lines import one_line
from metaquorum.metadata.features import KRAFT_VERSION
from metaquorum.metadata.records.control import Voter
from metaquorum.metadata.text.addresses import address_text
from metaquorum.node.formatted import new_voter
from metaquorum.storage.uuids import is_reserved_directory, random_uuid, uuid_from_text, uuid_to_text

DEFAULT_LISTENER = "CONTROLLER"
_IDS_NEEDED = "metaquorum storage random-uuid prints one"


class VoterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options about voters. `initial_controllers` is the list as text."""

    standalone: bool = False
    initial_controllers: str | None = None
    no_initial_controllers: bool = False

    @property
    def given(self) -> str | None:
        """The option that makes the voters dynamic; None: they are static."""
        if self.standalone:
            return "--standalone"
        if self.initial_controllers is not None:
            return "--initial-controllers"
        return "--no-initial-controllers" if self.no_initial_controllers else None


def check_voter_options(
    options: VoterOptions, node: ConfiguredNode, features: Collection[tuple[str, int]]
) -> None:
    """Raises UsageError or Failure for options that cannot be combined."""
    chosen = (options.standalone, options.initial_controllers is not None, options.no_initial_controllers)
    if sum(chosen) > 1:
        raise click.UsageError(
            "give one of --standalone, --initial-controllers and --no-initial-controllers, not several"
        )
    given = options.given
    if (KRAFT_VERSION, 0) in features and given is not None:
        raise Failure(f"--feature kraft.version=0 means static voters; leave it out, or leave out {given}")
    if (KRAFT_VERSION, 1) in features and given is None:
        raise Failure(
            "--feature kraft.version=1 needs a voter set; give --standalone, --initial-controllers or "
            "--no-initial-controllers"
        )
    if node.has_static_voters and chosen[:2] != (False, False):
        raise Failure(
            f"controller.quorum.voters makes the voters static; leave out {given}, or remove that key and "
            "name controllers in controller.quorum.bootstrap.servers"
        )
    if node.is_controller and not node.has_static_voters and given is None:
        raise Failure(
            "controller.quorum.voters is not set; give --standalone for the first controller of a cluster, "
            "--initial-controllers for a first set of several, or --no-initial-controllers for one that joins"
        )


def first_voters(options: VoterOptions, node: ConfiguredNode, own_id: str | None) -> tuple[Voter, ...]:
    """The voter set to write, sorted by id; empty: none. `own_id`: the metadata directory's id (None:
    random). Raises Failure or UsageError."""
    if options.standalone:
        return (_own(node, own_id),)
    if options.initial_controllers is None:
        return ()
    voters = _listed(options.initial_controllers, node.controller_listener or DEFAULT_LISTENER)
    own = next((voter for voter in voters if voter.voter_id == node.node_id), None)
    if own is None and node.is_controller:
        ids = ", ".join(str(voter.voter_id) for voter in voters)
        raise Failure(
            f"node {node.node_id} is not among --initial-controllers ({ids}); add it there, on every node, "
            "or format it with --no-initial-controllers"
        )
    if own is not None and own_id is not None:
        raise click.UsageError("--initial-controllers has this directory's id; leave out --directory-id")
    return voters


def _own(node: ConfiguredNode, own_id: str | None) -> Voter:
    if not node.is_controller or node.address is None:
        raise click.UsageError("--standalone needs --config with the configuration file of a controller")
    host, port = node.address
    directory_id = uuid_from_text(own_id) if own_id is not None else random_uuid(random.SystemRandom())
    return new_voter(node.node_id, host or "localhost", directory_id, ((node.controller_listener, port),))


def _listed(text: str, listener: str) -> tuple[Voter, ...]:
    # Imports gRPC, which the rest of this group does not need.
    from metaquorum.config.addresses import parse_voters
    from metaquorum.errors import ConfigError

    try:
        parsed = parse_voters(
            [part.strip() for part in text.split(",") if part.strip()], "--initial-controllers"
        )
    except ConfigError as error:
        raise Failure(one_line(error)) from error
    if not parsed:
        raise Failure("--initial-controllers is empty; write id@host:port:directory-id,...")
    voters = []
    for written in parsed:
        name = f"--initial-controllers has {written.node_id}@{address_text(written.host, written.port)}"
        if written.directory_id is None:
            raise Failure(f"{name} without a directory id; write id@host:port:directory-id ({_IDS_NEEDED})")
        if is_reserved_directory(written.directory_id):
            raise Failure(f"{name} with the reserved id {uuid_to_text(written.directory_id)}; {_IDS_NEEDED}")
        voters.append(
            new_voter(written.node_id, written.host, written.directory_id, ((listener, written.port),))
        )
    ids = [voter.voter_directory_id for voter in voters]
    if len(set(ids)) != len(ids):
        raise Failure(
            f"--initial-controllers has a directory id twice; each directory has its own ({_IDS_NEEDED})"
        )
    return tuple(sorted(voters, key=lambda voter: voter.voter_id))


class ConfiguredNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node's id and directories. `voter_directory_id` is the id that the voter list pins for this node
    (None: none), which belongs to the directory at `metadata_index`. `has_static_voters`: whether there
    is a voter list. `controller_listener`: the name of the controllers' listener. `address`: a
    controller's own (host, port); an empty host means every interface. `other_voters`: addresses to ask,
    with the TLS files (None: plaintext). `warnings` are about the file."""

    node_id: int
    directories: tuple[str, ...]
    voter_directory_id: str | None
    metadata_index: int = 0
    has_static_voters: bool = False
    is_controller: bool = False
    controller_listener: str = ""
    address: tuple[str, int] | None = None
    other_voters: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    keystore: Path | None = None
    truststore: Path | None = None


def read_node_config(path: str) -> ConfiguredNode:
    """Reads and checks a configuration file. Raises ConfigError."""
    # Imports gRPC, which the rest of this group does not need.
    from metaquorum.config.load import load_config
    from metaquorum.config.node import UNKNOWN_NODE_ID
    from metaquorum.errors import ConfigError
    from metaquorum.metadata.settings.keys import BROKER, CONTROLLER

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
    own = config.of(CONTROLLER).advertised if is_controller else ()
    listener = next((each for each in own if each.name == config.controller_listener), None)
    address = None if listener is None else (listener.host, listener.port)
    others = [(voter.host, voter.port) for voter in config.voters if voter.node_id != config.node_id]
    if not config.voters:
        others = [server for server in config.bootstrap_servers if server != address]
    tls = config.tls_of(config.controller_listener)
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
        warnings=config.warnings,
        keystore=tls.keystore if config.controllers_use_tls else None,
        truststore=tls.truststore if config.controllers_use_tls else None,
    )
