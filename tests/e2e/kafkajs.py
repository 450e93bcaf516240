"""Starts kafkajs: finds what `make kafkajs` installed, or skips the test."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).with_name("kafkajs_driver.js")


@functools.cache
def _environment() -> dict[str, str] | str:
    """The environment for node, or why there is none."""
    node = shutil.which("node")
    if node is None:
        return "there is no node: install Node.js 16 or newer with npm, then run `make kafkajs`"
    folders = [os.environ.get("NODE_PATH", ""), str(Path(sys.prefix) / "node" / "node_modules")]
    environment = {
        **os.environ,
        "NODE_PATH": os.pathsep.join(filter(None, folders)),
        "KAFKAJS_NO_PARTITIONER_WARNING": "1",
    }
    script = "require('node:timers/promises'); require('kafkajs'); require('kafkajs-snappy')"
    probe = subprocess.run([node, "-e", script], env=environment, capture_output=True, check=False)
    why = "kafkajs is not installed: run `make kafkajs`, with Node.js 16 or newer"
    return why if probe.returncode else environment


def node_environment() -> dict[str, str]:
    """With the modules of `make kafkajs`, or those of NODE_PATH; skips the test if there are none."""
    found = _environment()
    if isinstance(found, str):
        pytest.skip(found)
    return found
