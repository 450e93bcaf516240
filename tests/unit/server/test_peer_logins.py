"""Brokers that log in at other brokers: followers and coordinators, again before a session ends, refused."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from metaquorum import clock
from metaquorum.broker.replica.events import PeerFetched, PeerFetchFailed
from metaquorum.broker.server.data import peers
from metaquorum.broker.server.data.peers import PeerConnector
from metaquorum.broker.server.kafka.transactions.brokers import OtherBrokers
from metaquorum.clients.kafka.connection import REQUESTS_MAX, connect
from metaquorum.clients.kafka.login import log_in
from metaquorum.config.addresses import PROTOCOL_IDS
from metaquorum.config.load import load_config
from metaquorum.config.security import Credentials
from metaquorum.errors import ConfigError
from metaquorum.listeners.login import SaslRules
from metaquorum.listeners.sasl import Exchange
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image.types import BrokerRegistration
from metaquorum.metadata.records.types import BrokerEndpoint
from metaquorum.wire.messages import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FetchResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from tests.unit.kafka.auth.test_login import PASSWORD
from tests.unit.kafka.auth.test_proving import USERS, exchange
from tests.unit.kafka.kafka_node import FakeNode, running
from tests.unit.kafka.test_connection import until
from tests.unit.server.certificates import certificate_files
from tests.unit.server.nodes import Site, new_site
from tests.unit.server.test_data_peers import following
from tests.unit.server.test_servers import material

SCRAM = "SCRAM-SHA-256"
KEY = "listener.name.in.scram-sha-256.sasl.jaas.config"


class SaslNode(FakeNode):
    """Counts the logins that began."""

    def __init__(self, max_reauth_ms: int = 0) -> None:
        self.logins = 0

        def new_exchange(mechanism: str) -> Exchange:
            self.logins += 1
            return exchange(mechanism)

        rules = SaslRules(
            mechanisms=("PLAIN", SCRAM), new_exchange=new_exchange, max_reauth_ms={SCRAM: max_reauth_ms}
        )
        handlers = {
            "Fetch": lambda _: FetchResponse(),
            "ListGroups": lambda _: ListGroupsResponse(),
            "DescribeGroups": lambda _: DescribeGroupsResponse(groups=()),
        }
        super().__init__(handlers, sasl=rules)


def login(mechanism: str = SCRAM, password: str = PASSWORD) -> Credentials:
    return Credentials(mechanism=mechanism, user="alice", password=password, secret_key=KEY)


def other_brokers(port: int, credentials: Credentials | None) -> OtherBrokers:
    endpoint = BrokerEndpoint(
        name="IN", host="127.0.0.1", port=port, security_protocol=PROTOCOL_IDS["SASL_PLAINTEXT"]
    )

    registered = BrokerRegistration(broker_id=7, epoch=1, incarnation_id=b"i" * 16, endpoints=(endpoint,))
    image = SimpleNamespace(brokers={7: registered})
    return OtherBrokers(
        lambda: cast("MetadataImage", image),
        PeerConnector(None, credentials, answer_max_bytes=1_000_000),
        listener="IN",
        broker_id=2,
        timeout_s=60,
    )


@pytest.mark.parametrize("mechanism", ["PLAIN", SCRAM])
async def test_a_follower_logs_in_once_for_each_connection(mechanism: str) -> None:
    node = SaslNode()
    async with running(node), following(login=login(mechanism)) as follower:
        for number in range(3):
            follower.send(node.port, number)
            assert isinstance(await follower.report(), PeerFetched)
        assert (node.logins, len(node.open)) == (1, 1)


async def test_a_follower_logs_in_over_tls(tmp_path: Path) -> None:
    certificate_files(tmp_path, "node", None)
    tls = material(tmp_path, "node", "node")
    node = SaslNode()
    loop = asyncio.get_running_loop()
    context = tls.server_context("required")
    async with await loop.create_server(node.connection, "127.0.0.1", 0, ssl=context) as server:
        async with following(tls, login()) as follower:
            follower.send(server.sockets[0].getsockname()[1])
            assert isinstance(await follower.report(), PeerFetched)
            assert node.logins == 1


async def test_a_follower_logs_in_again_on_its_connection_before_the_session_ends() -> None:
    node = SaslNode(max_reauth_ms=1_500)
    async with running(node), following(login=login()) as follower:
        follower.send(node.port, 1)
        assert isinstance(await follower.report(), PeerFetched)
        (connection,) = node.open
        for number in (2, 3):
            await asyncio.sleep(1.4)  # the second time after the first session's end
            follower.send(node.port, number)
            assert isinstance(await follower.report(), PeerFetched)
        assert node.open == {connection}
        assert node.logins == 3


async def test_requests_wait_while_a_broker_logs_in_again() -> None:
    node = SaslNode(max_reauth_ms=1_500)
    async with running(node):
        brokers = other_brokers(node.port, login())
        await brokers.ask(7, ListGroupsRequest())
        await asyncio.sleep(1.4)
        answers: list[Any] = await asyncio.gather(*(brokers.ask(7, ListGroupsRequest()) for _ in range(20)))
        assert len(answers) == 20
        assert (node.logins, len(node.open)) == (2, 1)
        brokers.close()


async def test_a_refused_login_is_one_line_and_is_tried_again_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger=peers.__name__)
    node = SaslNode()
    async with running(node), following(login=login(password="wrong")) as follower:
        for number in range(5):
            follower.send(node.port, number)
            report = await follower.report()
            assert isinstance(report, PeerFetchFailed)
            assert report.reason.endswith(f"correct {KEY}")
        assert node.logins == 1
        told = [line for line in caplog.messages if line.startswith("broker 7")]
        assert len(told) == 1 and "wrong" not in told[0]
        assert told[0].startswith(
            f"broker 7 at 127.0.0.1:{node.port} cannot be reached: it refuses the login: "
        )
        monkeypatch.setattr(peers, "LAST_WAIT_S", 0.0)
        await asyncio.sleep(peers.FIRST_WAIT_S + 0.1)
        for number in (8, 9):
            follower.send(node.port, number)
            await follower.report()
        assert node.logins == 3
        assert len([line for line in caplog.messages if line.startswith("broker 7")]) == 1


async def test_a_session_ends_while_the_machine_sleeps(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The loop's time stands still meanwhile, so that neither end hears of it before the next request."""
    caplog.set_level(logging.INFO)
    slept_ns, read_ns = 0, clock._monotonic_ns
    monkeypatch.setattr(clock, "_monotonic_ns", lambda: read_ns() + slept_ns)
    node = SaslNode(max_reauth_ms=3_600_000)
    async with running(node), following(login=login()) as follower:

        async def fetched(number: int) -> type:
            follower.send(node.port, number)
            return type(await follower.report())

        assert await fetched(1) is PeerFetched
        slept_ns += 3_500_000 * 10**6
        assert await fetched(2) is PeerFetched
        slept_ns += 8 * 3_600_000 * 10**6
        asked = len(node.asked)
        assert await fetched(3) is PeerFetchFailed
        assert len(node.asked) == asked, "what an ended session asks for is not done"
        assert "its session has ended without another login" in caplog.text
        await until(lambda: not node.open)
        assert await fetched(4) is PeerFetched
        assert node.logins == 2


