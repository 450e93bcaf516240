"""The option that writes the scripts' output anew: review the difference like code."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write the recorded output of tests/raft/*.txt anew"
    )
