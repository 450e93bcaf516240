"""What every server process has, whatever it serves: configuration, loop, signals, last log line, exit code.

Owns how a process starts and exits. Does not know roles: `node_process` runs a node in the loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from metaquorum.metadata.errors import RecordDecodeError, ReplayError
from metaquorum.raft.events import ShutdownRequested
from metaquorum.runtime.allocator import keep_collections_short
from metaquorum.runtime.authorizer_log import set_up_authorizer_log
from metaquorum.runtime.config.closed import check_closed
from metaquorum.runtime.config.load import load_config
from metaquorum.runtime.config.node import UNKNOWN_NODE_ID, NodeConfig
from metaquorum.runtime.driver.driver import Driver, Ending
from metaquorum.runtime.errors import ConfigError, StartError
from metaquorum.runtime.logging import set_up_logging
from metaquorum.runtime.plain_callers import watch_plain_callers
from metaquorum.runtime.rpc.native_lines import take_native_lines
from metaquorum.runtime.rpc.refused_callers import RefusedCallers
from metaquorum.storage.errors import StorageError

_log = logging.getLogger(__name__)

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
        check_closed(config, _addresses)
        refused = RefusedCallers()
        take_native_lines(refused)
        set_up_logging(config.text("log.format"), config.text("log.level"), role=role, node_id=config.node_id)
        set_up_authorizer_log(config)
        watch_plain_callers({each.port for each in config.grpc_listeners if not each.is_tls}, refused)
        if config.passed_over:
            names = ", ".join(config.passed_over)
            _log.warning("%s: ignoring Kafka configuration keys that have no effect: %s", config.path, names)
        # The disk thread must not wait long for the interpreter if the loop is busy (the default is 5 ms).
        sys.setswitchinterval(0.0005)
        keep_collections_short()
        ending = uvloop.run(serve(config))
    except (ConfigError, StartError, StorageError, ReplayError, RecordDecodeError) as error:
        print(f"metaquorum {role}: {_one_line(error)}", file=sys.stderr, flush=True)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print(f"metaquorum {role}: interrupted during startup", file=sys.stderr, flush=True)
        return EXIT_FAILED
    who = role if config.node_id == UNKNOWN_NODE_ID else f"{role} {config.node_id}"
    if ending.failed:
        _log.error("%s: %s", who, _one_line(ending.reason))
        return EXIT_FAILED
    _log.info("%s: %s", who, _one_line(ending.reason))
    return EXIT_OK


def _addresses(host: str) -> list[str]:
    try:
        return [str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except OSError:
        return []


def leave_at_once(last_line: str) -> None:
    """Ends the process with exit code 1, without waiting for threads that hang in the kernel."""
    _log.error("%s", _one_line(last_line))
    logging.shutdown()
    os._exit(EXIT_FAILED)


def _one_line(error: object) -> str:
    return " ".join(str(error).split("\n"))


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
        loop.add_signal_handler(number, on_signal, number.name)
