"""Each figure beside what this machine allows: SHA-256, zstd, memory and the disk, measured in turn with it.

The limit of a figure is the slowest thing that it cannot do without, done by hand on the same bytes by as many threads
as there are processors, with nothing else around it. Reads come from the page cache on both sides.
"""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import zstandard

from benchmarks.contenders import sync_folder, write_synced
from benchmarks.driver_state import commit, keyed
from benchmarks.measure import Finding, Grid, Times, alternate, in_threads, timed
from benchmarks.stores import fill, folder, random_bytes
from checkpointer import Checkpointer, KeyedState
from checkpointer.codecs import keyed_codec

MIB = 1 << 20


class Rates:
    """Rows of a figure, its limit, and its share of it."""

    def __init__(self) -> None:
        self.rows: list[list[str]] = []

    def add(self, figure: str, limit: str, size: float, times: dict[str, Times], unit: str = "MiB/s") -> None:
        ours, allowed = times["ours"], times["limit"]
        rates = [f"{size / one.median:,.0f}" for one in (ours, allowed)]
        spread = f"{ours.spread:.0%} / {allowed.spread:.0%}"
        self.rows.append([figure, limit, f"{allowed.median / ours.median:.0%}", " / ".join(rates) + f" {unit}", spread])


def run(quick: bool) -> list[Finding]:
    repetitions, share = (3, 8) if quick else (7, 1)
    rates = Rates()
    _machine(rates, 256 * MIB // share, repetitions)
    _opaque(rates, 256 * MIB // share, repetitions)
    _keyed(rates, 1_000_000 // share, repetitions)
    _small(rates, 20 if quick else 60)
    columns = ["figure", "limit", "share", "rates", "spread"]
    return [Grid("Beside what the machine allows", columns, rates.rows)]


def _machine(rates: Rates, size: int, repetitions: int) -> None:
    """The disk beside memory: says which of the two a save waits for."""
    (data,) = random_bytes([size])
    with folder() as base:
        times = alternate(
            repetitions,
            ours=lambda: timed(lambda: write_synced(base / "file", data)),
            limit=lambda: timed(lambda: bytearray(data)),
        )
    rates.add("write a file and sync it, by hand", "copy it in memory", size / MIB, times)


def _opaque(rates: Rates, size: int, repetitions: int) -> None:
    pieces = 16
    contents = random_bytes([size // pieces] * pieces)
    with folder() as base:
        roots = (base / f"root-{number}" for number in range(10_000))

        def ours() -> float:
            with Checkpointer(next(roots)) as client:
                return timed(lambda: fill(client, contents))

        def by_hand(data: bytes, path: Path) -> None:
            hashlib.sha256(data).hexdigest()
            write_synced(path, data)
            sync_folder(base)

        paths = [base / f"by-hand-{number}" for number in range(pieces)]
        times = alternate(repetitions, ours=ours, limit=lambda: in_threads(by_hand, contents, paths))
        rates.add("save opaque partitions", "SHA-256, write and sync", size / MIB, times)
        with Checkpointer(base / "root-0") as client:

            def read() -> None:
                restored = client.restore()
                assert restored is not None
                found = [restored.operator("operator").partition(n) for n in range(pieces)]
                if found != [[content] for content in contents]:
                    raise AssertionError("what was restored is not what was saved")

            times = alternate(
                repetitions,
                ours=lambda: timed(read),
                limit=lambda: in_threads(lambda path: hashlib.sha256(path.read_bytes()).hexdigest(), paths),
            )
        rates.add("restore them, one after the other", "read and SHA-256, all at once", size / MIB, times)


def _keyed(rates: Rates, keys: int, repetitions: int) -> None:
    state = keyed(keys)
    len(state.to_dict())  # which packs what is live still
    raw = [_raw(part.data) for part in state._parts]
    size = sum(map(len, raw)) / MIB
    with folder() as base:
        roots = (base / f"root-{number}" for number in range(10_000))

        def ours() -> float:
            with Checkpointer(next(roots)) as client:
                return timed(lambda: commit(client, state))

        def compress(data: bytes) -> bytes:
            return zstandard.ZstdCompressor(level=keyed_codec.LEVEL).compress(data)

        times = alternate(repetitions, ours=ours, limit=lambda: in_threads(compress, raw))
        rates.add("save a keyed state", "zstd of its packed bytes", size, times)
        stored = [compress(data) for data in raw]

        def restored() -> KeyedState:
            found = Checkpointer(base / "root-0").restore()
            assert found is not None
            return found.keyed("state")

        if restored() != state:
            raise AssertionError("what was restored is not what was saved")
        decompress = zstandard.ZstdDecompressor
        times = alternate(
            repetitions,
            ours=lambda: timed(restored),
            limit=lambda: in_threads(lambda data: decompress().decompress(data), stored),
        )
        rates.add("restore it", "zstd of its stored bytes", size, times)


def _raw(part: dict[Any, bytes]) -> bytes:
    return zstandard.ZstdDecompressor().decompressobj().decompress(keyed_codec.encode(part)[0])


def _small(rates: Rates, commits: int) -> None:
    """A commit is an object and a manifest at once, then the pointer, each synced with its folder."""
    with folder() as base, Checkpointer(base / "root") as client:

        def ours() -> None:
            with client.begin() as checkpoint:
                checkpoint.snapshot("operator", 0, os.urandom(100))

        def write(name: str) -> None:
            write_synced(base / f"{name}.new", os.urandom(1000))
            os.replace(base / f"{name}.new", base / name)
            sync_folder(base)

        def by_hand(threads: ThreadPoolExecutor) -> None:
            list(threads.map(write, ("artifact", "manifest")))
            write("latest")

        with ThreadPoolExecutor(2) as threads:
            times = alternate(commits, ours=lambda: timed(ours), limit=lambda: timed(lambda: by_hand(threads)))
    rates.add("commit 100 bytes", "write and sync two files at once, then a third", 1, times, "commits/s")
