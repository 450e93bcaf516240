"""Mistakes in the clusters of tests."""

from __future__ import annotations

from tests.planted.bug import Bug

NESTED = "tests/properties/test_nested_faults.py"
FAULTS = "tests/unit/testing/test_faults.py"

CLUSTER_BUGS = (
    Bug(
        name="healed-node-starts-in-spite-of-another-fault",
        breaks="a node is down as long as any fault keeps it down",
        source="docs/testing.md, Faults",
        file="testing/running.py",
        old="if not node.is_up and node.node_id not in kept]",
        new="if not node.is_up]",
        caught_by=(f"{NESTED}::test_a_node_that_two_faults_keep_down_starts_after_both",),
    ),
    Bug(
        name="healing-waits-for-a-node-that-is-cut-off",
        breaks="healing waits for those nodes only that no other fault keeps from serving",
        source="docs/testing.md, Faults",
        file="testing/healing.py",
        old="if len(reach(node, candidates)) == len(candidates))",
        new="if reach(node, candidates))",
        caught_by=(f"{NESTED}::test_a_node_can_serve_if_it_reaches_whichever_voter_leads",),
    ),
    Bug(
        name="slow-disk-stops-the-loop-of-all-nodes",
        breaks="a slow disk slows one node",
        source="docs/testing.md, Faults",
        file="testing/memory_disk.py",
        old="        if _runs_on_a_loop():",
        new="        if _runs_on_a_loop() and self._ends:",
        caught_by=(f"{FAULTS}::test_a_slow_disk_of_one_node_does_not_slow_the_others",),
    ),
    Bug(
        name="real-time-passes-while-a-test-moves-the-clock",
        breaks="a slow machine changes nothing in the time that a test has pass",
        source="docs/testing.md, Time",
        file="testing/clock.py",
        old="        self._clock.hold()\n",
        new="",
        caught_by=(f"{FAULTS}::test_time_that_a_test_has_pass_is_exact_and_ends_no_leadership_for_a_while",),
    ),
    Bug(
        name="a-long-way-looks-like-silence-of-voters",
        breaks="time that a test has pass costs no election",
        source="docs/testing.md, Time",
        file="node/node_process.py",
        old="        self.raft.carry(by_ms)\n",
        new="",
        caught_by=(f"{FAULTS}::test_no_way_of_any_length_costs_an_election_or_a_session",),
    ),
    Bug(
        name="a-long-way-looks-like-silence-of-brokers",
        breaks="time that a test has pass fences no broker",
        source="docs/testing.md, Time",
        file="controller/brokers/sessions.py",
        old="                deadline_ms=session.deadline_ms + by_ms,\n",
        new="",
        caught_by=(f"{FAULTS}::test_no_way_of_any_length_costs_an_election_or_a_session",),
    ),
    Bug(
        name="a-fork-keeps-the-ports-of-nodes",
        breaks="a forked process keeps no port and no connection of a cluster",
        source="docs/testing.md, What goes wrong",
        file="testing/running.py",
        old="call_in_forks(_let_go_in_fork)\n",
        new="",
        caught_by=(
            "tests/unit/testing/test_bad_input.py::test_a_fork_keeps_no_port_and_no_connection_of_a_node",
        ),
    ),
    Bug(
        name="ports-of-a-server-that-never-started",
        breaks="a node that did not start leaves its ports free",
        source="grpc.aio keeps the ports of a server that was stopped before it started",
        file="rpc/server.py",
        old="            await self._server.start()\n        await self._server.stop(grace)",
        new="        await self._server.stop(grace)",
        caught_by=(
            "tests/unit/rpc/test_plain_callers.py::test_a_server_that_never_started_gives_its_port_back",
        ),
    ),
    Bug(
        name="a-leader-that-moved-is-not-looked-up-again",
        breaks="a request for a partition's leader goes to the one that leads when it arrives",
        source="Kafka 3.7: PartitionLeaderStrategy asks for metadata again",
        file="clients/kafka/cluster.py",
        old="self._ask_again | LEADER_MOVES if leads else self._ask_again",
        new="self._ask_again",
        caught_by=(
            "tests/unit/testing/test_troubles.py::test_messages_are_read_again_if_the_leader_moves_or_the_log_is_cut_meanwhile",
        ),
    ),
)
