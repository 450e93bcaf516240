"""Data, groups and transactions compared with Kafka 3.7: three brokers get the recorded requests in order,
and their responses have the same fields except for the rules below.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from metaquorum.metadata.errors import ErrorCode
from tests.conftest import REPOSITORY
from tests.e2e.golden_frames import ORDER, Difference, Frame, codes, differences, recorded, scripted, split
from tests.e2e.golden_site import OFFSETS, TRANSACTIONS, Site, golden_site
from tests.e2e.processes import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.shared_data]

GOLDEN = "kafka-3.7-wire"
ALL_VERSIONS, ERRORS = "N-all-versions", "M-error-cases"
PYTHON = ("H-python-clients", "kp-(default|all|idem|gzip|txn|cons)|aio-(plain|gzip|idem|txn|read_.*)")
LIBRDKAFKA = ("G-librdkafka", "rd-(none|gzip|snappy|lz4|zstd|ts|txn|txc|fenced-.)")
SHORT_SEGMENTS = ("J-producing-for-logs", "j-.*")
"""Recordings, and the clients in them that wait for no other."""
COMPARED = frozenset(
    """
    Produce Fetch ListOffsets DeleteRecords OffsetForLeaderEpoch
    FindCoordinator JoinGroup SyncGroup Heartbeat LeaveGroup OffsetCommit OffsetFetch OffsetDelete
    DescribeGroups ListGroups DeleteGroups
    InitProducerId AddPartitionsToTxn AddOffsetsToTxn TxnOffsetCommit EndTxn WriteTxnMarkers
    DescribeProducers DescribeTransactions ListTransactions
    """.split()
)
OF_SCRIPTS = {"Fetch", "ListOffsets"}
"""Compared only in scripts: in a recording, what a client reads depends on when it sends the request."""
FEWEST = 600
"""The minimum number of exchanges that are compared."""
PASSING = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}
"""Kafka deferred a request with these codes, and its client retried it."""
RECORDED_SINCE_MS = 1_795_000_000_000
"""The clock in the captures was later than this; the records of their scripts are from 2023."""
FIRST_PRODUCE, FIRST_FETCH = 3, 4
"""The first versions that do more than refuse."""

OLD_VERSIONS = "versions from 0 on"
LATEST_TIERED = "ListOffsets 8 takes -5, the end of remote storage since version 9, for an early time"
OLD_LISTS = "ListOffsets 0 gives offsets of segments, by when their files changed"
PAGE = REPOSITORY / "docs" / "divergence.md"


@dataclass(frozen=True)
class Rule:
    """An allowed difference. `reason`: the first cell of a row of the page; or, `of_the_moment`, why the
    value differs in every run, or has no meaning."""

    apis: str
    path: str
    reason: str
    when: Callable[[Frame, Difference], bool]
    of_the_moment: bool = False

    def allows(self, frame: Frame, found: Difference) -> bool:
        fits = re.fullmatch(self.apis, frame.api) and re.fullmatch(self.path, found.path)
        return fits is not None and self.when(frame, found)


def both_are_recent(frame: Frame, found: Difference) -> bool:
    return bool(min(found.theirs, found.ours) > RECORDED_SINCE_MS)


def code_of(part: Any) -> int | None:
    """The error code of a response, or of a part of one; None: it has none."""
    code: int | None = getattr(part, "error_code", None)
    return code


RULES = (
    Rule(
        "Produce",
        r".*\.(error_code|base_offset)",
        OLD_VERSIONS,
        lambda frame, found: (
            frame.version < FIRST_PRODUCE and found.ours in {ErrorCode.UNSUPPORTED_VERSION, -1}
        ),
    ),
    Rule("Fetch", "", OLD_VERSIONS, lambda frame, found: frame.version < FIRST_FETCH and found.ours is None),
    Rule(
        "Produce",
        r".*\.(error_code|log_start_offset)",
        "null records in Produce: error -1",
        lambda frame, found: code_of(found.beside) == ErrorCode.UNKNOWN_SERVER_ERROR,
    ),
    Rule(
        "ListOffsets",
        r".*\.old_style_offsets",
        OLD_LISTS,
        lambda frame, found: found.theirs[:1] == found.ours,
    ),
    Rule(
        "ListOffsets",
        r".*\.error_code",
        OLD_LISTS,
        lambda frame, found: frame.version == 0 and found.ours == ErrorCode.UNSUPPORTED_VERSION,
    ),
    Rule(
        "ListOffsets",
        r".*\.(error_code|timestamp|offset|leader_epoch)",
        LATEST_TIERED,
        lambda frame, found: frame.version == 8 and found.ours in {ErrorCode.UNSUPPORTED_VERSION, -1},
    ),
    Rule(
        "Produce|FindCoordinator|DescribeProducers",
        r".*\.(batch_index_)?error_message",
        "texts of refusals are Kafka's; many have none",
        lambda frame, found: bool(found.ours) and code_of(found.beside) != ErrorCode.NONE,
    ),
    Rule(
        "DescribeProducers",
        r".*\.last_timestamp",
        "DescribeProducers: the last batch's timestamp",
        lambda frame, found: found.theirs < RECORDED_SINCE_MS < found.ours,
    ),
    Rule(
        "AddPartitionsToTxn",
        r".*\.partition_error_code",
        "AddPartitionsToTxn while markers are written: CONCURRENT_TRANSACTIONS at once",
        lambda frame, found: (
            (found.theirs, found.ours) == (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NONE)
        ),
    ),
    Rule("Produce", r".*\.log_append_time_ms", "a time", both_are_recent, of_the_moment=True),
    Rule("DescribeProducers", r".*\.last_timestamp", "a marker's time", both_are_recent, of_the_moment=True),
    Rule(
        "DescribeTransactions",
        r".*\.transaction_start_time_ms",
        "a time",
        both_are_recent,
        of_the_moment=True,
    ),
    Rule(
        "DescribeProducers",
        r".*\.coordinator_epoch",
        "how often a coordinator had begun",
        lambda frame, found: min(found.theirs, found.ours) >= 0,
        of_the_moment=True,
    ),
    Rule(
        "AddPartitionsToTxn|OffsetCommit",
        rf".*{re.escape(ORDER)}",
        "Kafka's order is that of a hash table",
        lambda frame, found: True,
        of_the_moment=True,
    ),
)
"""Each is needed."""


def exchanges(folder: Path, name: str, clients: str | None = None) -> list[Frame]:
    """Without what Kafka deferred. `clients`: of a recording, whose ids match."""
    path = folder / GOLDEN / f"{name}.jsonl.gz"
    found = scripted(path, COMPARED) if clients is None else recorded(path, COMPARED - OF_SCRIPTS, clients)
    return [each for each in found if code_of(each.answer) not in PASSING]


def converted(frames: list[Frame]) -> list[bytes]:
    """What Kafka stored for the message sets of old producers, as batches that can be produced."""
    read = next(each for each in frames if each.api == "Fetch" and each.version == FIRST_FETCH)
    records: bytes = read.answer.responses[0].partitions[0].records
    return [bytes(8) + each[8:] for each in split(bytes(records))][:FIRST_PRODUCE]


class Comparison:
    """Of the responses of the brokers of `site`."""

    def __init__(self, site: Site) -> None:
        self._replay = site.replay
        self.compared: Counter[str] = Counter()
        self.needed: set[Rule] = set()
        self.wrong: list[str] = []

    def compare_all(self, frames: list[Frame]) -> None:
        for frame in frames:
            self.compare(frame)

    def compare(self, frame: Frame) -> None:
        ours = self._answer(frame)
        self.compared[frame.api] += 1
        for found in differences(self._replay.translated(frame.answer), ours):
            rules = [each for each in RULES if each.allows(frame, found)]
            if len(rules) == 1:
                self.needed.update(rules)
            if not rules:
                values = f"{found.theirs!r:.150}, here {found.ours!r:.150}"
                self.wrong.append(f"{frame.api} {frame.version}, {frame.label!r}: {found.path}: {values}")

    def _answer(self, frame: Frame) -> Any:
        """Retried while markers are written, for which the client had waited."""

        def answered() -> tuple[Any] | None:
            ours = self._replay.ask(frame)
            early = ErrorCode.CONCURRENT_TRANSACTIONS in codes(ours) - codes(frame.answer)
            return None if early else (ours,)

        return wait_until(answered, "the markers of a transaction")[0]


def test_brokers_answer_as_kafkas_do(tmp_path: Path, shared_data: Path) -> None:
    every_version = exchanges(shared_data, ALL_VERSIONS)
    old_batches = converted(every_version)
    with golden_site(tmp_path) as site:
        comparison = Comparison(site)
        for frame in every_version:
            comparison.compare(frame)
            if frame.api == "Produce" and frame.version < FIRST_PRODUCE:
                site.produce(frame.node_id, "ver2", old_batches.pop(0))
        site.lead(OFFSETS, 1, (0, 1, 2))
        site.lead(TRANSACTIONS, 0, (0, 1, 2))
        comparison.compare_all(exchanges(shared_data, *PYTHON))
        site.lead(OFFSETS, 1, (2, 1, 0))
        comparison.compare_all(exchanges(shared_data, *LIBRDKAFKA))
        site.use_transactional_id()
        site.age()
        comparison.compare_all(exchanges(shared_data, ERRORS))
        comparison.compare_all(exchanges(shared_data, *SHORT_SEGMENTS))
    assert not comparison.wrong, "\n".join(comparison.wrong)
    assert comparison.compared.keys() == COMPARED
    assert comparison.compared.total() >= FEWEST, comparison.compared
    assert comparison.needed == set(RULES), f"nothing needs {set(RULES) - comparison.needed}"


def test_rules_are_rows_of_the_page() -> None:
    cells = {line.split("|")[1].strip() for line in PAGE.read_text().splitlines() if line.startswith("|")}
    assert not [rule.reason for rule in RULES if not rule.of_the_moment and rule.reason not in cells]
