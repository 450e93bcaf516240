"""A few attacks on one site, beside other tests. `make attacks` runs all with many seeds, and stricter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attacks.catalogue import ATTACKS
from tests.attacks.judge import LATENCY_BESIDE_TESTS_S, Judge
from tests.attacks.site import attacked_site

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

CHOSEN = (
    "idle-controller-grpc",
    "refill-broker-grpc",
    "slow-quorum",
    "idle-clients",
    "junk-clients",
    "junk-open",
    "refill-metrics",
    "batch-zstd",
    "arrays",
)
"""What runs with every change: under two minutes."""


@pytest.fixture(scope="module", name="judge")
def fixture_judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with (
        attacked_site(tmp_path_factory.mktemp("attacks")) as site,
        Judge(site, LATENCY_BESIDE_TESTS_S) as judge,
    ):
        yield judge


@pytest.mark.parametrize("name", CHOSEN)
def test_a_node_withstands(judge: Judge, name: str) -> None:
    verdict = judge.judge(ATTACKS[name], 1)
    assert not verdict.problems, verdict.text()
