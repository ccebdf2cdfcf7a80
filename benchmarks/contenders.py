"""The alternatives to a keyed state, each used as its users would: a dict of records, kept in a folder.

Each is durable when a call returns. If a library does not sync what it wrote, the benchmark syncs it within the
measured time. Where bytes are needed, records are packed with msgpack. They are restored as a dict of dicts.
"""

import asyncio
import os
import pickle
import sqlite3
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import msgpack
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from rocksdict import BlockBasedOptions, Checkpoint, Options, Rdict, WriteBatch, WriteOptions
from slatedb import uniffi as slatedb

from benchmarks.driver_state import State, restore_by_hand, save_by_hand
from pyspark_checkpointer import Checkpointer, KeyedState

COUNTED = "flights"
"""The field to which `Contender.increase` adds."""


class Contender(ABC):
    name: ClassVar[str]
    verifies: ClassVar[bool]
    """True if a restore checks all the bytes that it returns."""

    @abstractmethod
    def __init__(self, folder: Path) -> None: ...

    @abstractmethod
    def save(self, state: State) -> None:
        """Save everything, for the first time."""

    @abstractmethod
    def change(self, changes: State) -> None:
        """Save records that are new or have new values."""

    @abstractmethod
    def look_up(self, keys: Sequence[str]) -> Iterable[dict[str, Any]]:
        """Return the records of many keys."""

    def increase(self, keys: Sequence[str]) -> None:
        """Read the records of keys, add one to a field of each, and save them."""
        changes = dict(zip(keys, self.look_up(keys), strict=True))
        for record in changes.values():
            record[COUNTED] += 1
        self.change(changes)

    def change_meanwhile(self, changes: State) -> None:
        """Save changed records in the background. They are durable after `settle`."""
        self.change(changes)

    def settle(self) -> None:  # noqa: B027  # most have no background
        """Wait for the work in the background."""

    @abstractmethod
    def restore(self) -> State:
        """Return every record as Python objects, as a new process would get it."""

    @abstractmethod
    def close(self) -> None: ...


class Ours(Contender):
    name = "checkpointer"
    verifies = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._client = Checkpointer(folder)
        self._state = KeyedState()

    def save(self, state: State) -> None:
        self._state = KeyedState(state)
        self._commit()

    def change(self, changes: State) -> None:
        self._state.update(changes)
        self._commit()

    def look_up(self, keys: Sequence[str]) -> Iterable[dict[str, Any]]:
        return map(self._state.__getitem__, keys)

    def increase(self, keys: Sequence[str]) -> None:
        for record in self.look_up(keys):
            record[COUNTED] += 1  # found by the next save
        self._commit()

    def change_meanwhile(self, changes: State) -> None:
        self._state.update(changes)
        self._commit(background=True)

    def settle(self) -> None:
        self._client.read_latest()

    def _commit(self, *, background: bool = False) -> None:
        with self._client.begin(background=background) as checkpoint:
            checkpoint.save("state", self._state)

    def restore(self) -> State:
        with Checkpointer(self._folder) as client:
            restored = client.restore()
            assert restored is not None
            return restored.keyed("state").to_dict()

    def close(self) -> None:
        self._client.close()


class OursGiven(Ours):
    """The same, by a caller that keeps no value. So the next save need not look at it again."""

    name = "checkpointer, values that nobody else holds"

    def save(self, state: State) -> None:
        self._state = KeyedState(state)
        state.clear()
        self._commit()

    def change(self, changes: State) -> None:
        self._state.update(changes)
        changes.clear()
        self._commit()

    def change_meanwhile(self, changes: State) -> None:
        self._state.update(changes)
        changes.clear()
        self._commit(background=True)


class ByHand(Contender):
    """The limit: pack, compress, hash, write and sync in one thread, without a pointer to the newest complete state."""

    name = "msgpack + zstd + SHA-256 by hand"
    verifies = True

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self._state: State = {}
        self._unread: list[State] = []
        """Changes that are not in the dict yet. A save alone needs no dict, so the first batch that reads adds them."""

    def save(self, state: State) -> None:
        self.change(state)

    def look_up(self, keys: Sequence[str]) -> Iterable[dict[str, Any]]:
        for changes in self._unread:
            self._state |= changes
        self._unread.clear()
        return map(self._state.__getitem__, keys)

    def increase(self, keys: Sequence[str]) -> None:
        super().increase(keys)
        self._unread.clear()  # the dict has the records that were increased

    def change(self, changes: State) -> None:
        save_by_hand(changes, self._folder / f"{self._count:06d}")
        sync_folder(self._folder)
        self._count += 1
        self._unread.append(changes)

    def restore(self) -> State:
        state: State = {}
        for path in sorted(self._folder.iterdir()):
            state |= restore_by_hand(path)
        return state

    def close(self) -> None:
        pass


