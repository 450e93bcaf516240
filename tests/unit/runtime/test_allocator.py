"""The C library takes the settings for buffers, in a process of its own; another library changes nothing."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from metaquorum.runtime.allocator import keep_freed_buffers

PROGRAM = """
import resource
from metaquorum.runtime.allocator import keep_freed_buffers

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(200):
        bytes(bytearray(1024 * 1024))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

assert keep_freed_buffers()
faults()
print(faults())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library has no mallopt")
def test_large_buffers_are_used_again() -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    # 400 buffers of 256 pages each would be 100,000 page faults.
    assert int(result.stdout) < 1_000


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert keep_freed_buffers() is False
