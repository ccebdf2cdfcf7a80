"""Measure a cleanup that deletes nine tenths of 100,000 objects: requests, time and memory.

It is compared with the same work by hand. In a folder, this is a walk and an unlink of each file that is known to be
dead, without any check: the limit of the disk. On S3 it is a listing and bulk deletions of a tenth as many objects, on
the same server.
"""

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.measure import Finding, Note, Target
from benchmarks.stores import backend, folder, s3_server
from pyspark_checkpointer import Checkpointer, RetentionPolicy
from pyspark_checkpointer.manifests.model import SNAPSHOT, Artifact, CheckpointId, Manifest, Operator
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage.base import ListedObject, ListingPage, Store
from tests.servers import ServerUnavailableError

POLICY = RetentionPolicy(grace=timedelta(0))
PARTITIONS = 100
DEAD = 9
"""Dead objects for each live one."""

BULKS = 900
"""Objects that one request has to delete on average, at least."""


def objects(client: Checkpointer, live: int) -> Iterator[tuple[CheckpointId, dict[str, bytes], list[str]]]:
    """Commit checkpoints that need `live` objects in all.

    Return the objects that each checkpoint needs, and those that none needs.
    """
    for number in range(live // PARTITIONS):
        checkpoint = client.new_id()
        chains, found, dead = {}, {}, []
        for partition in range(PARTITIONS):
            data = b"%d %d" % (number, partition)
            digest = hashlib.sha256(data).hexdigest()
            path = f"artifacts/op/{partition}/{checkpoint}.snapshot.{digest}.raw"
            found[path] = data
            chains[partition] = (Artifact(path, SNAPSHOT, 0, len(data), len(data), len(data), 1, digest),)
            for copy in range(DEAD):
                wrong = hashlib.sha256(data + b"%d" % copy).hexdigest()
                dead.append(f"artifacts/op/{partition}/{checkpoint.sequence:010d}-0badcafe.snapshot.{wrong}.raw")
        yield checkpoint, found, dead
        base = run_sync(client.session.base())
        operators = {"op": Operator(PARTITIONS, "explicit", "raw", chains)}
        client.save_manifest(Manifest(checkpoint, parent=base.parent, operators=operators))
        client.update_latest(checkpoint)


def fill_folder(root: Path, live: int) -> Checkpointer:
    client = Checkpointer(root)
    for _, found, dead in objects(client, live):
        for path in (*found, *dead):
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(found.get(path, b"dead"))
    return client


def fill_store(client: Checkpointer, live: int) -> list[str]:
    store, all_dead = client.session.store, []

    async def put(some: dict[str, bytes]) -> None:
        await asyncio.gather(*(store.put(path, data) for path, data in some.items()))

    for _, found, dead in objects(client, live):
        run_sync(put(found | dict.fromkeys(dead, b"dead")))
        all_dead += dead
    return all_dead


class Counting:
    """A backend that counts its bulk deletions and pages. Nothing below it retries or waits."""

    def __init__(self, client: Checkpointer) -> None:
        store = backend(client)
        self.calls: dict[str, int] = {}
        real = store._call

        async def call(method: str, **arguments: Any) -> Any:
            self.calls[method] = self.calls.get(method, 0) + 1
            return await real(method, **arguments)

        store._call = call


def on_folder(live: int) -> list[Target]:
    with folder() as path:
        client = fill_folder(path / "a", live)
        start = time.perf_counter()
        plan = client.plan(POLICY)
        planned = time.perf_counter()
        done = client.apply(plan)
        applied = time.perf_counter()
        fill_folder(path / "b", live)
        began = time.perf_counter()
        for top, _, names in os.walk(path / "b"):
            for name in names:
                os.stat(os.path.join(top, name))
                if "0badcafe" in name:
                    os.unlink(os.path.join(top, name))
        hand = time.perf_counter() - began
        total = live * (DEAD + 1)
        ours = applied - start
        share = (planned - start) / ours
        detail = f"{done.deleted.objects:,} of {total:,} deleted; {share:.0%} of the time is planning"
        return [Target("cleanup: plan and apply in a folder / walk and unlink by hand", ours / hand, None, detail)]


def on_s3(live: int) -> list[Target]:
    with s3_server() as server:
        client = Checkpointer(f"{server.url}/a", server.storage_options, concurrency=32)
        fill_store(client, live)
        counting = Counting(client)
        began = time.perf_counter()
        done = client.clean(POLICY)
        ours = time.perf_counter() - began
        requests = counting.calls["delete_objects"]
        other = Checkpointer(f"{server.url}/b", server.storage_options, concurrency=32)
        dead = fill_store(other, max(PARTITIONS, live // 10))
        began = time.perf_counter()
        run_sync(_by_hand(other.session.store, dead))
        hand = (time.perf_counter() - began) * done.deleted.objects / len(dead)
        allowed = done.deleted.objects / BULKS
        client.close()
        other.close()
        return [
            Target("cleanup on S3 / listing and deleting by hand, for each object", ours / hand, None, ""),
            Target(
                "cleanup on S3: requests to delete / one for 900 objects",
                requests / allowed,
                1.0,
                f"{requests} for {done.deleted.objects:,} objects",
            ),
        ]


async def _by_hand(store: Store, dead: list[str]) -> None:
    await store.list("")
    for start in range(0, len(dead), 4000):
        some = dead[start : start + 4000]
        await asyncio.gather(*(store.delete(some[at : at + 1000]) for at in range(0, len(some), 1000)))


def memory(total: int) -> int:
    """Return the peak memory in KiB of a plan over `total` objects, in a process of its own."""
    program = f"from benchmarks.cleanup import plan_made_up; plan_made_up({total})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return int(json.loads(done.stdout))


def plan_made_up(total: int) -> None:
    """Plan a cleanup of a folder with a made-up listing, and print the peak memory.

    So a million objects need not be written.
    """
    with folder() as path:
        client = fill_folder(path, PARTITIONS)
        store: Any = client.session.store
        real = store.list_page

        async def list_page(prefix: str, more: Any = None) -> ListingPage:
            if more is None:
                page: ListingPage = await real(prefix)
                return ListingPage(page.entries, 0)
            entries = [
                ListedObject(f"artifacts/op/{n % 100}/0000000001-0badcafe.snapshot.{n:064x}.raw", 4)
                for n in range(more, min(more + 1000, total))
            ]
            return ListingPage(entries, more + 1000 if more + 1000 < total else None)

        store.list_page = list_page
        plan = client.plan(POLICY)
        rows = sum(1 for _ in plan)
        assert rows >= total
        # Of this program alone: what getrusage says begins with what the process that started it had.
        (peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
        print(peak.split()[1])


def run(quick: bool) -> list[Finding]:
    live = 100 if quick else 10_000
    small, large = (10_000, 20_000) if quick else (10_000, 1_000_000)
    few, many = memory(small), memory(large)
    try:
        s3: list[Finding] = [*on_s3(live)]
    except ServerUnavailableError as unavailable:
        s3 = [Note(f"{unavailable}: cleanup was not measured on S3")]
    return [
        *on_folder(live),
        *s3,
        Target(
            f"cleanup: memory of a plan over {large:,} objects / over {small:,}",
            many / few,
            1.1,
            f"{many >> 10} / {few >> 10} MiB",
        ),
    ]
