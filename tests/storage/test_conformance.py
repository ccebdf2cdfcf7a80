"""The contract of a store, tested on every kind of store."""

import asyncio
import hashlib
import random
import re
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import fsspec.asyn
import pytest

from pyspark_checkpointer import Checkpointer, RetentionPolicy, runtime
from pyspark_checkpointer.errors import CorruptionError, IllegalArgumentError
from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import (
    SWAP_LIMIT,
    Blob,
    ListedObject,
    ObjectExistsError,
    ObjectNotFoundError,
    PreconditionFailedError,
    Store,
)
from pyspark_checkpointer.storage.base import SinkRead, WriteLeftover
from pyspark_checkpointer.storage.conditional_write_check import probe
from pyspark_checkpointer.storage.encryption.data_keys import stored_size
from pyspark_checkpointer.storage.encryption.store import EncryptedStore
from pyspark_checkpointer.storage.request_path import Traffic, counted
from tests.storage.conftest import CONDITIONAL, PLAIN, Place

MIB = 1 << 20


def too_large(path: str, limit: int, found: int, store: Store) -> str:
    """Return the pattern of the error of an object that is too large, whose stored sizes it tells."""
    if isinstance(store, EncryptedStore):
        limit, found = stored_size(path, limit), stored_size(path, found)
    return f"{path}: expected at most {limit} bytes, found {found}"


def test_an_object_is_read_as_it_was_written(store: Store) -> None:
    data = bytes(range(256)) * 100
    run_sync(store.put("artifacts/a/0/x", data))
    assert run_sync(store.get("artifacts/a/0/x")).data == data


@pytest.mark.parametrize("of", [bytes, bytearray, memoryview])
def test_anything_that_holds_bytes_is_written(store: Store, of: type) -> None:
    run_sync(store.put("x", of(b"content")))
    assert run_sync(store.get("x")).data == b"content"


def test_an_empty_object(store: Store) -> None:
    run_sync(store.put("x", b""))
    assert run_sync(store.get("x")).data == b""
    assert run_sync(store.get("x", limit=0)).data == b""
    assert run_sync(store.get_range("x", 0, 5)) == b""
    assert run_sync(store.list("")) == [ListedObject("x", 0)]


@pytest.mark.parametrize("limit", [None, 0])
@pytest.mark.parametrize("data", [b"", b"content"])
def test_a_read_tells_the_time_where_the_store_has_a_clock(place: Place, data: bytes, limit: int | None) -> None:
    store = place.open()
    run_sync(store.put("x", data))
    blob = run_sync(store.get("x", limit=None if limit is None else limit + len(data)))
    if place.kind in ("s3", "azure", "gcs", "databricks"):
        assert blob.at == pytest.approx(time.time(), abs=60)
    else:
        assert blob.at is None


def test_two_reads_of_one_version_are_equal() -> None:
    earlier, later = Blob(b"1", "tag", 1.0), Blob(b"1", "tag", 2.0)
    assert earlier == later
    assert hash(earlier) == hash(later)
    assert repr(later) == "Blob(tag='tag')"


def test_a_second_put_is_refused_and_changes_nothing(store: Store) -> None:
    run_sync(store.put("x", b"first"))
    if store.fencing or "generic" in store.url:
        with pytest.raises(ObjectExistsError, match="x: exists already"):
            run_sync(store.put("x", b"second"))
    assert run_sync(store.get("x")).data == b"first"


