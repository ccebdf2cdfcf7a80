"""`checkpointer cost`: its formula beside the requests that real commits, restores and cleanups make."""

import ast
import json
import math
import os
import re
import shlex
import uuid
from collections import Counter
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pyspark_checkpointer import Checkpointer, KeyedState, RetentionPolicy, compaction
from pyspark_checkpointer.admin import cost, forecast_operators
from pyspark_checkpointer.admin import forecast as model
from pyspark_checkpointer.admin.cost import STORES, BilledRequests, Schedule, Window, cleanup_requests
from pyspark_checkpointer.admin.forecast import forecast, upload_requests
from pyspark_checkpointer.admin.forecast_operators import OperatorLoad
from pyspark_checkpointer.compaction import table_compactions
from pyspark_checkpointer.manifests.model import Chain
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.table.compact import compact_chains
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.schema import CHANGE, MERGE, PARTITION
from pyspark_checkpointer.table.schema_evolution import first_schema
from pyspark_checkpointer.table.version import TableVersion
from pyspark_checkpointer.table.writer import TableWriter, on_top
from tests.admin.retention.histories import with_clock
from tests.cli.conftest import Run
from tests.servers import Server
from tests.world import Actor, World

PAGE = Path(__file__).parents[2] / "docs" / "cost.md"

# ---- what a batch costs ----------------------------------------------------------------------------------------------


class Job:
    """A job whose requests and bytes are counted."""

    def __init__(self, **options: Any) -> None:
        self.world = World()
        self.client: Actor = self.world.actor(**options)
        self.max_chain = options.get("max_chain", 10)

    def batch(self, number: int) -> None:
        raise NotImplementedError

    def run(self, warm: int, batches: int) -> tuple[dict[str, float], float]:
        """Return the requests of a batch by kind, and the bytes that it leaves, both in the mean."""
        for number in range(warm):
            self.batch(number)
        before, found = self._bytes(), Counter[str]()
        for number in range(warm, warm + batches):
            self.client.faults.forget()
            self.batch(number)
            found += Counter(self.client.faults.counts)
        return {kind: n / batches for kind, n in found.items()}, (self._bytes() - before) / batches

    def _bytes(self) -> int:
        entries = run_sync(self.world.store.list(""))
        return sum(entry.size for entry in entries if entry.path != "_latest")


class MapJob(Job):
    """A map of values that cannot be compressed; each batch changes the next keys."""

    def __init__(self, keys: int, changed: int, value: int = 50, partitions: int = 8, **options: Any) -> None:
        super().__init__(**options)
        self.keys, self.changed, self.value = keys, changed, value
        self.state = KeyedState({n: os.urandom(value) for n in range(keys)}, partitions=partitions)
        record = value + 5  # the key, and the lengths of both
        self.load = OperatorLoad(False, keys * record, changed * record, partitions, min(partitions, changed))
        self.commit()

    def commit(self) -> None:
        with self.client.begin() as cp:
            cp.save("map", self.state)

    def batch(self, number: int) -> None:
        for n in range(self.changed):
            self.state[(number * self.changed + n) % self.keys] = os.urandom(self.value)
        self.commit()


@pytest.mark.parametrize(
    ("job", "options"),
    [
        ((2000, 40), {}),
        ((2000, 700), {}),
        ((2000, 40), {"max_chain": 3}),
        ((300, 40), {"partitions": 1}),
        ((2000, 200), {"partitions": 100}),
    ],
    ids=str,
)
def test_the_requests_of_small_maps_are_exactly_those_of_the_formula(job: Any, options: dict[str, Any]) -> None:
    real = MapJob(*job, **options)
    requests, size = real.run(20, 100)
    found = forecast([real.load], real.max_chain)
    assert requests == {"put": found.puts - 1, "swap": 1}, "an object of all changes, the manifest, the swap"
    assert found.gets == 0
    assert found.puts == 3
    assert found.bytes == pytest.approx(size, rel=0.2)
    reader = real.world.actor()
    restored = reader.restore()
    assert restored is not None
    restored.keyed("map")
    assert reader.faults.counts["get"] == pytest.approx(found.restore_gets, abs=real.max_chain)
    assert found.restore_gets <= 2 + real.max_chain + real.load.partitions


