"""axe, which finds what a screen reader cannot read and weak eyes cannot see; `make kafkajs` installs it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Browser

_RUN = """
return axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations.map((each) => [
  each.id, each.nodes.map((node) => `${node.target.join(" ")}: ${node.failureSummary}`)]))
"""


def axe_source() -> str:
    """Its script, for a page; skips the test if it is not installed."""
    folders = [*os.environ.get("NODE_PATH", "").split(os.pathsep), f"{sys.prefix}/node/node_modules"]
    for folder in filter(None, folders):
        script = Path(folder) / "axe-core" / "axe.min.js"
        if script.is_file():
            return script.read_text()
    pytest.skip("axe is not installed: run `make kafkajs`, which needs npm")


def violations(browser: Browser) -> Any:
    """What it finds in the page that is shown, in which its script was run."""
    return browser.run(_RUN)
