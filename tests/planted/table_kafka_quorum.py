"""Mistakes where our voters and Kafka's are one quorum, over Kafka's protocol."""

from __future__ import annotations

from tests.planted.bug import Bug

FORMS = "clients/kafka/raft_messages.py"
COMPILED = "clients/kafka/message_forms.py"
CLIENT = "clients/kafka/raft_client.py"
SERVER = "controller/server/raft_requests.py"
MESSAGES = "tests/unit/kafka/test_raft_messages.py"
ANSWERS = "tests/unit/kafka/test_metadata_fetch.py"
CALLS = "tests/unit/kafka/test_raft_client.py"
PROBE = "tests/unit/server/test_voter_probe.py"
CONFIG = "tests/unit/config/test_config.py"
MIXED = "tests/properties/test_mixed_quorums.py"
FALLS = f"{MIXED}::test_a_new_leader_names_no_high_watermark_that_may_fall_at_kafkas_voter"
CLAIMS = f"{MIXED}::test_a_release_that_says_no_high_watermark_claims_none"
ROUNDS = f"{ANSWERS}::test_a_fetch_repeats_the_round_of_the_last_answer_on_its_connection"
REFUSED = f"{MESSAGES}::test_what_no_node_can_mean_is_refused_by_the_form"
OLDER = f"{MESSAGES}::test_an_older_version_carries_what_kafkas_nodes_say"
NEWEST = f"{MESSAGES}::test_the_newest_version_carries_a_whole_request"