def test_snapshots_of_large_partitions_are_objects_of_their_own() -> None:
    real = MapJob(20_000, 1000, value=90, partitions=4)
    requests, size = real.run(11, 50)
    found = forecast([real.load], 10)
    assert requests["put"] + requests["swap"] == pytest.approx(found.puts, rel=0.05)
    assert requests["put"] > 2.2
    assert found.bytes == pytest.approx(size, rel=0.2)


FIELDS = [
    {"name": "k", "type": "long", "nullable": False, "metadata": {}},
    {"name": "v", "type": "long", "nullable": True, "metadata": {}},
]


class TableJob(Job):
    """A table that is written as the driver of a query writes small changes, without Spark."""

    def __init__(self, rows: int, changed: int, partitions: int, **options: Any) -> None:
        super().__init__(**options)
        self.rows, self.changed, self.partitions = rows, changed, partitions
        self.schema = first_schema("table", FIELDS, ["k"], {})
        self.values = np.random.default_rng(1)
        self.chains: dict[int, Chain] = {}
        with self.client.begin() as cp:
            writer = self._writer(cp)
            for partition in range(partitions):
                keys = np.arange(partition, rows, partitions)
                found = pa.table({"k": keys, "v": self._values(keys)}).cast(self.schema.arrow())
                self.chains[partition] = (run_sync(writer.snapshot(partition, found)),)
            self._put(cp)
        size = sum(chain[0].size for chain in self.chains.values())
        self.load = OperatorLoad(True, size, size * changed // rows, partitions, min(partitions, changed))

    def batch(self, number: int) -> None:
        keys = (np.arange(self.changed) + number * self.changed) % self.rows
        with self.client.begin() as cp:
            writer, session = self._writer(cp), self.client.session
            for partition, delta in run_sync(writer.pack(self._changes(keys))).items():
                self.chains[partition] = on_top(self.chains[partition], delta)
            keep = table_compactions(self.chains, self.max_chain, math.ceil(self.partitions / self.max_chain))
            if keep:
                version = TableVersion("table", self.schema, self.partitions, self.chains).only([*keep])
                reader = TableReader(session.store, session.host, version)
                self.chains |= run_sync(compact_chains(reader, writer, self.chains, keep))
            self._put(cp)

    def _changes(self, keys: Any) -> pa.Table:
        partitions = (keys % self.partitions).astype("int32")
        order = np.lexsort((keys, partitions))
        found = {"k": keys[order], "v": self._values(keys), PARTITION: partitions[order]}
        found[CHANGE] = np.full(len(keys), MERGE, "int8")
        stored = self.schema.arrow_delta(kept=False)
        return pa.table([pa.array(found[name]) for name in stored.names], stored.names).cast(stored)

    def _values(self, keys: Any) -> Any:
        return self.values.integers(0, 2**60, len(keys))

    def _writer(self, cp: Any) -> TableWriter:
        session = self.client.session
        return TableWriter(session.store, session.host, cp.attempt.id, "table", self.schema)

    def _put(self, cp: Any) -> None:
        version = TableVersion("table", self.schema, self.partitions, dict(self.chains))
        cp.attempt.put_operator("table", version.operator())


@pytest.mark.parametrize(
    ("job", "max_chain"), [((20_000, 1000, 16), 10), ((40_000, 400, 16), 10), ((40_000, 2000, 4), 5)], ids=str
)
def test_the_requests_of_tables_are_those_of_the_formula_but_for_a_fifth(job: Any, max_chain: int) -> None:
    real = TableJob(*job, max_chain=max_chain)
    requests, size = real.run(25, 100)
    found = forecast([real.load], max_chain)
    assert requests["put"] + requests["swap"] == pytest.approx(found.puts, rel=0.2)
    assert requests["get"] + requests.get("get_range", 0) == pytest.approx(found.gets, rel=0.2)
    assert found.bytes == pytest.approx(size, rel=0.5)


def test_several_operators_add_up() -> None:
    small = OperatorLoad(False, 10_000, 500, 8, 8)
    one, two = forecast([small], 10), forecast([small, small], 10)
    assert two.puts == one.puts + 1
    assert two.objects == one.objects + 1
    assert two.restore_gets - 2 == pytest.approx(2 * (one.restore_gets - 2))


def test_long_lists_of_chains_of_which_few_change_stand_in_segments() -> None:
    few, many = (forecast([OperatorLoad(True, 10**9, 10**6, 64, n)], 10) for n in (4, 64))
    assert few.bytes <= many.bytes
    assert (few.segments > 1, many.segments) == (True, 0)
    assert few.restore_gets == 2 + few.segments


def test_the_longer_a_chain_may_be_the_less_is_written() -> None:
    load = OperatorLoad(True, 10**10, 10**6, 16, 16)
    written = [forecast([load], max_chain).bytes for max_chain in (3, 10, 30)]
    assert written[0] > written[1] > written[2]


def constants(module: ModuleType) -> set[str]:
    """Return the constants that a module makes itself, and does not import."""
    assert module.__file__ is not None
    body = ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body
    targets = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
    return {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name) and one.id.isupper()}


