"""The `metaquorum` command: assembles the groups of commands and reports known errors in one line each.

A group is imported on first use, so that `metaquorum storage random-uuid` does not load gRPC.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import click
from click.exceptions import Exit, NoArgsIsHelpError
from click.shell_completion import get_completion_class

from metaquorum.cli.errors import EXIT_INTERRUPTED, EXIT_PIPE, EXIT_USAGE, as_failure, print_problem
from metaquorum.cli.given import LazyGroup
from metaquorum.lines import one_line

_COMMANDS: dict[str, tuple[str, str]] = {
    "storage": (
        "metaquorum.cli.admin.storage:storage",
        "Format storage directories and show their identity.",
    ),
    "controller": (
        "metaquorum.cli.server_commands:controller",
        "Run a controller; show the status of controllers.",
    ),
    "broker": ("metaquorum.cli.server_commands:broker", "Run a broker; show the status of brokers."),
    "node": ("metaquorum.cli.server_commands:node", "Run a node that is a controller, a broker, or both."),
    "local": ("metaquorum.cli.local.commands:local", "Run a whole cluster on this machine."),
    "fault": (
        "metaquorum.cli.local.fault:fault",
        "Break and watch a cluster on this machine; move its time.",
    ),
    "quorum": (
        "metaquorum.cli.admin.quorum:quorum",
        "Describe the quorum; transfer leadership; change voters.",
    ),
    "brokers": (
        "metaquorum.cli.admin.brokers:brokers",
        "List, describe and unregister brokers; bind broker ids.",
    ),
    "configs": ("metaquorum.cli.admin.configs:configs", "Describe and change configurations."),
    "features": ("metaquorum.cli.admin.features:features", "Describe, upgrade and downgrade feature levels."),
    "acls": ("metaquorum.cli.admin.acls:acls", "Add, list and remove access control entries."),
    "users": ("metaquorum.cli.admin.users:users", "Set, delete and list SCRAM credentials."),
    "quotas": ("metaquorum.cli.admin.quotas:quotas", "Change and describe client quotas."),
    "tokens": (
        "metaquorum.cli.admin.tokens:tokens",
        "Create, renew, expire and list delegation tokens.",
    ),
    "producer-ids": (
        "metaquorum.cli.admin.transactions:producer_ids",
        "Allocate blocks of producer ids to brokers.",
    ),
    "topics": ("metaquorum.cli.admin.topics:topics", "Create, list, describe and delete topics."),
    "partitions": (
        "metaquorum.cli.admin.partitions:partitions",
        "Elect leaders, add partitions, move replicas.",
    ),
    "groups": (
        "metaquorum.cli.admin.groups:groups",
        "Describe consumer groups and their lag; change offsets.",
    ),
    "transactions": (
        "metaquorum.cli.admin.transactions:transactions",
        "List and describe transactions; abort hanging ones.",
    ),
    "produce": ("metaquorum.cli.data.produce:produce", "Write lines or generated messages to a topic."),
    "consume": ("metaquorum.cli.data.consume:consume", "Print the records of a topic."),
    "log-dirs": (
        "metaquorum.cli.admin.log_dirs:log_dirs",
        "Describe brokers' log directories; move replicas between them.",
    ),
    "log": (
        "metaquorum.cli.log.commands:log",
        "Read any KRaft metadata log: its records and its state.",
    ),
    "console": (
        "metaquorum.cli.console:console",
        "Show any moment of a log in a browser, with a time slider.",
    ),
    "pipeline": (
        "metaquorum.cli.pipeline.commands:pipeline",
        "Build tables, audits and a report from the logs of a fleet.",
    ),
    "demo": (
        "metaquorum.cli.local.demo:demo",
        "Start a quorum, break parts of it, and show what its log says.",
    ),
}


class OneLineGroup(LazyGroup):
    """The group of all commands, whose errors are one line."""

    places = _COMMANDS

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggests names; click's own suggestions cover only commands that are imported."""
        name = args[0]
        if not name.startswith("-") and name not in self.list_commands(ctx):
            near = get_close_matches(name, self.list_commands(ctx), n=2)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            ctx.fail(f"No such command {name!r}{hint}")
        return super().resolve_command(ctx, args)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except BrokenPipeError:
            raise _nobody_reads() from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _nobody_reads() from None

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            result = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except Exception as error:
            sys.exit(_report(error))
        sys.exit(result if isinstance(result, int) else 0)


def _nobody_reads() -> Exit:
    """Ends the command when the reader of a pipe is gone (`| head`). Prints nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit(EXIT_PIPE)


def _report(error: Exception) -> int:
    """Prints the line for an error and returns the exit code. Raises the error again if it is a bug."""
    if isinstance(error, NoArgsIsHelpError):
        error.show()
        return EXIT_USAGE
    if isinstance(error, click.Abort):
        return EXIT_INTERRUPTED
    if isinstance(error, click.ClickException):
        hint = ""
        if isinstance(error, click.UsageError) and error.ctx is not None:
            hint = f" (see: {error.ctx.command_path} --help)"
        print_problem(f"{one_line(error.format_message()).rstrip('.')}{hint}")
        return error.exit_code
    failure = as_failure(error)
    if failure is None:
        raise error
    print_problem(failure.format_message())
    return failure.exit_code


@click.group(cls=OneLineGroup, name="metaquorum", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="metaquorum")
@click.pass_context
def main(context: click.Context) -> None:
    """Run a metadata quorum; inspect any KRaft metadata log."""
    if os.environ.get("NO_COLOR"):
        context.color = False  # https://no-color.org; `rich` checks it itself


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL. Use it as: eval "$(metaquorum completion bash)"."""
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"there is no completion for {shell}")
    click.echo(found(main, {}, "metaquorum", "_METAQUORUM_COMPLETE").source())
