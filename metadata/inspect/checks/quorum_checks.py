"""Rules of `check` for the quorum's own records: voter sets, kraft.version and elections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from metaquorum.metadata.inspect.checks.record_checks import Fault
from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.inspect.log.voters import ids_text, voter_ids
from metaquorum.metadata.inspect.walk.steps import WalkStep
from metaquorum.metadata.invariants import ERROR, WARNING
from metaquorum.metadata.records import control
from metaquorum.storage.uuids import ZERO_UUID

_WHERE = "quorum"


def quorum_faults(step: WalkStep) -> Iterator[Fault]:
    """Broken rules of a control batch."""
    if not step.batch.header.is_control:
        return
    view = step.quorum_before
    for decoded in step.records:
        match decoded.record:
            case control.LeaderChangeMessage():
                yield from _election(view, decoded.record, decoded.offset)
            case control.KRaftVersionRecord(kraft_version=version) if version < view.kraft_version:
                text = f"kraft.version decreases from {view.kraft_version} to {version}"
                yield Fault("kraft-version-rises", ERROR, decoded.offset, _WHERE, text)
            case control.VotersRecord():
                yield from _voters(view, decoded.record, decoded.offset, step.epoch)
        view = view.after(step.epoch, (decoded,))


def _election(view: QuorumView, record: control.LeaderChangeMessage, offset: int) -> Iterator[Fault]:
    yield from _grants(record, offset)
    if view.kraft_version == 0 or not view.voter_set:
        return
    named = tuple(sorted(voter.voter_id for voter in record.voters))
    wrong = []
    if named != view.voters:
        wrong.append(f"names the voters {','.join(map(str, named))}, but {ids_text(view.voter_set)} are")
    if record.leader_id not in view.voters:
        wrong.append(f"elects {record.leader_id}, which is not a voter")
    if wrong:
        text = f"the election {' and '.join(wrong)}"
        yield Fault("election-names-voters", ERROR, offset, _WHERE, text)


def _grants(record: control.LeaderChangeMessage, offset: int) -> Iterator[Fault]:
    voters = {voter.voter_id for voter in record.voters}
    granting = {voter.voter_id for voter in record.granting_voters}
    if not voters or not granting:
        return
    wrong = []
    if strangers := sorted(granting - voters):
        wrong.append(f"is granted by {','.join(map(str, strangers))}, not a voter")
    if 2 * len(granting & voters) <= len(voters):
        wrong.append(f"is granted by {len(granting & voters)} of {len(voters)} voters, which is no majority")
    if record.leader_id not in voters:
        wrong.append(f"elects {record.leader_id}, which is not one of its voters")
    if wrong:
        yield Fault("election-has-a-majority", ERROR, offset, _WHERE, f"the election {' and '.join(wrong)}")


def _voters(view: QuorumView, record: control.VotersRecord, offset: int, epoch: int) -> Iterator[Fault]:
    wrong = _not_whole(record)
    if wrong:
        yield Fault("voters-are-whole", ERROR, offset, _WHERE, f"in the voter set, {'; '.join(wrong)}")
    if view.kraft_version == 0 and view.has_leader:
        text = "there is a voter set at kraft.version 0"
        yield Fault("kraft-version-rises", ERROR, offset, _WHERE, text)
    if view.has_leader and view.epoch != epoch:
        text = f"no leader wrote the voter set {ids_text(record.voters)} of epoch {epoch}: it was forced"
        yield Fault("voters-have-a-leader", WARNING, offset, _WHERE, text)
        return
    if not view.voter_set or not record.voters:
        return
    old, new = _keys(view.voter_set), _keys(record.voters)
    if ZERO_UUID in old.values():
        new = dict.fromkeys(new, ZERO_UUID)  # only the ids of static voters are known
    if len(set(old.items()) ^ set(new.items())) > 1:
        text = f"the voters {ids_text(view.voter_set)} become {ids_text(record.voters)} by one record"
        if voter_ids(view.voter_set) == voter_ids(record.voters):
            text += ", with other directories"
        yield Fault("voters-change-by-one", ERROR, offset, _WHERE, text)


def _keys(voters: tuple[control.Voter, ...]) -> dict[int, bytes]:
    return {voter.voter_id: voter.voter_directory_id for voter in voters}


def _not_whole(record: control.VotersRecord) -> list[str]:
    if not record.voters:
        return ["the voter set is empty"]
    wrong = []
    for number, times in Counter(voter.voter_id for voter in record.voters).items():
        if times > 1:
            wrong.append(f"voter {number} is listed twice")
    if len({voter.voter_directory_id for voter in record.voters}) < len(record.voters) and not wrong:
        wrong.append("two voters have one directory")
    for voter in record.voters:
        if voter.voter_directory_id == ZERO_UUID:
            wrong.append(f"voter {voter.voter_id} has no directory id")
        if not voter.endpoints:
            wrong.append(f"voter {voter.voter_id} has no address")
    return wrong
