"""The entry point of `metaquorum`, and of `python -m metaquorum.cli` for the processes of a local cluster."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from metaquorum.cli.interrupts import end_while_starting, quiet_interrupts


def prepare_node() -> None:
    """What must be set before a node's modules are imported."""
    if os.environ.get("GRPC_VERBOSITY", "NONE") == "NONE":
        # A node says in its log what gRPC writes of handshakes (`runtime.rpc.native_lines`). gRPC reads this
        # when it is imported, long before the command line is understood. NONE: our own commands leave it to
        # those that they start.
        os.environ["GRPC_VERBOSITY"] = "INFO"
        os.environ["GRPC_TRACE"] = ",".join(filter(None, (os.environ.get("GRPC_TRACE"), "handshaker")))


def main() -> None:
    """Runs the command line; ends the process."""
    if sys.argv[1:3] in (["controller", "run"], ["broker", "run"], ["node", "run"]):
        end_while_starting(sys.argv[1])
        prepare_node()
    with quiet_interrupts():
        if sys.argv[1:3] == ["local", "up"]:  # what nodes need is imported while this command is
            import_module("metaquorum.cli.local.forks").begin()
        from metaquorum.cli.main import main as command
    command(prog_name="metaquorum")


if __name__ == "__main__":
    main()