async def test_requests_that_wait_for_their_turn_wait_for_a_login_too() -> None:
    node = SaslNode(max_reauth_ms=60_000)
    async with running(node):
        connection = await connect(
            "127.0.0.1", node.port, client_id="me", answer_max_bytes=100_000, timeout_s=60
        )
        await log_in(connection, login(), timeout_s=60)
        await asyncio.sleep(1.1)  # a node takes no login sooner
        held = asyncio.Event()

        async def answer(_: Any) -> DescribeGroupsResponse:
            await held.wait()
            return DescribeGroupsResponse(groups=())

        node.handlers["DescribeGroups"] = answer
        asked = [
            asyncio.create_task(connection.ask(DescribeGroupsRequest(groups=()), timeout_s=60))
            for _ in range(2 * REQUESTS_MAX)
        ]
        await until(lambda: len(node.asked) == REQUESTS_MAX)
        again = asyncio.create_task(log_in(connection, login(), timeout_s=60))
        await asyncio.sleep(0)
        held.set()
        await asyncio.gather(again, *asked)
        assert (node.logins, len(node.asked)) == (2, 2 * REQUESTS_MAX)
        connection.close()


async def test_a_broker_that_was_reached_again_starts_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(peers, "FIRST_WAIT_S", 0.0)
    node = SaslNode()

    async def sent(password: str) -> type:
        with monkeypatch.context() as there:
            there.setitem(USERS, "alice", password)
            follower.send(node.port)
            return type(await follower.report())

    async with running(node), following(login=login("PLAIN")) as follower:
        assert await sent("changed") is PeerFetchFailed
        assert await sent(PASSWORD) is PeerFetched
        for each in list(node.open):
            each.end()
        await until(lambda: not node.open)
        monkeypatch.setattr(peers, "FIRST_WAIT_S", 600.0)
        for _ in range(3):
            assert await sent("changed") is PeerFetchFailed
        assert len([line for line in caplog.messages if line.startswith("broker 7")]) == 2
        assert node.logins == 3


