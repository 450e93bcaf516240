"""What no record may contain in any state: rules of `check` about records and about the clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from metaquorum.metadata.image import ImageBuilder
from metaquorum.metadata.inspect.changes.idle_records import only_epoch_differs, subject, subject_key
from metaquorum.metadata.inspect.entities.views import touched
from metaquorum.metadata.inspect.log.clock import LogClock
from metaquorum.metadata.inspect.log.points import utc_text
from metaquorum.metadata.inspect.log.quorum import QuorumView, ids_text, voter_ids
from metaquorum.metadata.inspect.timeline.event_groups import duration
from metaquorum.metadata.inspect.walk.steps import WalkStep
from metaquorum.metadata.invariants import ERROR, WARNING
from metaquorum.metadata.records import control
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batches import DecodedRecord
from metaquorum.metadata.records.types import FENCED
from metaquorum.metadata.text.tree import scram_text
from metaquorum.storage.uuids import ZERO_UUID

RECORD_RULES = {
    "broker-epoch-is-offset": "a new incarnation's broker epoch is the offset of its registration, or of the"
    " first record written with it",
    "records-change-something": "no record sets a value that was already set, or removes something that did"
    " not exist; but a new controller of Kafka 4 may fence a fenced broker again",
    "credentials-work": "a SCRAM credential has a known mechanism, 4096 iterations or more, a salt, and keys"
    " of the mechanism's length",
    "clock-does-not-jump": "batch times neither fall by a second nor jump ahead by a day",
    "voters-change-by-one": "of two voter sets in a row, one has one voter more, or both have the same ids"
    " and directories",
    "voters-are-whole": "a voter set has a voter, each id and directory once, and an address for each",
    "voters-have-a-leader": "a leader writes every voter set; only `log salvage` writes one without",
    "kraft-version-rises": "kraft.version does not decrease, and is at least 1 where there is a voter set",
    "election-names-voters": "an election names the voters in force, and elects one of them",
    "election-has-a-majority": "a majority of the voters, and none but voters, grants an election of a voter",
}
"""What `check` requires of records and times, in addition to the rules of docs/invariants.md."""

IDLE_RULE = "records-change-something"

JUMP_AHEAD_MS = 86_400_000
"""This far ahead from one batch to the next, the clock was set or nothing was written."""

MIN_ITERATIONS = 4_096
"""From RFC 7677 and Kafka, for both mechanisms."""

KEY_BYTES = {1: 32, 2: 64}
"""For SCRAM-SHA-256 and SCRAM-SHA-512, by the mechanism's number."""

MAX_RECORDS = 64
"""Larger batches are not looked at record by record: they fence brokers or create many partitions."""


class Fault(NamedTuple):
    """One broken rule: at an offset, about an entity."""

    rule: str
    severity: str
    offset: int
    where: str
    text: str


def record_faults(step: WalkStep, refused: Collection[int], written: int) -> Iterator[Fault]:
    """Broken rules of a batch's records. `refused` are offsets of records that were not applied; `written` is
    the offset after the last data batch before this one."""
    header = step.batch.header
    if header.is_control or header.records_count > MAX_RECORDS:
        return
    records = [one for one in step.records if one.offset not in refused]
    for decoded in records:
        match decoded.record:
            case r.BrokerRecord():
                yield from _registration(decoded.record, decoded.offset, step, written)
            case r.UserScramCredentialRecord():
                yield from _credential(decoded.record, decoded.offset)
    if header.records_count > 1:
        yield from falls_inside(step.records)
    if step.state_before.transaction is None and step.state_after.transaction is None:
        yield from _idle(records, step)


def _registration(record: r.BrokerRecord, offset: int, step: WalkStep, written: int) -> Iterator[Fault]:
    """Kafka uses the offset of the registration, or of the decision's first record (3.9 writes ISR changes
    before it); up to 3.3 it did not count a leader change just before. An amended registration of the same
    incarnation keeps its epoch."""
    known = step.before.brokers.get(record.broker_id)
    amends = known is not None and known.incarnation_id == record.incarnation_id
    if amends and known is not None and record.broker_epoch == known.epoch:
        return
    if not min(step.offset, written) <= record.broker_epoch <= offset:
        text = (
            f"the registration of broker {record.broker_id} at offset {offset} has broker epoch"
            f" {record.broker_epoch}"
        )
        yield Fault("broker-epoch-is-offset", ERROR, offset, f"broker/{record.broker_id}", text)


