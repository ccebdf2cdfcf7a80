"""Compare each figure with the limit of this machine: SHA-256, zstd, memory and the disk, measured in the same run.

The limit of a figure is the slowest step that it cannot do without. It is done by hand on the same bytes, by as many
threads as there are processors. Both sides read from the page cache.
"""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import zstandard

from benchmarks.contenders import sync_folder, write_synced
from benchmarks.driver_state import State, commit, keyed, save_by_hand, value
from benchmarks.measure import Finding, Grid, Times, alternate, in_threads, timed
from benchmarks.stores import fill, folder, random_bytes
from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.manifests import keyed_records

MIB = 1 << 20


class Rates:
    """Rows with a figure, its limit, and its share of the limit."""

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
    _opaque(rates, 256 * MIB // share, repetitions)
    _keyed(rates, 1_000_000 // share, repetitions)
    _small(rates, 20 if quick else 60)
    return [
        Grid("What the machine does", ["", "rate", "spread"], _machine(256 * MIB // share, repetitions)),
        Grid("Beside what the machine allows", ["figure", "limit", "share", "rates", "spread"], rates.rows),
    ]


def _machine(size: int, repetitions: int) -> list[list[str]]:
    """Return the rate of each step alone, on bytes that are half random, in as many threads as processors."""
    pieces = 16
    data = [b"".join((piece, bytes(len(piece)))) for piece in random_bytes([size // pieces // 2] * pieces)]
    compressed = [_compress(piece) for piece in data]
    with folder() as base:
        paths = [base / f"{number}" for number in range(pieces)]
        times = alternate(
            repetitions,
            write=lambda: in_threads(write_synced, paths, data),
            read=lambda: in_threads(Path.read_bytes, paths),
            copy=lambda: in_threads(bytearray, data),
            sha256=lambda: in_threads(lambda piece: hashlib.sha256(piece).digest(), data),
            compress=lambda: in_threads(_compress, data),
            decompress=lambda: in_threads(_decompress, compressed),
        )
    names = {
        "write": "write files and sync them",
        "read": "read them, from the page cache",
        "copy": "copy in memory",
        "sha256": "SHA-256",
        "compress": "zstd, compress",
        "decompress": "zstd, decompress",
    }
    return [
        [name, f"{size / MIB / times[key].median:,.0f} MiB/s", f"{times[key].spread:.0%}"]
        for key, name in names.items()
    ]


def _compress(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=keyed_records.ZSTD_LEVEL).compress(data)


def _decompress(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(data)


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
                if restored.operator("operator").read() != {n: [content] for n, content in enumerate(contents)}:
                    raise AssertionError("what was restored is not what was saved")

            times = alternate(
                repetitions,
                ours=lambda: timed(read),
                limit=lambda: in_threads(lambda path: hashlib.sha256(path.read_bytes()).hexdigest(), paths),
            )
        rates.add("restore them", "read and SHA-256", size / MIB, times)


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

        times = alternate(repetitions, ours=ours, limit=lambda: in_threads(_compress, raw))
        rates.add("save a keyed state", "zstd of its packed bytes", size, times)
        stored = [_compress(data) for data in raw]

        def restored() -> KeyedState:
            found = Checkpointer(base / "root-0").restore()
            assert found is not None
            return found.keyed("state")

        if restored() != state:
            raise AssertionError("what was restored is not what was saved")
        times = alternate(repetitions, ours=lambda: timed(restored), limit=lambda: in_threads(_decompress, stored))
        rates.add("restore it", "zstd of its stored bytes", size, times)
        _delta(rates, state, keys, base, repetitions)


def _delta(rates: Rates, state: KeyedState, keys: int, base: Path, repetitions: int) -> None:
    """Measure a delta of one key in a hundred, which is packed, compressed, hashed, written and synced by hand."""
    turns = iter(range(10_000))
    with Checkpointer(base / "deltas") as client:
        commit(client, state)

        def changes() -> State:
            turn = next(turns)
            return {f"N{number:07d}": value(number + turn + 1) for number in range(turn, keys, 100)}

        def ours() -> float:
            changed = changes()

            def work() -> None:
                state.update(changed)
                commit(client, state)

            return timed(work)

        def by_hand() -> float:
            changed = changes()
            return timed(lambda: save_by_hand(changed, base / "by-hand"))

        times = alternate(repetitions, ours=ours, limit=by_hand)
    rates.add("change 1 % of it and commit", "pack, zstd, SHA-256, write and sync", keys / 100_000, times, "thousand/s")


def _raw(part: dict[Any, bytes]) -> bytes:
    return zstandard.ZstdDecompressor().decompressobj().decompress(keyed_records.encode(part)[0])


def _small(rates: Rates, commits: int) -> None:
    """Measure a small commit: an object and a manifest at once, then the pointer, each synced with its folder."""
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
