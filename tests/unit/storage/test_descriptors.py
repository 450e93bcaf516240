"""The reserve of file descriptors helps where none is free, and hides no other error."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from metaquorum.storage.disk.descriptors import Descriptors


def failing(*codes: int) -> Callable[[], str]:
    """A call that fails once with each of these errors, and then opens a file."""
    left = list(codes)

    def call() -> str:
        if left:
            raise OSError(left.pop(0), "scripted")
        return "opened"

    return call


@pytest.mark.parametrize("shortage", [errno.EMFILE, errno.ENFILE])
def test_only_a_shortage_is_tried_again(shortage: int) -> None:
    reserve = Descriptors()
    for codes, code in (([errno.ENOENT], errno.ENOENT), ([shortage, errno.EIO], errno.EIO)):
        with pytest.raises(OSError) as caught:
            reserve.use(failing(*codes))
        assert caught.value.errno == code
    assert reserve.used == 1
    assert reserve.use(failing(shortage)) == "opened"
    assert reserve.used == 2
