"""Laws of replay: batch boundaries do not matter, columns equal records, snapshot and tail equal the whole
log.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.metadata.columnar.apply import versions_of
from metaquorum.metadata.columnar.partition_records import MAX_SHAPES, read_frames
from metaquorum.metadata.delta import diff
from metaquorum.metadata.errors import ReplayError
from metaquorum.metadata.features import record_version_for
from metaquorum.metadata.image import MetadataImage, images_equal
from metaquorum.metadata.image.types import PartitionInfo
from metaquorum.metadata.invariants import ERROR, check_image
from metaquorum.metadata.meanings import merge_change
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.replay import Replayer, Replays, ReplayState, replay, replay_records
from metaquorum.metadata.snapshot import load_snapshot, partition_record, snapshot_batches
from metaquorum.metadata.text.tree import image_tree
from metaquorum.storage.batches.batch import RecordBatch, encode_batch, iter_batches
from metaquorum.storage.types import LogPosition
from tests.images import describe_difference, replay_all
from tests.properties.test_batch_runs import PARTITIONS, TOPICS, start

LEVEL = 23
Records = list[tuple[int, Any]]
"""(record version, record)"""


def uuid(number: int) -> bytes:
    return number.to_bytes(2, "big") * 8


def partition(topic: int, index: int, flavour: int) -> tuple[int, r.PartitionRecord]:
    """A PartitionRecord whose shape depends on `flavour`: usual, wide and rare lists, old versions."""
    count = 8 if flavour % 10 == 9 else 1 + flavour % 3
    replicas = tuple((flavour + at * 7 + index) % 9 for at in range(count))
    directories = tuple(uuid(100 + (replica * 2 + flavour) % 5) for replica in replicas)
    version = (1, 1, 2, 0)[flavour % 4]
    record = r.PartitionRecord(
        index,
        uuid(topic),
        replicas,
        replicas[: 1 + flavour % count],
        leader=replicas[0] if flavour % 5 else -1,
        leader_epoch=flavour,
        partition_epoch=flavour * 3,
        directories=() if version == 0 else directories,
        adding_replicas=replicas[:1] if flavour % 11 == 10 else (),
        leader_recovery_state=(0, 0, 0, 0, 0, 0, 1)[flavour % 7],
        eligible_leader_replicas=replicas[-1:] if version == 2 and flavour % 6 == 0 else None,
    )
    return version, record


def change(topic: int, index: int, flavour: int) -> tuple[int, r.PartitionChangeRecord]:
    fields: dict[str, Any] = {}
    if flavour % 2:
        width = flavour % 4 if flavour % 3 else 4 + flavour % 20  # every third is wider than its neighbors
        fields["isr"] = tuple((flavour + at) % 31 for at in range(width))
    if flavour % 3 == 0:
        fields["leader"] = flavour % 9 if flavour % 4 else -1
    if flavour % 5 == 0:
        fields["leader_recovery_state"] = flavour % 2
    if flavour % 7 == 0:
        fields["directories"] = tuple(uuid(100 + flavour % 5 + at) for at in range(1 + flavour % 3))
    if flavour % 13 == 0:
        fields["replicas"] = tuple((flavour + at) % 9 for at in range(2))
        fields.pop("directories", None)
    if flavour % 17 == 0:
        fields["removing_replicas"] = (flavour % 9,)
    return 1, r.PartitionChangeRecord(index, uuid(topic), **fields)


def other(kind: int, a: int, b: int, c: int) -> list[Any]:
    match kind:
        case 0:
            return [r.TopicRecord(f"t{a}", uuid(a))]
        case 1:
            return [r.RemoveTopicRecord(uuid(a))]
        case 2:
            kind, name = (2, f"t{a}") if c % 4 else (4, ("", "1")[a % 2])
            return [r.ConfigRecord(kind, name, f"key{b % 3}", None if c % 3 == 0 else str(c % 7 or ""))]
        case 3:
            return [
                r.BrokerRecord(b % 9, uuid(200 + c % 3), c, fenced=c % 2 == 0, log_dirs=(uuid(100 + b % 5),))
            ]
        case 4:
            return [r.FenceBrokerRecord(b % 9, c) if a % 2 else r.UnfenceBrokerRecord(b % 9, c)]
        case 5:
            return [r.BrokerRegistrationChangeRecord(b % 9, c, fenced=1 if a % 2 else -1)]
        case 6:
            user, client = (
                r.QuotaEntity("user", (None, "u", "")[a % 3]),
                r.QuotaEntity("client-id", (None, "c")[b % 2]),
            )
            parts = ((user,), (client,), (user, client), (client, user))[c % 4]
            return [
                r.ClientQuotaRecord(parts, "rate", c, False),
                r.ClientQuotaRecord(parts, f"r{a}", c, b % 3 == 0),
            ]
        case 7:
            return [r.FeatureLevelRecord(f"feature{a % 2}", c % 3)]
        case 8:
            return [
                (r.BeginTransactionRecord(f"tx{a}"), r.EndTransactionRecord(), r.AbortTransactionRecord())[
                    c % 3
                ]
            ]
        case _:
            return [_seldom(a, b, c)]


def _seldom(a: int, b: int, c: int) -> Any:
    acl, user, token = uuid(a), f"u{a}", f"token{a}"
    return (
        r.NoOpRecord(),
        r.UnregisterBrokerRecord(b, c),
        r.ControllerRecord(3000 + a % 3, uuid(b), c % 2 == 0),
        r.AccessControlEntryRecord(acl, 2, f"t{b}", 3, "User:u", "*", 3, 3),
        r.RemoveAccessControlEntryRecord(acl),
        r.UserScramCredentialRecord(user, 1 + a % 2, b"salt", b"stored", b"server", 4096 + c),
        r.RemoveUserScramCredentialRecord(user, 1 + a % 2),
        r.DelegationTokenRecord("User:u", "User:r", (), 1, 9, 5 + c, token),
        r.RemoveDelegationTokenRecord(token),
        r.ProducerIdsRecord(b, c, 1000 * (c + a)),
        r.ZkMigrationStateRecord(c % 5),
        r.UnregisterControllerRecord(3000 + a % 3),
        r.ClearElrRecord(f"t{a}" if c % 3 else ""),
    )[(b + c) % 13]


def _version(record: Any) -> int:
    """The version at LEVEL; one type is of a later level, which is only read."""
    return 0 if isinstance(record, r.UnregisterControllerRecord) else record_version_for(type(record), LEVEL)


def records_of(operation: tuple[int, int, int, int]) -> Records:
    kind, a, b, c = operation
    if kind == 10:
        return [partition(a, b, c)]
    if kind == 11:
        return [change(a, b, c)]
    if kind == 12:  # a topic with its partitions, as one decision writes them
        head: Records = [(0, r.TopicRecord(f"t{a}", uuid(a)))]
        step = 1 if c % 3 else -1
        return head + [partition(a, index, c if c % 2 else c + index) for index in range(30 + b)[::step]]
    if kind == 13:  # many partitions of one topic change
        return [change(a, index, c if c % 2 else c + index) for index in range(30 - b)]
    return [(_version(record), record) for record in other(kind, a, b, c)]


OPERATIONS = st.lists(
    st.tuples(
        st.integers(0, 13) | st.integers(10, 13), st.integers(0, 5), st.integers(0, 6), st.integers(0, 40)
    ),
    min_size=1,
    max_size=25,
)
CUTS = st.lists(st.integers(1, 70), min_size=1, max_size=8)


def flat(operations: list[tuple[int, int, int, int]]) -> Records:
    return [record for operation in operations for record in records_of(operation)]


def batches_of(records: Records, cuts: list[int], base_offset: int = 0) -> list[RecordBatch]:
    """The records as batches whose sizes are `cuts`, repeatedly."""
    parts = []
    at = turn = 0
    while at < len(records):
        piece = records[at : at + cuts[turn % len(cuts)]]
        values = [encode(record, version) for version, record in piece]
        parts.append(
            encode_batch(base_offset=base_offset + at, leader_epoch=3, timestamp_ms=77, values=values)
        )
        at += len(piece)
        turn += 1
    return list(iter_batches(b"".join(parts)))


def run(
    batches: list[RecordBatch], *, use_columns: bool, keeps_changes: bool = True
) -> tuple[ReplayState, list[tuple[int, str]]]:
    errors: list[tuple[int, str]] = []
    engine = Replayer(
        on_error=lambda error: errors.append((error.offset, error.reason)), use_columns=use_columns
    )
    engine.keeps_changes = keeps_changes
    for batch in batches:
        engine.apply_batch(batch)
    assert engine.skipped == len(errors)
    return engine.state(), errors


def assert_same(a: ReplayState, b: ReplayState) -> None:
    assert describe_difference(a.image, b.image) == ""
    assert images_equal(a.image, b.image)
    assert (a.transaction is None) == (b.transaction is None)
    if a.transaction is not None and b.transaction is not None:
        assert a.transaction.begin_offset == b.transaction.begin_offset
        assert a.transaction.name == b.transaction.name
        assert describe_difference(a.transaction.pending, b.transaction.pending) == ""


@settings(max_examples=150, deadline=None)
@given(OPERATIONS, CUTS)
def test_columns_and_records_reach_the_same_image_and_the_same_errors(
    operations: list[tuple[int, int, int, int]], cuts: list[int]
) -> None:
    batches = batches_of(flat(operations), [*cuts, 200])
    in_columns, column_errors = run(batches, use_columns=True)
    one_by_one, record_errors = run(batches, use_columns=False)
    assert column_errors == record_errors
    assert_same(in_columns, one_by_one)


@settings(max_examples=150, deadline=None)
@given(OPERATIONS, CUTS)
def test_changes_that_are_left_out_are_refused_as_ever_and_matter_to_nothing_else(
    operations: list[tuple[int, int, int, int]], cuts: list[int]
) -> None:
    batches = batches_of(flat(operations), [*cuts, 200])
    whole, errors = run(batches, use_columns=True)
    without, others = run(batches, use_columns=True, keeps_changes=False)
    assert others == errors
    assert but_changes(without.newest) == but_changes(whole.newest)
    assert but_changes(without.image) == but_changes(whole.image)


def but_changes(image: MetadataImage) -> tuple[Any, ...]:
    """An image without what usual changes set in partitions."""
    names = sorted((topic.name, topic.topic_id) for topic in image.topics.all())
    partitions = [
        (name, one.index, one.replicas, one.adding, one.removing, one.elr, len(one.directories))
        for name, topic_id in names
        for one in image.topics.partitions_of(topic_id)
    ]
    return {**image_tree(image), "topic": None}, names, partitions


@settings(max_examples=60, deadline=None)
@given(OPERATIONS, CUTS)
def test_the_first_error_is_the_same_error_in_columns(
    operations: list[tuple[int, int, int, int]], cuts: list[int]
) -> None:
    batches = batches_of(flat(operations), [*cuts, 200])

    def first_error(use_columns: bool) -> tuple[int, str] | None:
        engine = Replayer(use_columns=use_columns)
        try:
            for batch in batches:
                engine.apply_batch(batch)
        except ReplayError as error:
            return error.offset, error.reason
        return None

    assert first_error(True) == first_error(False)


@settings(max_examples=80, deadline=None)
@given(OPERATIONS, CUTS, CUTS)
def test_any_cut_into_batches_reaches_the_same_state(
    operations: list[tuple[int, int, int, int]], cuts: list[int], others: list[int]
) -> None:
    records = flat(operations)
    first, first_errors = run(batches_of(records, cuts), use_columns=True)
    second, second_errors = run(batches_of(records, others), use_columns=True)
    assert first_errors == second_errors
    assert_same(first, second)


@settings(max_examples=40, deadline=None)
@given(OPERATIONS, CUTS)
def test_pure_steps_equal_the_engine_and_change_no_earlier_image(
    operations: list[tuple[int, int, int, int]], cuts: list[int]
) -> None:
    batches = batches_of(flat(operations), cuts)
    whole, _ = run(batches, use_columns=True)
    state = ReplayState()
    seen: list[tuple[MetadataImage, dict[str, Any]]] = []
    for batch in batches:
        state = replay_all(state, [batch], on_error=lambda error: None)
        seen.append((state.newest, image_tree(state.newest)))
    assert_same(state, whole)
    for image, before in seen:
        assert image_tree(image) == before


def photo(state: ReplayState) -> tuple[Any, ...]:
    """Everything that can be seen of a state, copied."""
    brokers, topics = state.newest.brokers, state.newest.topics
    registered = {broker_id: brokers.registration_offset(broker_id) for broker_id in range(9)}
    return image_tree(state.image), image_tree(state.newest), registered, dict(topics.replica_counts())


def by_key(image: MetadataImage) -> dict[tuple[bytes, int], Any]:
    return {(at.topic_id, at.index): at for at in _partitions(image)}


@pytest.mark.parametrize("seed", range(4))
def test_an_engine_that_goes_on_equals_new_ones_and_changes_no_earlier_state(seed: int) -> None:
    """It continues from the newest state, or from an earlier one (if what was decided is not committed), and
    may fail after the first records of a batch. The difference between two states does not depend on it
    either."""
    rng, replays, states = random.Random(seed), Replays(), [ReplayState()]
    photos = [photo(states[0])]
    failed = 0
    while len(states) < 60:
        state = states[-1] if rng.random() < 0.9 else rng.choice(states)
        records: Records = []
        for _ in range(rng.randint(1, 2)):
            kind = rng.choice((*range(14), 3, 7, 7, 9, 9, 10, 11, 11))
            records += records_of((kind, rng.randrange(6), rng.randrange(7), rng.randrange(41)))
        (batch,) = batches_of(records, [len(records)], state.end_offset)

        def apply(engine: Replayer, batch: RecordBatch = batch) -> None:
            engine.apply_batch(batch)

        try:
            expected = replay(state, batch)
        except ReplayError as error:
            with pytest.raises(ReplayError) as caught:
                replays.after(state, apply)
            assert (caught.value.offset, caught.value.reason) == (error.offset, error.reason)
            failed += 1
            continue
        made = replays.after(state, apply)
        assert_same(made, expected)
        assert photo(made) == photo(expected)
        for before in states[-3:]:
            one, two = by_key(before.newest), by_key(made.newest)
            delta = diff(before.newest, made.newest).partitions
            assert set(delta.changed) == {key for key in one.keys() & two.keys() if one[key] != two[key]}
            assert (set(delta.added), set(delta.removed)) == (
                two.keys() - one.keys(),
                one.keys() - two.keys(),
            )
        states.append(made)
        photos.append(photo(made))
    assert list(map(photo, states)) == photos
    assert failed > 10


@settings(max_examples=60, deadline=None)
@given(OPERATIONS, OPERATIONS, CUTS)
def test_snapshot_and_tail_equal_the_whole_log(
    head: list[tuple[int, int, int, int]], tail: list[tuple[int, int, int, int]], cuts: list[int]
) -> None:
    first = batches_of([(0, r.NoOpRecord()), *flat([at for at in head if at[0] != 8])], cuts)
    state, _ = run(first, use_columns=True)
    position = LogPosition(3, state.end_offset)
    content = list(snapshot_batches(state.image, position=position, metadata_version=LEVEL))
    loaded = load_snapshot(content, position=position)
    # A snapshot states its level; the log of this test does not.
    assert describe_difference(_without_level(loaded), _without_level(state.image), provenance=False) == ""
    assert loaded.provenance == state.image.provenance
    again = list(snapshot_batches(loaded, position=position))
    assert again == content

    rest = batches_of(flat(tail), cuts, base_offset=state.end_offset)
    after = replay_all(state, rest, on_error=lambda error: None)
    resumed = replay_all(ReplayState(_without_level(loaded)), rest, on_error=lambda error: None)
    assert_same(after, resumed)


def _without_level(image: MetadataImage) -> MetadataImage:
    builder = Replayer(ReplayState(image)).builder
    builder.finalized.pop("metadata.version", None)
    builder.set_feature("none", 0)
    return builder.freeze()


@settings(max_examples=60, deadline=None)
@given(OPERATIONS)
def test_snapshot_in_columns_equals_the_record_encoder(operations: list[tuple[int, int, int, int]]) -> None:
    state, _ = run(batches_of(flat(operations), [50]), use_columns=True)
    image = state.image
    content = b"".join(snapshot_batches(image, position=LogPosition(3, 9), metadata_version=LEVEL))
    written = [raw.value for batch in iter_batches(content) for raw in batch.records()]
    expected = []
    for topic in image.topics.all():
        expected.append(encode(r.TopicRecord(topic.name, topic.topic_id), 0))
        expected += [encode(partition_record(at, 2), 2) for at in image.topics.partitions_of(topic.topic_id)]
    assert [value for value in written if value is not None and value[1] in (2, 3)] == expected


@settings(max_examples=60, deadline=None)
@given(OPERATIONS, OPERATIONS)
def test_diff_names_exactly_what_differs(
    head: list[tuple[int, int, int, int]], tail: list[tuple[int, int, int, int]]
) -> None:
    first, _ = run(batches_of(flat(head), [40]), use_columns=True)
    rest = batches_of(flat(tail), [40], base_offset=first.end_offset)
    old, new = first.newest, replay_all(first, rest, on_error=lambda error: None).newest
    position = LogPosition(3, new.provenance.offset)
    reloaded = load_snapshot(
        snapshot_batches(new, position=position, metadata_version=LEVEL), position=position
    )
    for after in (new, reloaded):
        delta = diff(old, after).partitions
        before_keys = {(at.topic_id, at.index): at for at in _partitions(old)}
        after_keys = {(at.topic_id, at.index): at for at in _partitions(after)}
        assert set(delta.added) == after_keys.keys() - before_keys.keys()
        assert set(delta.removed) == before_keys.keys() - after_keys.keys()
        both = before_keys.keys() & after_keys.keys()
        assert set(delta.changed) == {key for key in both if before_keys[key] != after_keys[key]}
        assert diff(after, after).is_empty


def _partitions(image: MetadataImage) -> list[Any]:
    return [at for topic in image.topics.all() for at in image.topics.partitions_of(topic.topic_id)]


@settings(max_examples=40, deadline=None)
@given(OPERATIONS, CUTS)
def test_scans_over_columns_equal_a_look_at_every_partition(
    operations: list[tuple[int, int, int, int]], cuts: list[int]
) -> None:
    state, _ = run(batches_of(flat(operations), cuts), use_columns=True)
    topics = state.newest.topics
    every = _partitions(state.newest)
    assert topics.partition_count == len(every)
    for broker in range(9):
        led = {(at.topic_id, at.index) for at in every if at.leader == broker}
        assert set(topics.keys_at(topics.rows_led_by(broker))) == led
        replica = {(at.topic_id, at.index) for at in every if broker in at.replicas}
        assert set(topics.keys_at(topics.rows_with_replica(broker))) == replica
        isr = {(at.topic_id, at.index) for at in every if broker in at.isr}
        assert set(topics.keys_at(topics.rows_with_isr(broker))) == isr
    unled = {(at.topic_id, at.index) for at in every if at.leader == -1}
    assert set(topics.keys_at(topics.rows_without_leader())) == unled
    structural = {"topic-name-id-bijection", "rows-match-index", "directories-parallel"}
    assert [at for at in check_image(state.newest) if at.rule in structural and at.severity == ERROR] == []


@settings(max_examples=60, deadline=None)
@given(OPERATIONS, st.sampled_from(["end", "abort", "open"]), CUTS)
def test_a_transaction_shows_all_or_nothing(
    operations: list[tuple[int, int, int, int]], fate: str, cuts: list[int]
) -> None:
    inside = flat([at for at in operations if at[0] != 8])
    before: Records = [(0, r.TopicRecord("before", uuid(900))), partition(900, 0, 1)]
    base, _ = run(batches_of(before, cuts), use_columns=True)
    marked: Records = [(0, r.BeginTransactionRecord("tx")), *inside]
    if fate != "open":
        marked.append((0, r.EndTransactionRecord() if fate == "end" else r.AbortTransactionRecord()))
    state = replay_all(base, batches_of(marked, cuts, base.end_offset), on_error=lambda error: None)
    plain = replay_all(base, batches_of(inside, cuts, base.end_offset), on_error=lambda error: None)
    assert state.end_offset == base.end_offset + len(marked)
    match fate:
        case "open":
            assert images_equal(state.image, base.image)
            assert state.transaction is not None
            assert state.transaction.begin_offset == base.end_offset
            assert images_equal(state.transaction.pending, plain.image, provenance=False)
        case "abort":
            assert state.transaction is None
            assert images_equal(state.image, base.image, provenance=False)
        case _:
            assert state.transaction is None
            assert images_equal(state.image, plain.image, provenance=False)


@settings(max_examples=30, deadline=None)
@given(OPERATIONS)
def test_records_about_to_be_appended_replay_as_their_batch_does(
    operations: list[tuple[int, int, int, int]],
) -> None:
    state = ReplayState()
    for operation in operations:
        records = records_of(operation)
        batch = batches_of(records, [len(records)], state.end_offset)[0]
        try:
            expected = replay(state, batch)
        except ReplayError as error:
            with pytest.raises(ReplayError) as caught:
                replay_records(
                    state,
                    base_offset=state.end_offset,
                    epoch=3,
                    timestamp_ms=77,
                    records=[record for _, record in records],
                )
            assert (caught.value.offset, caught.value.reason) == (error.offset, error.reason)
            continue
        after = replay_records(
            state,
            base_offset=state.end_offset,
            epoch=3,
            timestamp_ms=77,
            records=[record for _, record in records],
        )
        assert_same(after, expected)
        state = after


BULK_CHANGES = st.lists(
    st.tuples(
        st.integers(0, 2),  # topic
        st.integers(0, 41),  # index: 40 and 41 do not exist
        st.integers(0, 15),  # which fields change
        st.integers(0, 8),  # a broker
    ),
    min_size=24,
    max_size=90,
)


@settings(max_examples=100, deadline=None)
@given(BULK_CHANGES, st.booleans(), st.integers(0, 40), st.sampled_from([0, 3, 20]))
def test_bulk_changes_in_columns_equal_record_by_record(
    picks: list[tuple[int, int, int, int]], distinct: bool, odd_at: int, wide: int
) -> None:
    """The unusual change in the middle names up to `wide` replicas, which widens the chunk of its
    neighbors."""
    head: Records = []
    for topic in range(3):
        head.append((0, r.TopicRecord(f"t{topic}", uuid(topic))))
        head += [
            (1, r.PartitionRecord(at, uuid(topic), (1, 2), (1,), (), (), 1, 0, 5, 9, (uuid(100), uuid(101))))
            for at in range(40)
        ]
    if odd_at % 2:
        picks = [(topic, index % 40, mask, broker) for topic, index, mask, broker in picks]
    if distinct:
        picks = list(
            {(topic, index % 40): (topic, index % 40, mask, b) for topic, index, mask, b in picks}.values()
        )
    tail: Records = []
    for place, (topic, index, mask, broker) in enumerate(picks):
        fields: dict[str, Any] = {}
        if mask & 1:
            fields["isr"] = (broker, broker + 1)[: 1 + (mask & 2 > 0)]
        if mask & 2:
            fields["leader"] = broker - 1
        if mask & 4:
            fields["leader_recovery_state"] = broker % 2
        if mask & 8:
            fields["directories"] = (uuid(100 + broker), uuid(300 + broker))
        if place == odd_at:
            fields |= {"adding_replicas": (broker,)}
            if wide:
                fields |= {"replicas": tuple(range(1, wide + 1)), "isr": tuple(range(1, wide + 1))}
                fields["directories"] = tuple(uuid(400 + at) for at in range(wide))
        tail.append((1, r.PartitionChangeRecord(index, uuid(topic), **fields)))
    tail.append((0, r.NoOpRecord()))
    base, _ = run(batches_of(head, [200]), use_columns=True)
    batches = batches_of(tail, [200], base.end_offset)
    results = []
    for use_columns in (True, False):
        errors: list[tuple[int, str]] = []
        engine = Replayer(
            base,
            on_error=lambda error, into=errors: into.append((error.offset, error.reason)),  # type: ignore[misc]
            use_columns=use_columns,
        )
        for batch in batches:
            engine.apply_batch(batch)
        results.append((engine.state(), errors))
    assert results[0][1] == results[1][1]
    assert_same(results[0][0], results[1][0])
    if distinct:
        assert results[0][1] == []


# Many partition changes at once, including several of one partition: each version is the one that the
# changes one by one lead to, and so is the resulting image.


DIRECTORIES = [(one,) * 3 for one in (b"d" * 16, b"e" * 16)]
usual = st.builds(
    r.PartitionChangeRecord,
    st.integers(0, 3),
    st.sampled_from(TOPICS[:3]),
    isr=st.none() | st.sampled_from([(1,), (2, 3), (3, 1, 2), (5, 6, 7, 8)]),
    leader=st.none() | st.sampled_from([1, 2, -1]),
    leader_recovery_state=st.none() | st.sampled_from([0, 1]),
    directories=st.none() | st.sampled_from(DIRECTORIES),
)
unusual = st.sampled_from(
    [
        r.PartitionChangeRecord(1, TOPICS[0], replicas=(4, 5, 6), isr=(4,), leader=4),
        r.PartitionChangeRecord(2, TOPICS[1], adding_replicas=(4,), removing_replicas=()),
        r.PartitionChangeRecord(0, TOPICS[2], directories=(b"d" * 16,)),
        r.PartitionChangeRecord(PARTITIONS, TOPICS[0], leader=1),
        r.PartitionChangeRecord(0, b"x" * 16, leader=1),
    ]
)


def batch_of(records: list[r.PartitionChangeRecord], base_offset: int) -> RecordBatch:
    values = [encode(record, 1) for record in records]
    data = encode_batch(base_offset=base_offset, leader_epoch=1, timestamp_ms=7, values=values)
    return next(iter(iter_batches(data)))


def begun(*, use_columns: bool) -> tuple[Replayer, list[str]]:
    refused: list[str] = []
    engine = Replayer(on_error=lambda error: refused.append(str(error)), use_columns=use_columns)
    data = encode_batch(base_offset=0, leader_epoch=1, timestamp_ms=5, values=start())
    for batch in iter_batches(data):
        engine.apply_batch(batch)
    return engine, refused


def _shape(record: r.PartitionChangeRecord) -> tuple[int | None, ...]:
    """Changes of one shape are decoded together: they set the same fields, with lists of the same length."""
    named = (record.isr, record.directories, record.leader, record.leader_recovery_state)
    return tuple(len(each) if isinstance(each, tuple) else each is not None for each in named)


@settings(max_examples=60, deadline=None)
@given(st.lists(usual, min_size=1, max_size=120))
def test_every_version_is_what_the_changes_one_by_one_make(records: list[r.PartitionChangeRecord]) -> None:
    engine, _ = begun(use_columns=True)
    topics = engine.builder.topics
    batch = batch_of(records, engine.end_offset)
    frames = read_frames(batch.data, batch.header)
    assert frames is not None
    versions = versions_of(engine.builder, frames, frames.keys.nonzero()[0])
    if versions is None:
        assert len({_shape(record) for record in records}) > MAX_SHAPES
        return
    pairs = zip(
        versions.records.tolist(),
        topics.seen(versions.chunk(versions.before()), versions.rows),
        topics.seen(versions.chunk(versions.after), versions.rows),
        strict=True,
    )
    found = {number: (before, after) for number, before, after in pairs}
    now: dict[int, PartitionInfo] = {}
    for number, record in enumerate(records):
        row = topics.row_of(record.topic_id, record.partition_id)
        before = now.get(row) or topics.at(row)
        now[row] = merge_change(before, record, 0)
        assert found[number] == (before, now[row])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(usual, min_size=30, max_size=120), st.lists(st.tuples(st.integers(0, 150), unusual), max_size=3)
)
def test_a_batch_with_partitions_that_come_twice_is_replayed_as_record_by_record(
    records: list[r.PartitionChangeRecord], odd: list[tuple[int, r.PartitionChangeRecord]]
) -> None:
    for place, record in odd:
        records.insert(place, record)
    states = []
    for use_columns in (True, False):
        engine, refused = begun(use_columns=use_columns)
        engine.apply_batch(batch_of(records, engine.end_offset))
        states.append((engine.state(), refused))
    assert states[0][1] == states[1][1]
    assert images_equal(states[0][0].image, states[1][0].image)