def test_the_model_makes_no_size_of_its_own_that_a_job_has() -> None:
    from pyspark_checkpointer.spark import table_jobs
    from pyspark_checkpointer.table import parquet_encode, reader

    assert constants(forecast_operators) == {"STORED_ROW", "MEMORY_RATIO", "SPARK_TASKS"}, (
        "import it from where it is decided"
    )
    drawn = {"_MAX_WORK", "_MIN_BATCHES", "_MAX_BATCHES", "_SAMPLES", "_PROGRESS", "_START"}
    assert constants(model) == drawn, "import it from where it is decided"
    for user, name in (
        (table_jobs, "DRIVER_BYTES"),
        (reader, "STREAMED_SNAPSHOT_BYTES"),
        (parquet_encode, "ROW_GROUP_ROWS"),
    ):
        assert name in constants(compaction)
        assert name in vars(forecast_operators)
        assert name not in constants(user)


def test_a_large_object_is_written_with_the_requests_that_are_counted(
    s3_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from s3fs import S3FileSystem

    calls: list[str] = []
    send = S3FileSystem._call_s3

    async def counting(self: S3FileSystem, method: str, *args: Any, **kwargs: Any) -> Any:
        calls.append(method)
        return await send(self, method, *args, **kwargs)

    monkeypatch.setattr(S3FileSystem, "_call_s3", counting)
    with Checkpointer(f"{s3_server.url}/{uuid.uuid4().hex}", s3_server.storage_options) as client:
        with client.begin() as cp:
            cp.snapshot("op", 0, b"first")
        for size in ((32 << 20), (32 << 20) + 1, (40 << 20) + 1):
            calls.clear()
            with client.begin() as cp:
                cp.snapshot("op", 0, bytes(size))
            assert len(calls) == upload_requests(size) + 2, Counter(calls)


# ---- what a cleanup costs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("between", "keep", "grace"),
    [(20, 30, 0), (20, 30, 1), (3, 2, 1), (40, 10, 3), (1, 1, 1), (20, 30, 2.5)],
)
def test_the_requests_of_a_cleanup_are_exactly_those_of_the_formula(between: int, keep: int, grace: float) -> None:
    """Each hour one cleanup; the last one of many is that of a job that has been running for long."""
    world = World()
    client = world.actor()
    clock = with_clock(client)
    state = KeyedState(dict.fromkeys(range(100), "x" * 20))
    changes = 0
    for _ in range(8):
        for _ in range(between):
            for _ in range(40):
                state[changes % 100] = f"{changes:020d}"
                changes += 1
            with client.begin() as cp:
                cp.save("map", state)
        clock.time += timedelta(hours=1)
        there = len(world.objects())
        client.faults.forget()
        client.clean(RetentionPolicy(keep_last=keep, grace=timedelta(hours=grace)))
    counts = client.faults.counts
    batch = forecast([OperatorLoad(False, 2500, 1000, 8, 8)], 10)
    window = Window.of(Schedule(between, keep_last=keep, cleanups_per_day=24, grace=timedelta(hours=grace)))
    assert cleanup_requests(window, batch, STORES["s3"]) == BilledRequests(
        counts["list"] + counts["swap"] + counts["leftovers"], counts["get"], counts["delete"]
    )
    assert batch.state_objects + (window.at_cleanup - 1) * batch.objects + 1 == pytest.approx(there, abs=2)


def test_azure_deletes_one_by_one_and_lists_five_thousand() -> None:
    batch = forecast([OperatorLoad(False, 2500, 1000, 8, 8)], 10)
    window = Window(3000, 60, 0, 60)
    s3, azure = (cleanup_requests(window, batch, STORES[name]) for name in ("s3", "azure"))
    assert (s3.delete, azure.delete) == (2, 120)
    assert s3.put - azure.put == 4 * (4 - 1) + (7 - 2) + 1
    assert s3.get == azure.get


