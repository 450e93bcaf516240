"""The first voter set that formatting writes (KIP-853): its options, and which of them can be combined.

Owns the rules of Kafka's `StorageTool` and `Formatter` for dynamic voters. Does not read or write
directories; `format` does.
"""

from __future__ import annotations

import random
from collections.abc import Collection

import click
import msgspec

from metaquorum.cli.errors import Failure, one_line
from metaquorum.cli.formatting.configured import ConfiguredNode
from metaquorum.metadata.features import KRAFT_VERSION
from metaquorum.metadata.records.control import KRaftVersionFeature, Voter, VoterEndpoint
from metaquorum.metadata.text.addresses import address_text
from metaquorum.storage.uuids import is_reserved_directory, random_uuid, uuid_from_text, uuid_to_text

SUPPORTED_KRAFT_VERSIONS = KRaftVersionFeature(min_supported_version=0, max_supported_version=1)
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
    return new_voter(node.node_id, host or "localhost", port, directory_id, node.controller_listener)


def _listed(text: str, listener: str) -> tuple[Voter, ...]:
    # Imports gRPC, which the rest of this group does not need.
    from metaquorum.runtime.config.addresses import parse_voters
    from metaquorum.runtime.errors import ConfigError

    try:
        parsed = parse_voters(
            [part.strip() for part in text.split(",") if part.strip()], "--initial-controllers"
        )
    except ConfigError as error:
        raise Failure(one_line(error)) from error
    if not parsed:
        raise Failure("--initial-controllers is empty; write id@host:port:directory-id,...")
    voters = []
    for each in parsed:
        name = f"--initial-controllers has {each.node_id}@{address_text(each.host, each.port)}"
        if each.directory_id is None:
            raise Failure(f"{name} without a directory id; write id@host:port:directory-id ({_IDS_NEEDED})")
        if is_reserved_directory(each.directory_id):
            raise Failure(f"{name} with the reserved id {uuid_to_text(each.directory_id)}; {_IDS_NEEDED}")
        voters.append(new_voter(each.node_id, each.host, each.port, each.directory_id, listener))
    ids = [voter.voter_directory_id for voter in voters]
    if len(set(ids)) != len(ids):
        raise Failure(
            f"--initial-controllers has a directory id twice; each directory has its own ({_IDS_NEEDED})"
        )
    return tuple(sorted(voters, key=lambda voter: voter.voter_id))


def new_voter(node_id: int, host: str, port: int, directory_id: bytes, listener: str) -> Voter:
    """A voter of this release, as VotersRecord has it."""
    return Voter(
        voter_id=node_id,
        voter_directory_id=directory_id,
        # Kafka writes listener names in upper case.
        endpoints=(VoterEndpoint(name=listener.upper(), host=host, port=port),),
        kraft_version_feature=SUPPORTED_KRAFT_VERSIONS,
    )