class Pickle(Contender):
    """A pickle of everything, written each time, because a pickle has no deltas."""

    name = "pickle"
    verifies = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._state: State = {}

    def save(self, state: State) -> None:
        self._state = state
        self.change({})

    def look_up(self, keys: Sequence[str]) -> Iterable[dict[str, Any]]:
        return map(self._state.__getitem__, keys)

    def change(self, changes: State) -> None:
        self._state |= changes
        write_synced(self._folder / "state.new", pickle.dumps(self._state, pickle.HIGHEST_PROTOCOL))
        os.replace(self._folder / "state.new", self._folder / "state")
        sync_folder(self._folder)

    def restore(self) -> State:
        with (self._folder / "state").open("rb") as file:
            state: State = pickle.load(file)
            return state

    def close(self) -> None:
        pass


class RocksDB(Contender):
    """A write, then a checkpoint, which a restart opens. The checkpoint syncs everything in it, so no log is needed."""

    name = "RocksDB"
    verifies = True

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self._db = Rdict(str(folder / "db"), _raw())
        self._unlogged = WriteOptions()
        self._unlogged.disable_wal = True

    def save(self, state: State) -> None:
        self.change(state)

    def change(self, changes: State) -> None:
        pack = msgpack.Packer().pack
        for some in _pieces(changes, 100_000):
            batch = WriteBatch(raw_mode=True)
            for key, value in some:
                batch.put(key.encode(), pack(value))
            self._db.write(batch, self._unlogged)
        self._count += 1
        Checkpoint(self._db).create_checkpoint(str(self._folder / f"checkpoint-{self._count}"))
        sync_folder(self._folder)  # it syncs all files, and the checkpoint's folder, but not the name of that

    def look_up(self, keys: Sequence[str]) -> Iterable[dict[str, Any]]:
        return map(msgpack.unpackb, self._db[[key.encode() for key in keys]])

    def restore(self) -> State:
        db = Rdict(str(self._folder / f"checkpoint-{self._count}"), _raw())
        state = {key.decode(): msgpack.unpackb(value) for key, value in db.items()}
        db.close()
        return state

    def close(self) -> None:
        self._db.close()


class SlateDB(Contender):
    """A database in objects of a local folder. It acknowledges a write before a sync, which is added here."""

    name = "SlateDB"
    verifies = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._db = self._loop.run_until_complete(self._open())
        self._sync = Synced(folder)

    async def _open(self) -> Any:
        return await slatedb.DbBuilder(str(self._folder), slatedb.ObjectStore.resolve("file:///")).build()

    def save(self, state: State) -> None:
        self.change(state)

    def change(self, changes: State) -> None:
        self._loop.run_until_complete(self._change(changes))
        self._sync()

    async def _change(self, changes: State) -> None:
        pack = msgpack.Packer().pack
        for some in _pieces(changes, 100_000):
            batch = slatedb.WriteBatch()
            for key, value in some:
                batch.put(key.encode(), pack(value))
            await self._db.write(batch)
        await self._db.flush()

    def look_up(self, keys: Sequence[str]) -> Iterable[dict[str, Any]]:
        return self._loop.run_until_complete(self._look_up(keys))

    async def _look_up(self, keys: Sequence[str]) -> list[dict[str, Any]]:
        return [msgpack.unpackb(await self._db.get(key.encode())) for key in keys]

    def restore(self) -> State:
        return self._loop.run_until_complete(self._restore())

    async def _restore(self) -> State:
        reader = await slatedb.DbReaderBuilder(str(self._folder), slatedb.ObjectStore.resolve("file:///")).build()
        everything = slatedb.KeyRange(start=None, start_inclusive=True, end=None, end_inclusive=False)
        rows = await reader.scan(everything)
        state: State = {}
        while some := await rows.next_batch(10_000):
            state.update((row.key.decode(), msgpack.unpackb(row.value)) for row in some)
        await reader.shutdown()
        return state

    def close(self) -> None:
        self._loop.run_until_complete(self._db.shutdown())
        self._loop.close()


