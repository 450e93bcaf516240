"""Voter sets (KIP-853) as the tools show them: plain data, and the changes of one record in words.

A voter is one of `metadata.records.control`; a voter of a static quorum has no endpoints and usually no
directory id.
"""

from __future__ import annotations

from collections.abc import Sequence

from metaquorum.metadata.records.control import Voter
from metaquorum.metadata.text.addresses import address_text, listener_text
from metaquorum.storage.uuids import ZERO_UUID, uuid_to_text


def voter_ids(voters: Sequence[Voter]) -> tuple[int, ...]:
    """Node ids, ascending."""
    return tuple(sorted(voter.voter_id for voter in voters))


def voter_set_texts(voters: Sequence[Voter]) -> list[str]:
    """As plain data, by ascending id: `id@host:port:directory-id`, as `storage format` takes them, plus what
    that form lacks: further listeners, and a range of kraft.version other than 0-1."""
    return [_text(voter) for voter in sorted(voters, key=lambda voter: voter.voter_id)]


def _text(voter: Voter) -> str:
    first, more = (
        voter.endpoints[:1],
        [listener_text(at.name, at.host, at.port) for at in voter.endpoints[1:]],
    )
    if _range(voter) != "0-1":
        more.append(f"kraft.version {_range(voter)}")
    where = "".join(f"{address_text(at.host, at.port)}:" for at in first)
    beyond = f" ({', '.join(more)})" if more else ""
    return f"{voter.voter_id}@{where}{uuid_to_text(voter.voter_directory_id)}{beyond}"


def ids_text(voters: Sequence[Voter]) -> str:
    """`1,2,3`."""
    return ",".join(map(str, voter_ids(voters)))


def changes_text(before: Sequence[Voter] | None, after: Sequence[Voter]) -> str:
    """The changes by a record that holds the whole set: `added 4 at ...; removed 3 ...`. "" if there are
    none, or if the set before is unknown (None)."""
    if before is None:
        return ""
    old = {voter.voter_id: voter for voter in before}
    new = {voter.voter_id: voter for voter in after}
    changes = [f"added {_whole(new[one])}" for one in sorted(new.keys() - old.keys())]
    changes += [f"removed {_named(old[one])}" for one in sorted(old.keys() - new.keys())]
    for one in sorted(old.keys() & new.keys()):
        changes += _updates(old[one], new[one])
    return "; ".join(changes)


def _whole(voter: Voter) -> str:
    where = ", ".join(address_text(at.host, at.port) for at in voter.endpoints)
    return f"{_named(voter)}{f' at {where}' if where else ''}"


def _named(voter: Voter) -> str:
    if voter.voter_directory_id == ZERO_UUID:
        return str(voter.voter_id)
    return f"{voter.voter_id} (directory {uuid_to_text(voter.voter_directory_id)})"


def _updates(old: Voter, new: Voter) -> list[str]:
    changes = []
    if old.voter_directory_id not in (new.voter_directory_id, ZERO_UUID):
        changes.append(
            f"{old.voter_id} has another directory, {uuid_to_text(new.voter_directory_id)} instead of"
            f" {uuid_to_text(old.voter_directory_id)}"
        )
    if old.endpoints and old.endpoints != new.endpoints:
        now, was = ([listener_text(at.name, at.host, at.port) for at in one.endpoints] for one in (new, old))
        changes.append(f"{new.voter_id} is at {', '.join(now) or 'no address'}, before at {', '.join(was)}")
    if old.endpoints and _range(old) != _range(new):
        changes.append(f"{new.voter_id} supports kraft.version {_range(new)}, before {_range(old)}")
    return changes


def _range(voter: Voter) -> str:
    supported = voter.kraft_version_feature
    return f"{supported.min_supported_version}-{supported.max_supported_version}"