async def test_a_mechanism_that_is_not_offered_is_named(caplog: pytest.LogCaptureFixture) -> None:
    node = SaslNode()
    async with running(node), following(login=login("SCRAM-SHA-512")) as follower:
        follower.send(node.port)
        assert isinstance(await follower.report(), PeerFetchFailed)
        assert "it does not offer SCRAM-SHA-512" in caplog.text


async def test_a_broker_without_a_login_does_not_ask_where_there_is_sasl(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = SaslNode()
    async with running(node):
        brokers = other_brokers(node.port, None)
        with pytest.raises(ConnectionError, match="its listener has SASL"):
            await brokers.ask(7, ListGroupsRequest())
        assert node.asked == [] and "its listener has SASL" in caplog.text


# ---- configuration


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path) -> Site:
    return new_site(tmp_path)


MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule required"
SASL = {
    "listeners": "IN://127.0.0.1:1",
    "listener.security.protocol.map": "IN:SASL_PLAINTEXT,OUT:PLAINTEXT",
    "sasl.enabled.mechanisms": f"{SCRAM},SCRAM-SHA-512",
    "sasl.mechanism.inter.broker.protocol": SCRAM,
    KEY: f'{MODULE} username="alice" password="{PASSWORD}";',
}


def test_a_broker_logs_in_as_its_listener_says(site: Site) -> None:
    config = load_config(site.broker_file(SASL))
    assert config.brokers_login == Credentials(
        mechanism=SCRAM,
        user="alice",
        password=PASSWORD,
        mechanism_key="sasl.mechanism.inter.broker.protocol",
        secret_key=KEY,
    )
    assert config.passed_over == () and PASSWORD not in repr(config.brokers_login)


def test_a_listener_without_sasl_comes_first(site: Site) -> None:
    more = {"listeners": "IN://127.0.0.1:1,OUT://127.0.0.1:2"}
    config = load_config(site.broker_file({**SASL, **more}))
    assert config.inter_broker_listener is not None
    assert (config.inter_broker_listener.name, config.brokers_login) == ("OUT", None)


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (
            {"sasl.mechanism.inter.broker.protocol": "GSSAPI"},
            "protocol is GSSAPI: choose one of PLAIN, SCRAM",
        ),
        ({"sasl.mechanism.inter.broker.protocol": "OAUTHBEARER"}, "choose one of PLAIN, SCRAM"),
        ({"sasl.enabled.mechanisms": "SCRAM-SHA-512"}, "not among sasl.enabled.mechanisms of listener IN"),
        (
            {"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512"},
            "scram-sha-512.sasl.jaas.config is missing",
        ),
        ({KEY: f'{MODULE} username="alice";'}, f"{KEY} has no password: add password="),
        ({KEY: f'{MODULE} password="{PASSWORD}";'}, f"{KEY} has no username: add username="),
        ({KEY: f'a.PlainLoginModule required password="{PASSWORD}";'}, "names the module a.PlainLoginModule"),
    ],
)
def test_a_login_that_cannot_work_is_refused_at_the_start(
    site: Site, keys: dict[str, str], line: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(site.broker_file({**SASL, **keys}))
    assert line in str(refused.value) and PASSWORD not in str(refused.value)
