"""Hundreds of seeds of whole clusters under faults, and the checks that make such a test meaningful."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.conftest import REPOSITORY
from tests.sim.combined import COMBINED_FROM
from tests.sim.data_load import DATA_FROM
from tests.sim.foreign.changes import CHANGES_FROM, JOINS_FROM
from tests.sim.foreign.quorum import MIXED_FROM
from tests.sim.foreign.world import FOREIGN_FROM
from tests.sim.kafka.plan import KAFKA_FROM
from tests.sim.load import LOADED_FROM
from tests.sim.marks import (
    REQUIRED,
    REQUIRED_WITH_CHANGES,
    REQUIRED_WITH_COMBINED,
    REQUIRED_WITH_COPIES,
    REQUIRED_WITH_DATA,
    REQUIRED_WITH_FOREIGN,
    REQUIRED_WITH_JOINING,
    REQUIRED_WITH_KAFKA,
    REQUIRED_WITH_LOAD,
    REQUIRED_WITH_MIXED,
    REQUIRED_WITH_VOTERS,
)
from tests.sim.older_copies import COPIES_FROM
from tests.sim.voters.plan import VOTERS_FROM
from tests.sim.world import run

SEEDS = 76
LOADED_SEEDS = 60
DATA_SEEDS = 25
COPIES_SEEDS = 20
VOTERS_SEEDS = 75
"""In each of two tests, so that both processors are used."""
MORE_VOTERS_FROM = VOTERS_FROM + VOTERS_SEEDS + 31
"""In the seeds before, no voter is removed alone while it is down."""
KAFKA_SEEDS = 8
COMBINED_SEEDS = 7
FOREIGN_SEEDS = 12
MIXED_FIRST, MIXED_SEEDS = MIXED_FROM + 12, 16
"""In the seeds before, Kafka's voters seldom lead."""
CHANGES_FIRST, CHANGES_SEEDS = CHANGES_FROM + 42, 24
"""These reach all that is rare with the fewest seeds."""
JOINS_FIRST, JOINS_SEEDS = JOINS_FROM + 7, 3
"""In the first of them a leader of Kafka's adds ours."""
ENDS_BY_ITSELF = JOINS_FROM + 71
"""A voter of Kafka's ends as only 3.9 does, and is formatted again."""
OTHER_HASH_SEED = "4711"
"""Other than that of this process, which is random."""


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("first", "count", "required"),
    [
        (0, SEEDS, REQUIRED),
        (LOADED_FROM, LOADED_SEEDS, REQUIRED_WITH_LOAD),
        (DATA_FROM, DATA_SEEDS, REQUIRED_WITH_DATA),
        (COPIES_FROM, COPIES_SEEDS, REQUIRED_WITH_COPIES),
        (VOTERS_FROM, VOTERS_SEEDS, REQUIRED_WITH_VOTERS),
        (MORE_VOTERS_FROM, VOTERS_SEEDS, REQUIRED_WITH_VOTERS),
        (KAFKA_FROM, KAFKA_SEEDS, REQUIRED_WITH_KAFKA),
        (COMBINED_FROM, COMBINED_SEEDS, REQUIRED_WITH_COMBINED),
        (FOREIGN_FROM, FOREIGN_SEEDS, REQUIRED_WITH_FOREIGN),
        (MIXED_FIRST, MIXED_SEEDS, REQUIRED_WITH_MIXED),
        (CHANGES_FIRST, CHANGES_SEEDS, REQUIRED_WITH_CHANGES),
        (JOINS_FIRST, JOINS_SEEDS, REQUIRED_WITH_JOINING),
    ],
    ids=[
        "bare",
        "loaded",
        "with data",
        "with older copies",
        "with voters",
        "with more voters",
        "with Kafka",
        "combined",
        "with Kafka's brokers",
        "with Kafka's voters",
        "with changing voters of Kafka's",
        "with controllers that join by themselves",
    ],
)
def test_no_law_is_broken_and_every_rare_state_is_reached(
    first: int, count: int, required: tuple[str, ...]
) -> None:
    marks: Counter[str] = Counter()
    failures: list[str] = []
    for seed in range(first, first + count):
        try:
            marks.update(run(seed).marks)
        except Exception as error:
            failures.append(f"seed {seed}: {type(error).__name__}: {error} (replay it: make sim SEED={seed})")
    assert not failures, "\n".join(failures)
    missing = [mark for mark in required if not marks[mark]]
    assert not missing, f"no seed reached: {missing}; reached: {sorted(marks)}"


@pytest.mark.parametrize(
    "seed",
    [
        *(17, LOADED_FROM + 7, DATA_FROM + 6, COPIES_FROM + 4, VOTERS_FROM, KAFKA_FROM + 2),
        *(FOREIGN_FROM, MIXED_FIRST, ENDS_BY_ITSELF),
    ],
)
def test_one_seed_is_one_run_whatever_the_hash_seed(seed: int) -> None:
    """The trace of everything that happened is the same in processes that order their sets differently."""
    assert os.environ.get("PYTHONHASHSEED", "random") != OTHER_HASH_SEED
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim", str(seed), "--quiet"],
        cwd=REPOSITORY,
        env={"PYTHONHASHSEED": OTHER_HASH_SEED, "PATH": ""},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert done.stdout == f"{run(seed)}\n"
