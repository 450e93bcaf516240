"""The quorum, as `kafka-metadata-quorum describe` prints it, and brokers as rows, lines and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metaquorum.clients.admin.cluster import ClusterBroker
from metaquorum.metadata.image.types import BrokerRegistration
from metaquorum.metadata.requests.common import DescribeQuorumResponse, ReplicaStatus
from metaquorum.metadata.text.addresses import address_text, listener_text
from metaquorum.storage.files.known_committed import CommittedLoss
from metaquorum.storage.uuids import uuid_to_text


def leader_of(quorum: DescribeQuorumResponse) -> ReplicaStatus | None:
    return next((voter for voter in quorum.voters if voter.node_id == quorum.leader_id), None)


def max_follower_lag(quorum: DescribeQuorumResponse, now_ms: int) -> tuple[int, int]:
    """(records, ms) by which the slowest voter is behind the leader. ms is -1 if it never caught up."""
    leader = leader_of(quorum)
    if leader is None or not quorum.voters:
        return 0, -1
    slowest = min(quorum.voters, key=lambda voter: (voter.log_end_offset, voter.node_id != quorum.leader_id))
    lag = leader.log_end_offset - slowest.log_end_offset
    if slowest.node_id == leader.node_id:
        return lag, 0
    if slowest.last_caught_up_ms is None:
        return lag, -1
    return lag, max(0, (leader.last_caught_up_ms or now_ms) - slowest.last_caught_up_ms)


def status_text(quorum: DescribeQuorumResponse, now_ms: int) -> str:
    """Lines of `name: value`, with aligned values: eight lines as Kafka prints them (for dynamic voters as
    Kafka 3.9, with directories and endpoints), and ours about voter changes."""
    lag, lag_ms = max_follower_lag(quorum, now_ms)
    rows = [
        ("ClusterId", quorum.cluster_id),
        ("LeaderId", quorum.leader_id),
        ("LeaderEpoch", quorum.leader_epoch),
        ("HighWatermark", quorum.high_watermark),
        ("MaxFollowerLag", lag),
        ("MaxFollowerLagTimeMs", lag_ms),
        ("CurrentVoters", _replicas(quorum, quorum.voters)),
        ("CurrentObservers", _replicas(quorum, quorum.observers)),
    ]
    if quorum.kraft_version:
        rows += [("KRaftVersion", quorum.kraft_version), *_known_to_controllers(quorum)]
        rows += [("CatchingUp", _behind(quorum, one)) for one in _candidates(quorum)]
    return "\n".join([*(f"{name + ':':<24}{value}" for name, value in rows), *map(str, quorum.losses)])


def _known_to_controllers(quorum: DescribeQuorumResponse) -> list[tuple[str, object]]:
    """What DescribeQuorum of Kafka's protocol lacks. Empty if a broker answered."""
    change, rows = quorum.open_change, list[tuple[str, object]]()
    if quorum.voters_offset is not None:
        under_way = "none" if change is None else f"at offset {change}, not committed"
        rows += [("VotersOffset", quorum.voters_offset), ("ChangeUnderWay", under_way)]
    if any(voter.is_alive is not None for voter in quorum.voters):
        rows.append(("SilentVoters", _ids([voter for voter in quorum.voters if voter.is_alive is False])))
    return rows


def status_json(quorum: DescribeQuorumResponse, now_ms: int) -> dict[str, Any]:
    lag, lag_ms = max_follower_lag(quorum, now_ms)
    return {
        "clusterId": quorum.cluster_id,
        "leaderId": quorum.leader_id,
        "leaderEpoch": quorum.leader_epoch,
        "highWatermark": quorum.high_watermark,
        "maxFollowerLag": lag,
        "maxFollowerLagTimeMs": lag_ms,
        "currentVoters": sorted_ids(quorum.voters),
        "currentObservers": sorted_ids(quorum.observers),
        "lostCommitted": losses_json(quorum.losses),
        "kraftVersion": quorum.kraft_version,
        "votersOffset": quorum.voters_offset,
        "openChange": quorum.open_change,
        "replicas": [
            {
                "nodeId": replica.node_id,
                "directoryId": _directory(replica),
                "status": status,
                "alive": replica.is_alive,
                "endpoints": _endpoints(replica),
                "minKRaftVersion": replica.min_kraft_version if replica.max_kraft_version else None,
                "maxKRaftVersion": replica.max_kraft_version or None,
                "lag": _lag(quorum, replica),
            }
            for replica, status in _ordered(quorum)
        ],
    }


