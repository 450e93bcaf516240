"""`metaquorum pipeline`: the group of commands, each imported on first use, because some need Spark."""

from __future__ import annotations

import importlib

import click

from metaquorum.cli.given import refuse_what_no_one_means

_COMMANDS: dict[str, tuple[str, str]] = {
    "ingest": ("metaquorum.cli.pipeline.ingest:ingest", "Update tables from logs, with Spark."),
    "audit": ("metaquorum.cli.pipeline.audit:audit", "Print findings from the tables."),
    "report": ("metaquorum.cli.pipeline.report:report", "Write an HTML report about the fleet."),
    "generate": (
        "metaquorum.cli.pipeline.generate:generate",
        "Write a synthetic fleet of logs with known incidents.",
    ),
}


class _Group(click.Group):
    """A group that imports a command on first use: some need Spark."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module_name, attribute = _COMMANDS[cmd_name][0].split(":")
        command: click.Command = getattr(importlib.import_module(module_name), attribute)
        refuse_what_no_one_means(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=_Group)
def pipeline() -> None:
    """Build tables, audits and a report from the logs of a fleet."""
