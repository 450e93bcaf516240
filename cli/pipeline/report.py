"""`metaquorum pipeline report`: writes an HTML page about a fleet that needs no other file."""

from __future__ import annotations

import os
from pathlib import Path

import click

from metaquorum.cli.pipeline.audit import load_fleet
from metaquorum.cli.pipeline.paths import FilePath, Place
from metaquorum.pipeline.audit.findings import AuditLimits, findings
from metaquorum.pipeline.report.page import page
from metaquorum.storage.disk.interface import STAGED_SUFFIX


@click.command()
@click.argument("tables", type=Place())
@click.option("--out", type=FilePath(dir_okay=False), required=True, help="The HTML file.")
@click.option(
    "--title", metavar="TEXT", default="Metadata quorum report", show_default=True, help="Title of the page."
)
def report(tables: str, out: Path, title: str) -> int:
    """Write an HTML report about TABLES, the directory that `pipeline ingest` wrote. The page needs no
    network. If --out is an earlier report, the new one begins with what changed since."""
    fleet = load_fleet(tables)
    try:
        previous = out.read_text(encoding="utf-8", errors="replace") if out.is_file() else None
        text = page(fleet, findings(fleet, AuditLimits()), title=title, tables=tables, previous=previous)
        replace_file(out, text)
    except OSError as error:
        raise click.ClickException(
            f"{out} cannot be written: {error.strerror}; choose another file"
        ) from error
    click.echo(f"{out}: {len(fleet.clusters)} clusters, {len(text.encode()) // 1024} KiB")
    return 0


def replace_file(out: Path, text: str) -> None:
    """Replaces a file at once: an interrupt or a full disk leaves the earlier report. Raises OSError."""
    if out.exists() and not out.is_file():  # a pipe, or a device
        out.write_text(text, encoding="utf-8")
        return
    target = Path(os.path.realpath(out))
    staged = target.with_name(f"{target.name}{STAGED_SUFFIX}")
    try:
        staged.write_text(text, encoding="utf-8")
        staged.replace(target)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
