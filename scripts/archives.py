"""Compare two builds of the same files, and name each member of a wheel or sdist that differs."""

import hashlib
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

Member = dict[str, object]
"""What an archive says of a member, and the digest of its content."""


def read_members(path: Path) -> list[tuple[str, Member]]:
    """Return the members of a wheel or sdist, in their order."""
    return list(_read_zip(path) if zipfile.is_zipfile(path) else _read_tar(path))


def _read_zip(path: Path) -> Iterator[tuple[str, Member]]:
    with zipfile.ZipFile(path) as archive:
        for one in archive.infolist():
            yield (
                one.filename,
                {
                    "mode": oct(one.external_attr >> 16),
                    "time": one.date_time,
                    "system": one.create_system,
                    "compression": one.compress_type,
                    "content": hashlib.sha256(archive.read(one)).hexdigest(),
                },
            )


def _read_tar(path: Path) -> Iterator[tuple[str, Member]]:
    with tarfile.open(path) as archive:
        for one in archive:
            file = archive.extractfile(one) if one.isfile() else None
            yield (
                one.name,
                {
                    "mode": oct(one.mode),
                    "time": one.mtime,
                    "owner": (one.uid, one.gid, one.uname, one.gname),
                    "type": (one.type, one.linkname),
                    "content": hashlib.sha256(file.read() if file else b"").hexdigest(),
                },
            )


def compare_folders(first: Path, second: Path) -> list[str]:
    """Return a line for each difference between the files of two folders; none if all are the same bytes."""
    ones, others = ({path.name: path for path in folder.iterdir()} for folder in (first, second))
    lines = [f"{name}: only one of the builds made it" for name in sorted(ones.keys() ^ others.keys())]
    for name in sorted(ones.keys() & others.keys()):
        lines += [f"{name}: {line}" for line in compare_archives(ones[name], others[name])]
    return lines


def compare_archives(first: Path, second: Path) -> list[str]:
    """Return a line for each difference between two archives; none if they are the same bytes."""
    if first.read_bytes() == second.read_bytes():
        return []
    ones, others = read_members(first), read_members(second)
    return (
        list(_compare_members(dict(ones), dict(others)))
        or list(_compare_order([name for name, _ in ones], [name for name, _ in others]))
        or ["the members are the same, and the bytes around them differ: look at headers and at the compression"]
    )


def _compare_members(ones: dict[str, Member], others: dict[str, Member]) -> Iterator[str]:
    for name in sorted(ones.keys() | others.keys()):
        if name not in ones or name not in others:
            yield f"{name} is in the {'second' if name in others else 'first'} build alone"
            continue
        for what, value in ones[name].items():
            if value != others[name][what]:
                yield f"{what} of {name} is {value} in the first build and {others[name][what]} in the second"


def _compare_order(ones: list[str], others: list[str]) -> Iterator[str]:
    for number, (one, other) in enumerate(zip(ones, others, strict=False), 1):
        if one != other:
            yield f"member {number} is {one} in the first build and {other} in the second"
            return
