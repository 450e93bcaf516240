"""What a real cluster's tools printed at the end of a recording, against descriptions of its replayed log.

The same text is made from the image at offset 3957 by `metadata.settings` and `cli.text.settings`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from metaquorum.cli.text.settings import acl_entry, acl_text, config_line, feature_line, quota_line, user_line
from metaquorum.metadata.features import KNOWN_FEATURES, METADATA_VERSION, FeatureDescription
from metaquorum.metadata.image import CLIENT_METRICS_RESOURCE, ConfigResource, MetadataImage
from metaquorum.metadata.replay import Replayer
from metaquorum.metadata.settings.acls import AclFilter, PatternType, ResourceType, list_acls
from metaquorum.metadata.settings.configs import (
    ConfigSource,
    describe_broker,
    describe_broker_default,
    describe_client_metrics,
    describe_topic,
)
from metaquorum.metadata.settings.quotas import describe_quotas
from metaquorum.metadata.settings.scram import describe_users
from metaquorum.storage.batches.batch import iter_batches

pytestmark = pytest.mark.shared_data

FINAL_OFFSET = 3957


@pytest.fixture(scope="module")
def final_state(shared_data: Path) -> Path:
    return shared_data / "kafka-3.7" / "final-state"


@pytest.fixture(scope="module")
def image(shared_data: Path) -> MetadataImage:
    engine = Replayer()
    for segment in sorted((shared_data / "kafka-3.7/controller-3000/__cluster_metadata-0").glob("*.log")):
        for batch in iter_batches(segment.read_bytes(), file=segment.name):
            if batch.header.next_offset > FINAL_OFFSET:
                return engine.state().image
            engine.apply_batch(batch)
    raise AssertionError("the recording ends before its final state")


def printed(path: Path) -> list[str]:
    """The lines of a tool's output, without its warnings; tabs stay, blanks at the end do not."""
    return [line.rstrip() for line in path.read_text().splitlines() if line.strip() and " WARN " not in line]


def blocks(lines: list[str], heading: str) -> dict[str, list[str]]:
    """Lines by the name in the heading above them."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines:
        match = re.match(heading, line)
        if match:
            current = found.setdefault(match[1] or "", [])
        else:
            current.append(line)
    return found


def test_the_configuration_of_every_topic(image: MetadataImage, final_state: Path) -> None:
    wanted = blocks(printed(final_state / "configs-topics.txt"), r"Dynamic configs for topic (\S+) are:")
    assert set(wanted) == {topic.name for topic in image.topics.all()}
    assert sum(len(lines) for lines in wanted.values()) == 16
    # The tool asked some broker for each: the values that only broker 1 has are no topic's.
    for name, lines in wanted.items():
        assert [config_line(entry) for entry in describe_topic(image, name)] == sorted(lines), name


def test_the_configuration_of_every_broker_and_their_default(image: MetadataImage, final_state: Path) -> None:
    lines = printed(final_state / "configs-brokers.txt")
    heading = r"(?:Dynamic configs for broker (\d+) are:|Default configs for brokers in the cluster are:)"
    wanted = blocks(lines, heading)
    default = wanted.pop("")
    assert set(wanted) == {"0", "1", "2"} == {str(broker_id) for broker_id in image.brokers}
    for name, expected in wanted.items():
        assert [config_line(entry) for entry in describe_broker(image, int(name))] == expected
    assert [config_line(entry) for entry in describe_broker_default(image)] == default
    alone = printed(final_state / "configs-brokers-default.txt")
    assert alone == ["Default configs for brokers in the cluster are:", *default]


def test_what_is_in_force_names_the_default_of_all_brokers(image: MetadataImage) -> None:
    entries = {entry.name: entry for entry in describe_broker(image, 0, all_keys=True)}
    size = entries["message.max.bytes"]
    assert (size.value, size.source) == ("1500000", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    topic = {entry.name: entry for entry in describe_topic(image, "t02", all_keys=True)}
    assert topic["max.message.bytes"].value == "1500000"
    assert topic["retention.ms"].source is ConfigSource.DEFAULT_CONFIG


def test_client_metrics(image: MetadataImage, final_state: Path) -> None:
    heading, *lines = printed(final_state / "client-metrics.txt")
    assert heading == "Client metrics configs for METRICSUB are:"
    assert ConfigResource(CLIENT_METRICS_RESOURCE, "METRICSUB") in image.configs
    found = describe_client_metrics(image, "METRICSUB")
    assert [f"  {entry.name}={entry.value}" for entry in found] == lines
    assert not any(entry.synonyms for entry in found), "as in Kafka"


def test_metadata_version(image: MetadataImage, final_state: Path) -> None:
    (line,) = printed(final_state / "features.txt")
    level = image.features.metadata_version
    (known,) = [each for each in KNOWN_FEATURES if each.name == METADATA_VERSION]
    feature = FeatureDescription(
        name=known.name, min_level=known.min_level, max_level=known.max_level, finalized_level=level
    )
    epoch = int(line.rpartition(" ")[2])
    assert 0 < epoch <= FINAL_OFFSET
    # The program that printed it supports levels up to 3.7-IV4, this one more.
    ours = feature_line(feature, epoch)
    assert ours.replace("SupportedMaxVersion: 4.2-IV1", "SupportedMaxVersion: 3.7-IV4") == line


def test_access_control_entries(image: MetadataImage, final_state: Path) -> None:
    heading = r"Current ACLs for resource `(.*)`:"
    wanted = {
        title: sorted(line.strip() for line in lines)
        for title, lines in blocks(printed(final_state / "acls.txt"), heading).items()
    }
    acls = [acl for _, acl in list_acls(image, AclFilter())]
    found = {
        title: sorted(line.strip() for line in lines)
        for title, lines in blocks(acl_text(acls).split("\n"), heading).items()
        if title
    }
    found = {title: [line for line in lines if line] for title, lines in found.items()}
    assert found == wanted and sum(len(lines) for lines in wanted.values()) == 6
    match = AclFilter(resource_type=ResourceType.TOPIC, resource_name="t01", pattern_type=PatternType.MATCH)
    assert [acl_entry(acl) for _, acl in list_acls(image, match)] != []
    assert {acl.resource_name for _, acl in list_acls(image, match)} == {"t", "t01"}


def test_quotas_and_credentials(image: MetadataImage, final_state: Path) -> None:
    names = ("quotas-clients.txt", "quotas-ips.txt", "quotas-user-client.txt", "quotas-users.txt")
    wanted = [line for name in names for line in printed(final_state / name)]
    found = [quota_line(entity, quotas) for entity, quotas in describe_quotas(image)]
    found += [user_line(user) for user in describe_users(image)]
    assert sorted(found) == sorted(wanted) and len(wanted) == 7
