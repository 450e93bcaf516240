"""How the repository's own tools end: with their exit code, and without a word where the reader of their
output went away (`make walk | head`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NoReturn

from metaquorum.platforms import reader_is_gone

EXIT_PIPE = 141
"""As a shell says it of a program that SIGPIPE ended."""


def end(main: Callable[[], int]) -> NoReturn:
    """Runs a tool and ends the process. A broken pipe that is not standard output's is raised."""
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        if _is_read():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_PIPE)
    sys.exit(code)


def _is_read() -> bool:
    return not reader_is_gone(sys.stdout.fileno())
