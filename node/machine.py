"""What a node has beneath it: a disk, a clock, chance, and a process of its own or a share of one.

A node reads the time and reaches files through this value alone, so that the nodes of a test cluster can
share one process, one clock and one disk in memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from metaquorum.clock import Clock, SystemClock
from metaquorum.config.node import NodeConfig, process_rng
from metaquorum.network.files_plan import FilePlan, plan_files
from metaquorum.node.driver import Driver
from metaquorum.node.process import handle_signals, leave_at_once
from metaquorum.rpc.channels import Route, direct
from metaquorum.storage.disk.interface import Disk
from metaquorum.storage.disk.posix import PosixDisk


class OpenNode(Protocol):
    """A node with everything open; `NodeProcess` is one."""

    driver: Driver


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """See the module."""

    disk: Disk
    clock: Clock
    new_rng: Callable[[], random.Random]
    """A generator for one part of the node."""
    owns_process: bool
    """The node has a process of its own: it may raise limits, start processes, and set up logging."""
    attend: Callable[[OpenNode], None]
    """Called when the node has opened everything and is about to start."""
    leave: Callable[[str], None]
    """Ends the node although threads of it hang in the kernel; gets the last line."""
    offer: Callable[[Any], Any] = lambda services: services
    """Wraps a broker's `runtime.kafka.services.Services`."""
    route: Route = direct
    """How the node reaches other nodes."""
    plan: FilePlan | None = None
    """How the process's file descriptors are shared; None: there is no limit."""

    def planned(self, config: NodeConfig) -> Machine:
        """The machine with a plan, if the node has a process of its own."""
        return replace(self, plan=plan_files(config)) if self.owns_process else self

    @property
    def shares(self) -> FilePlan:
        """The plan, or the one without a limit."""
        return self.plan or FilePlan.unlimited()


OWN_PROCESS = Machine(
    disk=PosixDisk(),
    clock=SystemClock(),
    new_rng=process_rng,
    owns_process=True,
    attend=lambda node: handle_signals(node.driver),
    leave=leave_at_once,
)
"""The machine of a node that is a process of its own."""
