"""A local cluster that has more controllers than voters: the others are made voters, one after another."""

from __future__ import annotations

import click

from metaquorum.cli.client import ClientOptions, TlsOptions
from metaquorum.cli.local.cluster import ASK_TIMEOUT_S, LocalCluster
from metaquorum.cli.voters.perform import Ordered, VoterChanger
from metaquorum.cli.voters.plan import VoterWish
from metaquorum.storage.uuids import uuid_from_text


def add_missing_voters(cluster: LocalCluster, timeout_s: float) -> None:
    """Makes voters of the controllers that are none, by rising id; each may take `timeout_s` to start and to
    catch up. Configured voters are left alone. Raises ApiError and Failure."""
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
