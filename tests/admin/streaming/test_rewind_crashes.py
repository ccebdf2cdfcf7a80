"""Rewind and fork queries, stopped before and after each request, with a model of Spark.

The state is what the query has read: up to the offset of its last batch. So a start is right where the state and the
offsets that Spark would go on from are equal, whatever happened before.
"""

import functools
import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.admin.streaming import log_edit, log_plan
from pyspark_checkpointer.errors import CheckpointError
from pyspark_checkpointer.testing import Faults, injected
from pyspark_checkpointer.testing.faults import CrashError, Request
from tests.admin.streaming.spark_model import LAST, Query, history
from tests.proof.planted import Planted
from tests.servers import Server

TO = 1

Points = Callable[[int], list[tuple[int, bool]]]
"""Of so many requests, those at which to die: before one, or after it."""

Effort = Callable[[Points, Points], Points]


def everywhere(requests: int) -> list[tuple[int, bool]]:
    return [(number, after) for number in range(1, requests + 1) for after in (False, True)]


def after_each(requests: int) -> list[tuple[int, bool]]:
    """What is left before a request is what was left after the one before it."""
    return [(number, True) for number in range(1, requests + 1)]


def after_some(requests: int) -> list[tuple[int, bool]]:
    return after_each(requests)[::3]


def after_few(requests: int) -> list[tuple[int, bool]]:
    return after_each(requests)[::61]


@dataclass(frozen=True)
class Place:
    """Where the state and Spark's checkpoint are, side by side: a folder or a bucket. Spark's model runs on copies."""

    folder: Path
    bucket: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def new_root(self) -> str:
        name = uuid.uuid4().hex
        return f"{self.bucket}/{name}" if self.bucket else str(self.folder / name)

    def client(self, root: str) -> Checkpointer:
        return Checkpointer(root, self.options)

    def fill(self, template: Query, root: str) -> None:
        for source, target in ((template.root, root), (str(template.spark), f"{root}-spark")):
            if self.bucket:
                self._s3.put(f"{source}/", f"{target}/", recursive=True)
            else:
                shutil.copytree(source, target)

    def copy(self, root: str) -> Query:
        copy = str(self.folder / f"copy-{uuid.uuid4().hex}")
        for source, target in ((root, copy), (f"{root}-spark", f"{copy}-spark")):
            if self.bucket:
                self._s3.get(f"{source}/", f"{target}/", recursive=True)
            else:
                shutil.copytree(source, target)
        return Query(copy)

    def files(self, root: str) -> dict[str, str]:
        """Return the files of Spark's checkpoint."""
        return (self.copy(root) if self.bucket else Query(root)).files()

    @functools.cached_property
    def _s3(self) -> Any:
        return fsspec.filesystem("s3", **self.options, use_listings_cache=False)

    def crash_points(self, work: "Work", template: Query, points: Points) -> Iterator[str]:
        """Yield the root that each crash of the work leaves."""
        requests = len(self._play(work, template, Faults())[1])
        assert requests > 10
        for number, after in points(requests):
            faults = Faults()
            faults.crash(number, after=after)
            yield self._play(work, template, faults)[0]
            shutil.rmtree(self.folder)

    def _play(self, work: "Work", template: Query, faults: Faults) -> tuple[str, list[Request]]:
        root = self.new_root()
        self.fill(template, root)
        with injected(faults), suppress(CrashError):
            work(self, root)
        return root, faults.requests


def go_back(place: Place, root: str) -> None:
    with place.client(root) as ck:
        ck.rewind(f"{root}-spark", to=f"epoch={TO}")


def undo(place: Place, root: str) -> None:
    with place.client(root) as ck:
        ck.undo_rewind(f"{root}-spark")


Work = Callable[[Place, str], None]


def made(work: Work, folder: Path) -> Query:
    """Return the query that the work finds."""
    root = str(folder / "root")
    history(root)
    if work is undo:
        go_back(Place(folder), root)
        for _ in range(2):
            Query(root).run(step=7)
    return Query(root)


def interrupt(place: Place, work: Work, template: Query, points: Points) -> None:
    """Stop it at each request; start the query then, and finish the work, in either order."""
    old, new = (LAST, TO) if work is go_back else (TO + 2, LAST)
    goes_on = new + 1 if work is go_back else LAST  # which Spark had not finished, and repeats
    refused = 0
    for root in place.crash_points(work, template, points):
        started = place.copy(root)
        nothing_is_destroyed(template, started)
        batch = started.run()  # checks that what it read is what the state has
        assert batch in (None, old, old + 1, goes_on)
        work(place, root)
        finished = place.copy(root)
        restored = Checkpointer(finished.root).restore()
        assert restored is not None
        assert restored.epoch == new
        nothing_is_destroyed(template, finished)
        work(place, root)
        assert place.files(root) == finished.files(), "done is done"
        assert [finished.run(), finished.run()] == [goes_on, goes_on + 1]
        if batch is None:  # what somebody tried to start meanwhile is no obstacle
            refused += 1
            work(Place(place.folder), started.root)
            assert started.run() == goes_on
    assert refused > 2 or points is after_few


