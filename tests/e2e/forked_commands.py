"""Commands as forks of one process that has imported what they need: starting Python takes most of the
processor time of a short command, and the end-to-end tests run hundreds.

A test of the start itself, of the environment that Python reads when it starts, or of a terminal starts a new
Python.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from typing import NamedTuple

from metaquorum.platforms import forks_are_safe

_IMPORTED = (
    "metaquorum.cli.main",
    "metaquorum.combined.process",
    "metaquorum.clients.quorum.admin",
    "metaquorum.clients.admin.replicas",
    "confluent_kafka",
    "tests.e2e.forked_commands",
)


@functools.cache
def _forks() -> ForkServerContext | SpawnContext:
    if not forks_are_safe():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_IMPORTED))
    return context


def run_forked(
    arguments: Sequence[str], *, environment: Mapping[str, str], given: str = "", timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """`metaquorum ARGUMENTS`, run to its end in this directory and with this umask; `given`: its standard
    input. Raises subprocess.TimeoutExpired, after killing the command."""
    with tempfile.TemporaryDirectory(prefix="command-") as name:
        files = [Path(name) / stream for stream in ("input", "output", "errors")]
        files[0].write_text(given)
        os.umask(umask := os.umask(0))
        order = _Order(tuple(arguments), dict(environment), os.getcwd(), umask, tuple(map(str, files)))
        child = _forks().Process(target=_run, args=(order,))
        child.start()
        child.join(timeout_s)
        if child.exitcode is None:
            child.kill()
            child.join()
            raise subprocess.TimeoutExpired(arguments, timeout_s)
        output, errors = (path.read_text() if path.exists() else "" for path in files[1:])
        return subprocess.CompletedProcess(arguments, child.exitcode, output, errors)


class _Order(NamedTuple):
    arguments: tuple[str, ...]
    environment: dict[str, str]
    directory: str
    umask: int
    files: tuple[str, ...]
    """For standard input, output and errors."""


def _run(order: _Order) -> None:
    """In the fork, which exits with the code that the command passes to sys.exit."""
    os.environ.clear()
    os.environ.update(order.environment)
    os.chdir(order.directory)
    os.umask(0)
    for descriptor, path in enumerate(order.files):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.umask(order.umask)
    sys.stdin = open(0, closefd=False)
    sys.argv = ["metaquorum", *order.arguments]
    from metaquorum.cli.__main__ import main

    main()
