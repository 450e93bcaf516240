"""Settings on a running controller and broker: through a client, the log, and from the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from metaquorum.cli.main import main
from metaquorum.clients.admin.access import (
    alter_quotas,
    create_acls,
    delete_acls,
    delete_scram,
    describe_quotas,
    describe_users,
    list_acls,
    set_scram,
)
from metaquorum.clients.admin.cluster import describe_features, update_features
from metaquorum.clients.admin.configs import (
    DescribedConfig,
    alter_configs,
    configured_names,
    describe_configs,
)
from metaquorum.clients.kafka.cluster import KafkaClient
from metaquorum.clients.quorum.admin import AdminClient, allocate_producer_ids
from metaquorum.clients.quorum.nodes import describe_broker_nodes
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.features import MAX_METADATA_VERSION
from metaquorum.metadata.image import NO_LEADER, Acl, ConfigResource, PartitionInfo
from metaquorum.metadata.requests.common import NewTopic
from metaquorum.metadata.requests.settings import (
    AllocateProducerIdsRequest,
    ConfigChange,
    ConfigOp,
    FeatureUpdate,
    LevelChange,
    OpKind,
    QuotaChange,
    QuotaOp,
)
from metaquorum.metadata.settings.acls import AclFilter
from metaquorum.metadata.settings.configs import ConfigEntry, ConfigSource
from metaquorum.metadata.settings.quotas import QuotaFilter
from metaquorum.metadata.settings.scram import Mechanism
from metaquorum.node.formatted import bootstrap_checkpoint
from metaquorum.storage.files.snapshots import BOOTSTRAP_FILE
from metaquorum.storage.partition.replica_directory import CLEAN_SHUTDOWN_FILE as FILE_NAME
from tests.broker_calls import calls_to
from tests.topics import create_topics, partitions_of
from tests.unit.server.nodes import (
    Site,
    commanded,
    free_port,
    new_site,
    running_broker,
    running_controller,
    without_data,
)
from tests.unit.server.test_servers import SERVING, health_is

TOPIC = ConfigResource(2, "orders")
BROKER = ConfigResource(4, "101")
ALL_BROKERS = ConfigResource(4, "")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """A controller and a broker that serve, with the topic `orders`."""
    site = new_site(tmp_path)
    controller = site.controller_file({"delegation.token.secret.key": "s3cret"})
    async with running_controller(controller), running_broker(site.broker_file()):
        await health_is(site.broker_port, SERVING)
        async with AdminClient([("127.0.0.1", site.controller_port)]) as client:
            await create_topics(client, [NewTopic(name="orders", partitions=1, replication_factor=1)])
        yield site


SESSION = "consumer.session.timeout.ms"


def set_op(name: str, value: str) -> ConfigOp:
    return ConfigOp(kind=OpKind.SET, name=name, value=value)


async def until_seen(site: Site) -> None:
    """Returns once the broker has everything that is committed now."""
    async with AdminClient([("127.0.0.1", site.controller_port)]) as client:
        offset = (await client.list_brokers()).offset
    async with asyncio.timeout(60):
        while True:  # asking is the wait
            (broker,) = await describe_broker_nodes([("127.0.0.1", site.broker_port)], timeout_ms=60_000)
            if broker.status is not None and broker.status.applied_offset >= offset:
                return


def kafka_client(site: Site) -> KafkaClient:
    return KafkaClient(f"127.0.0.1:{site.kafka_port}", timeout_ms=60_000)


async def test_configurations_reach_the_broker_through_the_log(site: Site) -> None:
    await until_seen(site)  # the topic
    async with kafka_client(site) as client:
        results = await alter_configs(
            client,
            [
                ConfigChange(resource=TOPIC, ops=(set_op("retention.ms", "5"),)),
                ConfigChange(resource=BROKER, ops=(set_op("log.retention.ms", "6"),)),
                ConfigChange(resource=ALL_BROKERS, ops=(set_op("log.retention.ms", "7"),)),
                ConfigChange(resource=ConfigResource(2, "absent"), ops=(set_op("flush.ms", "1"),)),
            ],
        )
        assert [(each.subject, each.error) for each in results] == [
            ("topic orders", ErrorCode.NONE),
            ("broker 101", ErrorCode.NONE),
            ("broker default", ErrorCode.NONE),
            ("topic absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        wanted = [TOPIC, BROKER, ALL_BROKERS, ConfigResource(2, "absent")]
        await until_seen(site)
        theirs = await describe_configs(client, wanted)
        many = await describe_configs(client, [BROKER] * 1001)
        everything = await describe_configs(client, [TOPIC, BROKER], all_keys=True)
        sources = [each.source for each in _named(everything[0], "retention.ms").synonyms]
        assert sources == [
            ConfigSource.DYNAMIC_TOPIC_CONFIG,
            ConfigSource.DYNAMIC_BROKER_CONFIG,
            ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
            ConfigSource.DEFAULT_CONFIG,
        ]
        assert [[(each.name, each.value) for each in one.entries] for one in theirs[:3]] == [
            [("retention.ms", "5")],
            [("log.retention.ms", "6")],
            [("log.retention.ms", "7")],
        ]
        assert len(many) == 1001 and set(map(repr, many)) == {repr(theirs[1])}
        assert theirs[3].error is not None
        assert theirs[3].error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        groups = [
            ConfigChange(resource=ConfigResource(32, name), ops=(set_op(SESSION, "50000"),)) for name in "hg"
        ]
        assert [each.error for each in await alter_configs(client, groups)] == [ErrorCode.NONE] * 2
        await until_seen(site)
        assert await configured_names(client, 32) == ["g", "h"]
        assert await configured_names(client, 16) == []
        (group,) = await describe_configs(client, [ConfigResource(32, "g")])
        assert [(each.name, each.value) for each in group.entries] == [(SESSION, "50000")]
        listeners = _named(everything[1], "listeners")
        assert listeners.source is ConfigSource.STATIC_BROKER_CONFIG
        assert listeners.value == site.broker_listeners


def _named(described: DescribedConfig, name: str) -> ConfigEntry:
    return next(entry for entry in described.entries if entry.name == name)


async def test_rights_users_and_quotas_there_and_back(site: Site) -> None:
    async with kafka_client(site) as client:
        acl = Acl(
            resource_type=2,
            resource_name="orders",
            pattern_type=4,
            principal="User:alice",
            host="*",
            operation=3,
            permission_type=2,
        )
        assert [each.error for each in await create_acls(client, [acl])] == [ErrorCode.NONE]
        mechanism = Mechanism.SCRAM_SHA_256
        made = await set_scram(client, "alice", mechanism, "pw", iterations=4096)
        assert made.error is ErrorCode.NONE
        change = QuotaChange(
            entity=(("user", "alice"), ("client-id", None)),
            ops=(QuotaOp(key="request_percentage", value=2.5),),
        )
        assert (await alter_quotas(client, change)).error is ErrorCode.NONE
        await until_seen(site)
        await _read_back(client, acl)
        assert (await delete_scram(client, "alice", mechanism)).error is ErrorCode.NONE
        assert (await delete_acls(client, AclFilter())).acls == (acl,)


async def test_what_nodes_ask_of_the_active_controller(site: Site) -> None:
    async with AdminClient([("127.0.0.1", site.controller_port)]) as client:
        epoch = (await client.list_brokers()).brokers[0].epoch
        request = AllocateProducerIdsRequest(broker_id=101, broker_epoch=epoch)
        blocks = [await allocate_producer_ids(client, request) for _ in range(2)]
        assert [(each.first_id, each.count) for each in blocks] == [(0, 1000), (1000, 1000)]
        async with calls_to(site.kafka_port) as calls:
            assert (await calls.init_producer_id()).producer_id == 2000  # of the broker's own block


async def _read_back(reader: KafkaClient, acl: Acl) -> None:
    assert await list_acls(reader, AclFilter(pattern_type=4)) == (acl,)
    assert await list_acls(reader, AclFilter(resource_name="other")) == ()
    (user,) = await describe_users(reader)
    assert (user.user, user.iterations) == ("alice", ((Mechanism.SCRAM_SHA_256, 4096),))
    assert await describe_users(reader, ["bob"]) == ()
    entity = (("client-id", None), ("user", "alice"))
    for wanted in (
        QuotaFilter(),
        QuotaFilter(parts=(("user", ...),)),
        QuotaFilter(parts=(("client-id", None), ("user", "alice")), strict=True),
    ):
        assert await describe_quotas(reader, wanted) == ((entity, {"request_percentage": 2.5}),)
    assert await describe_quotas(reader, QuotaFilter(parts=(("user", ...),), strict=True)) == ()


async def test_a_level_moves_where_every_node_supports_it(site: Site) -> None:
    async with kafka_client(site) as client:
        offset, features = await describe_features(client)
        levels = {each.name: (each.min_level, each.max_level, each.finalized_level) for each in features}
        assert levels["metadata.version"] == (1, MAX_METADATA_VERSION, 19) and offset > 0
        assert levels["kraft.version"] == (0, 1, 0)
        for level, change, error in (
            (16, LevelChange.SAFE_DOWNGRADE, ErrorCode.INVALID_UPDATE_VERSION),
            (17, LevelChange.SAFE_DOWNGRADE, ErrorCode.NONE),
            (21, LevelChange.UPGRADE, ErrorCode.NONE),
            (MAX_METADATA_VERSION + 1, LevelChange.UPGRADE, ErrorCode.INVALID_UPDATE_VERSION),
        ):
            update = FeatureUpdate(name="metadata.version", level=level, change=change)
            (result,) = await update_features(client, [update])
            assert result.error is error, result
        upgrade = FeatureUpdate(name="kraft.version", level=1, change=LevelChange.UPGRADE)
        async with asyncio.timeout(60):
            while "register" in ((await update_features(client, [upgrade]))[0].message or ""):
                pass  # the controller does so by itself
        await until_seen(site)
        levels = {each.name: each.finalized_level for each in (await describe_features(client))[1]}
        assert (levels["metadata.version"], levels["kraft.version"]) == (21, 1)


async def test_a_cluster_is_upgraded_while_its_broker_runs(tmp_path: Path) -> None:
    """S1.22 with servers: formatted at 3.6, raised to 3.7; the same process tells its directories then."""
    site = new_site(tmp_path)
    at_3_6 = bootstrap_checkpoint({"metadata.version": 14}, 0)
    (site.root / "controller" / BOOTSTRAP_FILE).write_bytes(at_3_6)
    async with running_controller(site.controller_file()), running_broker(site.broker_file()):
        await health_is(site.broker_port, SERVING)
        async with AdminClient([("127.0.0.1", site.controller_port)]) as client:
            (before,) = (await client.list_brokers()).brokers
            assert before.directories == ()
            update = FeatureUpdate(name="metadata.version", level=19, change=LevelChange.UPGRADE)
            async with kafka_client(site) as kafka:
                (result,) = await update_features(kafka, [update])
            assert result.error is ErrorCode.NONE, result
            async with asyncio.timeout(60):
                while not (found := (await client.list_brokers()).brokers)[0].directories:
                    pass  # asking is the wait
            assert (found[0].epoch, found[0].incarnation_id) == (before.epoch, before.incarnation_id)
            assert len(found[0].directories) == 1 and not found[0].fenced
            made = await create_topics(client, [NewTopic(name="new", partitions=1, replication_factor=1)])
            assert made[0].error is ErrorCode.NONE
            (partition,) = await partitions_of(client, "new")
            assert partition.directories == found[0].directories


async def test_configs_and_features_on_the_command_line(site: Site) -> None:
    ops = ("--set", "retention.ms=5", "--set", "flush.ms=4")
    changed = await commanded(site, "configs", "alter", "topic", "orders", *ops)
    note = "this is stored but has no effect yet"
    source = "synonyms={DYNAMIC_TOPIC_CONFIG:flush.ms=4}"
    assert changed.stdout == "topic orders: applied\n"
    assert changed.stderr == f"metaquorum: topic orders: note: flush.ms=4: {note}\n"
    text = (await commanded(site, "configs", "describe", "topic", "orders")).stdout.splitlines()
    assert text == [
        "Dynamic configs for topic orders are:",
        f"  flush.ms=4 sensitive=false {source} note={{{note}}}",
        "  retention.ms=5 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5}",
    ]
    as_json = json.loads((await commanded(site, "configs", "describe", "topic", "orders", "--json")).stdout)
    assert [each["note"] for each in as_json["configs"]] == [note, None]
    squeezed = ("--config", "preallocate=true", "--validate-only")
    created = await commanded(site, "topics", "create", "squeezed", *squeezed)
    text = "note: preallocate=true: this is stored but has no effect yet"
    assert created.stderr == f"metaquorum: squeezed: {text}\n"
    told = json.loads((await commanded(site, "topics", "create", "squeezed", *squeezed, "--json")).stdout)
    assert told["note"] in text and told["message"] is None
    await commanded(site, "configs", "alter", "broker", "default", "--set", "num.io.threads=9")
    await commanded(
        site, "configs", "alter", "topic", "orders", "--delete", "retention.ms", "--validate-only"
    )
    shown = (await commanded(site, "configs", "describe", "broker", "--json")).stdout.splitlines()
    named = {each["name"]: each["configs"] for each in map(json.loads, shown)}
    assert set(named) == {"101", "default"} and named["101"] == []
    assert [(each["name"], each["value"], each["source"]) for each in named["default"]] == [
        ("num.io.threads", "9", "DYNAMIC_DEFAULT_BROKER_CONFIG")
    ]
    refused = await commanded(site, "configs", "alter", "topic", "orders", "--set", "retention.ms=x", code=1)
    assert refused.stderr.startswith("metaquorum: topic orders: INVALID_CONFIG: retention.ms cannot be 'x'")
    await commanded(site, "configs", "alter", "topic", "orders", code=2)
    features = (await commanded(site, "features", "describe")).stdout
    assert "Feature: metadata.version\tSupportedMinVersion: 3.0-IV1\t" in features
    await commanded(site, "features", "downgrade", "metadata.version=17")
    await commanded(site, "features", "upgrade", "metadata.version=3.7")
    level = json.loads((await commanded(site, "features", "describe", "--json")).stdout)
    assert [each["finalizedName"] for each in level if each["name"] == "metadata.version"] == ["3.7-IV4"]
    lower = await commanded(
        site, "features", "downgrade", "metadata.version=3.6", "--unsafe", "--json", code=1
    )
    assert json.loads(lower.stdout)["error"] == "INVALID_UPDATE_VERSION"


async def test_entries_users_quotas_and_tokens_on_the_command_line(site: Site) -> None:
    entry = ("--resource-type", "topic", "--resource-name", "orders", "--operation", "read")
    await commanded(site, "acls", "add", "User:alice", *entry)
    listed = (await commanded(site, "acls", "list")).stdout
    assert listed.splitlines()[1] == (
        "\t(principal=User:alice, host=*, operation=READ, permissionType=ALLOW)"
    )
    await commanded(site, "acls", "remove", code=2)
    would = await commanded(site, "acls", "remove", "--principal", "User:alice", "--dry-run")
    assert would.stdout.startswith("would remove: TOPIC orders")
    assert len(json.loads((await commanded(site, "acls", "remove", "--all", "--json")).stdout)) == 1
    assert json.loads((await commanded(site, "acls", "list", "--json")).stdout) == []

    typed = await commanded(site, "users", "scram", "set", "alice", "--password-stdin", typed="s3same\n")
    assert typed.stdout == "alice: SCRAM-SHA-512 set\n" and "s3same" not in typed.output
    users = await commanded(site, "users", "scram", "list", "--json")
    assert json.loads(users.stdout) == [
        {"user": "alice", "credentials": [{"mechanism": "SCRAM-SHA-512", "iterations": 4096}]}
    ]
    await commanded(site, "users", "scram", "delete", "alice")
    missing = await commanded(site, "users", "scram", "delete", "alice", code=1)
    assert "RESOURCE_NOT_FOUND" in missing.stderr

    await commanded(site, "quotas", "alter", "--user-default", "--set", "producer_byte_rate=1024")
    shown = (await commanded(site, "quotas", "describe", "--any-user")).stdout
    assert shown == "Quota configs for the default user-principal are producer_byte_rate=1024.0\n"
    await commanded(site, "quotas", "alter", "--set", "producer_byte_rate=1", code=2)
    await commanded(site, "quotas", "describe", "--any-user", "--user", "bob", code=2)
    await commanded(site, "quotas", "alter", "--user-default", "--delete", "producer_byte_rate")
    assert json.loads((await commanded(site, "quotas", "describe", "--json")).stdout) == []

    anonymous = await commanded(site, "tokens", "create", code=1)
    assert "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: log in with SASL" in anonymous.stderr
    given = json.loads((await commanded(site, "producer-ids", "allocate", "101", "--json")).stdout)
    assert given == {"brokerId": 101, "firstProducerId": 0, "count": 1000}


async def test_who_logged_in_has_tokens_and_a_token_logs_in(tmp_path: Path) -> None:
    site, port = new_site(tmp_path), free_port()
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    broker = {
        "listeners": f"{site.broker_listeners},CLIENTS://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,GRPC:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.clients.plain.sasl.jaas.config": f'{module} user_alice="pw";',
    }
    secret = {"delegation.token.secret.key": "s3cret"}
    where = ["--bootstrap", f"127.0.0.1:{port}", "--command-config", str(tmp_path / "client")]

    def log_in(mechanism: str, line: str) -> None:
        text = f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config={line}\n"
        (tmp_path / "client").write_text(text)

    async def ask(*arguments: str, code: int = 0) -> Result:
        result = await asyncio.to_thread(CliRunner().invoke, main, [*arguments, *where])
        assert result.exit_code == code, (result.output, result.exception)
        return result

    log_in("PLAIN", f'{module} username="alice" password="pw";')
    controller, node = site.controller_file(secret), site.broker_file(broker | secret)
    async with running_controller(controller), running_broker(node):
        await health_is(site.broker_port, SERVING)
        made = json.loads((await ask("tokens", "create", "--renewer", "User:bob", "--json")).stdout)
        assert (made["owner"], made["requester"], made["renewers"]) == (
            "User:alice",
            "User:alice",
            ["User:bob"],
        )
        hmac = ("--hmac", made["hmac"])
        await ask("tokens", "renew", *hmac, "--period-ms", "1000000")
        assert made["tokenId"] in (await ask("tokens", "list")).stdout
        assert json.loads((await ask("tokens", "list", "--owner", "User:x", "--json")).stdout) == []
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required"
        token = f'username="{made["tokenId"]}" password="{made["hmac"]}" tokenauth="true"'
        log_in("SCRAM-SHA-256", f"{scram} {token};")
        assert (await ask("topics", "list")).stdout.startswith("NAME")
        again = await ask("tokens", "create", code=1)
        assert "and not with a token" in again.stderr
        log_in("PLAIN", f'{module} username="alice" password="pw";')
        assert (await ask("tokens", "expire", *hmac)).stdout == "the token has expired\n"
        assert json.loads((await ask("tokens", "list", "--json")).stdout) == []
        missing = await ask("tokens", "expire", *hmac, code=1)
        assert "DELEGATION_TOKEN_NOT_FOUND: the token does not exist" in missing.stderr
        log_in("PLAIN", f'{module} username="alice" password="wrong";')
        wrong = await ask("topics", "list", code=1)
        assert wrong.stderr.count("\n") == 1 and "Invalid username or password; correct" in wrong.stderr


# Eligible leader replicas on running servers: switched by the command line, clean stops that are proven.


NAME = "eligible.leader.replicas.version"


async def described(site: Site) -> PartitionInfo:
    """As the controller has it: no broker runs at times."""
    async with AdminClient([("127.0.0.1", site.controller_port)]) as client:
        return (await partitions_of(client, "t"))[0]


async def led_by(site: Site, leader: int) -> PartitionInfo:
    async with asyncio.timeout(240):
        while True:
            found = await described(site)
            if found.leader == leader:
                return found


async def test_on_and_off_and_a_clean_stop_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_data(monkeypatch)  # else a replica that recovers is soon done with it
    site = new_site(tmp_path)
    marker = site.root / "broker" / FILE_NAME
    async with running_controller(site.controller_file()):
        async with running_broker(site.broker_file()):
            await health_is(site.broker_port, SERVING)
            early = await commanded(site, "features", "upgrade", f"{NAME}=1", code=1)
            assert "it needs metadata.version 4.0-IV1: upgrade that first" in early.output
            await commanded(site, "features", "upgrade", "metadata.version=4.0", f"{NAME}=1")
            shown = await commanded(site, "features", "describe")
            assert f"{NAME}" in shown.output
            broker = await commanded(site, "configs", "describe", "broker", "default")
            assert "min.insync.replicas" in broker.output
            async with AdminClient([("127.0.0.1", site.controller_port)]) as client:
                made = await create_topics(client, [NewTopic(name="t", assignments=((101,),))])
                assert made[0].error is ErrorCode.NONE
                epoch = (await client.list_brokers()).brokers[0].epoch
            assert not marker.exists()
        # It left its leadership in order, and kept all that it had.
        gone = await led_by(site, NO_LEADER)
        assert (gone.isr, gone.elr, gone.last_known_elr) == ((), (101,), (101,))
        assert json.loads(marker.read_bytes()) == {"version": 0, "brokerEpoch": epoch}
        async with running_broker(site.broker_file()):
            back = await led_by(site, 101)
            assert (back.isr, back.elr, back.last_known_elr) == ((101,), (), ())
            assert not marker.exists()
            again = await commanded(site, "topics", "describe", "t")
            assert "Elr" not in again.output
        await led_by(site, NO_LEADER)
        # Nothing proves the next start: it recovers what it has.
        marker.unlink()
        async with running_broker(site.broker_file()):
            await led_by(site, 101)
            assert (await described(site)).leader_recovery_state == 1
            await commanded(site, "features", "downgrade", f"{NAME}=0")
            refused = await commanded(site, "features", "downgrade", "metadata.version=22", code=1)
            assert "could lose metadata" in refused.output


class DiskGaveUp(Exception):
    """Ends a running broker as a failure does: the process goes, and nobody is asked."""


async def test_a_broker_that_fails_leaves_no_proof_of_a_clean_stop(tmp_path: Path) -> None:
    site = new_site(tmp_path)
    marker = site.root / "broker" / FILE_NAME
    async with running_controller(site.controller_file()):
        with pytest.raises(DiskGaveUp):
            async with running_broker(site.broker_file()):
                await health_is(site.broker_port, SERVING)
                raise DiskGaveUp
        assert not marker.exists()
        async with running_broker(site.broker_file()):
            await health_is(site.broker_port, SERVING)
        assert marker.exists()
