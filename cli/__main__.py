"""The entry point of `metaquorum`, and of `python -m metaquorum.cli` for the processes of a local cluster.

Owns what must happen before the command line is imported: signal handlers, gRPC's environment, the fork
server of `local up`. Knows no groups of commands; `main` has them.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from metaquorum.cli.interrupts import end_while_starting, quiet_interrupts


def prepare_node() -> None:
    """Sets the environment that must be set before a node's modules are imported."""
    if os.environ.get("GRPC_VERBOSITY", "NONE") == "NONE":
        # A node logs what gRPC writes about handshakes (`runtime.rpc.native_lines`). gRPC reads these
        # variables when it is imported, long before the command line is parsed. NONE is what importing
        # `runtime` sets for a command; a node inherits it from the command that starts it.
        os.environ["GRPC_VERBOSITY"] = "INFO"
        os.environ["GRPC_TRACE"] = ",".join(filter(None, (os.environ.get("GRPC_TRACE"), "handshaker")))


def main() -> None:
    """Runs the command line and ends the process."""
    if sys.argv[1:3] in (["controller", "run"], ["broker", "run"], ["node", "run"]):
        end_while_starting(sys.argv[1])
        prepare_node()
    with quiet_interrupts():
        if sys.argv[1:3] == ["local", "up"]:  # imports what nodes need, beside this command's own imports
            import_module("metaquorum.cli.local.forks").begin()
        from metaquorum.cli.main import main as command
    command(prog_name="metaquorum")


if __name__ == "__main__":
    main()
