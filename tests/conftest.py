"""Shared test helpers: where the recorded logs live, and how a test says that they are absent."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from metaquorum.node import local_nodes
from tests import suite

collect_ignore = ["sample_project"]
"""Its tests run where only the wheel is installed (e2e/test_installed.py)."""

# A busy machine takes its time for an example, or to draw one: neither is a failure. Time is for tests/bench.
_PATIENT: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("patient", **_PATIENT)
settings.register_profile("ci", derandomize=True, **_PATIENT)
# In CI the same examples every time: what is new is found while somebody works on it.
settings.load_profile("ci" if os.environ.get("CI") else "patient")

# Images and records are many small objects that live: looking through them for circles at every 700 costs
# a seventh of the processor time. Processes set their own (node/process.py).
gc.set_threshold(50_000, 20, 100)


def _ignored_here(number: int, frame: FrameType | None) -> None:
    """Nothing happens."""


# A background job of a script is started with SIGINT ignored, under nohup SIGHUP is, and every process
# inherits that from the one that started it. What has a handler here is ignored here all the same, and has
# its default in children: they can be interrupted, however the tests were started.
for _number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _ignored_here)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Scripts (tests/raft, tests/scripts) and stories (tests/stories) hold recorded output."""
    parser.addoption("--rewrite", action="store_true", help="write the recorded output of tests/*/*.txt anew")


# Tests start hundreds of processes: without bytecode on disk each of them compiles the same modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Each worker draws its ports from a part of its own: nodes that are killed leave theirs free for a while.
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
local_nodes.PORTS = local_nodes.PORTS[suite.part() :: len(suite.PARTS)][_worker::_workers]

REPOSITORY = Path(__file__).resolve().parent.parent


def shared_data_path() -> Path | None:
    """The folder of recorded metadata logs, or None where it is not beside the checkout."""
    configured = os.environ.get("METAQUORUM_SHARED_DATA")
    path = Path(configured) if configured else REPOSITORY.parent / "shared" / "data"
    return path if path.is_dir() else None


_ABSENT = "recorded logs are absent: put them at ../shared/data or set METAQUORUM_SHARED_DATA"
needs_shared_data = pytest.mark.skipif(shared_data_path() is None, reason=_ABSENT)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The recorded metadata logs; the test is skipped, saying why, where they are absent."""
    path = shared_data_path()
    if path is None:
        pytest.skip(_ABSENT)
    return path


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command that sets up logging inside a test must not write into what the next test captures."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)
    for handler in [one for one in root.handlers if type(one) is logging.StreamHandler]:
        root.removeHandler(handler)


@pytest.fixture(autouse=True, scope="module")
def no_client_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Clients of librdkafka whose objects form a circle live until Python looks for circles. Until then they
    print, into what a later test captures, that the brokers of an earlier one refuse connections."""
    yield
    if "confluent_kafka" in sys.modules and request.node.get_closest_marker("e2e") is not None:
        gc.collect()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadfile":
        return None
    from tests.lanes import Lanes

    return Lanes(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Workers that compile the same file at the same time each take all of it, which in a fresh clone is half
    of what collecting takes. So each begins elsewhere, and finds what the others have compiled."""
    folders = [REPOSITORY / each for each in session.config.args]
    if _workers == 1 or not all(map(Path.is_dir, folders)):
        return
    ignored = [REPOSITORY / each for each in session.config.getoption("ignore")]
    files = [path for folder in folders for path in sorted(folder.glob("**/test_*.py"))]
    names = [str(path) for path in files if not any(each in path.parents for each in ignored)]
    first = len(names) * _worker // _workers
    session.config.args = names[first:] + names[:first]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Python before 3.11.8 and 3.12.2 may fail to parse a source while another thread prints a traceback
    (gh-106905). pytest parses one to show a failure, and would end the whole run; so the failure is shown
    without sources."""
    try:
        return (yield)
    except SystemError:
        option = item.config.option
        style, option.tbstyle = option.tbstyle, "native"
        try:
            return pytest.TestReport.from_item_and_call(item, call)
        finally:
            option.tbstyle = style


E2E_TIMEOUT_S = 900
"""Processes start slowly where twenty others want the same cores; the limit, as that of all other tests in
pyproject.toml, only ends what hangs."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.parts)  # as if all workers began at the beginning
    gc.collect()
    gc.freeze()  # what was collected lives as long as the worker
    for item in items:
        if item.get_closest_marker("e2e") is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(E2E_TIMEOUT_S))