def nothing_is_destroyed(before: Query, now: Query) -> None:
    """Check that each file is where it was, or was kept by a rewind under its name."""
    for path, text in before.files().items():
        places = [now.spark / path, *now.spark.glob(f"rewound/*/{path}*")]
        assert text in {place.read_text() for place in places if place.exists()}, path


@pytest.fixture
def folder(tmp_path: Path) -> Place:
    (tmp_path / "place").mkdir()
    return Place(tmp_path / "place")


@pytest.fixture
def bucket(tmp_path: Path, s3_server: Server) -> Place:
    (tmp_path / "place").mkdir()
    return Place(tmp_path / "place", f"{s3_server.url}/{uuid.uuid4().hex}", s3_server.storage_options)


@pytest.mark.parametrize("work", [go_back, undo])
def test_wherever_a_rewind_stops_a_start_is_right_or_refused_and_a_second_call_finishes(
    folder: Place, tmp_path: Path, work: Work, effort: Effort
) -> None:
    interrupt(folder, work, made(work, tmp_path), effort(after_some, everywhere))


@pytest.mark.parametrize("work", [go_back, undo])
def test_so_it_is_on_a_store_of_objects(bucket: Place, tmp_path: Path, work: Work, effort: Effort) -> None:
    interrupt(bucket, work, made(work, tmp_path), effort(after_few, everywhere))


PLANTED = (
    (go_back, Planted("the oldest is cut first", log_plan.plan_log, "sorted(files, reverse=True)", "sorted(files)")),
    (
        go_back,
        Planted(
            "what is cut is lost", log_edit.apply_log_plan, 'await _copy_aside(store, f"{kept_in}{path}", data)', "pass"
        ),
    ),
    (
        go_back,
        Planted(
            "commits stay",
            log_plan.plan_log,
            "((COMMITS, log.commits), (OFFSETS, log.offsets))",
            "((OFFSETS, log.offsets),)",
        ),
    ),
    (undo, Planted("nothing is put back", log_edit.apply_log_plan, "in plan.write.items():", "in ():")),
)


@pytest.mark.parametrize(("work", "planted"), PLANTED, ids=[planted.name for _, planted in PLANTED])
def test_a_rewind_without_one_of_its_rules_is_found(
    folder: Place, tmp_path: Path, work: Work, planted: Planted
) -> None:
    template = made(work, tmp_path)
    with planted(), pytest.raises((AssertionError, CheckpointError, FileNotFoundError)):
        interrupt(folder, work, template, after_some)


def fork(place: Place, root: str) -> None:
    with place.client(root) as ck:
        copy = f"{root}-copy"
        ck.fork(f"epoch={TO}", copy, f"{copy}-spark", place.options, spark_checkpoint=f"{root}-spark")


def interrupt_fork(place: Place, template: Query, points: Points) -> None:
    """Stop it at each request; start the copy too soon then, and finish the fork."""
    for root in place.crash_points(fork, template, points):
        if not place.bucket:
            start_too_soon(Query(f"{root}-copy"))
        fork(place, root)
        fork(place, root)
        query, copy = place.copy(root), place.copy(f"{root}-copy")
        assert (query.files(), query.read) == (template.files(), template.read)
        assert copy.read == (TO + 1) * 10
        ids = [json.loads((each.spark / "metadata").read_text())["id"] for each in (query, copy)]
        assert ids[0] != ids[1]
        assert [copy.run(step=3) for _ in range(2)] == [TO + 1, TO + 2]
        assert [query.run() for _ in range(2)] == [LAST, LAST + 1]
        assert (copy.read, query.read) == ((TO + 1) * 10 + 6, (LAST + 2) * 10)


def start_too_soon(copy: Query) -> None:
    """Start a copy that is not complete: it is refused, or repeats what it has.

    What Spark writes then is no obstacle later.
    """
    if (copy.spark / "metadata").exists() and not (copy.spark / "commits" / str(TO)).exists():
        with suppress(FileNotFoundError):  # Spark's own refusal: the offsets of the batch before are missing
            assert copy.run() in (None, TO)


def test_wherever_a_fork_stops_a_second_call_finishes_it(folder: Place, tmp_path: Path, effort: Effort) -> None:
    interrupt_fork(folder, made(fork, tmp_path), effort(after_some, everywhere))


def test_so_it_is_with_objects(bucket: Place, tmp_path: Path, effort: Effort) -> None:
    interrupt_fork(bucket, made(fork, tmp_path), effort(after_few, everywhere))
