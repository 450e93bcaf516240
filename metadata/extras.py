"""What the base installation lacks, and the one line that says how to install it.

Imports none of them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

EXTRA_OF: Mapping[str, str] = {
    "confluent_kafka": "clients",
    "re2": "patterns",
    "rich": "watch",
    "jwt": "oauth",
    "cryptography": "oauth",
    "pandas": "pipeline",
    "pyarrow": "pipeline",
    "pyspark": "pipeline",
    "starlette": "console",
    "uvicorn": "console",
}
"""The extra with each module that is imported late; pyproject.toml says what the extra installs."""


def is_installed(module: str) -> bool:
    """Whether a module can be imported. Does not import it."""
    return importlib.util.find_spec(module) is not None


def missing_module(error: ImportError) -> str | None:
    """What to do about an import that failed because an extra is not installed; None for any other."""
    module = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or module not in EXTRA_OF:
        return None
    return f"{module} is not installed; install it with: {install_command(module)}"


def install_command(module: str) -> str:
    """The command that installs the extra with a module."""
    return f"pip install 'metaquorum[{EXTRA_OF[module]}]'"