class SQLite(Contender):
    name = "SQLite"
    verifies = False

    def __init__(self, folder: Path) -> None:
        self._path = folder / "state.db"
        self._db = sqlite3.connect(self._path)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("CREATE TABLE state (key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID")

    def save(self, state: State) -> None:
        self.change(state)

    def change(self, changes: State) -> None:
        pack = msgpack.Packer().pack
        with self._db:
            rows = ((key, pack(value)) for key, value in changes.items())
            self._db.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", rows)

    def look_up(self, keys: Sequence[str]) -> Iterable[dict[str, Any]]:
        rows = (self._db.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone() for key in keys)
        return (msgpack.unpackb(value) for (value,) in rows)

    def restore(self) -> State:
        db = sqlite3.connect(self._path)
        state = {key: msgpack.unpackb(value) for key, value in db.execute("SELECT key, value FROM state")}
        db.close()
        return state

    def close(self) -> None:
        self._db.close()


class DeltaRs(Contender):
    """A table of a lakehouse, with a column for each field, and a merge."""

    name = "delta-rs"
    verifies = False

    def __init__(self, folder: Path) -> None:
        self._path = str(folder)
        self._sync = Synced(folder)

    def save(self, state: State) -> None:
        write_deltalake(self._path, _columns(state))
        self._sync()

    def change(self, changes: State) -> None:
        merge(self._path, _columns(changes))
        self._sync()

    def look_up(self, keys: Sequence[str]) -> Iterable[dict[str, Any]]:
        # Arrow's own filter fails on what delta-rs 1.6 has merged, whose texts have another type than the schema says.
        query = f"SELECT * FROM t WHERE key IN ({','.join(map(repr, keys))})"  # keys of our own
        found = _records(pa.table(QueryBuilder().register("t", DeltaTable(self._path)).execute(query)))
        return map(found.__getitem__, keys)

    def restore(self) -> State:
        return _records(DeltaTable(self._path).to_pyarrow_table())

    def close(self) -> None:
        pass


def _records(table: pa.Table) -> State:
    columns = table.to_pydict()
    keys = columns.pop("key")
    names = list(columns)
    return {
        key: dict(zip(names, row, strict=True))
        for key, row in zip(keys, zip(*columns.values(), strict=True), strict=True)
    }


def merge(path: str, changes: pa.Table) -> None:
    merging = DeltaTable(path).merge(changes, "t.key = s.key", source_alias="s", target_alias="t")
    merging.when_matched_update_all().when_not_matched_insert_all().execute()


CONTENDERS: tuple[type[Contender], ...] = (Ours, OursGiven, ByHand, Pickle, RocksDB, SlateDB, SQLite, DeltaRs)


class Synced:
    """A sync of the files that a library wrote into a folder since the last sync."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[Path, tuple[int, int]] = {}

    def __call__(self) -> None:
        folders = set[Path]()
        for path in self._folder.rglob("*"):
            with suppress(FileNotFoundError):  # such as one that was compacted away meanwhile
                found = path.stat()
                now = (found.st_size, found.st_mtime_ns)
                if stat.S_ISREG(found.st_mode) and self._known.get(path) != now:
                    with path.open("rb") as file:
                        os.fsync(file.fileno())
                    self._known[path] = now
                    folders.update(parent for parent in path.parents if parent.is_relative_to(self._folder))
        for folder in folders:
            sync_folder(folder)


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and sync its bytes. `sync_folder` makes its name durable too."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _raw() -> Options:
    """Return the options of a database of bytes, with the filters that Spark gives its own."""
    options, blocks = Options(raw_mode=True), BlockBasedOptions()
    blocks.set_bloom_filter(10, block_based=False)
    options.set_block_based_table_factory(blocks)
    return options


def _pieces(state: State, size: int) -> Iterator[Iterator[tuple[str, dict[str, Any]]]]:
    """Yield the records in batches, because one batch with everything would hold it a second time.

    There is no list of pairs: so many new tuples would let the garbage collector look at all objects again and again.
    """
    items = iter(state.items())
    return (islice(items, size) for _ in range(0, len(state), size))


def _columns(state: State) -> pa.Table:
    rows = state.values()
    names = next(iter(rows))
    return pa.table({"key": list(state)} | {name: [row[name] for row in rows] for name in names})
