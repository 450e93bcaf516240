"""Seeds of the simulator as tests that judge mutants: short runs of bare, loaded and data clusters.

Not part of `make test`, which runs many more of them.
"""

from __future__ import annotations

import pytest

from tests.sim.data_load import DATA_FROM
from tests.sim.load import LOADED_FROM
from tests.sim.world import run

SEEDS = (*range(10), *range(LOADED_FROM, LOADED_FROM + 4), *range(DATA_FROM, DATA_FROM + 3))


@pytest.mark.parametrize("seed", SEEDS)
def test_no_law_is_broken(seed: int) -> None:
    assert run(seed).marks