def losses_json(losses: Sequence[CommittedLoss]) -> list[dict[str, Any]]:
    """Records that replicas know to be committed and the leader does not have."""
    return [
        {
            "nodeId": loss.node_id,
            "knownOffset": loss.known_offset,
            "commonOffset": loss.common_offset,
            "text": str(loss),
        }
        for loss in losses
    ]


def replication_text(quorum: DescribeQuorumResponse, now_ms: int, human: bool = False) -> str:
    """A table with a tab after every padded cell: leader first, then followers, then observers. Dynamic
    voters also have Kafka 3.9's column of directories and, after the status, two columns of ours."""
    header = ["NodeId", "LogEndOffset", "Lag", "LastFetchTimestamp", "LastCaughtUpTimestamp", "Status"]
    dynamic = quorum.kraft_version > 0
    if dynamic:
        header[1:1] = ["DirectoryId"]
        header += ["Endpoints", "KRaftVersions"]
    rows = [header]
    for replica, status in _ordered(quorum):
        fetched, caught_up = _times(quorum, replica, now_ms)
        row = [
            str(replica.node_id),
            str(replica.log_end_offset),
            str(_lag(quorum, replica)),
            _time_text(fetched, now_ms, human),
            _time_text(caught_up, now_ms, human),
            status,
        ]
        if dynamic:
            row[1:1] = [_directory(replica) or "-"]
            known = replica.max_kraft_version > 0
            row.append(",".join(_endpoints(replica)) or "-")
            row.append(f"{replica.min_kraft_version}-{replica.max_kraft_version}" if known else "-")
        rows.append(row)
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    return "\n".join(
        "".join(f"{cell:<{width}}\t" for cell, width in zip(row, widths, strict=True)) for row in rows
    )


def replication_json(quorum: DescribeQuorumResponse, now_ms: int) -> list[dict[str, Any]]:
    rows = []
    for replica, status in _ordered(quorum):
        fetched, caught_up = _times(quorum, replica, now_ms)
        rows.append(
            {
                "nodeId": replica.node_id,
                "directoryId": _directory(replica),
                "logEndOffset": replica.log_end_offset,
                "lag": _lag(quorum, replica),
                "lastFetchTimestamp": fetched,
                "lastCaughtUpTimestamp": caught_up,
                "status": status,
                "endpoints": _endpoints(replica),
            }
        )
    return rows


def _replicas(quorum: DescribeQuorumResponse, replicas: Sequence[ReplicaStatus]) -> str:
    """Ids or, as Kafka prints them from 3.9 on, JSON with directories, and endpoints if known."""
    if quorum.kraft_version == 0:
        return _ids(replicas)
    parts = []
    for one in sorted(replicas, key=lambda replica: replica.node_id):
        part = f'"id": {one.node_id}, "directoryId": "{_directory(one)}"'
        if one.endpoints:
            part += ', "endpoints": [' + ", ".join(f'"{each}"' for each in _endpoints(one)) + "]"
        parts.append("{" + part + "}")
    return "[" + ", ".join(parts) + "]"


def _candidates(quorum: DescribeQuorumResponse) -> list[ReplicaStatus]:
    """Controllers that observe and could become voters."""
    return [one for one in quorum.observers if one.endpoints and one.is_alive]


def _behind(quorum: DescribeQuorumResponse, replica: ReplicaStatus) -> str:
    lag = _lag(quorum, replica)
    ready = "can be added" if lag <= quorum.new_voter_lag_max else "too far behind to be added"
    return f"node {replica.node_id}, {lag} records behind, {ready}"


def _directory(replica: ReplicaStatus) -> str | None:
    return uuid_to_text(replica.directory_id) if replica.directory_id else None


def _endpoints(replica: ReplicaStatus) -> list[str]:
    return [listener_text(each.name, each.host, each.port) for each in replica.endpoints]


def _ids(replicas: Sequence[ReplicaStatus]) -> str:
    return "[" + ",".join(str(node_id) for node_id in sorted_ids(replicas)) + "]"


def sorted_ids(replicas: Sequence[ReplicaStatus]) -> list[int]:
    return sorted(replica.node_id for replica in replicas)


def _ordered(quorum: DescribeQuorumResponse) -> list[tuple[ReplicaStatus, str]]:
    """The leader, the other voters and the observers, each group sorted by id."""
    voters = sorted(quorum.voters, key=lambda one: (one.node_id != quorum.leader_id, one.node_id))
    observers = sorted(quorum.observers, key=lambda one: one.node_id)
    named = [(voter, "Leader" if voter.node_id == quorum.leader_id else "Follower") for voter in voters]
    return [*named, *((observer, "Observer") for observer in observers)]


