"""Which tests one worker of pytest-xdist runs: `--dist loadfile`, as conftest.py has it."""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.suite import WAITING

ONE_BY_ONE = "tests/sim/"
"""Here one test may take a minute, so those of a file are shared. Were every test handed out by itself, the
process that does so would take half a minute more."""


class Lanes(LoadScopeScheduling):
    """Files, in the order in which they are collected."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        """Tests of one file share what is made once for it, end-to-end tests a cluster of processes; those of
        a folder of end-to-end tests a Spark session."""
        path = nodeid.split("::", 1)[0]
        if path.startswith(ONE_BY_ONE):
            return nodeid
        folder = path.rpartition("/")[0]
        return folder if folder.startswith(WAITING) and folder not in WAITING else path