# ---- money -----------------------------------------------------------------------------------------------------------


def test_a_month_is_what_its_parts_add_up_to(run: Run) -> None:
    done = run("cost", "--map", "state=5MB,change=20kB", "--every", "60s", "--keep-last", 50, "--json")
    month = done.json
    assert month["batches"] == 60 * 730
    assert month["cleanups"] == 730
    for part in month["requests"]:
        sent = part["each_batch"] * 60 * 730 + (part["each_cleanup"] * 24 + part["each_start"]) * 730 / 24
        assert part["month"] == pytest.approx(sent, rel=1e-3)
        assert part["usd"] == pytest.approx(part["month"] / 1000 * part["price_per_1000"], abs=1e-3)
    kept = month["kept"]
    assert kept["usd"] == pytest.approx(kept["bytes"] / 2**30 * kept["price_per_gb"], abs=1e-3)
    assert month["usd"] == pytest.approx(kept["usd"] + sum(part["usd"] for part in month["requests"]), abs=1e-3)
    assert "us-east-1, noted in January 2025" in month["prices"]


def test_a_price_of_your_own_replaces_the_list_price(run: Run) -> None:
    args = ("cost", "--map", "state=5MB,change=20kB", "--every", "60s", "--json")
    listed = run(*args).json
    mine = run(*args, "--price", "put=0.01", "--price", "gb=0").json
    assert mine["requests"][0]["usd"] == pytest.approx(2 * listed["requests"][0]["usd"], abs=1e-3)
    assert mine["kept"]["usd"] == 0
    assert mine["requests"][1] == listed["requests"][1]


def test_without_retention_the_store_grows(run: Run) -> None:
    args = ("cost", "--map", "state=5MB,change=20kB", "--every", "60s")
    growing, kept = run(*args, "--json").json, run(*args, "--keep-last", 10, "--json").json
    assert growing["cleanups"] == 0
    assert growing["kept"]["bytes"] == pytest.approx(growing["written_bytes"], rel=0.05)
    assert kept["kept"]["bytes"] < growing["kept"]["bytes"] / 10
    assert "nothing is deleted: the store grows, see --keep-last" in run(*args).out


# ---- a real root -----------------------------------------------------------------------------------------------------


@pytest.fixture
def measured(tmp_path: Path) -> tuple[Path, int]:
    """Return a root with 30 checkpoints, one in 36 seconds, and the bytes that all of it takes."""
    root = tmp_path / "root"
    state = KeyedState({n: os.urandom(20) for n in range(1000)})
    with Checkpointer(root) as ck:
        clock = with_clock(ck)
        for number in range(30):
            clock.time += timedelta(seconds=36)
            state[number] = os.urandom(20)
            with ck.begin() as cp:
                cp.save("map", state)
    return root, sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def test_a_root_is_projected_by_what_its_manifests_recorded(measured: tuple[Path, int], run: Run) -> None:
    root, size = measured
    month = run("cost", root, "--batches-per-hour", 100, "--last", 20, "--store", "s3", "--json").json
    put, get, delete = month["requests"]
    assert month["checkpoints"] == 20
    assert put["each_batch"] == 3, "an object, the manifest, the swap"
    assert (get["each_batch"], delete["each_batch"]) == (0, 0)
    assert get["each_start"] >= 3
    assert put["month"] == 3 * 73_000
    rare = run("cost", root, "--batches-per-hour", 1e-6, "--json").json
    assert rare["kept"]["bytes"] == pytest.approx(size, rel=0.02)
    assert rare["kept"]["objects"] == pytest.approx(1 + 2 * 30, abs=1), "and `_latest`"


def test_what_the_catalog_keeps_is_stored_too(measured: tuple[Path, int], run: Run) -> None:
    root, _ = measured
    with Checkpointer(root) as ck:
        ck.savepoint("first", ck.list_checkpoints()[0])
        with ck.begin() as cp:
            cp.save("map", KeyedState({n: os.urandom(2000) for n in range(1000)}))
        ck.clean(RetentionPolicy(keep_last=1, grace=timedelta(0)))
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    kept = run("cost", root, "--batches-per-hour", 1e-6, "--json").json["kept"]
    assert kept["bytes"] == pytest.approx(size, rel=0.02)
    assert kept["objects"] >= 5


