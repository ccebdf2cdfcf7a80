"""Measure verifying and listing beside what the machine and the network allow.

Verifying is compared with SHA-256 alone, on the same bytes in memory and in as many threads as processors. On S3 it is
compared with the same number of concurrent GETs on the same connections. Listing is measured with added latency. The
slope is the number of requests that wait for one another.
"""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

from benchmarks.measure import Finding, Note, Target, Times, alternate, in_threads, timed
from benchmarks.stores import backend, fill, folder, history, move_away, random_bytes, s3_server
from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.checkpoint.verify import MAX_CONCURRENT_READS
from pyspark_checkpointer.runtime import run_sync
from tests.servers import ServerUnavailableError

MIB = 1 << 20
LATENCY = 0.05


def run(quick: bool) -> list[Finding]:
    repetitions = 3 if quick else 9
    share = 4 if quick else 1
    findings: list[Finding] = []
    for size, total, limit in [(16 * MIB, 256 * MIB, 1 / 0.8), (MIB + MIB // 10, 128 * MIB, 1.2)]:
        findings += _verify_local(size, total // size, limit, repetitions)
    with folder() as base:
        findings.append(_list("local", str(base / "root"), None, 300 if quick else 1000, repetitions))
    try:
        with s3_server() as server:
            url, options = server.url, server.storage_options
            findings.append(_verify_s3(f"{url}/verify", options, 100 // share, repetitions))
            findings.append(_list("S3", f"{url}/list", options, 300 if quick else 1000, 2 if quick else 4))
    except ServerUnavailableError as unavailable:
        findings.append(Note(f"{unavailable}: nothing was measured on S3"))
    return findings


def _verify_local(size: int, count: int, limit: float | None, repetitions: int) -> list[Target]:
    with folder() as base, Checkpointer(base / "root") as client:
        contents = random_bytes([size] * count)
        fill(client, contents)
        files = list(base.rglob("*.raw"))
        times = alternate(
            repetitions,
            ours=lambda: timed(lambda: _verify(client, size * count)),
            sha256=lambda: in_threads(_hash, contents),
            by_hand=lambda: in_threads(_read_and_hash, files),
        )
    what = f"verify, local, objects of {size / MIB:.1f} MiB"
    return [
        _target(f"{what} / SHA-256 in memory", times["ours"], times["sha256"], limit, size * count),
        _target(f"{what} / read and SHA-256 by hand", times["ours"], times["by_hand"], None, size * count),
    ]


def _verify(client: Checkpointer, size: int) -> None:
    found = client.verify()
    if not found or found.bytes < size:
        raise AssertionError(f"verified something else: {found}")


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _read_and_hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(MIB):
            digest.update(piece)
    return digest.hexdigest()


def _verify_s3(root: str, options: dict[str, Any], count: int, repetitions: int) -> Target:
    size = MIB + MIB // 10
    with Checkpointer(root, options) as client:
        fill(client, random_bytes([size] * count))
        files = run_sync(backend(client)._connection.get())  # s3fs, with the very connections that verify uses
        paths = [path for path in files.find(root) if path.endswith(".raw")]
        times = alternate(
            repetitions,
            ours=lambda: timed(lambda: _verify(client, size * count)),
            gets=lambda: timed(lambda: run_sync(_get_all(files, paths, size))),
        )
    return _target(
        "verify, S3, objects of 1.1 MiB / GETs alone by s3fs", times["ours"], times["gets"], 1 / 0.9, size * count
    )


async def _get_all(files: Any, paths: list[str], size: int) -> None:
    left = iter(paths)

    async def work() -> None:
        for path in left:
            if len(await files._cat_file(path)) != size:
                raise AssertionError(f"{path}: got something else")

    await asyncio.gather(*(work() for _ in range(MAX_CONCURRENT_READS)))


def _list(where: str, root: str, options: dict[str, Any] | None, checkpoints: int, repetitions: int) -> Target:
    history(root, options, checkpoints)
    with Checkpointer(root, options) as near, Checkpointer(root, options) as far:
        move_away(far, LATENCY)
        for client in (near, far):  # which also connects them
            if len(client.list_checkpoints()) != checkpoints:
                raise AssertionError("listed something else")
        times = alternate(
            repetitions, near=lambda: timed(near.list_checkpoints), far=lambda: timed(far.list_checkpoints)
        )
    # Two long times of nearly the same length: the shortest of each, since noise only ever adds to them.
    far_seconds, near_seconds = min(times["far"].seconds), min(times["near"].seconds)
    trips = (far_seconds - near_seconds) / LATENCY
    seconds = f"{far_seconds:.2f} s with {LATENCY * 1000:.0f} ms more for each request, {near_seconds:.2f} s without"
    spread = f"spread {times['far'].spread:.0%} / {times['near'].spread:.0%}"
    return Target(f"list {checkpoints:,} checkpoints, {where}: round trips in a row", trips, 10, f"{seconds}, {spread}")


def _target(question: str, mine: Times, other: Times, limit: float | None, size: int) -> Target:
    rates = f"{size / MIB / mine.median:,.0f} / {size / MIB / other.median:,.0f} MiB/s"
    return Target(
        question, mine.median / other.median, limit, f"{rates}, spread {mine.spread:.0%} / {other.spread:.0%}"
    )
