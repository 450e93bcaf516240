"""`metaquorum pipeline`: the group of commands, each imported on first use, because some need Spark."""

from __future__ import annotations

import importlib
from typing import Any

import click

from metaquorum.cli.given import GivenPath, refuse_no_path, refuse_what_no_one_means


class FilePath(GivenPath):
    """A path of a file system, as `pathlib.Path`. Refuses addresses of object stores."""

    def __init__(self, **checks: Any) -> None:
        super().__init__(**checks)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from metaquorum.pipeline.stores.address import PathError, local_path  # it loads the pipeline

        refuse_no_path(self, str(value), param, ctx)
        try:
            path = local_path(str(value))
        except PathError as error:
            self.fail(str(error), param, ctx)
        super().convert(str(path), param, ctx)
        return path


class Place(click.ParamType):  # type: ignore[type-arg]
    """A path or a store's address, as text in the form of `pipeline.stores.address`."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from metaquorum.pipeline.stores.address import PathError, address

        refuse_no_path(self, str(value), param, ctx)
        try:
            return address(str(value))
        except PathError as error:
            self.fail(str(error), param, ctx)


_COMMANDS: dict[str, tuple[str, str]] = {
    "ingest": ("metaquorum.cli.pipeline.ingest:ingest", "Update tables from logs, with Spark."),
    "audit": ("metaquorum.cli.pipeline.audit:audit", "Print findings from the tables."),
    "report": ("metaquorum.cli.pipeline.audit:report", "Write an HTML report about the fleet."),
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
