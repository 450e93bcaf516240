"""Replay of logs that real clusters wrote: checkpoints, what Kafka's tools printed, invariants."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaquorum.metadata.columnar import MIN_RECORDS
from metaquorum.metadata.errors import ReplayError
from metaquorum.metadata.features import metadata_version_name
from metaquorum.metadata.image import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    TOPIC_RESOURCE,
    ConfigResource,
    MetadataImage,
    images_equal,
)
from metaquorum.metadata.invariants import ERROR, check_image, check_step
from metaquorum.metadata.replay import Replayer, ReplayState
from metaquorum.metadata.snapshot import load_snapshot, snapshot_batches
from metaquorum.storage.batches.batch import RecordBatch, iter_batches, parse_header
from metaquorum.storage.files.snapshots import parse_snapshot_name
from metaquorum.storage.types import LogPosition
from metaquorum.storage.uuids import uuid_to_text
from tests.images import describe_difference

pytestmark = pytest.mark.shared_data

FINAL_OFFSET = 3957
GOLDEN = "kafka-3.7/controller-3000"
CHECKPOINTED = (GOLDEN, "kafka-3.7/upgrade/controller-3000", "kafka-3.7/upgrade/broker-0")
WILD = (
    "pre-3.3-no-feature-level",
    "kafka-3.3-three-nodes-lagging",
    "kafka-3.5",
    "kafka-3.6-epoch-gap",
    "epochs-only-no-broker",
    "kafka-3.7-three-nodes-lagging",
    "bootstrap-transaction-only",
    "kafka-4.0-v2-records",
    "kafka-4.0-with-snapshot",
    "kafka-4.2-remove-topic",
)


def log_directories(folder: Path) -> list[Path]:
    return sorted({path.parent for path in folder.rglob("*.log")})


def batches_in(folder: Path) -> Iterator[RecordBatch]:
    for segment in sorted(folder.glob("*.log")):
        yield from iter_batches(segment.read_bytes(), file=segment.name)


def load(checkpoint: Path) -> tuple[LogPosition, MetadataImage]:
    position = parse_snapshot_name(checkpoint.name)
    assert position is not None
    return position, load_snapshot(iter_batches(checkpoint.read_bytes()), position=position)


@pytest.fixture(scope="module")
def golden(shared_data: Path) -> dict[int, ReplayState]:
    """The state after each batch of the golden log, by end offset."""
    engine = Replayer()
    states = {}
    for batch in batches_in(shared_data / GOLDEN / "__cluster_metadata-0"):
        engine.apply_batch(batch)
        states[engine.end_offset] = engine.state()
    return states


@pytest.fixture(scope="module")
def final(golden: dict[int, ReplayState]) -> MetadataImage:
    return golden[max(offset for offset in golden if offset <= FINAL_OFFSET)].image


@pytest.mark.parametrize("node", CHECKPOINTED)
def test_log_up_to_each_checkpoint_gives_the_image_that_the_checkpoint_loads_to(
    shared_data: Path, node: str
) -> None:
    folder = shared_data / node / "__cluster_metadata-0"
    checkpoints = {int(path.name[:20]): path for path in folder.glob("*.checkpoint")}
    assert checkpoints
    engine = Replayer()
    for batch in batches_in(folder):
        engine.apply_batch(batch)
        path = checkpoints.pop(engine.end_offset, None)
        if path is not None:
            position, loaded = load(path)
            image = engine.state().image
            assert describe_difference(image, loaded) == ""
            assert images_equal(image, loaded)
            assert position == LogPosition(image.provenance.epoch, image.provenance.offset)
    assert checkpoints == {}


@pytest.mark.parametrize("node", CHECKPOINTED)
def test_our_snapshot_holds_the_records_of_kafkas(shared_data: Path, node: str) -> None:
    for path in sorted((shared_data / node / "__cluster_metadata-0").glob("*.checkpoint")):
        position, loaded = load(path)
        ours = b"".join(snapshot_batches(loaded, position=position))
        theirs = path.read_bytes()

        def contents(data: bytes) -> list[tuple[bytes, bytes]]:
            return sorted(
                (raw.key or b"", raw.value or b"") for batch in iter_batches(data) for raw in batch.records()
            )

        assert contents(ours) == contents(theirs)
        first, second = parse_header(ours), parse_header(theirs)
        assert (first.base_offset, first.leader_epoch, first.attributes, first.records_count) == (
            second.base_offset,
            second.leader_epoch,
            second.attributes,
            second.records_count,
        )
        assert images_equal(load_snapshot([ours], position=position), loaded)


@pytest.mark.parametrize("use_columns", [True, False])
def test_columns_and_records_agree_on_the_golden_log(
    shared_data: Path, golden: dict[int, ReplayState], use_columns: bool
) -> None:
    engine = Replayer(use_columns=use_columns)
    large = 0
    for batch in batches_in(shared_data / GOLDEN / "__cluster_metadata-0"):
        engine.apply_batch(batch)
        large += batch.header.records_count >= MIN_RECORDS
    assert large > 0
    assert images_equal(engine.state().image, golden[engine.end_offset].image)


@pytest.mark.parametrize("name", WILD)
def test_wild_logs_replay_without_an_error_and_break_no_invariant(shared_data: Path, name: str) -> None:
    for folder in log_directories(shared_data / "kraft-wild" / name):
        engine = Replayer()
        before = engine.state().image
        for batch in batches_in(folder):
            engine.apply_batch(batch)
            if batch.header.records_count > 1:
                after = engine.state().image
                assert [
                    at for at in check_image(after) + check_step(before, after) if at.severity == ERROR
                ] == []
                before = after
        assert engine.end_offset > 0
        assert [at for at in check_image(engine.state().newest) if at.severity == ERROR] == []


def test_golden_logs_break_no_invariant_at_any_batch(golden: dict[int, ReplayState]) -> None:
    before = MetadataImage()
    for offset, state in sorted(golden.items()):
        if offset % 5 == 0 or offset < 400:
            assert check_image(state.image) == []
            assert check_step(before, state.image) == []
            before = state.image


def test_a_killed_broker_may_lead_until_it_is_fenced_which_is_a_warning(shared_data: Path) -> None:
    # A broker of this log registers again before its session ran out, fenced, while it still leads.
    engine = Replayer()
    rules = set()
    for batch in batches_in(shared_data / "kafka-3.7/upgrade/controller-3000/__cluster_metadata-0"):
        engine.apply_batch(batch)
        rules |= {(at.rule, at.severity) for at in check_image(engine.state().image)}
    assert rules == {("leader-active", "warning"), ("isr-active", "warning")}


def test_a_log_with_oddities_is_read_by_a_tolerant_replay(shared_data: Path) -> None:
    data = next((shared_data / "kraft-wild/synthetic-oddities").rglob("*.log")).read_bytes()
    errors: list[ReplayError] = []
    engine = Replayer(on_error=errors.append)
    position = 0
    while position < len(data):
        header = parse_header(data, position)
        engine.apply_batch(RecordBatch(header, data[position : position + header.size_bytes], position))
        position += header.size_bytes
    assert engine.skipped == len(errors) > 0
    assert any("the batch starts at offset" in error.reason for error in errors)


def test_wild_checkpoint_equals_its_log(shared_data: Path) -> None:
    folder = next((shared_data / "kraft-wild/kafka-4.0-with-snapshot").rglob("0*.checkpoint")).parent
    checkpoint = next(folder.glob("0*.checkpoint"))
    position, loaded = load(checkpoint)
    engine = Replayer()
    for batch in batches_in(folder):
        if engine.end_offset == position.offset:
            break
        engine.apply_batch(batch)
    assert describe_difference(engine.state().image, loaded) == ""


def lines_of(shared_data: Path, name: str) -> list[str]:
    text = (shared_data / "kafka-3.7/final-state" / name).read_text("utf-8")
    return [line for line in text.splitlines() if line.strip() and not line.startswith("[")]


def test_final_topics_are_those_that_kafka_topics_printed(shared_data: Path, final: MetadataImage) -> None:
    printed: dict[str, dict[int, tuple[str, str, str]]] = {}
    for line in lines_of(shared_data, "topics-describe.txt"):
        fields = dict(re.findall(r"(\w+): (\S*)", line))
        if "TopicId" in fields:
            topic = final.topics.topic_named(fields["Topic"])
            assert topic is not None
            assert uuid_to_text(topic.topic_id) == fields["TopicId"]
            assert final.topics.partition_count_of(topic.topic_id) == int(fields["PartitionCount"])
            printed[topic.name] = {}
        else:
            row = (fields["Leader"], fields["Replicas"], fields["Isr"])
            printed[fields["Topic"]][int(fields["Partition"])] = row
    ours = {
        topic.name: {
            at.index: (str(at.leader), ",".join(map(str, at.replicas)), ",".join(map(str, at.isr)))
            for at in final.topics.partitions_of(topic.topic_id)
        }
        for topic in final.topics.all()
    }
    assert ours == printed
    assert sum(map(len, ours.values())) == 300


def test_final_features(shared_data: Path, final: MetadataImage) -> None:
    level = metadata_version_name(final.features.metadata_version)
    assert [
        line for line in lines_of(shared_data, "features.txt") if f"FinalizedVersionLevel: {level}" in line
    ]
    assert level == "3.7-IV4"


def dynamic_configs(lines: list[str], heading: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in lines:
        match = re.match(heading, line)
        if match:
            current = found.setdefault(match.group(1) if match.groups() else "", {})
        elif line.startswith("  "):
            name, value = line.strip().split(" sensitive=")[0].split("=", 1)
            current[name] = value
        else:
            current = {}
    return {name: entries for name, entries in found.items() if entries}


def test_final_configs(shared_data: Path, final: MetadataImage) -> None:
    kinds = {
        TOPIC_RESOURCE: ("configs-topics.txt", r"Dynamic configs for topic (\S+) are:"),
        BROKER_RESOURCE: ("configs-brokers.txt", r"Dynamic configs for broker (\d+) are:"),
        CLIENT_METRICS_RESOURCE: ("client-metrics.txt", r"Client metrics configs for (\S+) are:"),
    }
    for kind, (name, heading) in kinds.items():
        ours = {
            resource.name: entries
            for resource, entries in final.configs.items_sorted()
            if resource.resource_type == kind and resource.name
        }
        assert ours == dynamic_configs(lines_of(shared_data, name), heading)
        assert ours
    defaults = dynamic_configs(
        lines_of(shared_data, "configs-brokers-default.txt"), "Default configs for brokers"
    )
    assert final.configs.get(ConfigResource(BROKER_RESOURCE, "")) == defaults[""]


RESOURCE_TYPES = {2: "TOPIC", 3: "GROUP", 4: "CLUSTER", 5: "TRANSACTIONAL_ID"}
PATTERNS = {3: "LITERAL", 4: "PREFIXED"}
OPERATIONS = {2: "ALL", 3: "READ", 4: "WRITE", 5: "CREATE", 6: "DELETE", 7: "ALTER", 8: "DESCRIBE"}
PERMISSIONS = {2: "DENY", 3: "ALLOW"}


def test_final_acls(shared_data: Path, final: MetadataImage) -> None:
    printed = set()
    resource: tuple[str, str, str] = ("", "", "")
    for line in lines_of(shared_data, "acls.txt"):
        pattern = re.search(r"resourceType=(\w+), name=(\S+), patternType=(\w+)", line)
        if pattern:
            resource = (pattern.group(1), pattern.group(2), pattern.group(3))
            continue
        entry = re.search(r"principal=(\S+), host=(\S+), operation=(\w+), permissionType=(\w+)", line)
        assert entry is not None
        printed.add((*resource, *entry.groups()))
    ours = {
        (
            RESOURCE_TYPES[acl.resource_type],
            acl.resource_name,
            PATTERNS[acl.pattern_type],
            acl.principal,
            acl.host,
            OPERATIONS[acl.operation],
            PERMISSIONS[acl.permission_type],
        )
        for _, acl in final.acls.items_sorted()
    }
    assert ours == printed
    assert len(ours) == 6


def test_final_quotas_and_credentials(shared_data: Path, final: MetadataImage) -> None:
    names = {"user-principal": "user", "client-id": "client-id", "ip": "ip"}
    quotas, credentials = {}, {}
    for name in ("quotas-users.txt", "quotas-clients.txt", "quotas-ips.txt", "quotas-user-client.txt"):
        for line in lines_of(shared_data, name):
            subject, values = line.split(" are ", 1)
            entity = [(names[kind], None) for kind in re.findall(r"the default ([\w-]+)", subject)]
            entity += [(names[kind], who) for kind, who in re.findall(r"([\w-]+) '([^']*)'", subject)]
            if line.startswith("SCRAM"):
                for mechanism, iterations in re.findall(r"(SCRAM-SHA-\d+)=iterations=(\d+)", values):
                    credentials[entity[0][1], mechanism] = int(iterations)
            else:
                pairs = (pair.split("=") for pair in values.split(", "))
                quotas[tuple(sorted(entity))] = {key: float(value) for key, value in pairs}
    ours = {tuple(sorted(entity)): values for entity, values in final.quotas.items_sorted(repr)}
    assert ours == quotas
    mechanisms = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
    assert {
        (user, mechanisms[mechanism]): credential.iterations
        for (mechanism, user), credential in final.scram.items_sorted()
    } == credentials
    assert len(quotas) == 5 and len(credentials) == 3


def test_bootstrap_transaction_is_invisible_until_its_end(golden: dict[int, ReplayState]) -> None:
    # BEGIN is offset 1, END offset 6; both in one batch in this log, so the inside is never a boundary.
    inside = [state for offset, state in golden.items() if 1 < offset < 7]
    assert all(state.image.features.finalized == {} for state in inside)
    after = golden[min(offset for offset in golden if offset >= 7)]
    assert after.transaction is None
    assert after.image.features.metadata_version == 19
