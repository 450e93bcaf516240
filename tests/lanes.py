"""Which worker of pytest-xdist runs which tests: `--dist loadfile`, as conftest.py has it.

End-to-end tests wait for processes most of their time, all others compute. So one worker of five to nine
begins with those that compute, while the others wait; whose kind has run out helps with the other.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

PROCESSES = ("tests/e2e/", "tests/attacks/")
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
        return folder if folder.startswith(PROCESSES) else path

    def _assign_work_unit(self, node: WorkerController) -> None:
        number = int(node.gateway.id.removeprefix("gw"))
        computes = number < self.numnodes // 5
        wanted = (scope for scope in self.workqueue if scope.startswith(PROCESSES) != computes)
        if (first := next(wanted, None)) is not None:
            self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)
