"""Makes voters of the controllers of a local cluster that are not voters yet, one after another.

Owns the wait for each new voter. Knows no plans: `cli.voters` makes and performs them, and `cli.layout.grow`
formats new controllers.
"""

from __future__ import annotations

import click

from metaquorum.cli.client import ClientOptions, TlsOptions
from metaquorum.cli.local.cluster import ASK_TIMEOUT_S, LocalCluster
from metaquorum.cli.voters.perform import Ordered, VoterChanger
from metaquorum.cli.voters.plan import VoterWish
from metaquorum.storage.uuids import uuid_from_text


def add_missing_voters(cluster: LocalCluster, timeout_s: float) -> None:
    """Adds the missing voters, sorted by id. Each may take `timeout_s` to start and catch up. Does nothing
    for configured voters. Raises ApiError and Failure."""
    layout = cluster.layout
    quorum = cluster.wait_until(cluster.client.quorum, timeout_s, "the quorum to answer")
    if quorum.kraft_version == 0:
        return
    voters = {voter.node_id for voter in quorum.voters}
    options = ClientOptions(bootstrap=layout.bootstrap, timeout_s=ASK_TIMEOUT_S, tls=TlsOptions())
    for node in layout.controllers:
        if node.node_id in voters:
            continue
        wish = VoterWish(add_id=node.node_id, directory_id=uuid_from_text(node.directory_id))
        ordered = Ordered(wish=wish, wait_s=timeout_s, patience_s=timeout_s)
        changer = VoterChanger(cluster.client, options, ordered, click.echo)
        changer.perform(changer.plan())