def test_a_lost_catalog_hides_no_costs(measured: tuple[Path, int], run: Run) -> None:
    root, _ = measured
    with Checkpointer(root) as ck:
        ck.savepoint("first", ck.list_checkpoints()[0])
        ck.clean(RetentionPolicy(keep_last=2, grace=timedelta(0)))
    before = run("cost", root, "--batches-per-hour", 60, "--json").json
    for catalog in (root / "catalog").iterdir():
        catalog.unlink()
    after = run("cost", root, "--batches-per-hour", 60, "--json").json
    assert after["requests"] == before["requests"]
    assert after["kept"]["bytes"] < before["kept"]["bytes"]


def test_a_rollback_is_no_batch(measured: tuple[Path, int], run: Run) -> None:
    root, _ = measured
    with Checkpointer(root) as ck:
        ck.restore()
        ck.rollback(ck.list_checkpoints()[3])
    month = run("cost", root, "--batches-per-hour", 60, "--json").json
    assert month["requests"][1]["each_batch"] == 0


def test_the_rate_of_a_root_is_that_of_its_checkpoints(measured: tuple[Path, int], run: Run) -> None:
    root, _ = measured
    assert run("cost", root, "--json").json["batches"] == 100 * 730
    said = run("cost", root).out
    assert f"root             {root}" in said
    assert "measured         30 checkpoints" in said
    assert "none are known for this store" in said


def test_with_retention_a_roots_cleanups_count_too(measured: tuple[Path, int], run: Run) -> None:
    month = run("cost", measured[0], "--batches-per-hour", 60, "--keep-last", 10, "--json").json
    assert month["requests"][1]["each_cleanup"] == 3 + 70 + 10 + 10 + 60


def test_one_checkpoint_alone_tells_no_rate(tmp_path: Path, run: Run) -> None:
    with Checkpointer(tmp_path / "root") as ck, ck.begin() as cp:
        cp.snapshot("op", 0, b"x")
    done = run("cost", tmp_path / "root")
    assert done.status == 2
    assert "give --every 30s, or --batches-per-hour" in done.err
    assert run("cost", tmp_path / "root", "--every", "30s").status == 0


@pytest.mark.parametrize(("seconds", "status"), [(59, 2), (60, 0)])
def test_checkpoints_of_less_than_a_minute_tell_no_rate(tmp_path: Path, run: Run, seconds: int, status: int) -> None:
    root = tmp_path / "root"
    with Checkpointer(root) as ck:
        clock = with_clock(ck)
        for _ in range(100):
            with ck.begin() as cp:
                cp.snapshot("op", 0, b"x")
            clock.time += timedelta(seconds=seconds) / 99
    done = run("cost", root)
    assert done.status == status
    if status:
        assert "checkpoints made within 59.0 s do not tell how often a batch comes" in done.err
        assert "give --every 30s, or --batches-per-hour" in done.err
    assert run("cost", root, "--every", "30s").status == 0


