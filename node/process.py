"""What every server process has, whatever it serves: configuration, loop, signals, last log line, exit
code."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from metaquorum.config.keys import KAFKA_PROTOCOL, PROTOCOL_KEY
from metaquorum.config.load import check_closed, load_config, open_to_certificates
from metaquorum.config.node import UNKNOWN_NODE_ID, NodeConfig
from metaquorum.errors import ConfigError, StartError
from metaquorum.lines import one_line
from metaquorum.metadata.errors import RecordDecodeError, ReplayError
from metaquorum.metadata.settings.keys import BROKER
from metaquorum.metadata.text.addresses import address_text
from metaquorum.network.refused_callers import RefusedCallers
from metaquorum.network.tls import NodeTls
from metaquorum.node.driver import Driver, Ending
from metaquorum.observability.authorizer_log import set_up_authorizer_log
from metaquorum.observability.logging import set_up_logging
from metaquorum.platforms import c_call, handle_signal, run_loop
from metaquorum.raft.events import ShutdownRequested
from metaquorum.rpc.reach import spoken_at
from metaquorum.rpc.silent_refusals import take_native_lines, watch_plain_callers
from metaquorum.storage.errors import StorageError

_log = logging.getLogger(__name__)

NO_GRPC = (
    "no listener of the controllers speaks gRPC: for brokers and commands that ask over gRPC, add one whose"
    " name begins with GRPC"
)

EXIT_OK = 0
EXIT_FAILED = 1


def run_process(
    config_path: str,
    role: str | None,
    serve: Callable[[NodeConfig], Coroutine[Any, Any, Ending]],
    *,
    node_id: int | None = None,
) -> int:
    """Runs `serve` until it ends; returns the exit code. Invalid input is one line on standard error and exit
    code 1. `role`: the role that the process must have; None: the file's. `node_id`: the id from the command
    line."""
    role, wanted = role or "node", role
    try:
        config = load_config(Path(config_path), wanted, node_id).with_host_name(socket.getfqdn)
        role = config.role
        open_to_all = check_closed(config, _addresses)
        refused = RefusedCallers()
        take_native_lines(refused)
        set_up_logging(config.text("log.format"), config.text("log.level"), role=role, node_id=config.node_id)
        set_up_authorizer_log(config)
        watch_plain_callers({each.port for each in config.grpc_listeners if not each.is_tls}, refused)
        for line in config.warnings:
            _log.warning("%s: %s", config.path, line)
        if config.role != BROKER and config.grpc_controller_listener is None:
            _log.info("%s: %s", config.path, NO_GRPC)
        for warning in (open_to_all, open_to_certificates(config, _addresses)):
            if warning is not None:
                _log.warning("%s", warning)
        if config.passed_over:
            names = ", ".join(config.passed_over)
            _log.warning("%s: ignoring Kafka configuration keys that have no effect: %s", config.path, names)
        warn_of_unknown_names(config)
        if config.finds_protocol:
            found = found_protocol(config)
            config = load_config(Path(config_path), wanted, node_id, found_protocol=found)
            config = config.with_host_name(socket.getfqdn)
        # The disk thread must not wait long for the interpreter if the loop is busy (the default is 5 ms).
        sys.setswitchinterval(0.0005)
        keep_collections_short()
        ending = run_loop(serve(config))
    except (ConfigError, StartError, StorageError, ReplayError, RecordDecodeError) as error:
        print(f"metaquorum {role}: {one_line(error)}", file=sys.stderr, flush=True)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print(f"metaquorum {role}: interrupted during startup", file=sys.stderr, flush=True)
        return EXIT_FAILED
    who = role if config.node_id == UNKNOWN_NODE_ID else f"{role} {config.node_id}"
    if ending.failed:
        _log.error("%s: %s", who, one_line(ending.reason))
        return EXIT_FAILED
    _log.info("%s: %s", who, one_line(ending.reason))
    return EXIT_OK


def _addresses(host: str) -> list[str]:
    try:
        return [str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except OSError:
        return []


def leave_at_once(last_line: str) -> None:
    """Ends the process with exit code 1, without waiting for threads that hang in the kernel."""
    _log.error("%s", one_line(last_line))
    logging.shutdown()
    os._exit(EXIT_FAILED)


def handle_signals(driver: Driver) -> None:
    """SIGTERM and SIGINT start a clean shutdown of the node; a second signal stops the process at once."""
    loop = asyncio.get_running_loop()
    asked = False

    def on_signal(name: str) -> None:
        nonlocal asked
        if asked:
            driver.end(f"stopped immediately by a second {name}", failed=True)
            return
        asked = True
        _log.info("%s: shutting down", name)
        driver.post(ShutdownRequested())

    for number in (signal.SIGTERM, signal.SIGINT):
        handle_signal(loop, number, on_signal, number.name)


def warn_of_unknown_names(config: NodeConfig) -> threading.Thread:
    """Looks up the controllers' names in a thread of its own, since that may take long. Returns the
    thread."""
    thread = threading.Thread(target=_warn, args=(config,), name="names", daemon=True)
    thread.start()
    return thread


def _warn(config: NodeConfig) -> None:
    for line in unknown_names(config, _problem):
        _log.warning("%s: %s", config.path, line)


def unknown_names(config: NodeConfig, problem: Callable[[str], str | None]) -> list[str]:
    """A line for each host among voters and bootstrap servers for which `problem` returns a reason."""
    hosts: dict[str, str] = {}
    for voter in config.voters:
        hosts.setdefault(voter.host, "controller.quorum.voters")
    for host, _ in config.bootstrap_servers:
        hosts.setdefault(host, "controller.quorum.bootstrap.servers")
    reasons = {host: problem(host) for host in hosts}
    return [
        f"{key} names {host}, which does not resolve ({reasons[host]}): correct the name, or the name service"
        for host, key in hosts.items()
        if reasons[host]
    ]


def _problem(host: str) -> str | None:
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_MIB = 1024 * 1024
KEPT_BYTES = 128 * _MIB
"""The most freed memory at the end of the heap that the process keeps for new buffers."""

YOUNG_OBJECTS = 5_000
"""A collection of the youngest generation runs after this many new objects and takes about a millisecond.
More of them no longer fit into the processor's caches, and each then costs three times as much."""
_MIDDLE_EVERY, _ALL_EVERY = 20, 1_000
"""Thresholds of the older generations: the middle one every 100,000 new objects, all objects every 100
million at most."""


