"""What real processes write to their JSON logs about a start, a fencing, a failover and a restart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.e2e.cluster import FAST_BROKERS, Cluster, Node

JSON = {"log.format": "json", "log.level": "debug"}
PROPERTIES = {role: {**FAST_BROKERS[role], **JSON} for role in ("controller", "broker")}

Line = dict[str, Any]


def parsed(node: Node) -> list[Line]:
    """Every line since the process began; all of them must be JSON and name their writer."""
    found: list[Line] = [json.loads(line) for line in node.lines()]
    for line in found:
        assert (line["role"], line["node_id"]) == (node.role, node.node_id)
        assert line["time"].endswith("Z") and line["level"] in {"debug", "info", "warning", "error"}
        assert line["message"]
    return found


def about(lines: list[Line], **fields: object) -> list[Line]:
    return [line for line in lines if all(line.get(name) == value for name, value in fields.items())]


def metadata(lines: list[Line]) -> list[Line]:
    """Lines about metadata: they say whether they are replayed or live, and how far the log was applied."""
    found = [line for line in lines if "source" in line and "quorum_role" not in line]
    for line in found:
        assert line["source"] in {"replayed", "live"}
        assert isinstance(line["offset"], int) and isinstance(line["epoch"], int)
    return found


def registered(cluster: Cluster, broker_id: int) -> int:
    return cluster.registrations()[broker_id].epoch


def test_a_fencing_a_failover_and_a_restart(tmp_path: Path) -> None:
    with Cluster(tmp_path, controllers=3, brokers=2, properties=PROPERTIES) as cluster:
        cluster.start()
        cluster.create_topic("orders", partitions=2, replicas=2)
        leader = cluster.leader()
        first_epoch = cluster.quorum().leader_epoch
        epochs = {broker_id: registered(cluster, broker_id) for broker_id in (0, 1)}

        cluster.brokers[1].kill()
        cluster.wait_brokers({0: "running", 1: "fenced"})
        leader.wait_for_line(f"broker 1 is fenced (epoch {epochs[1]})")
        cluster.brokers[0].wait_for_line(f"broker 1 is fenced (epoch {epochs[1]})")
        before = parsed(leader)
        survivor = parsed(cluster.brokers[0])

        leader.kill()
        quorum = cluster.wait_leader(after_epoch=first_epoch)
        successor = cluster.controller(quorum.leader_id)
        successor.wait_for_line("leader (active)")
        leader.start()
        cluster.wait_caught_up(leader)
        leader.wait_for_line("caught up with the log: brokers 2, topics 1, partitions 2")
        after = parsed(leader)
        elected = parsed(successor)

    check_quorum_lines(before, elected, leader, successor, quorum.leader_epoch)
    check_live_lines(before, epochs)
    # The broker that stayed up saw the same, and reports its own state in all other lines.
    fenced = about(metadata(survivor), message=f"broker 1 is fenced (epoch {epochs[1]})")
    assert [(line["broker_id"], line["broker_epoch"], line["source"]) for line in fenced] == [
        (1, epochs[1], "live")
    ]
    turns = [line for line in survivor if " -> RUNNING: " in line["message"]]
    assert turns and turns[-1]["broker_epoch"] == epochs[0] and turns[-1]["source"] == "live"
    check_replayed_lines(after, epochs)


def check_quorum_lines(
    before: list[Line], elected: list[Line], leader: Node, successor: Node, epoch: int
) -> None:
    active = about(before, quorum_role="leader", active=True)
    assert active and active[-1]["leader_id"] == leader.node_id and active[-1]["source"] == "live"
    (won,) = about(elected, quorum_role="leader", active=True, epoch=epoch)
    assert won["leader_id"] == successor.node_id
    assert won["offset"] > 0


def check_live_lines(lines: list[Line], epochs: dict[int, int]) -> None:
    """As the active controller wrote them."""
    told = metadata(lines)
    for broker_id, epoch in epochs.items():
        (unfenced,) = about(told, message=f"broker {broker_id} is unfenced (epoch {epoch})")
        assert (unfenced["broker_id"], unfenced["broker_epoch"]) == (broker_id, epoch)
        assert unfenced["source"] == "live"
    (fenced,) = about(told, message=f"broker 1 is fenced (epoch {epochs[1]})")
    assert fenced["source"] == "live" and fenced["offset"] > epochs[1]
    (created,) = about(told, message="topic orders was created")
    assert (created["topic"], created["source"]) == ("orders", "live")
    partitions = about(told, topic="orders", source="live")
    moved = [line for line in partitions if line.get("leader_epoch", 0) > 0]
    assert moved, "the partition that broker 1 led has a new leader epoch"
    assert {line["leader"] for line in moved} == {0}
    assert all(line["partition_epoch"] > 0 for line in moved)
    offsets = [line["offset"] for line in told]
    assert offsets == sorted(offsets)


def check_replayed_lines(lines: list[Line], epochs: dict[int, int]) -> None:
    """As written by the controller that was killed and read its log again. A replay proceeds in steps: what
    happened to a broker within one of them is reported once."""
    told = metadata(lines)
    for broker_id, epoch in epochs.items():
        (known,) = about(told, message=f"broker {broker_id} registered with epoch {epoch}")
        assert (known["source"], known["broker_epoch"]) == ("replayed", epoch)
    assert about(told, message="topic orders was created", source="replayed")
    (caught_up,) = [line for line in told if line["message"].startswith("caught up with the log")]
    assert caught_up["source"] == "replayed"
    place = told.index(caught_up)
    assert {line["source"] for line in told[:place]} == {"replayed"}
    assert {line["source"] for line in told[place + 1 :]} <= {"live"}
