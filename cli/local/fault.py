"""`metaquorum fault`: calls the methods of a test cluster that `local up` runs at its control port."""

from __future__ import annotations

import http.client
import shlex
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import click
import msgspec

from metaquorum.cli.errors import Failure
from metaquorum.cli.given import GivenPath
from metaquorum.cli.layout import DEFAULT_DIRECTORY, MANIFEST
from metaquorum.cli.text.output import echo_json

CONTROL_FILE = "control.json"
NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""The port is of this machine."""
_PATIENCE_S = 120.0


class ControlPort(msgspec.Struct, frozen=True, kw_only=True):
    """What `control.json` says: `metaquorum.testing.control.ControlFile`."""

    url: str
    token: str
    pid: int


def control_file(directory: Path) -> ControlPort:
    """Raises Failure."""
    path = directory / CONTROL_FILE
    start = f"metaquorum local up --in-memory --directory {shlex.quote(str(directory))}"
    if not path.is_file():
        if (directory / MANIFEST).exists():
            raise Failure(
                f"the cluster in {directory} has no control port; start one that has, in another --directory,"
                " with: metaquorum local up --processes (or --in-memory)"
            )
        raise Failure(f"{directory} has no cluster with a control port; start one with: {start}")
    try:
        return msgspec.json.decode(path.read_bytes(), type=ControlPort)
    except msgspec.MsgspecError as error:
        raise Failure(f"{path} is damaged ({error}); remove it, and start the cluster again") from error


@click.command()
@click.argument("method", required=False)
@click.argument("parameters", nargs=-1, metavar="[NAME=VALUE]...")
@click.option(
    "--directory",
    "-d",
    type=GivenPath(readable=False, path_type=Path),
    default=DEFAULT_DIRECTORY,
    show_default=True,
    help="Directory of the cluster.",
)
def fault(method: str | None, parameters: tuple[str, ...], directory: Path) -> None:
    """Break and watch a cluster on this machine; move its time.

    For a cluster of `metaquorum local up --in-memory` or `--processes`.

    Prints what METHOD answers, as JSON; without METHOD, the table of all methods. A fault is answered with
    its number, and `heal fault=NUMBER` ends it.
    """
    port = control_file(directory)
    if method is None:
        click.echo(_asked(directory, port, "/", None), nl=False)
        return
    given: dict[str, str] = {}
    for word in parameters:
        name, equals, value = word.partition("=")
        if not equals or name in given:
            raise click.UsageError(f"{word!r}: write each parameter once, as NAME=VALUE")
        given[name] = value
    path = f"/{urllib.parse.quote(method, safe='')}"
    echo_json(msgspec.json.decode(_asked(directory, port, path, given)))


def _asked(directory: Path, port: ControlPort, path: str, given: dict[str, str] | None) -> Any:
    body = None if given is None else urllib.parse.urlencode(given).encode()
    headers = {"Authorization": f"Bearer {port.token}"}
    request = urllib.request.Request(port.url + path, data=body, headers=headers)
    try:
        with NO_PROXY.open(request, timeout=_PATIENCE_S) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        try:
            text = msgspec.json.decode(error.read())["error"]
        except (msgspec.MsgspecError, KeyError, TypeError):
            text = f"the control port answered {error.code}"
        raise Failure(text) from error
    except (OSError, http.client.HTTPException) as error:
        raise Failure(
            f"the cluster of {directory / CONTROL_FILE} does not answer ({error}); start it again with"
            f" metaquorum local up --in-memory, or --processes, and --directory {shlex.quote(str(directory))}"
        ) from error