def _lag(quorum: DescribeQuorumResponse, replica: ReplicaStatus) -> int:
    leader = leader_of(quorum)
    return replica.lag if leader is None else leader.log_end_offset - replica.log_end_offset


def _times(quorum: DescribeQuorumResponse, replica: ReplicaStatus, now_ms: int) -> tuple[int, int]:
    """(last fetch, last caught up) in Unix ms. The leader's are always now; -1 is never."""
    if replica.node_id == quorum.leader_id:
        return replica.last_fetch_ms or now_ms, replica.last_caught_up_ms or now_ms
    fetched = -1 if replica.last_fetch_ms is None else replica.last_fetch_ms
    return fetched, -1 if replica.last_caught_up_ms is None else replica.last_caught_up_ms


def _time_text(time_ms: int, now_ms: int, human: bool) -> str:
    return f"{max(0, now_ms - time_ms)} ms ago" if human and time_ms >= 0 else str(time_ms)


COLUMNS = ("ID", "STATE", "EPOCH", "RACK", "ENDPOINTS", "DIRECTORIES")
SECURITY_PROTOCOLS = {0: "PLAINTEXT", 1: "SSL", 2: "SASL_PLAINTEXT", 3: "SASL_SSL"}


Broker = BrokerRegistration | ClusterBroker
"""A registration, as controllers have it, or what brokers report of each other in Kafka's protocol."""


def broker_state(broker: Broker) -> str:
    """The state of a broker as the controllers see it: running, fenced or in controlled shutdown; unknown if
    the broker that reports it has fenced itself."""
    if broker.fenced:
        return "fenced"
    if isinstance(broker, ClusterBroker):
        return "running" if broker.is_known else "unknown"
    return "controlled shutdown" if broker.in_controlled_shutdown else "running"


def broker_json(broker: Broker) -> dict[str, Any]:
    """A broker as JSON. If other brokers report it, without the fields that they do not know."""
    if isinstance(broker, ClusterBroker):
        return {
            "id": broker.broker_id,
            "state": broker_state(broker),
            "fenced": broker.fenced,
            "rack": broker.rack,
            "endpoints": [{"host": broker.host, "port": broker.port}],
        }
    return {
        "id": broker.broker_id,
        "state": broker_state(broker),
        "fenced": broker.fenced,
        "inControlledShutdown": broker.in_controlled_shutdown,
        "epoch": broker.epoch,
        "incarnationId": uuid_to_text(broker.incarnation_id),
        "rack": broker.rack,
        "endpoints": [
            {
                "name": endpoint.name,
                "host": endpoint.host,
                "port": endpoint.port,
                "securityProtocol": SECURITY_PROTOCOLS.get(
                    endpoint.security_protocol, str(endpoint.security_protocol)
                ),
            }
            for endpoint in broker.endpoints
        ],
        "features": {
            feature.name: [feature.min_supported_version, feature.max_supported_version]
            for feature in broker.features
        },
        "directories": [uuid_to_text(directory) for directory in broker.directories],
    }


def broker_row(broker: Broker) -> tuple[object, ...]:
    """One row under `COLUMNS`."""
    if isinstance(broker, ClusterBroker):
        endpoint = address_text(broker.host, broker.port)
        return broker.broker_id, broker_state(broker), None, broker.rack, endpoint, None
    endpoints = ",".join(listener_text(one.name, one.host, one.port) for one in broker.endpoints)
    state = broker_state(broker)
    return broker.broker_id, state, broker.epoch, broker.rack, endpoints or None, len(broker.directories)


def describe_text(broker: Broker) -> str:
    """One `name: value` line per known property of a broker."""
    values = broker_json(broker)
    if isinstance(broker, ClusterBroker):
        endpoint = address_text(broker.host, broker.port)
        known = {"Broker": broker.broker_id, "State": values["state"], "Rack": broker.rack or "none"}
        return _lines({**known, "Endpoints": endpoint})
    endpoints = ", ".join(
        f"{listener_text(one['name'], one['host'], one['port'])} ({one['securityProtocol']})"
        for one in values["endpoints"]
    )
    features = ", ".join(f"{name} {low}..{high}" for name, (low, high) in values["features"].items())
    return _lines(
        {
            "Broker": broker.broker_id,
            "State": values["state"],
            "Epoch": broker.epoch,
            "Incarnation": values["incarnationId"],
            "Rack": broker.rack or "none",
            "Endpoints": endpoints or "none",
            "Features": features or "none",
            "Directories": ", ".join(values["directories"]) or "none",
        }
    )


def _lines(values: dict[str, object]) -> str:
    return "\n".join(f"{name + ':':<14}{value}" for name, value in values.items())
