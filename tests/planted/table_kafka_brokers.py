"""Mistakes where our brokers ask controllers by Kafka's protocol."""

from __future__ import annotations

from tests.planted.bug import Bug

FORMS = "clients/kafka/node_messages.py"
CALLS = "broker/server/kafka_controllers.py"
MESSAGES = "tests/unit/kafka/test_node_messages.py"
SENT = "tests/unit/server/test_kafka_controllers.py"
WHOLE = f"{MESSAGES}::test_between_our_nodes_nothing_is_lost"

KAFKA_BROKER_BUGS = (
    Bug(
        name="offset-of-the-next-record",
        breaks="a heartbeat names the last record that the broker has applied",
        source="KIP-631",
        file=FORMS,
        old="current_metadata_offset=request.applied_offset - 1,",
        new="current_metadata_offset=request.applied_offset,",
        caught_by=(WHOLE,),
    ),
    Bug(
        name="failed-directory-is-not-told",
        breaks="every heartbeat names the failed directories",
        source="KIP-858",
        file=FORMS,
        old="offline_log_dirs=request.offline_directories,",
        new="offline_log_dirs=request.offline_directories[1:],",
        caught_by=(WHOLE,),
    ),
    Bug(
        name="lease-without-an-end",
        breaks="where a controller names no session timeout, the lease counts by the broker's file",
        source="ADR 24",
        file=FORMS,
        old="return otherwise if found is None else found",
        new="return 2**31 - 1 if found is None else found",
        caught_by=(f"{MESSAGES}::test_kafkas_answers_name_no_session_and_the_broker_counts_by_its_own_file",),
    ),
    Bug(
        name="level-0-to-older-controllers",
        breaks="a controller that knows no features from level 0 is not told of any",
        source="KAFKA-17492",
        file=FORMS,
        old="(at for at in request.features if version >= _SAYS_LEVEL_0 or at.min_supported_version > 0),",
        new="(at for at in request.features if version >= 0 or at.min_supported_version > 0),",
        caught_by=(f"{MESSAGES}::test_an_older_controller_is_not_told_of_features_from_level_0",),
    ),
    Bug(
        name="kafkas-brokers-get-our-fields",
        breaks="Kafka's nodes get Kafka's answers",
        source="docs/divergence.md: Kafka's protocol",
        file=FORMS,
        old="if not is_marked(request):",
        new="if not answer:",
        caught_by=(f"{MESSAGES}::test_a_refusal_says_why_to_our_brokers_and_nothing_more_to_kafkas",),
    ),
    Bug(
        name="token-is-forgotten",
        breaks="a client that logged in with a token counts as one behind the broker, too",
        source="KIP-590",
        file=CALLS,
        old="client = ForwardedPrincipal(principal, by_token)",
        new="client = ForwardedPrincipal(principal, by_token=False)",
        caught_by=(f"{SENT}::test_a_request_of_a_client_finds_the_active_controller",),
    ),
    Bug(
        name="asked-where-the-controller-was",
        breaks="a controller is asked at its current address",
        source="KIP-853",
        file=CALLS,
        old="if address != self._address:",
        new="if self._address is None:",
        caught_by=(f"{SENT}::test_a_controller_that_moved_is_asked_at_its_new_address",),
    ),
    Bug(
        name="dead-leader-is-asked-again",
        breaks="after a failure, another controller is asked",
        source="docs/architecture.md: Who speaks what",
        file=CALLS,
        old="if known is not None and (known.host, known.port) != failed:",
        new="if known is not None:",
        caught_by=(f"{SENT}::test_the_leader_of_the_log_is_asked_first_and_passed_over_once_it_has_failed",),
    ),
    Bug(
        name="standby-refuses-for-all",
        breaks="what a controller refuses because it is not the active one is asked of another",
        source="KIP-631",
        file=CALLS,
        old="if refusal is not None and refusal in NOT_LOOKED_AT:",
        new="if refusal is ErrorCode.NONE:",
        caught_by=(f"{SENT}::test_a_request_of_the_brokers_own_is_sent_as_it_is",),
    ),
)
