"""What `produce` and `consume` make of a cluster's answers and of a login, in words of librdkafka."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import (
    KafkaError,
    KafkaException,
    TopicPartition,
)
from msgspec.structs import replace

from metaquorum.cli.client import TlsOptions
from metaquorum.cli.cluster import ClusterOptions
from metaquorum.cli.data import cluster as cluster_module
from metaquorum.cli.data.cluster import KafkaCluster, Problems
from metaquorum.cli.errors import Failure

OPTIONS = ClusterOptions(bootstrap="127.0.0.1:1", timeout_s=5.0, tls=TlsOptions())
DOWN, SILENT = KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT


@pytest.fixture(name="cluster")
def fixture_cluster(monkeypatch: pytest.MonkeyPatch) -> KafkaCluster:
    async def found(*_: object, **__: object) -> None:
        return None

    monkeypatch.setattr(cluster_module, "_look", found)
    made = KafkaCluster(OPTIONS, ())
    made.timeout_s = 0.05
    return made


# ---- answers of a cluster


def listed(code: int | None, partitions: int = 1) -> Any:
    error = None if code is None else KafkaError(code)
    return SimpleNamespace(
        topics={"t": SimpleNamespace(error=error, partitions=dict.fromkeys(range(partitions)))}
    )


class Asked:
    """A client that gives one answer after another, the last one forever, and counts its polls."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.polls = list(answers), 0

    def list_topics(self, name: str, timeout: float) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, int):
            raise KafkaException(KafkaError(answer))
        return answer

    def committed(self, places: object, timeout: float) -> None:
        self.list_topics("t", timeout)

    def poll(self, timeout: float) -> None:
        self.polls += 1


@pytest.mark.parametrize("first", [SILENT, DOWN, KafkaError._TRANSPORT, KafkaError.LEADER_NOT_AVAILABLE])
def test_a_topic_is_asked_for_again(cluster: KafkaCluster, first: int) -> None:
    for no_answer in (first, listed(KafkaError.LEADER_NOT_AVAILABLE), listed(None, 0)):
        client = Asked(no_answer, listed(None, 3))
        assert sorted(cluster.topic(client, "t").partitions) == [0, 1, 2]
        assert client.polls == 1


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        (listed(KafkaError.UNKNOWN_TOPIC_OR_PART), "there is no topic t; create it"),
        (listed(KafkaError.TOPIC_AUTHORIZATION_FAILED), "TOPIC_AUTHORIZATION_FAILED: t: "),
        (KafkaError.SASL_AUTHENTICATION_FAILED, "SASL_AUTHENTICATION_FAILED: "),
        (SILENT, r"no node at 127.0.0.1:1 answered within 50 ms \(last: no answer\)"),
        (listed(None, 0), r"no node at 127.0.0.1:1 answered within 50 ms \(last: no answer\)"),
    ],
)
def test_a_topic_that_nobody_gives(cluster: KafkaCluster, answer: Any, part: str) -> None:
    with pytest.raises(Failure, match=f"^{part}"):
        cluster.topic(Asked(answer), "t")


def test_a_group_without_a_coordinator(cluster: KafkaCluster) -> None:
    place = TopicPartition("t", 0)
    loading, away = KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR
    cluster.look_for_coordinator(Asked(loading, away, None), "g", place)
    with pytest.raises(Failure, match=r"^group g has no coordinator; `metaquorum groups describe g`"):
        cluster.look_for_coordinator(Asked(away), "g", place)
    with pytest.raises(Failure, match=r"^GROUP_AUTHORIZATION_FAILED: group g: "):
        cluster.look_for_coordinator(Asked(KafkaError.GROUP_AUTHORIZATION_FAILED), "g", place)


def test_the_last_problem_that_says_something_is_told() -> None:
    problems, refused = Problems(), KafkaError(KafkaError._TRANSPORT)
    take = problems.settings()["error_cb"]
    assert problems.text() == "no answer"
    for code, text in ((DOWN, DOWN), (KafkaError._TRANSPORT, refused), (SILENT, refused), (DOWN, refused)):
        take(KafkaError(code))
        assert problems.text() == (text if isinstance(text, KafkaError) else KafkaError(text)).str()
        assert not problems.is_about_login
    take(KafkaError(KafkaError._AUTHENTICATION))
    take(KafkaError(DOWN))
    assert problems.is_about_login


RESOLVE = KafkaError(
    KafkaError._RESOLVE, "127.0.0.1:1/bootstrap: Failed to resolve '127.0.0.1:1': Name or service not known"
)


def test_names_of_which_only_librdkafka_learns_that_none_resolves(cluster: KafkaCluster) -> None:
    """The look before it may have run out of time at a slow name server."""
    take = cluster.problems.settings()["error_cb"]

    class Client(Asked):
        def poll(self, _: float) -> None:
            take(RESOLVE)

    cluster.timeout_s = 600
    with pytest.raises(Failure, match=r"^127.0.0.1:1: its host name cannot be resolved: correct it"):
        cluster.topic(Client(KafkaError._TRANSPORT), "t")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("", {"security.protocol": "PLAINTEXT"}),
        (
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n{login}",
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "u",
                "sasl.password": "p",
            },
        ),
    ],
)
def test_a_login_in_words_of_librdkafka(tmp_path: Path, lines: str, expected: dict[str, str]) -> None:
    path = tmp_path / "client.properties"
    login = (
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="u" password="p";\n'
    )
    path.write_text(lines.format(login=login))
    options = replace(OPTIONS, command_config=path)
    assert cluster_module._login(options) == expected


@pytest.mark.parametrize("given", [["a=b", " c =d=e"], []])
def test_properties_in_words_of_librdkafka(given: list[str]) -> None:
    assert cluster_module._given(given) == ({"a": "b", "c": "d=e"} if given else {})
