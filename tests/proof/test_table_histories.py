"""Random histories of tables against dicts: whatever was written, however it was stored, is what a reader is given.

Each batch opens the table anew, by the real `State`. Drawn are the columns of each upsert, keys, widths of rows, the
bytes from which on the tasks write, compact, and merge piece by piece or with 64-bit offsets, numbers of partitions,
lengths of chains, threads, batches that fail, and restarts.
"""

import random
import uuid
from collections import Counter
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StructType

from pyspark_checkpointer import Checkpointer, compaction
from pyspark_checkpointer.manifests.model import CheckpointId
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark import apply_task
from pyspark_checkpointer.table import large_rows
from pyspark_checkpointer.table.compact import compact_chains
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.writer import TableWriter, on_top
from tests.proof.effort import SUMMARY
from tests.proof.plain_spark import PlainFrame, new_state, plain_spark
from tests.proof.table_history import History
from tests.table.tables import schema_of
from tests.table.test_version import Place

Effort = Callable[[int, int], int]
Figures = Counter[str]


@pytest.mark.parametrize("part", range(1 if SUMMARY is None else 40))
def test_a_table_is_what_a_dict_would_be(part: int, effort: Effort, figures: Figures) -> None:
    histories = effort(2, 50)
    for seed in range(part * histories, (part + 1) * histories):
        width = random.Random(seed).choice([5, 200, 5000])
        with pytest.MonkeyPatch.context() as patch:
            history = History(seed, figures, f"memory://{uuid.uuid4().hex}", width)
            history.limits(patch)
            with plain_spark(history.draw):
                try:
                    for number in range(8):
                        history.batch(number)
                        history.check()
                except BaseException as error:
                    error.add_note(f"in the history of seed {seed}")
                    raise
        figures["histories"] += 1


def test_large_rows_that_all_change_stay_readable_batch_after_batch(
    effort: Effort, figures: Figures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The long run brings more than 2 GiB of one column together, which 32-bit offsets cannot hold."""
    scale = effort(20, 1)
    for module, name in (
        (large_rows, "NARROW_BYTES"),
        *((compaction, n) for n in ("COMPACT_BYTES", "MAX_DELTA_BYTES")),
    ):
        monkeypatch.setattr(module, name, getattr(module, name) // scale)
    schema = schema_of({"k": "long", "v": "binary"}, ["k"])
    place = Place(schema)
    count, width = 7000 // scale, 36_000
    body = bytes(range(250)) * (width // 250)
    offsets = pa.py_buffer((np.arange(count + 1) * width).astype(np.int32))
    values = pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(body * count)])
    for batch in range(12):
        changes = pa.table(
            [
                pa.array(np.arange(count) + batch),
                values,
                pa.array([0] * count, pa.int32()),
                pa.array([0] * count, pa.int8()),
            ],
            schema=schema.arrow_delta(),
        )
        owner = CheckpointId(batch + 1, "0123abcd")
        writer = TableWriter(place.store, place.host, owner, "t", schema)
        delta = run_sync(writer.pack(changes))[0]
        place.chains[0] = on_top(place.chains.get(0, ()), delta)
        place.chains |= run_sync(
            compact_chains(place.reader(), writer, place.chains, compaction.table_compactions(place.chains, 30, 1))
        )
    (rows, size) = run_sync(_measure(place.reader()))
    assert (rows, size) == (count + 11, (count + 11) * width)
    assert len(place.chains[0]) <= 3
    figures["bytes of large rows merged"] += 12 * count * width


async def _measure(reader: TableReader) -> tuple[int, int]:
    """How many rows there are, and bytes of them; held is no more than a piece."""
    rows = size = 0
    async for piece in reader.pieces(0):
        rows += piece.num_rows
        size += pc.sum(pc.binary_length(piece["v"])).as_py()
    return rows, size


@pytest.mark.parametrize("partitions", [3, 2**31 - 1])
def test_a_partition_that_several_calls_fill_keeps_the_rows_of_all(
    monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    """The first call of a partition may write a snapshot of it, and what later calls change comes on top."""
    for name, value in (("MAX_CALL_ROWS", 3), ("MAX_HELD_BYTES", 1)):
        monkeypatch.setattr(apply_task, name, value)
    monkeypatch.setattr(compaction, "DRIVER_BYTES", 1)
    monkeypatch.setattr(compaction, "SMALL_PARTITION", 1)
    draw, client = random.Random(1), Checkpointer(f"memory://{uuid.uuid4().hex}")
    columns = StructType().add("k", "long").add("n", "long")
    rows = pa.table({"k": list(range(100))})
    with plain_spark(draw):
        state = new_state(client, client.restore(), 0)
        state.table("t", ["k"], num_partitions=partitions, schema=columns).apply(  # type: ignore[arg-type]
            PlainFrame.of(draw, rows), lambda given, below: given.append_column("n", given["k"])
        )
        state._attempt.commit()
    restored = client.restore()
    assert restored is not None
    assert restored.table("t").sort_by("k").to_pylist() == [{"k": k, "n": k} for k in range(100)]


def test_a_call_gets_no_more_state_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows of a batch may have much state: wide rows of it come in more calls, each with all rows of its keys."""
    monkeypatch.setattr(apply_task, "MAX_CALL_STATE_BYTES", 1 << 20)
    draw, client = random.Random(2), Checkpointer(f"memory://{uuid.uuid4().hex}")
    columns = StructType().add("k", "long").add("n", "long").add("wide", "string")
    calls: list[tuple[int, int]] = []

    def count(given: pa.Table, state: pa.Table) -> pa.Table:
        calls.append((given.num_rows, state.nbytes))
        new = given.group_by("k").aggregate([("k", "count")]).rename_columns(["k", "n"])
        both = pa.concat_tables([new, state.select(["k", "n"])]).group_by("k").aggregate([("n", "sum")])
        wide = pa.array(["w" * 10_000] * both.num_rows)
        return both.rename_columns(["k", "n"]).append_column("wide", wide)

    for batch in range(2):
        with plain_spark(draw):
            state = new_state(client, client.restore(), batch)
            rows = PlainFrame.of(draw, pa.table({"k": [k for k in range(1000) for _ in range(1 + k % 3)]}))
            state.table("t", ["k"], num_partitions=2, schema=columns).apply(rows, count)  # type: ignore[arg-type]
            state._attempt.commit()
    restored = client.restore()
    assert restored is not None
    found = restored.table("t").sort_by("k").select(["k", "n"]).to_pylist()
    assert found == [{"k": k, "n": 2 * (1 + k % 3)} for k in range(1000)]
    assert 10 <= sum(size > 0 for _, size in calls) <= 30
    assert max(size for _, size in calls) <= 1.1 * (1 << 20)
