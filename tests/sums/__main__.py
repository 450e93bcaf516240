"""`python -m tests.sums STORY [TOOL]`: the answers behind the sums of a story, to compare two commits."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.closed_pipe import end
from tests.sums.survey import Survey, names, text_of


def main() -> int:
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in names():
        print(f"usage: python -m tests.sums STORY [TOOL]; stories: {' '.join(names())}", file=sys.stderr)
        return 2
    story, tool = sys.argv[1], sys.argv[2] if len(sys.argv) == 3 else None
    text = text_of(story)
    if story.startswith("seed-"):
        print(text)
    with tempfile.TemporaryDirectory(prefix="sums-") as home:
        for answer in Survey(text, Path(home)).answers():
            if tool in (None, answer.tool):
                print(f"{answer.node}: log {' '.join(answer.words)}")
                print("\n".join(answer.lines))
    return 0


if __name__ == "__main__":
    end(main)
