"""Under load everything stays as it is: memory, files, threads, what a commit costs, and what a reader is given.

Each program that is measured is a process of its own (`gauges.measure`), so its peaks are its own. Nothing here
depends on how fast a machine is.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import open_store
from tests.conftest import Root
from tests.proof.effort import SUMMARY
from tests.proof.load.gauges import MIB, Sample, available, growth, measure, needs_proc, trend
from tests.proof.load.partitions import TOUCHED

pytestmark = needs_proc

STORES = ["local"] if SUMMARY is None else ["local", "s3", "azure"]

Effort = Callable[[Any, Any], Any]
Figures = Counter[str]

# ---- a soak ----------------------------------------------------------------------------------------------------------

LIMITS = {
    "memory": 8 * MIB,
    "blocks": 2500,  # a manifest of the soak that is kept at each commit is some 40
    "files": 0,
    "threads": 0,
    "tasks": 0,
    "temporary": 0,
    "objects": 100,  # cleanup comes at any moment of a round, so some more or fewer are there after it
}
"""By how much what a process holds may differ between the second quarter of a soak and its end."""

SOCKETS = 16
"""Connections to a server, and what watches them: some more or fewer stay open for the next request."""


def grown(report: dict[str, Any], limits: dict[str, float]) -> dict[str, float]:
    """What grew by more than it may."""
    samples = [Sample(*one) for one in report["samples"]]
    ended, steady = growth(samples), trend(samples)
    return {name: ended[name] for name, limit in limits.items() if ended[name] > limit or steady[name] > limit}


@pytest.mark.parametrize("any_root", STORES, indirect=True)
def test_a_job_that_commits_and_cleans_up_for_long_holds_what_it_held(
    any_root: Root, effort: Effort, figures: Figures
) -> None:
    local = any_root.kind == "local"
    urls, options = [f"{any_root.url}/sync", f"{any_root.url}/asyncio"], any_root.storage_options or None
    size = effort({"rounds": 16}, {"seconds": 1200 if local else 180})
    report = measure("soak", urls=urls, options=options, **size)
    limits = LIMITS if local else LIMITS | {"files": SOCKETS, "tasks": SOCKETS}
    assert grown(report, limits) == {}
    assert report["wrong"] == 0
    assert report["reads"] > report["commits"] / 10
    assert report["swept"] > report["commits"], "what was retired was deleted meanwhile"
    figures["soak: commits"] += report["commits"]
    figures["soak: restores, bit for bit"] += report["reads"]
    figures["soak: wrong restores"] += report["wrong"]
    figures["soak: samples"] += len(report["samples"])
    memory = growth([Sample(*one) for one in report["samples"]])["memory"]
    figures[f"soak: KiB of growth, {any_root.kind}"] += round(memory / 1024)


LEAKS = {
    "keep_manifests": {"blocks"},
    "keep_bytes": {"memory"},
    "leave_files_open leave_spools leave_tasks leave_threads sweep_nothing": {
        *("files", "temporary", "tasks", "threads", "objects")
    },
}


@pytest.mark.parametrize("planted", LEAKS)
def test_the_soak_tells_of_a_leak(tmp_path: Path, planted: str, figures: Figures) -> None:
    leaks = planted.split()
    report = measure("soak", urls=[f"{tmp_path}/1", f"{tmp_path}/2"], options=None, rounds=12, planted=leaks)
    assert LEAKS[planted] <= grown(report, LIMITS).keys()
    figures["soak: planted leaks noticed"] += len(leaks)


# ---- very many partitions --------------------------------------------------------------------------------------------

METADATA = 2048
"""Bytes of `_latest`, manifest and segments for a partition that a commit touches, amortised."""

SEGMENTS = 14
"""Objects that a stack of segments grows to: a few of each size."""


NAMED = 256
"""Bytes of memory that verify takes for each partition of each checkpoint: it has all manifests in memory at once."""


@pytest.mark.parametrize("form", ["raw", "keyed"])
def test_what_ten_changed_partitions_cost_does_not_depend_on_how_many_there_are(
    tmp_path: Path, form: str, effort: Effort, figures: Figures
) -> None:
    few, many, commits = effort((600, 1500, 25), (1000, 10_000, 500))
    costs = []
    for count in (few, many):
        report = measure("partitions", folder=f"{tmp_path}/{count}", form=form, count=count, commits=commits)
        assert (report["wrong"], report["findings"], report["retired"]) == (0, 0, commits)
        assert report["metadata"] <= METADATA * TOUCHED * commits
        assert report["restore"].keys() == {"get"}
        assert report["restore"]["get"] <= 2 + SEGMENTS
        assert report["job"] < 32 * MIB + 16 * 1024 * count, "twice, with what a checker holds to compare"
        assert report["clean"] < 32 * MIB + 2 * 1024 * count, "however many checkpoints there are"
        assert report["verify"] < 32 * MIB + NAMED * count * commits
        costs.append(report["commits"])
    assert costs[0] == costs[1], "the same requests"
    assert costs[1][0] == {"put": 3, "swap": 1}, "a pack of all deltas, a segment, the manifest; and the pointer"
    figures[f"partitions: {form}"] += many
    figures[f"partitions: {form}, bytes of metadata for a changed one"] += report["metadata"] // (TOUCHED * commits)
    figures[f"partitions: {form}, requests of a commit that changes {TOUCHED}, at most"] += max(
        sum(cost.values()) for cost in costs[1]
    )
    for what in ("job", "verify", "clean"):
        figures[f"partitions: {form}, MiB at most: {what}"] += report[what] // MIB
    figures["partitions: wrong restores"] += report["wrong"]


# ---- one very large partition ----------------------------------------------------------------------------------------

LARGE = 2**31 + 17
"""Bytes that no signed 32-bit number counts."""

PIECES = {"local": 24 * MIB, "s3": 128 * MIB, "azure": 128 * MIB}
"""Memory for what is under way, however large the partition: pieces of files, parts of uploads and downloads."""

RAW_STEPS: dict[str, float] = {"save": 0, "restore": 1, "verify": 0, "export": 1}
"""How often each has the partition in memory, beside the bytes that the caller gave."""

KEYED_STEPS = {"save_keyed": 1.05, "restore_keyed": 2.1}
"""Saving has what it stores; restoring has that, and the state that it makes. Values are more than their bytes."""


@contextmanager
def emptied(*urls: str, options: dict[str, Any] | None) -> Iterator[None]:
    """Leaves nothing of what is written there: it is large."""
    try:
        yield
    finally:
        for store in (open_store(url, options) for url in urls):
            run_sync(store.delete([entry.path for entry in run_sync(store.list(""))]))
            run_sync(store.close())


def check_steps(root: Root, size: int, steps: dict[str, float], figures: Figures) -> None:
    if available() < 4 * size:
        pytest.skip(f"{available() // MIB:,} MiB of memory are free: a partition of {size // MIB:,} MiB needs more")
    options, copy = root.storage_options or None, f"{root.url}-copy"
    with emptied(root.url, copy, options=options):
        for step, times in steps.items():
            report = measure("partition", step=step, url=root.url, options=options, size=size, target=copy)
            assert report["right"], step
            assert report["peak"] <= times * size + PIECES[root.kind], step
            what = f"{step.replace('_', ' a ')} partition of {size // MIB:,} MiB"
            figures[f"percent in memory at most: {what}, {root.kind}"] += round(100 * report["peak"] / size)


@pytest.mark.parametrize("any_root", STORES, indirect=True)
def test_a_large_partition_is_in_memory_once_at_most(any_root: Root, effort: Effort, figures: Figures) -> None:
    check_steps(any_root, effort(64 * MIB + 17, LARGE), RAW_STEPS, figures)


@pytest.mark.parametrize("any_root", ["local"], indirect=True)
def test_a_large_partition_of_keyed_state_is_in_memory_twice_at_most(
    any_root: Root, effort: Effort, figures: Figures
) -> None:
    check_steps(any_root, effort(64 * MIB, 512 * MIB), KEYED_STEPS, figures)


# ---- very many checkpoints -------------------------------------------------------------------------------------------


def test_a_commit_on_a_long_history_costs_what_an_early_one_did(
    tmp_path: Path, effort: Effort, figures: Figures
) -> None:
    length = effort(150, 1000)
    report = measure("history", folder=str(tmp_path / "root"), length=length)
    (early, early_bytes), (last, last_bytes) = report["costs"]
    assert early == last == {"put": 2, "swap": 1}
    assert abs(last_bytes - early_bytes) <= 32, "but for how many digits it takes to say how long it took"
    assert report["restores"] == [{"get": 2}, {"get": 2}]
    assert report["listed"] == report["verified"] == length
    assert report["kept"] == report["expected"] == length - report["retired"]
    assert (report["wrong"], report["findings"]) == (0, 0)
    assert report["peak"] < 32 * MIB
    figures["history: checkpoints"] += length
    figures["history: requests of the last commit"] += sum(last.values())
    figures["history: bytes of its manifest and pointer"] += last_bytes
    figures["history: MiB at most, with a cleanup of all of them"] += report["peak"] // MIB
    figures["history: wrong restores"] += report["wrong"]


# ---- very many readers -----------------------------------------------------------------------------------------------

READERS = 64


@pytest.mark.parametrize(
    ("how", "grace"),
    [("threads", True), ("tasks", False)]
    if SUMMARY is None
    else [(how, grace) for how in ("threads", "tasks", "processes") for grace in (True, False)],
)
@pytest.mark.parametrize("any_root", STORES, indirect=True)
def test_readers_beside_a_writer_and_a_cleanup_get_what_was_committed(
    any_root: Root, how: str, grace: bool, effort: Effort, figures: Figures
) -> None:
    report = measure(
        "readers",
        url=any_root.url,
        options=any_root.storage_options or None,
        commits=effort(18, 120 if any_root.kind == "local" else 60),
        grace=effort(6, 30) if grace else 0,
        readers=READERS,
        how=how,
        processes=8,
    )
    assert (report["wrong"], report["wronged"]) == (0, 0)
    assert report["right"] > READERS
    assert report["deleted"] > 0
    figures[f"readers: {READERS} at once, restores bit for bit"] += report["right"]
    figures["readers: wrong restores"] += report["wrong"]
    figures["readers: refused within the grace period"] += report["wronged"]
    figures["readers: told to restore again, when it was over"] += report["outlived"]
    figures["readers: told that an old one is retired"] += report["not there"]