@pytest.mark.parametrize("of", [bytes, memoryview])
def test_a_big_object(store: Store, of: type) -> None:
    data = bytes(range(251)) * (36 * MIB // 251)  # above the size that goes up in one request
    run_sync(store.put("big", of(data)))
    assert run_sync(store.get("big", limit=len(data))).data == data
    assert run_sync(store.get_range("big", 20 * MIB, 1000)) == data[20 * MIB : 20 * MIB + 1000]
    assert run_sync(store.list("")) == [ListedObject("big", len(data))]
    with pytest.raises(CorruptionError, match=too_large("big", 1000, len(data), store)):
        run_sync(store.get("big", limit=1000))
    with pytest.raises(ObjectExistsError):
        run_sync(store.put("big", of(data)))


class Pieces:
    """A sink that keeps its pieces, and the threads that fed it."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.threads: set[str] = set()

    def update(self, piece: bytes, /) -> None:
        self.pieces.append(bytes(piece))
        self.threads.add(threading.current_thread().name)


@pytest.mark.parametrize("size", [0, 1, 5 * MIB, 17 * MIB])
def test_an_object_goes_into_a_sink_in_order_and_off_the_loop(store: Store, size: int) -> None:
    data = random.Random(size).randbytes(size)
    run_sync(store.put("x", data))
    sink = run_sync(store.read_into("x", Pieces, limit=size))
    assert b"".join(sink.pieces) == data
    assert fsspec.asyn.iothread[0].name not in sink.threads
    assert run_sync(store.read_into("x", hashlib.sha256)).hexdigest() == sha256(data)
    if size:
        with pytest.raises(CorruptionError, match=too_large("x", size - 1, size, store)):
            run_sync(store.read_into("x", Pieces, limit=size - 1))
    with pytest.raises(ObjectNotFoundError, match=r"artifacts/[\w-]+/0/y: not found"):
        run_sync(store.read_into("artifacts/a/0/y", Pieces))


def test_several_reads_into_sinks_are_answered_each_by_itself(store: Store) -> None:
    contents = {"a": b"1", "b": b"22", "c": b"333"}
    for path, data in contents.items():
        run_sync(store.put(path, data))
    traffic = Traffic()

    async def read() -> list[Any]:
        with counted(traffic):
            return await store.read_each_into([SinkRead(path, hashlib.sha256, 2) for path in ("a", "b", "c", "d")])

    *found, large, missing = run_sync(read())
    assert [sink.hexdigest() for sink in found] == [sha256(b"1"), sha256(b"22")]
    assert isinstance(large, CorruptionError)
    assert re.search(too_large("c", 2, 3, store), str(large))
    assert isinstance(missing, ObjectNotFoundError)
    stored = [stored_size("a", size) if isinstance(store, EncryptedStore) else size for size in (1, 2)]
    assert (traffic.requests["get"], traffic.bytes_read) == (4, sum(stored))


@pytest.mark.kinds("local", "s3", "azure", "gcs", "databricks")
def test_a_sink_is_handed_a_large_object_little_by_little(store: Store) -> None:
    run_sync(store.put("x", bytes(36 * MIB)))
    assert max(map(len, run_sync(store.read_into("x", Pieces)).pieces)) <= 32 * MIB


def test_nothing_is_found_where_nothing_is(store: Store) -> None:
    for _ in range(2):
        with pytest.raises(ObjectNotFoundError, match=r"artifacts/[\w-]+/0/x: not found"):
            run_sync(store.get("artifacts/a/0/x"))
        with pytest.raises(ObjectNotFoundError, match=r"artifacts/[\w-]+/0/x: not found"):
            run_sync(store.get_range("artifacts/a/0/x", 0, 5))
        assert run_sync(store.list("")) == []
        assert run_sync(store.list("artifacts/")) == []
        run_sync(store.put("artifacts/a/0/y", b""))
        run_sync(store.delete(["artifacts/a/0/y"]))


def test_a_folder_is_no_object(store: Store) -> None:
    run_sync(store.put("artifacts/a/0/x", b"data"))
    with pytest.raises(ObjectNotFoundError):
        run_sync(store.get("artifacts/a"))
    with pytest.raises(ObjectNotFoundError):
        run_sync(store.get("artifacts/a/0/x/y"))


def test_the_limit_is_the_size_that_still_passes(store: Store) -> None:
    run_sync(store.put("x", b"12345"))
    assert run_sync(store.get("x", limit=5)).data == b"12345"
    for limit in (4, 0):
        with pytest.raises(CorruptionError, match=too_large("x", limit, 5, store)):
            run_sync(store.get("x", limit=limit))


@pytest.mark.parametrize(
    ("offset", "length", "expected"),
    [(0, 3, b"012"), (3, 4, b"3456"), (8, 5, b"89"), (9, 1, b"9"), (10, 1, b""), (500, 7, b""), (0, 99, b"0123456789")],
)
def test_a_range_ends_where_the_object_ends(store: Store, offset: int, length: int, expected: bytes) -> None:
    run_sync(store.put("x", b"0123456789"))
    assert run_sync(store.get_range("x", offset, length)) == expected


NAMES = [
    "artifacts/a%20b/0/x",
    "artifacts/a%2Fb/0/x",
    "artifacts/%E2%82%AC/0/x",
    "artifacts/a+b~c.d-e_f/0/x",
    "artifacts/a b/0/x",
    "artifacts/€ ü/0/x",
    "artifacts/a/0/0000000001-00c0ffee.snapshot.0123456789abcdef.msgpack+zstd",
    "artifacts/100%/0/x",
    "artifacts/a&b=c;d/0/x#y?z",
]


def test_names_come_back_as_they_were_given(store: Store) -> None:
    for number, name in enumerate(NAMES):
        run_sync(store.put(name, b"%d" % number))
    assert run_sync(store.list("")) == [ListedObject(name, 1) for name in sorted(NAMES)]
    assert [run_sync(store.get(name)).data for name in NAMES] == [b"%d" % n for n in range(len(NAMES))]
    run_sync(store.delete(NAMES))
    assert run_sync(store.list("")) == []


@pytest.mark.parametrize("path", ["", "/x", "x/", "a//b", "../x", "a/../../x", "./x", "a/.", "a\0b", "a\\b"])
def test_a_path_that_no_layout_makes_is_refused(store: Store, path: str) -> None:
    for call in (
        store.get(path),
        store.get_range(path, 0, 1),
        store.read_into(path, hashlib.sha256),
        store.put(path, b""),
        store.compare_and_swap(path, b"", None),
    ):
        with pytest.raises(IllegalArgumentError, match="not a path inside a store"):
            run_sync(call)
    assert run_sync(store.list("")) == []


def test_a_listing_holds_what_starts_with_the_prefix(store: Store) -> None:
    paths = [
        "_latest",
        "artifacts/a/0/x",
        "artifacts/a/1/x",
        "artifacts/a/10/x",
        "artifacts/ab/0/x",
        "manifests/1.json",
    ]
    for path in reversed(paths):
        run_sync(store.put(path, b"123"))
    folders = ("", "artifacts/", "artifacts/a/", "artifacts/a/1/", "manifests/", "none/", "artifacts/a/0/x/")
    for prefix in (*folders, "artifacts/a/1", "manifests/1", "manifests/2", "art"):
        expected = [ListedObject(path, 3) for path in paths if path.startswith(prefix)]
        assert run_sync(store.list(prefix)) == expected


@pytest.mark.kinds("memory", "local", "s3", "databricks", "generic", "generic-objects")  # azure, gcs: test_cloud.py
def test_a_long_listing_comes_in_pages(place: Place) -> None:
    store = place.open(concurrency=64)
    paths = [f"a/{number % 7}/{number:04d}" for number in range(1100)]

    async def write() -> None:
        await asyncio.gather(*(store.put(path, b"") for path in paths))

    run_sync(write())
    one_page = place.kind in ("databricks", "generic", "generic-objects")
    found, more, pages = [], None, 0
    while True:
        page = run_sync(store.list_page("a/", more))
        found += [entry.path for entry in page.entries]
        more, pages = page.more, pages + 1
        assert len(page.entries) <= 1000 or one_page
        if more is None:
            break
    assert sorted(found) == sorted(paths)
    assert pages >= 2 or one_page
    assert [entry.path for entry in run_sync(store.list("a/3/"))] == sorted(p for p in paths if p.startswith("a/3/"))


def test_folders_are_those_directly_inside(store: Store) -> None:
    for path in ("a/1/x", "a/2/y/z", "a/file", "b/x", "_latest"):
        run_sync(store.put(path, b"1"))
    assert list(run_sync(store.folders(""))) == ["a/", "b/"]
    assert list(run_sync(store.folders("a/"))) == ["a/1/", "a/2/"]
    assert list(run_sync(store.folders("a/2/"))) == ["a/2/y/"]
    assert list(run_sync(store.folders("a/1/"))) == []
    assert list(run_sync(store.folders("none/"))) == []


def test_a_listing_is_never_stale(place: Place) -> None:
    one, other = place.open(), place.open()
    for number in range(3):
        run_sync(one.put(f"manifests/{number}", b""))
        assert len(run_sync(other.list("manifests/"))) == number + 1
    run_sync(other.delete(["manifests/0"]))
    assert [entry.path for entry in run_sync(one.list(""))] == ["manifests/1", "manifests/2"]


def test_a_root_does_not_see_its_neighbours(place: Place) -> None:
    if place.kind == "memory":
        pytest.skip("roots in memory are told apart by their whole URL")
    neighbour = replace(place, url=place.url + "-2").open()
    # An encrypted root inside would have keys of its own.
    inside = replace(place, url=place.url + "/inside", encryption=None).open()
    store = place.open()
    run_sync(neighbour.put("x", b""))
    assert run_sync(store.list("")) == []
    run_sync(store.put("inside/y", b"1"))
    assert [entry.path for entry in run_sync(inside.list(""))] == ["y"]


def test_what_is_deleted_is_gone_and_what_is_not_there_is_no_error(store: Store) -> None:
    run_sync(store.delete([]))
    run_sync(store.delete(["artifacts/a/0/x", "y"]))
    run_sync(store.put("artifacts/a/0/x", b""))
    run_sync(store.put("y", b""))
    run_sync(store.put("z", b""))
    run_sync(store.delete(["artifacts/a/0/x", "never", "y"]))
    assert run_sync(store.list("")) == [ListedObject("z", 0)]
    run_sync(store.put("y", b"again"))
    assert run_sync(store.get("y")).data == b"again"


def test_many_are_deleted_at_once(store: Store) -> None:
    async def put_all() -> None:
        await asyncio.gather(*(store.put(f"a/{number}", b"") for number in range(50)))

    run_sync(put_all())
    paths = [f"a/{number}" for number in range(1001 if store.url.startswith("s3") else 257)]
    run_sync(store.delete(paths))  # more than one request takes
    assert run_sync(store.list("")) == []


def test_a_swap_replaces_the_version_it_expects_and_no_other(store: Store) -> None:
    first = run_sync(store.compare_and_swap("_latest", b"1", None))
    assert run_sync(store.get("_latest")).version == first
    second = run_sync(store.compare_and_swap("_latest", b"2", first))
    assert second != first
    for stale in (first, None, '"0123"'):
        with pytest.raises(PreconditionFailedError, match="_latest: was changed by somebody else"):
            run_sync(store.compare_and_swap("_latest", b"3", stale))
    blob = run_sync(store.get("_latest"))
    assert (blob.data, blob.version) == (b"2", second)
    assert "data" not in repr(blob)


def test_a_swap_on_a_version_of_what_is_not_there_is_refused(store: Store) -> None:
    version = run_sync(store.compare_and_swap("_latest", b"1", None))
    run_sync(store.delete(["_latest"]))
    with pytest.raises(PreconditionFailedError):
        run_sync(store.compare_and_swap("_latest", b"2", version))
    assert run_sync(store.list("")) == []
    run_sync(store.compare_and_swap("_latest", b"3", None))


def test_what_was_put_can_be_swapped(store: Store) -> None:
    run_sync(store.put("progress/a", b"1"))
    version = run_sync(store.get("progress/a")).version
    run_sync(store.compare_and_swap("progress/a", b"2", version))
    assert run_sync(store.get("progress/a")).data == b"2"


@pytest.mark.kinds(*PLAIN)  # an encrypted one has some bytes less
def test_an_object_too_large_to_swap(store: Store) -> None:
    with pytest.raises(IllegalArgumentError, match="too many to swap"):
        run_sync(store.compare_and_swap("_latest", bytes(SWAP_LIMIT + 1), None))
    version = run_sync(store.compare_and_swap("_latest", bytes(SWAP_LIMIT), None))
    run_sync(store.compare_and_swap("_latest", b"small", version))


@pytest.mark.usefixtures("whole_probe")
@pytest.mark.kinds(*CONDITIONAL)
def test_the_probe_finds_the_store_honest_and_leaves_nothing(store: Store) -> None:
    run_sync(probe(store))
    assert run_sync(store.list("")) == []


@pytest.mark.kinds("local", "s3", "azure", "gcs", "databricks", "generic", "generic-objects")
def test_without_fencing_everything_else_works(place: Place) -> None:
    store = place.open(fencing="none")
    assert not store.fencing
    run_sync(probe(store))
    run_sync(store.put("x", b"1"))
    version = run_sync(store.compare_and_swap("_latest", b"1", None))
    version = run_sync(store.compare_and_swap("_latest", b"2", version))
    with pytest.raises(PreconditionFailedError):
        run_sync(store.compare_and_swap("_latest", b"3", "stale"))
    with pytest.raises(PreconditionFailedError):
        run_sync(store.compare_and_swap("_latest", b"3", None))
    assert run_sync(store.get("_latest")).version == version
    assert run_sync(store.list("")) == [ListedObject("_latest", 1), ListedObject("x", 1)]


@pytest.mark.kinds("local", "generic")
def test_what_killed_writers_left_is_found_and_cleaned_up(place: Place) -> None:
    """Only what was to become an object of a finished sequence: the others may still be written."""
    folder = Path(place.url.removeprefix("generic-test://"))
    with Checkpointer(place.url, place.storage_options, fencing=place.fencing) as client:
        for number in range(2):
            with client.begin(epoch=number) as attempt:
                attempt.snapshot("op", 0, b"%d" % number)
        first, second = client.list_checkpoints()
        digest = "0" * 64
        names = {
            f"artifacts/op/0/.{first}.snapshot.{digest}.raw.{'a' * 16}.tmp": False,
            f"manifests/.{second}.json.{'a' * 16}.tmp": False,
            f"artifacts/op/0/.0000000009-00000000.snapshot.{digest}.raw.{'a' * 16}.tmp": True,
            f".vimrc.{'a' * 16}.tmp": True,
        }
        for name in names:
            (folder / name).write_bytes(b"half")
        client.clean(RetentionPolicy(grace=timedelta(0)))
        assert {name: (folder / name).exists() for name in names} == names
        assert client.restore().operator("op").partition(0) == [b"1"]


@pytest.mark.kinds("local", "generic")
def test_without_a_lock_nobody_discards_the_file_of_a_swap(place: Place) -> None:
    """It may be the only copy: the swap removes the old object, and moves the new one then."""
    store, folder = place.open(fencing="none"), Path(place.url.removeprefix("generic-test://"))
    run_sync(store.compare_and_swap("_latest", b"1", None))
    swapped = [f"{path}.{'a' * 16}.tmp" for path in ("._latest", "._keys", "progress/kinesis/app/.ownership.json")]
    # As an encrypted root stores it.
    once = f"artifacts/op/0/.0000000001-aaaaaaaa.snapshot.{'0' * 96}.raw.enc.{'a' * 16}.tmp"
    for file in (*swapped, once):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(b"2")
    found = run_sync(store.leftovers())
    assert [leftover.token.removeprefix(str(folder) + "/") for leftover in found] == [once]
    run_sync(store.discard(found))
    for token in (swapped[0], "_latest"):
        with pytest.raises(IllegalArgumentError, match="is no temporary file"):
            run_sync(store.discard([WriteLeftover("_latest", token)]))
    assert [(folder / file).exists() for file in (*swapped, once)] == [True, True, True, False]


def test_no_write_in_progress_no_leftovers(store: Store) -> None:
    run_sync(store.put("x", b"1"))
    assert list(run_sync(store.leftovers())) == []
    run_sync(store.discard([]))


def test_a_closed_store_opens_again(store: Store) -> None:
    run_sync(store.close())
    run_sync(store.put("x", b"1"))
    run_sync(store.close())
    run_sync(store.close())
    assert run_sync(store.get("x")).data == b"1"


def test_many_requests_at_once(store: Store) -> None:
    async def all_at_once() -> None:
        await asyncio.gather(*(store.put(f"a/{number:03}", b"%d" % number) for number in range(100)))
        blobs = await asyncio.gather(*(store.get(f"a/{number:03}") for number in range(100)))
        assert [blob.data for blob in blobs] == [b"%d" % number for number in range(100)]

    asyncio.run(runtime.bridge(all_at_once()))


def test_a_store_is_used_on_its_own_loop_only(store: Store) -> None:
    with pytest.raises(IllegalArgumentError, match="outside its event loop"):
        asyncio.run(store.get("x"))  # type: ignore[arg-type]
    with pytest.raises(IllegalArgumentError, match="blocking call"):
        run_sync(_block())


async def _block() -> None:
    run_sync(asyncio.sleep(0))
