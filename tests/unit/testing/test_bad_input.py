"""Every public call of a cluster, with values that cannot be, before the start, after the end, and in a fork:
one line each, at once, and nothing has happened. The calls are those that the classes have."""

from __future__ import annotations

import inspect
import math
import os
import signal
import socket
import subprocess
import sys
import time
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from metaquorum.testing import Chaos, Cluster, ClusterError
from metaquorum.testing.breaking import NodeCopy
from metaquorum.testing.calls import CheckedCalls
from metaquorum.testing.errors import FORKED
from metaquorum.testing.memory_disk import DiskCopy
from metaquorum.testing.running import AT_ANY_TIME, Wishes
from metaquorum.testing.shared import SharedCluster

FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
WRONG: dict[Any, list[Any]] = {
    int: [True, "3", -1, 1.5, math.nan, math.inf, 10**30, b"3", [], object()],
    float: [True, "3", -0.5, math.nan, math.inf, 1e300, 10**30, b"3", [], object()],
    str: [True, 3, 1.5, b"x", ["x"], object()],
    bool: [1, 0.0, "yes", "false", [], object()],
}
"""Values that are none of a type, or no number that this API takes."""


def public(cls: type[Any]) -> list[str]:
    return [name for name in dir(cls) if not name.startswith("_")]


def parameters(method: Any) -> dict[str, Any]:
    """The types of a method's parameters, those of its keywords among them."""
    found: dict[str, Any] = {}
    for name, parameter in [*inspect.signature(method, eval_str=True).parameters.items()][1:]:
        if parameter.kind is parameter.VAR_KEYWORD:
            found |= typing.get_type_hints(typing.get_args(parameter.annotation)[0])
        else:
            found[name] = parameter.annotation
    return found


def right(kind: Any) -> Any:
    """Some value of a type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return right(arguments[0])
    if kind is NodeCopy:
        return NodeCopy(0, typing.cast(DiskCopy, None), 0)
    if origin is not None:
        return {} if issubclass(origin, Mapping) else (lambda: True) if origin is Callable else ["a"]
    return {int: 1, float: 1.0, str: "a", bool: False}.get(kind)


def needed(method: Any) -> dict[str, Any]:
    """Values for the parameters without a default."""
    signature = inspect.signature(method, eval_str=True)
    return {
        name: right(each.annotation)
        for name, each in [*signature.parameters.items()][1:]
        if each.default is each.empty and each.kind is not each.VAR_KEYWORD
    }


def wrong(kind: Any) -> list[Any]:
    """Values that a parameter of this type does not take."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        choices = [wrong(each) for each in arguments if each is not types.NoneType]
        return [
            value for value in choices[0] if all(type(value) in map(type, other) for other in choices[1:])
        ]
    if kind in WRONG:
        return WRONG[kind]
    if origin is None:
        return ["x", 3, object()]
    if issubclass(origin, Mapping):
        return ["x", 3, ["a"], {3: "a"}, object()]
    return ["x", 3, [3], {"a": 1}, object()] if issubclass(origin, Sequence) else ["x", 3, [3]]


def refusal(call: Callable[[], object]) -> str:
    begun_s = time.monotonic()
    with pytest.raises(ClusterError) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert time.monotonic() - begun_s < 5
    return str(caught.value)


def test_every_value_that_cannot_be_is_one_line_that_names_the_parameter() -> None:
    with Cluster() as cluster, cluster.observe("Heartbeat") as handle:
        shared = SharedCluster(lambda: cluster)
        before, tried = cluster.events, 0
        for own in (cluster, cluster.clock, handle, shared):
            assert isinstance(own, CheckedCalls)
            for name in public(type(own)):
                method = getattr(type(own), name)
                if isinstance(method, property):
                    continue
                for parameter, kind in parameters(method).items():
                    for value in wrong(kind):
                        values = {**needed(method), parameter: value}
                        text = refusal(partial(method, own, **values))
                        assert parameter in text or name == "advance", (name, parameter, value, text)
                        tried += 1
        assert cluster.events == before, "nothing has happened"
        assert tried > 500
        for factor in (0, 2):
            assert "write 1 to 1" in refusal(partial(cluster.create_topic, "a", replication_factor=factor))
        assert cluster.create_topic("a") == "a"


STRANGE = ["", "\ud800", "x" * 40_000, "a\nb", "\x00"]
"""Strings that nothing can be called."""


def test_strings_and_numbers_that_name_nothing_are_one_line() -> None:
    """Those of a right type, at which Kafka's protocol or the cluster itself stops."""
    tried = 0
    with Cluster(sasl="scram") as cluster:
        cluster.timeout_s = 0.3
        for name in ("add_user", "create_topic", "delete_topic", "lag", "leader", "messages", "rebalance"):
            method = getattr(Cluster, name)
            for parameter, kind in parameters(method).items():
                is_text = kind is str or str in typing.get_args(kind)
                for value in STRANGE if is_text else [2**31 - 1] if kind in (int, int | None) else []:
                    try:
                        method(cluster, **{**needed(method), parameter: value})
                    except ClusterError as error:
                        tried += 1
                        assert str(error).isprintable() and len(str(error)) < 1_000
        assert tried > 20
        assert cluster.active_controller == 0


