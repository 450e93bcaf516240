"""`metaquorum tokens`: delegation tokens of the principal that logs in (see --command-config).

A secret is shown only once, when a token is created.
"""

from __future__ import annotations

import base64
import binascii

import click

from metaquorum.cli.cluster import ClusterOptions, also_controllers, cluster_options
from metaquorum.cli.text.output import echo_json, echo_table, json_option, table_options, utc_text
from metaquorum.clients.admin.access import create_token, describe_tokens, expire_token, renew_token

hmac_option = click.option("--hmac", "hmac_text", required=True, metavar="BASE64", help="The token's secret.")


@click.group()
def tokens() -> None:
    """Create, renew, expire and list delegation tokens."""


@tokens.command()
@cluster_options
@also_controllers
@click.option(
    "--owner",
    metavar="User:NAME",
    help="Owner of the token. Default: the principal that logs in.",
)
@click.option(
    "--renewer",
    "renewers",
    multiple=True,
    metavar="User:NAME",
    help="Principal that may also renew and expire the token; may be repeated.",
)
@click.option(
    "--max-life-ms",
    metavar="MS",
    type=click.IntRange(min=1),
    help="Maximum lifetime in ms; cannot exceed the controllers' limit.",
)
@json_option
def create(
    options: ClusterOptions,
    owner: str | None,
    renewers: tuple[str, ...],
    max_life_ms: int | None,
    as_json: bool,
) -> None:
    """Create a token and show its secret. It is not shown again."""
    with options.open() as cluster:
        token = cluster.call(
            lambda client: create_token(client, owner=owner, renewers=renewers, max_lifetime_ms=max_life_ms)
        )
    secret = base64.b64encode(token.hmac).decode()
    if as_json:
        echo_json(
            {
                "tokenId": token.token_id,
                "hmac": secret,
                "owner": token.owner,
                "requester": token.requester,
                "renewers": renewers,
                "issueTimestampMs": token.issue_timestamp_ms,
                "expirationTimestampMs": token.expiration_timestamp_ms,
                "maxTimestampMs": token.max_timestamp_ms,
            }
        )
        return
    click.echo(f"token {token.token_id} of {token.owner}")
    click.echo(f"hmac: {secret}")
    latest = utc_text(token.max_timestamp_ms)
    click.echo(f"expires: {utc_text(token.expiration_timestamp_ms)}, at the latest {latest}")


@tokens.command()
@cluster_options
@also_controllers
@hmac_option
@click.option(
    "--period-ms",
    metavar="MS",
    type=click.IntRange(min=1),
    help="New lifetime in ms from now. Default: the controllers' default.",
)
@json_option
def renew(options: ClusterOptions, hmac_text: str, period_ms: int | None, as_json: bool) -> None:
    """Extend the lifetime of a token. It cannot exceed the maximum set when the token was created."""
    hmac = _hmac(hmac_text)
    with options.open() as cluster:
        expiry_ms = cluster.call(lambda client: renew_token(client, hmac, period_ms))
    _show_expiry(expiry_ms, as_json)


@tokens.command()
@cluster_options
@also_controllers
@hmac_option
@click.option(
    "--period-ms",
    metavar="MS",
    type=click.IntRange(min=0),
    help="Expire in this many ms from now. Default: now.",
)
@json_option
def expire(options: ClusterOptions, hmac_text: str, period_ms: int | None, as_json: bool) -> None:
    """Expire a token now, or change when it expires."""
    hmac = _hmac(hmac_text)
    with options.open() as cluster:
        expiry_ms = cluster.call(lambda client: expire_token(client, hmac, period_ms))
    _show_expiry(expiry_ms, as_json)


@tokens.command("list")
@cluster_options
@also_controllers
@click.option("--owner", "owners", multiple=True, metavar="User:NAME", help="Only tokens of this owner.")
@table_options
def list_(options: ClusterOptions, owners: tuple[str, ...], as_json: bool) -> None:
    """List the tokens, without their secrets."""
    with options.open() as cluster:
        described = cluster.call(lambda client: describe_tokens(client, owners))
    if as_json:
        echo_json(
            [
                {
                    "tokenId": token.token_id,
                    "owner": token.owner,
                    "requester": token.requester,
                    "renewers": token.renewers,
                    "issueTimestampMs": token.issue_timestamp_ms,
                    "expirationTimestampMs": token.expiration_timestamp_ms,
                    "maxTimestampMs": token.max_timestamp_ms,
                }
                for token in described
            ]
        )
        return
    rows = [
        (
            token.token_id,
            token.owner,
            token.requester,
            token.renewers,
            utc_text(token.expiration_timestamp_ms),
            utc_text(token.max_timestamp_ms),
        )
        for token in described
    ]
    echo_table(("TOKEN", "OWNER", "REQUESTER", "RENEWERS", "EXPIRES", "AT THE LATEST"), rows)


def _hmac(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise click.UsageError(f"--hmac is not base64: {error}") from error


def _show_expiry(expiration_timestamp_ms: int | None, as_json: bool) -> None:
    if as_json:
        echo_json({"expirationTimestampMs": expiration_timestamp_ms})
    elif expiration_timestamp_ms is None:
        click.echo("the token has expired")
    else:
        click.echo(f"expires: {utc_text(expiration_timestamp_ms)}")