def keep_collections_short() -> None:
    """Makes garbage collections short, which stop the process while they search for cycles. Call it once,
    after all imports: collections then skip the objects that exist now, which are most of those that are ever
    part of a cycle."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, _MIDDLE_EVERY, _ALL_EVERY)


def keep_freed_buffers() -> bool:
    """Sets glibc's malloc to keep freed buffers. By default it returns large ones to the kernel, and gets new
    ones page by page: with record batches of 256 KiB that takes a fifteenth of a broker's time. Call it once,
    early. Returns False if the C library has no mallopt or refuses a setting."""
    mallopt = c_call("mallopt", ctypes.c_int, ctypes.c_int)
    if mallopt is None:
        return False
    settings = ((_M_MMAP_THRESHOLD, 32 * _MIB), (_M_TRIM_THRESHOLD, KEPT_BYTES), (_M_TOP_PAD, 16 * _MIB))
    taken = [mallopt(name, value) == 1 for name, value in settings]
    if not all(taken):
        _log.debug("mallopt took %s of %s", sum(taken), len(taken))
    return all(taken)


# Finds out what the controllers speak, once at the start of a broker whose file does not say it (ADR 24).

WAIT_S = 10.0
"""How long controllers that start together with the broker may take to answer."""
ASK_AGAIN_S = 0.5

_log = logging.getLogger(__name__)


def found_protocol(config: NodeConfig, wait_s: float = WAIT_S) -> str:
    """What the first controller that answers speaks; Kafka's protocol if none answers in time. Blocks. Raises
    ConfigError for files of TLS that cannot be read."""
    tls = NodeTls(config).controllers
    addresses = [(voter.host, voter.port) for voter in config.voters] or list(config.bootstrap_servers)
    until_s = time.monotonic() + wait_s
    while True:
        for host, port in addresses:
            protocol = spoken_at(host, port, tls)
            if protocol is not None:
                name = "Kafka's protocol" if protocol == KAFKA_PROTOCOL else "gRPC"
                where = address_text(host, port)
                _log.info("controllers speak %s: %s answers so, and %s is not set", name, where, PROTOCOL_KEY)
                return protocol
        if time.monotonic() >= until_s:
            break
        time.sleep(ASK_AGAIN_S)
    named = ", ".join(address_text(*address) for address in addresses)
    _log.warning(
        "no controller answers at %s yet: this broker asks them by Kafka's protocol; set %s=grpc if they"
        " speak gRPC",
        named,
        PROTOCOL_KEY,
    )
    return KAFKA_PROTOCOL
