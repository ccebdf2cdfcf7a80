"""Measure encrypted and signed roots beside a plain one: commits and restores of maps, and objects of a table.

All are on the local store, where every write is durable, and small commits on S3 too. A table is measured below Spark,
where its bytes are made and read, so that nothing of Spark hides what encryption costs.
"""

import itertools
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.driver_state import commit, keyed
from benchmarks.measure import Finding, Note, Target, Times, alternate, timed
from benchmarks.stores import folder, s3_server
from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.manifests.model import Chain, CheckpointId
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.schema_evolution import first_schema
from pyspark_checkpointer.table.version import TableVersion
from pyspark_checkpointer.table.writer import TableWriter
from tests.servers import ServerUnavailableError
from tests.signing_keys import make_keys

SMALL_LIMIT = 1.05
MANY = 540
"""Small commits that are measured: one takes milliseconds, so that it takes many to see a difference of 5 %."""

TABLE_LIMIT = 1 / 0.85
"""An encrypted root reaches 0.85 of the speed of a plain one."""

SCHEMA = first_schema(
    "t",
    [
        {"name": "k", "type": "long", "nullable": False, "metadata": {}},
        {"name": "amount", "type": "double", "nullable": True, "metadata": {}},
        {"name": "city", "type": "string", "nullable": True, "metadata": {}},
    ],
    ["k"],
    {},
)


def run(quick: bool) -> list[Finding]:
    keys, repetitions, commits = (20_000, 1, 10) if quick else (1_000_000, 9, MANY)
    with folder() as base:
        make_keys(base / "owner.pem")
        (base / "key").write_text(secrets.token_hex(32))
        clients = _clients(str(base), base)
        small = _small_commits(clients, commits, "a commit of 10 changed keys")
        maps = _maps(clients, keys, repetitions)
        # The objects of a table take some tens of milliseconds: more repetitions, as others use the machine too.
        tables = _tables({name: clients[name] for name in ("plain", "encrypted")}, keys, 5 * repetitions)
        return [*small, *maps, *_on_s3(base, commits), *tables]


def _clients(url: str, base: Path, options: dict[str, Any] | None = None) -> dict[str, Checkpointer]:
    """Return a client of each kind of root. Their keys are in a folder."""
    return {
        "plain": Checkpointer(f"{url}/plain", options),
        "encrypted": Checkpointer(f"{url}/encrypted", options, encryption=f"key-file:{base / 'key'}"),
        "signed": Checkpointer(f"{url}/signed", options, signing=f"sign:{base / 'owner.pem'}"),
    }


def _on_s3(base: Path, commits: int) -> list[Finding]:
    try:
        with s3_server() as server:
            clients = _clients(server.url, base, server.storage_options)
            return [*_small_commits(clients, commits, "a commit of 10 changed keys to S3")]
    except ServerUnavailableError as unavailable:
        return [Note(f"{unavailable}: encrypted commits were not measured on S3")]


def _small_commits(clients: dict[str, Checkpointer], many: int, what: str) -> list[Target]:
    small = {name: KeyedState({n: n for n in range(1000)}, partitions=8) for name in clients}
    numbers = itertools.count()

    def few(name: str) -> float:
        """Commit changes of ten keys."""

        def work() -> None:
            for key in range(10):
                small[name][key] = next(numbers)
            commit(clients[name], small[name])

        return timed(work)

    for name in clients:
        few(name)
    # One after the other: all have the same share of what else the machine does.
    commits = alternate(many, **{name: _bound(few, name) for name in clients})
    return [_target(what, commits, SMALL_LIMIT), _target(what, commits, SMALL_LIMIT, "signed")]


def _maps(clients: dict[str, Checkpointer], keys: int, repetitions: int) -> list[Target]:
    saves = alternate(repetitions, **{name: _bound(_save_all, clients[name], keys) for name in clients})
    restores = alternate(repetitions, **{name: _bound(_restore, clients[name], keys) for name in clients})
    return [
        _target(f"a full save of a map of {keys:,} keys", saves, None),
        _target(f"a restore of it, {keys:,} keys", restores, None),
        _target(f"a restore of it, {keys:,} keys", restores, None, "signed"),
    ]


def _bound(work: Callable[..., float], *arguments: object) -> Callable[[], float]:
    return lambda: work(*arguments)


def _save_all(client: Checkpointer, keys: int) -> float:
    state = keyed(keys)
    return timed(lambda: commit(client, state))


def _restore(client: Checkpointer, keys: int) -> float:
    copy = client.copy()

    def work() -> int:
        restored = copy.restore()
        assert restored is not None
        return len(restored.keyed("state"))

    assert work() == keys
    return timed(work)


def _tables(clients: dict[str, Checkpointer], keys: int, repetitions: int) -> list[Target]:
    draw = np.random.default_rng(0)
    rows = pa.table(
        {
            "k": np.arange(keys),
            "amount": draw.random(keys),
            "city": pa.array([f"city-{n}" for n in draw.integers(0, 10_000, keys)]),
        }
    ).cast(SCHEMA.arrow())
    wanted = pa.table({"k": np.sort(draw.choice(keys, 1000, replace=False))})
    versions: dict[str, TableVersion] = {}
    sequence = itertools.count(1)

    def write(name: str) -> float:
        session = clients[name].session

        async def work() -> Chain:
            owner = CheckpointId(next(sequence), secrets.token_hex(4))
            return (await TableWriter(session.store, session.host, owner, "t", SCHEMA).snapshot(0, rows),)

        def timed_work() -> None:
            versions[name] = TableVersion("t", SCHEMA, 1, {0: run_sync(work())})

        return timed(timed_work)

    def read(name: str, work: Callable[[TableReader], Awaitable[pa.Table]], expected: int) -> float:
        session = clients[name].session

        async def whole() -> int:
            found = await work(TableReader(session.store, session.host, versions[name]))
            return len(found)

        def timed_work() -> None:
            assert run_sync(whole()) == expected

        return timed(timed_work)

    def read_all(reader: TableReader) -> Awaitable[pa.Table]:
        return reader.rows(0)

    def look_up(reader: TableReader) -> Awaitable[pa.Table]:
        return reader.rows(0, wanted)

    writes = alternate(repetitions, **{name: _bound(write, name) for name in clients})
    reads = alternate(repetitions, **{name: _bound(read, name, read_all, keys) for name in clients})
    lookups = alternate(repetitions, **{name: _bound(read, name, look_up, 1000) for name in clients})
    return [
        _target(f"a snapshot of {keys:,} rows of a table", writes, TABLE_LIMIT),
        _target(f"a read of it, {keys:,} rows", reads, TABLE_LIMIT),
        _target("a lookup of 1,000 of its keys", lookups, TABLE_LIMIT),
    ]


def _target(what: str, times: dict[str, Times], limit: float | None, kind: str = "encrypted") -> Target:
    other, plain = times[kind], times["plain"]
    detail = (
        f"{other.median * 1000:,.1f} ms (spread {other.spread:.0%}) and {plain.median * 1000:,.1f} ms "
        f"(spread {plain.spread:.0%})"
    )
    return Target(f"{kind} root: {what} / plain", other.median / plain.median, limit, detail)
