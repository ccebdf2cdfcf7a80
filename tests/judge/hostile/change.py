"""Draw a store with one change."""

from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.judge.hostile.forgery import Forgery


@dataclass(frozen=True, slots=True)
class Hostile:
    kind: str
    files: dict[str, bytes]
    """Those that are new or other ones."""


def files_of(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def hostile(files: dict[str, bytes], random: Random) -> Hostile:
    """A store with one change."""
    forged = Forgery(files, random)
    kind = forged.change()
    forged.seal()
    changed = {path: data for path, data in forged.files.items() if files.get(path) != data}
    return Hostile(kind, changed)