def test_every_wish_that_cannot_be_is_one_line_that_names_it() -> None:
    for name, kind in {"brokers": int, "controllers": int, **typing.get_type_hints(Wishes)}.items():
        for value in [*wrong(kind)] if name != "seed" else [True, "3", 1.5, math.nan]:
            text = refusal(partial(Cluster, **{name: value}))
            assert name in text, (name, value, text)
    for chaos in (Chaos(kills=typing.cast(int, "3")), Chaos(lasts_s=typing.cast(tuple[float, float], (1,)))):
        assert refusal(partial(Cluster, chaos=chaos)).startswith("Chaos: ")
    for times in ((math.nan, 1.0), (0.0, math.inf), (2.0, 1.0)):
        assert "shorter one first" in refusal(Cluster(chaos=Chaos(kills=1, pause_s=times)).start)


def uses(cluster: Cluster) -> dict[str, Callable[[], object]]:
    """What may be done only while it runs: every public call that is not always there, by name."""
    found: dict[str, Callable[[], object]] = {}
    for name in public(Cluster):
        member = getattr(Cluster, name)
        if name not in AT_ANY_TIME:
            is_property = isinstance(member, property)
            found[name] = partial(getattr, cluster, name) if is_property else partial(member, cluster)
            if not is_property:
                found[name] = partial(member, cluster, **needed(member))
    return found


@pytest.mark.parametrize("state", ["not started", "closed"])
def test_what_does_not_run_is_not_used_and_says_so(state: str) -> None:
    cluster = Cluster()
    if state == "closed":
        with cluster:
            pass
    todo = f"this cluster is {state}: {'make another one' if state == 'closed' else 'start it'}"
    for name, use in uses(cluster).items():
        assert refusal(use) == todo, name
    assert refusal(partial(cluster.clock.advance, seconds=1)) == todo
    for name in AT_ANY_TIME - {"start", "close"}:
        getattr(cluster, name)
    cluster.close()
    assert "closed: make another one" in refusal(cluster.start)


def in_a_fork(work: Callable[[], str]) -> str:
    """What a function returns in a fork of this process, which then ends as Python does."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            signal.alarm(20)  # it never hangs
            os.write(writing, work().encode())
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:
        text = answer.read().decode()
    assert os.waitpid(pid, 0)[1] == 0, "the fork hung"
    return text


@FORKS
def test_a_fork_uses_nothing_but_what_it_has_read() -> None:
    with Cluster() as cluster:
        servers, fault = cluster.bootstrap_servers, cluster.observe("Produce")

        def use() -> str:
            with fault:  # a fork leaves the contexts that it is in
                assert cluster.bootstrap_servers == servers and cluster.nodes == (0,)
            calls = uses(cluster)
            methods = [call for name, call in calls.items() if inspect.isfunction(getattr(Cluster, name))]
            assert len(methods) > 40
            texts = {refusal(call) for call in methods}
            texts |= {refusal(fault.heal), refusal(partial(cluster.clock.advance, seconds=1))}
            texts.add(refusal(lambda: cluster.active_controller))
            cluster.close()
            return ", ".join(texts)

        assert in_a_fork(use) == FORKED
        assert "multiprocessing.get_context" in in_a_fork(lambda: refusal(Cluster().start))
        assert fault.is_in_force
        assert cluster.create_topic("a") == "a"


@FORKS
def test_a_fork_keeps_no_port_and_no_connection_of_a_node() -> None:
    with Cluster(brokers=2, controllers=1) as cluster:
        port = int(cluster.bootstrap_servers.split(":")[1].split(",")[0])
        client = socket.create_connection(("127.0.0.1", port))
        cluster.create_topic("a")
        pid = os.fork()
        if not pid:
            client.close()
            time.sleep(60)
            os._exit(0)
        try:
            with cluster.kill(0):
                client.settimeout(10)
                assert client.recv(1) == b"", "the client learns of it"
            assert cluster.create_topic("b") == "b"
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            client.close()


ENDS = """
import os, sys
from confluent_kafka import Producer
from metaquorum.testing import Cluster
with Cluster() as cluster, cluster.observe("Produce") as seen:
    pid = os.fork()
    if not pid:
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    producer.produce(cluster.create_topic("a"), "a")
    assert producer.flush(20) == 0 and seen.hits == 1
"""


@FORKS
def test_the_end_of_a_fork_is_nothing_to_the_cluster() -> None:
    """As Python ends, with the destructors of all objects."""
    ended = subprocess.run(
        [sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0 and "Traceback" not in ended.stderr, ended.stderr
