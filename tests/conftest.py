"""Shared test helpers: where the recorded logs live, and how a test says that they are absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def shared_data_path() -> Path | None:
    """The folder of recorded metadata logs, or None where it is not beside the checkout."""
    configured = os.environ.get("METAQUORUM_SHARED_DATA")
    path = Path(configured) if configured else REPOSITORY.parent / "shared" / "data"
    return path if path.is_dir() else None


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The recorded metadata logs; the test is skipped, saying why, where they are absent."""
    path = shared_data_path()
    if path is None:
        pytest.skip("recorded logs are absent: put them at ../shared/data or set METAQUORUM_SHARED_DATA")
    return path
