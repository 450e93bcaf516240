"""A disk that ignores case, as macOS and Windows do by default: a name keeps the case of its creation."""

from __future__ import annotations

from metaquorum.storage.disk.interface import join, name_of, parent_of
from metaquorum.testing.faulty_disk import FaultyDisk
from metaquorum.testing.faulty_file import normal_path


class CaseIgnoringDisk(FaultyDisk):
    """Finds each part of a path however it is written."""

    def _normal(self, path: str) -> str:
        plain = normal_path(path)
        if plain in ("/", "."):
            return plain
        parent, wanted = self._normal(parent_of(plain)), name_of(plain).lower()
        there = [name_of(each) for each in self._names.inside(parent) if name_of(each).lower() == wanted]
        return join(parent, there[0] if there else name_of(plain))
