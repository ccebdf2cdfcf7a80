"""Stores as somebody would forge them: any record changed, and everything above it sealed anew; and who touches what.

Nothing here is damage: every size and digest is right, so that only what a record says can be refused.
"""

import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zstandard

from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.manifests.json_text import dump, dump_sealed
from pyspark_checkpointer.manifests.model import CheckpointId, Json

GOLDEN = Path(__file__).parents[1] / "golden" / "v1" / "store"

Change = Callable[[dict[str, Json]], None]
Way = tuple[str | int, ...]
"""The way to a value within a JSON value; a last part of `Key` is the name of a field itself."""


class Key(str):
    __slots__ = ()


def copy(root: Path) -> Path:
    """A store with every kind of object, which the caller may spoil."""
    return Path(shutil.copytree(GOLDEN, root))


def forge(root: Path, record: str, change: Change) -> None:
    """Change what one record of the store says: "pointer", "manifest", "segment" or "catalog"."""
    latest = json.loads((root / "_latest").read_bytes())
    if record == "pointer":
        change(latest)
    elif record == "catalog":
        latest["catalog"] = _catalog(root, latest["catalog"], change)
    else:
        path = root / object_paths.manifest(CheckpointId.parse(latest["committed"]["id"]))
        manifest = json.loads(path.read_bytes())
        if record == "segment":
            row = manifest["operators"]["wide"]["segments"][-1]
            row[:] = _segment(root, row[0], change)
        else:
            change(manifest)
        path.write_bytes(dump(manifest))
        latest["committed"]["digest"] = sha256(path.read_bytes())
        latest["prepared"] = None
    latest.pop("digest")
    (root / "_latest").write_bytes(dump_sealed(latest))


def read(record: str) -> dict[str, Json]:
    """What a record of an honest store says."""
    seen: list[dict[str, Json]] = []
    with tempfile.TemporaryDirectory() as folder:
        forge(copy(Path(folder) / "store"), record, seen.append)
    return seen[0]


def _catalog(root: Path, ref: dict[str, str], change: Change) -> dict[str, str]:
    value = json.loads((root / ref["path"]).read_bytes())
    change(value)
    data = dump(value)
    owner = object_paths.owner(ref["path"])
    assert owner is not None
    path = object_paths.catalog(owner, sha256(data))
    (root / path).write_bytes(data)
    return {"path": path, "digest": sha256(data)}


def _segment(root: Path, old: str, change: Change) -> list[Json]:
    value = json.loads(zstandard.ZstdDecompressor().decompress((root / old).read_bytes()))
    change(value)
    raw = dump(value)
    data = zstandard.ZstdCompressor().compress(raw)
    owner = object_paths.owner(old)
    assert owner is not None
    path = object_paths.segment(owner, sha256(data))
    (root / path).write_bytes(data)
    return [path, len(data), len(raw), len(value.get("patches", ()))]


def texts(value: Json, at: Way = ()) -> Iterator[Way]:
    """The way to every text in a value, and to the name of every field; of a list only to its first two."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield (*at, Key(name))
            yield from texts(inner, (*at, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value[:2]):
            yield from texts(inner, (*at, index))
    elif isinstance(value, str):
        yield at


def putting(at: Way, text: str) -> Change:
    """Put another text there."""

    def change(value: Any) -> None:
        for part in at[:-1]:
            value = value[part]
        if isinstance(at[-1], Key):
            value[text] = value.pop(str(at[-1]))
        else:
            value[at[-1]] = text

    return change


# ---- who touches what ------------------------------------------------------------------------------------------------

_FOLLOWING = ("os.listdir", "os.scandir")
_NAMES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.truncate")

_touched: list[str] | None = None


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if _touched is None:
        return
    if event == "open":
        path, _, flags = arguments
        if isinstance(path, str):
            followed = not (flags or 0) & os.O_NOFOLLOW
            _touched.append(os.path.realpath(path) if followed else _unfollowed(path))
    elif event in _FOLLOWING:
        _touched.append(os.path.realpath(arguments[0]))
    elif event in _NAMES:
        _touched.extend(_unfollowed(path) for path in arguments[:2] if isinstance(path, str))


def _unfollowed(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    """Fail if anything in `folder` is opened, listed or changed meanwhile, by whatever name, in this process."""
    global _touched
    if _touched is None and not hasattr(untouched, "hooked"):
        sys.addaudithook(_note)  # for good; it does nothing between two uses
        untouched.hooked = True  # type: ignore[attr-defined]
    before = snapshot(folder)
    _touched = []
    try:
        yield
        inside = [path for path in _touched if path == str(folder) or path.startswith(f"{folder}/")]
        assert inside == []
    finally:
        _touched = None
    assert snapshot(folder) == before


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Mode, time of the last change, and bytes of everything in a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        data = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[str(path)] = (status.st_mode, status.st_mtime_ns, data)
    return found