KAFKA_QUORUM_BUGS = (
    Bug(
        name="high-watermark-falls-at-kafkas-voter",
        breaks="a new leader names no high watermark before it has committed in its epoch",
        source="Kafka 3.7: FollowerState.updateHighWatermark ends the process",
        file="raft/protocol/answers.py",
        old="return own if isinstance(role, Leader) and own > role.epoch_start_offset else NOTHING_COMMITTED",
        new="return own",
        caught_by=(FALLS,),
    ),
    Bug(
        name="unstated-high-watermark-is-a-claim",
        breaks="a node whose release says no high watermark claims nothing to be committed",
        source="KIP-1166",
        file="raft/memory.py",
        old="if request.high_watermark == UNSTATED:",
        new="if request.high_watermark == UNSTATED and request.fetch_offset < 0:",
        caught_by=(CLAIMS,),
    ),
    Bug(
        name="release-without-pre-votes-refuses",
        breaks="among voters without pre-votes, nothing but the vote itself is asked",
        source="KIP-996",
        file="raft/protocol/election.py",
        old="return response.pre_vote and response.error is RaftError.UNSUPPORTED_VERSION",
        new="return response.vote_granted and response.error is RaftError.UNSUPPORTED_VERSION",
        caught_by=(f"{MIXED}::test_our_voter_leads_where_all_others_are_kafkas",),
    ),
    Bug(
        name="round-of-another-connection",
        breaks="a read is confirmed by a fetch that was sent after it",
        source="Raft dissertation 6.4",
        file=SERVER,
        old="epoch, read_round = self._answered.pop(connection, (0, 0))",
        new="epoch, read_round = max(self._answered.values(), default=(0, 0))",
        caught_by=(ROUNDS,),
    ),
    Bug(
        name="round-is-repeated-twice",
        breaks="what arrives on a connection follows the last answer on it, once",
        source="Raft dissertation 6.4",
        file=SERVER,
        old="epoch, read_round = self._answered.pop(connection, (0, 0))",
        new="epoch, read_round = self._answered.get(connection, (0, 0))",
        caught_by=(ROUNDS,),
    ),
    Bug(
        name="round-of-another-epoch",
        breaks="rounds are numbered within one leader's epoch",
        source="Raft dissertation 6.4",
        file=SERVER,
        old="if request.read_round or epoch != request.epoch:",
        new="if request.read_round:",
        caught_by=(ROUNDS,),
    ),
    Bug(
        name="voters-are-answered-uninvited",
        breaks="where the quorum speaks gRPC, nothing on a Kafka listener counts as a voter",
        source="ADR 22",
        file=SERVER,
        old="if is_voter and not self._voters_ask:",
        new="if is_voter and not self._raft.voters:",
        caught_by=(f"{ANSWERS}::test_nothing_that_names_a_voter_counts_as_one",),
    ),
    Bug(
        name="kafkas-voter-is-an-observer",
        breaks="a voter's fetch is its acknowledgement, also without a directory id",
        source="KIP-595",
        file=SERVER,
        old="if not is_voter and not asked.replica_directory_id:",
        new="if not asked.replica_directory_id:",
        caught_by=(f"{ANSWERS}::test_a_voter_of_kafka_votes_and_fetches_as_itself",),
    ),
    Bug(
        name="pre-vote-is-asked-as-a-vote",
        breaks="a pre-vote binds no one: what cannot say it is not asked",
        source="KIP-996",
        file=COMPILED,
        old="elif column.needed:",
        new="elif column.needed and not column.names:",
        caught_by=(OLDER,),
    ),
    Bug(
        name="new-voter-is-not-asked-who-it-is",
        breaks="the node at a new voter's address must be that voter",
        source="docs/raft.md: Voters that come and go",
        file="controller/server/kafka_quorum.py",
        old="problem = self._another(voter, address, answer)",
        new="problem = None",
        caught_by=(f"{PROBE}::test_another_node_is_refused",),
    ),
    Bug(
        name="new-voter-is-asked-for-its-vote",
        breaks="to ask a new voter who it is binds no one",
        source="KIP-996",
        file="controller/server/kafka_quorum.py",
        old="            pre_vote=True,",
        new="            pre_vote=False,",
        caught_by=(f"{PROBE}::test_it_is_asked_for_a_pre_vote_which_binds_no_one",),
    ),
    Bug(
        name="names-do-not-say-the-protocol",
        breaks="a controllers' listener whose name begins with GRPC speaks gRPC, wherever it is named",
        source="ADR 22",
        file="config/addresses.py",
        old="if not grpc and (len(names) > 1 or not asks_kafka):",
        new="if len(names) > 1 or not asks_kafka:",
        caught_by=(f"{CONFIG}::test_names_say_what_controllers_listeners_speak",),
    ),
    Bug(
        name="address-of-another-protocol",
        breaks="a node asks at a listener that speaks its protocol, whatever it is called",
        source="ADR 22",
        file="rpc/controllers.py",
        old="chosen = (named or alike or endpoints)[0]",
        new="chosen = (named or endpoints)[0]",
        caught_by=("tests/unit/rpc/test_controllers_view.py",),
    ),
    Bug(
        name="no-directory-is-a-directory",
        breaks="the zero UUID stands for no directory",
        source="KIP-853",
        file=FORMS,
        old='return b"" if received == ZERO_UUID else bytes(received)',
        new="return bytes(received)",
        caught_by=(NEWEST,),
    ),
    Bug(
        name="kafkas-candidate-is-at-level-0",
        breaks="a candidate that a log does not name yet may ask for votes from kraft.version 1 on",
        source="KIP-853",
        file=FORMS,
        old='lambda values: 1 if values["voter_directory_id"] else 0,',
        new='lambda values: 1 if values["voter_directory_id"] is None else 0,',
        caught_by=(f"{MESSAGES}::test_a_candidate_of_kafka_with_a_voters_record_names_directories",),
    ),
    Bug(
        name="candidate-of-an-epoch-in-its-log",
        breaks="a candidate's epoch is above every epoch in its log",
        source="Kafka 3.7: KafkaRaftClient.handleVoteRequest",
        file=FORMS,
        old="and 0 <= vote.last_position.epoch < vote.epoch + vote.pre_vote",
        new="and 0 <= vote.last_position.epoch <= vote.epoch + vote.pre_vote",
        caught_by=(REFUSED,),
    ),
    Bug(
        name="form-before-cluster",
        breaks="a voter of another cluster learns that, whatever else it says",
        source="KIP-595",
        file=FORMS,
        old="if request.cluster_id == cluster_id and not form.is_sound(request):",
        new="if not form.is_sound(request):",
        caught_by=(REFUSED,),
    ),
    Bug(
        name="refused-snapshot-is-an-unknown-error",
        breaks="after Kafka's refusal of a snapshot, the next fetch names another one",
        source="Kafka 3.7 answers UNKNOWN_SERVER_ERROR",
        file=FORMS,
        old='values["error"] = _INSTEAD.get((form.wire, code)) or _error(code)',
        new='values["error"] = _error(code)',
        caught_by=(f"{MESSAGES}::test_kafkas_refusal_of_a_snapshot_may_say_nothing_else",),
    ),
    Bug(
        name="votes-wait-behind-fetches",
        breaks="what must not wait does not use the connection of fetches that a leader holds",
        source="docs/raft.md: The two protocols",
        file=CLIENT,
        old="line = self._fetches if waits else self._others",
        new="line = self._fetches if waits or timeout_ms else self._others",
        caught_by=(f"{CALLS}::test_a_vote_does_not_wait_behind_a_fetch_that_the_leader_holds",),
    ),
    Bug(
        name="late-answer-holds-up-the-next",
        breaks="a request without an answer in time ends its connection",
        source="Kafka: NetworkClient.handleTimedOutRequests",
        file=CLIENT,
        old="if connection is not None and not is_unsent:",
        new="if connection is not None and is_unsent:",
        caught_by=(f"{CALLS}::test_a_request_without_an_answer_in_time_ends_its_connection",),
    ),
    Bug(
        name="quotas-hold-votes-back",
        breaks="default quotas of clients do not hold up an election",
        source="Kafka: ControllerApis answers Raft without throttling",
        file="listeners/pending_requests.py",
        old="return key in _OF_NODES or (",
        new="return key == 27 or (",
        caught_by=("tests/unit/kafka/test_quotas.py::test_what_nodes_ask_of_each_other_is_not_counted",),
    ),
)
