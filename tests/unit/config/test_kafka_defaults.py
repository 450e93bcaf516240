"""Files that say in full what Kafka has anyway: every default and every word for "none" of 3.7 is taken.

The table is that of Kafka's `KafkaConfig` (3.7.0, and of 3.9 what is newer and known here); keys whose
default is unset are not in it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from metaquorum.config.keys import KEYS
from metaquorum.config.load import load_config
from metaquorum.metadata.settings.kafka_keys import is_kafkas
from metaquorum.metadata.settings.keys import BROKER, CONTROLLER

_TABLE = """
alter.log.dirs.replication.quota.window.num=11
alter.log.dirs.replication.quota.window.size.seconds=1
authorizer.class.name=
auto.create.topics.enable=true
auto.include.jmx.reporter=true
auto.leader.rebalance.enable=true
background.threads=10
broker.heartbeat.interval.ms=2000
broker.id=-1
broker.id.generation.enable=true
broker.session.timeout.ms=9000
compression.type=producer
connection.failed.authentication.delay.ms=100
connections.max.idle.ms=600000
connections.max.reauth.ms=0
controlled.shutdown.enable=true
controlled.shutdown.max.retries=3
controlled.shutdown.retry.backoff.ms=5000
controller.quorum.append.linger.ms=25
controller.quorum.election.backoff.max.ms=1000
controller.quorum.election.timeout.ms=1000
controller.quorum.fetch.timeout.ms=2000
controller.quorum.request.timeout.ms=2000
controller.quorum.retry.backoff.ms=20
controller.quorum.voters=
controller.quota.window.num=11
controller.quota.window.size.seconds=1
controller.socket.timeout.ms=30000
default.replication.factor=1
delegation.token.expiry.check.interval.ms=3600000
delegation.token.expiry.time.ms=86400000
delegation.token.max.lifetime.ms=604800000
delete.records.purgatory.purge.interval.requests=1
delete.topic.enable=true
eligible.leader.replicas.enable=false
fetch.max.bytes=57671680
fetch.purgatory.purge.interval.requests=1000
group.consumer.assignors=org.apache.kafka.coordinator.group.assignor.UniformAssignor,org.apache.kafka.coordinator.group.assignor.RangeAssignor
group.consumer.heartbeat.interval.ms=5000
group.consumer.max.heartbeat.interval.ms=15000
group.consumer.max.session.timeout.ms=60000
group.consumer.max.size=2147483647
group.consumer.min.heartbeat.interval.ms=5000
group.consumer.min.session.timeout.ms=45000
group.consumer.session.timeout.ms=45000
group.coordinator.new.enable=false
group.coordinator.rebalance.protocols=classic
group.coordinator.threads=1
group.initial.rebalance.delay.ms=3000
group.max.session.timeout.ms=1800000
group.max.size=2147483647
group.min.session.timeout.ms=6000
initial.broker.registration.timeout.ms=60000
inter.broker.protocol.version=3.7-IV4
kafka.metrics.polling.interval.secs=10
kafka.metrics.reporters=
leader.imbalance.check.interval.seconds=300
leader.imbalance.per.broker.percentage=10
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
listeners=PLAINTEXT://:9092
log.cleaner.backoff.ms=15000
log.cleaner.dedupe.buffer.size=134217728
log.cleaner.delete.retention.ms=86400000
log.cleaner.enable=true
log.cleaner.io.buffer.load.factor=0.9
log.cleaner.io.buffer.size=524288
log.cleaner.io.max.bytes.per.second=1.7976931348623157E308
log.cleaner.max.compaction.lag.ms=9223372036854775807
log.cleaner.min.cleanable.ratio=0.5
log.cleaner.min.compaction.lag.ms=0
log.cleaner.threads=1
log.cleanup.policy=delete
log.dir=/tmp/kafka-logs
log.dir.failure.timeout.ms=30000
log.flush.interval.messages=9223372036854775807
log.flush.offset.checkpoint.interval.ms=60000
log.flush.scheduler.interval.ms=9223372036854775807
log.flush.start.offset.checkpoint.interval.ms=60000
log.index.interval.bytes=4096
log.index.size.max.bytes=10485760
log.message.downconversion.enable=true
log.message.format.version=3.0-IV1
log.message.timestamp.after.max.ms=9223372036854775807
log.message.timestamp.before.max.ms=9223372036854775807
log.message.timestamp.difference.max.ms=9223372036854775807
log.message.timestamp.type=CreateTime
log.preallocate=false
log.retention.bytes=-1
log.retention.check.interval.ms=300000
log.retention.hours=168
log.roll.hours=168
log.roll.jitter.hours=0
log.segment.bytes=1073741824
log.segment.delete.delay.ms=60000
max.connection.creation.rate=2147483647
max.connections=2147483647
max.connections.per.ip=2147483647
max.connections.per.ip.overrides=
max.incremental.fetch.session.cache.slots=1000
message.max.bytes=1048588
metadata.log.max.record.bytes.between.snapshots=20971520
metadata.log.max.snapshot.interval.ms=3600000
metadata.log.segment.bytes=1073741824
metadata.log.segment.ms=604800000
metadata.max.idle.interval.ms=500
metadata.max.retention.bytes=104857600
metadata.max.retention.ms=604800000
metric.reporters=
metrics.num.samples=2
metrics.recording.level=INFO
metrics.sample.window.ms=30000
min.insync.replicas=1
node.id=-1
num.io.threads=8
num.network.threads=3
num.partitions=1
num.recovery.threads.per.data.dir=1
num.replica.fetchers=1
offset.metadata.max.bytes=4096
offsets.commit.required.acks=-1
offsets.commit.timeout.ms=5000
offsets.load.buffer.size=5242880
offsets.retention.check.interval.ms=600000
offsets.retention.minutes=10080
offsets.topic.compression.codec=0
offsets.topic.num.partitions=50
offsets.topic.replication.factor=3
offsets.topic.segment.bytes=104857600
password.encoder.cipher.algorithm=AES/CBC/PKCS5Padding
password.encoder.iterations=4096
password.encoder.key.length=128
principal.builder.class=org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder
process.roles=
producer.id.expiration.check.interval.ms=600000
producer.id.expiration.ms=86400000
producer.purgatory.purge.interval.requests=1000
queued.max.request.bytes=-1
queued.max.requests=500
quota.window.num=11
quota.window.size.seconds=1
replica.fetch.backoff.ms=1000
replica.fetch.max.bytes=1048576
replica.fetch.min.bytes=1
replica.fetch.response.max.bytes=10485760
replica.fetch.wait.max.ms=500
replica.high.watermark.checkpoint.interval.ms=5000
replica.lag.time.max.ms=30000
replica.socket.receive.buffer.bytes=65536
replica.socket.timeout.ms=30000
replication.quota.window.num=11
replication.quota.window.size.seconds=1
request.timeout.ms=30000
reserved.broker.max.id=1000
sasl.enabled.mechanisms=GSSAPI
sasl.kerberos.kinit.cmd=/usr/bin/kinit
sasl.kerberos.min.time.before.relogin=60000
sasl.kerberos.principal.to.local.rules=DEFAULT
sasl.kerberos.ticket.renew.jitter=0.05
sasl.kerberos.ticket.renew.window.factor=0.8
sasl.login.refresh.buffer.seconds=300
sasl.login.refresh.min.period.seconds=60
sasl.login.refresh.window.factor=0.8
sasl.login.refresh.window.jitter=0.05
sasl.login.retry.backoff.max.ms=10000
sasl.login.retry.backoff.ms=100
sasl.mechanism.controller.protocol=GSSAPI
sasl.mechanism.inter.broker.protocol=GSSAPI
sasl.oauthbearer.clock.skew.seconds=30
sasl.oauthbearer.jwks.endpoint.refresh.ms=3600000
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms=10000
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms=100
sasl.oauthbearer.scope.claim.name=scope
sasl.oauthbearer.sub.claim.name=sub
sasl.server.max.receive.size=524288
security.inter.broker.protocol=PLAINTEXT
server.max.startup.time.ms=9223372036854775807
socket.connection.setup.timeout.max.ms=30000
socket.connection.setup.timeout.ms=10000
socket.listen.backlog.size=50
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
socket.send.buffer.bytes=102400
ssl.allow.dn.changes=false
ssl.allow.san.changes=false
ssl.cipher.suites=
ssl.client.auth=none
ssl.enabled.protocols=TLSv1.2,TLSv1.3
ssl.endpoint.identification.algorithm=https
ssl.keymanager.algorithm=SunX509
ssl.keystore.type=JKS
ssl.principal.mapping.rules=DEFAULT
ssl.protocol=TLSv1.3
ssl.trustmanager.algorithm=PKIX
ssl.truststore.type=JKS
telemetry.max.bytes=1048576
transaction.abort.timed.out.transaction.cleanup.interval.ms=10000
transaction.max.timeout.ms=900000
transaction.partition.verification.enable=true
transaction.remove.expired.transaction.cleanup.interval.ms=3600000
transaction.state.log.load.buffer.size=5242880
transaction.state.log.min.isr=2
transaction.state.log.num.partitions=50
transaction.state.log.replication.factor=3
transaction.state.log.segment.bytes=104857600
transactional.id.expiration.ms=604800000
unclean.leader.election.enable=false
zookeeper.max.in.flight.requests=10
zookeeper.metadata.migration.enable=false
zookeeper.session.timeout.ms=18000
zookeeper.set.acl=false
zookeeper.ssl.client.enable=false
zookeeper.ssl.crl.enable=false
zookeeper.ssl.endpoint.identification.algorithm=HTTPS
zookeeper.ssl.ocsp.enable=false
zookeeper.ssl.protocol=TLSv1.2
"""
DEFAULTS = dict(line.split("=", 1) for line in _TABLE.split("\n") if line)

UNSET = frozenset(
    {
        "advertised.listeners",
        "allow.everyone.if.no.acl.found",
        "broker.rack",
        "controller.listener.names",
        "controller.quorum.bootstrap.servers",
        "delegation.token.secret.key",
        "inter.broker.listener.name",
        "log.dirs",
        "log.retention.minutes",
        "log.retention.ms",
        "log.roll.ms",
        "metadata.log.dir",
        "replica.selector.class",
        "sasl.oauthbearer.expected.audience",
        "sasl.oauthbearer.expected.issuer",
        "sasl.oauthbearer.jwks.endpoint.url",
        "ssl.keystore.location",
        "ssl.truststore.location",
        "super.users",
    }
)
NEWER = frozenset(
    {
        "controller.quorum.auto.join.enable",
        "controller.quorum.fetch.max.bytes",
        "controller.quorum.fetch.snapshot.max.bytes",
        "group.consumer.migration.policy",
        "group.consumer.regex.refresh.interval.ms",
    }
)
"""Keys of Kafka 3.8 to 4.3."""
REFUSED_BY_KAFKA_TOO = frozenset({"broker.id", "controller.quorum.voters", "node.id", "process.roles"})
"""Its defaults are those of a broker with ZooKeeper: a node of a quorum has to set them."""

NONE = [
    ("log.retention.ms", "-1"),
    ("log.retention.minutes", "-1"),
    ("log.retention.hours", "-1"),
    ("log.retention.bytes", "-1"),
    ("metadata.max.retention.ms", "-1"),
    ("metadata.max.retention.bytes", "-1"),
    ("metadata.max.idle.interval.ms", "0"),
    ("metadata.log.max.snapshot.interval.ms", "0"),
    ("max.incremental.fetch.session.cache.slots", "0"),
    ("log.segment.delete.delay.ms", "0"),
    ("message.max.bytes", "0"),
    ("delegation.token.secret.key", ""),
    ("ssl.keystore.location", ""),
    ("ssl.truststore.type", "PKCS12"),
]

NODES = {
    CONTROLLER: {
        "process.roles": "controller",
        "node.id": "1",
        "listeners": "CONTROLLER://:9093",
        "controller.quorum.voters": "1@localhost:9093",
        "log.dirs": "/data/a",
    },
    BROKER: {
        "process.roles": "broker",
        "node.id": "2",
        "listeners": "PLAINTEXT://:9092",
        "controller.quorum.voters": "1@localhost:9093",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": "/data/a",
    },
}
ROLES = pytest.mark.parametrize("role", [CONTROLLER, BROKER])


def written(tmp_path: Path, role: str, pairs: dict[str, str]) -> Path:
    path = tmp_path / "node.properties"
    merged = {**NODES[role], **pairs}
    if role == CONTROLLER:
        merged["listeners"] = NODES[role]["listeners"]  # the default is a broker's
    if "log.dir" in pairs:
        del merged["log.dirs"]
    path.write_text("".join(f"{name}={value}\n" for name, value in merged.items()))
    return path


@ROLES
@pytest.mark.parametrize("name", sorted(DEFAULTS.keys() - REFUSED_BY_KAFKA_TOO))
def test_a_default_of_kafka_is_taken(tmp_path: Path, role: str, name: str) -> None:
    load_config(written(tmp_path, role, {name: DEFAULTS[name]}), role)


@ROLES
def test_all_of_them_are_taken_at_once(tmp_path: Path, role: str) -> None:
    pairs = {name: value for name, value in DEFAULTS.items() if name not in REFUSED_BY_KAFKA_TOO}
    config = load_config(written(tmp_path, role, pairs), role)
    assert str(config.log_dirs[0]) == "/tmp/kafka-logs"
    assert {"num.network.threads", "background.threads"} <= set(config.passed_over)


@ROLES
@pytest.mark.parametrize(("name", "value"), NONE)
def test_a_word_for_none_is_taken(tmp_path: Path, role: str, name: str, value: str) -> None:
    load_config(written(tmp_path, role, {name: value}), role)


def test_every_key_that_is_kafkas_is_in_the_table() -> None:
    ours = {name for name, key in KEYS.items() if not key.own}
    assert ours - DEFAULTS.keys() == UNSET | NEWER
    assert [name for name in DEFAULTS if not is_kafkas(name)] == []


def test_no_bound_on_queued_bytes_is_none(tmp_path: Path) -> None:
    taken = load_config(written(tmp_path, BROKER, {"queued.max.request.bytes": "-1"}))
    assert taken.bound("queued.max.request.bytes") is None
    assert load_config(written(tmp_path, BROKER, {})).bound("queued.max.request.bytes") == 256 * 1024 * 1024


def test_an_empty_secret_makes_no_tokens(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, CONTROLLER, {"delegation.token.secret.key": ""}))
    assert config.controller("c", ()).delegation_token_secret_key is None
