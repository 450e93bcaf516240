"""Mistakes where Apache Kafka's nodes ask our controllers."""

from __future__ import annotations

from tests.planted.bug import Bug

REQUESTS = "tests/unit/kafka/test_node_requests.py"
LIFE = "tests/unit/server/test_foreign_brokers.py"
ISR = f"{REQUESTS}::test_an_isr_arrives_in_every_version"
RUNS = f"{LIFE}::test_a_broker_of_kafka_lives_from_registration_to_shutdown"
BAD = f"{LIFE}::test_bad_brokers_get_kafkas_codes"
NODES = "listeners/forwarded/nodes.py"
MODEL = "sim 7000..7001"
"""Brokers of Kafka, as models, in the simulator."""
ENVELOPES = "controller/server/kafka.py"

FOREIGN_BUGS = (
    Bug(
        name="kafkas-offset-is-taken-for-ours",
        breaks="a broker that has applied its own registration, and no more, is caught up",
        source="KIP-631",
        file=NODES,
        old="applied_offset=body.current_metadata_offset + 1,",
        new="applied_offset=body.current_metadata_offset,",
        caught_by=(f"{REQUESTS}::test_a_heartbeat_names_the_last_record_applied",),
    ),
    Bug(
        name="a-broker-of-kafka-never-leaves",
        breaks="a broker that wants to shut down may, once it leads nothing",
        source="KIP-631",
        file=NODES,
        old="want_shutdown=body.want_shut_down,",
        new="want_shutdown=body.want_fence and body.want_shut_down,",
        caught_by=(f"{REQUESTS}::test_a_heartbeat_names_the_last_record_applied",),
    ),
    Bug(
        name="epochs-of-isr-members-are-lost",
        breaks="a replica that restarted after the leader saw it does not join the ISR",
        source="KIP-903",
        file=NODES,
        old="broker_epoch=None if each.broker_epoch == _UNKNOWN_EPOCH else each.broker_epoch,",
        new="broker_epoch=None,",
        caught_by=(ISR, RUNS),
    ),
    Bug(
        name="names-of-topics-are-not-looked-up",
        breaks="AlterPartition below 2 names topics, and each gets its own answer",
        source="KIP-841",
        file=NODES,
        old="_unknown(part) if topic_id is None else _altered(next(left), named=named)",
        new="_altered(next(left), named=named) if named else _altered(next(left), named=False)",
        caught_by=(ISR,),
    ),
    Bug(
        name="a-broker-that-is-gone-does-not-register-again",
        breaks="the epoch of a broker that is not registered has ended",
        source="Kafka 3.7: ClusterControlManager.checkBrokerEpoch",
        file=NODES,
        old="return ErrorCode.STALE_BROKER_EPOCH",
        new="return error.code",
        caught_by=(f"{REQUESTS}::test_a_broker_that_is_not_registered_has_an_epoch_that_ended",),
    ),
    Bug(
        name="an-unreadable-registration-is-written",
        breaks="a record that no node of Kafka can read is not written",
        source="Kafka 3.7: SecurityProtocol.forId",
        file="controller/brokers/brokers.py",
        old="if each.security_protocol not in SECURITY_PROTOCOLS:",
        new="if each.security_protocol < 0:",
        caught_by=(BAD,),
    ),
    Bug(
        name="an-envelope-opens-every-door",
        breaks="what is in an Envelope needs the rights of its client",
        source="KIP-590",
        file=ENVELOPES,
        old="principal=sender.principal,",
        new="principal=client.principal,",
        caught_by=(f"{REQUESTS}::test_a_client_needs_its_own_rights_in_an_envelope",),
    ),
    Bug(
        name="what-is-in-an-envelope-is-not-checked",
        breaks="what is in an Envelope needs the rights of its client",
        source="KIP-590",
        file=ENVELOPES,
        old="for name, offered in guarded(inside, rights).items()",
        new="for name, offered in inside.items()",
        caught_by=(f"{REQUESTS}::test_a_client_needs_its_own_rights_in_an_envelope",),
    ),
    Bug(
        name="a-broker-keeps-its-former-controller",
        breaks="an Envelope at a controller that is not active says so as a whole",
        source="KIP-590",
        file=ENVELOPES,
        old="_ELSEWHERE = frozenset({ErrorCode.NOT_CONTROLLER})",
        new="_ELSEWHERE = frozenset({ErrorCode.NOT_COORDINATOR})",
        caught_by=(f"{REQUESTS}::test_a_controller_that_is_not_active_refuses_the_whole_envelope",),
    ),
    Bug(
        name="every-client-may-pose-as-a-broker",
        breaks="registrations, heartbeats, ISRs and places are for nodes: ClusterAction",
        source="Kafka: ControllerApis",
        file=NODES,
        old='@answers("BrokerHeartbeat", on_cluster(Op.CLUSTER_ACTION), by=AskedBy.NODES, until=1)',
        new='@answers("BrokerHeartbeat", by=AskedBy.NODES, until=1)',
        caught_by=(f"{LIFE}::test_nodes_log_in_at_controllers",),
    ),
    Bug(
        name="a-broker-serves-before-it-is-ready",
        breaks="a broker that wants to stay fenced is not unfenced",
        source="KIP-631",
        file=NODES,
        old="want_fence=body.want_fence,",
        new="want_fence=body.want_fence and body.want_shut_down,",
        caught_by=(MODEL,),
    ),
    Bug(
        name="a-fenced-broker-is-to-stop",
        breaks="only a broker that asked for it may be told to stop",
        source="KIP-631",
        file=NODES,
        old="should_shut_down=answer.should_shut_down,",
        new="should_shut_down=answer.is_fenced,",
        caught_by=(MODEL,),
    ),
    Bug(
        name="a-broker-is-unfenced-because-it-is-caught-up",
        breaks="a broker serves when the controller has unfenced it, and no earlier",
        source="KIP-631",
        file=NODES,
        old="is_fenced=answer.is_fenced,",
        new="is_fenced=not answer.is_caught_up,",
        caught_by=(MODEL,),
    ),
    Bug(
        name="a-leader-is-granted-another-isr",
        breaks="a leader counts the replicas in the ISR that the controller wrote",
        source="KIP-497",
        file=NODES,
        old="isr=result.isr,",
        new="isr=result.isr[:1],",
        caught_by=(MODEL,),
    ),
    Bug(
        name="a-leader-is-granted-another-epoch",
        breaks="what is granted to a leader is granted to it in its own epoch",
        source="KIP-497",
        file=NODES,
        old="leader_epoch=result.leader_epoch,",
        new="leader_epoch=result.leader_epoch + 1,",
        caught_by=(MODEL,),
    ),
)
