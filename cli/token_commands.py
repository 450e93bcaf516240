"""`metaquorum tokens`: delegation tokens. Who asks is what the command line says: nobody is authenticated."""

from __future__ import annotations

import base64
import binascii

import click

from cli.client import ClientOptions, client_options
from cli.output import echo_json, echo_table, json_option, table_options, utc_text
from metadata.requests_settings import CreateTokenRequest, ExpireTokenRequest, RenewTokenRequest
from runtime.settings_client import ANONYMOUS

requester_option = click.option(
    "--as", "requester", default=ANONYMOUS, show_default=True, metavar="User:NAME", help="Who asks."
)
hmac_option = click.option("--hmac", "hmac_text", required=True, metavar="BASE64", help="The token's secret.")


@click.group()
def tokens() -> None:
    """Create, renew, expire and list delegation tokens."""


@tokens.command()
@client_options
@requester_option
@click.option("--owner", metavar="User:NAME", help="Whose token it is; the one who asks by default.")
@click.option(
    "--renewer", "renewers", multiple=True, metavar="User:NAME", help="May renew and expire it too."
)
@click.option("--max-life-ms", type=click.IntRange(min=1), help="At most the controllers' own limit.")
@json_option
def create(
    options: ClientOptions,
    requester: str,
    owner: str | None,
    renewers: tuple[str, ...],
    max_life_ms: int | None,
    as_json: bool,
) -> None:
    """Create a token and show its secret, once."""
    request = CreateTokenRequest(
        requester=requester, owner=owner, renewers=renewers, max_lifetime_ms=max_life_ms
    )
    with options.open() as cluster:
        token = cluster.settings(lambda settings: settings.create_token(request))
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
@client_options
@requester_option
@hmac_option
@click.option("--period-ms", type=click.IntRange(min=1), help="How long from now; the controllers' default.")
@json_option
def renew(
    options: ClientOptions, requester: str, hmac_text: str, period_ms: int | None, as_json: bool
) -> None:
    """Let a token live longer, at most as long as it was created for."""
    request = RenewTokenRequest(requester=requester, hmac=_hmac(hmac_text), period_ms=period_ms)
    with options.open() as cluster:
        answer = cluster.settings(lambda settings: settings.renew_token(request))
    _show_expiry(answer.expiration_timestamp_ms, as_json)


@tokens.command()
@client_options
@requester_option
@hmac_option
@click.option("--period-ms", type=click.IntRange(min=0), help="How long from now; at once by default.")
@json_option
def expire(
    options: ClientOptions, requester: str, hmac_text: str, period_ms: int | None, as_json: bool
) -> None:
    """End a token now, or change when it ends."""
    request = ExpireTokenRequest(requester=requester, hmac=_hmac(hmac_text), period_ms=period_ms)
    with options.open() as cluster:
        answer = cluster.settings(lambda settings: settings.expire_token(request))
    _show_expiry(answer.expiration_timestamp_ms, as_json)


@tokens.command("list")
@client_options
@click.option("--owner", "owners", multiple=True, metavar="User:NAME", help="Only tokens of this owner.")
@click.option("--stale", is_flag=True, help="As the node asked has it, without asking the others.")
@table_options
def list_(options: ClientOptions, owners: tuple[str, ...], stale: bool, as_json: bool) -> None:
    """List the tokens, without their secrets."""
    with options.open() as cluster:
        found = cluster.settings(lambda settings: settings.describe_tokens(owners, stale=stale))
    if as_json:
        echo_json(
            [
                {
                    "tokenId": each.token_id,
                    "owner": each.owner,
                    "requester": each.requester,
                    "renewers": each.renewers,
                    "issueTimestampMs": each.issue_timestamp_ms,
                    "expirationTimestampMs": each.expiration_timestamp_ms,
                    "maxTimestampMs": each.max_timestamp_ms,
                }
                for each in found
            ]
        )
        return
    rows = [
        (
            each.token_id,
            each.owner,
            each.requester,
            each.renewers,
            utc_text(each.expiration_timestamp_ms),
            utc_text(each.max_timestamp_ms),
        )
        for each in found
    ]
    echo_table(("TOKEN", "OWNER", "REQUESTER", "RENEWERS", "EXPIRES", "AT THE LATEST"), rows)


def _hmac(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise click.UsageError(f"--hmac is no base64: {error}") from error


def _show_expiry(expiration_timestamp_ms: int | None, as_json: bool) -> None:
    if as_json:
        echo_json({"expirationTimestampMs": expiration_timestamp_ms})
    elif expiration_timestamp_ms is None:
        click.echo("the token is gone")
    else:
        click.echo(f"expires: {utc_text(expiration_timestamp_ms)}")
