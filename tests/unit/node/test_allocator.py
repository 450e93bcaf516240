"""The C library takes the settings for buffers, and the collector those for its pauses, in processes of their
own; another C library is left alone."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from metaquorum.node.process import keep_freed_buffers

PROGRAM = """
import resource
from metaquorum.node.process import keep_freed_buffers

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(200):
        bytes(bytearray(1024 * 1024))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

assert keep_freed_buffers()
faults()
print(faults())
"""


COLLECTIONS = """
import gc
import metaquorum.controller.server.main
from metaquorum.node.process import YOUNG_OBJECTS, keep_collections_short

keep_collections_short()
assert len(gc.get_objects()) < YOUNG_OBJECTS, "what was imported is looked at"
most = {0: 0, 1: 0}

def note(phase, info):
    if phase == "start":
        looked_at = sum(len(gc.get_objects(generation=each)) for each in range(info["generation"] + 1))
        most[info["generation"]] = max(most[info["generation"]], looked_at)

gc.callbacks.append(note)
kept = []
for number in range(150_000):
    cycle = []
    cycle.append(cycle)
    if number % 10 == 0:
        kept.append([cycle])
print(*most.values())
"""


def test_a_collection_looks_at_few_objects() -> None:
    """Of those that live on, each is looked at once or twice."""
    result = subprocess.run([sys.executable, "-c", COLLECTIONS], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    young, middle = map(int, result.stdout.split())
    assert young < 6_000 and 0 < middle < 40_000


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library has no mallopt")
def test_large_buffers_are_used_again() -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    # 400 buffers of 256 pages each would be 100,000 page faults.
    assert int(result.stdout) < 1_000


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert keep_freed_buffers() is False