def _credential(record: r.UserScramCredentialRecord, offset: int) -> Iterator[Fault]:
    wanted = KEY_BYTES.get(record.mechanism)
    wrong = []
    if wanted is None:
        wrong.append(f"there is no mechanism {record.mechanism}")
    if record.iterations < MIN_ITERATIONS:
        wrong.append(f"{record.iterations} iterations are fewer than {MIN_ITERATIONS}")
    if not record.salt:
        wrong.append("the salt is empty")
    for name, key in (("stored key", record.stored_key), ("server key", record.server_key)):
        if len(key) != (wanted or len(key)) or not key:
            wrong.append(f"the {name} has {len(key)} bytes" + (f", not {wanted}" if wanted else ""))
    if wrong:
        where = f"user/{record.name}"
        yield Fault("credentials-work", ERROR, offset, where, f"{scram_text(record)}: {', '.join(wrong)}")


def falls_inside(records: Iterable[DecodedRecord]) -> Iterator[Fault]:
    """Where the times of a batch's records decrease."""
    last = None
    for decoded in records:
        if last is not None and decoded.timestamp_ms < last:
            text = f"the time falls by {duration(last - decoded.timestamp_ms)} inside a batch"
            yield Fault("clock-does-not-jump", WARNING, decoded.offset, "log", text)
            return
        last = decoded.timestamp_ms


def _idle(records: list[DecodedRecord], step: WalkStep) -> Iterator[Fault]:
    keys = [_key(one.record) for one in records]
    often = Counter(key for key in keys if key is not None)
    before: ImageBuilder | None = None
    for decoded, key in zip(records, keys, strict=True):
        if key is None or often[key] > 1:  # of several about one entity, only the last shows
            continue
        if isinstance(decoded.record, r.BrokerRegistrationChangeRecord) and decoded.record.fenced == FENCED:
            continue  # a new controller of Kafka 4 fences brokers it has not heard from, fenced or not
        if isinstance(decoded.record, r.PartitionChangeRecord):
            place = decoded.record.topic_id, decoded.record.partition_id
            old, new = step.before.topics.partition(*place), step.after.topics.partition(*place)
            idle = old is not None and new is not None and only_epoch_differs(old, new)
        else:
            before = ImageBuilder(step.before) if before is None else before
            idle = subject(decoded.record, before) == subject(decoded.record, ImageBuilder(step.after))
        if idle:
            where = next(iter(touched(decoded.record, step.before, step.after)), "log")
            where += f"/{decoded.record.name}" if isinstance(decoded.record, r.ConfigRecord) else ""
            text = f"{decoded.record.type_name} changes nothing: the state already matches it"
            yield Fault(IDLE_RULE, WARNING, decoded.offset, where, text)


def _key(record: object) -> object:
    if isinstance(record, r.PartitionChangeRecord):
        return record.topic_id, record.partition_id
    return subject_key(record)


def clock_faults(clock: LogClock) -> Iterator[tuple[Fault, int]]:
    """Where the log's clock jumps, either way, each with the actual time (Unix ms)."""
    for jump in clock.jumps():
        many = jump.batches > 1
        what = f"offsets {jump.first} to {jump.last}, {jump.batches} batches, are" if many else "the batch is"
        way = "ahead of the next batch" if jump.off_ms > 0 else "behind the previous batch"
        text = (
            f"{what} stamped {utc_text(jump.stamp_ms)}, {duration(abs(jump.off_ms))} {way}:"
            f" counted as {utc_text(jump.time_ms)}"
        )
        yield Fault("clock-does-not-jump", WARNING, jump.first, "log", text), jump.time_ms
    for offset, before_ms, now_ms in clock.jumps_ahead(JUMP_AHEAD_MS):
        text = (
            f"the time jumps {duration(now_ms - before_ms)} ahead, from {utc_text(before_ms)} to "
            f"{utc_text(now_ms)}: the clock was set, or nothing was written"
        )
        yield Fault("clock-does-not-jump", WARNING, offset, "log", text), now_ms


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
