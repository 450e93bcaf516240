"""Mistakes in what voters remember of other directories: what counts, what is kept, what follows from it."""

from __future__ import annotations

from tests.planted.bug import Bug


def script(name: str) -> str:
    """One script of recorded output."""
    return f"tests/raft/test_scripts.py::test_script[{name}]"


MEMORY_BUGS = (
    Bug(
        name="memory-of-what-was-never-committed",
        breaks="a directory is held to what it acknowledged only as far as that is committed",
        source="docs/raft.md, Older copies",
        file="raft/memory.py",
        old="        offset = min(progress.highest_acked_offset, state.log.high_watermark)",
        new="        offset = progress.highest_acked_offset",
        caught_by=(script("acknowledged_and_dropped"),),
    ),
    Bug(
        name="forgetful-vote-counts",
        breaks="a candidate does not count the vote of a directory that forgot what it acknowledged",
        source="docs/raft.md, Older copies",
        file="raft/protocol/election.py",
        old="    granted = granted and not memory.refuse_vote(state, flight.to, _asked(flight), response)",
        new="    pass",
        caught_by=(script("forgetful_voter_does_not_count"),),
    ),
    Bug(
        name="memory-ends-with-the-leadership",
        breaks="what a leader learned is remembered when it no longer leads",
        source="docs/raft.md, Older copies",
        file="raft/protocol/transitions.py",
        old="        memory.fold(state, old.view)",
        new="        pass",
        caught_by=(script("forgetful_candidate_refused"),),
    ),
    Bug(
        name="memory-is-not-written",
        breaks="what directories acknowledged is written with the durable note",
        source="docs/raft.md, Older copies",
        file="raft/memory.py",
        old="    acknowledged = remembered(state) if durably else ()",
        new="    acknowledged = ()",
        caught_by=(script("forgetful_voter_does_not_count"),),
    ),
    Bug(
        name="refused-directory-goes-on",
        breaks="a node whose directory forgot what it acknowledged stops, and no longer votes",
        source="docs/raft.md, Older copies",
        file="raft/protocol/fetching.py",
        old="    if response.error is RaftError.INVALID_VOTER_KEY:",
        new="    if False:",
        caught_by=(script("forgetful_directory_refused"),),
    ),
    Bug(
        name="memory-of-the-node",
        breaks="another directory under the same node id has promised nothing",
        source="docs/raft.md, Older copies",
        file="raft/memory.py",
        old="    if progress is not None and progress.directory_id == directory_id:",
        new="    if progress is not None:",
        caught_by=(script("forgetful_late_fetch"),),
    ),
    Bug(
        name="acknowledgements-are-not-read",
        breaks="a start reads what directories had acknowledged",
        source="docs/raft.md, Older copies",
        file="raft/store.py",
        old="            acknowledged=self._known_committed.acknowledged,",
        new="            acknowledged=(),",
        caught_by=("tests/unit/node/test_replica_store.py",),
    ),
)
