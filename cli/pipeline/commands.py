"""`metaquorum pipeline`: the group of commands, each imported on first use, because some need Spark."""

from __future__ import annotations

from typing import Any

import click

from metaquorum.cli.given import GivenPath, LazyGroup, refuse_no_path


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


class _Group(LazyGroup):
    """Some commands need Spark."""

    places = _COMMANDS


@click.group(cls=_Group)
def pipeline() -> None:
    """Build tables, audits and a report from the logs of a fleet."""
