"""The entry point of `metaquorum`, and of `python -m metaquorum.cli` for the processes of a local cluster.

Signal handlers, gRPC's environment and the fork server of `local up` must be there before the command line
is imported.
"""

from __future__ import annotations

# Nothing else is imported here: Ctrl-C during an import is a traceback until `main` has begun.
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


EXIT_INTERRUPTED = 130
"""As `cli.errors` has it."""

OWNER_PIPE = "METAQUORUM_OWNER_PIPE"
"""The variable with the reading end of a pipe that a node ends with: the process that owns its cluster has
the other end."""
OWNER_LINE = "METAQUORUM_OWNER_LINE"
"""The variable with the port and the token of that process, whose faults a node of a test cluster meets."""


def prepare_node() -> None:
    """Sets the environment that must be set before a node's modules are imported."""
    if os.environ.get("GRPC_VERBOSITY", "NONE") == "NONE":
        # A node logs what gRPC writes about handshakes (`rpc.silent_refusals`). gRPC reads these
        # variables when it is imported, long before the command line is parsed. NONE is what importing
        # `grpc_variables` sets for a command; a node inherits it from the command that starts it.
        os.environ["GRPC_VERBOSITY"] = "INFO"
        os.environ["GRPC_TRACE"] = ",".join(filter(None, (os.environ.get("GRPC_TRACE"), "handshaker")))


def main() -> None:
    """Runs the command line and ends the process."""
    try:
        from metaquorum.cli.interrupts import quiet_interrupts

        with quiet_interrupts():
            command = _prepared()
        command(prog_name="metaquorum")
    except KeyboardInterrupt:  # a moment before its handler is set, or after a command
        sys.exit(EXIT_INTERRUPTED)


def _prepared() -> Callable[..., Any]:
    """The command line, imported, in an environment that it can run in."""
    from importlib import import_module

    from metaquorum.platforms import UnsupportedError, check_supported, end_with_pipe, prepare_output

    try:
        check_supported()
    except UnsupportedError as error:
        sys.exit(f"metaquorum: {error}")
    prepare_output()
    if sys.argv[1:3] in (["controller", "run"], ["broker", "run"], ["node", "run"]):
        from metaquorum.cli.interrupts import end_while_starting

        pipe = os.environ.pop(OWNER_PIPE, "")
        if pipe.isdecimal():
            end_with_pipe(int(pipe))
        end_while_starting(sys.argv[1])
        prepare_node()
    if sys.argv[1:3] == ["local", "up"] and not {"--in-memory", "--processes"} & {*sys.argv}:
        # It imports what nodes need, beside this command's own imports.
        import_module("metaquorum.cli.local.forks").begin()
    from metaquorum.cli.main import main as command

    return command


if __name__ == "__main__":
    main()