# ---- what is typed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        ((), ("--map, --table or ROOT",)),
        (("--every", "30s"), ("--map, --table or ROOT",)),
        (("--map", "state=1MB,change=1kB"), ("--every 30s, or --batches-per-hour",)),
        (("--map", "state=1MB,change=1kB", "--every", "30s", "--batches-per-hour", "3"), ("leave one out",)),
        (("--map", "state=1MB"), ("--map", "change is missing", "write it like --map state=50MB")),
        (("--map", "stat=1MB,change=1kB"), ("--map", "'stat' is none of state, change, partitions, changed")),
        (("--map", "state=1MB,change=1kB,tasks=3"), ("'tasks' is none of state, change, partitions, changed",)),
        (("--table", "state=1MB,change=much"), ("--table", "change=much: expected a size", "such as 20kB")),
        (("--map", f"state={'9' * 400},change=1kB"), ("--map", "expected a size")),
        (("--table", f"state=1MB,change=1kB,partitions={'9' * 5000}"), ("expected a number from 1 to 10000",)),
        (("--map", "state=1MB,change=1kB", "--every", f"{'9' * 5000}h"), ("--every", "is too long")),
        (("--table", "state=1MB,change=1kB,partitions=0"), ("partitions=0: expected a number from 1 to 10000",)),
        (("--table", "state=1MB,change=1kB,changed=17"), ("changed=17 of 16 partitions", "partitions=17 or more")),
        (("--map", "state=1MB,change=1kB", "--every", "often"), ("--every", "write 90s")),
        (("--map", "state=1MB,change=1kB", "--batches-per-hour", "nan"), ("the number of batches is no number",)),
        (("--map", "state=1MB,change=1kB", "--batches-per-hour", "0"), ("--batches-per-hour", "0<x")),
        (("--map", "state=1MB,change=1kB", "--price", "puts=1"), ("--price", "'puts=1': write put=0.005")),
        (("--map", "state=1MB,change=1kB", "--price", "put=-1"), ("--price", "put=-1")),
        (("--map", "state=1MB,change=1kB", "--price", "gb=nan"), ("--price", "gb=nan")),
        (("--map", "state=1MB,change=1kB", "--store", "oss"), ("--store", "s3", "azure", "gcs")),
        (("ROOT", "--map", "state=1MB,change=1kB"), ("--map, --table and --max-chain cannot be combined with ROOT",)),
        (("ROOT", "--max-chain", "3"), ("--map, --table and --max-chain cannot be combined with ROOT",)),
    ],
)
def test_a_mistake_names_the_option_and_what_to_type(
    root: Path, run: Run, args: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    done = run("cost", *(arg.replace("ROOT", str(root)) for arg in args))
    assert (done.status, done.out) == (2, "")
    assert done.err.count("\n") == 1
    for part in parts:
        assert part in done.err


def test_the_root_of_the_environment_is_named_by_a_dash(root: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKPOINTER_ROOT", str(root))
    assert run("cost", "-", "--every", "1min", "--json").json["root"] == str(root)
    assert run("cost", "--map", "state=1MB,change=1kB", "--every", "1min", "--json").json["root"] is None
    assert "`-` for the root in CHECKPOINTER_ROOT" in run("cost").err


def test_a_root_whose_checkpoints_tell_no_cost_says_what_to_do(
    root: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from pyspark_checkpointer.manifests import manifest_json

    decode = manifest_json.decode_manifest
    monkeypatch.setattr(manifest_json, "decode_manifest", lambda *args: replace(decode(*args), cost=None))
    done = run("cost", root)
    assert done.status == 1
    assert "describe what a batch changes with --map and --table" in done.err


@pytest.mark.parametrize(
    ("text", "size"), [("500", 500), ("20kB", 20_000), ("1.5MB", 1_500_000), ("3GiB", 3 << 30), ("2T", 2 * 10**12)]
)
def test_sizes_are_read_as_people_write_them(run: Run, text: str, size: int) -> None:
    written = [
        run("cost", "--map", f"state={given},change=1", "--every", "1h", "--keep-last", 1, "--json").json["kept"]
        for given in (text, size)
    ]
    assert written[0] == written[1]


# ---- the page --------------------------------------------------------------------------------------------------------

SHOWN = re.findall(r"^```console\n\$ (checkpointer cost [^\n]*)\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("command", "output"), SHOWN, ids=[command for command, _ in SHOWN])
def test_an_example_of_the_page_prints_what_the_page_shows(command: str, output: str, run: Run) -> None:
    assert run(*shlex.split(command)[1:]).out == output


def test_the_page_has_its_examples() -> None:
    assert len(SHOWN) == 2


def test_the_command_of_the_page_for_a_root_runs(measured: tuple[Path, int], run: Run) -> None:
    (command,) = re.findall(r"^```sh\n(.*?)\n```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert run(*shlex.split(command.replace("s3://bucket/jobs/orders", str(measured[0])))[1:]).status == 0


def test_the_page_has_the_prices_of_the_program() -> None:
    for name in ("s3", "azure", "gcs"):
        prices = STORES[name].prices
        row = f"| {prices['put']:g} | {prices['get']:g} | {prices['delete']:g} | {prices['gb']:g} |"
        assert row in PAGE.read_text()


def test_what_is_printed_for_programs_is_json(run: Run) -> None:
    args = ("--table", "state=1GB,change=1MB", "--every", "1min")
    found = run("cost", *args, "--json")
    assert json.loads(found.out)["kept"]["objects"] > 40_000
    assert cost.HOURS == 730
